"""Squared differences on the CPU by torch's matrix product; entries that would lose digits there, from differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..backends.cpu.squares_plan import (
    SMALLEST,
    CpuSquaresPlan,
    cancellation_mask,
    column_max_cancellation,
    epilogue,
    norm_correction,
    squares_plan,
)
from ..compiler.nest import Nest
from ..ir.program import Program
from ..runtime.kernel_store import compile_only
from .layout import Geometry

Tensors = Sequence[torch.Tensor]
Runner = Callable[[Tensors, Sequence[float], Tensors], None]
Prepare = Callable[[str, str, Tensors, Tensors], Any]
# Entries that may be taken one by one, each as long as some 100 among many: 1.15 times the time at most.
_MOST_CLOSE = 1 / 512
_SAMPLED = 128  # rows and columns of the sample that tells how many entries are close
_CENTRED = 16  # times the squared mean, above the mean square: rows are centred first
_CHUNK = 1 << 22  # numbers of the rows of close entries at a time
_VENDOR: Any = torch.backends.mkldnn
_EXACT = ("none", "ieee")


def planned(
    program: Program, nest: Nest, geo: Geometry, types: Any, tensors: Tensors, outs: Tensors | None
) -> CpuSquaresPlan | None:
    """Return the plan for arrays: of float32, without batches, the result with its rows contiguous."""
    if geo.batch or types.compute != "f32" or types.outs != ("f32",):
        return None
    found = squares_plan(program, nest, geo.sizes)
    if found is None or any(out.stride(1) != 1 for out in outs or ()):
        return None
    names = [operand.name for operand in program.tensors]
    own = [tensors[names.index(name)].dtype for name in (found.row, found.column)]
    return found if own == [torch.float32] * 2 else None


def runner(plan: CpuSquaresPlan, program: Program, types: Any, direct: Runner, prepare: Prepare) -> Runner:
    """Return the function that runs a plan, or calls ``direct`` if too many entries are close or products inexact."""
    names = [operand.name for operand in program.tensors]
    row, column = names.index(plan.row), names.index(plan.column)
    cancellation, mark = column_max_cancellation(plan, program).text, cancellation_mask(plan, program).text
    join, end = norm_correction(program).text, epilogue(program)
    last = [names.index(operand.name) for operand in end.tensors if operand.name in names]
    end_numbers = [index for index, operand in enumerate(program.numbers) if operand in end.numbers]
    plain, masked = types.text, replace(types, outs=("bool",)).text

    def written(out: torch.Tensor, text: str, kinds: str, *arrays: torch.Tensor, numbers: Sequence[float] = ()) -> None:
        prepare(text, kinds, arrays, [out])(arrays, numbers, [out])

    def note(tensors: Tensors, x: torch.Tensor, y: torch.Tensor) -> None:
        out, of_x, of_y = x.new_empty(len(x), len(y)), x.new_empty(len(x)), x.new_empty(len(y))
        mask = torch.empty(out.shape, dtype=torch.bool)
        for target, source, kinds in ((of_y, cancellation, plain), (mask, mark, masked), (out, join, plain)):
            prepare(source, kinds, [out, of_x, of_y], [target])
        prepare(end.text, plain, [*(tensors[index] for index in last), out, of_x, of_y], [out])

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        (out,), x, y = outs, tensors[row], tensors[column]
        if compile_only():
            note(tensors, x, y)
            return
        parts = _rows(x, y) if _VENDOR.matmul.fp32_precision in _EXACT else None
        if parts is None or _close(parts, plan.small).float().mean() > _MOST_CLOSE:
            direct(tensors, numbers, outs)
            return
        own_x, own_y, of_x, of_y = parts
        torch.mm(own_x, own_y.mT, out=out)
        excess = torch.empty_like(of_y)
        written(excess, cancellation, plain, out, of_x, of_y)
        if not bool((excess < -SMALLEST).all()):
            mask = torch.empty(out.shape, dtype=torch.bool)
            written(mask, mark, masked, out, of_x, of_y)
            entries = mask.nonzero()
            if len(entries) > _MOST_CLOSE * out.numel():
                direct(tensors, numbers, outs)
                return
            written(out, join, plain, out, of_x, of_y)
            _mend(out, entries, x, y)
            of_x, of_y = torch.zeros_like(of_x), torch.zeros_like(of_y)
        operands, values = [tensors[index] for index in last], [numbers[index] for index in end_numbers]
        written(out, end.text, plain, *operands, out, of_x, of_y, numbers=values)

    return run


def _rows(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """Return the operands, centred if they are far from 0, and the squared norms of their rows; None if not finite."""
    middle, of_x, of_y = y.mean(0), _squares(x), _squares(y)
    if _CENTRED * middle.square().sum() > of_y.mean():
        x, y = x - middle, y - middle
        of_x, of_y = _squares(x), _squares(y)
    return (x, y, of_x, of_y) if bool(torch.isfinite(of_x.sum() + of_y.sum())) else None


def _squares(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=1).square_()


def _close(parts: tuple[torch.Tensor, ...], bound: float) -> torch.Tensor:
    """Return whether entries of a sample lose digits."""
    x, y, of_x, of_y = (part[:: max(1, len(part) // _SAMPLED)] for part in parts)
    return ~(2 * (x @ y.mT) - (1 - bound) * (of_x[:, None] + of_y) < -SMALLEST)


def _mend(out: torch.Tensor, entries: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Recompute entries from differences."""
    for row, column in (part.unbind(1) for part in entries.split(max(1, _CHUNK // x.shape[1]))):
        out[row, column] = (x[row] - y[column]).square_().sum(1).mul_(-0.5)
