"""Derivatives of products by their points on the GPU, in one kernel for each of both sets of points."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_pull_emit import ENTRY, MOST_COLUMNS, MOST_NUMBERS, THREADS, RowPullPlan, emit
from ..compiler.row_pull import RowPull, row_pull
from ..compiler.row_reduce import Apply
from ..ir.ops import evaluate
from ..runtime.kernel_store import loaded
from .cuda import index_of, job_for, limits, start

_LEAST_ENTRIES = 1 << 18
_LARGEST = torch.finfo(torch.float32).max


def pulled(
    text: str, numbers: Sequence[float], operands: Sequence[torch.Tensor], v: torch.Tensor, cotangent: torch.Tensor,
    wanted: Sequence[bool],
) -> list[torch.Tensor | None] | None:  # fmt: skip
    """Return the wanted gradients by the operands of an apply, float32 without batch axes; None without a kernel."""
    apply = Apply.parse(text)
    ends = [row_pull(text, by_columns) for by_columns in (False, True)]
    x, y = operands[0], operands[-1]
    shaped = x.dim() == y.dim() == v.dim() == cotangent.dim() == 2
    if not shaped or None in ends or len(operands) != 2 - apply.inner.symmetric:
        return None
    names = [operand.name for operand in apply.inner.operands if not operand.number]
    if any(apply.inner.operand(name).axes[1] != apply.inner.reduced for name in names):
        return None
    small = x.shape[1] <= MOST_NUMBERS and v.shape[1] <= MOST_COLUMNS
    if not small or 0 in (*x.shape, *y.shape, *v.shape) or len(x) * len(y) < _LEAST_ENTRIES:
        return None
    by_row, by_column = ends
    assert by_row is not None
    assert by_column is not None
    first = apply.inner.operand(names[0]).axes[0] == apply.row
    rows, columns = (x, y) if first else (y, x)
    chosen = wanted if first else wanted[::-1]
    of_rows = _pull(by_row, apply, numbers, rows, columns, cotangent, v) if chosen[0] else None
    of_columns = _pull(by_column, apply, numbers, columns, rows, v, cotangent) if chosen[-1] else None
    if of_rows is not None and of_columns is not None and apply.inner.symmetric:
        return [of_rows + of_columns]
    return [of_rows, of_columns] if first else [of_columns, of_rows]


def _pull(
    pull: RowPull, apply: Apply, numbers: Sequence[float], own: torch.Tensor, other: torch.Tensor, g: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient by one set of points."""
    index = index_of(own.device)
    device = limits(index)
    chosen = RowPullPlan(pull, own.shape[1], v.shape[1], device.arch)
    operands = [tensor.contiguous() for tensor in (own, other, g, v)]
    parts = chosen.parts(len(own), len(other), device.sm_count)
    out = own.new_empty(parts, *own.shape)
    names = [operand.name for operand in apply.inner.numbers]
    folded = evaluate(pull.folded, dict(zip(names, numbers, strict=True)))
    values = [*numbers, *(max(-_LARGEST, min(_LARGEST, float(value))) for value in folded)]
    kernel = loaded(
        chosen,
        lambda: [job_for(emit(chosen), chosen.arch, str(chosen))],
        lambda binary: Kernel(binary, ENTRY, THREADS, title=str(chosen)),
    )
    if kernel is not None:
        pointers = [tensor.data_ptr() for tensor in (*operands, out)]
        blocks = -(-len(own) // THREADS) * parts
        start(kernel, index, blocks, (*pointers, len(own), len(other), parts, *map(float, values)))
    return out[0] if parts == 1 else out.sum(0)
