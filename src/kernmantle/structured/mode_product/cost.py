"""What each way to a Kronecker-sparse product, and to the gradient of its weights, should take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import CARDS, DeviceLimits
from ...compiler.nest import BYTES
from .cpu_plan import small_tile
from .plan import Problem
from .stream_plan import stream_sum_seconds
from .tiles import expected_seconds
from .transpose_plan import ACCESS, in_squares, inner, padded, pass_seconds, start_seconds
from .vendor_cost import blocks_seconds, matrix_seconds
from .vendor_cost import gradient_seconds as by_vendor
from .weight_gradient_plan import DTYPES as SUMMED
from .weight_gradient_plan import sum_plan, sum_seconds

Pattern = tuple[int, int, int, int]
_JOINING = 2.4e-5  # zeros, their indices and copies, all of a few numbers
# Seconds to begin to rearrange weights, and of a byte of them by the bytes of a number; times that of transposed ones.
_REARRANGING, _REARRANGED, _TRANSPOSED_WEIGHTS = 4e-7, {2: 5.8e-12, 4: 5.6e-12, 8: 5.6e-12}, {2: 1.1, 4: 1.25, 8: 1.25}
_SMALL_BLOCK = 16  # entries of a block that may be gone through one by one
_VECTORS = 32  # rows of a tile of any contraction on a CPU
_SMALL_BATCH = 32  # of x, for which a CPU reads weights as they lie
_L2_BYTES = 2**22  # bytes that a core's second cache holds for the most part
TRANSPOSED = "transposed"  # our kernel over rows that are transposed before and after
_MEASURED = next(card for card in CARDS.values() if card.has(("measured",)))  # of the fits
_TRANSPOSED_SUM = 1.1  # times its model, where that is the least sure of all
_MOST_DENSE = 2**26  # entries of a matrix that is filled with zeros to be multiplied by


@dataclass(frozen=True)
class Rates:
    """A kind of machine in one type: bytes and operations a second, and seconds that any call takes.

    ``dense`` are operations of the vendor's matrix product, ``kernel`` those of our kernel where its blocks are wide,
    ``strided`` is by how much it is slower, at its products and at its bytes, where neighbours in memory belong to
    different blocks, ``strided_from`` that many. ``permuted`` are bytes a second of copies in another order, of weights
    on a GPU.
    """

    bytes: float
    dense: float
    kernel: float
    overhead: float
    strided: tuple[float, float]
    strided_from: int
    permuted: float


_CPU = Rates(1.3e10, 1.4e11, 1.2e11, 2e-5, (1.3, 2.5), 4, 3.4e9)
_CUDA = Rates(4.0e12, 5e13, 1.1e14, 2e-6, (2.3, 2.7), 4, 7e11)
_HALF = Rates(4.0e12, 9e14, 2.5e14, 2e-6, (3.0, 2.9), 4, 5.5e11)
MACHINES: Mapping[str, Mapping[str, Rates]] = {
    "cpu": {
        "f32": _CPU, "f64": Rates(1.3e10, 7e10, 6e10, 2e-5, (1.3, 2.5), 4, 3.4e9),
        "f16": Rates(1.3e10, 1.2e11, 1.2e11, 4e-5, (1.3, 2.5), 4, 3.4e9),
        "bf16": Rates(1.3e10, 4e11, 1.2e11, 4e-5, (1.3, 2.5), 4, 3.4e9),
    },
    "cuda": {
        "f32": _CUDA, "f16": _HALF, "bf16": _HALF,
        "f64": Rates(4.0e12, 5e13, 1.2e13, 2e-6, (1.0, 3.0), 2, 7e11),
    },
}  # fmt: skip


def _rates(kind: str, dtype: str) -> Rates:
    return MACHINES[kind].get(dtype, MACHINES[kind]["f32"])


def dense_seconds(shape: tuple[int, int], batch: int, dtype: str, kind: str, last: bool = False) -> float:
    """Return a dense layer (out_features, in_features)."""
    rows, columns = shape
    if kind == "cpu":
        own = _rates(kind, dtype)
        read = BYTES[dtype] * rows * columns / (3.2e10 if batch <= 4 else 2e10)
        return (
            5e-6 + read + BYTES[dtype] * batch * (rows + columns) / 6e10 + batch * rows * columns / (0.57 * own.dense)
        )
    return matrix_seconds(shape, batch, dtype, last)


def _together(memory: float, work: float) -> float:
    """Two that overlap for the most part."""
    return max(memory, work) + min(memory, work) / 2


def seconds(
    pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False, packed: bool = False
) -> dict[str, float]:
    """Time of each algorithm worth choosing, where the batch lies together in memory (``last``) or the features.

    ``packed``: what is made of the weights before they are multiplied by is there already.
    """
    a, b, c, d = pattern
    dense = dense_seconds((a * b * d, a * c * d), batch, dtype, kind, last)
    if a * d == 1:
        return {"dense": dense}
    if kind == "cpu":
        found = _seconds_on_cpu(pattern, batch, dtype, last, packed)
        return found | {"dense": dense} if packed and a * b * d * a * c * d <= _MOST_DENSE else found
    own, size = _rates(kind, dtype), BYTES[dtype]
    ends, weights = size * batch * a * d * (b + c), size * a * b * c * d
    work = 2.0 * batch * a * b * c * d
    products, bytes_ = (1.0, 1.0) if last or d < own.strided_from else own.strided
    moved = (ends * bytes_ + weights) / own.bytes
    found = {"kernel": 3 * own.overhead + _together(moved, work * products / own.kernel)}
    entries = a * b * d * a * c * d
    if entries <= _MOST_DENSE:
        found["dense"] = dense + (0 if packed else 2 * own.overhead + 3 * size * entries / own.bytes)
    arranged = 0.0 if packed or d == 1 else own.overhead + weights / own.permuted
    found["bmm"] = arranged + blocks_seconds(pattern, batch, dtype, last)
    return found


def _on_cpu(blocks: int, rows: int, depth: int, lanes: int, size: int) -> float:
    """Return the products of a kernel's tiles on one core, and what it takes to begin one."""
    own = 64 // size
    vectors = -(-lanes // own)
    wide = min(own, 1 << (lanes - 1).bit_length()) if vectors == 1 else own
    work = 2.0 * blocks * rows * depth * vectors * wide
    return work * (6.3e-12 if size == 4 else 1.3e-11) + 2.2e-8 * blocks * -(-rows // 8) * -(-vectors // 3)


def _cache_traffic(pattern: Pattern, batch: int, size: int) -> int:
    """Return the cache lines of 64 bytes of x and of the result that the blocks read and write."""
    a, b, c, d = pattern
    group = min(d & -d, 64 // size)
    return batch * (a * d // group) * (-(-c * group * size // 64) + -(-b * group * size // 64))


def _kernel_on_cpu(pattern: Pattern, batch: int, size: int, last: bool, packed: bool) -> float:
    """Fitted to 354 products of float32 and 354 of float64 in each layout, and to 48 of small blocks in vectors."""
    a, b, c, d = pattern
    ends, weights = size * batch * a * d * (b + c), size * a * b * c * d
    own = small_tile(
        "f32" if size == 4 else "f64", 16 * size, pattern, batch if last else 1, (b * c, c, 1), False, last
    )
    if own is not None:
        return 5.5e-6 + 2.2e-11 * (ends + weights) + 5e-11 * max(0, ends - _L2_BYTES)
    far = 8e-11 * max(0, ends - _L2_BYTES) + 3e-11 * max(0, weights - _L2_BYTES)
    if last:
        apart = 1.5e-11 * weights * min(d, 16) if d > 1 else 0.0
        read = (3.5e-11 if batch * d * size % 2048 == 0 else 2e-11) * ends
        return 7e-6 + _on_cpu(a * d, b, c, batch, size) + read + far / 2 + apart
    group = min(d & -d, 64 // size)
    packing = 0.0 if packed or batch <= _SMALL_BATCH else 2.1e-10 * weights / size / group
    multiplied = _on_cpu(a * d // group, batch, c, b * group, size)
    return 5.5e-6 + multiplied + 1.5e-9 * _cache_traffic(pattern, batch, size) + far + 8e-12 * weights + packing


def _half_on_cpu(pattern: Pattern, batch: int, last: bool) -> float:
    """Return the kernel of any contraction, in float32."""
    a, b, c, d = pattern
    own, x, y, weights = _rates("cpu", "f16"), 2 * batch * a * c * d, 2 * batch * a * b * d, 2 * a * b * c * d
    scattered = weights * (1 + d / 16 if weights > 2**18 else 1)
    if not last and (b < 16 or d >= 16):
        products, bytes_ = (5.0, 7.0) if b < 16 else (3.0, 4.0)
    elif last or d == 1:
        products, bytes_ = 1.0, 1.0
    else:
        products, bytes_ = own.strided if d >= own.strided_from else (1.25, 1.5)
        products *= -(-b // _VECTORS) * _VECTORS / b
    multiplied = _together((x + y) * bytes_ / own.bytes, 2.0 * batch * a * b * c * d * products / own.kernel)
    return 1.7e-5 + (2e-8 if d == 1 else 5e-8) * a * d * c + scattered / 9.4e9 + multiplied


def _seconds_on_cpu(pattern: Pattern, batch: int, dtype: str, last: bool, packed: bool) -> dict[str, float]:
    """Making the dense matrix anew was nowhere the quickest."""
    a, b, c, d = pattern
    own, size = _rates("cpu", dtype), BYTES[dtype]
    x, y, weights = size * batch * a * c * d, size * batch * a * b * d, size * a * b * c * d
    work = 2.0 * batch * a * b * c * d
    narrow = not last and b < 16
    found: dict[str, float] = {}
    if not last and size > 2 and b * c <= _SMALL_BLOCK:
        found["entries"] = 4e-6 + 8e-6 * b * c + batch * weights / size * _elementwise_seconds(d, x + y)
    found["kernel"] = (
        _kernel_on_cpu(pattern, batch, size, last, packed) if size > 2 else _half_on_cpu(pattern, batch, last)
    )
    started = own.overhead + 3e-6 + 2.8e-7 * a * d * min(1.0, batch / 64)
    if d == 1:
        copied = 0 if last or a == 1 else y / (6e9 if x + y < 2**23 else 3e9)
        if narrow:
            copied = (x + y) / (4e9 if x + y < 2**22 else 1.6e9)
        found["bmm"] = started - 6e-6 + copied + work / own.dense
        return found
    permuted = 1.1e9 if min(b, c) < 8 else 2.8e9 if d >= 16 or min(b, c) < 16 else own.permuted
    copied = (x + y if a > 1 else y) / (7e9 if min(b, c) >= 8 else 3e9) if last else (x + y) / permuted
    if not last and x + y > 2**23:
        copied += (x + y) / 8e9  # pages that are new in every call
    found["bmm"] = started + a * b * c * d * (9e-10 + 7e-11 * min(d, 32)) + copied + work / own.dense
    return found


def gradient_seconds(pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False) -> dict[str, float]:
    """Return the same of the sum over the batch that is the gradient of the weights."""
    a, b, c, d = pattern
    if kind == "cpu":
        return _gradient_on_cpu(pattern, batch, dtype, last)
    found = by_vendor(pattern, batch, dtype, last)
    if a * b * d * a * c * d > _MOST_DENSE:
        del found["dense"]
    if dtype in SUMMED:
        summed = sum_plan(_MEASURED.arch, d, dtype, not last, not last)
        streamed = stream_sum_seconds(pattern, batch, dtype, _MEASURED, last)
        found["kernel"] = min(sum_seconds(summed, pattern, batch, _MEASURED), streamed)
    else:
        found["kernel"] = 8e-5 + (5.0 if not last and d >= 4 else 1.0) * 2.0 * batch * a * b * c * d / 3e13
    if dtype in SUMMED and not last and d > 1:
        found[TRANSPOSED] = _transposed_sum_seconds(pattern, batch, dtype)
    return found


def _transposed_sum_seconds(pattern: Pattern, batch: int, dtype: str) -> float:
    """Both arrays over transposed rows, sums of their blocks, and these in the order of the weights."""
    (a, b, c, d), size, rates = pattern, BYTES[dtype], _rates("cuda", dtype)
    whole = all(extent * d * size % ACCESS == 0 for extent in (b, c))
    moved = sum(pass_seconds(extent, d, batch * a, size, True, whole) for extent in (b, c))
    blocks, weights = (a * d, padded(b, size), padded(c, size), 1), size * a * b * c * d
    arranged = rates.overhead + weights / rates.permuted
    summed = block_sum_seconds(blocks, batch, dtype)[1]
    return _TRANSPOSED_SUM * (start_seconds((b, c), d, size, whole) + moved + summed + arranged)


def block_sum_seconds(blocks: Pattern, batch: int, dtype: str) -> tuple[str, float]:
    """Return the way of sums of blocks whose rows are whole vectors, our kernel's or batched products, and its time."""
    kernel = sum_seconds(sum_plan(_MEASURED.arch, 1, dtype, True, True), blocks, batch, _MEASURED)
    return min(("kernel", kernel), ("bmm", by_vendor(blocks, batch, dtype, False)["bmm"]), key=lambda one: one[1])


@lru_cache(maxsize=4096)
def transposed_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """Return what a product over transposed rows should take, infinite for what is not transposed."""
    own = inner(problem)
    if own is None:
        return math.inf
    a, b, c, d = problem.pattern
    size, rows = BYTES[problem.dtype], problem.batch * a
    aligned = problem.x_bytes == ACCESS == problem.y_run * size
    whole = aligned and all(in_squares(extent, d, size) for extent in (b, c))
    moved = pass_seconds(c, d, rows, size, True, whole) + pass_seconds(b, d, rows, size, False, whole)
    kernel = expected_seconds(own, limits, packed)
    blocks, passes = (a * d, *own.pattern[1:3], 1), (problem.bias, problem.activation != "")
    _, multiplied = quickest(blocks, problem.batch, problem.dtype, "cuda", False, kernel, packed, *passes)
    return start_seconds((b, c), d, size, whole) + moved + multiplied


def _elementwise_seconds(d: int, ends: float) -> float:
    """Return the seconds of a product and a sum in elementwise operations of torch on a CPU."""
    return (7e-10 if d == 1 else 1.1e-9 if d < 16 else 3.5e-10) + (0.0 if ends < 2**21 else 4e-10)


def _sum_on_cpu(pattern: Pattern, batch: int, size: int) -> float:
    """Our kernel with the features together, fitted to 177 sums of float32 and 177 of float64."""
    a, b, c, d = pattern
    group = min(d & -d, 64 // size)
    blocks = a * d // group
    pieces = 2.2e-8 * blocks * -(-b // 8) * (batch // 128)
    sums = 1.25 * _on_cpu(blocks, b, batch, c * group, size)
    return 6e-6 + sums + pieces + 5e-9 * _cache_traffic(pattern, batch, size) + 3e-11 * size * a * b * c * d


def _gradient_on_cpu(pattern: Pattern, batch: int, dtype: str, last: bool) -> dict[str, float]:
    """Fitted to 216 sums on one core; halves are summed in float32 by the kernel alone."""
    a, b, c, d = pattern
    own, size = _rates("cpu", dtype), BYTES[dtype]
    ends, weights = size * batch * a * d * (b + c), a * b * c * d
    work = 2.0 * batch * weights
    if a * d == 1:
        return {"bmm": 5e-6 + dense_seconds((b, c), batch, dtype, "cpu")}
    slower = 1.0 if min(b, c) >= 16 else 2.0 if last else 3.0 if ends < 2**22 else 12.0
    memory, products = (1e10, 1.15) if last else (7e9, 0.9)
    scattered = weights * (4.5e-10 + 6.5e-11 * min(d, 16))
    found = {"kernel": slower * (1.2e-5 + scattered + ends / memory + work / (products * own.kernel))}
    if size > 2 and not last:
        found = {"kernel": _sum_on_cpu(pattern, batch, size)}
    if size == 2:
        return found
    if not last and b * c <= _SMALL_BLOCK:
        found["entries"] = 4e-6 + 1.6e-5 * b * c + 2 * batch * weights * _elementwise_seconds(d, ends)
    if d == 1:
        rate = 1.2e10 if last or min(b, c) >= 16 else 3.3e9 if min(b, c) < 4 else 1e10
        rate /= 1 if rate > 1e10 or ends < 2**22 else 3
        found["bmm"] = 1e-5 + 4e-10 * weights + ends / rate + work / (1.1 * own.dense)
        return found
    copied = ends / (4e9 if ends < 2**20 else 2.2e9) if not last else ends / 3e9 if a > 1 else ends / 2e10
    if slower == 12.0:
        copied = ends / (6e8 if min(b, c) < 8 else 8e8)
    found["bmm"] = 1.8e-5 + 8e-10 * weights + copied + work / (1.1 * own.dense)
    shape = a * b * d, a * c * d
    if shape[0] * shape[1] <= _MOST_DENSE:
        found["dense"] = 1e-5 + 8e-10 * weights + dense_seconds(shape, batch, dtype, "cpu")
    return found


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
        own, (a, b, _, d) = _rates(kind, dtype), pattern
        once = 1.5 * own.overhead + 2.0 * BYTES[dtype] * batch * a * b * d / own.bytes
        times |= {
            name: times[name] + passes * once
            for name, passes in (("bmm", bias + activation), ("dense", int(activation)))
            if name in times
        }
    return min(times.items(), key=lambda item: item[1])


def rearranging_seconds(pattern: Pattern, dtype: str, transposed: bool) -> float:
    """What a GPU takes to rearrange weights before it multiplies by them; ``transposed``: of a transposed matrix.

    Fitted to 130 random patterns on one H100 and 200 on one H200, the products with them within 25 % (root mean square;
    decisions 0032 and 0037): by the bytes of blocks that are padded to sixteens, less for long runs of k and for what
    is padding, more for what interleaves.
    """
    a, b, c, d = pattern
    size, wide = BYTES[dtype], a * d * -(-b // 16) * -(-c // 16) * 256
    each = _REARRANGED[size] * min(d, 32) ** 0.22 * min(c, 256) ** -0.33 * (math.prod(pattern) / wide) ** 0.44
    return _REARRANGING + size * wide * each * (_TRANSPOSED_WEIGHTS[size] if transposed else 1.0)


def joining_seconds(patterns: Sequence[Pattern], dtype: str) -> float:
    """What a training step on a GPU takes beside the products to make the matrix of a chain and undo its gradient."""
    (a, _, c, d), *others = patterns
    columns = a * c * d
    shapes = [(e * f * h, e * g * h) for e, f, g, h in others]
    return sum(_JOINING + 3 * dense_seconds(shape, columns, dtype, "cuda") for shape in shapes)


@lru_cache(maxsize=4096)
def quickest_gradient(pattern: Pattern, batch: int, dtype: str, kind: str, last: bool = False) -> tuple[str, float]:
    """Return the same of the gradient of the weights."""
    return min(gradient_seconds(pattern, batch, dtype, kind, last).items(), key=lambda item: item[1])
