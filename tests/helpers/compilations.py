"""Counts the programs that XLA compiles."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def compiled_programs(caplog) -> Iterator[list[str]]:
    """A context that lists the programs that XLA compiles inside it, as JAX's log names them."""
    programs: list[str] = []
    with jax.log_compiles(), caplog.at_level("WARNING"):
        caplog.clear()
        yield programs
        texts = (record.getMessage() for record in caplog.records)
        programs += [text for text in texts if text.startswith("Finished XLA compilation")]
