"""Stack programs: lists of operands and instructions, read as the expression that they compute.

An instruction takes its first argument from the top of the stack. Every type has a stack of its own. A value that
is missing or left over is an error. Arithmetic is that of the library: subnormals are kept, and functions that
are approximate there are accurate here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from ...ir.functions import FUNCTIONS
from ...ir.traced import Traced

_F = FUNCTIONS


class Instruction(NamedTuple):
    """Signature of an instruction: types of its arguments, the first from the top, and of its result."""

    takes: str
    gives: str
    function: Callable[..., Any]


class PtxInstruction(Enum):
    """Instructions on float32 values; ``p`` stands for a predicate."""

    copysign_f32 = Instruction("ff", "f", lambda a, b: _F["copysign"](b, a))
    add_ftz_f32 = Instruction("ff", "f", lambda a, b: a + b)
    sub_ftz_f32 = Instruction("ff", "f", lambda a, b: a - b)
    mul_ftz_f32 = Instruction("ff", "f", lambda a, b: a * b)
    fma_rn_ftz_f32 = Instruction("fff", "f", lambda a, b, c: a * b + c)
    div_approx_ftz_f32 = Instruction("ff", "f", lambda a, b: a / b)
    abs_ftz_f32 = Instruction("f", "f", abs)
    neg_ftz_f32 = Instruction("f", "f", lambda a: -a)
    min_ftz_f32 = Instruction("ff", "f", _F["minimum"])
    max_ftz_f32 = Instruction("ff", "f", _F["maximum"])
    rcp_approx_ftz_f32 = Instruction("f", "f", lambda a: 1 / a)
    sqrt_approx_ftz_f32 = Instruction("f", "f", _F["sqrt"])
    rsqrt_approx_ftz_f32 = Instruction("f", "f", _F["rsqrt"])
    sin_approx_ftz_f32 = Instruction("f", "f", _F["sin"])
    cos_approx_ftz_f32 = Instruction("f", "f", _F["cos"])
    lg2_approx_ftz_f32 = Instruction("f", "f", _F["log2"])
    ex2_approx_ftz_f32 = Instruction("f", "f", _F["exp2"])
    tanh_approx_f32 = Instruction("f", "f", _F["tanh"])
    setp_lt_ftz_f32 = Instruction("ff", "p", lambda a, b: a < b)
    setp_gt_ftz_f32 = Instruction("ff", "p", lambda a, b: a > b)
    selp_f32 = Instruction("ffp", "f", lambda a, b, c: _F["where"](c, a, b))


@dataclass
class _Machine:
    """The stacks, by type, the numbered places of ``store``, and the depths waiting on the meta stack."""

    stacks: dict[str, list[Any]] = field(default_factory=lambda: {"f": [], "p": [], "s": [], "u": []})
    slots: dict[int, tuple[str, Any]] = field(default_factory=dict[int, tuple[str, Any]])
    depths: list[int] = field(default_factory=list[int])

    def need(self, kind: str, count: int) -> list[Any]:
        """Return the stack of a type, if it is deep enough."""
        stack = self.stacks[kind]
        if len(stack) < count:
            raise ValueError(f"{count} values are needed on the {_NAMES[kind]} stack, it has {len(stack)}")
        return stack

    def depth(self) -> int:
        """Return the depth that an instruction takes from the meta stack."""
        if not self.depths:
            raise ValueError("a depth is needed on the meta stack: push it with Stack.meta_constant(depth)")
        return self.depths.pop()

    def run(self, instruction: Instruction) -> None:
        """Replace arguments by the result."""
        popped = [self.need(kind, 1).pop() for kind in instruction.takes]
        self.stacks[instruction.gives].append(instruction.function(*popped))


_NAMES = {"f": "f32", "p": "pred", "s": "s32", "u": "u32"}


@dataclass(frozen=True)
class Move:
    """An instruction that moves values without computing."""

    name: str
    act: Callable[[_Machine], None]

    def __repr__(self) -> str:
        return self.name


def _permute(kind: str, count: int, order: Callable[[list[Any]], list[Any]]) -> Callable[[_Machine], None]:
    def act(machine: _Machine) -> None:
        stack = machine.need(kind, count)
        stack[-count:] = order(stack[-count:])

    return act


def _yank(machine: _Machine, kind: str) -> None:
    depth = machine.depth()
    stack = machine.need(kind, depth + 1)
    stack.append(stack[-1 - depth])


def _swap_with(machine: _Machine, kind: str) -> None:
    depth = machine.depth()
    stack = machine.need(kind, depth + 1)
    stack[-1], stack[-1 - depth] = stack[-1 - depth], stack[-1]


def _replace(machine: _Machine, kind: str) -> None:
    depth = machine.depth()
    stack = machine.need(kind, depth + 1)
    stack[-1 - depth] = stack[-1]
    stack.pop()


def _drop(machine: _Machine, kind: str) -> None:
    depth = machine.depth()
    stack = machine.need(kind, depth)
    del stack[len(stack) - depth :]


class Stack(Enum):
    """The stacks, one a type, and the instructions that move values on them."""

    f32 = "f"
    s32 = "s"
    u32 = "u"
    pred = "p"

    def _move(self, name: str, act: Callable[[_Machine], None]) -> Move:
        return Move(f"{self.name}.{name}", act)

    @property
    def dup(self) -> Move:
        """Double the top."""
        return self._move("dup", _permute(self.value, 1, lambda top: top * 2))

    @property
    def swap(self) -> Move:
        """Exchange the two values at the top."""
        return self._move("swap", _permute(self.value, 2, lambda top: top[::-1]))

    @property
    def rotate(self) -> Move:
        """Put the top below the two values under it."""
        return self._move("rotate", _permute(self.value, 3, lambda top: [top[2], *top[:2]]))

    @property
    def reverse(self) -> Move:
        """Turn the stack over."""
        return self._move("reverse", lambda machine: machine.stacks[self.value].reverse())

    @property
    def yank_dup(self) -> Move:
        """Push a copy of the value at the depth on the meta stack."""
        return self._move("yank_dup", lambda machine: _yank(machine, self.value))

    @property
    def swap_with(self) -> Move:
        """Exchange the top with the value at the depth on the meta stack."""
        return self._move("swap_with", lambda machine: _swap_with(machine, self.value))

    @property
    def replace(self) -> Move:
        """Move the top to the place at the depth on the meta stack, over what is there."""
        return self._move("replace", lambda machine: _replace(machine, self.value))

    @property
    def drop(self) -> Move:
        """Drop as many values as the meta stack says."""
        return self._move("drop", lambda machine: _drop(machine, self.value))

    def constant(self, v: float) -> Move:
        """Push a number."""
        if self is Stack.pred:
            raise ValueError("a predicate has no constants: compare two numbers")
        return self._move(f"constant({v})", lambda machine: machine.stacks[self.value].append(v))

    def store(self, idx: int) -> Move:
        """Move the top to a numbered place."""

        def act(machine: _Machine) -> None:
            machine.slots[int(idx)] = (self.value, machine.need(self.value, 1).pop())

        return self._move(f"store({int(idx)})", act)

    @classmethod
    def load(cls, idx: int) -> Move:
        """Push what a numbered place holds."""

        def act(machine: _Machine) -> None:
            if int(idx) not in machine.slots:
                raise ValueError(f"place {int(idx)} is loaded before anything is stored there")
            kind, value = machine.slots[int(idx)]
            machine.stacks[kind].append(value)

        return Move(f"load({int(idx)})", act)

    @classmethod
    def meta_constant(cls, v: int) -> Move:
        """Push a depth on the meta stack."""
        return Move(f"meta_constant({v})", lambda machine: machine.depths.append(v))


def value_of(body: Any) -> Any:
    """Return what a body computes: a stack program is run on symbolic values, an expression is itself.

    Raises
    ------
    TypeError
        If the program has an entry that is neither a value nor an instruction.
    ValueError
        If an instruction lacks a value, or other than one value is left.
    """
    if not isinstance(body, (list, tuple)):
        return body
    machine = _Machine()
    entries: Sequence[Any] = body
    for index, entry in enumerate(entries):
        try:
            if isinstance(entry, PtxInstruction):
                machine.run(entry.value)
            elif isinstance(entry, Move):
                entry.act(machine)
            elif isinstance(entry, Traced):
                machine.stacks["f"].append(entry)
            else:
                raise TypeError(f"{entry!r} is neither a register nor an instruction; numbers are Stack.f32.constant")
        except ValueError as error:
            raise ValueError(f"entry {index} of the stack program, {entry}: {error}") from error
    left = {_NAMES[kind]: len(stack) for kind, stack in machine.stacks.items() if stack}
    if left != {"f32": 1}:
        raise ValueError(f"a stack program must leave one f32 value, this one leaves {left or 'none'}")
    return machine.stacks["f"][0]
