"""From consecutive rows to cyclic blocks of columns, which cuSOLVERMp works on, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..linalg.cusolvermp import columns_of, stretches
from .exchange import dealt
from .rows import Rows


class Cyclic:
    """Columns 0 to ``width`` dealt out in blocks of so many; rows as some given ones are spread.

    Blocks are moved as they lie: an index for each row would take the host longer than the rows take the GPU.
    """

    def __init__(self, given: Rows, width: int, block: int) -> None:
        self._given, self._width, self._block = given, width, block
        starts = [sum(given.counts[:i]) for i in range(given.size)]
        self._ranges = [(start, start + count) for start, count in zip(starts, given.counts, strict=True)]

    @property
    def here(self) -> torch.Tensor:
        """Indices of the columns of this process."""
        return columns_of(self._width, self._given.rank, self._given.size, self._block)

    def _stretches(self, low: int, high: int) -> list[list[tuple[int, int]]]:
        """Indices from low to high, by the process that has their columns."""
        return [stretches(low, high, rank, self._given.size, self._block) for rank in range(self._given.size)]

    def _shares(self) -> tuple[list[int], list[int]]:
        """How many of the rows here have their columns on each process, and the columns here their rows."""
        rank = self._given.rank
        here = [stretches(low, high, rank, self._given.size, self._block) for low, high in self._ranges]
        return [_count(part) for part in self._stretches(*self._ranges[rank])], [_count(part) for part in here]

    def of_symmetric(self, local: torch.Tensor) -> torch.Tensor:
        """Columns here, as rows, of a symmetric matrix: its rows of the same indices."""
        low, high = self._ranges[self._given.rank]
        parts = [local[a - low : b - low] for part in self._stretches(low, high) for a, b in part]
        return dealt(torch.cat([local[:0], *parts]), *self._shares(), self._given.group)

    def in_order(self, local: torch.Tensor) -> torch.Tensor:
        """Rows of cyclic indices back to consecutive ones, as the given rows are spread."""
        back, sent = self._shares()
        received = dealt(local, sent, back, self._given.group)
        blocks = [block for part in self._stretches(*self._ranges[self._given.rank]) for block in part]
        parts = received.split([b - a for a, b in blocks])
        ordered = sorted(zip(blocks, parts, strict=True), key=lambda pair: pair[0])
        return torch.cat([local[:0], *(part for _, part in ordered)])

    def columns(self, local: torch.Tensor) -> torch.Tensor:
        """Columns here, as rows (columns, n), of a matrix whose rows are spread."""
        group, counts, rank = self._given.group, self._given.counts, self._given.rank
        every = self._stretches(0, self._width)
        turned = torch.cat([local.mT[:0], *(local[:, a:b].mT for part in every for a, b in part)])
        mine = _count(every[rank])
        sent = [_count(part) * local.shape[0] for part in every]
        flat = dealt(turned.reshape(-1), sent, [mine * count for count in counts], group)
        return _joined(flat, [(mine, count) for count in counts])

    def rows(self, columns: torch.Tensor) -> torch.Tensor:
        """Back: consecutive rows (rows here, width) from the columns of all processes."""
        group, counts = self._given.group, self._given.counts
        every, count = self._stretches(0, self._width), counts[self._given.rank]
        flat = torch.cat([part.reshape(-1) for part in columns.split(list(counts), 1)])
        received = dealt(flat, [len(columns) * c for c in counts], [_count(part) * count for part in every], group)
        result, start = columns.new_empty(count, self._width), 0
        for a, b in (block for part in every for block in part):
            stop = start + (b - a) * count
            result[:, a:b] = received[start:stop].reshape(b - a, count).mT
            start = stop
        return result


def _count(part: Sequence[tuple[int, int]]) -> int:
    return sum(b - a for a, b in part)


def _joined(flat: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Consecutive matrices side by side."""
    parts = flat.split([height * width for height, width in shapes])
    return torch.cat([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], 1)
