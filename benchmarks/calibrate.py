"""What the machine can do: copying, and instructions in registers, measured rather than looked up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import torch

from kernmantle.backends.cpu import jit

ROUNDS = 7
_CHAINS = {16: (10, 12), 32: (20, 24)}
_STEPS = 200_000
_COPIED = 1 << 28

# The innermost step of each kind of contraction, as a chain through %a; %b and %c are constants unknown to LLVM.
MIXES = {
    "sub-abs-add": "%t = fsub V %a, %b\n%u = call V @llvm.fabs.S(V %t)\n%r = fadd V %u, %c",
    "add-min": "%t = fadd V %a, %b\n%u = fcmp olt V %t, %c\n%r = select <N x i1> %u, V %t, V %c",
    "sub-fma": "%t = fsub V %a, %b\n%r = call V @llvm.fma.S(V %t, V %t, V %c)",
    "fma": "%r = call V @llvm.fma.S(V %a, V %b, V %c)",
}
_TYPES = {"f32": ("float", 4), "f64": ("double", 8)}


def _kernel(mix: str, dtype: str, lanes: int, chains: int) -> str:
    """A loop of independent chains over registers; the optimiser can remove nothing of it."""
    kind, size = _TYPES[dtype]
    vector, suffix = f"<{lanes} x {kind}>", f"v{lanes}{dtype}"
    at = "%p{0} = getelementptr V, ptr %memory, i64 {0}"
    read = [f"{at.format(i)}\n%v{i} = load V, ptr %p{i}, align {size}" for i in range(chains + 2)]
    phis = [f"%x{i} = phi V [%v{i}, %entry], [%n{i}, %loop]" for i in range(chains)]
    steps: list[str] = []
    for i in range(chains):
        text = MIXES[mix]
        for old, new in (("%a", f"%x{i}"), ("%t", f"%t{i}"), ("%u", f"%u{i}"), ("%r", f"%n{i}")):
            text = text.replace(old, new)
        steps.append(text.replace("%b", f"%v{chains}").replace("%c", f"%v{chains + 1}"))
    write = [f"store V %n{i}, ptr %p{i}, align {size}" for i in range(chains)]
    lines = [
        "declare V @llvm.fabs.S(V)",
        "declare V @llvm.fma.S(V, V, V)",
        "define void @km(ptr %a0, ptr %a1, ptr %a2, i64 %begin, i64 %end, ptr %memory) {",
        "entry:",
        *read,
        "br label %loop",
        "loop:",
        "%k = phi i64 [%begin, %entry], [%next, %loop]",
        *phis,
        *steps,
        "%next = add i64 %k, 1",
        "%more = icmp slt i64 %next, %end",
        "br i1 %more, label %loop, label %done",
        "done:",
        *write,
        "ret void",
        "}",
    ]
    words = {"V": vector, "S": suffix, "N": str(lanes)}
    return re.sub(r"\b[VSN]\b", lambda found: words[found[0]], "\n".join(lines))


def instruction_rate(mix: str, dtype: str, threads: int) -> float:
    """Elements a second that all cores together take through a mix, in registers."""
    best = 0.0
    size = _TYPES[dtype][1]
    widths = sorted({32, jit.host().vector_bytes})
    for width in widths:
        for chains in _CHAINS[jit.host().vector_registers if jit.host().vector_registers in _CHAINS else 32]:
            lanes = width // size
            kernel = jit.load(jit.compile_ir(_kernel(mix, dtype, lanes, chains), jit.host()))
            seconds = _together(kernel.entry, threads, lanes * (chains + 2), np.dtype(f"f{size}"))
            best = max(best, threads * lanes * chains * _STEPS / seconds)
    return best


def _together(entry: Callable[..., None], threads: int, entries: int, dtype: np.dtype[Any]) -> float:
    """Least seconds in which every thread runs the loop once, all at the same time."""
    gate = Barrier(threads)

    def work() -> tuple[float, float]:
        memory = np.full(entries, 0.25, dtype)
        gate.wait()
        begin = time.perf_counter()
        entry(None, None, None, 0, _STEPS, memory.ctypes.data)
        return begin, time.perf_counter()

    taken: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            spans = [future.result() for future in [pool.submit(work) for _ in range(threads)]]
            taken.append(max(end for _, end in spans) - min(begin for begin, _ in spans))
    return min(taken)


def copy_rate(device: str) -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.zeros(_COPIED // 4 if device == "cuda" else _COPIED // 16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _least(lambda: target.copy_(source), device)


def product_rate() -> float:
    """Multiply-adds a second of a large float16 matrix product on the GPU."""
    size = 8192
    left = torch.randn(size, size, device="cuda", dtype=torch.float16)
    return size**3 / _least(lambda: left @ left, "cuda")


def _least(call: Callable[[], object], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    taken: list[float] = []
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def cpu_rates(resources: Iterable[str], threads: int) -> dict[str, float]:
    """Rates of the named resources, ``mix.dtype`` or ``bytes``."""
    rates: dict[str, float] = {}
    for name in sorted(set(resources)):
        mix, _, dtype = name.partition(".")
        rates[name] = copy_rate("cpu") if name == "bytes" else instruction_rate(mix, dtype, threads)
    return rates


def gpu_rates(resources: Iterable[str], card: dict[str, Any]) -> dict[str, float]:
    """Rates of the named resources; instructions follow from the units of a multiprocessor and its clock."""
    ticks = card["processors"] * card["megahertz"] * 1e6
    known = {
        "fp32": lambda: 128 * ticks,
        "mufu": lambda: 16 * ticks,
        "bytes": lambda: copy_rate("cuda"),
        "fp16": product_rate,
    }
    rates = {name: known[name]() for name in sorted(set(resources)) if name in known}
    return {name: rate for name, rate in rates.items() if rate > 0}
