"""The exceptions. Every error about a call or a desc is a DescError, which names the operator, tensor and rule."""

import functools
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax


class DescError(ValueError):
    """A desc or a call breaks a rule of its operator.

    Attributes:
      operator: the name of the function, such as ``"quantized_linear_convolution"``; None if unknown.
      tensor: DirectML's name of the wrong tensor or field, such as ``"FilterScaleTensor"``.
      rule: a keyword for the broken rule, such as ``"dimension_count"``; the message explains it.
      expected: what the rule requires.
      received: the value that breaks the rule.
      feature_level: the requested feature level; None if the rule holds at every level.
      minimum_feature_level: the lowest level that allows the value; None if no level does.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str | None = None,
        tensor: str | None = None,
        rule: str | None = None,
        expected: Any = None,
        received: Any = None,
        feature_level: Any = None,
        minimum_feature_level: Any = None,
    ) -> None:
        super().__init__(message)
        self.operator = operator
        self.tensor = tensor
        self.rule = rule
        self.expected = expected
        self.received = received
        self.feature_level = feature_level
        self.minimum_feature_level = minimum_feature_level


class DxDispatchError(ValueError):
    """A DxDispatch model is invalid or cannot be run.

    Attributes:
      path: the place in the JSON, such as ``"dispatchables.conv.desc.FilterTensor.Sizes[1]"``; empty means the file.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)  # unpickling calls the class with these arguments
        self.path = path

    def __str__(self) -> str:
        path, text = self.args
        return f"{path or 'the model'} {text}"


class FeatureLevelError(DescError):
    """A feature level does not allow an operator or value; ``minimum_feature_level`` is the lowest level that does."""


class ArgumentTypeError(DescError, TypeError):
    """An argument has a wrong Python type or an unknown name, or a call has too many or too few arguments."""


class ModelError(ValueError):
    """A model cannot be read or run.

    Attributes:
      problems: all problems that were found, one sentence each; the message lists them.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, problems)  # unpickling calls the class with these arguments
        self.problems = problems or (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class PtqError(ValueError):
    """A float function cannot be quantized as requested, or a quantized model is called with wrong arguments."""


class ModelFileNotFoundError(ModelError, FileNotFoundError):
    """A file of an ONNX model does not exist."""


class PtqFileNotFoundError(PtqError, FileNotFoundError):
    """The file that `jaxdml.ptq.load` should read does not exist."""


class DxDispatchFileNotFoundError(DxDispatchError, FileNotFoundError):
    """A file of a DxDispatch model does not exist."""


def api_boundary[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: the traceback of a jaxdml error ends with the caller's frame and that of `call`.

    All frames stay if `jax_traceback_filtering` is "off", or if some belong to a package other than jaxdml and
    JAX, for instance to a function that jaxdml traces.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (DescError, DxDispatchError, ModelError, PtqError) as error:
            if jax.config.jax_traceback_filtering == "off" or not _is_internal(error.__traceback__):
                raise
            cause = error.__cause__  # the text of the cause, such as an OSError, is shown without frames
            raise error.with_traceback(None) from cause and cause.with_traceback(None)

    return call


def _is_internal(frames: TracebackType | None) -> bool:
    packages = {frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(frames)}
    return packages <= {"jaxdml", "jax", "contextlib"}
