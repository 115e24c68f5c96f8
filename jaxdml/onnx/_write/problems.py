"""Collects the reasons why a model cannot be written."""

from collections.abc import Sequence

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.table import CannotWrite

TABLE = "table"
CUT = "cut the function there, and save the parts as models of their own"


class Problems:
    """Collects why nodes cannot be written. Layers that one reason concerns share a sentence."""

    def __init__(self) -> None:
        self._layers = dict[str, dict[str, None]]()  # maps sentences without their subject to names of layers

    def add(self, node: Node, reason: CannotWrite) -> None:
        words = " + ".join(dict.fromkeys(node.source)) or node.operator.name
        sentence = f" ({words}): {reason}; {_remedy(node, reason)}"
        self._layers.setdefault(sentence, {})[node.name] = None

    def add_text(self, text: str) -> None:
        self._layers[text] = {}

    def texts(self) -> list[str]:
        return [_subject([*names]) + sentence for sentence, names in self._layers.items()]


def _subject(names: Sequence[str]) -> str:
    """The layers that a sentence is about; empty for a sentence that names its own subject."""
    if len(names) < 2:
        return "".join(f"layer {name!r}" for name in names)
    listed = [repr(name) for name in names[:3]]
    if len(names) > 3:
        listed.append(f"{len(names) - 3} more")
    return f"layers {', '.join(listed[:-1])} and {listed[-1]}"


def _remedy(node: Node, reason: CannotWrite) -> str:
    if reason.remedy:
        return reason.remedy
    if node.operator.name == TABLE:
        return "write tables='gather'"
    if node.operator.is_quantized:
        return f"quantize with Rule({node.name!r}, keep='float'), or {CUT}"
    return CUT
