"""What one page of DirectML says of an operator, beside the fields of its desc."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import Same, Tables
from jaxdml._directml.messages import Remedy


def nothing(desc: Any) -> None:
    """The check of a page whose tables and constraints say all."""


class Page(NamedTuple):
    """The facts of one page.

    Attributes:
      desc: the desc's class.
      support: the tensor-support table of each level that changes it.
      constraints: the tensor-constraint list.
      check: raises `RuleError` where sizes or options do not fit each other; tables and constraints hold already.
      remedies: by tensor and rule, what to write instead where the general remedy would mislead, else None.
      converts: ("float", "integer") or ("integer", "float") if the operator makes the one of the other.
      weights: by the tensor that holds weights, the axis of their output channels.
    """

    desc: type[OperatorDesc]
    support: Tables
    constraints: tuple[Same, ...] = ()
    check: Callable[[Any], None] = nothing
    remedies: Mapping[tuple[str, str], Callable[[TensorDesc], str | Remedy | None]] = {}
    converts: tuple[str, str] | None = None
    weights: Mapping[str, int] = {}

    @property
    def operator(self) -> str:
        """The name of the function."""
        return self.desc.operator
