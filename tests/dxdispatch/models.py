"""DxDispatch models as Python values, to be changed in one place, written and run."""

import json

from jaxdml import dxdispatch


def resource(data_type, values, **members):
    kind = {} if data_type is None else {"initialValuesDataType": data_type}
    return kind | {"initialValues": values} | members


def model(**changes):
    """x * 0.5, of four elements."""
    tensors = {
        "InputTensor": {"DataType": "UINT8", "Sizes": [4]},
        "ScaleTensor": {"DataType": "FLOAT32", "Sizes": [4], "Strides": [0]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [4]},
    }
    written = {
        "resources": {
            "x": resource("UINT8", [1, 2, 3, 4]),
            "s": resource("FLOAT32", [0.5]),
            "y": resource("FLOAT32", {"valueCount": 4, "value": 0}),
        },
        "dispatchables": {"d": {"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", "desc": tensors}},
        "commands": [
            {
                "type": "dispatch",
                "dispatchable": "d",
                "bindings": {"InputTensor": "x", "ScaleTensor": "s", "OutputTensor": "y"},
            },
            {"type": "print", "resource": "y"},
            {"type": "writeFile", "resource": "y", "targetPath": "y.npy", "dimensions": [2, 2]},
        ],
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = written
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[int(last) if isinstance(place, list) else last] = value
    return written


def run(folder, written, **options):
    """The final values of the resources, and the printed lines."""
    (folder / "model.json").write_text(written if isinstance(written, str) else json.dumps(written), encoding="utf-8")
    printed = []
    (folder / "output").mkdir(exist_ok=True)
    loaded = dxdispatch.load(folder / "model.json", **options)
    return loaded.run(output_dir=folder / "output", show=printed.append), printed
