"""A GPU that CPU tensors seem to lie on: the host code of its plans runs as it is, and its kernels are interpreted.

What a launch hands to the driver, addresses and numbers, and the plan of its kernel are all that an interpreter sees.
It reads and writes memory through strided views, which must lie in the storage that an address belongs to and that is
still there; it adds in float64 and rounds what it writes. Memory that nobody wrote holds NaN.
"""

from __future__ import annotations

import contextlib
import math
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernmantle.backends.cuda import device
from kernmantle.backends.cuda.launch import THREADS, Kernel
from kernmantle.runtime.lru import clear_all
from kernmantle.structured.kron import cuda_entry, factor_gradient_emit, gradient_emit, separation
from kernmantle.torch_ops import cuda, execute, torch_private
from kernmantle.torch_ops.blas_handles import HANDLES
from kernmantle.torch_ops.dtypes import DTYPES

_PROPERTIES = SimpleNamespace(
    multiprocessor_count=132, max_shared_memory_per_block_optin=232448, max_shared_memory_per_multiprocessor=233472,
    max_registers_per_multiprocessor=65536, max_threads_per_multiprocessor=2048,
)  # fmt: skip
_H200 = SimpleNamespace(
    name="H200", arch="90", compute_capability=(9, 0), properties=_PROPERTIES, set_current=lambda: None
)
_BYTES = 141 << 30
_CUDA = torch.device("cuda", 0)


