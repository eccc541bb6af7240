"""Rows for solvers that never have all of them at work: in memory in random order, or streamed from the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arrays import unwrap
from ..errors import DtypeError, ShapeError
from .arguments import DTYPES

PIECE = 1 << 19
"""Rows of a product at a time."""


def available(device: torch.device) -> int:
    """Return the bytes of memory that can still be taken there."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    listing = Path("/proc/meminfo")
    if listing.is_file():
        for line in listing.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def host_rows(x: Any, name: str = "x") -> Any:
    """Return a tensor or numpy array, memory-mapped or not, with the axes (rows, columns) of float32 or float64."""
    if not isinstance(x, (torch.Tensor, np.ndarray)):
        raise DtypeError(f"{name} must be a tensor or a numpy array, memory-mapped or not, not {type(x).__name__}")
    if isinstance(x, torch.Tensor):
        unwrap(x, names=[name])
    if len(x.shape) != 2 or not x.shape[0]:
        raise ShapeError(f"{name} must have shape (rows, columns) and at least one row, it has {tuple(x.shape)}")
    if str(x.dtype).removeprefix("torch.") not in {str(d).removeprefix("torch.") for d in DTYPES}:
        raise DtypeError(f"{name} is {x.dtype}; solvers take float32 and float64: convert it")
    return x


def tensor_of(x: Any, start: int, stop: int) -> torch.Tensor:
    """Return some rows as a tensor where they are; a copy of those of numpy, whose memory may be read-only."""
    if isinstance(x, torch.Tensor):
        return x[start:stop]
    return torch.from_numpy(np.array(x[start:stop]))


def _is_on(x: torch.Tensor, device: torch.device) -> bool:
    return x.device.type == device.type and device.index in (None, x.device.index)


class RowSource:
    """Blocks of rows on a device, and passes over all that have been visited.

    Rows that fit into ``memory`` bytes are copied there in a random ``order``, so that blocks of consecutive rows are
    random ones; in that of x without a ``seed``, and not copied where they are there already. Others stay where they
    are, and are read piece by piece by a thread, and copied to a GPU on a stream of its own, while the device works on
    the piece before.
    """

    def __init__(self, x: Any, device: torch.device, block: int, memory: int, seed: int | None) -> None:
        self.size, self.columns = x.shape
        self.device, self.block = device, block
        self.blocks = -(-self.size // block)
        self._x = x
        self._pool = ThreadPoolExecutor(1)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        itemsize = tensor_of(x, 0, 1).element_size()
        self.order: torch.Tensor | None = None
        self._resident: torch.Tensor | None = None
        if seed is None and isinstance(x, torch.Tensor) and _is_on(x, device):
            self._resident = x
        elif self.size * self.columns * itemsize <= memory:
            self._load(seed)

    @property
    def streamed(self) -> bool:
        """Return whether rows are read again in every pass."""
        return self._resident is None

    def _load(self, seed: int | None) -> None:
        target = None
        if seed is not None:
            self.order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed))
            target = torch.empty_like(self.order)
            target[self.order] = torch.arange(self.size)
        dtype = tensor_of(self._x, 0, 1).dtype
        resident = torch.empty(self.size, self.columns, dtype=dtype, device=self.device)
        for start in range(0, self.size, PIECE):
            stop = min(start + PIECE, self.size)
            where = slice(start, stop) if target is None else target[start:stop].to(self.device)
            resident[where] = tensor_of(self._x, start, stop).to(self.device)
        self._resident = resident

    def sorted(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of the rows, in the order of the blocks, on the device."""
        return (values if self.order is None else values[self.order.to(values.device)]).to(self.device)

    def unsorted(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values in the order of the blocks, in that of the rows."""
        if self.order is None:
            return values
        result = torch.empty_like(values)
        result[self.order.to(values.device)] = values
        return result

    def span(self, index: int) -> tuple[int, int]:
        """Return the first row of a block and that after its last."""
        return index * self.block, min((index + 1) * self.block, self.size)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Return consecutive rows, on the device."""
        if self._resident is not None:
            return self._resident[start:stop]
        return tensor_of(self._x, start, stop).to(self.device)

    def picked(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return the rows at chosen in the order of the blocks, on the device."""
        if self._resident is not None:
            return self._resident[chosen.to(self.device)]
        ascending = chosen.sort().values
        if isinstance(self._x, torch.Tensor):
            found = self._x[ascending.to(self._x.device)]
        else:
            found = torch.from_numpy(np.array(self._x[ascending.cpu().numpy()]))
        back = torch.empty_like(ascending)
        back[chosen.argsort()] = torch.arange(len(chosen))
        return found.to(self.device)[back.to(self.device)]

    def pieces(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield the rows of disjoint spans, piece by piece; the next is under way while one is used."""
        cut = [
            (start, min(start + PIECE, stop)) for first, stop in merged(spans) for start in range(first, stop, PIECE)
        ]
        if self._resident is not None:
            yield from ((start, stop, self._resident[start:stop]) for start, stop in cut)
            return
        coming: Future[Any] | None = self._pool.submit(self._read, *cut[0]) if cut else None
        for i, (start, stop) in enumerate(cut):
            assert coming is not None
            rows, event = coming.result()
            coming = self._pool.submit(self._read, *cut[i + 1]) if i + 1 < len(cut) else None
            if event is not None:
                stream = torch.cuda.current_stream(self.device)
                stream.wait_event(event)
                rows.record_stream(stream)
            yield start, stop, rows

    def _read(self, start: int, stop: int) -> tuple[torch.Tensor, Any]:
        rows = tensor_of(self._x, start, stop)
        if self._side is None or rows.is_cuda:
            return rows.to(self.device), None
        with torch.cuda.stream(self._side):
            moved = rows.pin_memory().to(self.device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._side)
        return moved, event

    def close(self) -> None:
        """End the reading thread."""
        self._pool.shutdown()


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, adjacent ones as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def drawn(size: int, count: int, seed: int) -> torch.Tensor:
    """Return different random numbers below size, without a permutation of all where they are few."""
    source = torch.Generator().manual_seed(seed)
    if count > size // 4:
        return torch.randperm(size, generator=source)[:count]
    found = torch.randint(size, (2 * count,), generator=source).unique()
    return found[torch.randperm(len(found), generator=source)[:count]]
