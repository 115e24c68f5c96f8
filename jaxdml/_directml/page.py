"""The facts that one page of DirectML's documentation states about an operator."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.feature_levels import Same, Tables
from jaxdml._directml.messages import Remedy


def nothing(desc: Any) -> None:
    """The check of a page without further rules."""


class Page(NamedTuple):
    """The facts of one page.

    Attributes:
      desc: the desc's class.
      support: maps each level that changes the tensor-support table to the new table.
      constraints: the tensor-constraint list.
      check: raises RuleError if sizes or options break a rule; runs after the tables and constraints are checked.
      remedies: maps (tensor, rule) to a function whose result, unless None, replaces the general remedy.
      converts: ("float", "integer") if the operator quantizes, ("integer", "float") if it dequantizes, else None.
      weights: maps the tensor that holds weights to the axis of its output channels.
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
