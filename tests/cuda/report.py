"""The report of a harness: cases one after another, and which of them disagree."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def selected(cases: Iterable[Any], words: Sequence[str]) -> list[Any]:
    """Return the cases whose names contain one of the words, or all without any."""
    return [case for case in cases if not words or any(word in case.name for word in words)]


def within(off: float) -> str:
    """Return an error in units of what is allowed, as text; AssertionError for more than one of them, or NaN."""
    assert off <= 1, f"{off:.3g}"
    return f"{off:.3g} "


def report(cases: Iterable[Any], check: Callable[[Any], str | None]) -> int:
    """Check cases and write a line for each; return how many disagree, which raise AssertionError.

    What ``check`` returns is written as well.
    """
    wrong = 0
    for case in cases:
        try:
            verdict = f"{check(case) or ''}ok"
        except AssertionError as error:
            verdict, wrong = f"BAD {str(error)[:300]}", wrong + 1
        sys.stdout.write(f"{case.name:60s} {verdict}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{wrong} wrong\n")
    return wrong
