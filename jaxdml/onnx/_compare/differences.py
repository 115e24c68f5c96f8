"""How arrays differ from onnxruntime's."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Difference:
    """How one or more arrays differ from onnxruntime's.

    Attributes:
      differing: the number of elements that differ; NaN equals NaN.
      size: the number of elements.
      largest: the largest absolute difference; for integers, a number of steps. Infinity if a number differs from a NaN
        or an infinity, or if the shapes differ.
      relative: an array's mean difference divided by onnxruntime's largest absolute value; for several arrays, the
        largest such quotient.
      last_places: `largest` in units in the last place of onnxruntime's largest absolute value; None for integers.
    """

    differing: int
    size: int
    largest: float
    relative: float
    last_places: float | None

    @classmethod
    def of(cls, ours: Any, theirs: Any) -> Self:
        """The difference between an array and onnxruntime's."""
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        is_float = theirs.dtype.kind == "f"
        if ours.shape != theirs.shape:
            size = max(ours.size, theirs.size)
            return cls(size, size, np.inf, np.inf, np.inf if is_float else None)
        is_wrong = (ours != theirs) & ~((ours != ours) & (theirs != theirs))
        with np.errstate(invalid="ignore"):
            apart = np.abs(ours[is_wrong].astype(np.float64) - theirs[is_wrong].astype(np.float64))
        apart = np.nan_to_num(apart, nan=np.inf, posinf=np.inf)
        largest = float(apart.max(initial=0))
        top = np.abs(theirs[np.isfinite(theirs)].astype(np.float64)).max(initial=0)
        relative = float(apart.sum() / theirs.size / top) if top else np.inf if largest else 0.0
        units = largest / float(np.spacing(theirs.dtype.type(top))) if is_float else None
        return cls(int(np.count_nonzero(is_wrong)), theirs.size, largest, relative, units)

    @classmethod
    def joined(cls, differences: Iterable[Self]) -> Self | None:
        """One difference for several arrays; None if there are none."""
        found = list(differences)
        if not found:
            return None
        units = [each.last_places for each in found if each.last_places is not None]
        return cls(
            sum(each.differing for each in found), sum(each.size for each in found),
            max(each.largest for each in found), max(each.relative for each in found), max(units, default=None),
        )  # fmt: skip

    @property
    def by(self) -> str:
        """The largest difference as text."""
        return f"{self.largest:,.0f}" if self.last_places is None else f"{self.largest:.3g}"

    def __str__(self) -> str:
        by = f", by at most {self.by}" if self.differing else ""
        return f"{self.differing:,} of {self.size:,} elements differ from onnxruntime's{by}"
