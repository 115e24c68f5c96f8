"""A function that is traced again for each shape of its inputs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxdml.errors import PtqError
from jaxdml.ptq._trace.equations import Program, program_of, struct_of
from jaxdml.ptq._trace.signature import fingerprint


class Traced:
    """A function, and the signature that it had when it was quantized.

    Attributes:
      apply: the function.
      params: shapes and types of its parameters, a pytree.
      signature: its equations as text; None until the first trace.
    """

    def __init__(self, apply: Callable[..., Any], params: Any, signature: Sequence[str] | None = None) -> None:
        self.apply = apply
        self.params = shapes_of(params)
        self.signature = None if signature is None else tuple(signature)

    @property
    def fingerprint(self) -> str:
        """A short digest of the signature."""
        return fingerprint(self.signature or ())

    def program(self, inputs: tuple[Any, ...]) -> Program:
        """Traces the function for inputs. The equations may depend on the sizes of the inputs."""
        program = program_of(self.apply, self.params, inputs)
        if self.signature is None:
            self.signature = program.signature()
        return program

    def calibrated(self, inputs: tuple[Any, ...]) -> Program:
        """Traces the function for the inputs with which it was quantized.

        Raises:
          PtqError: if the equations differ from those that were quantized, because the function has changed.
        """
        # JAX caches the trace of a function object, but the function may compute something else by now.
        program = program_of(lambda *arguments: self.apply(*arguments), self.params, inputs)
        if self.signature is not None and program.signature() != self.signature:
            raise PtqError(_first_difference(self.signature, program.signature()))
        return program


def shapes_of(tree: Any) -> Any:
    """Shapes and types of a pytree of arrays."""
    return jax.tree.map(struct_of, tree)


def _first_difference(quantized: Sequence[str], traced: Sequence[str]) -> str:
    pairs = zip(quantized, traced, strict=False)
    was, now = next(((a, b) for a, b in pairs if a != b), (f"{len(quantized)} equations", f"{len(traced)} equations"))
    prints = f"{fingerprint(quantized)} and {fingerprint(traced)}"
    return (
        f"apply computes other equations than those that were quantized (fingerprints {prints}); they first differ at\n"
        f"  quantized  {was}\n  traced     {now}\n"
        "If the equations depend on the shapes of inputs, quantize with batches of these shapes; if apply itself has "
        "changed, quantize it again"
    )
