"""Sizes of the blocks in which all pairs of rows are processed."""

from __future__ import annotations

import torch

LARGEST = 64 << 20
"""Most bytes of all arrays of a block together; ``ON_GPU`` times as many in a backward pass on a GPU, where launches
take most of the time."""
ON_GPU = 4
_IN_CACHE = 8 << 20  # bytes
_COPIES_FORWARD, _COPIES_BACKWARD = 1, 6  # arrays of a block that are there at once


def block_bytes(is_tracked: bool, device: torch.device) -> int:
    """Return the bytes of one matrix of a block: few enough that it stays in the cache of a CPU."""
    copies = _COPIES_BACKWARD if is_tracked else _COPIES_FORWARD
    return min(LARGEST // copies, _IN_CACHE if device.type == "cpu" else LARGEST)
