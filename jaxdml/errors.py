"""The exceptions. An error about a call or a desc is a DescError, which names the operator, the tensor and the rule."""

import functools
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax


class DescError(ValueError):
    """A desc, or a call standing for one, breaks a rule of its operator.

    Attributes:
      operator: the function's name, such as ``"quantized_linear_convolution"``; None if unknown.
      tensor: the page's name of the tensor or field at fault, such as ``"FilterScaleTensor"``.
      rule: the rule, in one word, such as ``"dimension_count"``; the message explains it.
      expected: what the rule asks for.
      received: what came.
      feature_level: the feature level asked for; None if the rule holds at every level.
      minimum_feature_level: the lowest level that would allow it; None if none would.
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
    """A DxDispatch model that cannot be run as written.

    Attributes:
      path: where in the JSON, such as ``"dispatchables.conv.desc.FilterTensor.Sizes[1]"``; empty for the whole file.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)  # what a pickle calls the class with again
        self.path = path

    def __str__(self) -> str:
        path, text = self.args
        return f"{path or 'the model'} {text}"


class FeatureLevelError(DescError):
    """The feature level asked for does not allow it. ``minimum_feature_level`` says which one does, if any."""


class ArgumentTypeError(DescError, TypeError):
    """An argument is of a Python type that cannot stand for a tensor or a static option."""


class ModelError(ValueError):
    """A model that cannot be read, or cannot run as it is.

    Attributes:
      problems: every problem that was found, a sentence each; the message lists them.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, problems)  # what a pickle calls the class with again
        self.problems = problems or (message,)

    def __str__(self) -> str:
        return str(self.args[0])


class PtqError(ValueError):
    """A float function that cannot be quantized as asked, or a quantized one that is not called as it was made."""


class ModelFileNotFoundError(ModelError, FileNotFoundError):
    """A file of an ONNX model does not exist."""


class PtqFileNotFoundError(PtqError, FileNotFoundError):
    """The file that `jaxdml.ptq.load` should read does not exist."""


class DxDispatchFileNotFoundError(DxDispatchError, FileNotFoundError):
    """A file of a DxDispatch model does not exist."""


def api_boundary[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function: an error of jaxdml shows the caller's line and this one frame below it.

    All frames stay where `jax_traceback_filtering` is "off", and where frames of another package lie in between, such
    as those of a function that jaxdml traces.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (DescError, DxDispatchError, ModelError, PtqError) as error:
            if jax.config.jax_traceback_filtering == "off" or not _is_internal(error.__traceback__):
                raise
            cause = error.__cause__  # such as an OSError: its text is shown without its frames
            raise error.with_traceback(None) from cause and cause.with_traceback(None)

    return call


def _is_internal(frames: TracebackType | None) -> bool:
    packages = {frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(frames)}
    return packages <= {"jaxdml", "jax", "contextlib"}
