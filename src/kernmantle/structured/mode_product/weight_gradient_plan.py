"""Plans of parts of the sums over the batch for the gradient of Kronecker-sparse weights on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

MOST_PART_BYTES = 2**26  # of all parts of a sum together
DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class PartsPlan:
    """Plan of the kernel that adds partial sums, see ``kronsparse_add_parts.cuh``: ``rows`` threads share an entry."""

    arch: str
    dtype: str
    rows: int

    threads = 256

    def blocks(self, count: int) -> int:
        """Return the blocks for so many entries."""
        return -(-count // (4 * self.threads // self.rows))

    def __str__(self) -> str:
        return f"kron sparse parts {self.arch} of gradients, {self.rows} threads an entry, {self.dtype}"


def parts_plan(arch: str, dtype: str, slots: int) -> PartsPlan:
    """Return the plan that adds so many parts."""
    return PartsPlan(arch, dtype, 1 if slots < 8 else 4 if slots < 32 else 16)
