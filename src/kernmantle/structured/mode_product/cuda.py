"""Kronecker-sparse products on NVIDIA GPUs: weights are rearranged, then one kernel runs, on torch's current stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ...backends.cuda.device import gpu
from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from ...runtime import dispatch
from ...runtime.cache import current_cache
from ...runtime.kernel_store import compile_only
from ...torch_ops.call_key import program_key
from ...torch_ops.cuda import Entry, index_of, limits, load_kernel, load_kernels
from ...torch_ops.dtypes import NAMES
from ...torch_ops.tuned_tiles import session
from . import cuda_emit
from .bound_products import DirectProduct, WideProduct, bind_ready
from .cost import (
    TRANSPOSED,
    gradient_seconds,
    least_transposed_seconds,
    padded_blocks_seconds,
    quickest,
    quickest_gradient,
    rearranging_seconds,
    shared_seconds,
    transposed_seconds,
)
from .fma_plan import THREADS as FMA_THREADS
from .fma_plan import FmaPlan, OutputsPlan, fma_choice
from .narrow_plan import NarrowPlan, narrow_plan, narrow_seconds
from .pack import PackedWeights
from .plan import MOST_EXTENT, KronSparsePlan, Problem, contiguous
from .rearrange import bind_vectors, features_together
from .stream_mma_plan import StreamMmaPlan, stream_choice
from .stream_plan import StreamPlan, lies_along, streams
from .tile_cost import sharing_of
from .tiles import as_multiplied, expected_seconds, plan, tiled_seconds
from .transpose_plan import ACCESS, padded
from .tuned import KERNEL, candidate_algorithms, find_tuned, tile_of, tuned

Maybe = torch.Tensor | None
PREPARES, PREPARES_NEIGHBOURS = (
    Entry(name, cuda_emit.PREPARE_THREADS) for name in (cuda_emit.PREPARE, cuda_emit.PREPARE_NEIGHBOURS)
)
_ALIGNED = 256  # bytes, as of what is allocated
_COPYING, _COPIED = 4e-6, 8e11  # seconds to begin with torch's copy of transposed weights, bytes a second (H200)


def _access(tensor: torch.Tensor, first: bool) -> int:
    """Return the bytes of the largest access that pointer and strides allow, at most 16."""
    others = [tensor.stride(0) if tensor.shape[0] > 1 else 0, tensor.stride(1 if first else 2)]
    return math.gcd(16, tensor.data_ptr(), *(stride * tensor.element_size() for stride in others))


def problem_of(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> Problem | None:
    """Return the problem of a product; None if neither features nor batch of x or of the result are contiguous.

    None too for extents that kernels do not count.
    """
    a, b, c, d = weight.shape[1:]
    if max(a, b, c, d) > MOST_EXTENT:
        return None
    groups, batch, _ = x.shape
    first = [tensor.stride(2) == 1 or tensor.shape[2] == 1 for tensor in (x, out)]
    last = [tensor.stride(1) == 1 or batch == 1 for tensor in (x, out)]
    if not all(one or other for one, other in zip(first, last, strict=True)):
        return None
    size = x.element_size()
    runs = [size * block * d for block in (c, b)]
    access = [
        math.gcd(_access(tensor, features), run if features else 0)
        for tensor, features, run in zip((x, out), first, runs, strict=True)
    ]
    return Problem(
        (a, b, c, d), groups, batch, NAMES[x.dtype], first[0], first[1], access[0], access[1] // size,
        1 if precision == "tf32" else 3, bias is not None, activation,
    )  # fmt: skip


def _taken(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> Problem | None:
    """Return the problem for the kernels of float32 or halves; None if they do not take it."""
    problem = problem_of(x, weight, bias, activation, precision, out)
    if problem is None or (precision == "ieee" and x.dtype != torch.float64):
        return None
    return None if expected_seconds(problem, limits(index_of(x.device))) == math.inf else problem


def choose_algorithm(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor, packed: bool
) -> str:
    """The way that was measured to be quickest or else should be, the weights rearranged before if ``packed``."""
    arguments = (x, weight, bias, activation, precision, out)
    key = program_key(
        ("kron_sparse algorithm", packed), (activation, precision, current_cache()), (*arguments[:3], out)
    )
    found = dispatch.bound(key, lambda: Bound(None, _choose_algorithm(*arguments, packed)))  # pyright: ignore
    return found.route


def is_transposed(weight: torch.Tensor) -> bool:
    """Return whether weights are those of a transposed matrix."""
    return weight.stride(2) < weight.stride(3)


def kernel_seconds(problem: Problem, weight: torch.Tensor, own: DeviceLimits, alone: bool) -> tuple[str, float]:
    """Return the kernel that should be quickest, "narrow", "tile", "fma" or "stream", and its predicted seconds.

    ``alone``: the weights, which tiles need rearranged, are rearranged for this product alone.
    """
    arranged = rearranging_seconds(problem.pattern, problem.dtype, is_transposed(weight)) if alone else 0.0
    found = [("tile", tiled_seconds(problem, own, not alone) + arranged), ("narrow", narrow_seconds(problem, own))]
    fma = fma_choice(problem, own)
    if fma is not None:
        found.append(("fma", fma[0]))
    if streams(problem, weight.expand(problem.groups, *weight.shape[1:]).stride()):
        found.append(("stream", streamed_seconds(problem, weight, own)))
    return min(found, key=lambda one: one[1])


def streamed_seconds(problem: Problem, weight: torch.Tensor, own: DeviceLimits) -> float:
    """Return the predicted seconds of a product that reads the weights in their own layout."""
    strides = weight.expand(problem.groups, *weight.shape[1:]).stride()
    found = stream_choice(problem, lies_along(problem.pattern, strides), own)
    return math.inf if found is None else found[0]


def _choose_algorithm(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor, packed: bool
) -> str:
    problem, own = _taken(x, weight, bias, activation, precision, out), limits(index_of(x.device))
    kernel, transposed = None, math.inf
    if problem is not None:
        found = find_tuned(problem, packed, own, gpu(index_of(x.device)).name)
        if found is not None:
            return found
        made = 0.0 if packed else padded_blocks_seconds(problem.pattern, problem.dtype, is_transposed(weight))
        kernel = kernel_seconds(problem, weight, own, not packed)[1]
        transposed = transposed_seconds(problem, own, packed) + made
    last = x.stride(2) != 1 and x.shape[2] > 1
    pattern, after = tuple(weight.shape[1:]), (bias is not None, activation != "")
    each = None if kernel is None else kernel / x.shape[0]
    best, taken = quickest(pattern, x.shape[1], NAMES[x.dtype], "cuda", last, each, packed, *after)
    if not packed and is_transposed(weight):
        best, taken = _with_copy(best, taken, each, pattern, NAMES[x.dtype], last)
    return best if taken <= transposed else TRANSPOSED


def _with_copy(
    best: str, taken: float, kernel: float | None, pattern: tuple[int, ...], dtype: str, last: bool
) -> tuple[str, float]:
    """Return algorithm and seconds with the copy that batched products take of transposed weights with odd rows."""
    _, b, c, d = pattern
    odd = BYTES[dtype] == 2 and (b * 2 % ACCESS or c * 2 % ACCESS)
    if best != "bmm" or kernel is None or last or d > 1 or not odd:
        return best, taken
    copied = taken + _COPYING + 2 * math.prod(pattern) * 2 / _COPIED
    return ("kernel", kernel) if kernel < copied else (best, copied)


def expected(
    pattern: tuple[int, int, int, int], batch: int, dtype: str, first: bool, device: torch.device,
    transposed: bool | None = None,
) -> float | None:  # fmt: skip
    """Return the predicted seconds of the kernels for contiguous arrays.

    The weights are rearranged before, or with it where it is said whether they are those of a transposed matrix.
    """
    return _expected(contiguous(pattern, batch, dtype, first), limits(index_of(device)), transposed)


@lru_cache(maxsize=4096)
def _expected(problem: Problem, own: DeviceLimits, transposed: bool | None) -> float | None:
    packed, made = transposed is None, 0.0
    whole = expected_seconds(problem, own, packed)
    if transposed is not None:
        whole += rearranging_seconds(problem.pattern, problem.dtype, transposed)
        made = padded_blocks_seconds(problem.pattern, problem.dtype, transposed)
    if least_transposed_seconds(problem) + made < whole:
        whole = min(whole, transposed_seconds(problem, own, packed) + made)
    if whole == math.inf:
        return None
    fma = fma_choice(problem, own)
    streamed = stream_choice(problem, not transposed, own)
    others = (each[0] for each in (streamed, fma) if each is not None)
    return min(whole, narrow_seconds(problem, own), *others)


def gradients_seconds(
    pattern: tuple[int, int, int, int], batch: int, dtype: str, first: bool, device: torch.device
) -> tuple[float, bool]:
    """Return the predicted seconds of the gradients of x and of weights, and whether they share transposed rows."""
    a, b, c, d = pattern
    back, own = (a, c, b, d), limits(index_of(device))
    kernel = expected(back, batch, dtype, first, device, True)
    best, taken = quickest(back, batch, dtype, "cuda", not first, kernel)
    apart = _with_copy(best, taken, kernel, back, dtype, not first)[1]
    apart += quickest_gradient(pattern, batch, dtype, "cuda", not first)[1]
    summed = gradient_seconds(pattern, batch, dtype, "cuda", not first).get(TRANSPOSED, math.inf)
    if summed == math.inf:
        return apart, False
    problem, others = contiguous(back, batch, dtype, first), summed + padded_blocks_seconds(back, dtype, True)
    others -= shared_seconds(pattern, batch, dtype)
    if least_transposed_seconds(problem) + others >= apart:
        return apart, False
    together = transposed_seconds(problem, own) + others
    return (together, True) if together < apart else (apart, False)


def tune(
    call: Callable[[str], object], default: str, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str,
    precision: str, out: torch.Tensor, packed: bool,
) -> str:  # fmt: skip
    """While tuning, time ``call`` of every way and keep the quickest; while compile_only, only note their kernels."""
    found = session()
    problem = None if found is None else _taken(x, weight, bias, activation, precision, out)
    if problem is None or found is None:
        return default
    index = index_of(x.device)
    calls = {
        name: partial(call, name)
        for name in {default: 0, **dict.fromkeys(candidate_algorithms(problem, limits(index), packed))}
    }
    if compile_only():
        for each in calls.values():
            each()
        return default
    found.append(tuned(calls, default, problem, packed, gpu(index).name))
    dispatch.PLANS.clear()
    return found[-1].best


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor,
    packed: PackedWeights | None = None, choose_algorithm: str = KERNEL,
) -> str | None:  # fmt: skip
    """Write the product to ``out``, in a tile if asked; returns what ran, None if the kernels do not take it."""
    found = bound(x, weight, bias, activation, precision, out, packed is None, choose_algorithm)
    if found is None:
        return None
    if found.run is not None:
        found.run(x, weight, None if bias is None else bias.contiguous(), out, packed)
    return found.route


def bound(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor, alone: bool,
    choose_algorithm: str,
) -> Bound | None:  # fmt: skip
    """Return what runs products that look like this one; ``alone``: the weights are rearranged for it alone."""
    key = program_key(("kron_sparse kernel", choose_algorithm, alone), (activation, precision), (x, weight, bias, out))

    def make() -> Bound:
        problem = problem_of(x, weight, bias, activation, precision, out)
        found = None if problem is None else _bound(problem, x, weight, bias, out, precision, alone, choose_algorithm)
        return Bound(None, "") if found is None else found

    found = dispatch.bound(key, make)  # pyright: ignore[reportArgumentType]
    return found if found.route else None


class Bound(NamedTuple):
    """Bound kernel of products with one key, from x, weights, bias, result and packed weights; nothing if only noted.

    ``route`` is "" where the kernels do not take them.
    """

    run: Callable[[torch.Tensor, torch.Tensor, Maybe, torch.Tensor, PackedWeights | None], None] | None
    route: str


def _bound(
    problem: Problem, x: torch.Tensor, weight: torch.Tensor, bias: Maybe, out: torch.Tensor, precision: str,
    alone: bool, choose_algorithm: str,
) -> Bound | None:  # fmt: skip
    """Return everything about a product but its addresses; ``alone``: the weights are rearranged for it alone."""
    index = index_of(x.device)
    steps = 0 if bias is None or bias.shape[0] == 1 else problem.pattern[0] * problem.pattern[1] * problem.pattern[3]
    weight_strides = weight.expand(x.shape[0], *weight.shape[1:]).stride()
    strides = (*x.stride(), *out.stride(), *weight_strides, steps)
    tile, own, is_exact = tile_of(choose_algorithm), limits(index), precision == "ieee" or x.dtype == torch.float64
    quickest_kernel = "narrow" if is_exact else "tile"
    if tile is None and not is_exact:
        quickest_kernel, _ = kernel_seconds(problem, weight, own, alone)
    narrow = narrow_plan(problem, own) if quickest_kernel == "narrow" else None
    if narrow is not None:
        return Bound(_without_tiles(narrow, problem, index, strides), str(narrow))
    if quickest_kernel == "stream" and spans(x):
        access = math.gcd(ACCESS, weight.data_ptr(), weight_strides[0] * weight.element_size())
        streamed = stream_choice(problem, lies_along(problem.pattern, weight_strides), own, access)
        if streamed is not None:
            return Bound(_streamed(streamed[1], problem, index, strides), str(streamed[1]))
    fma = fma_choice(problem, own) if quickest_kernel == "fma" else None
    if fma is not None:
        return Bound(_without_tiles(fma[1], problem, index, strides), str(fma[1]))
    if is_exact:
        return None
    over = problem if tile else as_multiplied(problem, own, not alone)[0]
    chosen = plan(over, own, tile)
    if chosen is None:
        return None
    if over == problem:
        return Bound(_wide(chosen, problem, index, weight_strides, strides, alone), str(chosen))
    strides, copy = (0, 1, padded(problem.batch, BYTES[problem.dtype]), *strides[3:]), bind_vectors(x)
    run = _wide(chosen, over, index, weight_strides, strides, alone)
    return Bound(None if run is None else partial(_over_copy, run, copy), f"{chosen}, x copied to whole vectors")


def _wide(
    chosen: KronSparsePlan, problem: Problem, index: int, weight_strides: tuple[int, ...], strides: tuple[int, ...],
    alone: bool,
) -> WideProduct | None:  # fmt: skip
    own = limits(index)
    shared, slots = chosen.shared(problem), chosen.slots(problem, own)
    main = Entry(cuda_emit.ENTRY, chosen.threads, shared, waits=alone)
    sharing = sharing_of(chosen, problem, weight_strides[1], weight_strides[4], own)
    prepares = PREPARES_NEIGHBOURS if sharing else PREPARES
    loaded = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit(chosen, sharing > 0), prepares, main)
    if loaded is None:
        return None
    prepare, kernel = loaded
    # In one piece: the image of the weights, and behind it what undoes the scale of each column.
    image_bytes = -(-chosen.image_bytes(problem) // _ALIGNED) * _ALIGNED
    arguments = (problem.groups, *problem.pattern, *weight_strides, *([sharing] if sharing else []))
    ready_prepare = bind_ready(prepare, 3, arguments, index, chosen.preparing_blocks(problem, sharing))
    rest = problem.batch, *problem.pattern, chosen.tiles(problem), slots, *strides
    ready = bind_ready(kernel, 6, rest, index, chosen.groups(problem) * slots)
    return WideProduct(ready_prepare, ready, image_bytes, 4 * chosen.scales(problem), chosen.arrangement(problem))


def _over_copy(
    run: Callable[..., None], copy: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *others: Any
) -> None:
    run(copy(x), *others)


def spans(tensor: torch.Tensor) -> bool:
    """Return whether steps within a group of an array, or of its copy, are 32-bit numbers."""
    steps = sum((size - 1) * abs(step) for size, step in zip(tensor.shape[1:], tensor.stride()[1:], strict=True))
    return max(steps, tensor.shape[1] * tensor.shape[2]) < 2**31


def _streamed(
    chosen: StreamPlan | StreamMmaPlan, problem: Problem, index: int, strides: tuple[int, ...]
) -> Callable[..., None] | None:  # fmt: skip
    copied = not problem.x_first
    if copied:
        a, _, c, d = problem.pattern
        pitch = padded(a * c * d, BYTES[problem.dtype])
        strides = (problem.batch * pitch, pitch, 1, *strides[3:])
    if isinstance(chosen, StreamMmaPlan):
        entry, emit = Entry(cuda_emit.ENTRY, chosen.threads, chosen.shared, waits=True), cuda_emit.emit_stream_mma
    else:
        chosen = replace(chosen, x_row=strides[1] if problem.batch > 1 else chosen.x_row)
        entry, emit = Entry(cuda_emit.ENTRY, chosen.threads), cuda_emit.emit_stream
    kernel = load_kernel(chosen, emit, entry)
    if kernel is None:
        return None
    rest = problem.batch, *problem.pattern, 0, 0, *strides
    found = DirectProduct(bind_ready(kernel, 6, rest, index, chosen.blocks(problem)))
    return partial(_over_copy, found, features_together) if copied else found


def _without_tiles(
    chosen: NarrowPlan | FmaPlan | OutputsPlan, problem: Problem, index: int, strides: tuple[int, ...]
) -> Callable[..., None] | None:  # fmt: skip
    """Return the launch of a kernel that reads x and weights where they lie."""
    if isinstance(chosen, NarrowPlan):
        threads, emit = chosen.threads, cuda_emit.emit_narrow
    else:
        threads, emit = FMA_THREADS, cuda_emit.emit_fma
    kernel = load_kernel(chosen, emit, Entry(cuda_emit.ENTRY, threads))
    if kernel is None:
        return None
    blocks, slots = chosen.grid(problem, limits(index))
    rest = problem.batch, *problem.pattern, 0, slots, *strides
    return DirectProduct(bind_ready(kernel, 6, rest, index, blocks))
