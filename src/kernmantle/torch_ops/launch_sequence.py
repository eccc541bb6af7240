"""Launches on addresses that follow one another on torch's current stream: one native call where all are bound ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..backends.cuda.launch_program import MOST
from . import torch_private

Launch = Callable[[Sequence[int]], None]
Pick = Callable[[Sequence[int]], Sequence[int]]
"""Addresses of the operands of a launch, out of a table of addresses."""


class LaunchSequence:
    """Launches that take their operands from a table of addresses, each with what picks them there.

    Those of our kernels and of cuBLASLt are one native call; launches of other kinds are called one by one, and all are
    while a graph is captured. ``is_eager`` says that callers ask for that, and capture none of these.
    """

    def __init__(self, launches: Sequence[tuple[Launch, Pick]], is_eager: bool = False) -> None:
        self.launches, self._is_eager = tuple(launches), is_eager
        bound: list[Any] = [getattr(launch, "joined", launch) for launch, _ in self.launches]
        self._bound = bound if all(hasattr(launch, "record") for launch in bound) else []
        self._native: Any = None

    def __call__(self, table: list[int]) -> None:
        """Launch on the addresses of a table."""
        native = self._native
        if native is None and self._bound and len(table) < MOST:
            operands = [pick(range(len(table))) for _, pick in self.launches]
            native = self._native = _cuda().NativeLaunches(self._bound, operands, len(table))
        if native is not None and (self._is_eager or not torch_private.is_capturing()) and native.start(table):
            return
        for launch, operands in self.launches:
            launch(operands(table))


@lru_cache(maxsize=1)
def _cuda() -> Any:
    """Return what is loaded with the first launches on a GPU."""
    return import_module(".cuda_launches", __package__)
