"""The CPU as a target: LLVM kernels on threads."""

from __future__ import annotations


class CpuTarget:
    """Kernels through LLVM."""

    name = "llvm"
    parallel = 2
