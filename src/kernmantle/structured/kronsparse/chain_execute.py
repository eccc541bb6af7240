"""Runs chains of Kronecker-sparse products in steps: neighbouring factors as one, some rows of the batch at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from ...compiler.nest import BYTES
from ...torch_ops.info import RunInfo
from ..mode_product.chain_plan import Pattern, Step, steps
from ..mode_product.cost import dense_seconds, quickest
from ..mode_product.execute import described, gpu, is_on_gpu, product
from ..mode_product.operands import Operands, empty
from ..mode_product.pack import PackedWeights
from ..mode_product.torch_products import dense, fused
from ..mode_product.vendor_cost import MOST_DENSE

_DEVICES = ("cpu", "cuda")
# On a CPU, for each thread: bytes between two factors with the features together, and how many operations for one of
# these numbers leave nothing to gain; columns with the batch together, and how many numbers between make it worthwhile.
# 1.7 x faster at (32, 32, 32, 1) (1, 32, 32, 32), 2.6 x at 64, 1.4 to 1.7 x with the batch last at (64, 16, 16, 1).
_CACHED, _LEAST_ROWS, _INTENSE = 1 << 20, 128, 512
_COLUMNS, _WIDE, _ALL = 2048, 512, 2**62


def plan(
    x: torch.Tensor, weights: Sequence[torch.Tensor], algorithm: str, fuses: bool
) -> tuple[tuple[Step, ...], int] | None:
    """Return the steps of a chain of weights (a, b, c, d), and how many rows of the batch go through them at a time.

    None for one factor after the other with all rows at once. ``fuses``: neighbours may run as one.
    """
    batch, _, kind, _ = about = described(x)
    if len(weights) < 2 or batch == 0 or kind not in _DEVICES or not (fuses or kind == "cpu"):
        return None
    on_gpu = is_on_gpu(x)
    patterns = tuple([weight.shape for weight in weights])
    whole = fuses and algorithm == "auto"
    return _plan(patterns, *about, x.device, algorithm, whole, on_gpu, torch.get_num_threads())  # pyright: ignore


@lru_cache(maxsize=1024)
def _plan(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, kind: str, last: bool, device: torch.device, algorithm: str,
    fuses: bool, on_gpu: bool, threads: int,
) -> tuple[tuple[Step, ...], int] | None:  # fmt: skip
    found = alone = tuple(Step("factor", index, index + 1) for index in range(len(patterns)))
    if fuses:
        found = _steps(patterns, batch, dtype, last, device, on_gpu)
    rows = batch
    if kind == "cpu" and algorithm in ("auto", "kernel") and len(found) > 1:
        rows = min(batch, threads * _rows(patterns, dtype, last))
    rows = rows if 2 * rows <= batch else batch
    return None if found == alone and rows == batch else (found, rows)


def _steps(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, device: torch.device, on_gpu: bool
) -> tuple[Step, ...]:
    def factor(pattern: Pattern) -> float:
        kernel = gpu().expected(pattern, batch, dtype, not last, device) if on_gpu else None
        return quickest(pattern, batch, dtype, device.type, last, kernel, True)[1]

    (a, _, c, d), final = patterns[0], patterns[-1]
    shape = final[0] * final[1] * final[3], a * c * d
    whole = dense_seconds(shape, batch, dtype, device.type) if math.prod(shape) <= MOST_DENSE else math.inf
    return steps(patterns, factor, whole)


def _rows(patterns: tuple[Pattern, ...], dtype: str, last: bool) -> int:
    """Return the rows of the batch whose intermediate results between two factors fit into a core's caches."""
    between = max(a * b * d for a, b, _, d in patterns[:-1])
    if last:
        return _COLUMNS if between >= _WIDE else _ALL
    if 2 * sum(map(math.prod, patterns)) >= _INTENSE * between:
        return _ALL
    return max(_LEAST_ROWS, _CACHED // (between * BYTES[dtype]))


def matrix_of(weights: Sequence[torch.Tensor], own: torch.dtype, inner: torch.dtype | None = None) -> torch.Tensor:
    """Return the matrix of a chain of weights, multiplied in ``inner`` or a wider type, with its derivative."""
    inner = inner or _wide(own)
    if len(weights) == 1:
        return dense(weights[0].to(own))
    total = dense(weights[0].to(inner))
    for weight in weights[1:]:
        total = dense(weight.to(inner)) @ total
    return total.to(own)


def _wide(own: torch.dtype) -> torch.dtype:
    return torch.float64 if own.itemsize > 2 else torch.float32


def _one(weights: Sequence[torch.Tensor], own: torch.dtype) -> torch.Tensor:
    """Return one weight (a, b, c, d) of the product of neighbours."""
    total = weights[0].to(_wide(own))
    for weight in weights[1:]:
        total = fused(weight.to(total.dtype), total)
    return total.to(own).contiguous()


def run(
    found: Sequence[Step], rows: int, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None,
    activation: str, options: tuple[bool, str, str], packed: Sequence[PackedWeights] | None, info: RunInfo,
) -> torch.Tensor:  # fmt: skip
    """Return the product with a chain in steps; ``packed`` has packed weights for each factor, then for all of them."""
    batch = x.shape[1]
    if rows >= batch:
        return _run(found, x, weights, bias, activation, options, packed, info, None)
    a, b, _, d = weights[-1].shape
    out = empty(x, a * b * d, options[0])
    for begin in range(0, batch, rows):
        part = slice(begin, begin + rows)
        _run(found, x[:, part], weights, bias, activation, options, packed, info, out[:, part])
    info.route = f"{rows} rows at a time: {info.route}"
    return out


def _run(
    found: Sequence[Step], x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None,
    activation: str, options: tuple[bool, str, str], packed: Sequence[PackedWeights] | None, info: RunInfo,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    batch_last, algorithm, precision = options
    for step in found:
        own = Operands(x, weights[step.begin][None], batch_last=batch_last, precision=precision)
        if step.end < len(weights):
            x = _step(step, own, weights, algorithm, packed, info, None)
        else:
            x = _step(step, own._replace(bias=bias, activation=activation), weights, algorithm, packed, info, out)
    return x


def _step(
    step: Step, own: Operands, weights: Sequence[torch.Tensor], algorithm: str, packed: Sequence[PackedWeights] | None,
    info: RunInfo, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    begin, end = step.begin, step.end
    if step.kind == "factor" and end - begin == 1:
        return product(own._replace(packed=None if packed is None else packed[begin]), algorithm, out, info)
    assert packed is not None
    dtype, device = own.x.dtype, own.x.device
    joined, inner = packed[-1].get_or_pack(
        (begin, end, dtype), lambda: (_one(weights[begin:end], dtype), PackedWeights()), device
    )
    value = product(own._replace(weight=joined[None], packed=inner), algorithm, out, info)
    info.route = f"factors {begin} to {end - 1} as one: {info.route}"
    return value
