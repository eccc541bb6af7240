"""From consecutive rows to cyclic blocks of columns, which cuSOLVERMp works on, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..linalg.cusolvermp import columns_of
from .exchange import dealt
from .rows import Rows


class Cyclic:
    """Columns 0 to ``width`` dealt out in blocks; rows as some given ones are spread."""

    def __init__(self, given: Rows, width: int) -> None:
        self._given, self._width = given, width
        self._dealt = [columns_of(width, rank, given.size) for rank in range(given.size)]
        self.here = self._dealt[given.rank]

    def _ranges(self) -> list[tuple[int, int]]:
        starts = [sum(self._given.counts[:i]) for i in range(self._given.size)]
        return [(start, start + count) for start, count in zip(starts, self._given.counts, strict=True)]

    def _shares(self) -> list[list[int]]:
        """How many of the indices of process p go to process q, [p][q], where rows and columns are alike."""
        return [[int(((part >= low) & (part < high)).sum()) for part in self._dealt] for low, high in self._ranges()]

    def of_symmetric(self, local: torch.Tensor) -> torch.Tensor:
        """Columns here, as rows, of a symmetric matrix: its rows of the same indices."""
        low, high = self._ranges()[self._given.rank]
        order = torch.cat([part[(part >= low) & (part < high)] for part in self._dealt]) - low
        shares = self._shares()
        rank = self._given.rank
        return dealt(
            local.index_select(0, order.to(local.device)), shares[rank], [row[rank] for row in shares],
            self._given.group,
        )  # fmt: skip

    def in_order(self, local: torch.Tensor) -> torch.Tensor:
        """Rows of cyclic indices back to consecutive ones, as the given rows are spread."""
        shares, rank = self._shares(), self._given.rank
        received = dealt(local, [row[rank] for row in shares], shares[rank], self._given.group)
        low, high = self._ranges()[rank]
        order = torch.cat([part[(part >= low) & (part < high)] for part in self._dealt]) - low
        result = torch.empty_like(received)
        result[order.to(local.device)] = received
        return result

    def columns(self, local: torch.Tensor) -> torch.Tensor:
        """Columns here, as rows (columns, n), of a matrix whose rows are spread."""
        group, counts = self._given.group, self._given.counts
        turned = torch.cat([local[:, part.to(local.device)].mT.reshape(-1) for part in self._dealt])
        mine = len(self.here)
        flat = dealt(turned, [len(part) * local.shape[0] for part in self._dealt], [mine * c for c in counts], group)
        return _joined(flat, [(mine, count) for count in counts])

    def rows(self, columns: torch.Tensor) -> torch.Tensor:
        """Back: consecutive rows (rows here, width) from the columns of all processes."""
        group, counts = self._given.group, self._given.counts
        flat = torch.cat([part.reshape(-1) for part in columns.split(list(counts), 1)])
        count = counts[self._given.rank]
        received = dealt(flat, [len(self.here) * c for c in counts], [len(part) * count for part in self._dealt], group)
        result = columns.new_empty(count, self._width)
        start = 0
        for part in self._dealt:
            stop = start + len(part) * count
            result[:, part.to(columns.device)] = received[start:stop].reshape(len(part), count).mT
            start = stop
        return result


def _joined(flat: torch.Tensor, shapes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Consecutive matrices side by side."""
    parts = flat.split([height * width for height, width in shapes])
    return torch.cat([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], 1)
