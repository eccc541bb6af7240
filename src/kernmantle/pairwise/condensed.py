"""Distances between the rows of one array, each pair once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..torch_ops.checks import check_precision
from ..torch_ops.execute import allocate
from ..torch_ops.torch_private import plain
from .distances import checked, evaluate, own_metric
from .inputs import Request, find, request
from .metric import Ready

SMALLEST_BLOCK, BLOCK_ENTRIES, BLOCKS = 128, 1 << 21, 8  # rows, entries, blocks


def pdist(
    x: Any,
    metric: Any = "minkowski",
    *,
    p: Any = None,
    w: Any = None,
    V: Any = None,
    VI: Any = None,
    base: Any = None,
    root: bool = True,
    out: Any = None,
    precision: str | None = None,
) -> Any:
    """Return the distances between the rows of ``x``, each pair once: the entries of ``cdist(x)`` above the diagonal.

    Parameters
    ----------
    x : array, shape (..., n, k)
        Tensor, numpy or DLPack array, nested list or data frame. Batch axes on the left broadcast.
    p, metric, w, V, VI, base, root, precision
        As of :func:`cdist`. V and VI are by default computed from the rows of x once, as scipy does.
    out : array, shape (..., n (n - 1) / 2), optional
        Written in place; of the result's dtype, overlapping no input, and without a gradient.

    Returns
    -------
    array, shape (..., n (n - 1) / 2)
        Row after row, as ``scipy.spatial.distance.pdist`` and ``torch.pdist``.

    Raises
    ------
    KernmantleError
        Before anything is computed; names the argument.

    Notes
    -----
    Cost: n (n - 1) / 2 distances, computed in blocks of rows; besides the result no more than some megabytes are
    used, with a gradient to be recorded as much as the result again, with a metric of your own the whole matrix. A
    metric that is not symmetric gives d(x_i, x_j) for i < j. Gradients as of :func:`cdist`.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.pdist(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]]))
    array([5., 4., 3.])
    """
    if not isinstance(metric, str):
        own = own_metric(metric, root, p=p, w=w, V=V, VI=VI, base=base)
        if not isinstance(own, str):
            return _upper(own(x, precision=precision), out)
        metric = own
    wanted = request(find(metric), x, x, p=p, w=w, V=V, VI=VI, base=base, condensed=True)
    check_precision(precision)
    rows = wanted.arguments.x.shape[-2]
    entries = (rows * (rows - 1) // 2,)
    inputs = list(wanted.inputs.values())
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in inputs)
    target = None if out is None else checked(wanted, out, entries)
    if target is None and plain(inputs) and not (tracked or torch.compiler.is_compiling()):
        target = allocate((*wanted.batch, *entries), wanted.dtype, inputs[0].device)
    ready = wanted.prepared()
    blocks = _blocks(wanted, ready, rows, bool(root), precision)
    if target is None:
        found = [block.to(wanted.dtype) for block in blocks] or [_no_pairs(wanted)]
        return wanted.wrap(found[0] if len(found) == 1 else torch.cat(found, -1))
    start = 0
    for block in blocks:
        target[..., start : start + block.shape[-1]] = block
        start += block.shape[-1]
    return wanted.wrap(target) if out is None else out


def _no_pairs(wanted: Request) -> torch.Tensor:
    """Return the result for less than two rows, which has derivatives of zero."""
    nothing = [value.flatten()[:0].sum().to(wanted.dtype) for value in wanted.inputs.values()]
    return torch.stack(nothing).sum().expand(*wanted.batch, 0)


def _upper(matrix: Any, out: Any) -> Any:
    """Return the entries above the diagonal of a matrix, row after row."""
    rows, columns = np.triu_indices(matrix.shape[-1], 1)
    if out is None:
        return matrix[..., rows, columns]
    out[...] = matrix[..., rows, columns]
    return out


def _blocks(wanted: Request, ready: Ready, rows: int, root: bool, precision: str | None) -> Iterator[torch.Tensor]:
    """Condensed distances of a range of rows to all that follow, range after range."""
    step = max(1, min(max(SMALLEST_BLOCK, -(-rows // BLOCKS)), BLOCK_ENTRIES // max(rows, 1)))
    device = wanted.arguments.x.device
    count = -(-(rows - 1) // step)  # all that a compiled graph of any number of rows is guarded by
    for number in range(count):
        start, stop = number * step, rows - 1 if number == count - 1 else (number + 1) * step
        operands = tuple(
            operand[..., start:stop, :] if "m" in axes else operand[..., start + 1 :, :] if "n" in axes else operand
            for operand, axes in zip(ready.operands, wanted.axes(ready.weighted), strict=True)
        )
        square = evaluate(wanted, ready, root, operands, precision)
        yield square.flatten(-2).index_select(-1, _triangle(stop - start, rows - start - 1, device))


def _triangle(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return the positions in memory of the entries on and above the diagonal of a matrix, row after row.

    ``torch.triu_indices`` has a compiled graph for each shape.
    """
    row = torch.arange(rows, device=device)
    steps = torch.ones(rows * columns - rows * (rows - 1) // 2, dtype=torch.int64, device=device)
    steps[row * columns - row * (row - 1) // 2] = row + 1  # of the first entry of each row from the one before
    return steps.cumsum(0) - 1
