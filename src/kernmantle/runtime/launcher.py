"""A kernel that is ready to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """A prepared kernel: ``run(pointers, numbers)`` starts it, ``description`` is the text of its plan."""

    run: Callable[[Sequence[int], tuple[float, ...]], None]
    description: str


def nothing(pointers: Sequence[int], numbers: tuple[float, ...], *counts: int) -> None:
    """Launch nothing: a kernel that is only collected for precompilation."""
