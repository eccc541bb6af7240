"""Sums of outer products of a predictor's gradients, which are never stored all at once."""

from __future__ import annotations

from functools import partial

import torch

from ..torch_ops.checks import without_autocast
from ..torch_ops.recompute import recompute
from ..torch_ops.split_matmul import gram, worthwhile
from .bias import at_points
from .gradient import placed, ranges, rows
from .kernel_inputs import Call


def _outer(
    call: Call, diagonal: bool, centred: bool, z: torch.Tensor, x: torch.Tensor, coef: torch.Tensor,
    *shared: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Σ g gᵀ over outputs and points; if ``centred``, of g minus a shift, the last tensor, and the sum of those."""
    (found,) = rows(call, z, x, coef, *(shared[:-1] if centred else shared))
    found = found - shared[-1] if centred else found
    sums = (found.sum(-2),) if centred else ()
    if diagonal:
        return found.square().sum((-3, -2)), *sums
    flat = found.flatten(-3, -2)
    with without_autocast(z.device):
        return gram(flat) if worthwhile(flat.mT, flat) else flat.mT @ flat, *sums


def agop(call: Call, coef: torch.Tensor, average: bool, centred: bool, diagonal: bool) -> torch.Tensor:
    """Return the sum of the outer products of all gradients; ``call`` has the points as x and the rows as y."""
    call, coef = placed(call, coef)
    columns, points = call.x.shape[-1], call.x.shape[-2]
    found: tuple[torch.Tensor, ...] = ()
    shift: tuple[torch.Tensor, ...] = ()
    for chosen in ranges(call, coef, coef.shape[-1] * columns):
        z = call.x[..., chosen, :]
        if centred and not shift:
            with torch.no_grad():
                shift = (rows(call, z, call.y, coef, *at_points(call, chosen))[0].mean(-2, keepdim=True),)
        function = partial(_outer, call, diagonal, centred)
        part = recompute(function, z, call.y, coef, *at_points(call, chosen), *shift)
        found = tuple(map(torch.add, found, part)) if found else part
    if not found:
        batch = torch.broadcast_shapes(call.batch, coef.shape[:-2])
        return call.x.new_zeros((*batch, *(columns,) * (1 if diagonal else 2)))
    total = found[0]
    if centred:
        with without_autocast(total.device):
            total = total - (found[1].square().sum(-2) if diagonal else found[1].mT @ found[1]) / points
    return total / max(points, 1) if average else total
