"""The micro-kernel of tiny outputs: one cell, whose vectors run along k and are joined after every block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.node import Node
from .builder import vector
from .gram_plan import CpuPlan, fast_power
from .micro_kernel import Register, Tile, map_buffers
from .spelling import Value
from .store import Position

_CELL: Position = (None, None)


class Across(Tile):
    """A tile of one cell. Its registers are scalars outside the loop; inside, each has several vectors along k."""

    def __init__(self, plan: CpuPlan, optimistic: bool, needed: set[tuple[str, str, int]]):
        super().__init__(plan, optimistic, needed)
        self.scalars = self.registers

    def _positions(self, _: set[str] | frozenset[str], /) -> list[Position]:
        return [_CELL]

    def _lanes(self, _: set[str], /) -> int:
        return 1

    def _position(self, node: Node, position: Position) -> Position:
        return (None, position[1] if "k" in self.dependences[node] else None)

    def _is_quick_power(self, node: Node) -> bool:
        return "k" in self.dependences[node] and fast_power(node, self.roles) and not self.nest.reproducible

    def _is_quick_extremum(self, register: Register) -> bool:
        return bool(self._reduction(register).extremum)

    def _loaded(self, name: str, position: Position) -> Value:
        f, plan = self.f, self.plan
        array, lanes, index = self.packed.get(name, f"%x_{name}"), 1, "0"
        if "k" in self.roles[name]:
            lanes, index = plan.lanes, f.add(self.k, str((position[1] or 0) * plan.lanes))
        text = f.load(vector(self.element, lanes), f.at(array, index, self.element), plan.width)
        return Value(text, "value", lanes)

    def _bounds(self) -> tuple[str, int]:
        span = self.plan.lanes * self.plan.vectors
        return self.f.multiply(self.f.i64("sdiv", "%depth", str(span)), str(span)), span

    def _loop(self, loop_tag: str) -> list[str]:
        lanes, vectors = self.plan.lanes, range(self.plan.vectors)
        self.registers = [replace(one, position=(None, j), lanes=lanes) for one in self.scalars for j in vectors]
        texts = self._rest(super()._loop(loop_tag))
        self.registers = self.scalars
        return self._joined(texts)

    def _rest(self, texts: list[str]) -> list[str]:
        """Return the registers after the positions that fill no whole step; lanes beyond the end keep what they had."""
        f, plan, span = self.f, self.plan, self.plan.lanes * self.plan.vectors
        rest = f.i64("srem", "%depth", str(span))
        before, some, ready = f.label, f.fresh("some"), f.fresh("ready")
        f.branch(f.emit(f"icmp sgt i64 {rest}, 0"), some, ready)
        f.start(some)
        memo, bound, spread, packed = dict(self.memo), dict(self.bound), dict(self.spell.spread), dict(self.packed)
        start, last = f.i64("sub nsw", "%depth", rest), f.i64("sub nsw", rest, "1")
        for buffer in map_buffers(plan):
            if "k" in buffer.roles:
                copy = self.packed[buffer.name] = f.alloca(self.element, span)
                origin = f.at(f"%x_{buffer.name}", start, self.element)
                with f.loop("0", str(span)) as lane:
                    value = f.load(self.element, f.at(origin, f.least(lane, last), self.element), plan.width)
                    f.store(self.element, value, f.at(copy, lane, self.element), plan.width)
        self.k = "0"
        for register, text in zip(self.registers, texts, strict=True):
            self._read(register, text)
        new = self._step()
        chosen = self._chosen(new, texts, rest)
        self.memo, self.bound, self.spell.spread, self.packed = memo, bound, spread, packed
        after = f.label
        f.jump(ready)
        f.start(ready)
        return [
            f.emit(f"phi {self.register_type(register)} [ {old}, %{before} ], [ {one}, %{after} ]")
            for register, old, one in zip(self.registers, texts, chosen, strict=True)
        ]

    def _chosen(self, new: Sequence[str], old: Sequence[str], rest: str) -> list[str]:
        f, lanes = self.f, self.plan.lanes
        self.spell.spread = {}
        masks: list[str] = []
        for j in range(self.plan.vectors):
            left = f.emit(f"trunc i64 {f.i64('sub nsw', rest, str(j * lanes))} to i32")
            counts = ", ".join(f"i32 {lane}" for lane in range(lanes))
            kind = vector("i32", lanes)
            first = f.emit(f"insertelement {kind} poison, i32 {left}, i64 0")
            wide = f.emit(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")
            masks.append(f.emit(f"icmp slt {kind} <{counts}>, {wide}"))
        return [
            self.spell.select(masks[register.position[1] or 0], one, other, self.register_type(register), lanes)
            for register, one, other in zip(self.registers, new, old, strict=True)
        ]

    def _joined(self, texts: list[str]) -> list[str]:
        """Return scalars from the vectors of every register: vectors by pairs, then halves of the last one."""
        vectors, lanes = self.plan.vectors, self.plan.lanes
        states = [texts[j::vectors] for j in range(vectors)]
        saved = self.spell.spread
        while len(states) > 1:
            halves = zip(states[::2], states[1::2], strict=False)
            states = [self._merged_two(left, right, lanes) for left, right in halves] + states[len(states) & ~1 :]
        state: list[str] = states[0]
        while lanes > 1:
            lanes //= 2
            state = self._merged_two(self._half(state, lanes, 0), self._half(state, lanes, 1), lanes)
        self.spell.spread = saved
        return state

    def _half(self, state: Sequence[str], lanes: int, part: int) -> list[str]:
        """Return the lower or upper lanes of every register."""
        texts: list[str] = []
        shuffle = ", ".join(f"i32 {part * lanes + lane}" for lane in range(lanes))
        for register, text in zip(self.scalars, state, strict=True):
            kind = self.register_type(replace(register, lanes=2 * lanes))
            if lanes == 1:
                texts.append(self.f.emit(f"extractelement {kind} {text}, i64 {part}"))
            else:
                shuffled = f"shufflevector {kind} {text}, {kind} poison, <{lanes} x i32> <{shuffle}>"
                texts.append(self.f.emit(shuffled))
        return texts

    def _merged_two(self, left: Sequence[str], right: Sequence[str], lanes: int) -> list[str]:
        """Merged registers of two ranges."""
        memo, bound = dict(self.memo), dict(self.bound)
        self.spell.spread = {}
        registers = [replace(register, lanes=lanes) for register in self.scalars]
        for register, mine, other in zip(registers, left, right, strict=True):
            self._read(register, mine)
            self._read(register, other, later=True)
        texts = [self._carried(register, self.value(self.merges[register.name], _CELL)) for register in registers]
        self.memo, self.bound = memo, bound
        return texts
