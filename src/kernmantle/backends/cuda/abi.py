"""The arguments of CUDA kernels: one marshalling of pointers, extents, strides and numbers for all emitters.

Parameters have the order of ``compiler.nest``. Extents and strides that a plan does not list are constants of the
kernel: an extent of 1, a stride of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...compiler.nest import ROLES, SIZES, size_slot, stride_slot
from .arch import arch as generation


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel for ``buffers`` arrays and ``numbers`` numbers; ``slots`` are its integer arguments.

    ``absent`` is a buffer without an array. The elements of the first ``paired`` buffers are read in pairs along k: the
    kernel counts pairs, and their strides are those of pairs.
    """

    buffers: int
    slots: tuple[int, ...]
    numbers: int
    absent: int | None = None
    paired: int = 0

    @property
    def pointer_parameters(self) -> list[str]:
        """Return the declarations of the pointers."""
        return [f"void* p{i}" for i in range(self.buffers) if i != self.absent]

    @property
    def integer_parameters(self) -> list[str]:
        """Return the declarations of the extents and strides."""
        return [f"km::i64 i{slot}" for slot in self.slots]

    @property
    def number_parameters(self) -> list[str]:
        """Return the declarations of the numbers."""
        return [f"double v{i}" for i in range(self.numbers)]

    @property
    def pointers(self) -> str:
        """Return the initialiser of the pointers."""
        return ", ".join("0" if i == self.absent else f"p{i}" for i in range(self.buffers))

    @property
    def sizes(self) -> str:
        """Return the initialiser of the extents."""
        halved = " / 2" if self.paired else ""
        return ", ".join(self._integer(size_slot(role), 1) + halved * (role == "k") for role in SIZES)

    @property
    def strides(self) -> str:
        """Return the initialiser of the strides, those of a buffer in braces."""
        rows = (", ".join(self._stride(buffer, role) for role in ROLES) for buffer in range(self.buffers))
        return ", ".join(f"{{{row}}}" for row in rows)

    def values(self, kind: str) -> list[str]:
        """Return the numbers as a C++ type."""
        return [f"{kind}(v{i})" for i in range(self.numbers)]

    def _integer(self, slot: int, otherwise: int) -> str:
        return f"i{slot}" if slot in self.slots else str(otherwise)

    def _stride(self, buffer: int, role: str) -> str:
        own = self._integer(stride_slot(buffer, role), 0)
        if buffer >= self.paired or own == "0":
            return own
        return "1" if role == "k" else f"{own} / 2"


def table_parameters(degree: int) -> list[str]:
    """Return the declarations of what a power by table needs, see ``pow_tables.power_arguments``."""
    return ["double good", *(f"km::Two q{i}" for i in range((degree + 1) // 2 + 2))]


def table_values(degree: int) -> list[str]:
    """Return these as they stand in the record of numbers."""
    return ["float(good)", *(f"q{i}.{member}" for i in range((degree + 1) // 2 + 2) for member in "ab")]


def table_members(degree: int) -> str:
    """Return the declaration of that record's members."""
    slopes = ", ".join(f"q{i + 1}" for i in range((degree + 1) // 2 * 2))
    return f"float good, {slopes}, s0, s1, s2, s3;"


def register_split(arch: str, threads: int, resident: int, producer: int) -> tuple[int, int]:
    """Return the registers of a thread of the producer and of a consumer of a warp-specialized kernel.

    Blocks of ``threads``, 128 of them producers, are ``resident`` on a multiprocessor; consumers share the registers
    that producers do not have, up to 240 each.
    """
    groups = threads // 128 - 1
    each = generation(arch).registers_per_sm // (threads * resident) // 8 * 8
    return producer, min(240, (each * (groups + 1) - producer) // groups // 8 * 8)


def launch_bounds(threads: int, resident: int, name: str, parameters: Sequence[str]) -> list[str]:
    """Return the head of a kernel, up to the brace that opens its body."""
    return [
        f'extern "C" __global__ void __launch_bounds__({threads}, {resident}) {name}(',
        f"    {', '.join(parameters)}) {{",
    ]
