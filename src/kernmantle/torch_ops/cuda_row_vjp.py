"""Derivatives of products by their points on the GPU, in one kernel for each of both sets of points.

If the map is a squared difference, a derivative is computed by products with the matrix of slopes, on tensor cores:
Σ_n w[m, n] (x[m] - y[n]) = x[m] Σ_n w[m, n] - Σ_n w[m, n] y[n]. This loses digits if close points dominate the sum.
Products with random signs detect that on the device, and then the kernel runs instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..backends.cuda.row_vjp_emit import ENTRY, LARGEST, MOST_COLUMNS, MOST_NUMBERS, THREADS, RowVjpPlan, emit
from ..backends.reference.evaluate import evaluate as evaluate_tensors
from ..compiler.row_reduce import Apply, transposed
from ..compiler.row_vjp import DifferenceVjp, RowVjp, difference_vjp, row_vjp, scalar_vjp, scalars_of
from ..ir.ops import evaluate
from ..ir.program import Program
from .cuda import Entry, index_of, limits, load_kernel, start
from .execute import Types
from .namespaces import torch_namespace
from .row_reduce_blocks import LEAST_IN_KERNELS
from .row_reduce_execute import run

_LEAST_BY_PRODUCTS = 1 << 28
"""Fewest pairs for which products are faster, the host time of their launches included."""
_LEAST_NUMBERS, _MOST_WIDTH = 16, 96
"""Fewest numbers a point, and most columns of a product, for which products are faster."""
_LARGEST_PRODUCT = 1 << 26
"""Most numbers of what is multiplied and of the product: 256 MB."""
_SKETCHES, _CANCELLATION = 3, 6.0
"""Number of products with random signs, and how many times larger both parts may be than their difference."""
_TYPES = Types("f32", ("f32",)).text


def vjp(
    text: str, numbers: Sequence[float], operands: Sequence[torch.Tensor], v: torch.Tensor, cotangent: torch.Tensor,
    wanted: Sequence[bool],
) -> list[torch.Tensor | None] | None:  # fmt: skip
    """Return the wanted gradients by the operands of an apply, float32 without batch axes; None without a kernel.

    The gradient by v follows them, if it was computed on the way.
    """
    apply = Apply.parse(text)
    count = 2 - apply.inner.symmetric
    x, y, scalars = operands[0], operands[count - 1], operands[count:]
    derivatives = _derivatives(text, apply, (x, y, v, cotangent), scalars, wanted[count:])
    if derivatives is None:
        return None
    by_row, by_column, by_scalars = derivatives
    names = _points(apply)
    first = apply.inner.operand(names[0]).axes[0] == apply.row
    rows, columns = (x, y) if first else (y, x)
    chosen = wanted[:count] if first else wanted[:count][::-1]
    swapped = [*reversed(operands[:count]), *scalars, cotangent]
    found: list[torch.Tensor | None] = [None, None, None]
    if chosen[0]:
        products = _by_products(text, False, numbers, [*operands, v], rows, columns, cotangent)
        found[0] = _vjp(by_row, apply, numbers, scalars, rows, columns, cotangent, v, products)
    if chosen[-1]:
        products = _by_products(text, True, numbers, swapped, columns, rows, v)
        found[1] = _vjp(by_column, apply, numbers, scalars, columns, rows, v, cotangent, products)
        found[2] = None if products is None else products.plain
    of_rows, of_columns, of_v = found
    of_scalars = [_of_scalar(own, numbers, [*operands, v], cotangent) if own else None for own in by_scalars]
    if of_rows is not None and of_columns is not None and apply.inner.symmetric:
        return [of_rows + of_columns, *of_scalars, of_v]
    return [of_rows, of_columns, *of_scalars, of_v] if first else [of_columns, of_rows, *of_scalars, of_v]


def _points(apply: Apply) -> list[str]:
    """Return the names of the operands with axes."""
    return [operand.name for operand in apply.inner.operands if not operand.number and operand.axes]


def _derivatives(
    text: str, apply: Apply, matrices: Sequence[torch.Tensor], scalars: Sequence[torch.Tensor], wanted: Sequence[bool]
) -> tuple[RowVjp, RowVjp, list[str]] | None:
    """Return the derivatives by rows, columns and scalars, "" for those not wanted; None where a kernel has none."""
    if any(t.dim() != 2 or 0 in t.shape for t in matrices) or any(t.dim() for t in scalars):
        return None
    x, y, v, _ = matrices
    small = x.shape[1] <= MOST_NUMBERS and v.shape[1] <= MOST_COLUMNS and len(x) * len(y) >= LEAST_IN_KERNELS
    own = scalars_of(apply.inner)
    if not small or len(scalars) != len(own):
        return None
    if any(apply.inner.operand(name).axes[1] != apply.inner.reduced for name in _points(apply)):
        return None
    by_row, by_column = row_vjp(text, False), row_vjp(text, True)
    by_scalars = [scalar_vjp(text, one.name) if chosen else "" for one, chosen in zip(own, wanted, strict=True)]
    found = [each for each in by_scalars if each is not None]
    if by_row is None or by_column is None or len(found) < len(by_scalars):
        return None
    return by_row, by_column, found


def _of_scalar(
    text: str, numbers: Sequence[float], tensors: Sequence[torch.Tensor], cotangent: torch.Tensor
) -> torch.Tensor:
    """Return the gradient by a tensor of one number, from the product with the matrix of derivatives by it."""
    (product,) = run(text, _TYPES, tensors, numbers)
    return (cotangent.double() * product).sum().to(product.dtype)


@dataclass(frozen=True)
class _Products:
    """A derivative by products, whether it lost digits, as an integer on the device, and the product with v itself."""

    derivative: torch.Tensor
    loses: torch.Tensor
    plain: torch.Tensor | None


def _by_products(
    text: str, by_columns: bool, numbers: Sequence[float], tensors: Sequence[torch.Tensor], own: torch.Tensor,
    other: torch.Tensor, g: torch.Tensor,
) -> _Products | None:  # fmt: skip
    """Return the gradient by one set of points; ``tensors`` are those of the product, the columns v behind them."""
    *operands, v = tensors
    (m, k), (n, c) = own.shape, v.shape
    width = c * (1 + k + _SKETCHES)
    vjp = difference_vjp(text, by_columns)
    fits = k >= _LEAST_NUMBERS and width <= _MOST_WIDTH and m * n >= _LEAST_BY_PRODUCTS
    fits = fits and max(m, n) * width <= _LARGEST_PRODUCT
    if vjp is None or not fits or not limits(index_of(own.device)).has(("wgmma",)):
        return None
    factor = _factor(vjp, Apply.parse(text).inner, numbers, [tensor for tensor in operands if not tensor.dim()])
    centre = other.mean(0)
    own, other = own - centre, other - centre
    length = (other.square().sum(1) + own.square().sum(1).amax()).sqrt()[:, None]
    parts = [other, length * _signs(n, _SKETCHES, own.device)]
    columns = torch.cat([v, *((v[:, :, None] * part[:, None]).flatten(1) for part in parts)], 1)
    (product,) = run(transposed(vjp.text) if by_columns else vjp.text, _TYPES, [*operands, columns], numbers)
    sums, moments, sketch = product.split([c, c * k, c * _SKETCHES], 1)
    moments, sketch = moments.view(m, c, k), sketch.view(m, c, _SKETCHES)
    found = own * (g * sums).sum(1, keepdim=True) - (g[:, :, None] * moments).sum(1)
    size, left = (torch.linalg.vector_norm(t, dtype=torch.float64) for t in (g[:, :, None] * sketch, found))
    loses = ~(size <= _CANCELLATION * math.sqrt(_SKETCHES) * left)
    return _Products(factor * found, loses.int(), sums.contiguous() if vjp.same else None)


def _factor(
    vjp: DifferenceVjp, program: Program, numbers: Sequence[float], scalars: Sequence[torch.Tensor]
) -> torch.Tensor | float:
    """Return the factor of a derivative, on the device if it is made of tensors."""
    values: dict[str, Any] = dict(zip((operand.name for operand in program.numbers), map(float, numbers), strict=True))
    if not scalars:
        return float(evaluate([vjp.factor], values)[0])
    space = torch_namespace(scalars[0].dtype, scalars[0].device)
    values = {name: space.full((), value, "value") for name, value in values.items()}
    values |= zip((operand.name for operand in scalars_of(program)), scalars, strict=True)
    return evaluate_tensors([vjp.factor], values, space)[0]


def _signs(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return 1 and -1 in an order without pattern, the same ones every time."""
    state = torch.arange(1, rows * columns + 1, device=device) * -0x61C8864680B583EB
    state = (state ^ (state >> 29)) * -0x40A7B892E31B1A47
    return ((state >> 40) & 1).mul_(2).sub_(1).view(rows, columns).float()


