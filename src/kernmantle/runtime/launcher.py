"""A kernel that is ready to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """``run(pointers, numbers)`` starts the kernel; ``description`` says what was planned."""

    run: Callable[[Sequence[int], Sequence[float]], None]
    description: str


def nothing(pointers: Sequence[int], numbers: Sequence[float]) -> None:
    """Launch nothing: a kernel that is only collected for precompilation."""
