"""Models of one node of com.microsoft."""

from onnx import helper

from helpers.hostile_models import constant, model, node


def made(operator, arguments, outputs=("y",), kind=0, **attributes):
    """A model of a node, whose inputs except the first are constants; outputs have no type, or the given one."""
    names = ["" if x is None else f"x{place}" for place, x in enumerate(arguments)]
    constants = [constant(x, name) for x, name in zip(arguments, names, strict=True) if name][1:]
    first = [("x0", helper.np_dtype_to_tensor_dtype(arguments[0].dtype), arguments[0].shape)]
    nodes = [node(operator, names, list(outputs), domain="com.microsoft", **attributes)]
    return model(nodes, constants, first, [(name, kind, None) for name in outputs], opset=21, ir_version=10)
