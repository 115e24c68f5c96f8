"""Which backend is asked on which platform, and where native kernels come first."""

import functools
from collections.abc import Callable
from typing import Any

from jax import lax

from jaxdml._arithmetic import cpu, cuda, tpu
from jaxdml._arithmetic.backend import Backend
from jaxdml._arithmetic.kernel_call import call
from jaxdml._arithmetic.native import kernel_for

BACKENDS: dict[str, Backend] = {"cpu": cpu.BACKEND, "cuda": cuda.BACKEND, "tpu": tpu.BACKEND}


def on_each(name: str, common: Callable[..., Any], *operands: Any, **statics: Any) -> Any:
    """common(*operands, **statics); on platforms whose backend offers something of that name, what it offers.

    All forms are traced, and the one for the platform that the program is lowered for is kept.
    """
    offers = {platform: getattr(backend, name) for platform, backend in BACKENDS.items()}
    with_statics = {form: functools.partial(form, **statics) for form in {common, *offers.values()} - {None}}
    own = {platform: with_statics[offer] for platform, offer in offers.items() if offer is not None}
    if not own:
        return common(*operands, **statics)
    return lax.platform_dependent(*operands, **own, default=with_statics[common])


def overridable[**P, R](common: Callable[P, R]) -> Callable[P, R]:
    """The common form of what a backend may offer under the same name, with arrays by place and statics by name."""
    name = common.__name__
    on_xla = functools.partial(on_each, name, common)

    @functools.wraps(common)
    def chosen(*operands: P.args, **statics: P.kwargs) -> R:
        kernel = kernel_for(name, operands, statics)
        result: Any = on_xla(*operands, **statics) if kernel is None else call(kernel, on_xla, *operands, **statics)
        return result

    return chosen


def arranged(name: str, *arguments: Any) -> Any:
    """The arrangement of weights: the first one that is offered, whatever the platform; None if none is.

    Prepared weights must be the same pytree on every platform that they may be moved to.
    """
    offers = (getattr(backend, name) for backend in BACKENDS.values())
    arrange = next((offer for offer in offers if offer is not None), None)
    return None if arrange is None else arrange(*arguments)
