"""The one configuration: a frozen record, replaced for the length of a ``with`` block.

Nothing else reads the environment. A block is seen by the thread or task that entered it, and by no other.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import ParameterError

Backend = Literal["auto", "llvm", "reference", "cuda"]
Precision = Literal["ieee", "tf32"]


@dataclass(frozen=True)
class Config:
    """Every setting.

    Parameters
    ----------
    backend : {"auto", "llvm", "reference", "cuda"}
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
        Whether what is compiled is told on stderr, with registers and spills where the compiler tells them.
    debug : bool
        Whether GPU kernels that are compiled from then on know their lines of source, for profilers and sanitizers.
    dump_source : path or None
        Directory that every generated source is also written to.
    chunk_bytes : int
        Most memory the reference evaluator takes for one intermediate result.
    """

    backend: Backend = "auto"
    cache_dir: Path | None = None
    threads: int | None = None
    progress: bool = True
    precision: Precision | None = None
    verbose: bool = False
    debug: bool = False
    dump_source: Path | None = None
    chunk_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("cache_dir", "dump_source"):
            value = getattr(self, name)
            if isinstance(value, (str, os.PathLike)):
                object.__setattr__(self, name, Path(value).expanduser())
            elif value is not None:
                raise ParameterError(f"{name} must be a path or None, not {value!r}")
        _choice("backend", self.backend, get_args(Backend))
        _choice("precision", self.precision, (None, *get_args(Precision)))
        for name in ("progress", "verbose", "debug"):
            _choice(name, getattr(self, name), (True, False))
        for name, optional in (("threads", True), ("chunk_bytes", False)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if not whole and not (optional and value is None):
                raise ParameterError(f"{name} must be a positive integer{' or None' * optional}, not {value!r}")


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is option or (isinstance(value, str) and value == option) for option in allowed):
        raise ParameterError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


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
            reason = f": {error}" if isinstance(error, ParameterError) else ""
            raise ParameterError(f"the environment variable {variable}={text!r} does not fit{reason}") from None
    return Config(**settings)


@lru_cache(maxsize=1)
def _base() -> Config:
    return from_environment(os.environ)


_ACTIVE: ContextVar[Config | None] = ContextVar("kernmantle_config", default=None)


def current() -> Config:
    """Return the configuration in force here: that of the innermost block, or of the environment."""
    return _ACTIVE.get() or _base()


def config(**changes: Any) -> AbstractContextManager[Config]:
    """Change settings for the length of a ``with`` block.

    Parameters
    ----------
    **changes
        Fields of :class:`Config` and their values.

    Returns
    -------
    context manager
        Gives the configuration in force inside the block; also usable as a decorator.

    Raises
    ------
    ParameterError
        At once, for an unknown name or a value that does not fit.

    Examples
    --------
    >>> import kernmantle as km
    >>> with km.config(backend="reference", threads=1) as settings:
    ...     settings.backend
    'reference'
    """
    known = [field.name for field in fields(Config)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ParameterError(f"the configuration has no {name!r}; {hint}")
    Config(**changes)
    return _Applied(changes)


class _Applied(ContextDecorator, AbstractContextManager[Config]):
    """The block of ``config``; it may be entered again, and inside itself."""

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes
        self._tokens: list[Token[Config | None]] = []

    def __enter__(self) -> Config:
        self._tokens.append(_ACTIVE.set(replace(current(), **self._changes)))
        return current()

    def __exit__(self, *_: object) -> None:
        _ACTIVE.reset(self._tokens.pop())
