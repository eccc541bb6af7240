"""Every error the library raises, each also a standard exception that callers already catch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class KernmantleError(Exception):
    """Base of all errors raised here."""


class TraceError(KernmantleError, TypeError):
    """A lambda that cannot be turned into an expression; names its source line."""


class EquationError(KernmantleError, ValueError):
    """An equation that does not parse or does not fit its operands."""


class ShapeError(KernmantleError, ValueError):
    """Arrays whose shapes do not fit together."""


class DtypeError(KernmantleError, TypeError):
    """Arrays whose types do not fit together or are not supported."""


class DeviceError(KernmantleError, ValueError):
    """Arrays on different devices, or on one without a backend."""


class ParameterError(KernmantleError, ValueError):
    """A parameter that is missing, unknown, out of range or not broadcastable."""


class OutputError(KernmantleError, ValueError):
    """An ``out`` that cannot take the result."""


class GradientError(KernmantleError, RuntimeError):
    """A gradient was asked of something that has none."""


class BackendError(KernmantleError, RuntimeError):
    """A backend that is missing, too old or cannot run this program."""


class CompileError(KernmantleError, RuntimeError):
    """A kernel that did not compile; names the kernel and where its source was kept."""


class LaunchError(KernmantleError, RuntimeError):
    """A kernel that failed to start or to finish."""


class OutOfMemoryError(KernmantleError, MemoryError):
    """There is not enough memory for the result or the workspace."""


class LinearAlgebraError(KernmantleError, RuntimeError):
    """A matrix that is singular or not positive definite, or an iteration that did not converge."""


class WorkerError(KernmantleError, RuntimeError):
    """A process of a group that died, failed or did not answer in time."""


class CheckpointError(KernmantleError, ValueError):
    """A checkpoint that cannot be read or written, or is one of another problem."""


class CacheWarning(UserWarning):
    """The kernel cache could not be read or written; work goes on from memory."""


class KernmantleWarning(UserWarning):
    """Work went on in a slower general path, or a call had no effect."""


def instead_of(**hints: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a function raise ParameterError, with what to do, for arguments that other libraries have in its place."""

    def decorated(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            for name in kwargs:
                if name in hints:
                    owner = function.__qualname__.removesuffix(".__init__")
                    raise ParameterError(f"{owner} has no {name}=; {hints[name]}")
            return function(*args, **kwargs)

        return call

    return decorated
