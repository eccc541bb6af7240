"""The micro-kernel: one tile of accumulators in registers over one block of k, then the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...compiler.nest import Buffer, size_slot, stride_slot
from ...ir.node import Node, postorder, substitute, var, variables
from ...ir.reductions import Reduction
from .builder import ELEMENTS, FLOATING, STORED, Function, suffix, vector
from .gram_plan import CpuPlan, fast_power
from .pack import gather_name
from .speculative import SpeculativeFastPath
from .spelling import ExpressionEmitter, Value
from .store import Position, write


@dataclass(frozen=True)
class Register:
    """One register of an accumulator at one position of the tile, and where its state is kept."""

    name: str
    position: Position
    kind: str
    lanes: int
    offset: int


def tile_name(optimistic: bool) -> str:
    """Return the name of the micro-kernel."""
    return "@km_tile_fast" if optimistic else "@km_tile"


def _later(name: str) -> str:
    """Return the name of a register of the present block where both meet."""
    return "+" + name[1:]


def map_buffers(plan: CpuPlan) -> tuple[Buffer, ...]:
    """Return the operands a tile reads, in the order of its arguments."""
    return plan.row_buffers + plan.column_buffers + plan.k_buffers + plan.cell_buffers


def parameters(plan: CpuPlan) -> list[str]:
    """Return the parameters of the micro-kernel after the integers and numbers."""
    names = [f"ptr %x_{buffer.name}" for buffer in map_buffers(plan)]
    names += [f"ptr %out_{position}" for position in range(len(plan.nest.outs))]
    if plan.symmetric:
        names += [f"ptr %strip_{position}" for position in range(len(plan.nest.outs))]
    counts = ("depth", "position", "rows", "columns", "skew")
    return [*names, "ptr %cells", "ptr %state", *(f"i64 %{name}" for name in counts), "i1 %first", "i1 %last"]


class Tile:
    """Writes the micro-kernel of a plan."""

    def __init__(self, plan: CpuPlan, optimistic: bool, needed: set[tuple[str, str, int]]):
        self.plan, self.nest = plan, plan.nest
        arguments = ", ".join(["ptr %integers", "ptr %numbers", *parameters(plan)])
        self.f = Function(f"internal fastcc void {tile_name(optimistic)}({arguments}) noinline")
        self.element = ELEMENTS[self.nest.compute]
        self.spell = ExpressionEmitter(self.f, self.element, plan.lanes, needed, not plan.nest.reproducible)
        self.memo: dict[tuple[Node, Position], Value] = {}
        self.bound: dict[tuple[str, Position], Value] = {}
        self.roles = {buffer.name: buffer.roles for buffer in self.nest.operands} | {"index": "k"}
        self.packed: dict[str, str] = {}
        self.k = "0"
        self._bind()
        extrema = any(self._is_quick_extremum(register) for register in self.registers)
        self.fast_path = SpeculativeFastPath(self.spell, extrema) if optimistic else None

    def _bind(self) -> None:
        """Substitute maps into steps, so that one namespace holds every register."""
        self.steps: list[list[Node]] = []
        self.merges: dict[str, Node] = {}
        self.registers: list[Register] = []
        finished: dict[str, Node] = {}
        offset = 0
        for q, (mapped, reduction) in enumerate(zip(self.nest.map, self.nest.reductions, strict=True)):
            own = {f"s{j}": var(f"@{q}.{j}") for j in range(len(reduction.kinds))}
            steps = substitute(reduction.step, own | {"t": mapped})
            roles = {role for name in variables(steps) for role in self.roles.get(name, "") if role in "mn"}
            self.steps.append(steps)
            later = {f"r{j}": var(f"+{q}.{j}") for j in range(len(reduction.kinds))}
            merges = substitute(reduction.merge, own | later) if reduction.merge is not None else []
            self.merges |= {f"@{q}.{j}": node for j, node in enumerate(merges)}
            (finished[f"s{q}"],) = substitute([reduction.finish], own)
            for j, kind in enumerate(reduction.kinds):
                name = f"@{q}.{j}"
                self.roles[name] = self.roles[_later(name)] = "".join(sorted(roles)) + "k"
                lanes = self._lanes(roles)
                for position in self._positions(roles):
                    self.registers.append(Register(name, position, kind, lanes, offset))
                    offset += lanes * self.plan.width
        self.outputs = substitute(self.nest.outputs, finished)
        self.dependences: dict[Node, frozenset[str]] = {}
        nodes = [*(step for steps in self.steps for step in steps), *self.merges.values(), *self.outputs]
        for node in postorder(nodes):
            own_roles = self.roles.get(node.name, "") if node.op == "var" else ""
            self.dependences[node] = frozenset(own_roles).union(*(self.dependences[arg] for arg in node.args))

    def _positions(self, roles: set[str] | frozenset[str], /) -> list[Position]:
        rows = range(self.plan.rows) if "m" in roles else [None]
        columns = range(self.plan.vectors) if "n" in roles else [None]
        return [(i, j) for i in rows for j in columns]

    def _lanes(self, roles: set[str], /) -> int:
        return self.plan.lanes if "n" in roles else 1

    def _position(self, node: Node, position: Position) -> Position:
        roles = self.dependences[node]
        return (position[0] if "m" in roles else None, position[1] if "n" in roles else None)

    def value(self, node: Node, position: Position) -> Value:
        """Return the value of an expression at a position of the tile, computed once, of expressions of any depth."""
        key = node, self._position(node, position)
        if key not in self.memo:
            for inner in postorder([node]):
                own = inner, self._position(inner, position)
                if own not in self.memo:
                    self.memo[own] = self._computed(*own)
        return self.memo[key]

    def _computed(self, node: Node, position: Position) -> Value:
        if node.op == "var":
            found = self.bound.get((node.name, position))
            return found if found is not None else self._loaded(node.name, position)
        if node.number is not None:
            return self.spell.constant(node.number)
        args = [self.value(arg, position) for arg in node.args]
        fast_path = self.fast_path
        if fast_path is not None and fast_path.inside and self._is_quick_power(node):
            return self.spell.apply(node, args, lambda x, p: fast_path.power(x, p, args[1].text))
        return self.spell.apply(node, args)

    def _is_quick_power(self, node: Node) -> bool:
        quick = {"k", "n"} <= self.dependences[node] and fast_power(node, self.roles)
        return quick and not self.nest.reproducible

    def _is_quick_extremum(self, register: Register) -> bool:
        return bool(self._reduction(register).extremum) and register.lanes > 1

    def _reduction(self, register: Register) -> Reduction:
        return self.nest.reductions[int(register.name[1:].split(".")[0])]

    def _loaded(self, name: str, position: Position) -> Value:
        """Return the element or vector of a packed operand at the current k."""
        plan, f = self.plan, self.f
        if name == "index":
            whole = f.add("%position", self.k)
            narrow = whole if self.spell.index_element == "i64" else f.emit(f"trunc i64 {whole} to i32")
            return Value(narrow, "index", 1)
        i, j = position
        size, lanes = plan.width, 1 if j is None else plan.lanes
        width = (1 if i is None else plan.rows) * (1 if j is None else plan.columns)
        index = str((i or 0) * (1 if j is None else plan.columns) + (j or 0) * plan.lanes)
        if "k" in self.roles[name]:
            index = f.add(f.multiply(self.k, str(width)), index)
        pointer = f.at(self.packed.get(name, f"%x_{name}"), index, self.element)
        return Value(f.load(vector(self.element, lanes), pointer, size * lanes), "value", lanes)

    def _numbers(self) -> None:
        f = self.f
        for slot, name in enumerate(self.nest.numbers):
            arguments = f.load("double", f.at("%numbers", str(slot), "double"), 8)
            if self.element == "float":
                arguments = f.emit(f"fptrunc double {arguments} to float")
            elif self.element not in FLOATING:
                arguments = f.emit(
                    f"call {self.element} @llvm.fptosi.sat.{suffix(self.element)}.f64(double {arguments})"
                )
            self.bound[name, (None, None)] = Value(arguments, "value", 1)

    def _stride(self, buffer: Buffer, role: str) -> str:
        slot = stride_slot(self.nest.buffers.index(buffer), self.plan.actual(role))
        return self.f.load("i64", self.f.at("%integers", str(slot), "i64"), 8)

    def _gather(self) -> None:
        """Read the operands over both tile roles into dense buffers."""
        f, plan = self.f, self.plan
        cells_at = "%cells"
        cells = plan.rows * plan.columns
        for buffer in plan.cell_buffers:
            source = STORED[buffer.dtype]
            arguments = f"i64 {self._stride(buffer, 'm')}, i64 {self._stride(buffer, 'n')}, i64 %rows, i64 %columns"
            self.packed[buffer.name] = cells_at
            looped = "k" in buffer.roles
            stop = "%depth" if looped or "l" in buffer.roles else "1"
            with f.loop("0", stop if looped else f.least(stop, "1")) as k:
                step = f.multiply(k, self._stride(buffer, "k")) if looped else "0"
                into = f.at(cells_at, f.multiply(k, str(cells)), self.element)
                call = f"call fastcc void {gather_name(buffer.dtype)}"
                f.emit_void(f"{call}(ptr {into}, ptr {f.at(f'%x_{buffer.name}', step, source)}, {arguments})")
            size = f.load("i64", f.at("%integers", str(size_slot("k")), "i64"), 8)
            depth = f.most("1", f.least(size, str(plan.depth))) if looped else "1"
            cells_at = f.at(cells_at, self._aligned(f.multiply(depth, str(cells * plan.width))))

    def _aligned(self, size: str) -> str:
        return self.f.i64("and", self.f.add(size, "63"), "-64")

    def register_type(self, register: Register) -> str:
        """Return the LLVM type that a register is carried in; conditions are masks."""
        element = self.element if register.kind == "value" else self.spell.index_element
        return vector(element, register.lanes)

    def _carried(self, register: Register, value: Value) -> str:
        """Return the text of a new register value in the type it is carried in."""
        value = self.spell.wide(self.spell.cast(value, register.kind), register.lanes)
        if register.kind != "bool":
            return value.text
        return self.f.emit(f"sext {vector('i1', register.lanes)} {value.text} to {self.register_type(register)}")

    def _read(self, register: Register, text: str, later: bool = False) -> None:
        if register.kind == "bool":
            text = self.f.emit(f"icmp ne {self.register_type(register)} {text}, zeroinitializer")
        name = _later(register.name) if later else register.name
        self.bound[name, register.position] = Value(text, register.kind, register.lanes)

    def _initial(self) -> list[str]:
        """Return the registers of an empty range."""
        texts: list[str] = []
        inits = {f"@{q}.{j}": x for q, red in enumerate(self.nest.reductions) for j, x in enumerate(red.init)}
        for register in self.registers:
            value = self.spell.literal(inits[register.name], register.kind)
            if register.kind == "bool":
                element = self.spell.index_element
                wide = f"splat ({element} {-1 if inits[register.name] else 0})"
                texts.append(wide if register.lanes > 1 else str(-1 if inits[register.name] else 0))
            else:
                texts.append(self.spell.wide(value, register.lanes).text)
        return texts

    def _stored_state(self, register: Register) -> str:
        """Return the value of a register after the blocks before this one."""
        return self.f.load(self.register_type(register), self.f.at("%state", str(register.offset)), self.plan.width)

    def _started(self) -> list[str]:
        """Return initial registers; those of a fold go on where the block before ended."""
        f = self.f
        texts = self._initial()
        folds = [position for position, register in enumerate(self.registers) if register.name not in self.merges]
        if not folds:
            return texts
        before, resume, ready = f.label, f.fresh("resume"), f.fresh("ready")
        f.branch("%first", ready, resume)
        f.start(resume)
        states = {position: self._stored_state(self.registers[position]) for position in folds}
        f.jump(ready)
        f.start(ready)
        for position, old in states.items():
            kind = self.register_type(self.registers[position])
            texts[position] = f.emit(f"phi {kind} [ {texts[position]}, %{before} ], [ {old}, {resume} ]")
        return texts

    def _merged(self, texts: list[str]) -> list[str]:
        """Return registers joined with those of the blocks before: roundings grow with blocks, not with positions."""
        f = self.f
        positions = [position for position, register in enumerate(self.registers) if register.name in self.merges]
        if not positions:
            return texts
        before, join, ready = f.label, f.fresh("join"), f.fresh("ready")
        f.branch("%first", ready, join)
        f.start(join)
        memo, bound, spread = dict(self.memo), dict(self.bound), dict(self.spell.spread)
        for position in positions:
            register = self.registers[position]
            self._read(register, self._stored_state(register))
            self._read(register, texts[position], later=True)
        joined: dict[int, str] = {}
        for position in positions:
            register = self.registers[position]
            joined[position] = self._carried(register, self.value(self.merges[register.name], register.position))
        self.memo, self.bound, self.spell.spread = memo, bound, spread
        after = f.label
        f.jump(ready)
        f.start(ready)
        texts = list(texts)
        for position, new in joined.items():
            kind = self.register_type(self.registers[position])
            texts[position] = f.emit(f"phi {kind} [ {texts[position]}, %{before} ], [ {new}, %{after} ]")
        return texts

    def _step(self) -> list[str]:
        """New registers after one position."""
        texts: list[str] = []
        for register in self.registers:
            q, j = map(int, register.name[1:].split("."))
            texts.append(self._carried(register, self._stepped(q, j, register)))
        return texts

    def _stepped(self, q: int, j: int, register: Register) -> Value:
        node = self.steps[q][j]
        if self.fast_path is not None and self.fast_path.inside and self._is_quick_extremum(register):
            mine, other = node.args
            value = self.spell.cast(self.value(other, register.position), "value")
            state = self.value(mine, register.position)
            return self.fast_path.extremum(node.op, state, self.spell.wide(value, register.lanes))
        return self.value(node, register.position)

    def _hoist(self) -> None:
        """Compute before the loop what does not vary inside."""
        for node in postorder([step for steps in self.steps for step in steps]):
            if "k" not in self.dependences[node] and node.number is None:
                for position in self._positions(self.dependences[node]):
                    self.value(node, position)

    def _bounds(self) -> tuple[str, int]:
        """Return the end of the loop, and the positions of a step."""
        return "%depth", 1

    def _loop(self, loop_tag: str) -> list[str]:
        """Return the registers after all positions of the block."""
        f = self.f
        stop, stride = self._bounds()
        started = self._started()
        self._hoist()
        flags: list[tuple[str, str]] = []
        if self.fast_path is not None:
            for node in postorder([step for steps in self.steps for step in steps]):
                if self._is_quick_power(node):
                    self.fast_path.prepare(self.value(node.args[1], (None, None)))
            flags = self.fast_path.flags()
        head, body, done = f.fresh("head"), f.fresh("body"), f.fresh("done")
        before = f.label
        f.jump(head)
        f.start(head)
        k = f.fresh("k")
        position = len(f.instructions)
        f.instructions.append("")
        kinds = [self.register_type(register) for register in self.registers] + [kind for kind, _ in flags]
        phis = [f.fresh("s") for _ in kinds]
        f.instructions.extend([""] * len(kinds))
        f.branch(f.emit(f"icmp slt i64 {k}, {stop}"), body, done)
        f.start(body)
        self.k = k
        memo, bound, spread = dict(self.memo), dict(self.bound), dict(self.spell.spread)
        for register, phi in zip(self.registers, phis, strict=False):
            self._read(register, phi)
        if self.fast_path is not None:
            self.fast_path.begin_body(phis[len(self.registers) :])
        texts = self._step()
        if self.fast_path is not None:
            texts += self.fast_path.end_body()
        following = f.add(k, str(stride))
        f.instructions[position] = f"  {k} = phi i64 [ 0, %{before} ], [ {following}, %{f.label} ]"
        starts = started + [start for _, start in flags]
        for at, (phi, kind, start, new) in enumerate(zip(phis, kinds, starts, texts, strict=True), position + 1):
            f.instructions[at] = f"  {phi} = phi {kind} [ {start}, %{before} ], [ {new}, %{f.label} ]"
        f.jump(head, loop_tag)
        f.start(done)
        self.memo, self.bound, self.spell.spread = memo, bound, spread
        self._retry(phis[len(self.registers) :])
        return phis[: len(self.registers)]

    def _retry(self, flags: Sequence[str]) -> None:
        """Run the exact form where a rare case was met."""
        if self.fast_path is None:
            return
        f = self.f
        again, fine = f.fresh("again"), f.fresh("fine")
        f.branch(self.fast_path.needs_retry(flags), again, fine)
        f.start(again)
        arguments = ", ".join(["ptr %integers", "ptr %numbers", *parameters(self.plan)])
        f.emit_void(f"call fastcc void {tile_name(False)}({arguments})")
        f.emit_void("ret void")
        f.start(fine)

    def text(self, loop_tag: str) -> str:
        """Return the whole function."""
        f = self.f
        self._numbers()
        self._gather()
        if self.plan.looped:
            texts = self._merged(self._loop(loop_tag))
            for register, text in zip(self.registers, texts, strict=True):
                self._read(register, text)
            keep, finish = f.fresh("keep"), f.fresh("finish")
            f.branch("%last", finish, keep)
            f.start(keep)
            for register, text in zip(self.registers, texts, strict=True):
                pointer = f.at("%state", str(register.offset))
                f.store(self.register_type(register), text, pointer, self.plan.width)
            f.emit_void("ret void")
            f.start(finish)
        else:
            for register, text in zip(self.registers, self._initial(), strict=True):
                self._read(register, text)
            texts = self._step()
            for register, text in zip(self.registers, texts, strict=True):
                self._read(register, text)
            self.memo = {key: value for key, value in self.memo.items() if "k" not in self.dependences[key[0]]}
        self._write()
        f.emit_void("ret void")
        return f.text()

    def _results(self) -> list[Mapping[Position, Value]]:
        """Return the values of every output at every position."""
        positions = self._positions({"m", "n"})
        if self.nest.partial:
            names = list(dict.fromkeys(register.name for register in self.registers))
            nodes = [var(name) for name in names]
            for node in nodes:
                self.dependences.setdefault(node, frozenset(self.roles[node.name]))
        else:
            nodes = self.outputs
        return [{position: self.value(node, position) for position in positions} for node in nodes]

    def _write(self) -> None:
        """Store the outputs."""
        for position, (buffer, values) in enumerate(zip(self.nest.outs, self._results(), strict=True)):
            strides = self._stride(buffer, "m"), self._stride(buffer, "n")
            write(self.spell, self.plan, buffer.dtype, position, values, strides)
