"""Products of matrices of halves by the vendor's library, bound for tensors of one layout, launched on addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..backends.cuda.cublaslt import ALIGNED, Matmul, MatmulForm, Side, library
from ..backends.cuda.launch import relaxed_capture
from ..backends.cuda.launch_program import Record
from ..errors import LaunchError
from .blas_handles import HANDLES
from .cuda import enter_thread, index_of
from .dtypes import NAMES
from .torch_private import empty_on_gpu, takes_memory_directly

Maybe = torch.Tensor | None
_HALVES = (torch.bfloat16, torch.float16)


class BoundMatmul:
    """``out = left @ right`` for tensors of one layout: a call takes the addresses of left, right, out and a vector.

    It launches on the current stream of the device. The vector is a bias that is added to rows of the result, or where
    the sums of each row of ``left`` are written; 0 where there is none. A fifth address is that of a matrix which is
    added to the result.
    """

    def __init__(self, product: Matmul, straight: bool, index: int) -> None:
        self._product, self._straight, self._index = product, straight, index
        self._bytes, self._device = product.workspace, torch.device("cuda", index)
        private: Any = torch._C
        self._stream_of, self._device_of = private._cuda_getCurrentRawStream, private._cuda_getDevice

    def __call__(self, addresses: Sequence[int]) -> None:
        """Launch."""
        index = self._index
        if self._device_of() != index:
            with torch.cuda.device(index):
                return self(addresses)
        enter_thread()
        if index not in HANDLES.devices:
            HANDLES.take(index)
        left, right, out, vector, *added = addresses
        memory = self._workspace() if self._bytes else None
        at = 0 if memory is None else memory.data_ptr()
        a, b = (left, right) if self._straight else (right, left)
        return self._product(a, b, out, vector, at, self._stream_of(index), *added)

    @property
    def device(self) -> int:
        """The device, by its index."""
        return self._index

    @property
    def workspace_bytes(self) -> int:
        """Bytes of memory that a launch needs."""
        return self._bytes

    def record(self, stream: int, operands: Sequence[int], _: int | None = None) -> Record:
        """Return a launch on a stream whose operands, and last a workspace, are at positions of a table."""
        left, right, out, vector, *added, memory = operands
        a, b = (left, right) if self._straight else (right, left)
        return self._product.record(stream, a, b, out, vector, memory if self._bytes else 0, *(added or [0]))

    def _workspace(self) -> torch.Tensor:
        if takes_memory_directly(self._index):
            return empty_on_gpu((self._bytes,), (1,), torch.uint8)
        return torch.empty(self._bytes, dtype=torch.uint8, device=self._device)


def bind_matmul(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, bias: Maybe = None, sums: Maybe = None,
    added: Maybe = None,
) -> BoundMatmul | None:  # fmt: skip
    """Return the product of matrices, or of a batch of them; None for what the library does not take as it lies.

    A bias (columns,) is added to each row of the result; ``sums`` (rows,) are those of the rows of ``left``. Both are
    for single products alone. ``added``, which lies as the result does, is added to it.
    """
    tensors = [each for each in (left, right, out, bias, sums, added) if each is not None]
    if not out.is_cuda or any(each.device != out.device for each in tensors) or library() is None:
        return None
    form = form_of(left, right, out, bias, sums, added)
    if form is None:
        return None
    index = index_of(out.device)
    try:
        with torch.cuda.device(index):
            return BoundMatmul(Matmul(form[0], index), form[1], index)
    except LaunchError:
        return None


def capture_matmul(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> bool:
    """Put a product into the graph that is captured; return whether the library takes it, without a workspace."""
    with relaxed_capture():  # in which it may load kernels
        found = bind_matmul(left, right, out)
        if found is None or found.workspace_bytes:
            return False
        found((left.data_ptr(), right.data_ptr(), out.data_ptr(), 0))
    return True


def form_of(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, bias: Maybe = None, sums: Maybe = None,
    added: Maybe = None,
) -> tuple[MatmulForm, bool] | None:  # fmt: skip
    """Return a product as the library has it, and whether ``left`` is its A; None where it does not take it.

    A result whose rows lie in one piece is the transpose of a column-major one, to which ``right`` is A.
    """
    tensors = [each for each in (left, right, out, bias, sums, added) if each is not None]
    if out.dtype not in _HALVES or any(each.dtype != out.dtype or not each.numel() for each in tensors):
        return None
    own, other, target = (_side(each) for each in (left, right, out))
    batch, vectors = out.shape[0] if out.dim() == 3 else 1, bias is not None or sums is not None
    if own is None or other is None or target is None or any(each.data_ptr() % ALIGNED for each in tensors):
        return None
    straight = not target.transposed
    if vectors and (straight or batch > 1):
        return None
    if added is not None and (added.shape != out.shape or added.stride() != out.stride()):
        return None
    a, b = (own, other) if straight else (_flipped(other), _flipped(own))
    form = MatmulForm(
        NAMES[out.dtype], batch, a, b, target._replace(transposed=False), bias is not None, sums is not None,
        added is not None,
    )  # fmt: skip
    return form, straight


def _side(tensor: torch.Tensor) -> Side | None:
    """Return how a matrix, or a batch, lies: transposed where its columns are next to one another in memory."""
    *outer, rows, columns = tensor.shape
    *apart, row, column = tensor.stride()
    steps = [1 if extent == 1 else step for extent, step in zip((rows, columns), (row, column), strict=True)]
    size, step_apart = tensor.element_size(), apart[0] if outer and outer[0] > 1 else 0
    if steps[1] == 1 and (rows == 1 or row >= columns):
        found = Side(columns, rows, max(row if rows > 1 else columns, columns), step_apart, True)
    elif steps[0] == 1 and (columns == 1 or column >= rows):
        found = Side(rows, columns, max(column if columns > 1 else rows, rows), step_apart)
    else:
        return None
    whole = all(step * size % ALIGNED == 0 for step in (found.step, found.apart))
    return found if whole else None


def _flipped(side: Side) -> Side:
    return side._replace(transposed=not side.transposed)
