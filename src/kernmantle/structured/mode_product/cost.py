"""Predicted times of each algorithm for a Kronecker-sparse product and for the gradient of its weights.

Fitted on an H100 and an H200 (decisions 0008, 0028, 0037 and 0042).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import CARDS, DeviceLimits
from ...compiler.nest import BYTES
from . import cpu_cost
from .block_sum_plan import block_sums_seconds
from .column_sum_plan import columns_seconds
from .fma_sum_plan import fma_seconds, least_seconds
from .plan import Problem
from .row_sum_plan import row_sum_choice
from .tile_cost import neighbours_seconds
from .tiles import expected_seconds
from .transpose_plan import ACCESS, arranges, in_squares, inner, padded, pass_seconds, start_seconds
from .vendor_cost import MOST_DENSE, between_copies_seconds, blocks_seconds, matrix_seconds
from .vendor_cost import gradient_seconds as by_vendor
from .weight_gradient_plan import DTYPES as SUMMED
from .wide_sum_plan import wide_sums_seconds

Pattern = tuple[int, int, int, int]
_JOINING = 2.4e-5  # seconds of zeros, their indices and copies, all of a few numbers
# Seconds to begin to rearrange weights, and of a byte of them by the bytes of a number; times that of transposed ones.
_REARRANGING, _REARRANGED, _TRANSPOSED_WEIGHTS = 4e-7, {2: 5.8e-12, 4: 5.6e-12, 8: 5.6e-12}, {2: 1.1, 4: 1.25, 8: 1.25}
_REARRANGED_POWERS = 0.22, -0.33, 0.44  # of the values of l, of the run of k, and of the share that is no padding
_SAVED = 0.33  # of what torch's copies of weights should take, what gradients take less without them
# Sums by the loops of any contraction: seconds to begin, operations a second, and times as long where l interleave.
_CONTRACTION_START, _CONTRACTION, _SCATTERED = 8e-5, 3e13, 5.0
TRANSPOSED = "transposed"  # our kernel over rows that are transposed before and after
_MEASURED = next(card for card in CARDS.values() if card.has(("measured",)))  # of the fits
# Times its model, where batched products are between the passes: they are known to 9 %, and tiles of 256 x 256 with 16
# values of l take 0.88 to 0.92 of what is predicted of them; below 16 values of l, with which the passes are slower,
# 26 products took 1.06 to 1.22 times the first figure's prediction (decision 0088).
_BETWEEN_PASSES, _BETWEEN_SLOW_PASSES, _SLOW_PASSES = 1.1, 1.3, 16
# The same of float32 where our kernel is between, below 16 values of l, of 18 products, and from 64 on, of 13 (decision
# 0095).
_KERNEL_BETWEEN_SLOW_PASSES, _KERNEL_BETWEEN_WHOLE_PASSES, _WHOLE_PASSES = 1.05, 0.95, 64
_TRANSPOSED_SUM = 0.9  # times its model: 13 sums took 0.6 to 1.3 times it on an H200 (decision 0068)


@dataclass(frozen=True)
class Rates:
    """An H100 or H200 in one type: bytes and operations a second, and seconds that any call takes.

    ``kernel`` are operations of our kernel where its blocks are wide, ``strided`` is by how much it is slower, at its
    products and at its bytes, where neighbours in memory belong to different blocks, ``strided_from`` that many.
    ``permuted`` are bytes a second of copies of weights in another order.
    """

    bytes: float
    kernel: float
    overhead: float
    strided: tuple[float, float]
    strided_from: int
    permuted: float


_CUDA, _HALF = Rates(4.0e12, 1.1e14, 2e-6, (2.3, 2.7), 4, 7e11), Rates(4.0e12, 2.5e14, 2e-6, (3.0, 2.9), 4, 5.5e11)
RATES: Mapping[str, Rates] = {
    "f32": _CUDA, "f16": _HALF, "bf16": _HALF, "f64": Rates(4.0e12, 1.2e13, 2e-6, (1.0, 3.0), 2, 7e11),
}  # fmt: skip


def _rates(dtype: str) -> Rates:
    return RATES.get(dtype, _CUDA)


def dense_seconds(shape: tuple[int, int], batch: int, dtype: str, kind: str, last: bool = False) -> float:
    """Return a dense layer (out_features, in_features)."""
    if kind == "cpu":
        return cpu_cost.dense_seconds(shape, batch, dtype)
    return matrix_seconds(shape, batch, dtype, last)


def _together(memory: float, work: float) -> float:
    """Return the seconds of two kernels that mostly overlap."""
    return max(memory, work) + min(memory, work) / 2


def seconds(
    pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False, packed: bool = False
) -> dict[str, float]:
    """Time of each algorithm worth choosing, where the batch lies together in memory (``last``) or the features.

    ``packed``: the weights are packed already.
    """
    if kind == "cpu":
        return cpu_cost.product_seconds(pattern, batch, dtype, last, packed)
    a, b, c, d = pattern
    dense = dense_seconds((a * b * d, a * c * d), batch, dtype, kind, last)
    if a * d == 1:
        return {"dense": dense}
    own, size = _rates(dtype), BYTES[dtype]
    ends, weights = size * batch * a * d * (b + c), size * a * b * c * d
    work = 2.0 * batch * a * b * c * d
    products, bytes_ = (1.0, 1.0) if last or d < own.strided_from else own.strided
    moved = (ends * bytes_ + weights) / own.bytes
    found = {"kernel": 3 * own.overhead + _together(moved, work * products / own.kernel)}
    if a * b * d * a * c * d <= MOST_DENSE:
        found["dense"] = dense + (0 if packed else _making_seconds(pattern, dtype))
    arranged = 0.0 if packed or d == 1 else own.overhead + _blocks_arranging_seconds(pattern, dtype)
    found["bmm"] = arranged + blocks_seconds(pattern, batch, dtype, last)
    return found


def _making_seconds(pattern: Pattern, dtype: str) -> float:
    """Return the seconds in which a GPU makes the dense matrix."""
    (a, b, c, d), own = pattern, _rates(dtype)
    return 2 * own.overhead + 3 * BYTES[dtype] * a * b * d * a * c * d / own.bytes


def _blocks_arranging_seconds(pattern: Pattern, dtype: str) -> float:
    """Return the seconds in which a GPU gathers or scatters the weights of blocks, without the start of the kernel."""
    (a, b, c, d), size = pattern, BYTES[dtype]
    if not arranges(pattern, size):
        return size * math.prod(pattern) / _rates(dtype).permuted
    return pass_seconds(b * c, d, a, size, True, b * c * size % ACCESS == 0)


def matrix_step_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> float:
    """Return what a step on a GPU takes that makes the matrix of one factor once, and sums as is quickest."""
    a, b, c, d = pattern
    high, wide = a * b * d, a * c * d
    through = sum(dense_seconds(shape, batch, dtype, "cuda", last) for shape in ((high, wide), (wide, high)))
    return _making_seconds(pattern, dtype) + through + quickest_gradient(pattern, batch, dtype, "cuda", last)[1]


@lru_cache(maxsize=4096)
def step_of_blocks(pattern: Pattern, batch: int, dtype: str, last: bool) -> tuple[float, bool, bool]:
    """Return what a GPU takes for blocks, their product and that by their transposes, and whether these copy."""
    a, b, c, d = pattern
    taken, copies = _rates(dtype).overhead + _blocks_arranging_seconds(pattern, dtype), list[bool]()
    for own in (pattern, (a, c, b, d)):
        direct, copied = blocks_seconds(own, batch, dtype, last), between_copies_seconds(own, batch, dtype, last)
        taken, copies = taken + min(direct, copied), [*copies, copied < direct]
    return taken, copies[0], copies[1]


@lru_cache(maxsize=4096)
def gradient_seconds(pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False) -> Mapping[str, float]:
    """Return the time of each algorithm for the sum over the batch that is the gradient of the weights."""
    if kind == "cpu":
        return cpu_cost.gradient_seconds(pattern, batch, dtype, last)
    a, b, c, d = pattern
    found = by_vendor(pattern, batch, dtype, last)
    if arranges(pattern, BYTES[dtype]):  # the vendor's were measured with torch's copies
        copied = BYTES[dtype] * math.prod(pattern) / _rates(dtype).permuted
        found["bmm"] -= _SAVED * max(0.0, copied - _blocks_arranging_seconds(pattern, dtype))
    if a * b * d * a * c * d > MOST_DENSE:
        del found["dense"]
    if dtype in SUMMED:
        if last:
            kernels = [columns_seconds(pattern, batch, dtype, _MEASURED)]
            kernels.append(block_sums_seconds(pattern, batch, dtype, _MEASURED))
        else:
            access = [math.gcd(16, BYTES[dtype] * extent * d) for extent in (c, b)]
            kernels = [row_sum_choice(pattern, batch, dtype, access[0], access[1], 3, _MEASURED)[0]]
        kernels.append(wide_sums_seconds(pattern, batch, dtype, not last, _MEASURED))
        if least_seconds(pattern, batch, _MEASURED) < min(kernels):
            kernels.append(fma_seconds(pattern, batch, dtype, last, _MEASURED))
        found["kernel"] = min(kernels)
    else:
        scattered = _SCATTERED if not last and d >= 4 else 1.0
        found["kernel"] = _CONTRACTION_START + scattered * 2.0 * batch * a * b * c * d / _CONTRACTION
    if dtype in SUMMED and not last and d > 1:
        found[TRANSPOSED] = _transposed_sum_seconds(pattern, batch, dtype)
    return found


def _transposed_sum_seconds(pattern: Pattern, batch: int, dtype: str) -> float:
    """Return the seconds of both arrays over transposed rows, sums of blocks, and these in the order of weights."""
    (a, b, c, d), size, rates = pattern, BYTES[dtype], _rates(dtype)
    whole = all(extent * d * size % ACCESS == 0 for extent in (b, c))
    moved = sum(pass_seconds(extent, d, batch * a, size, True, whole) for extent in (b, c))
    blocks, weights = (a * d, padded(b, size), padded(c, size), 1), size * a * b * c * d
    arranged = rates.overhead + weights / rates.permuted
    summed = sums_of_blocks(blocks, batch, dtype)[1]
    return _TRANSPOSED_SUM * (start_seconds((b, c), d, size, whole) + moved + summed + arranged)


def shared_seconds(pattern: Pattern, batch: int, dtype: str) -> float:
    """Return the seconds that both gradients save by reading the same transposed rows of the result's gradient."""
    (a, b, c, d), size = pattern, BYTES[dtype]
    whole = all(extent * d * size % ACCESS == 0 for extent in (b, c))
    return pass_seconds(b, d, batch * a, size, True, whole) + start_seconds((b, c), d, size, whole) / 2


