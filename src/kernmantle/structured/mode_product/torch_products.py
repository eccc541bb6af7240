"""Kronecker-sparse products by torch's own operations, with which kernels are compared, and which run if faster.

``x`` is (G, N, a c d), ``weight`` (H, a, b, c, d) with H = G or 1, the result (G, N, a b d).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ...errors import BackendError
from ...torch_ops.torch_private import is_out_of_memory
from .vendor_cost import MOST_CALLS, sums_strided

BLAS_FARTHEST = 2**31 - 1  # numbers, the largest stride that the vendor's products take
_LONG_SUM, _VECTOR = 1 << 15, 16  # numbers, and bytes
Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides."""


def by_bmm(
    x: torch.Tensor, weight: torch.Tensor, made: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return one matrix product for each (g, i, l), through the matrices of :func:`block_matrices`.

    On a GPU with the batch last, or with d = 1, nothing is copied: factors are read and results written where they lie,
    to ``out`` if that lies as x does.
    """
    groups, _, a, b, c, d = _sizes(x, weight)
    blocks = (block_matrices(weight) if made is None else made).expand(groups, a, d, b, c)
    watched = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if x.is_cuda and lies_ready(x, weight, out) and not watched:
        return _where_they_lie(x, blocks, x.stride(1) == 1 != x.stride(2), out)
    return by_copies(x, blocks)


def lies_ready(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> bool:
    """Return whether a few batched products can read x and write the result in their own layouts."""
    groups, _, a, _, _, d = _sizes(x, weight)
    last = x.stride(1) == 1 != x.stride(2)
    apart = d * max(x.shape[1], x.stride(2), 0 if out is None else out.stride(2))
    return (last or d == 1) and groups * min(a, d) <= MOST_CALLS and apart <= BLAS_FARTHEST


def by_copies(x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return the product after copies of x to contiguous blocks; with the batch last, only rows of the result move."""
    groups, a, d, b, c = blocks.shape
    count = x.shape[1]
    if x.stride(1) == 1 != x.stride(2):
        columns = x.mT.reshape(groups, a, c, d, count).transpose(2, 3)
        return torch.matmul(blocks, columns).transpose(2, 3).reshape(groups, a * b * d, count).mT
    rows = x.reshape(groups, count, a, c, d).permute(0, 2, 4, 1, 3)
    return torch.matmul(rows, blocks.mT).permute(0, 3, 1, 4, 2).reshape(groups, count, a * b * d)


def block_matrices(weight: torch.Tensor) -> torch.Tensor:
    """Return the matrices (..., a, d, b, c) of weights; those of transposed weights as transposes, cheaper to copy."""
    if weight.stride(-3) < weight.stride(-2):
        return weight.transpose(-3, -2).movedim(-1, -3).contiguous().mT
    return weight.movedim(-1, -3).contiguous()


def _where_they_lie(x: torch.Tensor, blocks: torch.Tensor, last: bool, out: torch.Tensor | None) -> torch.Tensor:
    groups, a, d, b, c = blocks.shape
    if out is None or out.stride(1 if last else 2) != 1:
        shape = (groups, a * b * d, x.shape[1]) if last else (groups, x.shape[1], a * b * d)
        out = x.new_empty(shape).mT if last else x.new_empty(shape)
    for own, target, factors in zip(x, out, blocks, strict=True):
        if last:
            columns, rows = own.mT.unflatten(0, (a, c, d)), target.mT.unflatten(0, (a, b, d))
            _multiply(factors, columns.transpose(1, 2), rows.transpose(1, 2))
        else:
            rows, target = own.unflatten(1, (a, 1, c)), target.unflatten(1, (a, 1, b))
            _multiply(rows.permute(1, 2, 0, 3), factors.mT, target.permute(1, 2, 0, 3))
    return out


class BoundBatch(NamedTuple):
    """A product by one batched product that reads and writes where x and the result lie: how each array is read.

    ``reads_weight`` says that the blocks are read from the weights as they are, else ``make`` brings them together;
    ``last`` that the batch is last.
    """

    x: Layout
    blocks: Layout
    out: Layout
    reads_weight: bool
    last: bool
    make: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Write the product of x (1, N, a c d) and a weight (a, b, c, d) to ``out``."""
        own = weight if self.reads_weight else self.make(weight[None])
        own, x, target = own.as_strided(*self.blocks), x.as_strided(*self.x), out.as_strided(*self.out)
        torch.bmm(*((own, x) if self.last else (x, own)), out=target)


def bind_batch(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]
) -> BoundBatch | None:
    """Return the batched product of :func:`by_bmm` for tensors like these; None where one is not enough.

    ``make`` brings weights (1, a, b, c, d) together to blocks (1, a, d, b, c).
    """
    a, b, c, d = weight.shape
    last = x.stride(1) == 1 != x.stride(2)
    if x.shape[0] != 1 or out.stride(1 if last else 2) != 1 or not (last or d == 1):
        return None
    blocks = weight.movedim(-1, -3) if d == 1 else make(weight[None])[0]
    if last:
        one, other, target = (
            blocks, x[0].mT.unflatten(0, (a, c, d)).transpose(1, 2), out[0].mT.unflatten(0, (a, b, d)).transpose(1, 2)
        )  # fmt: skip
    else:
        one, target = (own[0].unflatten(1, (a, 1, size)).permute(1, 2, 0, 3) for own, size in ((x, c), (out, b)))
        other = blocks.mT
    if not all(_is_one_batch(each) for each in (one, other, target)):
        return None
    left, right, result = (_layout(each.flatten(0, 1)) for each in (one, other, target))
    reads = blocks.data_ptr() == weight.data_ptr()
    x_like, blocks_like = (right, left) if last else (left, right)
    return BoundBatch(x_like, blocks_like, result, reads, last, make)


def _layout(tensor: torch.Tensor) -> Layout:
    return tuple(tensor.shape), tensor.stride()


def _is_one_batch(each: torch.Tensor) -> bool:
    return 1 in each.shape[:2] or each.stride(0) == each.shape[1] * each.stride(1)


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """``left @ right`` of (a, d, ., .), in as few calls as their strides allow."""
    operands = (left, right, out)
    if all(map(_is_one_batch, operands)):
        torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=out.flatten(0, 1))
        return
    along = 0 if out.shape[0] <= out.shape[1] else 1
    for one, other, target in zip(*(each.unbind(along) for each in operands), strict=True):
        torch.bmm(one, other, out=target)


def by_entries(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the product entry by entry of the blocks, each with all rows, i and l at once: for small blocks."""
    groups, count, a, b, c, d = _sizes(x, weight)
    own, factors = x.reshape(groups, count, a, c, d), weight.expand(groups, a, b, c, d)[:, None]
    out = x.new_empty((groups, count, a, b, d))
    for j in range(b):
        target = out[:, :, :, j]
        torch.mul(own[:, :, :, 0], factors[:, :, :, j, 0], out=target)
        for k in range(1, c):
            target.addcmul_(own[:, :, :, k], factors[:, :, :, j, k])
    return out.view(groups, count, a * b * d)


def by_einsum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the definition as an equation."""
    groups, count, a, b, c, d = _sizes(x, weight)
    blocks = weight.expand(groups, a, b, c, d)
    product = torch.einsum("gnikl,gijkl->gnijl", x.reshape(groups, count, a, c, d), blocks)
    return product.reshape(groups, count, a * b * d)


def by_dense(
    x: torch.Tensor, weight: torch.Tensor, made: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the product with the dense matrix, ``made`` if it exists; a batch that is last in memory stays last."""
    matrix = dense(weight) if made is None else made
    last = x.stride(1) == 1 != x.stride(2)
    if x.shape[0] == matrix.shape[0] == 1:
        if not last:
            return functional.linear(x[0], matrix[0], None if bias is None else bias[0])[None]
        columns = x[0].mT
        product = matrix[0] @ columns if bias is None else torch.addmm(bias[0][:, None], matrix[0], columns)
        return product.mT[None]
    product = torch.matmul(matrix, x.mT).mT if last else torch.matmul(x, matrix.mT)
    return product if bias is None else product + bias[:, None]


def by_sparse(x: torch.Tensor, weight: torch.Tensor, made: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Return the product with compressed sparse rows, those of ``made`` if they exist already."""
    return _each(x, sparse_rows(weight.expand(x.shape[0], *weight.shape[1:])) if made is None else made)


def sparse_rows(weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the matrices in compressed sparse rows."""
    _, a, b, c, d = weight.shape
    rows, columns = a * b * d, a * c * d
    first = torch.arange(a, device=weight.device).view(a, 1, 1, 1) * (c * d)
    columns_of_row = (
        first + torch.arange(c, device=weight.device) * d + torch.arange(d, device=weight.device).view(d, 1)
    )
    columns_of = columns_of_row.expand(a, b, d, c).reshape(-1)
    counts = torch.arange(rows + 1, device=weight.device) * c
    values = weight.transpose(3, 4).flatten(1)
    return _made(torch.sparse_csr_tensor, counts, columns_of, values, (rows, columns))


def by_bsr(x: torch.Tensor, weight: torch.Tensor, made: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Return the product through block-sparse rows, of ``made`` or new ones, with strided entries brought together."""
    groups, count, a, b, c, d = _sizes(x, weight)
    rows = x.reshape(groups, count, a, c, d).transpose(3, 4).reshape(groups, count, a * c * d)
    product = _each(rows, block_rows(weight.expand(groups, a, b, c, d)) if made is None else made)
    return product.reshape(groups, count, a, d, b).transpose(3, 4).reshape(groups, count, a * b * d)


def block_rows(weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the matrices, rows and columns of each (i, l) brought together, in block-sparse rows; torch's are square.

    Blocks of one entry are compressed sparse rows: CUDA multiplies by no block-sparse rows of such.
    """
    groups, a, b, c, d = weight.shape
    side = math.gcd(b, c)
    high, wide = b // side, c // side
    counts = torch.arange(a * d * high + 1, device=weight.device) * wide
    first = torch.arange(a * d, device=weight.device).view(-1, 1, 1) * wide
    columns_of = (first + torch.arange(wide, device=weight.device)).expand(-1, high, -1).reshape(-1)
    blocks = weight.reshape(groups, a, high, side, wide, side, d)
    values = blocks.permute(0, 1, 6, 2, 4, 3, 5).reshape(groups, -1, side, side).contiguous()
    size = a * b * d, a * c * d
    if side == 1:
        return _made(torch.sparse_csr_tensor, counts, columns_of, values.flatten(1), size)
    return _made(torch.sparse_bsr_tensor, counts, columns_of, values, size)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress torch's warnings that sparse compressed tensors are in beta and that valid ones are not checked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|BSR) tensor support is in beta")
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
        yield


def _made(
    make: Callable[..., torch.Tensor], counts: torch.Tensor, columns_of: torch.Tensor, values: torch.Tensor,
    size: tuple[int, int],
) -> list[torch.Tensor]:  # fmt: skip
    columns_of = columns_of.contiguous()  # as CUDA reads both; an expanded index is one number
    with quietly():
        return [make(counts, columns_of, own.contiguous(), size, check_invariants=False) for own in values]


def _each(x: torch.Tensor, matrices: list[torch.Tensor]) -> torch.Tensor:
    """``x[g] @ matrices[g].T``."""
    try:
        with quietly():
            return torch.stack([(matrix @ own.mT).mT for matrix, own in zip(matrices, x, strict=True)])
    except RuntimeError as error:
        if is_out_of_memory(error) or "CUDA error" in str(error):
            raise
        raise BackendError(
            f"torch has no sparse product of {x.dtype} on {x.device}: {error}; choose another algorithm"
        ) from error


def unit_of(values: torch.Tensor) -> torch.Tensor:
    """Return the power of two up to the largest entry, 1 for zeros.

    What is divided by it is rounded nowhere, and has squares within the range of its type.
    """
    largest = values.detach().abs().amax()
    return torch.where(largest == 0, torch.ones_like(largest), largest.log2().floor().exp2())


def fused(second: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Return the weights (a, b, c, d) of the product of two factors that compose, ``first`` applied first."""
    (a, b, c, d), (blocks, _, columns, steps) = second.shape, first.shape
    outer, inner = blocks // a, d // steps
    one = second.reshape(a, b, outer, c // outer, inner, steps)
    two = first.reshape(a, outer, c // outer, inner, columns, steps)
    return torch.einsum("ijpsql,ipsqkl->ijqpkl", one, two).reshape(a, b * inner, outer * columns, steps)


def dense(weight: torch.Tensor) -> torch.Tensor:
    """Return matrices (..., a b d, a c d) of weights (..., a, b, c, d)."""
    *lead, a, b, c, d = weight.shape
    if a == d == 1:
        return weight[..., 0, :, :, 0]
    matrix = weight.new_zeros((*lead, a * b * d, a * c * d))
    entries(matrix, a, b, c, d).copy_(weight)
    return matrix


def entries(matrix: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """Return the entries (..., a, b, c, d) of contiguous matrices that a pattern does not leave at zero."""
    columns = a * c * d
    strides = (b * d * columns + c * d, d * columns, d, columns + 1)
    return matrix.as_strided((*matrix.shape[:-2], a, b, c, d), (*matrix.stride()[:-2], *strides))


def gradient_by_bmm(x: torch.Tensor, gradient: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """Return ``Σ_n gradient[g, n, i, j, l] x[g, n, i, k, l]``, of shape (G, a, b, c, d), by batched products."""
    if adds_strided(x, gradient, (a, b, c, d)):
        made = x.new_empty((x.shape[0], a, d, b, c))
        add_strided(x, gradient, made)
        return made.permute(0, 1, 3, 4, 2)
    groups, count = x.shape[:2]
    columns = x.reshape(groups, count, a, c, d).permute(0, 2, 4, 1, 3)
    rows = gradient.reshape(groups, count, a, b, d).permute(0, 2, 4, 3, 1)
    return torch.matmul(rows, columns).permute(0, 1, 3, 4, 2)


def adds_strided(x: torch.Tensor, gradient: torch.Tensor, pattern: tuple[int, int, int, int]) -> bool:
    """Return whether gradients of weights are summed by batched products that read both where they lie."""
    last = all(side.stride(1) == 1 != side.stride(2) for side in (x, gradient))
    apart = max(side.stride(2) for side in (x, gradient)) * pattern[3]
    taken = last and x.is_cuda and x.shape[0] == 1 and apart <= BLAS_FARTHEST
    return taken and sums_strided(pattern, x.shape[1], x.element_size())


def add_strided(x: torch.Tensor, gradient: torch.Tensor, out: torch.Tensor) -> None:
    """Write these sums, for a batch that is last, to ``out`` (G, a, d, b, c), whose matrices may lie apart."""
    _, a, d, b, c = out.shape
    for own, grad, target in zip(x, gradient, out, strict=True):
        rows, columns = grad.mT.unflatten(0, (a, b, d)).transpose(1, 2), own.mT.unflatten(0, (a, c, d)).transpose(1, 2)
        _multiply(rows, columns.mT, target)


def gradient_by_entries(x: torch.Tensor, gradient: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """Return the gradient of weights entry by entry of the blocks."""
    groups, count = x.shape[:2]
    own, rows = x.reshape(groups, count, a, c, d), gradient.reshape(groups, count, a, b, d)
    out = x.new_empty((groups, a, b, c, d))
    for j in range(b):
        for k in range(c):
            torch.sum(rows[:, :, :, j] * own[:, :, :, k], 1, out=out[:, :, j, k])
    return out


def summed_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the product of two matrices, whose sums may be long.

    Of halves that do not begin at vectors cuBLAS adds parts of long sums in their own type, which torch allows by
    default: gradients of bfloat16 over 8640549 rows, the batch last, were 15 % wrong, in float32 0.01 % (H200).
    """
    if left.is_cuda and is_added_in_halves(left, right):
        return torch.mm(left, right, out_dtype=torch.float32).to(left.dtype)  # pyright: ignore
    return torch.mm(left, right)


def is_added_in_halves(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether parts of the sums of a product may be added in a type of 2 bytes."""
    if left.dtype.itemsize != 2 or left.shape[1] <= _LONG_SUM:
        return False
    return any((side.data_ptr() | max(side.stride()) * 2) % _VECTOR for side in (left, right))


def gradient_by_dense(x: torch.Tensor, gradient: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """Return the gradient of weights through that of the dense matrix."""
    alone = x.shape[0] == 1
    matrix = summed_product(gradient[0].mT, x[0])[None] if alone else torch.matmul(gradient.mT, x)
    return entries(matrix.contiguous(), a, b, c, d)


def _sizes(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    _, a, b, c, d = weight.shape
    return x.shape[0], x.shape[1], a, b, c, d


ALGORITHMS: dict[str, Callable[..., torch.Tensor]] = {
    "bmm": by_bmm,
    "einsum": by_einsum,
    "dense": by_dense,
    "sparse": by_sparse,
    "bsr": by_bsr,
}
OWN: dict[str, Callable[..., torch.Tensor]] = {**ALGORITHMS, "entries": by_entries}
MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "bmm": block_matrices, "dense": dense, "sparse": sparse_rows, "bsr": block_rows,
}  # fmt: skip
GRADIENTS: dict[str, Callable[..., torch.Tensor]] = dict.fromkeys(ALGORITHMS, gradient_by_bmm) | {
    "dense": gradient_by_dense,
    "entries": gradient_by_entries,
}
