"""LLVM IR of a row plan: panels of a matrix from the micro-kernel of gram, each reduced as soon as it is there."""

from __future__ import annotations

from dataclasses import replace

from .emit import module
from .loops import Entry
from .micro_kernel import map_buffers
from .pack import pack_name
from .row_reduce_panels import consumers
from .row_reduce_plan import CpuRowPlan


class RowEntry(Entry):
    """Writes the entry of a row plan; an item is some columns of the matrix, rows of the result."""

    def __init__(self, plan: CpuRowPlan):
        super().__init__(plan.matrix)
        self.row_plan, self.rows = plan, plan.rows
        self.extent = self.size["n"]
        swapped = str.maketrans("mn", "nm")
        extra = [buffer for buffer in (self.rows.v, *self.rows.outs) if buffer is not None]
        further = [replace(buffer, roles=buffer.roles.translate(swapped)) for buffer in extra]
        self.nest = replace(self.nest, outs=(*self.nest.outs, *further))
        self.v = further[0] if self.rows.v is not None else None
        self.results = further[1:] if self.rows.v is not None else further

    def _regions(self) -> None:
        super()._regions()
        f, plan = self.f, self.plan
        rows = f.least(str(plan.row_block), f.multiply(f.ceiling(self.size["m"], plan.rows), str(plan.rows)))
        tiles = f.multiply(f.i64("sdiv", rows, str(plan.rows)), self.panels) if plan.looped else "0"
        pointer = f.at(self.state, f.i64("and", f.add(f.multiply(tiles, str(plan.state_bytes)), "63"), "-64"))
        self.panel = pointer
        pointer = f.at(pointer, str(self.row_plan.panel_bytes))
        group = self.row_plan.group
        self.width = f.multiply(f.ceiling(self.size["l"], group), str(group))
        self.weights = pointer
        if self.v is not None:
            pointer = f.at(pointer, f.multiply(self.width, str(plan.row_block * plan.width)))
        self.accumulators = pointer
        self.accumulator_bytes = f.multiply(self.width, str(self.row_plan.column_bytes))

    def _rows(self, first: str, last: str) -> None:
        """Blocks of the result's rows, each over all columns of the matrix."""
        f, plan = self.f, self.plan
        depth = self.size["k"]
        self.empty = f.emit(f"icmp sle i64 {depth}, 0")
        self.blocks = f.most("1", f.ceiling(depth, plan.depth)) if "k" in self.loops else "1"
        single = f.emit(f"icmp eq i64 {self.blocks}, 1")
        one_block = f.emit(f"icmp sle i64 {self.size['m']}, {plan.row_block}")
        accumulators = f.emit(f"and i1 {single}, {one_block}")
        with f.loop(first, last, str(plan.column_block)) as jc:
            columns = f.least(str(plan.column_block), f.i64("sub nsw", last, jc))
            fresh = f.emit(f"icmp eq i64 {jc}, {first}")
            with f.loop("0", self.size["m"], str(plan.row_block)) as ic:
                rows = f.least(str(plan.row_block), f.i64("sub nsw", self.size["m"], ic))
                start = f.emit(f"icmp eq i64 {ic}, 0")
                pack_rows = f.emit(f"select i1 {accumulators}, i1 {fresh}, i1 true")
                pack_columns = f.emit(f"select i1 {single}, i1 {start}, i1 true")
                self._pack_weights(ic, rows)
                with f.loop("0", self.blocks) as number:
                    self._pass(number, self.blocks, (ic, rows, pack_rows), (jc, columns, pack_columns))
            self._write(jc, columns)

    def _pack_weights(self, ic: str, rows: str) -> None:
        f, v = self.f, self.v
        if v is None:
            return
        source = self._offset(v, {"m": ic}, self.base[v.name])
        arguments = f"ptr {self.weights}, ptr {source}, i64 {self.stride(v, 'l')}, i64 {self.stride(v, 'm')}"
        name = pack_name(v.dtype, self.row_plan.group)
        f.emit_void(f"call fastcc void {name}({arguments}, i64 {self.size['l']}, i64 {rows})")

    def _tiles(
        self, counters: dict[str, str], down: tuple[str, str, str], across: tuple[str, str, str], tail: tuple[str, ...]
    ) -> None:
        """Panel after panel: its tiles, then, when the last of k is in, what is done with it."""
        f, plan = self.f, self.plan
        (ic, rows, _), (jc, columns, _) = down, across
        _, depth, _, _, last = tail
        layers = depth.removeprefix("i64 ")
        with f.loop("0", columns, str(plan.columns)) as jr:
            with f.loop("0", rows, str(plan.rows)) as ir:
                index = {**counters, "m": f.add(ic, ir), "n": f.add(jc, jr)}
                arguments = [
                    f"ptr {self._operand_address(buffer, ir, jr, layers, index)}" for buffer in map_buffers(plan)
                ]
                arguments.append(f"ptr {f.at(self.panel, f.multiply(ir, str(plan.columns)), self.element)}")
                counts = [*self._counts((ir, rows), (jr, columns)), f"i64 {-plan.rows}"]
                self._call_tile((ir, jr), arguments, counts, tail)
            with f.when(last.removeprefix("i1 ")):
                arguments = [f"ptr {self.panel}", f"ptr {self.weights}", f"ptr {self._accumulators_at(jr)}"]
                arguments += [f"i64 {count}" for count in (rows, ic, self.size["l"])]
                f.emit_void(f"call fastcc void @km_consume({', '.join(arguments)})")

    def _counts(self, *extents: tuple[str, str]) -> list[str]:
        """Rows and columns of a tile: whole, for a panel has room, unless operands are read entry by entry."""
        f, plan = self.f, self.plan
        whole = (str(plan.rows), str(plan.columns))
        if not plan.cell_buffers:
            return [f"i64 {count}" for count in whole]
        return [
            f"i64 {f.least(count, f.i64('sub nsw', extent, at))}"
            for count, (at, extent) in zip(whole, extents, strict=True)
        ]

    def _accumulators_at(self, jr: str) -> str:
        f = self.f
        return f.at(self.accumulators, f.multiply(f.i64("sdiv", jr, str(self.plan.columns)), self.accumulator_bytes))

    def _write(self, jc: str, columns: str) -> None:
        """Finished rows of the result, a tile's width at a time."""
        f, plan = self.f, self.plan
        with f.loop("0", columns, str(plan.columns)) as jr:
            arguments = [f"ptr {self._accumulators_at(jr)}", f"i64 {self.size['l']}"]
            arguments.append(f"i64 {f.least(str(plan.columns), f.i64('sub nsw', columns, jr))}")
            for buffer in self.results:
                into = self._offset(buffer, {"n": f.add(jc, jr)}, self.base[buffer.name])
                arguments += [f"ptr {into}", f"i64 {self.stride(buffer, 'n')}", f"i64 {self.stride(buffer, 'l')}"]
            f.emit_void(f"call fastcc void @km_finish({', '.join(arguments)})")


def emit_rows(plan: CpuRowPlan) -> str:
    """Return LLVM IR of a row plan; the same plan always gives the same text."""
    needed: set[tuple[str, str, int]] = set()
    packed = [(plan.rows.v, plan.group)] if plan.rows.v is not None else []
    made = consumers(plan, needed)
    return module(plan.matrix, str(plan), RowEntry(plan).text(), needed, made, packed, plan.rows.outs)
