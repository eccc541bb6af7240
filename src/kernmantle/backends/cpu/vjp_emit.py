"""The entry of a VJP: outputs times columns are tiled, for one point after another of an item.

An item is a range of points and a block of columns. For each block of the reduced rows, what belongs to the columns
is packed once and then serves every point; a panel of it stays in the first cache while the points go by. The
registers of all points are kept from block to block.
"""

from __future__ import annotations

from ...compiler.nest import Buffer
from .loops import Entry
from .micro_kernel import map_buffers, tile_name
from .pack import pack_name


class VjpEntry(Entry):
    """Writes the entry of a plan that is ``vjp``: m are outputs, n columns, l points, k what is reduced."""

    def _outer(self, outer: str) -> None:
        f, plan = self.f, self.plan
        blocks = f.ceiling(self.size["n"], plan.column_block)
        self.column = f.multiply(f.i64("srem", outer, blocks), str(plan.column_block))
        self.columns = f.least(str(plan.column_block), f.i64("sub nsw", self.size["n"], self.column))
        super()._outer(f.i64("sdiv", outer, blocks))

    def _rows(self, first: str, last: str) -> None:
        f, plan = self.f, self.plan
        blocks = f.most("1", f.ceiling(self.size["k"], plan.depth))
        with f.loop(first, last, str(plan.item_rows)) as start:
            points = f.least(str(plan.item_rows), f.i64("sub nsw", last, start))
            with f.loop("0", self.size["m"], str(plan.row_block)) as ic:
                rows = f.least(str(plan.row_block), f.i64("sub nsw", self.size["m"], ic))
                with f.loop("0", blocks) as number:
                    at_k = f.multiply(number, str(plan.depth))
                    depth = f.least(str(plan.depth), f.i64("sub nsw", self.size["k"], at_k))
                    self._fill({"k": at_k, "m": ic, "n": self.column, "l": start}, points, rows, depth)
                    flags = (
                        f.emit(f"icmp eq i64 {number}, 0"), f.emit(f"icmp eq i64 {f.add(number, '1')}, {blocks}")
                    )  # fmt: skip
                    self._panels((ic, rows), (start, points), (at_k, depth), flags)

    def _fill(self, counters: dict[str, str], points: str, rows: str, depth: str) -> None:
        """Pack what the tiles of a block of k read."""
        plan = self.plan
        groups = (
            (plan.row_buffers, "m", plan.rows, rows),
            (plan.column_buffers, "n", plan.columns, self.columns),
            (plan.k_buffers, "", 1, "1"),
        )
        for buffers, role, width, extent in groups:
            for buffer in buffers:
                if "l" in buffer.roles:
                    with self.f.loop("0", points) as point:
                        index = {**counters, "l": self.f.add(counters["l"], point)}
                        self._copy(buffer, role, width, index, (extent, depth), point)
                else:
                    self._copy(buffer, role, width, counters, (extent, depth), "0")

    def _copy(
        self, buffer: Buffer, role: str, width: int, counters: dict[str, str], shape: tuple[str, str], point: str
    ) -> None:
        f = self.f
        extent, depth = shape
        layers = depth if "k" in buffer.roles else "1"
        into = self._packed(buffer, point, layers)
        arguments = (
            f"ptr {into}, ptr {self._offset(buffer, counters, self.base[buffer.name])}, "
            f"i64 {self.stride(buffer, role)}, i64 {self.stride(buffer, 'k')}, i64 {extent}, i64 {layers}"
        )
        f.emit_void(f"call fastcc void {pack_name(buffer.dtype, width)}({arguments})")

    def _packed(self, buffer: Buffer, point: str, layers: str) -> str:
        """Return the address of a point's packed copy of an operand."""
        f, plan = self.f, self.plan
        if "l" not in buffer.roles:
            return self.packed[buffer.name]
        extent = self.packed_columns if buffer in plan.column_buffers else "1"
        return f.at(self.packed[buffer.name], f.multiply(point, f.multiply(extent, layers)), self.element)

    def _panels(
        self, down: tuple[str, str], among: tuple[str, str], deep: tuple[str, str], flags: tuple[str, str]
    ) -> None:
        """All tiles of a block of k: panels of columns, points, tiles of outputs."""
        f, plan = self.f, self.plan
        (ic, rows), (start, points), (at_k, depth) = down, among, deep
        high = f.ceiling(rows, plan.rows)
        with (
            f.loop("0", self.columns, str(plan.columns)) as jr,
            f.loop("0", points) as point,
            f.loop("0", high) as tile,
        ):
            ir = f.multiply(tile, str(plan.rows))
            at = {"m": f.add(ic, ir), "n": f.add(self.column, jr), "l": f.add(start, point)}
            arguments = [f"ptr {self._at(buffer, ir, jr, point, depth)}" for buffer in map_buffers(plan)]
            arguments += [f"ptr {self._offset(buffer, at, self.base[buffer.name])}" for buffer in self.nest.outs]
            counts = [
                f"i64 {f.least(str(plan.rows), f.i64('sub nsw', rows, ir))}",
                f"i64 {f.least(str(plan.columns), f.i64('sub nsw', self.columns, jr))}",
                f"i64 {-plan.rows}",
            ]
            panel = f.add(f.multiply(f.i64("sdiv", jr, str(plan.columns)), str(plan.item_rows)), point)
            state = f.at(self.state, f.multiply(f.add(f.multiply(panel, high), tile), str(plan.state_bytes)))
            rest = [f"ptr {self.cells}", f"ptr {state}", f"i64 {depth}", f"i64 {at_k}", *counts]
            rest += [f"i1 {flag}" for flag in flags]
            call = ", ".join(["ptr %integers", "ptr %numbers", *arguments, *rest])
            f.emit_void(f"call fastcc void {tile_name(plan.optimistic)}({call})")

    def _at(self, buffer: Buffer, ir: str, jr: str, point: str, depth: str) -> str:
        """Return the address of an operand of a tile."""
        f, plan = self.f, self.plan
        layers = depth if "k" in buffer.roles else "1"
        pointer = self._packed(buffer, point, layers)
        if buffer in plan.k_buffers:
            return pointer
        start = ir if buffer in plan.row_buffers else jr
        return f.at(pointer, f.multiply(start, layers), self.element)
