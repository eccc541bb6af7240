"""From consecutive rows to cyclic blocks of columns, which cuSOLVERMp works on, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..linalg.cusolvermp import columns_of, stretches
from .exchange import exchanged_rows
from .rows import Rows

CHUNK = 1 << 30
"""Bytes that a process sends at once."""


class Cyclic:
    """Columns 0 to ``width`` distributed in blocks of so many; rows as some given ones are spread.

    Blocks are moved as they lie: an index for each row would take the host longer than the rows take the GPU.
    """

    def __init__(self, shared_rows: Rows, width: int, block: int) -> None:
        self._rows, self._width, self._block = shared_rows, width, block
        starts = [sum(shared_rows.counts[:i]) for i in range(shared_rows.size)]
        self._ranges = [(start, start + count) for start, count in zip(starts, shared_rows.counts, strict=True)]

    @property
    def here(self) -> torch.Tensor:
        """Indices of the columns of this process."""
        return columns_of(self._width, self._rows.rank, self._rows.size, self._block)

    def _stretches(self, low: int, high: int) -> list[list[tuple[int, int]]]:
        """Return the indices from low to high, by the process that has their columns."""
        return [stretches(low, high, rank, self._rows.size, self._block) for rank in range(self._rows.size)]

    def _shares(self) -> tuple[list[int], list[int]]:
        """Return how many of the rows here have their columns on each process, and the columns here their rows."""
        rank = self._rows.rank
        here = [stretches(low, high, rank, self._rows.size, self._block) for low, high in self._ranges]
        return [_count(part) for part in self._stretches(*self._ranges[rank])], [_count(part) for part in here]

    def _step(self, local: torch.Tensor) -> int:
        """Return the numbers of each row here, or of each column, that go at once: on every process the same."""
        most = max(*self._rows.counts, _count(stretches(0, self._width, 0, self._rows.size, self._block)), 1)
        return max(1, CHUNK // (most * local.element_size()))

    def _by_slabs(self, local: torch.Tensor, height: int, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the rows that are moved some of their numbers at a time, so that little is there twice."""
        wide, step = local.shape[1], self._step(local)
        if step >= wide:
            return move(local)
        result = local.new_empty(height, wide)
        for left in range(0, wide, step):
            result[:, left : left + step] = move(local[:, left : left + step])
        return result

    def of_symmetric(self, local: torch.Tensor) -> torch.Tensor:
        """Return the columns here, as rows, of a symmetric matrix: its rows of the same indices."""
        low, high = self._ranges[self._rows.rank]
        every, shares = self._stretches(low, high), self._shares()

        def move(slab: torch.Tensor) -> torch.Tensor:
            parts = [slab[a - low : b - low] for part in every for a, b in part]
            return exchanged_rows(torch.cat([slab[:0], *parts]), *shares, self._rows.group)

        return self._by_slabs(local, sum(shares[1]), move)

    def in_order(self, local: torch.Tensor) -> torch.Tensor:
        """Return the rows of cyclic indices back to consecutive ones, as the given rows are spread."""
        back, sent = self._shares()
        blocks = [block for part in self._stretches(*self._ranges[self._rows.rank]) for block in part]

        def move(slab: torch.Tensor) -> torch.Tensor:
            received = exchanged_rows(slab, sent, back, self._rows.group)
            parts = received.split([b - a for a, b in blocks])
            ordered = sorted(zip(blocks, parts, strict=True), key=lambda pair: pair[0])
            return torch.cat([slab[:0], *(part for _, part in ordered)])

        return self._by_slabs(local, self._rows.counts[self._rows.rank], move)

    def columns(self, local: torch.Tensor) -> torch.Tensor:
        """Return the columns here, as rows (columns, n), of a matrix whose rows are spread."""
        group, counts, rank = self._rows.group, self._rows.counts, self._rows.rank
        period = self._block * self._rows.size
        step = max(period, self._step(local) // period * period)
        mine = _count(stretches(0, self._width, rank, self._rows.size, self._block))
        result, top = local.new_empty(mine, self._rows.total), 0
        for left in range(0, self._width, step):
            every = self._stretches(left, min(left + step, self._width))
            columns_first = torch.cat([local.mT[:0], *(local[:, a:b].mT for part in every for a, b in part)])
            here, sent = _count(every[rank]), [_count(part) * local.shape[0] for part in every]
            flat = exchanged_rows(columns_first.reshape(-1), sent, [here * count for count in counts], group)
            parts = flat.split([here * count for count in counts])
            for (low, high), part in zip(self._ranges, parts, strict=True):
                result[top : top + here, low:high] = part.reshape(here, high - low)
            top += here
        return result

    def rows(self, columns: torch.Tensor) -> torch.Tensor:
        """Back: consecutive rows (rows here, width) from the columns of all processes."""
        group, counts = self._rows.group, self._rows.counts
        every, count = self._stretches(0, self._width), counts[self._rows.rank]
        flat = torch.cat([part.reshape(-1) for part in columns.split(list(counts), 1)])
        received = exchanged_rows(
            flat, [len(columns) * c for c in counts], [_count(part) * count for part in every], group
        )
        result, start = columns.new_empty(count, self._width), 0
        for a, b in (block for part in every for block in part):
            stop = start + (b - a) * count
            result[:, a:b] = received[start:stop].reshape(b - a, count).mT
            start = stop
        return result


def _count(part: Sequence[tuple[int, int]]) -> int:
    return sum(b - a for a, b in part)
