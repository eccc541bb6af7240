"""Plans and CUDA text for eigenvalues of batches of small matrices: a thread, some lanes or a block for each."""

from __future__ import annotations

from dataclasses import dataclass

from .arch import arch

ENTRY = "km_eigen"
_TYPES = {"f32": "float", "f64": "double"}
_STRIDES = [f"{name}_{axis}" for name in ("a", "v") for axis in ("item", "row", "column")]
BY_LANES = 32
"""Largest order for which each lane has a column, so that a warp has one matrix."""
MOST = 64
"""Largest order: a block has one matrix, in shared memory."""
THREADS = 128  # of a block
BY_THREAD = 3
"""Largest order for which each thread has a matrix."""
_RESIDENT = {
    ("f32", 32): 5, ("f32", 16): 7, ("f32", 8): 8, ("f64", 32): 2, ("f64", 16): 4, ("f64", 8): 5,
    ("f32", 40): 4, ("f32", 48): 4, ("f32", 56): 3, ("f32", 64): 3,
    ("f64", 40): 2, ("f64", 48): 2, ("f64", 56): 2, ("f64", 64): 2,
}  # fmt: skip
"""Least blocks of a multiprocessor that registers must allow: with one, the compiler uses a third more than needed."""


@dataclass(frozen=True)
class EigenPlan:
    """One kernel for matrices of up to ``width`` columns: eigenvalues, and ``vectors`` if wanted."""

    compute: str
    width: int
    vectors: bool
    arch: str

    def __str__(self) -> str:
        lanes = f"a thread a matrix of order {self.width}"
        if self.width > BY_LANES:
            lanes = f"a block a matrix of order {self.width}"
        elif self.width > BY_THREAD:
            lanes = f"{self.width} lanes a matrix"
        found = "eigenvalues and vectors" if self.vectors else "eigenvalues"
        return f"{found} by Jacobi rotations, {lanes}, {self.compute}, {self.arch}"

    @property
    def threads(self) -> int:
        """Threads of a block: eight for each two columns of its matrix, if a block has one matrix."""
        return 4 * self.width if self.width > BY_LANES else THREADS

    @property
    def resident(self) -> int:
        """Blocks a multiprocessor at least."""
        if "bounded_registers" in arch(self.arch).features:
            return _RESIDENT.get((self.compute, self.width), 1)
        return 1

    def blocks(self, count: int, multiprocessors: int) -> int:
        """Return the blocks for so many matrices."""
        per_block = (
            THREADS if self.width <= BY_THREAD else max(1, THREADS // self.width) if self.width <= BY_LANES else 1
        )
        return max(1, min(-(-count // per_block), 16 * multiprocessors))


def width_for(order: int) -> int:
    """Return the columns that a thread, or a group of lanes, has."""
    if order <= BY_THREAD:
        return order
    width = BY_THREAD + 1
    while width < order:
        width = 2 * width if width < BY_LANES else width + 8
    return width


def emit(plan: EigenPlan) -> str:
    """CUDA C++ of a plan; parameters are pointers, sizes, and the strides of items, rows and columns of a and v."""
    numbers = ", ".join(f"long long {name}" for name in ("count", "order", *_STRIDES))
    strides = ", ".join(f"{{{', '.join(_STRIDES[i : i + 3])}}}" for i in (0, 3))
    by_block = plan.width > BY_LANES
    header = "eigen_block.cuh" if by_block else "eigen.cuh"
    choices = f"{_TYPES[plan.compute]}, {plan.width}" + f", {THREADS}" * (not by_block)
    name = "eigenpairs" + "_by_block" * by_block
    return "\n".join(
        [
            f"// {plan}",
            f'#include "{header}"',
            f'extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.resident})',
            f"{ENTRY}(const void* a, void* w, void* v, int* info, {numbers}) {{",
            f"    const km::EigenArguments g = {{a, w, v, info, count, order, {strides}}};",
            f"    km::{name}<{choices}>(g, {str(plan.vectors).lower()});",
            "}",
            "",
        ]
    )
