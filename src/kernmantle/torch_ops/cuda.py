"""CUDA kernels, compiled by NVRTC or found, and their launches on torch's current stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ..backends.cuda import emit, nvrtc
from ..backends.cuda.arch import arch as generation
from ..backends.cuda.device import core, gpu
from ..backends.cuda.gram_plan import Argument, DeviceLimits
from ..backends.cuda.launch import THREADS, BoundLaunch, Kernel, NumberedLaunch, Queue, zeroed_counter
from ..backends.cuda.row_reduce_plan import CudaRowPlan
from ..config import current
from ..errors import OutOfMemoryError
from ..runtime.cache import Built, Key
from ..runtime.dump import dump
from ..runtime.kernel_store import Job, loaded
from .torch_private import is_out_of_memory

Numbers = tuple[float, ...]


PRODUCTS_NEED = "products on tensor cores need"
BY_ENTRIES = 'precision="ieee" takes entries as they are written and needs less'


class Entry(NamedTuple):
    """A kernel of a source: its name, threads and bytes of dynamic shared memory of a block.

    ``waits`` says that it waits by itself for the kernel before it, so that a GPU which can starts it earlier;
    ``prefix`` stands before the plan in its title.
    """

    name: str
    threads: int
    shared: int = 0
    waits: bool = False
    prefix: str = ""


def load_kernels(
    plan: Hashable, arch: str, source: Callable[[], str], *entries: Entry, title: str = "", fuse: bool = True,
    expression: str = "",
) -> tuple[Kernel, ...] | None:  # fmt: skip
    """Return the kernels of a plan, compiled if the cache does not have them; None if they were only collected.

    Equal plans with equal entries have equal kernels; ``source`` is called where the cache has none.
    """

    def load(binary: bytes) -> tuple[Kernel, ...]:
        named, overlaps = title or str(plan), "overlapped_launch" in generation(arch).features
        return tuple([
            Kernel(binary, own.name, own.threads, own.shared, own.prefix + named, own.waits and overlaps)
            for own in entries
        ])  # fmt: skip

    return loaded((plan, entries), lambda: [job_for(source(), arch, title or str(plan), fuse, expression)], load)


def load_kernel(plan: Any, source: Callable[[Any], str], entry: Entry) -> Kernel | None:
    """Return the kernel of a plan that has one, see :func:`load_kernels`."""
    found = load_kernels(plan, plan.arch, lambda: source(plan), entry)
    return None if found is None else found[0]


def row_kernels(
    chosen: CudaRowPlan, source: Callable[[CudaRowPlan], str], *entries: Entry, fuse: bool = True
) -> tuple[Kernel, ...] | None:
    """Return the kernels of a plan of row reductions, see :func:`load_kernels`."""
    own = chosen.matrix
    return load_kernels(chosen, own.arch, lambda: source(chosen), *entries, fuse=fuse, expression=own.nest.expression)


def scratch(size: int, device: torch.device, need: str, instead: str) -> torch.Tensor:
    """Return memory of so many bytes, or OutOfMemoryError that says what needs it, and what to do instead."""
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        said = f"{need} {size / 2**30:.1f} GiB on {device} in addition to the result; {instead}"
        raise OutOfMemoryError(said) from error


def start(kernel: Kernel, index: int, blocks: int, arguments: Sequence[Any]) -> None:
    """Launch on torch's current stream of a device."""
    own = THREADS.arguments
    if not own.is_entered:
        own.enter(_queue())
    stream = torch._C._cuda_getCurrentRawStream(index)
    if torch._C._cuda_getDevice() == index:
        kernel(index, stream, blocks, arguments)
    else:
        with torch.cuda.device(index):
            kernel(index, stream, blocks, arguments)


def _enter() -> None:
    """Give this thread the context of its device: torch's backward threads get theirs at their first launch only."""
    core().Device(torch.cuda.current_device()).set_current()


@lru_cache(maxsize=1)
def _queue() -> Queue:
    """Return torch's current device and streams."""
    private: Any = torch._C  # which has these where torch has CUDA
    return Queue(private._cuda_getDevice, private._cuda_getCurrentRawStream, torch.cuda.device, _enter)


