"""LLVM on the host: text to object code, object code to a kernel, a kernel on threads."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from time import perf_counter
from typing import Any, cast
from weakref import finalize

import llvmlite  # pyright: ignore[reportMissingTypeStubs]
import llvmlite.binding  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from ...errors import CompileError
from ...runtime.cache import Built, Key, current_cache
from .threads import SCRATCH, ThreadPool, text

ENTRY = "km"
binding: Any = llvmlite.binding
_SIGNATURE = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_LLVM = threading.RLock()
# At level 3, 96 kernels of products without the matrix took 0.36 s of one processor each, at level 2 0.22 s, and their
# code is 22 % shorter; 32 calls of larger arrays take 0.81 to 1.04 times as long, 0.995 in the median (decision 0034).
_LEVEL = 2
# A module that says which of its loops are unrolled has no other unrolled: a third of the time it took to compile.
_HINT = "!llvm.loop"
# What LLVM calls where a machine lacks an instruction; a function that is not found would be a call of address 0.
_RUNTIME = re.compile(rb"\b__(?:trunc|extend|fix|float|add|sub|mul|div|mod|cmp|pow)[a-z0-9]+\b")
# Parts of what is left that a caller runs alone, while another has the pool, before it asks again.
_PARTS_ALONE = 4
# A call of many items returns to the interpreter every half a second, so that Ctrl-C is heard: its first part is an
# eighth of it, the next ones are as many items as take that long.
SPLIT_ITEMS, _FIRST_PARTS, _SLICE_SECONDS = 16, 8, 0.5


@dataclass(frozen=True)
class Host:
    """A machine that code is made for, and the vectors it has."""

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    vector_registers: int


@dataclass(frozen=True)
class LoadedKernel:
    """Machine code in memory, unloaded when nothing refers to this: who calls ``entry`` or ``address`` holds it."""

    entry: Callable[..., None]
    address: int
    engine: Any


@lru_cache(maxsize=1)
def _initialize() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def version() -> str:
    """Return what compiles: llvmlite, its LLVM, the level of optimisation and that hints decide what is unrolled."""
    return f"llvmlite {llvmlite.__version__} llvm {'.'.join(map(str, binding.llvm_version_info))} O{_LEVEL} hints"


@lru_cache(maxsize=1)
def host() -> Host:
    """Return the machine that runs this."""
    features = binding.get_host_cpu_features()
    size, count = vectors(dict(features), platform.machine())
    return Host(binding.get_default_triple(), binding.get_host_cpu_name(), features.flatten(), size, count)


def vectors(features: dict[str, bool], machine: str) -> tuple[int, int]:
    """Return the bytes and number of the vector registers."""
    if machine.lower() in ("arm64", "aarch64"):
        return 16, 32
    if features.get("avx512f") and features.get("avx512vl") and features.get("avx512dq"):
        return 64, 32
    return (32, 16) if features.get("avx2") and features.get("fma") else (16, 16)


def compile_ir(ir: str, host: Host) -> bytes:
    """Return the object code of the text of an LLVM module for a machine.

    CompileError if LLVM rejects the text, or needs functions that are not there.
    """
    _initialize()
    with _LLVM:
        return _compiled(ir, host)


def _compiled(ir: str, host: Host) -> bytes:
    try:
        module = binding.parse_assembly(ir)
        module.verify()
        target = binding.Target.from_triple(host.triple)
        machine = target.create_target_machine(host.cpu, host.features, 3, "pic", "jitdefault")
        options = binding.create_pipeline_tuning_options(_LEVEL)
        options.loop_unrolling = _HINT not in ir
        options.loop_vectorization = False
        options.slp_vectorization = False
        builder = binding.create_pass_builder(machine, options)
        manager = builder.getModulePassManager()
        manager.run(module, builder)
        _dispose(manager)
        obj = bytes(machine.emit_object(module))
    except RuntimeError as error:
        raise CompileError(f"LLVM rejected a kernel: {error}\n{ir[:400]}") from error
    missing = {name for name in _RUNTIME.findall(obj) if binding.address_of_symbol(name.decode()) is None}
    if missing:
        names = ", ".join(sorted(name.decode() for name in missing))
        raise CompileError(f"LLVM made calls of {names}, which this process does not have\n{ir[:400]}")
    return obj


def _dispose(manager: Any) -> None:
    """Free a pass manager, some 200 kB: up to llvmlite 0.50 an empty method of another base hides the one that does."""
    if cast(Any, type(manager))._dispose is binding.ffi.ObjectRef._dispose:
        binding.newpassmanagers.NewPassManager._dispose(manager)
        manager.detach()
    else:
        manager.close()


def add_symbol(name: str, address: int) -> None:
    """Let code that is loaded call a function of this process by its name."""
    with _LLVM:
        binding.add_symbol(name, address)


def load(obj: bytes) -> LoadedKernel:
    """Return the kernel from object code."""
    _initialize()
    with _LLVM:
        return _loaded(obj)


def _loaded(obj: bytes) -> LoadedKernel:
    engine = _engine(obj)
    address = engine.get_function_address(ENTRY)
    if not address:
        raise CompileError(f"object code without {ENTRY!r}")
    kernel = LoadedKernel(ctypes.CFUNCTYPE(None, *_SIGNATURE)(address), address, engine)
    finalize(kernel, _unload, engine).atexit = False
    return kernel


def _unload(engine: Any) -> None:
    with _LLVM:  # a fork waits for it, so that a child never finds llvmlite's own lock taken
        engine.close()


def _engine(obj: bytes) -> Any:
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(obj))
    engine.finalize_object()
    return engine


@lru_cache(maxsize=1)
def _pool() -> ThreadPool:
    own = host()
    source = text(platform.machine())
    key = Key(own.triple, version(), source, options=(own.cpu, own.features), name="threads")
    obj = current_cache().fetch(key, lambda: Built(compile_ir(source, own)))
    with _LLVM:
        engine = _engine(obj)
        return ThreadPool(engine.get_function_address("lead"), engine.get_function_address("join"), engine)


def _in_child() -> None:
    _LLVM.release()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LLVM.acquire, after_in_parent=_LLVM.release, after_in_child=_in_child)


def _packed(kind: str, values: Sequence[float]) -> bytes:
    return pack(f"{len(values)}{kind}", *values)


def run_alone(
    kernel: LoadedKernel, items: int, scratch_bytes: int, pointers: Sequence[int], integers: bytes,
    numbers: Sequence[float],
) -> None:  # fmt: skip
    """Run a kernel over its items in the calling thread."""
    addresses, values = _packed("Q", pointers), _packed("d", numbers)
    if items > 0:
        kernel.entry(addresses, integers, values, 0, items, SCRATCH.take(scratch_bytes))


def run(
    kernel: LoadedKernel, items: int, scratch_bytes: int, pointers: Sequence[int],
    integers: bytes | np.ndarray[Any, np.dtype[np.int64]], numbers: Sequence[float], threads: int, grain: int = 1,
) -> None:  # fmt: skip
    """Run a kernel over its items, of which no thread takes fewer than ``grain``, on at most ``threads`` with this one.

    ``pointers`` are the addresses of the buffers, ``integers`` extents and strides, contiguous.
    """
    threads, extents = min(threads, -(-items // grain)), bytes(integers)
    whole = items < SPLIT_ITEMS * max(threads, 1) * grain
    if threads <= 1 and whole:
        run_alone(kernel, items, scratch_bytes, pointers, extents, numbers)
        return
    arguments, left = (_packed("Q", pointers), extents, _packed("d", numbers)), range(items)
    step = items if whole else _rounded(items // _FIRST_PARTS, threads)
    while left:
        begun = perf_counter()
        _run_part(kernel, arguments, scratch_bytes, left[:step], grain, threads)
        left, elapsed = left[step:], perf_counter() - begun
        step = 2 * step if elapsed < _SLICE_SECONDS / 4 else _rounded(int(step * _SLICE_SECONDS / elapsed), threads)


def _rounded(items: int, threads: int) -> int:
    """Return items that threads can share evenly, at least one each."""
    return max(items // threads, 1) * threads


def _run_part(
    kernel: LoadedKernel, arguments: tuple[bytes, bytes, bytes], scratch_bytes: int, left: range, grain: int,
    threads: int,
) -> None:  # fmt: skip
    """Run some items; the interpreter handles no signal before they are done."""
    if threads <= 1:
        kernel.entry(*arguments, left.start, left.stop, SCRATCH.take(scratch_bytes))
        return
    while left and not _pool().run(kernel.address, arguments, scratch_bytes, left, grain, threads):
        part = max(grain, len(left) // _PARTS_ALONE)
        kernel.entry(*arguments, left.start, left[:part].stop, SCRATCH.take(scratch_bytes))
        left = left[part:]
