"""cuSOLVERMp through nvmath-python's bindings, on a NCCL communicator that exists already.

Matrices lie on a grid of 1 x W processes, their columns distributed in blocks, whose width is that of the routine: a
process holds a row-major tensor (its columns, n). Calls are collective, and wait.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nccl

from ..errors import BackendError, LaunchError

BLOCKS = {"potrf": 1024, "getrf": 512, "syevd": 256}
"""Columns in a block where there are many: products of wide ones are fast."""
NARROWEST, FEWEST = 256, 4  # columns of a block; blocks a process
QUICKER = {"potrf": 0, "getrf": 20_000, "syevd": 20_000}
"""Orders up to which one H200 was quicker than two and than four of them."""
SOLVING = 4
"""Matrices that gathering and solving in one place take, with the result."""
Agree = Callable[[torch.Tensor], int]
_TYPES = {torch.float32: 0, torch.float64: 1}
_LOWER = 0
_COLUMN_MAJOR = 0


def block_of(routine: str, n: int, size: int) -> int:
    """Return the columns in a block of a matrix of order n: as many as leave every process several."""
    block = BLOCKS[routine]
    while block > NARROWEST and n < FEWEST * size * block:
        block //= 2
    return block


def stretches(low: int, high: int, rank: int, size: int, block: int) -> list[tuple[int, int]]:
    """Return consecutive columns from low to high that a process holds, first and end of each block."""
    first, end = low // block, -(-high // block) if low < high else 0
    first += (rank - first) % size
    return [(max(low, k * block), min(high, (k + 1) * block)) for k in range(first, end, size)]


def columns_of(n: int, rank: int, size: int, block: int) -> torch.Tensor:
    """Return the indices of the columns that a process holds, in its order."""
    return torch.cat([torch.arange(0), *(torch.arange(*each) for each in stretches(0, n, rank, size, block))])


@lru_cache(maxsize=1)
def bindings() -> Any:
    """Return the functions; BackendError where they are missing."""
    try:
        found = import_module("nvmath.bindings.cusolverMp")
        _load()
        return found
    except ImportError as error:
        raise BackendError(
            "solving over several GPUs needs two packages: pip install nvmath-python nvidia-cusolvermp-cu13"
        ) from error


def _load() -> None:
    """The library in the first package on Python's path; cuda-pathfinder looks in site-packages alone."""
    paths = [path for folder in sys.path for path in Path(folder).glob("nvidia/cu*/lib/libcusolverMp.so.0")]
    with suppress(ImportError, RuntimeError, OSError):
        for needed in ("cublas", "cusolver", "nccl") if paths else ():
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(needed)
    with suppress(OSError):
        for path in paths[:1]:
            ctypes.CDLL(str(path))


