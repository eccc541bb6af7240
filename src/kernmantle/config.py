"""The one configuration: a frozen record; a default of the process, and ``with`` blocks over it.

Nothing else reads the environment. The default is seen by every thread. A block is seen by the thread or task that
entered it and by the tasks that start inside it: a new thread starts with the default.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar, get_args

from .backend import choices
from .checks import one_of
from .errors import KernmantleWarning, ParameterError

Precision = Literal["ieee", "tf32"]


@dataclass(frozen=True)
class Config:
    """Every setting.

    Parameters
    ----------
    backend : {"auto", "reference", "llvm", "cuda"}
        What runs the kernels; "auto" goes by the device of the arrays.
    cache_dir : path or None
        Where compiled kernels are kept; None is the user's cache directory.
    threads : int or None
        Threads of a CPU kernel; None follows ``torch.get_num_threads()``.
    progress : bool
        Whether long work shows a progress bar.
    precision : {None, "ieee", "tf32"}
        Arithmetic of float32 products: None is float32-accurate by any means, "ieee" float32 arithmetic only,
        "tf32" one pass on tensor cores.
    verbose : bool
        Whether each compilation is logged to stderr, with registers and spills where the compiler reports them.
    debug : bool
        Whether GPU kernels that are compiled from then on know their lines of source, for profilers and sanitizers.
    dump_source : path or None
        Directory that every generated source is also written to.
    chunk_bytes : int
        Most memory the reference evaluator takes for one intermediate result.
    exit_on_lost_process : bool
        Whether a process ends at once, with status 1, when another of its group is lost while a GPU waits for it;
        otherwise the group's communicators are aborted and ``WorkerError`` is raised. A process whose GPU still waits a
        minute after that ends, too.
    wait_on_host : bool
        Whether the host waits for messages between GPUs, so that a lost process is a ``WorkerError`` in the others,
        before the timeout of their group; otherwise streams wait, and torch's watchdog ends the others.
    """

    backend: str = "auto"
    cache_dir: Path | None = None
    threads: int | None = None
    progress: bool = True
    precision: Precision | None = None
    verbose: bool = False
    debug: bool = False
    dump_source: Path | None = None
    chunk_bytes: int = 64 << 20
    exit_on_lost_process: bool = False
    wait_on_host: bool = False

    def __post_init__(self) -> None:
        for name in ("cache_dir", "dump_source"):
            value = getattr(self, name)
            if isinstance(value, (str, os.PathLike)):
                object.__setattr__(self, name, Path(value).expanduser())
            elif value is not None:
                raise ParameterError(f"{name} must be a path or None, not {value!r}")
        one_of(self.backend, "backend", ("auto",) if self.backend == "auto" else choices())
        one_of(self.precision, "precision", (None, *get_args(Precision)))
        for name in ("progress", "verbose", "debug", "exit_on_lost_process", "wait_on_host"):
            one_of(getattr(self, name), name, (True, False))
        for name, optional in (("threads", True), ("chunk_bytes", False)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if not whole and not (optional and value is None):
                raise ParameterError(f"{name} must be a positive integer{' or None' * optional}, not {value!r}")


def _switch(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return values[text.lower()]


_VARIABLES: dict[str, Callable[[str], object]] = {
    "backend": str,
    "cache_dir": str,
    "threads": int,
    "progress": _switch,
    "precision": str,
    "verbose": _switch,
    "debug": _switch,
    "dump_source": str,
    "exit_on_lost_process": _switch,
    "wait_on_host": _switch,
}


def from_environment(environment: Mapping[str, str]) -> Config:
    """Read the variables ``KERNMANTLE_<NAME IN CAPITALS>``; an empty one counts as absent."""
    settings: dict[str, Any] = {}
    for name, read in _VARIABLES.items():
        variable = f"KERNMANTLE_{name.upper()}"
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            settings[name] = read(text)
            Config(**{name: settings[name]})
        except (KeyError, ValueError) as error:
            wanted = "an integer" if read is int else "one of 1, true, yes, on, 0, false, no, off"
            reason = error if isinstance(error, ParameterError) else f"it must be {wanted}"
            raise ParameterError(f"the environment variable {variable}={text!r} does not fit: {reason}") from None
    return Config(**settings)


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Block:
    """A block that was entered: its settings over those of the blocks around it, and what they make of a default."""

    owner: config
    changes: Mapping[str, Any]
    outer: _Block | None
    default: Config
    config: Config


_DEFAULT: list[Config] = []
_WRITING = Lock()
_INNERMOST: ContextVar[_Block | None] = ContextVar("kernmantle_config", default=None)


@lru_cache(maxsize=1024)
def _changed(default: Config, changes: tuple[tuple[str, Any], ...]) -> Config:
    return replace(default, **dict(changes))


def _default() -> Config:
    """Return the default of the process: that of the environment until ``set_config`` is called."""
    if not _DEFAULT:
        with _WRITING:
            if not _DEFAULT:
                _DEFAULT.append(from_environment(os.environ))
    return _DEFAULT[0]


def current() -> Config:
    """Return the configuration in force here: that of the innermost block, or the default of the process."""
    block = _INNERMOST.get()
    if block is None:
        return _DEFAULT[0] if _DEFAULT else _default()
    default = _DEFAULT[0]
    return block.config if block.default is default else _changed(default, tuple(block.changes.items()))


def in_block() -> bool:
    """Return whether this thread or task is in a block."""
    return _INNERMOST.get() is not None


def _check(changes: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(Config)]
    for name in changes:
        if name not in names:
            similar = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"it has {', '.join(names)}"
            raise ParameterError(f"the configuration has no {name!r}; {hint}")
    Config(**changes)


def set_config(**changes: Any) -> None:
    """Change the default configuration of the process.

    Every thread sees the change at once, those that run already included, wherever no :class:`config` block sets the
    same field. Processes that are started later by ``spawn`` read the environment instead, as this one did.

    Parameters
    ----------
    **changes
        Fields of the configuration and their values: ``backend``, ``cache_dir``, ``threads``, ``progress``,
        ``precision``, ``verbose``, ``debug``, ``dump_source``, ``chunk_bytes``,
        ``exit_on_lost_process``, ``wait_on_host``, as of :class:`config`.

    Raises
    ------
    ParameterError
        For an unknown name or a value that does not fit; nothing is changed then.

    See Also
    --------
    config : Change settings for the length of a block or of a function.
    get_config : Return the settings in force.

    Notes
    -----
    Costs microseconds; no kernel is compiled or dropped. Results have the same gradients under every setting.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.set_config(precision="ieee")
    >>> km.get_config().precision
    'ieee'
    >>> km.set_config(precision=None)
    """
    _check(changes)
    _default()
    with _WRITING:
        _DEFAULT[0] = _changed(_DEFAULT[0], tuple(changes.items()))


def get_config() -> Config:
    """Return the configuration in force: that of the innermost :class:`config` block, or the default.

    Returns
    -------
    Config
        A frozen record with a field for each setting; see :class:`config`.

    See Also
    --------
    set_config : Change the default of the process.

    Notes
    -----
    Costs a microsecond.

    Examples
    --------
    >>> import kernmantle as km
    >>> with km.config(threads=2):
    ...     km.get_config().threads
    2
    """
    return current()


class config(AbstractContextManager[Config]):
    """Change settings for the length of a ``with`` block, or of the calls of a decorated function.

    One object may be entered any number of times, inside itself, and by several threads and tasks at once. A block
    applies to the thread or asyncio task that entered it, and to tasks that are created inside it. A new thread
    starts with the default of the process: see :func:`set_config`, or run it in ``contextvars.copy_context()``.

    Parameters
    ----------
    **changes
        Settings and their values. ``backend`` ("auto", "llvm", "reference" or "cuda"), ``cache_dir``, ``threads`` of
        a CPU kernel, ``progress`` bars, ``precision`` of float32 products (None, "ieee" or "tf32"), ``verbose``,
        ``debug``, ``dump_source``, ``chunk_bytes``, ``exit_on_lost_process`` and ``wait_on_host``.

    Raises
    ------
    ParameterError
        At once, for an unknown name or a value that does not fit; and where a generator function is decorated, whose
        settings would be those of its caller too.

    Warns
    -----
    KernmantleWarning
        Where the object is dropped without having been entered or used as a decorator: the settings never applied.

    See Also
    --------
    set_config : Change settings for the whole process.

    Notes
    -----
    Entering costs microseconds. A coroutine function that is decorated runs with the settings until it returns.

    Examples
    --------
    >>> import kernmantle as km
    >>> with km.config(backend="reference", threads=1) as settings:
    ...     settings.backend
    'reference'
    """

    _used = True  # also of an object that is not made yet

    def __init__(self, **changes: Any) -> None:
        _check(changes)
        self._changes, self._used = changes, False

    def __enter__(self) -> Config:
        self._used = True
        default, outer = _default(), _INNERMOST.get()
        changes = self._changes if outer is None else {**outer.changes, **self._changes}
        found = _changed(default, tuple(changes.items()))
        _INNERMOST.set(_Block(self, changes, outer, default, found))
        return found

    def __exit__(self, *_: object) -> None:
        _INNERMOST.set(_without(_INNERMOST.get(), self))

    def __call__(self, function: Function) -> Function:
        """Return the function with these settings in force during its calls."""
        self._used = True
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ParameterError(
                f"{function.__qualname__} is a generator function, whose settings would be seen by its caller between "
                "two values; use `with km.config(...)` inside it, around what computes"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def inside(*args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportRedeclaration]
                with self:
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return inside  # pyright: ignore[reportReturnType]

    def __del__(self) -> None:
        if not self._used:
            listing = ", ".join(f"{name}={value!r}" for name, value in self._changes.items())
            warnings.warn(
                f"km.config({listing}) was neither entered nor used as a decorator, so it changed nothing: write "
                f"`with km.config({listing}):`, or km.set_config({listing}) for the whole process",
                KernmantleWarning,
                stacklevel=2,
            )


def _without(block: _Block | None, owner: config) -> _Block | None:
    """Return the blocks without the innermost of an owner; those inside it, of generators that wait, stay in force."""
    if block is None or block.owner is owner:
        return None if block is None else block.outer
    outer = _without(block.outer, owner)
    changes = {**(outer.changes if outer is not None else {}), **block.owner._changes}
    return replace(block, changes=changes, outer=outer, config=_changed(block.default, tuple(changes.items())))
