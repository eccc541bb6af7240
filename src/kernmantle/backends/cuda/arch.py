"""The table of GPU generations: a row has the instructions, limits and rates of one; no other code compares names.

A plan asks whether a generation has a feature, never which one it is. Limits are those of NVIDIA's table of compute
capabilities; rates are in operations a clock of one multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Feature = Literal[
    "warp_specialized", "wgmma", "fp64_mma", "overlapped_launch", "clusters", "bounded_registers", "measured"
]  # fmt: skip
"""Features that a tile may require.

``warp_specialized``: barriers in shared memory, bulk copies and registers that move between warps.
``wgmma``: asynchronous products of groups of four warps, from shared memory.
``fp64_mma``: tensor cores that multiply float64 faster than its additions are.
``overlapped_launch``: programmatic dependent launch, a kernel starts while the one before it ends.
``clusters``: blocks that start together and read one another's shared memory.
``bounded_registers``: the compiler was seen to keep to fewer registers where several blocks are to be resident.
``measured``: tiles that won in measurements on this generation only (decision 0005).
"""
Features = frozenset[Feature]


@dataclass(frozen=True)
class Arch:
    """One generation; bytes of shared memory, registers of 32 bits.

    ``target`` is the architecture passed to NVRTC: instructions of one generation only need its own target.
    ``sm_count`` are the multiprocessors of the card for which plans are made on machines without a GPU, 0 if there is
    none. ``half_products`` is the peak rate of float16 products with float32 sums, per clock of a multiprocessor;
    ``mma_share`` is the share of it that ``mma.sync`` reaches. ``memory_rate`` are bytes a second that a pass over
    memory reads and writes, 0.8 of the nominal bandwidth.
    """

    name: str
    target: str
    features: Features = frozenset()
    sm_count: int = 0
    shared_per_block: int = 99 << 10
    shared_per_sm: int = 100 << 10
    registers_per_sm: int = 1 << 16
    threads_per_sm: int = 1536
    half_products: int = 1024
    mma_share: float = 1.0
    memory_rate: float = 0.7e12


_FP64: Features = frozenset({"fp64_mma"})
_OVERLAPPED: Features = frozenset({"overlapped_launch", "clusters"})
_PIPELINED: Features = _OVERLAPPED | Features({"warp_specialized"})
_BOUNDED: Features = frozenset({"bounded_registers"})
_HOPPER: Features = _PIPELINED | _BOUNDED | Features({"fp64_mma", "wgmma", "measured"})

# Consumer cards take half of their products of halves where these are added in float32. On Hopper mma.sync reaches
# 0.38 of what wgmma does (H200, decision 0003). No kernel is written for tcgen05 of sm_100 and sm_103, whose rows
# therefore lack "wgmma" and any other feature for it: they take mma.sync, with the spills that tests/golden records.
_ROWS = (
    Arch("sm_80", "sm_80", _FP64 | _BOUNDED, 108, 163 << 10, 164 << 10, threads_per_sm=2048, memory_rate=1.6e12),
    Arch("sm_86", "sm_86", half_products=512),
    Arch("sm_87", "sm_87", shared_per_block=163 << 10, shared_per_sm=164 << 10, half_products=512),
    Arch("sm_89", "sm_89", half_products=512),
    Arch("sm_90", "sm_90a", _HOPPER, 132, 227 << 10, 228 << 10, threads_per_sm=2048, half_products=2048,
         mma_share=0.38, memory_rate=3.5e12),
    Arch("sm_100", "sm_100a", _PIPELINED | _FP64, 148, 227 << 10, 228 << 10, threads_per_sm=2048, memory_rate=6.4e12),
    Arch("sm_103", "sm_103a", _PIPELINED, 0, 227 << 10, 228 << 10, threads_per_sm=2048),
    Arch("sm_120", "sm_120a", _OVERLAPPED, 84, half_products=512, memory_rate=1.4e12),
    Arch("sm_121", "sm_121a", _OVERLAPPED, half_products=512),
)  # fmt: skip

ARCHS: dict[str, Arch] = {row.name: row for row in _ROWS}


def arch(name: str) -> Arch:
    """Return the row of a generation such as "sm_90"; for one without a row, what every generation has."""
    return ARCHS.get(name) or Arch(name, name)
