"""A compiled kernel with its extents and strides fixed, ready for pointers and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """``run(pointers, numbers)`` starts the kernel; ``description`` says what was planned."""

    run: Callable[[Sequence[int], Sequence[float]], None]
    description: str
