"""Log-sum-exps of sums on the CPU by torch's matrix product of exponentials; entries that would underflow, directly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..backends.reference import evaluate
from ..compiler.lower import Lowering
from ..compiler.patterns import LogProduct, log_product
from ..ir.node import Node
from ..ir.program import Program
from ..runtime.kernel_store import compile_only
from .dtypes import DTYPES
from .layout import Geometry, aligned
from .namespaces import torch_namespace

Tensors = Sequence[torch.Tensor]
Runner = Callable[[Tensors, Sequence[float], Tensors], None]
Finish = Callable[[Tensors, Sequence[float], Tensors, Tensors], None]
_LEAST_DEPTH, _LEAST_WORK = 8, 1 << 18  # terms of a sum; multiplications of all
_SHARES = {"f32": 2.0**-90, "f64": 2.0**-900}
"""Least sum of products, as a share of the sums of both rows: exponentials that became 0 do not change a larger one."""
_MOST_LOST = 1 / 256
"""Entries that may be taken one by one."""
_BLOCK, _CHUNK = 1 << 20, 1 << 22  # entries that are computed at a time
_VENDOR: Any = torch.backends.mkldnn
_EXACT = ("none", "ieee")


def planned(lowering: Lowering, geo: Geometry, types: Any) -> LogProduct | None:
    """Return the plan of the product if it is allowed and faster: without batches, in floating point; else None."""
    if geo.batch or lowering.batch or types.precision == "ieee" or set(lowering.roles.values()) != set("mnk"):
        return None
    sizes = {role: geo.sizes[axis] for axis, role in lowering.roles.items()}
    large = sizes["k"] >= _LEAST_DEPTH and math.prod(sizes.values()) >= _LEAST_WORK
    return log_product(lowering.nest) if large else None


def runner(
    found: LogProduct, program: Program, lowering: Lowering, types: Any, direct: Runner, finish: Finish
) -> Runner:
    """Return the function that multiplies; it calls ``direct`` if too many entries would underflow or be inexact."""
    names = [operand.name for operand in program.tensors]
    axes = {role: axis for axis, role in lowering.roles.items()}
    dtype, share = DTYPES[types.compute], _SHARES[types.compute]

    def part(node: Node, order: str, arrays: Mapping[str, torch.Tensor], numbers: Mapping[str, float]) -> torch.Tensor:
        """Return what one operand adds to the exponents, over ``order``."""
        ns = torch_namespace(dtype, torch.device("cpu"))
        roles = "".join(axes[role] for role in order)
        env = {name: ns.full((), number, "value") for name, number in numbers.items()}
        for operand in program.tensors:
            if set(operand.axes) <= set(roles) and operand.name in arrays:
                env[operand.name] = aligned(arrays[operand.name].to(dtype), operand.axes, roles)
        return evaluate.evaluate([node], env, ns)[0]

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        arrays = dict(zip(names, tensors, strict=True))
        values = {operand.name: number for operand, number in zip(program.numbers, numbers, strict=True)}
        if types.compute == "f32" and _VENDOR.matmul.fp32_precision not in _EXACT:
            direct(tensors, numbers, outs)
            return
        x, y = part(found.row_part, "mk", arrays, values), None
        if not program.symmetric:
            y = part(found.column_part, "nk", arrays, values)
        own = outs[0]
        fits = own.dtype == dtype and own.is_contiguous() and own.shape == (len(x), len(x if y is None else y))
        logs = own if fits and len(outs) == 1 else x.new_empty(len(x), len(x if y is None else y))
        if not compile_only() and not _logarithms(x, x if y is None else y, logs, share):
            direct(tensors, numbers, outs)
            return
        if compile_only():
            direct(tensors, numbers, outs)
        finish(tensors, numbers, [logs], outs)

    return run


def _exponentials(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return exponentials less their rows' largest, their sums and the largest.

    The sum is -inf where all are 0, and inf where an exponent is NaN or inf: such a row is not to be multiplied.
    """
    top = x.amax(1)
    wild = ~(top < math.inf)
    shift = torch.where(wild | (top == -math.inf), 0, top)
    powers = (x - shift[:, None]).exp_()
    powers[wild] = 0
    sums = powers.sum(1)
    sums[top == -math.inf] = -math.inf
    sums[wild] = math.inf
    return powers, sums, torch.where(wild, 0, top)


def _logarithms(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, share: float) -> bool:
    """Write log Σ exp(x + y); False if too many entries are to be taken one by one."""
    of_x, sums_x, top_x = _exponentials(x)
    of_y, sums_y, top_y = (of_x, sums_x, top_x) if y is x else _exponentials(y)
    left, step = int(_MOST_LOST * out.numel()), max(1, _BLOCK // len(y))
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        block = out[rows]
        torch.mm(of_x[rows], of_y.mT, out=block)
        lost = (~(block >= share * (sums_x[rows, None] + sums_y))).nonzero()
        left -= len(lost)
        if left < 0:
            return False
        block.log_().add_(top_x[rows, None] + top_y)
        for row, column in (part.unbind(1) for part in lost.split(max(1, _CHUNK // x.shape[1]))):
            block[row, column] = torch.logsumexp(x[first + row] + y[column], 1)
    return True
