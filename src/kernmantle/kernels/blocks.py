"""How the pairs of rows are cut into blocks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ..ops.autograd import plain
from .call import Call

LARGEST = 64 << 20
"""Most bytes of all arrays of a block together."""
_IN_CACHE = 8 << 20
_COPIES_FORWARD, _COPIES_BACKWARD = 1, 6


@dataclass(frozen=True)
class Block:
    """Rows of x and rows of y of one block."""

    rows: slice
    columns: slice


class Workspace:
    """Memory that one block after another is written to, while no derivative is recorded.

    Fresh memory for each block would be slower, and small results between the blocks would scatter them.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def matrix(self, like: torch.Tensor, shape: tuple[int, ...], moving: Iterable[torch.Tensor]) -> torch.Tensor | None:
        """Room for a matrix of the dtype and device of a tensor; None if anything is recorded."""
        values = list(moving)
        if not plain(values) or (torch.is_grad_enabled() and any(value.requires_grad for value in values)):
            return None
        size = math.prod(shape)
        if self._memory is None or self._memory.numel() < size:
            self._memory = like.new_empty(size)
        return self._memory[:size].view(shape)

    def release(self) -> None:
        """Give the memory back."""
        self._memory = None


def block_bytes(call: Call) -> int:
    """Bytes of one matrix of a block: few enough that a CPU keeps it near."""
    copies = _COPIES_BACKWARD if call.is_tracked else _COPIES_FORWARD
    return min(LARGEST // copies, _IN_CACHE if call.device.type == "cpu" else LARGEST)


def blocks(call: Call, limit: int | None = None) -> Iterator[list[Block]]:
    """Ranges of rows of x, each with its ranges of rows of y: all of them where one row of all fits."""
    rows, columns = call.x.shape[-2], call.y.shape[-2]
    limit = max(1, (block_bytes(call) if limit is None else limit) // (call.x.element_size() * math.prod(call.batch)))
    width = max(1, min(columns, limit))
    height = max(1, min(rows, limit // width))
    for start in range(0, rows, height):
        stop = min(start + height, rows)
        yield [
            Block(slice(start, stop), slice(left, min(left + width, columns))) for left in range(0, columns, width)
        ] or [Block(slice(start, stop), slice(0, 0))]
