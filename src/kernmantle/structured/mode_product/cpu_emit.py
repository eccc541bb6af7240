"""LLVM IR of Kronecker-sparse products on a CPU: tiles of sums over r of groups of numbers times vectors.

``c[p, q] (+)= bias + sum over r of a[p, r] * b[r, q]`` for each of ``outer`` x ``inner`` blocks, lanes along q. Sizes
and strides are arguments. b is read where it is, or from panels of the tile's width, which ``packing`` writes.
"""

from __future__ import annotations

from ...backends.cpu.builder import SIZE, STORED, Function, vector
from .cpu_plan import FIELDS, LANES, PACK_FIELDS, ROWS, Tile
from .cpu_vectors import HEAD, Vectors, packing, packing_rows

_TOGETHER = 2  # of r that a pass of the loop adds: what counts takes slots of the multiplications
_DEEP = 64  # sums of so many pay for asking for the results that are next


class Tiles(Vectors):
    """Functions that compute a tile, and all tiles of a panel; ``inlined`` are those of other kernels, in the cache."""

    def __init__(self, tile: Tile, inlined: bool = False) -> None:
        super().__init__(tile)
        self.inlined, self.out = inlined, STORED[tile.result]

    def _name(self, rows: int, masked: bool) -> str:
        return f"tile_{rows}x{self.tile.width}_{'masked' if masked else 'whole'}"

    def panel_name(self, masked: bool) -> str:
        """Return the name of the function of a panel."""
        return f"panel_{self.tile.width}_{'masked' if masked else 'whole'}"

    @property
    def _calls(self) -> str:
        return "alwaysinline" if self.inlined else "noinline"

    def _positions(self, rows: int) -> list[tuple[int, int]]:
        return [(i, v) for i in range(rows) for v in range(self.tile.vectors)]

    def _lane(self, v: int, stride: str, f: Function) -> str:
        """Return the elements from the first vector of a panel to another."""
        return f.multiply(stride, str(v)) if self.tile.apart else str(v * self.tile.lanes)

    def compute(self, rows: int, masked: bool) -> str:
        """``rows`` rows of a panel; ``lanes`` of its results are there, ``fresh`` says whether anything is.

        Meanwhile the caches are asked for ``step`` numbers from ``next`` for each r.
        """
        f = Function(
            f"internal fastcc void @{self._name(rows, masked)}(ptr noalias %a, ptr noalias %b, ptr noalias %c, "
            "ptr noalias %bias, i64 %r, i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, "
            f"i64 %lanes, i1 %fresh, ptr %next, i64 %step{self.present}) {self._calls}"
        )
        tile = self.tile
        self.masks = self._masks(f, "%lanes") if masked else [""] * tile.vectors
        self.tail = self.mask(f, "%present") if masked and tile.tail and not tile.packed else ""
        rows_of_c = [self.at(f, "%c", f.multiply("%c_p", str(i)), of=self.out) for i in range(rows)]
        self.row = f.alloca(self.element, tile.width) if tile.scattered else ""
        values = self._started(f, rows, rows_of_c, masked)
        if not (masked or tile.scattered or self.inlined):
            with f.when(f.emit(f"icmp sge i64 %r, {_DEEP}")):
                for i, v in self._positions(rows):
                    self.prefetch(
                        f,
                        self.at(f, rows_of_c[i], f.multiply("%c_p", str(rows)), self._lane(v, "%c_q", f), of=self.out),
                        1,
                    )
        values = self._summed(f, rows, values)
        if masked and tile.tail:
            self._store_tails(f, rows, values)
        elif tile.scattered:
            for i in range(rows):
                self._scatter(f, [values[i, v] for v in range(tile.vectors)], rows_of_c[i], masked)
        else:
            self._store(f, values, rows_of_c)
        f.emit_void("ret void")
        return f.text()

    def _masks(self, f: Function, lanes: str) -> list[str]:
        """Return which lanes of each vector are there."""
        valid = [f.i64("sub nsw", lanes, str(v * self.tile.lanes)) for v in range(self.tile.vectors)]
        return [self.mask(f, f.least(each, "%present") if self.tile.tail else each) for each in valid]

    def _started(self, f: Function, rows: int, rows_of_c: list[str], masked: bool) -> dict[tuple[int, int], str]:
        """Return the accumulators to begin with: zeros, the bias, or what is in c."""
        tile, positions = self.tile, self._positions(rows)
        fresh, later, done = f.fresh("fresh"), f.fresh("later"), f.fresh("done")
        f.branch("%fresh", fresh, later)
        f.start(fresh)
        first = dict.fromkeys(positions, "zeroinitializer")
        if tile.bias == LANES and tile.scattered:
            own = self._gathered(f, "%bias", tile.dtype, masked)
            first = {(i, v): own[v] for i, v in positions}
        elif tile.bias == LANES:
            found = [
                self._load(f, self.at(f, "%bias", self._lane(v, "%c_q", f), of=self.stored), v, tile.dtype)
                for v in range(tile.vectors)
            ]
            first = {(i, v): found[v] for i, v in positions}
        elif tile.bias == ROWS:
            for i in range(rows):
                values = self.number(
                    f, self.at(f, "%bias", f.multiply("%bias_p", str(i)), of=self.stored), tile.dtype, 1
                )
                one = f.emit(f"insertelement {self.kind} poison, {self.element} {values}, i64 0")
                every = f"shufflevector {self.kind} {one}, {self.kind} poison, <{tile.lanes} x i32> zeroinitializer"
                first |= dict.fromkeys([(i, v) for v in range(tile.vectors)], f.emit(every))
        fresh = f"%{f.label}"
        f.jump(done)
        f.start(later)
        if tile.scattered:
            rows_of_groups = [self._gathered(f, row, tile.result, masked) for row in rows_of_c]
            second = {(i, v): rows_of_groups[i][v] for i, v in positions}
        else:
            second = {
                (i, v): self._load(f, self.at(f, rows_of_c[i], self._lane(v, "%c_q", f), of=self.out), v, tile.result)
                for i, v in positions
            }
        later = f"%{f.label}"
        f.jump(done)
        f.start(done)
        return {
            position: f.emit(f"phi {self.kind} [ {first[position]}, {fresh} ], [ {second[position]}, {later} ]")
            for position in positions
        }

    def _load(self, f: Function, pointer: str, v: int, dtype: str) -> str:
        if self.masks[v]:
            return self.load_masked(f, pointer, self.masks[v], dtype)
        return self.number(f, pointer, dtype, self.tile.lanes)

    def _summed(self, f: Function, rows: int, begun: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        """Return the accumulators with all of r."""
        positions, even = self._positions(rows), f.i64("and", "%r", str(-_TOGETHER))
        starts = [self.at(f, "%a", f.multiply("%a_p", str(i))) for i in range(rows)]
        sums = [begun[position] for position in positions]
        loops = [("0", "%r", 1)] if self.inlined else [("0", even, _TOGETHER), (even, "%r", 1)]
        for first, last, step in loops:
            with f.carry(self.kind, sums, first, last, str(step)) as (r, values, following):
                after = values
                if step > 1 and not self.inlined:
                    self.prefetch(f, self.at(f, "%next", f.multiply(r, "%step")))
                for k in range(step):
                    after = self._step(f, starts, f.add(r, str(k)), after)
                following += after
            sums = values
        return dict(zip(positions, sums, strict=True))

    def _step(self, f: Function, starts: list[str], r: str, values: list[str]) -> list[str]:
        """Return the accumulators with one more of r."""
        address, offset, following = self.at(f, "%b", f.multiply(r, "%b_r")), f.multiply(r, "%a_r"), list[str]()
        across = [
            self.load(f, self.at(f, address, str(v * self.tile.lanes)))
            if self.tile.packed
            else self._load(f, self.at(f, address, self._lane(v, "%b_v", f)), v, self.tile.compute)
            for v in range(self.tile.vectors)
        ]
        for i, start in enumerate(starts):
            down, own = self.repeated(f, self.at(f, start, offset)), values[i * len(across) : (i + 1) * len(across)]
            following += [self.fma(f, down, *operands) for operands in zip(across, own, strict=True)]
        return following

    def _gathered(self, f: Function, address: str, dtype: str, masked: bool) -> list[str]:
        """Return a row of groups of a type that lie apart."""
        tile = self.tile
        own, count = vector(self.element, tile.group), str(tile.width // tile.group)
        present = f.least(count, f.i64("sdiv", "%lanes", str(tile.group))) if masked else count
        with f.loop("0", present) as position:
            source = self.at(f, address, f.multiply(position, "%c_q"), of=STORED[dtype])
            part = self.number(f, source, dtype, tile.group)
            f.store(own, part, self.at(f, self.row, f.multiply(position, str(tile.group))), self.size)
        return [self.load(f, self.at(f, self.row, str(v * tile.lanes))) for v in range(tile.vectors)]

    def _scatter(self, f: Function, values: list[str], address: str, masked: bool) -> None:
        """The groups of a row, each to its place."""
        tile, size = self.tile, SIZE[self.out]
        own, count = vector(self.out, tile.group), str(tile.width // tile.group)
        for v, value in enumerate(values):
            self.put(f, value, self.at(f, self.row, str(v * tile.lanes), of=self.out), tile.result, tile.lanes)
        present = f.least(count, f.i64("sdiv", "%lanes", str(tile.group))) if masked else count
        with f.loop("0", present) as position:
            part = f.load(own, self.at(f, self.row, f.multiply(position, str(tile.group)), of=self.out), size)
            f.store(own, part, self.at(f, address, f.multiply(position, "%c_q"), of=self.out), size)

    def _store(self, f: Function, values: dict[tuple[int, int], str], rows_of_c: list[str]) -> None:
        """Write vectors where they belong, those of a mask if there is one."""
        for (i, v), value in values.items():
            target = self.at(f, rows_of_c[i], self._lane(v, "%c_q", f), of=self.out)
            if self.masks[v]:
                self.store_masked(f, value, target, self.masks[v], self.tile.result)
            else:
                self.put(f, value, target, self.tile.result, self.tile.lanes)

    def _store_tails(self, f: Function, rows: int, values: dict[tuple[int, int], str]) -> None:
        """Write groups whose last neighbours may be missing in pieces: stores under a mask wait for cache lines."""
        tile, memory = self.tile, f.alloca(self.out, rows * self.tile.width)
        for (i, v), value in values.items():
            address = self.at(f, memory, str(i * tile.width + v * tile.lanes), of=self.out)
            self.put(f, value, address, tile.result, tile.lanes)
        group, every = str(tile.group), str(tile.width // tile.group)
        count, present = f.least("%present", group), f.least(f.i64("sdiv", "%lanes", group), every)
        sizes = [tile.group >> power for power in range(tile.group.bit_length())]
        with f.loop("0", str(rows)) as i, f.loop("0", present) as q:
            source = self.at(f, memory, f.multiply(i, str(tile.width)), f.multiply(q, group), of=self.out)
            target = self.at(f, "%c", f.multiply(i, "%c_p"), f.multiply(q, "%c_q"), of=self.out)
            for size in sizes:
                kind, before = vector(self.out, size), f.i64("and", count, str(-2 * size))
                with f.when(f.emit(f"icmp ne i64 {f.i64('and', count, str(size))}, 0")):
                    piece = f.load(kind, self.at(f, source, before, of=self.out), SIZE[self.out])
                    f.store(kind, piece, self.at(f, target, before, of=self.out), SIZE[self.out])

    def panel(self, masked: bool) -> str:
        """Return all rows of a panel, tile below tile."""
        f = Function(
            f"internal fastcc void @{self.panel_name(masked)}(ptr noalias %a, ptr noalias %b, "
            "ptr noalias %c, ptr noalias %bias, i64 %p, i64 %r, i64 %a_tile, i64 %a_p, i64 %a_r, "
            "i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p, i64 %lanes, i1 %fresh, ptr %next, i64 %step"
            f"{self.present}) {self._calls}"
        )
        start = "0"
        for rows in self.tile.heights:
            whole = f.multiply(f.i64("sdiv", f.i64("sub nsw", "%p", start), str(rows)), str(rows))
            stop = f.add(start, whole)
            with f.loop(start, stop, str(rows)) as position:
                high, low = f.i64("sdiv", position, str(self.tile.rows)), f.i64("srem", position, str(self.tile.rows))
                a = self.at(f, "%a", f.multiply(high, "%a_tile"), f.multiply(low, "%a_p"))
                c = self.at(f, "%c", f.multiply(position, "%c_p"), of=self.out)
                bias = (
                    self.at(f, "%bias", f.multiply(position, "%bias_p"), of=self.stored) if self.tile.bias else "%bias"
                )
                following = self.at(f, "%next", f.multiply(f.multiply(high, "%r"), "%step"))
                strides = "i64 %a_p, i64 %a_r, i64 %b_r, i64 %b_v, i64 %c_p, i64 %c_q, i64 %bias_p"
                f.emit_void(
                    f"call fastcc void @{self._name(rows, masked)}(ptr {a}, ptr %b, ptr {c}, ptr {bias}, i64 %r, "
                    f"{strides}, i64 %lanes, i1 %fresh, ptr {following}, i64 %step{self.present})"
                )
            start = stop
        f.emit_void("ret void")
        return f.text()

    def functions(self, masked: bool) -> list[str]:
        """Return the function of a panel and those of its tiles."""
        return [self.panel(masked), *(self.compute(rows, masked) for rows in self.tile.heights)]


class _Entry(Tiles):
    """Writes the entry: over the items and the depth, what is packed, and panel after panel."""

    def text(self) -> str:
        """Return the whole function."""
        f = self.f = Function(HEAD)
        tile = self.tile
        self.field = field = self.integers(f, FIELDS)
        names = ("a", "b", "c", "bias") if tile.bias else ("a", "b", "c")
        pointers = {name: self.pointer(f, index) for index, name in enumerate(names)}
        panels = f.ceiling(field["q"], tile.width)
        across = f.i64("sdiv", f.add(panels, f.i64("sub nsw", field["q_block"], "1")), field["q_block"])
        self.packs = {name: f.emit(f"icmp ne i64 {field[f'packs_{name}']}, 0") for name in "ab"}
        aligned = f.i64("and", f.add(f.emit("ptrtoint ptr %scratch to i64"), "63"), "-64")
        one = f.emit(f"inttoptr i64 {aligned} to ptr")
        self.workspace = {"b": one, "a": self.at(f, one, f.multiply(field["r_block"], str(tile.width)))}
        with f.loop("%begin", "%end") as item:
            first = f.multiply(f.i64("srem", item, across), field["q_block"])
            rest = f.i64("sdiv", item, across)
            block = f.i64("srem", rest, field["blocks"])
            start, self.neighbours = offsets(f, field, block, *names), neighbours(f, tile, field, block)
            p = f.multiply(f.i64("sdiv", rest, field["blocks"]), field["p_block"])
            count = f.least(field["p_block"], f.i64("sub nsw", field["p"], p))
            last = f.least(panels, f.add(first, field["q_block"]))
            here = {
                name: self.at(
                    f,
                    pointers[name],
                    start[name],
                    *([] if name == "b" else [f.multiply(p, field[f"{name}_p"])]),
                    of=self.out if name == "c" else self.stored,
                )
                for name in names
            }
            with f.loop("0", field["r"], field["r_block"]) as r:
                self._depth(here, r, count, first, last)
        f.emit_void("ret void")
        return f.text()

    def _depth(self, here: dict[str, str], r: str, count: str, first: str, last: str) -> None:
        """Panels ``first`` to ``last`` of a block with some of the depth."""
        f, field, tile = self.f, self.field, self.tile
        length = f.least(field["r_block"], f.i64("sub nsw", field["r"], r))
        a = self.at(f, here["a"], f.multiply(r, field["a_r"]), of=self.stored)
        with f.when(self.packs["a"]):
            f.emit_void(
                f"call fastcc void @pack_a(ptr {self.workspace['a']}, ptr {a}, i64 {count}, i64 {length}, "
                f"i64 {field['a_p']}, i64 {field['a_r']}{self.neighbours})"
            )
        address, words = str(tile.rows * tile.multipliers), self.words(f, length)
        a = self._either("a", "ptr", self.workspace["a"], a)
        # Pairs are read where they lie if numbers of neighbouring r are neighbours.
        a_p, a_r = (f.i64("sdiv", field["a_p"], "2"), "1") if tile.dot2 else (field["a_p"], field["a_r"])
        packed_p, packed_r = str(tile.multipliers), address
        if tile.stays_rows:
            runs = f.emit(f"icmp eq i64 {field['a_r']}, 1")
            packed_p = f.emit(f"select i1 {runs}, i64 {words}, i64 {packed_p}")
            packed_r = f.emit(f"select i1 {runs}, i64 1, i64 {packed_r}")
        strides = [
            self._either("a", "i64", f.multiply(words, address), f.multiply(a_p, str(tile.rows))),
            self._either("a", "i64", packed_p, a_p),
            self._either("a", "i64", packed_r, a_r),
            self._either("b", "i64", str(tile.width), field["b_r"]),
            self._either("b", "i64", str(tile.lanes), field["b_v"]),
            *(field[name] for name in ("c_p", "c_q", "bias_p")),
        ]
        extents = ", ".join(f"i64 {value}" for value in (count, words, *strides))
        fresh = f.emit(f"icmp eq i64 {r}, 0")
        with f.loop(first, last) as panel:
            lanes = f.i64("sub nsw", field["q"], f.multiply(panel, str(tile.width)))
            b = self.at(f, here["b"], f.multiply(r, field["b_r"]), f.multiply(panel, field["b_panel"]), of=self.stored)
            with f.when(self.packs["b"]):
                f.emit_void(
                    f"call fastcc void @pack(ptr {self.workspace['b']}, ptr {b}, i64 {length}, i64 {field['b_r']}, "
                    f"i64 {field['b_q']}, i64 {lanes}{self.neighbours})"
                )
            b = self._either("b", "ptr", self.workspace["b"], b)
            c = self.at(f, here["c"], f.multiply(panel, field["c_panel"]), of=self.out)
            bias = (
                self.at(f, here["bias"], f.multiply(panel, field["bias_panel"]), of=self.stored)
                if tile.bias
                else "null"
            )
            following = self.at(f, b, field["b_panel"], of=self.stored)
            arguments = (
                f"(ptr {a}, ptr {b}, ptr {c}, ptr {bias}, {extents}, i64 {lanes}, i1 {fresh}, "
                f"ptr {following}, i64 {field['b_ahead']}{self.neighbours})"
            )
            whole, part, done = f.fresh("whole"), f.fresh("part"), f.fresh("done")
            is_whole = f.emit(f"icmp sge i64 {lanes}, {tile.width}")
            if self.neighbours:
                has_all = f.emit(f"icmp sge {self.neighbours.removeprefix(', ')}, {tile.group}")
                is_whole = f.emit(f"and i1 {is_whole}, {has_all}")
            f.branch(is_whole, whole, part)
            for label, masked in ((whole, False), (part, True)):
                f.start(label)
                f.emit_void(f"call fastcc void @{self.panel_name(masked)}{arguments}")
                f.jump(done)
            f.start(done)

    def _either(self, name: str, kind: str, packed: str, lying: str) -> str:
        return self.f.emit(f"select i1 {self.packs[name]}, {kind} {packed}, {kind} {lying}")


def offsets(f: Function, field: dict[str, str], block: str, *names: str) -> dict[str, str]:
    """Return where each array begins in a block."""
    outer, inner = f.i64("sdiv", block, field["inner"]), f.i64("srem", block, field["inner"])
    return {
        name: f.add(f.multiply(outer, field[f"{name}_outer"]), f.multiply(inner, field[f"{name}_inner"]))
        for name in names
    }


def neighbours(f: Function, tile: Tile, field: dict[str, str], block: str) -> str:
    """Return the argument that says how many neighbours are left for the group of a block; none if all are whole."""
    if not tile.tail:
        return ""
    before = f.multiply(f.i64("srem", block, field["inner"]), str(tile.group))
    return f", i64 {f.i64('sub nsw', field['spread'], before)}"


def emit(tile: Tile) -> str:
    """Return LLVM IR of the product by a tile; items are blocks of p and q, those of q next to each other."""
    own = _Entry(tile)
    parts = [own.text(), *own.functions(False), *own.functions(True), packing(own), packing_rows(own)]
    return "\n\n".join([f"; Kronecker-sparse {tile}", *parts]) + "\n"


def emit_packing(tile: Tile) -> str:
    """Return LLVM IR of what writes the panels of all blocks, one after the other; an item is a panel."""
    own = Vectors(tile)
    f = Function(HEAD)
    field = own.integers(f, PACK_FIELDS)
    b, into = own.pointer(f, 0), own.pointer(f, 1)
    elements = f.multiply(own.words(f, field["r"]), str(tile.width))
    with f.loop("%begin", "%end") as item:
        block, panel = f.i64("sdiv", item, field["panels"]), f.i64("srem", item, field["panels"])
        source = own.at(f, b, offsets(f, field, block, "b")["b"], f.multiply(panel, field["b_panel"]), of=own.stored)
        lanes = f.i64("sub nsw", field["q"], f.multiply(panel, str(tile.width)))
        f.emit_void(
            f"call fastcc void @pack(ptr {own.at(f, into, f.multiply(item, elements))}, ptr {source}, "
            f"i64 {field['r']}, i64 {field['b_r']}, i64 {field['b_q']}, i64 {lanes}"
            f"{neighbours(f, tile, field, block)})"
        )
    f.emit_void("ret void")
    return "\n\n".join([f"; panels of {tile}", f.text(), packing(own)]) + "\n"
