"""Loop nests: a program with its axes given roles and its arrays given storage types. One nest, one kernel.

Roles: ``m`` and ``n`` span the output tile, ``k`` is the inner reduced loop and ``l`` the outer one; three
batch roles ``a``, ``b``, ``c`` lie outside everything. Any role may be missing, its extent is then 1.
Every buffer (operand, then output) has one stride per role, in elements, 0 where it lacks the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.node import Node
from ..ir.reductions import Reduction
from ..ir.show import pretty

BATCH = "abc"
ROLES = "abcmnkl"
SIZES = (*ROLES, "splits")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "bool": 1}


@dataclass(frozen=True)
class Buffer:
    """One array of a kernel: which tile and reduction roles (of "mnkl") it has and how it is stored.

    Storage types are f16 bf16 f32 f64 i8 u8 i16 i32 i64 bool. Batch roles are not listed: every buffer has
    batch strides, 0 where it is shared.
    """

    name: str
    roles: str
    dtype: str


@dataclass(frozen=True)
class Nest:
    """The loops and expressions that one kernel computes.

    ``outputs`` read the finished accumulators s0, s1, ... and the buffers without k and l. With ``partial`` the
    kernel writes the raw registers of every reduction instead, one set per range of the outermost reduced
    loop: the ranges are the role "splits", whose stride takes the place of k in the outputs.
    With ``vjp`` it is a ``gradient_patterns.Vjp``: k are its rows, and l is an axis of outputs, not reduced.
    ``compute`` (f32 f64 i32 i64 bool) is the type of the arithmetic, of "value" registers and of numbers.
    With ``symmetric`` x0 and x1 are the same array and the kernel may compute half and mirror it. ``precision`` says
    how products may be taken: "ieee" as they are written, "default" by any means as accurate as float32, "tf32" once.
    With ``reproducible`` mapped values round as in every other such kernel: backends neither fuse multiplications
    into additions nor use quicker forms of functions.
    """

    operands: tuple[Buffer, ...]
    numbers: tuple[str, ...]
    outs: tuple[Buffer, ...]
    map: tuple[Node, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Node, ...]
    compute: str
    symmetric: bool = False
    partial: bool = False
    precision: str = "ieee"
    vjp: bool = False
    reproducible: bool = False

    @property
    def expression(self) -> str:
        """The map and the reductions as text, ``sum abs(x0 - x1)``, then the epilogue."""
        mapped = ", ".join(
            f"{reduction.name} {pretty(node)}" for reduction, node in zip(self.reductions, self.map, strict=False)
        )
        plain = [node.op == "var" for node in self.outputs]
        return mapped if all(plain) else f"{mapped} -> {', '.join(map(pretty, self.outputs))}"

    @property
    def mirrors(self) -> bool:
        """Return whether computing half and mirroring it is right: no other array knows rows from columns."""
        others = [buffer for buffer in self.operands if buffer.name not in ("x0", "x1")]
        return self.symmetric and not any(set(buffer.roles) & set("mn") for buffer in others)

    @property
    def has_outer_loop(self) -> bool:
        """Return whether operands or results vary along a second reduced axis."""
        return any("l" in buffer.roles for buffer in self.buffers)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Operands, then outputs: the order of the pointers and of the strides."""
        return self.operands + self.outs


# Arguments of every kernel, in this order:
#   pointers  one per buffer
#   integers  the extents of SIZES, then for each buffer its strides for ROLES
#   numbers   one float64 per name in Nest.numbers
def size_slot(role: str) -> int:
    """Return the index of an extent among the integers."""
    return SIZES.index(role)


def stride_slot(buffer: int, role: str) -> int:
    """Return the index of a stride among the integers."""
    return len(SIZES) + buffer * len(ROLES) + ROLES.index(role)


def sizes_of(integers: Sequence[int]) -> dict[str, int]:
    """Return the extents by role from the integers of a kernel."""
    return dict(zip(SIZES, integers, strict=False))


def batch_of(sizes: Mapping[str, int]) -> int:
    """Return the entries of the batch axes."""
    return sizes["a"] * sizes["b"] * sizes["c"]


def strides_of(integers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the strides of every buffer, one for each of ``ROLES``, from the integers of a kernel."""
    starts = range(len(SIZES), len(integers), len(ROLES))
    return tuple(tuple(integers[start : start + len(ROLES)]) for start in starts)


@dataclass(frozen=True)
class Layout:
    """Memory layout of the arrays of one call: of each strides for ROLES, in elements, and alignment in bytes."""

    strides: tuple[tuple[int, ...], ...]
    alignment: tuple[int, ...]

    def of(self, nest: Nest) -> Layout:
        """Return the layout of the buffers of a nest, which are the first."""
        count = len(nest.buffers)
        return Layout(self.strides[:count], self.alignment[:count])


def sizes_and_layout(integers: Sequence[int], alignment: Sequence[int]) -> tuple[dict[str, int], Layout]:
    """Return the extents of roles and the layout of buffers that the integers of a call have."""
    return sizes_of(integers), Layout(strides_of(integers), tuple(alignment))


def byte_steps(buffers: Sequence[Buffer], integers: Sequence[int], role: str) -> list[int]:
    """Return the bytes from one index of a role to the next of every buffer, from the integers of a kernel."""
    return [BYTES[buffer.dtype] * integers[stride_slot(index, role)] for index, buffer in enumerate(buffers)]


def integer_slots(
    buffers: Sequence[Buffer | None], sizes: Mapping[str, int], roles: str = "mnkl", splits: bool = False
) -> tuple[int, ...]:
    """Return the slots of the extents of ``roles`` and of the strides that a kernel takes.

    Batch roles of extent 1 are left out, and so is a buffer that is None; with ``splits`` that extent is taken too.
    """
    batch = [role for role in BATCH if sizes[role] > 1]
    slots = [size_slot(role) for role in (*batch, *roles, *(["splits"] * splits))]
    for index, buffer in enumerate(buffers):
        if buffer is not None:
            slots += [stride_slot(index, role) for role in ROLES if role in batch or role in buffer.roles]
    return tuple(slots)
