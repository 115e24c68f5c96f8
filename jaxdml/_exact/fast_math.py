"""Flags that let XLA change any result."""

import os
from collections.abc import Mapping

from jaxdml._arithmetic.xla_flags import flags, is_on

FLAGS = ("xla_cpu_enable_fast_math", "xla_enable_fast_math", "xla_allow_fast_math")


def fast_math_flag(environment: Mapping[str, str] = os.environ) -> str | None:
    """The flag in XLA_FLAGS, or in the file that it names, that turns fast math on; None if there is none."""
    given = flags(environment)
    on = (name for name in FLAGS if is_on(given.get(name)))
    return next((f"--{name}={given[name]}".removesuffix("=") for name in on), None)