def sums_of_blocks(blocks: Pattern, batch: int, dtype: str) -> tuple[str, float]:
    """Return the way of sums of blocks whose rows are whole vectors, our kernel's or batched products, and its time."""
    kernel = row_sum_choice(blocks, batch, dtype, ACCESS, ACCESS, 3, _MEASURED)[0]
    return min(("kernel", kernel), ("bmm", by_vendor(blocks, batch, dtype, False)["bmm"]), key=lambda one: one[1])


def _passes_seconds(problem: Problem) -> float:
    """Return the predicted seconds of the passes around a product over transposed rows."""
    a, b, c, d = problem.pattern
    size, rows = BYTES[problem.dtype], problem.batch * a
    aligned = problem.x_bytes == ACCESS == problem.y_run * size
    whole = aligned and all(in_squares(extent, d, size) for extent in (b, c))
    moved = pass_seconds(c, d, rows, size, True, whole) + pass_seconds(b, d, rows, size, False, whole)
    return start_seconds((b, c), d, size, whole) + moved


def least_transposed_seconds(problem: Problem) -> float:
    """Return what :func:`transposed_seconds` exceeds, from its passes alone."""
    return math.inf if inner(problem) is None else _KERNEL_BETWEEN_WHOLE_PASSES * _passes_seconds(problem)


