"""Kronecker products on the GPU: CUDA kernels for fused passes, the vendor's matrix product for large factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from ...backends.cuda import emit
from ...backends.cuda.device import core, gpu
from ...backends.cuda.launch import Kernel
from ...backends.cuda.tiles import DeviceLimits
from ...runtime.cache import Built, Key, current_cache, fingerprint
from ...runtime.kernel_store import compile_only
from ...runtime.launcher import Launcher, nothing
from ...torch_ops.cuda import Entry, index_of, limits, load_kernel, numbered
from ...torch_ops.dtypes import NAMES
from ...torch_ops.tuned_tiles import Tuned, measured, session
from . import cost, cuda_emit, mma_emit, tensor_emit
from .aligned_choice import aligned_plans
from .arrays import Arrays
from .axis_plan import AxisPlan, axis
from .cluster_plan import ClusterPlan
from .cuda_entry import ENTRY, LATER, parameters
from .cuda_plan import KINDS, SAVES, CudaKronPlan, plan
from .fma_plan import FmaLayout, FmaPlan, fma_candidates
from .gradient_cost import PRICED, GpuPrice
from .gradient_steps import GradientSeconds
from .mma_choice import spread
from .mma_plan import DOUBLES, MmaPlan, mma_candidates
from .modes import Mode, text_of
from .run import SAVING, ArrayLayout, Launch, Numbers, Prepare, Start, most_saved
from .tensor_plan import MmaLayout, Tensor, takes_wgmma
from .two_axis_plan import TwoAxisPlan, two_axis_plans
from .wgmma_plan import WgmmaPlan
from .wide_plan import WidePlan, wide


def eager_plan(chosen: CudaKronPlan, another: Callable[[float], CudaKronPlan]) -> CudaKronPlan:
    """Return a plan with that of eager calls: another one where these take the host longer than the device.

    ``another`` returns the plan in which a launch counts so many times as much.
    """

    def seconds(own: CudaKronPlan) -> float:
        host = cost.HOST_CALL + cost.HOST_WHOLE * sum(map(cost.host_seconds, own.passes))
        return max(own.seconds, host)

    if seconds(chosen) <= chosen.seconds:
        return chosen
    other = another(cost.HOST_WHOLE)
    return replace(chosen, eager=other) if seconds(other) < seconds(chosen) else chosen


NAME = "cuda"
# Share of what counts of the host's time in a plan that may be captured; seconds below which the vendor's products are
# taken whatever they take of the host, and how much longer they may take: of 217 short products of unseen seeds
# 4 are behind 0.95 of torch's best way so, 14 with the whole share and up to 9 us (H200, decision 0118).
HOST_SHARE, SMALL_SECONDS, SMALL_SHARE = 0.3, 2e-5, 1.1
# Bytes of x and the result of a pass that may begin while the launch ahead of it still runs, and of one of halves over
# one axis: blocks that begin early take tiles in another order, and have as little first-level cache as the launch
# ahead leaves them, which such loads wait in. Longer ones take up to 12 and 32 % more (H200, decisions 0125 and 0133).
# Passes of gradients have the second limit.
EARLY_BYTES, EARLY_AXIS_BYTES = 256 << 20, 64 << 20
# Plans that are measured when a product is tuned.
TRIED = 10
Plan = FmaPlan | MmaPlan | WgmmaPlan | ClusterPlan | AxisPlan | TwoAxisPlan | WidePlan
Make = Callable[[Plan], Start]
_Ends = Sequence[tuple[ArrayLayout, int]]


def planned(modes: tuple[Mode, ...], arrays: Arrays, options: str) -> tuple[CudaKronPlan, Prepare]:
    """Return the passes for arrays, and what prepares their kernels."""
    index = index_of(arrays.x.device)
    chosen, tensor = planned_for(limits(index), modes, arrays, options)
    return chosen, partial(_prepare, tensor=tensor, index=index)


def planned_for(
    own: DeviceLimits, modes: tuple[Mode, ...], arrays: Arrays, options: str
) -> tuple[CudaKronPlan, Tensor | None]:
    """Return the passes on a device of these limits, and how tensor cores multiply in them."""
    tensor = _tensor(arrays, options.partition(" ")[0], own.arch)
    right, items, stored = arrays.x.shape[-1], math.prod(arrays.batch), NAMES[arrays.x.dtype]
    if tensor is not None and arrays.y is None and takes_wgmma(tensor, stored, right, own.arch):
        tensor = replace(tensor, has_wgmma=True, is_aligned=_is_aligned(arrays))
    fuse, after = options.endswith(" fuse"), _gradients(own, modes, arrays, options)
    may_save = after is not None and arrays.x.is_contiguous() and arrays.out.is_contiguous()
    kinds = (*KINDS, SAVES) if may_save else KINDS
    chosen = plan(modes, right, stored, own, fuse, tensor, items, kinds, HOST_SHARE, after)
    if chosen.seconds < SMALL_SECONDS and after is None:
        vendor = plan(modes, right, stored, own, fuse, tensor, items, ("matmul",))
        chosen = vendor if vendor.seconds <= SMALL_SHARE * chosen.seconds else chosen
    return eager_plan(
        chosen, lambda host: plan(modes, right, stored, own, fuse, tensor, items, kinds, host, after)
    ), tensor


def _gradients(own: DeviceLimits, modes: tuple[Mode, ...], arrays: Arrays, options: str) -> GradientSeconds | None:
    """Return what the gradients take of a product that may save intermediate results; None where no options say so."""
    precision, *words = options.split(" ")
    stored = NAMES[arrays.x.dtype]
    if SAVING not in words or stored not in PRICED:
        return None
    of_x, *wanted = (digit == "1" for digit in words[words.index(SAVING) + 1])
    shapes = tuple([(int(factor.shape[-2]), int(factor.shape[-1])) for factor in arrays.factors])
    items, tensor = math.prod(arrays.batch), tensor_for(stored, precision, own.arch)
    price = GpuPrice(shapes, items, arrays.x.shape[-1], stored, own, tensor, options.endswith(" fuse"))
    text = text_of([f"i{mode.rows}" if mode.factor is None else mode.factor for mode in modes])
    each = items * arrays.x.shape[-1] * arrays.x.element_size()
    return GradientSeconds(text, shapes, tuple(wanted), of_x, price, most_saved(arrays.x.device) / each)


def _tensor(arrays: Arrays, precision: str, arch: str) -> Tensor | None:
    """Return how tensor cores may multiply these arrays, None where they cannot: they read memory in order."""
    stored, columns = NAMES[arrays.x.dtype], arrays.x.shape[-1]
    if any(factor.dim() > 2 and math.prod(factor.shape[:-2]) > 1 for factor in arrays.factors):
        return None
    own = [arrays.x, arrays.out] if arrays.y is None else [arrays.x, arrays.out, arrays.y]
    along = -1 if columns > 1 else -2
    if any(tensor.stride(along) != 1 and tensor.shape[along] > 1 for tensor in own):
        return None
    return tensor_for(stored, precision, arch)


def tensor_for(stored: str, precision: str, arch: str) -> Tensor | None:
    """Return how tensor cores multiply arrays of a type that lie in order, None where they do not."""
    if (stored == "f64" and arch not in DOUBLES) or (stored == "f32" and precision == "ieee"):
        return None
    if stored == "f32":
        return Tensor("f16", 1 if precision == "tf32" else 3)
    return Tensor(stored, 1)


def _is_aligned(arrays: Arrays) -> bool:
    """Return whether arrays are rows of whole vectors of 16 bytes."""
    whole = 16 // arrays.x.element_size()
    return all(
        own.data_ptr() % 16 == 0
        and all(step % whole == 0 for step, size in zip(own.stride()[:-2], own.shape[:-2], strict=True) if size > 1)
        for own in (arrays.x, arrays.out)
    )


_EMITTERS: dict[type, Callable[[Any], str]] = {
    FmaPlan: cuda_emit.emit, MmaPlan: mma_emit.emit, WgmmaPlan: tensor_emit.emit_wgmma, AxisPlan: tensor_emit.emit_axis,
    TwoAxisPlan: tensor_emit.emit_two_axes, ClusterPlan: tensor_emit.emit_clusters, WidePlan: tensor_emit.emit_wide,
}  # fmt: skip


def _kernel(chosen: Plan, is_early: bool) -> Kernel | None:
    """Return the kernel of a pass, which may begin early, None if it was only collected."""
    entry = Entry(ENTRY, chosen.threads, chosen.shared, waits=is_early)
    return load_kernel(chosen, _EMITTERS[type(chosen)], entry)


def _prepare(launch: Launch, tensor: Tensor | None, index: int) -> Start:
    """Return the quickest plan that is known of a pass, ready to start."""
    entries, own, run, right = launch.dims[2][0], limits(index), launch.run, launch.right
    stored = NAMES[launch.arrays.x.dtype]
    shapes = tuple((factor.shape[-2], factor.shape[-1]) for factor in launch.factors)
    plans: tuple[Plan, ...]
    if tensor is None or run.kind == "fma":
        compute = "f64" if stored == "f64" else "f32"
        plans = fma_candidates(run, stored, compute, _fma_layout(launch), entries, right, own)
    elif run.kind == "axis":
        plans = (axis(run, shapes, stored, tensor, _wide_layout(launch), right, own),)
    elif run.kind == "wide":
        plans = (wide(run, shapes, stored, tensor, _wide_layout(launch), right, own),)
    elif run.kind == "two_axis":
        items = entries * launch.dims[0][0] * launch.dims[1][0]
        plans = two_axis_plans(run, items, shapes, stored, tensor, _wide_layout(launch), own)
    else:
        sides, aligned = (entries * launch.dims[0][0] * launch.dims[1][0], right), _aligned(launch)
        found = mma_candidates(run, shapes, stored, tensor, _mma_layout(launch), right, own)
        plans = spread(found, *sides, own.sm_count)
        if aligned is not None:
            plans = (*aligned_plans(run, shapes, stored, tensor, aligned, sides, own), *plans)
    sizes = {"entries": entries * launch.dims[0][0] * launch.dims[1][0], "right": launch.right}
    return starter(plans[:TRIED], sizes, gpu(index).name, partial(_starting, launch, index))


def _starting(launch: Launch, index: int, chosen: Plan) -> Start:
    """Return a plan, ready to start."""
    varies = isinstance(chosen, FmaPlan) and chosen.layout.varies
    is_axis_of_halves = isinstance(chosen, AxisPlan) and chosen.stored != "f32"
    most = EARLY_AXIS_BYTES if is_axis_of_halves else EARLY_BYTES
    kernel = _kernel(chosen, begins_early(launch.arrays.x, launch.arrays.out, most=most))
    if kernel is None:
        return nothing
    integers = _integers(launch, chosen.layout.added, varies, launch.is_later and kernel.overlapped)
    tiles = _tiles(launch, chosen)
    if isinstance(chosen, ClusterPlan) and chosen.cluster > 1:
        blocks = chosen.cluster * min(tiles, clusters(kernel, index, chosen.cluster))
    else:
        groups = 1 if isinstance(chosen, FmaPlan | ClusterPlan | TwoAxisPlan) else chosen.groups
        blocks = min(-(-tiles // groups), resident(kernel, index) * limits(index).sm_count)

    return numbered(index, blocks, lambda numbers: (kernel, (*integers, *numbers)), signed=False)


def begins_early(*arrays: torch.Tensor, most: int = EARLY_AXIS_BYTES) -> bool:
    """Return whether a pass over these arrays may begin while the launch ahead of it runs: of so many bytes at most."""
    return sum(own.numel() * own.element_size() for own in arrays) <= most


def starter(plans: Sequence[Plan], sizes: Mapping[str, int], card: str, make: Make) -> Start:
    """Return the launcher of a pass in its tuned or first tile; while tuning, one that tries all tiles."""
    named = {plan.tile_name: plan for plan in reversed(plans)}
    key, tuned = _key(plans[0], sizes, card), session()
    if tuned is None:
        found = current_cache().find(key)
        return make(plans[0] if found is None else named.get(found.binary.decode(), plans[0]))
    starts = {name: make(plan) for name, plan in named.items()} if compile_only() else {}
    default, chosen = plans[0].tile_name, list[Start]()

    def begin(pointers: Sequence[int], numbers: Numbers) -> None:
        if pointers[1] == pointers[2] and plans[0].layout.added:  # it adds to what it writes: once only
            make(plans[0])(pointers, numbers)
            return
        if not chosen:
            found = {name: _launcher(make(plan), name) for name, plan in named.items()}
            result = Tuned(dict(sizes), default, measured(found, default, pointers, numbers))
            tuned.append(result)
            current_cache().put(key, Built(result.best.encode()))
            chosen.append(make(named[result.best]))
        chosen[0](pointers, numbers)

    return starts[default] if compile_only() else begin


def _launcher(start: Start, name: str) -> Launcher:
    return Launcher(lambda pointers, numbers: start(pointers, (numbers[0], numbers[1])), name)


def _key(plan: Plan, sizes: Mapping[str, int], card: str) -> Key:
    """Return the device, factors, arithmetic and shape class: extents between two powers of 2 are alike."""
    alike = [(size - 1).bit_length() for size in sizes.values()]
    kind = plan.compute if isinstance(plan, FmaPlan) else plan.tensor
    return Key(card, "kron tile", f"{plan.run}, {plan.stored}, {kind}, {alike}", fingerprint(emit.headers()))


def _tiles(launch: Launch, chosen: Plan) -> int:
    """Return the tiles of a pass."""
    return chosen.count(launch.dims[2][0], launch.right) * launch.dims[0][0] * launch.dims[1][0]


def _ends(launch: Launch) -> tuple[int, _Ends, _Ends]:
    """Return the bytes of a number, and the strides and addresses of x, and of the result with what is added to it."""
    arrays = launch.arrays
    into = [(launch.layouts["out"], arrays.out.data_ptr())]
    if arrays.y is not None:
        into.append((launch.layouts["y"], arrays.y.data_ptr()))
    return arrays.x.element_size(), [(launch.layouts["x"], arrays.x.data_ptr())], into


def _mma_layout(launch: Launch) -> MmaLayout:
    """Return the widest copies and stores that every address allows."""
    size, x, into = _ends(launch)
    copy = _common(launch, x, launch.run.modes[-1].columns, 16 // size, size) * size
    store = _common(launch, into, launch.run.modes[-1].rows, min(4, 16 // size), size)
    entries, strides = launch.dims[2]
    is_dense = launch.right == 1 and (entries == 1 or strides[0] == launch.run.columns)
    run = _common(launch, into, math.prod(mode.rows for mode in launch.run.modes[1:]), 16 // size, size)
    return MmaLayout(copy, store, launch.added, is_dense, run)


def _wide_layout(launch: Launch) -> MmaLayout:
    """Return the widest loads and stores that every address allows, and whether entries follow each other."""
    size, copy, store = _vectors(launch)
    entries, strides = launch.dims[2]
    is_dense = entries == 1 or (strides[0] == launch.run.columns and strides[2] == launch.run.rows)
    return MmaLayout(copy * size, store, False, is_dense)


def _aligned(launch: Launch) -> MmaLayout | None:
    """Return the layout of a pass by wgmma, None where arrays are no whole vectors of 16 bytes or one is added."""
    size, copy, store = _vectors(launch)
    return None if launch.added or min(copy, store) * size < 16 else MmaLayout(16, store, False)


def _vectors(launch: Launch) -> tuple[int, int, int]:
    """Return the bytes of a number, and how many numbers of x, and of the result, are loaded and stored at once."""
    size, x, into = _ends(launch)
    mode = launch.run.modes[-1]
    return (
        size, _common(launch, x, mode.columns, 16 // size, size), _common(launch, into, mode.rows, 16 // size, size),
    )  # fmt: skip


def _common(launch: Launch, ends: _Ends, length: int, most: int, size: int) -> int:
    """Neighbours, a power of two up to ``most``, of which every line and address is a multiple."""
    width = most
    for own, pointer in ends:
        steps = [*own.batch, own.run, launch.right] if launch.right > 1 else [*own.batch, length]
        while width > 1 and (any(step % width for step in steps) or pointer % (width * size)):
            width //= 2
    return width


@lru_cache(maxsize=4096)
def resident(kernel: Kernel, index: int) -> int:
    """Return the blocks of a kernel that a multiprocessor holds."""
    with torch.cuda.device(index):
        core().Device(index).set_current()  # torch's backward threads begin without a context
        return max(1, kernel.occupancy(index))


@lru_cache(maxsize=4096)
def clusters(kernel: Kernel, index: int, size: int) -> int:
    """Return the clusters of so many blocks of a kernel that a device runs at once."""
    with torch.cuda.device(index):
        core().Device(index).set_current()
        return max(1, kernel.clusters(index, size))


def _fma_layout(launch: Launch) -> FmaLayout:
    size, x, into = _ends(launch)
    before, after = ([mode.columns for mode in launch.run.modes], [mode.rows for mode in launch.run.modes])
    widths = [_width(launch, x, before, size), _width(launch, into, after, size)]
    return FmaLayout(widths[0], widths[1], launch.added, launch.varies)


def _width(launch: Launch, ends: _Ends, extents: Sequence[int], size: int) -> int:
    """Neighbours that one access may take: along the run, or beside it where something lies there."""
    vector = 16 // (8 if size == 8 else 4)
    padded_extents = [max(mode.rows, mode.columns) for mode in launch.run.modes]
    if launch.right > 1:
        lengths = [launch.right]
    else:
        lengths = [math.prod(extents)] if padded_extents == list(extents) else [extents[-1], padded_extents[-1]]
    for own, pointer in ends:
        unit, *others = (own.right, own.run) if launch.right > 1 else (own.run, 0)
        steps = [*others, *own.batch, *lengths]
        if unit != 1 or any(step % vector for step in steps) or pointer % (vector * size):
            return 1
    return vector


def _integers(launch: Launch, added: bool, varies: bool, is_later: bool) -> list[int]:
    """Return the arguments in the order of the kernel's parameters.

    ``is_later``: the kernel prepares its factors before the pass ahead of it is complete.
    """
    names = [("x", 0), ("y", 1), ("out", 2)] if added else [("x", 0), ("out", 2)]
    values = {f"size_{axis}": extent for axis, (extent, _) in zip("abc", launch.dims, strict=True)}
    values |= {"size_run": launch.run.columns, "size_right": launch.right, LATER: int(is_later)}
    for name, index in names:
        own = launch.layouts[name]
        values |= {f"{name}_{axis}": strides[index] for axis, (_, strides) in zip("abc", launch.dims, strict=True)}
        values |= {f"{name}_run": own.run, f"{name}_right": own.right}
    for number, factor in enumerate(launch.factors):
        values |= {f"f{number}_row": factor.stride(-2), f"f{number}_column": factor.stride(-1)}
        values |= {f"f{number}_{axis}": own[3 + number] for axis, (_, own) in zip("abc", launch.dims, strict=True)}
    return [values[name] for name in parameters(len(launch.factors), added, varies)]
