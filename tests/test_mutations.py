"""Thousands of descs and models in which something was changed: a result, or an error that says where.

No other exception, no hang, and no file outside the output folder.
"""

import copy
import dataclasses
import json
import math
import re
import shutil
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdml as dml
from cases import CONVOLUTION, MATRIX_MULTIPLY
from jaxdml import dxdispatch, examples

EXAMPLES = Path(examples.__file__).parent / "dxdispatch"
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**64, 10**30, -1, 0.5, 1e300, True]
WORDS = [
    "", "x", "UINT8", "INT8", "FLOAT32", "FLOAT16", "INT32", "UINT4", "UNKNOWN", "nan", "inf", "NONE", "OWNED_BY_DML",
    "../up.npy", "/tmp/absolute.npy", "output", "a/b/c.npy", "x.bin", ".", "..", "model.json", "\0", "~/home.npy",
    "input", "dispatch", "print", "writeFile",
]  # fmt: skip
VALUES = [
    *NUMBERS,
    *WORDS,
    None,
    [],
    {},
    [1],
    [0],
    [1, 1, 2, 2],
    [0, 0, 0, 0],
    {"name": "input"},
    {"sourcePath": "../x"},
]


def places(value, path=()):
    """The path of everything in a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutated(rng, value):
    """value with one to three changes: a member replaced, dropped, renamed, copied, or counted up."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        every = list(places(value))
        *path, last = every[rng.integers(len(every))]
        parent = value
        for key in path:
            parent = parent[key]
        kind = rng.integers(6)
        if kind == 0:
            del parent[last]
        elif kind == 1 and isinstance(parent, dict):
            parent[last + rng.choice(["", "s", "_"])] = parent.pop(last)
        elif kind == 2:
            source = value
            for key in every[rng.integers(len(every))]:
                source = source[key] if isinstance(source, dict | list) else source
            parent[last] = copy.deepcopy(source)
        elif kind == 3 and isinstance(parent[last], int):
            parent[last] += int(rng.choice([-1, 1, 2]))
        elif kind == 4 and isinstance(parent, list):
            parent.insert(last, parent[last])
        else:
            parent[last] = VALUES[rng.integers(len(VALUES))]
        if not list(places(value)):
            break
    return value


def valid_descs():
    for case in [MATRIX_MULTIPLY[0][0], MATRIX_MULTIPLY[0][3], *CONVOLUTION[0][:3]]:
        yield dml.desc_of(getattr(dml, case.operator), *case.arguments, **case.options)
    x = np.zeros((2, 3), np.uint8)
    yield dml.desc_of(dml.element_wise_dequantize_linear, x, np.ones(3, np.float32), 3)
    yield dml.desc_of(dml.element_wise_quantize_linear, x.astype(np.float32), 0.1, 3)
    yield dml.desc_of(dml.element_wise_quantized_linear_add, x, 0.1, 3, x, 0.1, None, 0.3, 4)


