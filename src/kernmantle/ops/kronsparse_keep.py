"""What products make of their weights before they multiply, kept between calls where a caller asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Kept:
    """What was made of some weights, until one of them changes; copies of it are empty."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._state: tuple[tuple[int, int], ...] = ()

    def renew(self, *weights: torch.Tensor) -> Kept:
        """Forget everything if a weight was written to, or is another."""
        state = tuple((weight.data_ptr(), -1 if weight.is_inference() else weight._version) for weight in weights)
        if state != self._state:
            self._made.clear()
            self._state = state
        return self

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
