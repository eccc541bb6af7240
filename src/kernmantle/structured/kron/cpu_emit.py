"""LLVM IR of Kronecker passes: blocks of the tensor go through two buffers, one factor after the other.

Sizes are arguments, so one kernel per pair of stored and computed type serves every product. A step is a matrix
product on the view (left, columns, right) of a buffer, vectorised over ``right``, or over the rows of the factor
where ``right`` is 1. Tiles are those of Kronecker-sparse products. Without masks, vectors reach into what is written
next where extents are below the narrowest.
"""

from __future__ import annotations

from ...backends.cpu.builder import ELEMENTS, SIZE, STORED, Function, suffix, vector
from ...backends.cpu.pack import narrowed, widened
from ..mode_product.cpu_emit import Tiles
from ..mode_product.cpu_plan import PLAIN, Tile
from .cpu_plan import ARRAYS, BATCH, FIELDS, LAYOUT_FIELDS, NARROWEST, PIECE, STEP

ENTRY = "km"
_MASKED = 64  # bytes of vectors


class _Kernels:
    """Functions of one storage and one compute type, for a machine's vectors."""

    def __init__(self, stored: str, compute: str, vector_bytes: int, registers: int) -> None:
        self.stored, self.element = stored, ELEMENTS[compute]
        self.size = SIZE[self.element]
        self.lanes = max(NARROWEST, vector_bytes // self.size)
        # Masked stores are slow where they are no instructions of AVX-512.
        self.masked = vector_bytes == _MASKED
        least = self.lanes // 2 if self.masked else NARROWEST
        widths = [self.lanes >> shift for shift in range(8) if self.lanes >> shift >= least]
        self.tiles = [self._tiles(compute, self.lanes, 8 if registers >= 32 else 4, 2)]
        self.tiles += [self._tiles(compute, lanes, 8, 1) for lanes in widths]

    def _tiles(self, compute: str, lanes: int, rows: int, vectors: int) -> Tiles:
        return Tiles(Tile(compute, lanes, rows, vectors, 1, False, False, PLAIN), inlined=True)

    def _load(self, f: Function, pointer: str, lanes: int) -> str:
        return f.load(vector(self.element, lanes), pointer, self.size)

    def _store(self, f: Function, value: str, pointer: str, lanes: int) -> None:
        f.store(vector(self.element, lanes), value, pointer, self.size)

    def step(self, last: bool) -> str:
        """``out`` (left, rows, right) from ``x`` (left, columns, right); ``last`` is right = 1."""
        f = Function(
            f"internal fastcc void @{'km_last' if last else 'km_step'}(ptr noalias %x, ptr noalias %factor, "
            "ptr noalias %out, i64 %left, i64 %columns, i64 %rows, i64 %padded, i64 %right, i64 %pitch) noinline"
        )
        across = "%rows" if last else "%right"
        with f.loop("0", "1" if last else "%left") as outer:
            x = f.at("%x", f.multiply(outer, f.multiply("%columns", "%pitch")), self.element)
            out = f.at("%out", f.multiply(outer, f.multiply("%rows", "%right")), self.element)
            start = "0"
            for own in self.tiles[:-1] if self.masked else self.tiles:
                width = str(own.tile.width)
                whole = f.multiply(f.i64("sdiv", f.i64("sub nsw", across, start), width), width)
                stop = f.add(start, whole)
                with f.loop(start, stop, width) as first:
                    self._panel(f, own, last, (x, out), first, "")
                start = stop
            rest = f.i64("sub nsw", across, start)
            some = f.emit(f"icmp sgt i64 {rest}, 0")
            if self.masked:
                full, half = self.tiles[-2:]
                large = f.emit(f"icmp sgt i64 {rest}, {half.tile.lanes}")
                small = f.emit(f"and i1 {some}, {f.emit(f'xor i1 {large}, true')}")
                for own, here in ((full, large), (half, small)):
                    with f.when(here):
                        self._panel(f, own, last, (x, out), start, rest)
            else:
                with f.when(some):
                    start = f.most("0", f.i64("sub nsw", across, str(NARROWEST)))
                    self._panel(f, self.tiles[-1], last, (x, out), start, "")
        f.emit_void("ret void")
        return f.text()

    def _panel(self, f: Function, own: Tiles, last: bool, ends: tuple[str, str], first: str, lanes: str) -> None:
        """All results of some columns of ``out``, of which ``lanes`` are there, all unless it says how many."""
        x, out = ends
        a, b, p, a_p, a_r, b_r, c_p = (
            (x, "%factor", "%left", "%columns", "1", "%padded", "%rows") if last
            else ("%factor", x, "%rows", "1", "%padded", "%pitch", "%right")
        )  # fmt: skip
        b, c = f.at(b, first, self.element), f.at(out, first, self.element)
        strides = (f.multiply(a_p, str(own.tile.rows)), a_p, a_r, b_r, str(own.tile.lanes), c_p, "1", "0")
        f.emit_void(
            f"call fastcc void @{own.panel_name(bool(lanes))}(ptr {a}, ptr {b}, ptr {c}, ptr null, i64 {p}, "
            f"i64 %columns, {', '.join(f'i64 {stride}' for stride in strides)}, "
            f"i64 {lanes or own.tile.width}, i1 true, ptr null, i64 0)"
        )

    def functions(self) -> list[str]:
        """Return what the entry calls."""
        tiles = [part for own in self.tiles for part in own.functions(False)]
        tiles += [part for own in self.tiles[-2:] if self.masked for part in own.functions(True)]
        return [self.step(False), self.step(True), *tiles, self.expand(), self.gather(), self.scatter()]

    def expand(self) -> str:
        """``into`` (rows * q, columns * p), p-major, from ``own`` (columns, rows) and a strided factor (q, p)."""
        f = Function(
            "internal fastcc void @km_expand(ptr noalias %into, i64 %padded, ptr noalias %own, i64 %own_columns, "
            "i64 %own_rows, ptr %factor, i64 %columns, i64 %rows, i64 %column_stride, i64 %row_stride) noinline"
        )
        stored = STORED[self.stored]
        with f.loop("0", "%own_columns") as i, f.loop("0", "%columns") as p:
            address = f.multiply(f.add(f.multiply(i, "%columns"), p), "%padded")
            with f.loop("0", "%own_rows") as j:
                outer = f.load(
                    self.element, f.at("%own", f.add(f.multiply(i, "%own_rows"), j), self.element), self.size
                )
                with f.loop("0", "%rows") as q:
                    index = f.add(f.multiply(p, "%column_stride"), f.multiply(q, "%row_stride"))
                    loaded = f.load(stored, f.at("%factor", index, stored), SIZE[stored])
                    value = f.emit(f"fmul {self.element} {outer}, {widened(f, loaded, self.stored, self.element, 1)}")
                    target = f.add(address, f.add(f.multiply(j, "%rows"), q))
                    f.store(self.element, value, f.at("%into", target, self.element), self.size)
        f.emit_void("ret void")
        return f.text()

    def gather(self) -> str:
        """Return the block of ``rows`` x ``width`` from strided memory into rows of ``pitch``."""
        f = Function(
            "internal fastcc void @km_gather(ptr noalias %into, i64 %pitch, ptr %from, i64 %rows, i64 %width, "
            "i64 %row_stride, i64 %stride) noinline"
        )
        stored, lanes = STORED[self.stored], self.lanes
        unit = f.emit("icmp eq i64 %stride, 1")
        whole = f.multiply(f.i64("sdiv", "%width", str(lanes)), str(lanes))
        whole = f.emit(f"select i1 {unit}, i64 {whole}, i64 0")
        with f.loop("0", "%rows") as row:
            source = f.at("%from", f.multiply(row, "%row_stride"), stored)
            target = f.at("%into", f.multiply(row, "%pitch"), self.element)
            with f.loop("0", whole, str(lanes)) as index:
                loaded = f.load(vector(stored, lanes), f.at(source, index, stored), SIZE[stored])
                self._store(
                    f, widened(f, loaded, self.stored, self.element, lanes), f.at(target, index, self.element), lanes
                )
            with f.loop(whole, "%width") as index:
                loaded = f.load(stored, f.at(source, f.multiply(index, "%stride"), stored), SIZE[stored])
                value = widened(f, loaded, self.stored, self.element, 1)
                f.store(self.element, value, f.at(target, index, self.element), self.size)
        f.emit_void("ret void")
        return f.text()

    def scatter(self) -> str:
        """Return the rows of ``pitch`` into strided memory, ``beta`` times a strided block added."""
        f = Function(
            f"internal fastcc void @km_scatter(ptr noalias %from, i64 %pitch, ptr %into, i64 %rows, i64 %width, "
            f"i64 %row_stride, i64 %stride, ptr %y, i64 %y_row, i64 %y_stride, {self.element} %beta, "
            "i1 %added) noinline"
        )
        stored, lanes = STORED[self.stored], self.lanes
        unit = f.emit("icmp eq i64 %stride, 1")
        y_unit = f.emit("icmp eq i64 %y_stride, 1")
        free = f.emit(f"or i1 {y_unit}, {f.emit('xor i1 %added, true')}")
        whole = f.multiply(f.i64("sdiv", "%width", str(lanes)), str(lanes))
        whole = f.emit(f"select i1 {f.emit(f'and i1 {unit}, {free}')}, i64 {whole}, i64 0")
        with f.loop("0", "%rows") as row:
            source = f.at("%from", f.multiply(row, "%pitch"), self.element)
            target = f.at("%into", f.multiply(row, "%row_stride"), stored)
            row_of_y = f.at("%y", f.multiply(row, "%y_row"), stored)
            with f.loop("0", whole, str(lanes)) as index:
                value = self._load(f, f.at(source, index, self.element), lanes)
                value = self._added(f, value, f.at(row_of_y, index, stored), lanes)
                stored_value = narrowed(f, value, self.element, self.stored, lanes)
                f.store(vector(stored, lanes), stored_value, f.at(target, index, stored), SIZE[stored])
            with f.loop(whole, "%width") as index:
                value = f.load(self.element, f.at(source, index, self.element), self.size)
                value = self._added(f, value, f.at(row_of_y, f.multiply(index, "%y_stride"), stored), 1)
                stored_value = narrowed(f, value, self.element, self.stored, 1)
                f.store(stored, stored_value, f.at(target, f.multiply(index, "%stride"), stored), SIZE[stored])
        f.emit_void("ret void")
        return f.text()

    def _added(self, f: Function, value: str, y: str, lanes: int) -> str:
        """Return the value plus beta times what y points to, if something is added."""
        stored, kind = STORED[self.stored], vector(self.element, lanes)
        yes, done, before = f.fresh("yes"), f.fresh("done"), f.label
        f.branch("%added", yes, done)
        f.start(yes)
        loaded = f.load(vector(stored, lanes), y, SIZE[stored])
        wide = widened(f, loaded, self.stored, self.element, lanes)
        beta = "%beta"
        if lanes > 1:
            beta = f.emit(f"insertelement {kind} poison, {self.element} %beta, i64 0")
            beta = f.emit(f"shufflevector {kind} {beta}, {kind} poison, <{lanes} x i32> zeroinitializer")
        total = f.emit(f"call {kind} @llvm.fma.{suffix(kind)}({kind} {beta}, {kind} {wide}, {kind} {value})")
        after = f.label
        f.jump(done)
        f.start(done)
        return f.emit(f"phi {kind} [ {value}, %{before} ], [ {total}, %{after} ]")


class _Entry:
    """Writes the entry: over the items, decode, gather, step by step, scatter."""

    def __init__(self, kernels: _Kernels) -> None:
        self.kernels = kernels
        self.f = Function(
            f"void @{ENTRY}(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch)"
        )

    def _integer(self, slot: str) -> str:
        return self.f.load("i64", self.f.at("%integers", slot, "i64"), 8)

    def _record(self, start: str, fields: tuple[str, ...]) -> dict[str, str]:
        return {name: self._integer(self.f.add(start, str(i))) for i, name in enumerate(fields)}

    def _flag(self, name: str) -> str:
        return self.f.emit(f"icmp ne i64 {self.field[name]}, 0")

    def _choose(self, flag: str, yes: str, no: str, kind: str = "i64") -> str:
        return self.f.emit(f"select i1 {flag}, {kind} {yes}, {kind} {no}")

    def text(self) -> str:
        """Return the whole function."""
        f, element = self.f, self.kernels.element
        self.field = {name: self._integer(str(slot)) for slot, name in enumerate(FIELDS)}
        self.extents = [self._integer(str(len(FIELDS) + axis)) for axis in range(BATCH)]
        first_layout = len(FIELDS) + BATCH
        self.layouts = {
            name: [self._integer(str(first_layout + index * LAYOUT_FIELDS + i)) for i in range(LAYOUT_FIELDS)]
            for index, name in enumerate(ARRAYS)
        }
        self.first_step = first_layout + len(ARRAYS) * LAYOUT_FIELDS
        self.first_piece = f.add(str(self.first_step), f.multiply(self.field["steps"], str(len(STEP))))
        self.pointers = {
            name: f.load("ptr", f.at("%pointers", str(index), "ptr"), 8) for index, name in enumerate(ARRAYS)
        }
        numbers = [f.load("double", f.at("%numbers", str(index), "double"), 8) for index in range(2)]
        self.alpha, self.beta = (f.emit(f"fptrunc double {n} to float") if element == "float" else n for n in numbers)
        aligned = f.i64("and", f.add(f.emit("ptrtoint ptr %scratch to i64"), "63"), "-64")
        self.packed = f.emit(f"inttoptr i64 {aligned} to ptr")
        self.pieces = f.at(self.packed, self.field["pieces"], element)
        self.blocks = f.i64(
            "sdiv", f.add(self.field["right"], f.i64("sub nsw", self.field["width"], "1")), self.field["width"]
        )
        self.done = f.alloca("i64", 1)
        f.store("i64", "0", self.done, 8)
        with f.loop("%begin", "%end") as item:
            self._item(item)
        f.emit_void("ret void")
        return f.text()

    def _item(self, item: str) -> None:
        f = self.f
        index = f.i64("srem", item, self.blocks)
        rest = f.i64("sdiv", item, self.blocks)
        batch = [""] * BATCH
        for axis in reversed(range(BATCH)):
            batch[axis] = f.i64("srem", rest, self.extents[axis])
            rest = f.i64("sdiv", rest, self.extents[axis])
        fresh = f.emit(f"icmp eq i64 {f.load('i64', self.done, 8)}, 0")
        with f.when(f.emit(f"or i1 {fresh}, {self._flag('varies')}")):
            self._pack(batch)
            f.store("i64", "1", self.done, 8)
        first = f.multiply(index, self.field["width"])
        valid = f.least(self.field["width"], f.i64("sub nsw", self.field["right"], first))
        self._block(batch, first, valid)

    def _pack(self, batch: list[str]) -> None:
        """Multiply out the factors of every step, alpha included in the first."""
        f, element, size = self.f, self.kernels.element, self.kernels.size
        halves = [self.pieces, f.at(self.pieces, self.field["piece"], element)]
        with f.loop("0", self.field["steps"]) as number:
            step = self._step(number)
            target = f.at(self.packed, step["packed"], element)
            whole = f.multiply(step["columns"], step["padded"])
            with f.loop("0", whole) as i:
                f.store(element, "0.0", f.at(target, i, element), size)
            start = self._choose(f.emit(f"icmp eq i64 {number}, 0"), self.alpha, "1.0", element)
            f.store(element, start, halves[0], size)
            sides = [f.alloca("i64", 1) for _ in range(2)]
            for side in sides:
                f.store("i64", "1", side, 8)
            with f.loop(step["first"], step["stop"]) as index:
                piece = self._record(f.add(self.first_piece, f.multiply(index, str(len(PIECE)))), PIECE)
                pointer = f.load("ptr", f.at("%pointers", f.add(index, str(len(ARRAYS))), "ptr"), 8)
                for axis, name in enumerate("abc"):
                    pointer = f.at(pointer, f.multiply(batch[axis], piece[name]), STORED[self.kernels.stored])
                own = [f.load("i64", side, 8) for side in sides]
                odd = f.emit(f"icmp ne i64 {f.i64('and', f.i64('sub nsw', index, step['first']), '1')}, 0")
                last = f.emit(f"icmp eq i64 {f.add(index, '1')}, {step['stop']}")
                other = self._choose(odd, halves[0], halves[1], "ptr")
                into = self._choose(last, target, other, "ptr")
                columns, rows = f.multiply(own[0], piece["columns"]), f.multiply(own[1], piece["rows"])
                pitch = self._choose(last, step["padded"], rows)
                so_far = self._choose(odd, halves[1], halves[0], "ptr")
                f.emit_void(
                    f"call fastcc void @km_expand(ptr {into}, i64 {pitch}, ptr {so_far}, "
                    f"i64 {own[0]}, i64 {own[1]}, ptr {pointer}, i64 {piece['columns']}, i64 {piece['rows']}, "
                    f"i64 {piece['column_stride']}, i64 {piece['row_stride']})"
                )
                f.store("i64", columns, sides[0], 8)
                f.store("i64", rows, sides[1], 8)

    def _address(self, name: str, batch: list[str], first: str) -> str:
        f = self.f
        strides = self.layouts[name]
        offset = f.multiply(first, strides[BATCH + 1])
        for axis in range(BATCH):
            offset = f.add(offset, f.multiply(batch[axis], strides[axis]))
        return f.at(self.pointers[name], offset, STORED[self.kernels.stored])

    def _block(self, batch: list[str], first: str, valid: str) -> None:
        f, element = self.f, self.kernels.element
        flat = self._flag("flat")
        one = f.at(self.packed, self.field["buffers"], element)
        other = f.at(one, self.field["buffer"], element)
        last = self.field["steps"]
        ends: dict[str, dict[str, str]] = {}
        for name, extent in (("x", "columns"), ("out", "rows"), ("y", "rows")):
            run, right = self.layouts[name][BATCH:]
            ends[name] = {
                "rows": self._choose(flat, "1", self.field[extent]),
                "width": self._choose(flat, self.field[extent], valid),
                "row_stride": run,
                "stride": self._choose(flat, run, right),
                "pitch": self._choose(flat, self.field[extent], self.field["width"]),
                "pointer": self._address(name, batch, first),
            }
        direct_in, direct_out = self._flag("direct_in"), self._flag("direct_out")
        x = ends["x"]
        with f.when(f.emit(f"xor i1 {direct_in}, true")):
            f.emit_void(
                f"call fastcc void @km_gather(ptr {one}, i64 {x['pitch']}, ptr {x['pointer']}, i64 {x['rows']}, "
                f"i64 {x['width']}, i64 {x['row_stride']}, i64 {x['stride']})"
            )
        start = self._choose(direct_in, x["pointer"], one, "ptr")
        single = f.emit(f"icmp eq i64 {self.field['inner']}, {last}")
        ended = self._choose(f.emit(f"and i1 {single}, {direct_out}"), ends["out"]["pointer"], other, "ptr")
        self._chunks(start, ended)
        with f.loop(self.field["inner"], last) as number:
            step = self._step(number)
            odd = f.emit(f"icmp ne i64 {f.i64('and', f.i64('sub nsw', number, self.field['inner']), '1')}, 0")
            source, target = self._choose(odd, one, other, "ptr"), self._choose(odd, other, one, "ptr")
            after = f.add(number, "1")
            final = f.emit(f"and i1 {direct_out}, {f.emit(f'icmp eq i64 {after}, {last}')}")
            self._call(step, source, self._choose(final, ends["out"]["pointer"], target, "ptr"))
        odd = f.emit(f"icmp ne i64 {f.i64('and', f.i64('sub nsw', last, self.field['inner']), '1')}, 0")
        result = self._choose(odd, one, other, "ptr")
        out, y = ends["out"], ends["y"]
        with f.when(f.emit(f"xor i1 {direct_out}, true")):
            f.emit_void(
                f"call fastcc void @km_scatter(ptr {result}, i64 {out['pitch']}, ptr {out['pointer']}, "
                f"i64 {out['rows']}, i64 {out['width']}, i64 {out['row_stride']}, i64 {out['stride']}, "
                f"ptr {y['pointer']}, i64 {y['row_stride']}, i64 {y['stride']}, {element} {self.beta}, "
                f"i1 {self._flag('added')})"
            )

    def _chunks(self, source: str, target: str) -> None:
        """The inner steps, chunk after chunk, from one array to another."""
        f, element = self.f, self.kernels.element
        small = f.at(self.packed, self.field["chunk"], element)
        halves = [small, f.at(small, self.field["chunk_room"], element)]
        with f.loop("0", self.field["chunks"]) as chunk:
            begin = f.at(source, f.multiply(chunk, self.field["chunk_in"]), element)
            end = f.at(target, f.multiply(chunk, self.field["chunk_out"]), element)
            with f.loop("0", self.field["inner"]) as number:
                odd = f.emit(f"icmp ne i64 {f.i64('and', number, '1')}, 0")
                first = f.emit(f"icmp eq i64 {number}, 0")
                after = f.add(number, "1")
                last = f.emit(f"icmp eq i64 {after}, {self.field['inner']}")
                own = self._choose(first, begin, self._choose(odd, halves[0], halves[1], "ptr"), "ptr")
                into = self._choose(last, end, self._choose(odd, halves[1], halves[0], "ptr"), "ptr")
                self._call(self._step(number), own, into)

    def _step(self, number: str) -> dict[str, str]:
        return self._record(self.f.add(str(self.first_step), self.f.multiply(number, str(len(STEP)))), STEP)

    def _call(self, step: dict[str, str], source: str, target: str) -> None:
        f = self.f
        factor = f.at(self.packed, step["packed"], self.kernels.element)
        arguments = f"ptr {source}, ptr {factor}, ptr {target}, " + ", ".join(
            f"i64 {step[name]}" for name in ("left", "columns", "rows", "padded", "right", "pitch")
        )
        single = f.emit(f"icmp eq i64 {step['right']}, 1")
        yes, no, done = f.fresh("yes"), f.fresh("no"), f.fresh("done")
        f.branch(single, yes, no)
        f.start(yes)
        f.emit_void(f"call fastcc void @km_last({arguments})")
        f.jump(done)
        f.start(no)
        f.emit_void(f"call fastcc void @km_step({arguments})")
        f.jump(done)
        f.start(done)


def emit(stored: str, compute: str, vector_bytes: int, registers: int) -> str:
    """Return LLVM IR for a storage and a compute type; the same arguments always give the same text."""
    kernels = _Kernels(stored, compute, vector_bytes, registers)
    return "\n\n".join([f"; kron {stored} in {compute}", _Entry(kernels).text(), *kernels.functions()]) + "\n"
