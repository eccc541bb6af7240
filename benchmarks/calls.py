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


def passed(call: Callable[[], Any]) -> list[Function]:
    """Return the library's functions that a call runs in this thread, in the order of their first call."""
    counted: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            counted[frame.f_code] += 1

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