@lru_cache(maxsize=4096)
def transposed_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """Return the predicted seconds of a product over transposed rows; infinite if there is none."""
    own = inner(problem)
    if own is None:
        return math.inf
    a, _, _, d = problem.pattern
    kernel = expected_seconds(own, limits, packed)
    blocks, passes = (a * d, *own.pattern[1:3], 1), (problem.bias, problem.activation != "")
    chosen, multiplied = quickest(blocks, problem.batch, problem.dtype, "cuda", False, kernel, packed, *passes)
    taken = _passes_seconds(problem) + multiplied
    if chosen == "bmm":
        return taken * (_BETWEEN_SLOW_PASSES if d < _SLOW_PASSES else _BETWEEN_PASSES)
    if problem.dtype != "f32":
        return taken
    if d < _SLOW_PASSES:
        return taken * _KERNEL_BETWEEN_SLOW_PASSES
    return taken * (_KERNEL_BETWEEN_WHOLE_PASSES if d >= _WHOLE_PASSES else 1.0)


@lru_cache(maxsize=4096)
def quickest(
    pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False, kernel: float | None = None,
    packed: bool = False, bias: bool = False, activation: bool = False,
) -> tuple[str, float]:  # fmt: skip
    """Return the algorithm that should be quickest, and its time; ``kernel`` is what is known better of our kernel.

    On a GPU what follows takes a pass of its own but in our kernel, where it costs nothing, and a bias in dense layers.
    """
    times = seconds(pattern, batch, dtype, kind, last, packed)
    if kernel is not None:
        times["kernel"] = kernel
    if kind == "cuda":
        own, (a, b, _, d) = _rates(dtype), pattern
        once = 1.5 * own.overhead + 2.0 * BYTES[dtype] * batch * a * b * d / own.bytes
        times |= {
            name: times[name] + passes * once
            for name, passes in (("bmm", bias + activation), ("dense", int(activation)))
            if name in times
        }
    return _quickest(times, kind)


