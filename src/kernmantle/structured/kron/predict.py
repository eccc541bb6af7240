"""Predicted time of a Kronecker product on a GPU that is not present, by the cost model of its plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...arrays import dtype_name
from ...backends.cuda.cards import Card
from ...backends.cuda.kernel_cost import PRODUCTS, START, Launch
from ...errors import ParameterError
from ...torch_ops.card_target import predicted
from .arrays import arranged
from .cuda import planned_for
from .execute import Number, configured, factor_sizes, has_kernels, out_shape
from .modes import cheapest, parse, products
from .run import prepare
from .workspace import between, unstarted

_HALVES = 3
"""Products of halves that one of float32 is made of."""


@predicted("kron")
def kronecker(
    card: Card, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None, alpha: Number, beta: Number,
    text: str, options: str,
) -> list[Launch]:  # fmt: skip
    """Return the launches of a product of x and factors of these shapes, types and strides."""
    modes = parse(text, factor_sizes(factors))
    out = torch.empty(out_shape(text, x, factors, y), dtype=x.dtype, device="meta")
    if not out.numel():
        return []
    size, columns = x.element_size(), out.numel() // math.prod(mode.rows for mode in modes)
    if not has_kernels(x.dtype, modes):
        raise ParameterError(
            f"Kronecker products of {dtype_name(x.dtype)}, or of identities alone, are left to torch's operations; "
            "their time is not predicted"
        )
    arrays = arranged(x, factors, y, out)
    plan, tensor = planned_for(card.limits, modes, arrays, configured(options))
    ready = prepare(plan.passes, modes, arranged(x.float(), [f.float() for f in factors], y, out.float()), unstarted)
    scratch = size * (x.numel() + out.numel() if ready is None else between(ready))
    moved = 0.0
    extent = math.prod(mode.columns for mode in modes)
    for own in plan.passes:
        after = extent // own.columns * own.rows
        moved, extent = moved + size * float(columns) * (extent + after), after
    copies = moved / card.memory_rate if ready is None else 0.0
    rate = PRODUCTS["f64" if x.dtype == torch.float64 else "f16" if tensor is not None else "f32"]
    work = float(products(modes, cheapest(modes))) * columns / rate
    work *= _HALVES if tensor is not None and tensor.products > 1 else 1
    total = plan.seconds + copies
    return [Launch(str(plan), len(plan.passes) * START, moved / card.memory_rate, work, scratch, total)]