def shape_of_result(desc):
    """Traces the compiled operator on flat buffers; large ones are never made."""
    op = dml.compile_operator(desc)

    def buffer(name):
        tensor = getattr(desc, name)
        size = max(math.prod(tensor.sizes), (tensor.total_tensor_size_in_bytes or 0) * 8 // tensor.data_type.bits)
        if tensor.strides is not None:
            size = max(size, 1 + sum((n - 1) * s for n, s in zip(tensor.sizes, tensor.strides, strict=True)))
        return jax.ShapeDtypeStruct((size,), tensor.data_type.dtype)

    def call(owned, rest):
        return op(op.initialize(**owned), **rest)

    owned, rest = ({name: buffer(name) for name in names} for names in (op.owned, op.dispatched))
    if any(leaf.size >= 2**31 for leaf in jax.tree.leaves((owned, rest))):
        return None  # no array of JAX is as large without 64-bit types
    return jax.eval_shape(call, owned, rest)


def test_mutated_descs():
    rng = np.random.default_rng(0)
    valid = [dml.desc_to_dict(desc) for desc in valid_descs()]
    results, errors = 0, []
    for _ in range(4000):
        written = mutated(rng, valid[rng.integers(len(valid))])
        try:
            desc = dml.desc_from_dict(written)
            shape_of_result(desc)
        except dml.DescError as error:
            errors.append(error)
        else:
            results += 1
            assert dml.desc_from_dict(json.loads(json.dumps(dml.desc_to_dict(desc)))) == desc
    assert results > 300
    assert all(error.tensor is not None for error in errors)
    assert len({re.sub(r"[\d.e+-]+", "0", str(error)) for error in errors}) > 200


def test_mutated_fields():
    """Descs that are no JSON: every field replaced by everything."""
    errors = []
    for desc in valid_descs():
        for field in dataclasses.fields(desc):
            tensor = getattr(desc, field.name)
            changed = [dataclasses.replace(desc, **{field.name: value}) for value in (*VALUES, tensor)]
            if isinstance(tensor, dml.TensorDesc):
                changed += [
                    dataclasses.replace(desc, **{field.name: dataclasses.replace(tensor, **{inner.name: value})})
                    for inner in dataclasses.fields(tensor)
                    for value in VALUES[::7]
                ]
            for wrong in changed:
                assert str(wrong)
                try:
                    dml.compile_operator(wrong)
                except dml.DescError as error:
                    errors.append(error)
    assert len(errors) > 3000
    assert all(error.tensor is not None for error in errors)


@pytest.fixture
def folder(tmp_path):
    """Examples among links that lead out, and files outside that nobody may touch."""
    shutil.copytree(EXAMPLES, tmp_path / "models")
    (tmp_path / "outside").mkdir()
    for path in ("up.npy", "x", "outside/x.npy"):
        (tmp_path / path).write_bytes(b"precious")
    (tmp_path / "models" / "link.npy").symlink_to(tmp_path / "up.npy")
    (tmp_path / "models" / "away").symlink_to(tmp_path / "outside")
    return tmp_path


def escapes(folder):
    """Paths that lead out of the folders, from the models and from the output."""
    return ["../up.npy", "../x", "../../x", "../new.npy", "a/../../new.npy", str(folder / "new.npy"), str(folder / "x"),
            "link.npy", "away/x.npy", "away/new.npy", "..", "/", "../output/../new.npy"]  # fmt: skip


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_mutated_models(folder):
    """Each is loaded; it is run if that takes no program but those that the examples and a few others need."""
    rng = np.random.default_rng(0)
    paths = sorted((folder / "models").glob("*.json"))
    valid = [json.loads(json.dumps(dxdispatch._files.read_json(path).value)) for path in paths]
    before = files(folder)
    ran, seen, paths_at_fault, outward = 0, set(), [], 0
    for number in range(2000):
        path = folder / "models" / "model.json"
        original = valid[rng.integers(len(valid))]
        if number % 4:
            written = mutated(rng, original)
        else:  # nothing wrong but one path
            written, out = copy.deepcopy(original), escapes(folder)[rng.integers(len(escapes(folder)))]
            if number % 8:
                written["commands"].append({"type": "writeFile", "resource": "output", "targetPath": out})
            else:
                written["resources"]["more"] = {"initialValuesDataType": "UINT8", "initialValues": {"sourcePath": out}}
            outward += 1
        (folder / "output").mkdir()
        (folder / "output" / "link.npy").symlink_to(folder / "up.npy")
        (folder / "output" / "away").symlink_to(folder / "outside")
        path.write_text(json.dumps(written))
        before[path] = path.read_bytes()
        start = time.monotonic()
        try:
            model = dxdispatch.load(path, maximum_bytes=2**20)
            key = repr([dispatchable.operator for dispatchable in model.dispatchables.values()])
            if key in seen or len(seen) < 40:
                seen.add(key)
                model.run(output_dir=folder / "output", show=lambda text: None)
                ran += 1
        except dml.DxDispatchError as error:
            paths_at_fault.append(error.path)
        assert time.monotonic() - start < 60
        shutil.rmtree(folder / "output")
        assert files(folder) == before
    assert ran > 100
    assert len(set(paths_at_fault)) > 200
    assert sum(path.endswith(("sourcePath", "targetPath")) for path in paths_at_fault) >= outward == 500


def test_mutated_text(folder):
    """Characters of the file itself, changed, dropped and doubled."""
    rng = np.random.default_rng(0)
    text = (folder / "models" / "add.json").read_text()
    path, results = folder / "models" / "model.json", 0
    start = time.monotonic()
    for _ in range(1000):
        place, junk = int(rng.integers(len(text))), '"\\/*{}[],:0\n\0\u2028e-'
        replacement = rng.choice(["", text[place] * 2, junk[rng.integers(len(junk))]])
        path.write_text(text[:place] + str(replacement) + text[place + 1 :])
        try:
            dxdispatch.load(path)
            results += 1
        except dml.DxDispatchError:
            pass
    assert 100 < results < 900
    assert time.monotonic() - start < 100