class Grid:
    """All processes of a communicator in a row, with one handle each."""

    def __init__(self, communicator: int, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._calls = bindings()
        self._stream = torch.cuda.current_stream(device).cuda_stream
        index = torch.cuda.current_device() if device.index is None else device.index
        try:
            self._handle = self._calls.create(index, self._stream)
            self._grid = self._calls.create_device_grid(self._handle, communicator, 1, size, _COLUMN_MAJOR)
        except Exception as error:
            raise BackendError(f"cuSOLVERMp does not start on {size} GPUs: {_reason(error)}") from error

    def _descriptor(self, routine: str, n: int, width: int, dtype: torch.dtype) -> int:
        """Return the descriptor of a matrix, or of right-hand sides, of a routine for order n."""
        block = block_of(routine, n, self.size)
        return self._calls.create_matrix_desc(self._grid, _TYPES[dtype], n, width, block, block, 0, 0, max(1, n))

    def _spaces(self, sizes: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        on_device, on_host = (int(size) for size in sizes)
        return (
            torch.empty(max(1, on_device), dtype=torch.uint8, device=self.device),
            torch.empty(max(1, on_host), dtype=torch.uint8),
        )

    def _run(self, name: str, ask: tuple[Any, ...], info: torch.Tensor) -> None:
        """Query the workspace and call a routine whose arguments are those of the query."""
        query: Callable[..., tuple[int, int]] = getattr(self._calls, f"{name}_buffer_size")
        try:
            sizes = query(self._handle, *ask)
            device, host = self._spaces(sizes)
            getattr(self._calls, name)(
                self._handle, *ask, device.data_ptr(), int(sizes[0]), host.data_ptr(), int(sizes[1]), info.data_ptr()
            )
            torch.cuda.current_stream(self.device).synchronize()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if int(info) <= 0:
                raise LaunchError(f"cuSOLVERMp's {name} on {self.size} GPUs: {error} (info {int(info)})") from error

    def workspace(self, routine: str, n: int, dtype: torch.dtype, vectors: bool = True) -> tuple[int, int]:
        """Return the bytes on each device and host that a routine takes besides its matrices."""
        a, kind = self._descriptor(routine, n, n, dtype), _TYPES[dtype]
        pointer = torch.empty(1, dtype=dtype, device=self.device).data_ptr()
        mode = ctypes.create_string_buffer(b"V" if vectors else b"N")
        asks: dict[str, tuple[Any, ...]] = {
            "potrf": (_LOWER, n, pointer, 1, 1, a, kind),
            "getrf": (n, n, pointer, 1, 1, a, pointer, kind),
            "syevd": (ctypes.addressof(mode), _LOWER, n, pointer, 1, 1, a, pointer, pointer, 1, 1, a, kind),
        }
        try:
            sizes = getattr(self._calls, f"{routine}_buffer_size")(self._handle, *asks[routine])
        finally:
            self._calls.destroy_matrix_desc(a)
        return int(sizes[0]), int(sizes[1])

    def serves(self, device: torch.device) -> bool:
        """Return whether it is of a device and its current stream."""
        return self.device == device and self._stream == torch.cuda.current_stream(device).cuda_stream

    def solve_cholesky(self, a: torch.Tensor, n: int, b: torch.Tensor, width: int, agree: Agree = int) -> int:
        """Return the factor a symmetric matrix in place of a, solve in place of b (its columns, n); the info.

        ``agree`` makes one number of the infos of all processes; nothing is solved unless it is 0.
        """
        kind, first = _TYPES[a.dtype], a.data_ptr()
        of_a, of_b = (self._descriptor("potrf", n, columns, a.dtype) for columns in (n, width))
        info, state = self._infos()
        try:
            self._run("potrf", (_LOWER, n, first, 1, 1, of_a, kind), info)
            found = agree(info)
            if not found:
                self._run("potrs", (_LOWER, n, width, first, 1, 1, of_a, _address(b), 1, 1, of_b, kind), state)
        finally:
            self._calls.destroy_matrix_desc(of_a)
            self._calls.destroy_matrix_desc(of_b)
        return found

    def solve_lu(self, a: torch.Tensor, n: int, b: torch.Tensor, width: int, agree: Agree = int) -> int:
        """Return the factor a matrix in place of a, solve in place of b (its columns, n); as :meth:`solve_cholesky`."""
        kind, first = _TYPES[a.dtype], a.data_ptr()
        of_a, of_b = (self._descriptor("getrf", n, columns, a.dtype) for columns in (n, width))
        pivots = torch.zeros(n, dtype=torch.int64, device=self.device)
        info, state = self._infos()
        try:
            self._run("getrf", (n, n, first, 1, 1, of_a, pivots.data_ptr(), kind), info)
            found, order = agree(info), pivots.data_ptr()
            if not found:
                self._run("getrs", (0, n, width, first, 1, 1, of_a, order, _address(b), 1, 1, of_b, kind), state)
        finally:
            self._calls.destroy_matrix_desc(of_a)
            self._calls.destroy_matrix_desc(of_b)
        return found

    def _infos(self) -> list[torch.Tensor]:
        """Return the infos of the factor and of the solution."""
        return [torch.zeros(1, dtype=torch.int32, device=self.device) for _ in range(2)]

    def eigh(self, a: torch.Tensor, n: int, vectors: bool) -> Pairs:
        """Return all pairs of a symmetric matrix, which is lost; the vectors are distributed as its columns were."""
        kind, descriptor = _TYPES[a.dtype], self._descriptor("syevd", n, n, a.dtype)
        w = torch.empty(n, dtype=a.dtype, device=self.device)
        v = torch.empty_like(a) if vectors else a.new_empty(1)
        mode = ctypes.create_string_buffer(b"V" if vectors else b"N")
        info = torch.zeros(1, dtype=torch.int32, device=self.device)
        try:
            self._run(
                "syevd",
                (
                    ctypes.addressof(mode), _LOWER, n, a.data_ptr(), 1, 1, descriptor, w.data_ptr(), v.data_ptr(), 1,
                    1, descriptor, kind,
                ),
                info,
            )  # fmt: skip
        finally:
            self._calls.destroy_matrix_desc(descriptor)
        return Pairs(w, v if vectors else None, info)

    def close(self) -> None:
        """Give the handles back."""
        self._calls.destroy_grid(self._grid)
        self._calls.destroy(self._handle)


def _reason(error: Exception) -> str:
    """Return what to do about an error of the first call, which loads the library."""
    if type(error).__name__ == "DynamicLibNotFoundError":
        return (
            "libcusolverMp was not found on Python's path nor by the system; install nvidia-cusolvermp where this "
            "interpreter finds packages, or put its folder on LD_LIBRARY_PATH"
        )
    version = ".".join(map(str, nccl.version()))
    return f"{error}. nvidia-cusolvermp 0.8 runs with the NCCL 2.28 of torch 2.11, 0.9 needs NCCL 2.29; here {version}"


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues, on every process, and the rows (columns of the process, n) that are its vectors."""

    w: torch.Tensor
    v: torch.Tensor | None
    info: torch.Tensor


def _address(tensor: torch.Tensor) -> int:
    """Return an address also where a process holds nothing."""
    return tensor.data_ptr() or torch.empty(1, dtype=tensor.dtype, device=tensor.device).data_ptr()