class Memory:
    """The storages of the tensors whose addresses were asked for, and the launches that read and wrote them."""

    def __init__(self) -> None:
        self.launches = Counter[str]()
        self._address_of = torch.Tensor.data_ptr
        self._storages = dict[int, StorageWeakRef]()

    def address(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor, as ``data_ptr`` does."""
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = StorageWeakRef(storage)
        return self._address_of(tensor)

    def view(
        self, address: int, dtype: str, sizes: Sequence[int], strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return the numbers from an address on, in rows where no strides are given."""
        kind, steps = DTYPES[dtype], strides or [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        if 0 in sizes:
            return torch.empty(*sizes, dtype=kind)
        reach = 1 + sum((extent - 1) * step for extent, step in zip(sizes, steps, strict=True))
        for begin, held in self._storages.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(held.cdata)
            if storage is not None and begin <= address < begin + storage.nbytes():
                first, rest = divmod(address - begin, kind.itemsize)
                there = storage.nbytes() // kind.itemsize - first
                assert not rest, "an address lies within a number"
                assert reach <= there, f"{tuple(sizes)} by {tuple(steps)} reach {reach} numbers, there are {there}"
                return torch.empty(0, dtype=kind).set_(storage, first, tuple(sizes), tuple(steps))
        raise AssertionError("an address is that of no tensor")


class InterpretedKernel(Kernel):
    """A kernel whose launches are interpreted; for a binary it has its plan."""

    def __init__(
        self, memory: Memory, plan: Any, entry: str, threads: int, shared: int = 0, title: str = "",
        overlapped: bool = False,
    ) -> None:  # fmt: skip
        self.title, self.threads, self.shared, self.overlapped = title, threads, shared, overlapped
        self._last, self._pack, self._size, self._packed = (-1, -1, -1, None), None, 0, struct.Struct("")
        self.handle, self.launch = None, self._interpret
        self._memory, self._plan, self._entry = memory, plan, entry

    def packing(self, arguments: Sequence[Any]) -> struct.Struct:
        self._packed = super().packing(arguments)
        return self._packed

    def configure(self, device: int, stream: int, blocks: int) -> int:
        return blocks

    def occupancy(self, device: int) -> int:
        return 1

    def clusters(self, device: int, size: int) -> int:
        return _PROPERTIES.multiprocessor_count // size

    def _interpret(self, blocks: int, *_: Any) -> tuple[int]:
        arguments = self._packed.unpack(THREADS.arguments.memory[: self._packed.size])
        self._memory.launches[type(self._plan).__name__] += 1
        try:
            with torch.no_grad():
                _INTERPRETERS[self._entry](self._memory, self._plan, blocks, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{self.title}: {error}") from error
        return (0,)


def _applied(value: torch.Tensor, matrices: Sequence[torch.Tensor | int]) -> torch.Tensor:
    """Return (…, run, right) with the Kronecker product of matrices (…, q, p) applied to the run; numbers are I."""
    *batch, run, right = value.shape
    before, behind = 1, run
    for own in matrices:
        rows, columns = (own, own) if isinstance(own, int) else own.shape[-2:]
        behind //= columns
        if not isinstance(own, int):
            value = value.reshape(*batch, before, columns, behind * right)
            value = torch.einsum("...lpr,...qp->...lqr", value, own)
        before *= rows
    return value.reshape(*batch, before, right)


def _kron_pass(memory: Memory, plan: Any, blocks: int, *arguments: Any) -> None:
    """Interpret a pass of a product."""
    shapes = list[Any]()
    for mode in plan.run.modes:
        if mode.factor is None:
            shapes.append(mode.rows)
        else:
            shapes += plan.members(mode.factor)[1] if hasattr(plan, "members") else [(mode.rows, mode.columns)]
    factors = [f"f{number}" for number in range(sum(isinstance(shape, tuple) for shape in shapes))]
    varies = getattr(plan.layout, "varies", False)
    integers = cuda_entry.parameters(len(factors), plan.layout.added, varies)
    given = dict(zip(["x", "y", "out", *factors, *integers, "alpha", "beta"], arguments, strict=True))
    batch, right = [given[f"size_{axis}"] for axis in "abc"], given["size_right"]
    assert given["size_run"] == plan.run.columns

    def view(name: str, run: int) -> torch.Tensor:
        strides = [given[f"{name}_{axis}"] for axis in cuda_entry.AXES]
        return memory.view(given[name], plan.stored, (*batch, run, right), strides)

    def matrix(name: str, shape: tuple[int, int]) -> torch.Tensor:
        strides = [given.get(f"{name}_{axis}", 0) for axis in ("a", "b", "c", "row", "column")]
        around = [extent if step else 1 for extent, step in zip(batch, strides, strict=False)]
        return memory.view(given[name], plan.stored, (*around, *shape), strides).double()

    names = iter(factors)
    matrices = [matrix(next(names), shape) if isinstance(shape, tuple) else shape for shape in shapes]
    value = given["alpha"] * _applied(view("x", plan.run.columns).double(), matrices)
    if plan.layout.added:
        value += given["beta"] * view("y", plan.run.rows).double()
    view("out", plan.run.rows).copy_(value)


_Sizes = Sequence[tuple[int, int]]


def _whole(sizes: _Sizes) -> tuple[int, ...]:
    return tuple(math.prod(size[axis] for size in sizes) for axis in (0, 1))


def _matrices(memory: Memory, dtype: str, sizes: _Sizes, words: Sequence[int]) -> list[torch.Tensor]:
    """Return matrices whose address, row and column are three words each."""
    steps = range(0, len(words), 3)
    return [
        memory.view(words[at], dtype, size, words[at + 1 : at + 3]).double()
        for at, size in zip(steps, sizes, strict=True)
    ]


def _separated(joint: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gradients of matrices, one behind the other, from that of their Kronecker product."""
    count = len(matrices)
    rows, columns = ([own.shape[axis] for own in matrices] for axis in (0, 1))
    whole, axes, found = joint.reshape(*rows, *columns), list(range(2 * count)), list[torch.Tensor]()
    for place in range(count):
        others = [operand for n in range(count) if n != place for operand in (matrices[n], [n, count + n])]
        found.append(torch.einsum(whole, axes, *others, [place, count + place]).flatten())
    return torch.cat(found)


def _back_pass(memory: Memory, plan: Any, blocks: int, v: int, x: int, out: int, parts: int, *rest: Any) -> None:
    """Interpret a pass that applies the transposes of factors and sums their gradients, here all in one block."""
    count = len(plan.sizes)
    pointers, (*strides, items, width, _, slope) = rest[:count], rest[count:]
    words = [word for n in range(count) for word in (pointers[n], *strides[2 * n : 2 * n + 2])]
    matrices, (q, p) = _matrices(memory, plan.stored, plan.sizes, words), _whole(plan.sizes)
    one, other = (memory.view(at, plan.stored, (items, e, width)).double() for at, e in ((v, q), (x, p)))
    memory.view(out, plan.stored, other.shape).copy_(slope * _applied(one, [own.mT for own in matrices]))
    shares = memory.view(parts, "f32", (blocks, plan.parts)).zero_()
    shares[-1] = _separated(torch.einsum("nqr,npr->qp", one, other), matrices)


def _gram(memory: Memory, plan: Any, blocks: int, v: int, u: int, out: int, count: int, right: int, *rest: Any) -> None:
    """Interpret the gradient of a factor, here all in one share, and what is applied on the way."""
    sizes = (v, plan.rows), (u, plan.columns)
    one, other = (memory.view(at, plan.stored, (count, extent, right)).double() for at, extent in sizes)
    shares = blocks // plan.tiles
    parts = memory.view(out, plan.stored if shares == 1 else "f32", (shares, plan.rows, plan.columns)).zero_()
    parts[-1] = torch.einsum("lqr,lpr->qp", one, other)
    if plan.factors:
        applied, slope, *words = rest
        transposes = [own.mT for own in _matrices(memory, plan.stored, plan.factors, words)]
        memory.view(applied, plan.stored, other.shape).copy_(slope * _applied(one, transposes))


def _total(memory: Memory, plan: Any, blocks: int, parts: int, out: int, shares: int, size: int) -> None:
    """Interpret the sum of shares."""
    _, stored, _, transposed = plan
    value = memory.view(parts, "f32", (shares, size)).double().sum(0)
    if transposed:
        each = value.split([rows * columns for rows, columns in transposed])
        value = torch.cat([own.view(shape).mT.flatten() for own, shape in zip(each, transposed, strict=True)])
    memory.view(out, stored, (size,)).copy_(value)


def _gram_or_total(memory: Memory, plan: Any, *arguments: Any) -> None:
    (_total if isinstance(plan, tuple) else _gram)(memory, plan, *arguments)


def _separate(memory: Memory, plan: Any, blocks: int, joint: int, out: int, *words: int) -> None:
    """Interpret what finds the gradients of matrices from that of their product."""
    matrices = _matrices(memory, plan.stored, plan.sizes, words)
    value = _separated(memory.view(joint, plan.joint, _whole(plan.sizes)).double(), matrices)
    memory.view(out, plan.stored, value.shape).copy_(value)


_INTERPRETERS: dict[str, Callable[..., None]] = {
    cuda_entry.ENTRY: _kron_pass, gradient_emit.ENTRY: _back_pass, factor_gradient_emit.ENTRY: _gram_or_total,
    separation.ENTRY: _separate,
}  # fmt: skip


def _to_other_types(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a product of torch's, whose result is of another type on GPUs alone."""

    def run(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, **others: Any) -> torch.Tensor:
        return multiply(a, b, **others) if out_dtype is None else multiply(a.to(out_dtype), b.to(out_dtype), **others)

    return run


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return what makes tensors, of which those on the GPU are on the CPU."""

    def run(*sizes: Any, device: Any = None, **others: Any) -> torch.Tensor:
        return make(*sizes, device=None if device == _CUDA else device, **others)

    return run


class _Stream:
    """A stream: all runs at once."""

    device = _CUDA

    def wait_stream(self, other: _Stream) -> None: ...


@contextlib.contextmanager
def gpu_on_host(captured: bool = False) -> Iterator[Memory]:
    """Inside, tensors seem to lie on an H200, where a graph seems to be ``captured``."""
    memory = Memory()
    tensor = {
        "is_cuda": True, "is_cpu": False, "device": property(lambda tensor: _CUDA), "get_device": lambda tensor: 0,
        "data_ptr": lambda tensor: memory.address(tensor),  # noqa: PLW0108 (a method is no method of tensors)
    }  # fmt: skip
    functions = {name: _to_other_types(getattr(torch, name)) for name in ("mm", "bmm")}
    functions |= {name: _on_cpu(getattr(torch, name)) for name in ("empty", "zeros")}
    of_cuda = {
        "current_device": lambda: 0, "device": lambda index: contextlib.nullcontext(),
        "current_blas_handle": lambda: 0, "is_current_stream_capturing": lambda: captured,
        "get_device_properties": lambda index: SimpleNamespace(total_memory=_BYTES), "Stream": lambda device: _Stream(),
        "current_stream": lambda index: _Stream(), "stream": lambda stream: contextlib.nullcontext(),
    }  # fmt: skip
    private = {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda index: 0}
    own = {"Kernel": partial(InterpretedKernel, memory), "loaded": lambda key, jobs, load: load(key[0])}
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in ((torch.Tensor, tensor), (torch, functions), (torch.cuda, of_cuda), (torch._C, private)):
            for name, value in names.items():
                patch.setattr(owner, name, value, raising=False)
        for name, value in own.items():
            patch.setattr(cuda, name, value)
        for module in (torch_private, execute):  # memory is torch's own
            patch.setattr(module, "current_gpu", lambda: -1)
        patch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda index: _H200))
        patch.setattr(THREADS.arguments, "is_entered", True)
        patch.setattr(HANDLES, "devices", frozenset())
        _forget()
        torch.use_deterministic_algorithms(True)  # which has memory that is taken hold NaN
        try:
            yield memory
        finally:
            torch.use_deterministic_algorithms(False)
            _forget()


def _forget() -> None:
    """Empty what is kept of a device and of calls on it."""
    for forget in (clear_all, cuda.limits.cache_clear, device.gpu.cache_clear, cuda._queue.cache_clear):
        forget()
