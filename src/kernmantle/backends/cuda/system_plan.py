"""Plan and CUDA text for batches of small systems: each lane has one row of a matrix in registers."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 32
"""Unknowns at most: a warp holds one matrix."""
THREADS = 128  # of a block
_NARROWEST = 4  # lanes of a matrix
ENTRY = "km_system"
_TYPES = {"f32": "float", "f64": "double"}
_POINTERS = "const void* a", "void* factor", "int* pivots", "int* info", "const void* b", "void* x"
_STRIDED = ("a", "factor", "b", "x")


@dataclass(frozen=True)
class SystemPlan:
    """One kernel for matrices of up to ``width`` rows, by LU where ``pivoted``, else by Cholesky.

    It ``factors`` them, or reads factors, of the transposed matrix where ``transposed``; it ``solves``, or not.
    """

    compute: str
    width: int
    pivoted: bool
    transposed: bool
    factors: bool
    solves: bool
    arch: str

    def __str__(self) -> str:
        steps = " and ".join(name for name, done in (("factors", self.factors), ("solutions", self.solves)) if done)
        kind = ("transposed " if self.transposed else "") + ("LU" if self.pivoted else "Cholesky")
        return f"{kind} {steps} of systems up to {self.width}, a row a lane, {self.compute}, {self.arch}"

    def blocks(self, count: int, multiprocessors: int) -> int:
        """Return the blocks for so many systems."""
        per_block = THREADS // self.width
        return max(1, min(-(-count // per_block), 16 * multiprocessors))


def width_for(order: int) -> int:
    """Return the lanes that hold a matrix."""
    width = _NARROWEST
    while width < order:
        width *= 2
    return width


def emit(plan: SystemPlan) -> str:
    """CUDA C++ of a plan; parameters are pointers, sizes, and the strides of items, rows and columns of each array."""
    strides = [f"{name}_{axis}" for name in _STRIDED for axis in ("item", "row", "column")]
    parameters = [*_POINTERS, *(f"long long {name}" for name in ("count", "order", "columns", *strides))]
    flags = (plan.pivoted, plan.transposed, plan.factors, plan.solves)
    choices = ", ".join([_TYPES[plan.compute], str(plan.width), str(THREADS), *(str(flag).lower() for flag in flags)])
    rows = ", ".join(f"{{{', '.join(strides[i : i + 3])}}}" for i in range(0, len(strides), 3))
    return "\n".join(
        [
            f"// {plan}",
            '#include "system.cuh"',
            f'extern "C" __global__ void __launch_bounds__({THREADS})',
            f"{ENTRY}({', '.join(parameters)}) {{",
            f"    const km::SystemArguments g = {{a, factor, pivots, info, b, x, count, order, columns, {rows}}};",
            f"    km::systems<{choices}>(g);",
            "}",
            "",
        ]
    )