def _vjp(
    vjp: RowVjp, apply: Apply, numbers: Sequence[float], scalars: Sequence[torch.Tensor], own: torch.Tensor,
    other: torch.Tensor, g: torch.Tensor, v: torch.Tensor, products: _Products | None,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient by one set of points, where products lost digits or there are none."""
    index = index_of(own.device)
    device = limits(index)
    chosen = RowVjpPlan(vjp, own.shape[1], v.shape[1], device.arch)
    operands = [tensor.contiguous() for tensor in (own, other, g, v)]
    parts = chosen.parts(len(own), len(other), device.sm_count)
    out = own.new_empty(parts, *own.shape)
    names = [operand.name for operand in apply.inner.numbers]
    folded = evaluate(vjp.folded, dict(zip(names, numbers, strict=True)))
    values = [*numbers, *(max(-LARGEST, min(LARGEST, float(value))) for value in folded)]
    kernel = load_kernel(chosen, emit, Entry(ENTRY, THREADS))
    if kernel is not None:
        pointers = [tensor.data_ptr() for tensor in (*operands, out)]
        pointers.append(0 if products is None else products.loses.data_ptr())
        pointers += [tensor.data_ptr() for tensor in scalars]
        blocks = -(-len(own) // THREADS) * parts
        start(kernel, index, blocks, (*pointers, len(own), len(other), parts, *map(float, values)))
    found = out[0] if parts == 1 else out.sum(0)
    return found if products is None else torch.where(products.loses.bool(), found, products.derivative)
