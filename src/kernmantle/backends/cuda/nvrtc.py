"""Compilation of CUDA C++ to machine code by NVRTC, on any machine, with the resources of the kernel."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from ...errors import BackendError, CompileError
from .arch import arch as arch_of
from .device import core, is_from_cuda

_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
_FIELDS = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "shared": r"(\d+) bytes smem",
}


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled kernel: registers a thread, and bytes of everything else."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, the log of the compiler and the resources of the kernel."""

    binary: bytes
    arch: str
    log: str
    resources: Resources


def inlined(source: str, headers: Mapping[str, str]) -> str:
    """Return the source with its quoted includes put in place, each once."""
    seen: set[str] = set()

    def put(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in seen:
            return ""
        seen.add(name)
        return _INCLUDE.sub(put, headers[name].replace("#pragma once\n", ""))

    return _INCLUDE.sub(put, source)


@lru_cache(maxsize=1)
def compiler_version() -> str:
    """Return NVRTC's version, a part of every cache key."""
    core()
    status, major, minor = import_module("cuda.bindings.nvrtc").nvrtcVersion()
    if int(status) != 0:
        raise BackendError(f"NVRTC does not answer: {status}")
    return f"nvrtc {major}.{minor}"


@lru_cache(maxsize=1)
def supported_targets() -> tuple[str, ...]:
    """Return the generations that NVRTC compiles for, as "sm_90"; an empty tuple if it cannot be asked."""
    status, numbers = import_module("cuda.bindings.nvrtc").nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in numbers) if int(status) == 0 else ()


def _unsupported(target: str) -> str:
    """Return advice for a target that NVRTC does not support, "" if it does."""
    supported = supported_targets()
    if not supported or target.rstrip("af") in supported:
        return ""
    return (
        f"{compiler_version()} compiles for {', '.join(supported)}: install a newer CUDA toolkit package, or give the "
        f"GPU's row in backends/cuda/arch.py a target among these; "
    )


def resources(log: str) -> Resources:
    """Return the assembler's figures in a compilation log."""
    found = {name: re.search(pattern, log) for name, pattern in _FIELDS.items()}
    return Resources(**{name: int(match.group(1)) if match else 0 for name, match in found.items()})


def options(arch: str, fuse: bool = True, debug: bool = False) -> tuple[str, ...]:
    """Return the settings that reach the compiler, for the cache key: IEEE arithmetic, ``fuse`` allows fma."""
    return (
        f"--gpu-architecture={arch_of(arch).target}",
        "--std=c++17",
        f"--fmad={str(fuse).lower()}",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--device-as-default-execution-space",
        *(["--generate-line-info"] * debug),
    )


def compile_source(
    source: str, arch: str, headers: Mapping[str, str], name: str = "kernel", fuse: bool = True,
    debug: bool = False,
) -> Cubin:  # fmt: skip
    """Compile CUDA C++ for one architecture, such as "sm_90"; raise CompileError where NVRTC cannot.

    Quoted includes are taken from ``headers``, texts by name, and nowhere else. ``name`` is what messages call the
    kernel, ``fuse`` allows multiplications to be fused into additions, ``debug`` keeps the lines of the source.
    """
    log = io.StringIO()
    settings = core().ProgramOptions(
        name=name, arch=arch_of(arch).target, std="c++17", fma=fuse, prec_div=True, prec_sqrt=True, ftz=False,
        ptxas_options=["-v"], diag_suppress=[177], device_as_default_execution_space=True, no_cache=True,
        lineinfo=debug,
    )  # fmt: skip
    try:
        program = core().Program(inlined(source, headers), "c++", settings)
        code = program.compile("cubin", logs=log)
    except Exception as error:
        if not is_from_cuda(error):
            raise
        target = arch_of(arch).target
        raise CompileError(f"kernel {name!r} did not compile for {target}: {_unsupported(target)}{error}") from error
    return Cubin(bytes(code.code), arch, log.getvalue(), resources(log.getvalue()))
