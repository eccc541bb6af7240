"""Python functions of the library that a warm call passes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import kernmantle

ROOT = str(Path(kernmantle.__file__).parent)


class Function(NamedTuple):
    """A function that was called, its file from the package's folder."""

    file: str
    line: int
    name: str
    calls: int


def passed(call: Callable[[], Any], through: object = None) -> list[Function]:
    """Return the library's functions that a call runs in this thread, in the order of their first call.

    With an object, only those that it is passed to: itself, or in lists and tuples of arguments.
    """
    counted: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
            if through is None or any(_has(frame.f_locals.get(name), through) for name in names):
                counted[code] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [
        Function(
            code.co_filename[len(ROOT) + 1 :], code.co_firstlineno, getattr(code, "co_qualname", code.co_name), calls
        )
        for code, calls in counted.items()
    ]


def _has(value: object, wanted: object) -> bool:
    """Return whether a value is an object, or a list or tuple that has it."""
    return value is wanted or (isinstance(value, (list, tuple)) and any(_has(each, wanted) for each in value))  # pyright: ignore[reportUnknownVariableType]
