"""What products make of their weights before they multiply, kept between calls where a caller asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .autograd import PLAIN, unwatched

# How often each parameter, by its id, was written to by an optimizer that leaves its version as it is.
_SILENT: dict[int, int] = {}


def _count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Fused optimizers, and those of many sharded parameters at once, do not count their writes in the versions."""
    for group in optimizer.param_groups:
        fused = group.get("fused")
        for own in group["params"]:
            if fused or type(own) not in PLAIN:
                _SILENT[id(own)] = _SILENT.get(id(own), 0) + 1


@lru_cache(maxsize=1)
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_count)


def _writes(own: torch.Tensor) -> tuple[int, int]:
    """Changes whenever a tensor is written to."""
    return -1 if own.is_inference() else own._version, _SILENT.get(id(own), 0)


class Kept:
    """What was made of some weights; copies of it are empty."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """What is here for a key, or None."""
        return self._made.get(key)

    def clear(self) -> None:
        """Forget everything."""
        self._made.clear()

    def of(self, key: Hashable, make: Callable[[], Any], device: torch.device) -> Any:
        """What ``make`` gave for a key, made now if it is not here; a graph being captured makes its own."""
        found = self._made.get(key)
        if found is not None:
            return found
        found = make()
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return found
            torch.cuda.current_stream(device).synchronize()  # other streams may read it from now on
        self._made[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()

    def __len__(self) -> int:
        return len(self._made)


class KeptChain:
    """What was made of each weight of a chain, and of all, until one of them is written to or is another.

    ``sources`` are what weights are gathered from, in a memory that does not say when it was written to.
    """

    def __init__(self, count: int, sources: Sequence[torch.Tensor] = ()) -> None:
        _watch_optimizers()
        self.parts = [Kept() for _ in range(count + 1)]
        self._sources, self._written = tuple(sources), [_writes(own) for own in sources]
        self._states: list[tuple[int, int, int, int]] = []
        self._held: list[torch.Tensor] = []
        self.seen: tuple[torch.Size, torch.dtype, torch.device] | None = None  # of a call that went through ...
        self.matrix: torch.Tensor | None = None

    def renew(self, weights: Sequence[torch.Tensor]) -> bool:
        """Forget what was made of weights that changed; False where a transform or a mode may have wrapped them."""
        if not unwatched():
            return False
        states = [(id(own), own.data_ptr(), *_writes(own)) for own in weights]
        if self._sources:
            written = [_writes(own) for own in self._sources]
            if written != self._written:
                self._states, self._written = [], written
        if states != self._states:
            for place, state in enumerate(states):
                if self._states[place : place + 1] != [state]:
                    self.parts[place].clear()
            self.parts[-1].clear()
            self.matrix = None
            # Held, as is their memory: nothing else can come to have their addresses.
            self._states, self._held = states, [*weights, *(own.detach() for own in weights)]
        return True

    def covers(self, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
        """Whether a call that looked like this one went through the matrix, of weights that are still the same."""
        seen = self.matrix is not None and self.seen == (x.shape, x.dtype, x.device)
        return seen and self.renew(weights) and self.matrix is not None

    def remember(self, x: torch.Tensor, place: int) -> None:
        """Let calls like this one go through the matrix at a place, unless a graph being captured made its own."""
        found = self.parts[place].get(("dense", x.dtype))
        if found is not None:
            self.seen, self.matrix = (x.shape, x.dtype, x.device), found if found.dim() == 2 else found[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptChain, (len(self.parts) - 1,)
