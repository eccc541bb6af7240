"""Packed weights: copies of immutable weights in the order in which kernels read them, made once for each kind.

Only owners of immutable weights have them (``KSLinear.pack`` and the transforms), so nothing here checks whether a
weight changed. Products with parameters pass None instead and read the parameters at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from ...backends.cuda.launch import relaxed_capture
from ...runtime.kernel_store import compile_only

_COMPLETE = "complete"


class PackedWeights:
    """Packed weights by key: tensors in the order in which kernels read them, or dense matrices.

    An entry is never replaced and lives as long as this object, so that a captured CUDA graph may hold its address.
    Copies and pickles are empty: the weights of their owner are packed again.
    """

    def __init__(self) -> None:
        self._images: dict[Hashable, Any] = {}
        self._pending: dict[Hashable, tuple[Any, torch.cuda.Event]] = {}

    def get(self, key: Hashable) -> Any:
        """Return the packed weights of a key that every stream may read, or None."""
        return self._images.get(key)

    def get_or_pack(self, key: Hashable, pack: Callable[[], Any], device: torch.device) -> Any:
        """Return the packed weights of a key; make them by ``pack`` on a miss."""
        image = self._images.get(key)
        if image is not None:
            return image
        if compile_only():  # nothing ran, so the packed weights have no values
            return pack()
        if device.type != "cuda":
            return self._images.setdefault(key, pack())
        return self._pack_on_gpu(key, pack, device)

    def is_complete(self, device: torch.device) -> bool:
        """Return whether a GPU has done all that preceded the first call of this: no launch writes the weights."""
        if _COMPLETE not in self._images:
            self.get_or_pack(_COMPLETE, object, device)
        return _COMPLETE in self._images

    def _pack_on_gpu(self, key: Hashable, pack: Callable[[], Any], device: torch.device) -> Any:
        """Pack on the current stream without waiting; other streams wait for it on the device.

        A graph under capture uses packed weights that are complete. Otherwise it packs its own copy, since replays must
        not depend on earlier work.
        """
        if torch.cuda.is_current_stream_capturing():
            image = self._done_before_capture(key)
            return pack() if image is None else image
        pending = self._pending.get(key)
        if pending is None:
            image, event = pack(), torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            pending = self._pending.setdefault(key, (image, event))
        image, event = pending
        if event.query():
            image = self._images.setdefault(key, image)
            self._pending.pop(key, None)
        else:
            torch.cuda.current_stream(device).wait_event(event)
        return image

    def _done_before_capture(self, key: Hashable) -> Any:
        """Return weights that were packed before the capture began, None if the device may still be packing them."""
        pending = self._pending.get(key)
        if pending is None:
            return None
        with relaxed_capture():
            if not pending[1].query():
                return None
        image = self._images.setdefault(key, pending[0])
        self._pending.pop(key, None)
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeights, ()

    def __len__(self) -> int:
        return len(self._images)


class PackedChain:
    """Packed weights of each factor of a chain; the last entry has those of neighbours that run as one.

    ``identity`` stands for the chain in keys of calls, which must not hold references to its packed weights.
    """

    def __init__(self, count: int) -> None:
        self.parts = tuple(PackedWeights() for _ in range(count + 1))
        self.identity = object()

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedChain, (len(self.parts) - 1,)
