"""Text of LLVM functions: fresh names, blocks, loops and conditions."""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager

ELEMENTS = {"f32": "float", "f64": "double", "i32": "i32", "i64": "i64", "bool": "i32"}
STORED = {
    "f16": "half", "bf16": "i16", "f32": "float", "f64": "double", "i8": "i8", "u8": "i8", "i16": "i16",
    "i32": "i32", "i64": "i64", "bool": "i8",
}  # fmt: skip
"""Types in memory. Numbers of bfloat16 are their bits, since LLVM calls a function of a library to move one on machines
that have no instruction for it."""
SIZE = {"half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
FLOATING = ("half", "float", "double")
BY_EIGHTS = "!3"
"""Metadata of a loop that is unrolled eight times, which ``loop_hints`` defines."""


def integer_of(element: str) -> str:
    """Integer type as wide as an element."""
    return f"i{8 * SIZE[element]}"


def vector(element: str, lanes: int) -> str:
    """Return the type of that many elements; one element is a scalar."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix(kind: str) -> str:
    """Return the part of an intrinsic's name that stands for a type."""
    names = {"float": "f32", "double": "f64", "half": "f16"}
    if kind.startswith("<"):
        count, element = kind[1:-1].split(" x ")
        return f"v{count}{names.get(element, element)}"
    return names.get(kind, kind)


def floating_literal(value: float, element: str) -> str:
    """Return a float as LLVM spells it: the bits of the double that equals it."""
    if element == "float" and math.isfinite(value):
        value = max(-3.5e38, min(3.5e38, value))
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    return "0x" + struct.pack(">d", value).hex().upper()


def splat(literal: str, element: str, lanes: int) -> str:
    """Return a constant in every lane."""
    return literal if lanes == 1 else f"splat ({element} {literal})"


def loop_hints(unroll: int) -> str:
    """Return the metadata of a module's loops: how often the two forms of the micro-kernel are unrolled, and eight."""
    own = '!"llvm.loop.unroll.disable"' if unroll == 1 else f'!"llvm.loop.unroll.count", i32 {unroll}'
    loops = ["!0 = distinct !{!0, !1}", f"!1 = !{{{own}}}", "!2 = distinct !{!2, !1}"]
    return "\n".join([*loops, "!3 = distinct !{!3, !4}", '!4 = !{!"llvm.loop.unroll.count", i32 8}'])


class Function:
    """One function being written."""

    def __init__(self, head: str):
        self.head = head
        self.entry: list[str] = []
        self.instructions: list[str] = []
        self.label = "entry"
        self._count = 0

    def fresh(self, hint: str = "v") -> str:
        """Return a name that no other has."""
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, text: str, hint: str = "v") -> str:
        """Return the name of the result of an instruction."""
        name = self.fresh(hint)
        self.instructions.append(f"  {name} = {text}")
        return name

    def emit_void(self, text: str) -> None:
        """Instruction without a result."""
        self.instructions.append(f"  {text}")

    def alloca(self, element: str, count: int) -> str:
        """Stack memory for a number of elements, taken once at entry."""
        name = self.fresh("room")
        self.entry.append(f"  {name} = alloca {element}, i64 {count}, align 64")
        return name

    def start(self, label: str) -> None:
        """Begin a block."""
        self.instructions.append(f"{label[1:]}:")
        self.label = label[1:]

    def jump(self, label: str, tag: str = "") -> None:
        """Go to a block; ``tag`` is the metadata of the loop that this closes."""
        self.emit_void(f"br label {label}, !llvm.loop {tag}" if tag else f"br label {label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """Go to one of two blocks."""
        self.emit_void(f"br i1 {condition}, label {yes}, label {no}")

    @contextmanager
    def loop(self, start: str, stop: str, step: str = "1", tag: str = "") -> Generator[str]:
        """Counts from ``start`` below ``stop``; yields the counter."""
        with self.carry("", (), start, stop, step, tag) as (index, _, _):
            yield index

    @contextmanager
    def carry(
        self, kind: str, begun: Sequence[str], start: str, stop: str, step: str = "1", tag: str = ""
    ) -> Generator[tuple[str, list[str], list[str]]]:
        """A loop with values of its own, first ``begun``; yields the counter, them and a list for what follows."""
        head, body, done, index = self.fresh("head"), self.fresh("body"), self.fresh("done"), self.fresh("i")
        values, following = [self.fresh("acc") for _ in begun], list[str]()
        before = self.label
        self.jump(head)
        self.start(head)
        header = len(self.instructions)
        self.instructions += [""] * (1 + len(values))
        self.branch(self.emit(f"icmp slt i64 {index}, {stop}"), body, done)
        self.start(body)
        yield index, values, following
        after = self.emit(f"add nsw i64 {index}, {step}")
        carried = [(index, "i64", start, after)]
        carried += [(name, kind, *ends) for name, *ends in zip(values, begun, following, strict=True)]
        self.instructions[header : header + len(carried)] = [
            f"  {name} = phi {own} [ {first}, %{before} ], [ {later}, %{self.label} ]"
            for name, own, first, later in carried
        ]
        self.jump(head, tag)
        self.start(done)

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Write a block that runs only where the condition holds."""
        yes, done = self.fresh("yes"), self.fresh("done")
        self.branch(condition, yes, done)
        self.start(yes)
        yield
        self.jump(done)
        self.start(done)

    def i64(self, operation: str, left: str, right: str) -> str:
        """Integer arithmetic on counters."""
        return self.emit(f"{operation} i64 {left}, {right}")

    def add(self, left: str, right: str) -> str:
        """Return the sum of two counters."""
        return self.i64("add nsw", left, right)

    def multiply(self, left: str, right: str) -> str:
        """Return the product of two counters."""
        return self.i64("mul nsw", left, right)

    def least(self, left: str, right: str) -> str:
        """Smaller of two counters."""
        return self.emit(f"call i64 @llvm.smin.i64(i64 {left}, i64 {right})")

    def most(self, left: str, right: str) -> str:
        """Larger of two counters."""
        return self.emit(f"call i64 @llvm.smax.i64(i64 {left}, i64 {right})")

    def ceiling(self, value: str, step: int) -> str:
        """Return how many steps cover a counter."""
        return self.i64("sdiv", self.add(value, str(step - 1)), str(step))

    def at(self, pointer: str, index: str, element: str = "i8") -> str:
        """Return the address of an element."""
        return self.emit(f"getelementptr {element}, ptr {pointer}, i64 {index}", "p")

    def load(self, kind: str, pointer: str, align: int) -> str:
        """Return the value in memory."""
        return self.emit(f"load {kind}, ptr {pointer}, align {align}")

    def store(self, kind: str, value: str, pointer: str, align: int) -> None:
        """Put a value into memory."""
        self.emit_void(f"store {kind} {value}, ptr {pointer}, align {align}")

    def text(self) -> str:
        """Return the whole definition."""
        return "\n".join([f"define {self.head} {{", "entry:", *self.entry, *self.instructions, "}"])