def _quickest(times: Mapping[str, float], kind: str) -> tuple[str, float]:
    """Return the least time and its algorithm; on a CPU our kernel where others are not surely quicker."""
    best, taken = min(times.items(), key=lambda item: item[1])
    if kind == "cpu" and "kernel" in times and taken + cpu_cost.UNBOUND > cpu_cost.SURE * times["kernel"]:
        return "kernel", times["kernel"]
    return best, taken


def rearranging_seconds(pattern: Pattern, dtype: str, transposed: bool) -> float:
    """Return the seconds in which a GPU rearranges weights before a product; ``transposed``: of a transposed matrix.

    Fitted to 130 random patterns on one H100 and 200 on one H200, the products with them within 25 % (root mean square;
    decisions 0032 and 0037): by the bytes of blocks that are padded to sixteens, less for long runs of k and for what
    is padding, more for what interleaves; or by neighbours, where that is less.
    """
    a, b, c, d = pattern
    size, wide = BYTES[dtype], a * d * -(-b // 16) * -(-c // 16) * 256
    by_l, by_k, by_padding = _REARRANGED_POWERS
    each = _REARRANGED[size] * min(d, 32) ** by_l * min(c, 256) ** by_k * (math.prod(pattern) / wide) ** by_padding
    apart = _REARRANGING + size * wide * each * (_TRANSPOSED_WEIGHTS[size] if transposed else 1.0)
    return min(apart, neighbours_seconds(pattern, dtype, _MEASURED))


def padded_blocks_seconds(pattern: Pattern, dtype: str, transposed: bool) -> float:
    """Return the seconds to rearrange weights as blocks of whole vectors, for a product over transposed rows."""
    (a, b, c, d), size, rates = pattern, BYTES[dtype], _rates(dtype)
    high, wide = padded(b, size), padded(c, size)
    rearranged = rearranging_seconds((a * d, high, wide, 1), dtype, transposed)
    if (high, wide) == (b, c):
        return rearranged
    if not arranges(pattern, size):  # zeros, and torch's copy
        return rearranged + 2 * (rates.overhead + size * math.prod(pattern) / rates.permuted)
    outer, along = (c, b) if transposed else (b, c)
    return rearranged + rates.overhead + pass_seconds(along, d, a * outer, size, True, along * d * size % ACCESS == 0)


def joining_seconds(patterns: Sequence[Pattern], dtype: str) -> float:
    """Return the seconds of a training step on a GPU for the matrix of a chain and the gradients of its factors."""
    (a, _, c, d), *others = patterns
    columns = a * c * d
    shapes = [(e * f * h, e * g * h) for e, f, g, h in others]
    return sum(_JOINING + 3 * dense_seconds(shape, columns, dtype, "cuda") for shape in shapes)


@lru_cache(maxsize=4096)
def quickest_gradient(pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False) -> tuple[str, float]:
    """Return the algorithm of the gradient of the weights with the least predicted time, and its time."""
    return _quickest(gradient_seconds(pattern, batch, dtype, kind, last), kind)