def enter_thread() -> None:
    """Give this thread the context of its device, unless it has it."""
    own = THREADS.arguments
    if not own.is_entered:
        own.enter(_queue())


def bind_launch(
    kernel: Kernel, arguments: Sequence[Any], positions: Sequence[int], index: int, blocks: int, counts: bool = False
) -> BoundLaunch:
    """Return launches on torch's current stream of a device, see :class:`BoundLaunch`.

    With ``counts`` the last argument is where the stream's launches count their blocks.
    """
    return BoundLaunch(kernel, arguments, positions, index, blocks, _queue(), _counter if counts else None)


def numbered(
    index: int, blocks: int, described: Callable[[Numbers], tuple[Kernel, tuple[Argument, ...]]],
    tail: tuple[int, ...] = (), last: int = 0, signed: bool = True,
) -> NumberedLaunch:  # fmt: skip
    """Return launches on addresses and numbers, see :class:`NumberedLaunch`.

    ``described`` returns the kernel for numbers, and its arguments behind the addresses. Of the addresses the ``last``
    ones follow these, and ``tail`` follows all.
    """

    def arguments(addresses: Sequence[int], rest: tuple[Argument, ...]) -> tuple[Argument, ...]:
        first = len(addresses) - last
        return (*addresses[:first], *rest, *addresses[first:], *tail)

    def bind(addresses: Sequence[int], numbers: Numbers) -> BoundLaunch:
        kernel, rest = described(numbers)
        first = len(addresses) - last
        after = first + len(rest)
        positions = (*range(first), *range(after, after + last))
        return bind_launch(kernel, arguments(addresses, rest), positions, index, blocks)

    def once(addresses: Sequence[int], numbers: Numbers) -> None:
        kernel, rest = described(numbers)
        start(kernel, index, blocks, arguments(addresses, rest))

    return NumberedLaunch(bind, once, signed)


_COUNTERS: dict[tuple[int, int], int] = {}


def _counter(index: int, stream: int) -> int:
    """Return the address of a counter for a stream of the current device: 0, as launches leave it behind.

    Launches of one stream follow one another and share it. A graph that is captured must not: it may be replayed on
    any stream.
    """
    key = index, stream
    return _COUNTERS.get(key) or _COUNTERS.setdefault(key, zeroed_counter(stream))


def is_captured(index: int) -> bool:
    """Return whether a graph is captured on the current stream of a device."""
    if torch._C._cuda_getDevice() != index:
        with torch.cuda.device(index):
            return is_captured(index)
    return torch.cuda.is_current_stream_capturing()


def index_of(device: torch.device) -> int:
    """Return the number of a device, of the current one without."""
    return torch.cuda.current_device() if device.index is None else device.index


@lru_cache(maxsize=64)
def limits(index: int) -> DeviceLimits:
    """Return what plans need to know of a device."""
    own = gpu(index)
    return DeviceLimits(
        own.arch, own.sm_count, own.shared_per_block, own.shared_per_sm, own.registers_per_sm, own.threads_per_sm
    )


def build(arch: str, source: str, title: str, fuse: bool, debug: bool) -> Built:
    """Compile a source, with what the compiler says of its registers."""
    cubin = nvrtc.compile_source(source, arch, {}, name=title, fuse=fuse, debug=debug)
    return Built(cubin.binary, {"registers": cubin.resources.registers, "spills": cubin.resources.spill_stores})


def job_for(source: str, arch: str, title: str, fuse: bool = True, expression: str = "") -> Job:
    """Return what compiling a source takes; the headers that it includes are put in."""
    source = nvrtc.inlined(source, emit.headers())
    dump(source, "cu")
    debug = current().debug
    key = Key(
        arch,
        nvrtc.compiler_version(),
        source,
        options=nvrtc.options(arch, fuse, debug),
        name=f"{expression}: {title}" if expression else title,
    )
    return Job(key, build, (arch, source, title, fuse, debug))
