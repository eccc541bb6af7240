"""LLVM functions that take a panel of the matrix: reduced into registers, or searched for small entries.

``km_consume(panel, weights, kept, rows, start, width)`` takes the ``rows`` lines of a panel, the columns of the matrix
from ``start`` on, into what is kept of ``width`` columns of the result; ``km_finish`` writes the result from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ...ir.node import Node, postorder, var
from .builder import ELEMENTS, SIZE, STORED, Function, vector
from .pack import narrowed, scatter_name
from .row_reduce_plan import CpuRowPlan
from .spelling import ExpressionEmitter, Value

Position = tuple[int, int]


def consumers(plan: CpuRowPlan, needed: set[tuple[str, str, int]]) -> list[str]:
    """Return the functions of a plan."""
    form = _Selection if plan.rows.selects else _Reduction
    made = form(plan, needed)
    return [*made.consume(), made.finish()]


class _Consumer(ABC):
    """The accumulators and the loop that both kinds of consumer share."""

    def __init__(self, plan: CpuRowPlan, needed: set[tuple[str, str, int]]):
        self.plan, self.matrix, self.needed = plan, plan.matrix, needed
        self.element = ELEMENTS[plan.matrix.nest.compute]
        self.lanes, self.columns, self.size = plan.matrix.lanes, plan.matrix.columns, plan.matrix.width
        self.vectors = range(plan.matrix.vectors)
        self.kind = vector(self.element, self.lanes)

    def begin(self) -> Function:
        """Return the head of ``km_consume``."""
        return Function(
            "internal fastcc void @km_consume(ptr noalias %panel, ptr noalias %weights, ptr noalias %kept, "
            "i64 %rows, i64 %start, i64 %width) noinline"
        )

    def emitter(self, f: Function) -> ExpressionEmitter:
        """Arithmetic in a function."""
        return ExpressionEmitter(f, self.element, self.lanes, self.needed)

    def finish(self) -> str:
        """Return the function that writes finished rows."""
        outs = self.plan.rows.outs
        parameters = [f"ptr %into{i}, i64 %along{i}, i64 %across{i}" for i in range(len(outs))]
        own = f"ptr noalias %kept, i64 %width, i64 %columns, {', '.join(parameters)}"
        f = Function(f"internal fastcc void @km_finish({own}) noinline")
        with f.loop("0", "%width") as c:
            for i, out in enumerate(outs):
                row_address = self.finished_column(f, c, out.name, out.dtype)
                into = f.at(f"%into{i}", f.multiply(c, f"%across{i}"), STORED[out.dtype])
                call = f"call fastcc void {scatter_name(out.dtype)}(ptr {into}, ptr {row_address}, i64 0, i64 %along{i}"
                f.emit_void(f"{call}, i64 1, i64 %columns, i64 0)")
        f.emit_void("ret void")
        return f.text()

    @abstractmethod
    def finished_column(self, f: Function, c: str, out: str, dtype: str) -> str:
        """Return the address of a finished column of an output, in its storage type."""

    def narrow(self, f: Function, values: Sequence[Value], dtype: str) -> str:
        """Return the values of all vectors in a buffer of a storage type."""
        target = STORED[dtype]
        buffer = f.alloca(target, self.columns)
        for j, value in enumerate(values):
            text = narrowed(f, value.text, self.element, dtype, self.lanes)
            f.store(vector(target, self.lanes), text, f.at(buffer, str(j * self.lanes), target), SIZE[target])
        return buffer


def evaluated(spell: ExpressionEmitter, node: Node, env: Mapping[str, Value]) -> Value:
    """Return the value of an expression."""
    values_of: dict[Node, Value] = {}
    for each in postorder([node]):
        if each.op == "var":
            values_of[each] = env[each.name]
        elif each.number is not None:
            values_of[each] = spell.constant(each.number)
        else:
            values_of[each] = spell.apply(each, [values_of[arg] for arg in each.args])
    return values_of[node]


class _Reduction(_Consumer):
    """A reduction by the expressions of the table; registers are stack slots, which LLVM makes registers of."""

    def __init__(self, plan: CpuRowPlan, needed: set[tuple[str, str, int]]):
        super().__init__(plan, needed)
        self.reduction = plan.rows.reduction
        self.count = len(self.reduction.kinds)
        self.tile_positions = [(c, j) for c in range(plan.group) for j in self.vectors]

    def consume(self) -> list[str]:
        """Return the function that reduces a panel."""
        f = self.begin()
        spell, plan = self.emitter(f), self.plan
        slots = [{position: self._slots(f) for position in self.tile_positions} for _ in range(plan.chains)]
        whole = f.multiply(f.i64("sdiv", "%rows", str(plan.chains)), str(plan.chains))
        with f.loop("0", "%width", str(plan.group)) as group:
            self._scoped(spell, lambda: self._initial(spell, slots))
            weights = f.at("%weights", f.multiply(group, "%rows"), self.element)
            with f.loop("0", whole, str(plan.chains)) as n:
                self._scoped(spell, lambda: self._steps(spell, slots, weights, n))
            with f.loop(whole, "%rows") as n:
                self._scoped(spell, lambda: self._steps(spell, slots[:1], weights, n))
            self._scoped(spell, lambda: self._keep(spell, slots, group))
        f.emit_void("ret void")
        return [f.text()]

    def _scoped(self, spell: ExpressionEmitter, write: Callable[[], None]) -> None:
        """Write a block, whose spread scalars are not known behind it."""
        write()
        spell.spread = {}

    def _slots(self, f: Function) -> list[str]:
        return [f.alloca(self.kind, 1) for _ in range(self.count)]

    def _load(self, f: Function, slot: str) -> Value:
        return Value(f.load(self.kind, slot, self.size), "value", self.lanes)

    def _initial(self, spell: ExpressionEmitter, slots: Sequence[Mapping[Position, list[str]]]) -> None:
        for chain in slots:
            for position in self.tile_positions:
                for slot, init in zip(chain[position], self.reduction.init, strict=True):
                    spell.function.store(self.kind, spell.literals(float(init), self.lanes), slot, self.size)

    def _steps(
        self, spell: ExpressionEmitter, slots: Sequence[Mapping[Position, list[str]]], weights: str, n: str
    ) -> None:
        f, plan = spell.function, self.plan
        for i, chain in enumerate(slots):
            at = f.add(n, str(i)) if i else n
            row_address = f.at("%panel", f.multiply(at, str(self.columns)), self.element)
            entries = [self._load(f, f.at(row_address, str(j * self.lanes), self.element)) for j in self.vectors]
            origin = f.at(weights, f.multiply(at, str(plan.group)), self.element)
            for c in range(plan.group):
                factor = None
                if plan.rows.v is not None:
                    text = f.load(self.element, f.at(origin, str(c), self.element), self.size)
                    factor = Value(text, "value", 1)
                for j in self.vectors:
                    value = entries[j]
                    if factor is not None:
                        value = spell.apply(Node("mul", (var("w"), var("v"))), [value, factor])
                    self._join(spell, self.reduction.step, chain[c, j], {"t": value})

    def _join(
        self, spell: ExpressionEmitter, nodes: Sequence[Node], slots: Sequence[str], env: Mapping[str, Value]
    ) -> None:
        """Replace registers by expressions of themselves."""
        f = spell.function
        own = {f"s{i}": self._load(f, slot) for i, slot in enumerate(slots)}
        new = [spell.wide(evaluated(spell, node, {**own, **env}), self.lanes) for node in nodes]
        for value, slot in zip(new, slots, strict=True):
            f.store(self.kind, value.text, slot, self.size)

    def _keep(self, spell: ExpressionEmitter, slots: Sequence[Mapping[Position, list[str]]], group: str) -> None:
        """Join the chains, then what was kept of the panels before."""
        f, merge = spell.function, self.reduction.merge
        assert merge is not None
        for chain in slots[1:]:
            for position in self.tile_positions:
                later = {f"r{i}": self._load(f, slot) for i, slot in enumerate(chain[position])}
                self._join(spell, merge, slots[0][position], later)
        saved = f.at("%kept", f.multiply(group, str(self.count * self.columns)), self.element)
        with f.when(f.emit("icmp ne i64 %start, 0")):
            for c, j in self.tile_positions:
                own = [self._load(f, self._at(f, saved, c, i, j)) for i in range(self.count)]
                later = {f"r{i}": self._load(f, slot) for i, slot in enumerate(slots[0][c, j])}
                env = {f"s{i}": value for i, value in enumerate(own)} | later
                new = [spell.wide(evaluated(spell, node, env), self.lanes) for node in merge]
                for value, slot in zip(new, slots[0][c, j], strict=True):
                    f.store(self.kind, value.text, slot, self.size)
        for c, j in self.tile_positions:
            for i, slot in enumerate(slots[0][c, j]):
                f.store(self.kind, self._load(f, slot).text, self._at(f, saved, c, i, j), self.size)

    def _at(self, f: Function, saved: str, c: int, i: int, j: int) -> str:
        return f.at(saved, str((c * self.count + i) * self.columns + j * self.lanes), self.element)

    def finished_column(self, f: Function, c: str, out: str, dtype: str) -> str:  # noqa: ARG002
        """Finished values of one column of the result."""
        spell = self.emitter(f)
        saved = f.at("%kept", f.multiply(c, str(self.count * self.columns)), self.element)
        values: list[Value] = []
        for j in self.vectors:
            env = {f"s{i}": self._load(f, self._at(f, saved, 0, i, j)) for i in range(self.count)}
            values.append(spell.wide(evaluated(spell, self.reduction.finish, env), self.lanes))
        return self.narrow(f, values, dtype)


class _Selection(_Consumer):
    """The smallest entries so far, in order, one list a lane: keys, negated for the largest, and their positions.

    NaN comes after everything else; of equal entries the first one stays first.
    """

    def consume(self) -> list[str]:
        """Return the functions that search a panel and that put an entry into a list."""
        f = self.begin()
        positions = f.at("%kept", f.multiply("%width", str(self.columns)), self.element)
        single = f.emit("icmp eq i64 %width, 1")
        with f.when(single):
            self._smallest(f, positions)
        with f.when(f.emit(f"xor i1 {single}, true")):
            self._lists(f, positions)
        f.emit_void("ret void")
        return [f.text(), self._insert()]

    def _smallest(self, f: Function, positions: str) -> None:
        """Take a panel into lists of one entry: all lanes at once, without a branch."""
        wide, mask = vector("i64", self.lanes), f"<{self.lanes} x i1>"
        saved = [
            (self.kind, f.alloca(self.kind, 1), f.at("%kept", str(j * self.lanes), self.element), self.size)
            for j in self.vectors
        ]
        index_slots = [(wide, f.alloca(wide, 1), f.at(positions, str(j * self.lanes), "i64"), 8) for j in self.vectors]
        for kind, slot, own, size in (*saved, *index_slots):
            f.store(kind, f.load(kind, own, size), slot, 64)
        with f.loop("0", "%rows") as n:
            position = f.add("%start", n)
            first = f.emit(f"icmp eq i64 {position}, 0")
            row_address = f.at("%panel", f.multiply(n, str(self.columns)), self.element)
            alone = f.emit(f"insertelement {wide} poison, i64 {position}, i64 0")
            spread = f.emit(f"shufflevector {wide} {alone}, {wide} poison, <{self.lanes} x i32> zeroinitializer")
            for j in self.vectors:
                best, at = saved[j][1], index_slots[j][1]
                key = self._key(f, f.load(self.kind, f.at(row_address, str(j * self.lanes), self.element), self.size))
                before = f.load(self.kind, best, 64)
                better = f.emit(f"select i1 {first}, {mask} splat (i1 true), {mask} {self._better(f, key, before)}")
                f.store(self.kind, f.emit(f"select {mask} {better}, {self.kind} {key}, {self.kind} {before}"), best, 64)
                was = f.load(wide, at, 64)
                f.store(wide, f.emit(f"select {mask} {better}, {wide} {spread}, {wide} {was}"), at, 64)
        for kind, slot, own, size in (*saved, *index_slots):
            f.store(kind, f.load(kind, slot, 64), own, size)

    def _better(self, f: Function, key: str, worst: str) -> str:
        """Return which lanes have a key below another, which NaN is not and every number is below NaN."""
        better = f.emit(f"fcmp ult {self.kind} {key}, {worst}")
        ordered = f.emit(f"fcmp ord {self.kind} {key}, zeroinitializer")
        return f.emit(f"and <{self.lanes} x i1> {better}, {ordered}")

    def _lists(self, f: Function, positions: str) -> None:
        """Take a panel into lists of any length, an entry at a time."""
        last = f.at("%kept", f.multiply(f.i64("sub nsw", "%width", "1"), str(self.columns)), self.element)
        with f.loop("0", "%rows") as n:
            position = f.add("%start", n)
            row_address = f.at("%panel", f.multiply(n, str(self.columns)), self.element)
            filled = f.least(position, f.i64("sub nsw", "%width", "1"))
            filling = f.emit(f"icmp slt i64 {position}, %width")
            mask = f"<{self.lanes} x i1>"
            for j in self.vectors:
                key = self._key(f, f.load(self.kind, f.at(row_address, str(j * self.lanes), self.element), self.size))
                worst = f.load(self.kind, f.at(last, str(j * self.lanes), self.element), self.size)
                better = self._better(f, key, worst)
                wanted = f.emit(f"select i1 {filling}, {mask} splat (i1 true), {mask} {better}")
                bits = f.emit(f"bitcast {mask} {wanted} to i{self.lanes}")
                with f.when(f.emit(f"icmp ne i{self.lanes} {bits}, 0")):
                    slot = f.alloca(self.kind, 1)
                    f.store(self.kind, key, slot, 64)
                    with f.loop("0", str(self.lanes)) as lane:
                        shift = f.emit(f"trunc i64 {lane} to i{self.lanes}")
                        bit = f.emit(f"trunc i{self.lanes} {f.emit(f'lshr i{self.lanes} {bits}, {shift}')} to i1")
                        with f.when(bit):
                            column = f.add(lane, str(j * self.lanes))
                            parameters = [
                                f"ptr {f.at('%kept', column, self.element)}", f"ptr {f.at(positions, column, 'i64')}",
                                f"i64 {filled}", f"i64 {position}",
                                f"{self.element} {f.load(self.element, f.at(slot, lane, self.element), self.size)}",
                            ]  # fmt: skip
                            f.emit_void(f"call fastcc void @km_insert({', '.join(parameters)})")

    def _key(self, f: Function, text: str) -> str:
        return f.emit(f"fneg {self.kind} {text}") if self.plan.rows.how == "largest" else text

    def _insert(self) -> str:
        parameters = f"ptr %keys, ptr %positions, i64 %filled, i64 %position, {self.element} %key"
        f = Function(f"internal fastcc void @km_insert({parameters}) noinline")
        head, search, move, done = (f.fresh(name) for name in ("head", "look", "move", "done"))
        p, lower, columns = f.fresh("p"), f.fresh("lower"), str(self.columns)
        before = f.label
        f.jump(head)
        f.start(head)
        f.instructions.append(f"  {p} = phi i64 [ %filled, %{before} ], [ {lower}, %{move[1:]} ]")
        f.branch(f.emit(f"icmp sgt i64 {p}, 0"), search, done)
        f.start(search)
        f.instructions.append(f"  {lower} = sub nsw i64 {p}, 1")
        above = f.multiply(lower, columns)
        key = f.load(self.element, f.at("%keys", above, self.element), self.size)
        worse = f.emit(f"fcmp ugt {self.element} {key}, %key")
        worse = f.emit(f"and i1 {worse}, {f.emit(f'fcmp ord {self.element} %key, %key')}")
        f.branch(worse, move, done)
        f.start(move)
        here = f.multiply(p, columns)
        f.store(self.element, key, f.at("%keys", here, self.element), self.size)
        f.store("i64", f.load("i64", f.at("%positions", above, "i64"), 8), f.at("%positions", here, "i64"), 8)
        f.jump(head)
        f.start(done)
        here = f.multiply(p, columns)
        f.store(self.element, "%key", f.at("%keys", here, self.element), self.size)
        f.store("i64", "%position", f.at("%positions", here, "i64"), 8)
        f.emit_void("ret void")
        return f.text()

    def finished_column(self, f: Function, c: str, out: str, dtype: str) -> str:
        """Finished values or positions at one rank of the lists."""
        if out == self.plan.rows.outs[1].name:
            positions = f.at("%kept", f.multiply("%width", str(self.columns)), self.element)
            return f.at(positions, f.multiply(c, str(self.columns)), "i64")
        saved = f.at("%kept", f.multiply(c, str(self.columns)), self.element)
        texts = [f.load(self.kind, f.at(saved, str(j * self.lanes), self.element), self.size) for j in self.vectors]
        return self.narrow(f, [Value(self._key(f, text), "value", self.lanes) for text in texts], dtype)
