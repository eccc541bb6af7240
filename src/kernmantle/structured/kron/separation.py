"""The kernel that finds the gradients of matrices from that of their Kronecker product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...backends.cuda.traits import SCALARS, struct
from .cost import SIZES, SMALL, memory_of
from .cuda_entry import OVERLAP
from .gradient_groups import Size

ENTRY = "km_separate"
THREADS = 1024  # of a block
# Terms of an entry up to which one warp sums them.
SHORT = 512
# Terms of the longest sum of a block; matrices whose gradients have longer ones are left to torch's products.
LONGEST = 1 << 17
# Cycles of a block for a term of each of its threads (H200: 14 us for 19600 terms by 256 threads), of a lane for any
# term, and of a multiprocessor for a block (41 us for 39601 blocks).
_CYCLES_ALONE, _CYCLES, _CYCLES_OF_BLOCK = 260, 40, 1000
_LANES = 128
_COPIED = 0.3  # share of the memory's speed of the products and sums of torch that are taken instead (H200)


@dataclass(frozen=True)
class SeparationPlan:
    """Matrices of these ``sizes`` (rows, columns), ``stored`` in a type, and that of the joint gradient."""

    sizes: tuple[Size, ...]
    stored: str
    joint: str
    arch: str

    @property
    def blocks(self) -> int:
        """Blocks: one for each entry, or for as many as it has warps."""
        return _blocks(self.sizes)

    def __str__(self) -> str:
        sizes = "*".join(f"{rows}x{columns}" for rows, columns in self.sizes)
        return f"gradients of {sizes} {self.stored} from that of their product {self.joint}"


def _blocks(sizes: Sequence[Size]) -> int:
    entries, warps = math.prod(rows * columns for rows, columns in sizes), THREADS // 32
    own = [rows * columns for rows, columns in sizes]
    return sum(-(-size // warps) if entries // size <= SHORT else size for size in own)


def longest(sizes: Sequence[Size]) -> int:
    """Return the terms of the longest sum."""
    entries = [rows * columns for rows, columns in sizes]
    return math.prod(entries) // min(entries)


def separating_seconds(sizes: Sequence[Size], stored: str, limits: DeviceLimits) -> float:
    """Return the seconds of the gradients of matrices from that of their Kronecker product."""
    if len(sizes) == 1:
        return 0.0
    entries = math.prod(rows * columns for rows, columns in sizes)
    if longest(sizes) <= LONGEST:
        alone = longest(sizes) / THREADS * _CYCLES_ALONE
        shared = len(sizes) * entries * _CYCLES / _LANES + _blocks(sizes) * _CYCLES_OF_BLOCK
        return SMALL + (alone + shared / limits.sm_count) / CLOCK
    casts = 2 * len(sizes) * (SIZES[stored] == 2)
    return (1 + 3 * (len(sizes) - 1) + casts) * (SMALL + 8.0 * entries / (_COPIED * memory_of(limits)))


def emit(plan: SeparationPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    count, sides = len(plan.sizes), list(zip(*plan.sizes, strict=True))
    constants = {
        "COUNT": count, "ENTRIES": math.prod(map(math.prod, plan.sizes)), "COLUMNS": math.prod(sides[1]),
        "THREADS": THREADS, "SHORT": SHORT,
    }  # fmt: skip
    body = struct("Body", {"T": SCALARS[plan.stored], "C": SCALARS[plan.joint]}, constants)
    extents = [
        f"    static __device__ constexpr int {name}(int m) {{ return {_chosen(side)}; }}"
        for name, side in zip(("rows", "columns"), sides, strict=True)
    ]
    names = [(f"f{number}", f"f{number}_row", f"f{number}_column") for number in range(count)]
    parameters = [f"const void* {at}, long long {row}, long long {column}" for at, row, column in names]
    matrices = [f"{{(const Body::T*){at}, {row}, {column}}}" for at, row, column in names]
    text = [
        f"// {plan}",
        '#include "kron_separate.cuh"',
        *body[:-1], *extents, body[-1],
        f'extern "C" __global__ void __launch_bounds__({THREADS})',
        f"{ENTRY}(const void* joint, void* out, {', '.join(parameters)}) {{",
        OVERLAP,
        f"    const km::KronMatrix<Body::T> matrices[{count}] = {{{', '.join(matrices)}}};",
        "    km::KronSeparate<Body>::run<0>((const Body::C*)joint, matrices, (Body::T*)out, blockIdx.x);",
        "}",
    ]  # fmt: skip
    return "\n".join(text) + "\n"


def _chosen(values: Sequence[int]) -> str:
    """Return C++ that gives the value of number m."""
    found = str(values[-1])
    for number in reversed(range(len(values) - 1)):
        found = f"m == {number} ? {values[number]} : {found}"
    return found
