"""The entry of a kernel: the loops over items, blocks, panels and tiles around the micro-kernel.

It is ``void km(ptr pointers, ptr integers, ptr numbers, i64 begin, i64 end, ptr scratch)`` and computes the items
``begin`` to ``end``, an item being ``item_rows`` rows of one batch and split. Every row is computed in the same way
whichever items go with it, so any partition over threads gives the same bits.
"""

from __future__ import annotations

from ...compiler.nest import SIZES, Buffer, size_slot, stride_slot
from .builder import ELEMENTS, STORED, Function
from .gram_plan import CpuPlan
from .micro_kernel import map_buffers, tile_name
from .pack import pack_name
from .symmetric import mirror_name

ENTRY = "km"


class Entry:
    """Writes the entry of a plan."""

    def __init__(self, plan: CpuPlan):
        self.plan, self.nest = plan, plan.nest
        self.element = ELEMENTS[plan.nest.compute]
        self.f = Function(
            f"void @{ENTRY}(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch)"
        )
        self.size = {role: self._integer(size_slot(role)) for role in SIZES}
        self.size |= {role: self.size[plan.actual(role)] for role in "mnl"}
        self.extent = self.size["l" if plan.vjp else "m"]
        self.loops = {role for buffer in self.nest.operands for role in buffer.roles if role in "kl"}
        self.strides: dict[tuple[int, str], str] = {}
        self.base: dict[str, str] = {}

    def _integer(self, slot: int) -> str:
        return self.f.load("i64", self.f.at("%integers", str(slot), "i64"), 8)

    def stride(self, buffer: Buffer, role: str) -> str:
        """Return the stride of a buffer along a role, 0 where it has none."""
        return self.strides.get((self.nest.buffers.index(buffer), role), "0")

    def _load_strides(self) -> None:
        for index, buffer in enumerate(self.nest.buffers):
            roles = [*"abc", *buffer.roles, *("k" if self._is_split(buffer) else "")]
            for role in roles:
                self.strides[index, role] = self._integer(stride_slot(index, self.plan.actual(role)))

    def _is_split(self, buffer: Buffer) -> bool:
        return self.nest.partial and buffer in self.nest.outs

    def _regions(self) -> None:
        """Emit the offsets of the panels in the workspace, as ``gram_plan.scratch`` counts them."""
        f, plan = self.f, self.plan

        def covered(extent: str, step: int) -> str:
            return f.multiply(f.ceiling(extent, step), str(step))

        rows = f.least(str(plan.row_block), covered(self.size["m"], plan.rows))
        columns = f.least(str(plan.column_block), covered(self.size["n"], plan.columns))
        self.packed_columns = columns
        depth = f.least(str(plan.depth), f.most("1", self.size["k"]))
        aligned = f.emit("ptrtoint ptr %scratch to i64")
        aligned = f.i64("and", f.add(aligned, "63"), "-64")
        pointer = f.emit(f"inttoptr i64 {aligned} to ptr")
        self.packed: dict[str, str] = {}
        for buffers, extent in (
            (plan.row_buffers, rows), (plan.column_buffers, columns), (plan.k_buffers, "1"),
            (plan.cell_buffers, str(plan.rows * plan.columns)),
        ):  # fmt: skip
            self.cells = pointer
            for buffer in buffers:
                self.packed[buffer.name] = pointer
                layers = f.multiply(depth if "k" in buffer.roles else "1", str(plan.copies(buffer)))
                count = f.multiply(layers, f.multiply(extent, str(plan.width)))
                pointer = f.at(pointer, f.i64("and", f.add(count, "63"), "-64"))
        self.state = pointer
        self.panels = f.i64("sdiv", columns, str(plan.columns))
        self.strips: dict[str, str] = {}
        if plan.symmetric:
            tiles = f.multiply(f.i64("sdiv", rows, str(plan.rows)), self.panels) if plan.looped else "0"
            count = f.multiply(tiles, str(plan.state_bytes))
            pointer = f.at(pointer, f.i64("and", f.add(count, "63"), "-64"))
            for buffer in self.nest.outs:
                self.strips[buffer.name] = pointer
                pointer = f.at(pointer, str(plan.strip_bytes(buffer)))

    def _offset(self, buffer: Buffer, counters: dict[str, str], pointer: str) -> str:
        f = self.f
        total = "0"
        for role, counter in counters.items():
            if (self.nest.buffers.index(buffer), role) in self.strides:
                total = f.add(total, f.multiply(counter, self.stride(buffer, role)))
        return f.at(pointer, total, STORED[buffer.dtype])

    def text(self) -> str:
        """Return the whole function."""
        f, plan = self.f, self.plan
        self._load_strides()
        self._regions()
        self.pointers = {
            buffer.name: f.load("ptr", f.at("%pointers", str(index), "ptr"), 8)
            for index, buffer in enumerate(self.nest.buffers)
        }
        blocks = f.ceiling(self.extent, plan.item_rows)
        head, body, done, item = f.fresh("head"), f.fresh("body"), f.fresh("done"), f.fresh("item")
        before = f.label
        f.jump(head)
        f.start(head)
        index = len(f.instructions)
        f.instructions.append("")
        f.branch(f.emit(f"icmp slt i64 {item}, %end"), body, done)
        f.start(body)
        outer, block = f.i64("sdiv", item, blocks), f.i64("srem", item, blocks)
        count = f.least(f.i64("sub nsw", blocks, block), f.i64("sub nsw", "%end", item))
        first = f.multiply(block, str(plan.item_rows))
        last = f.least(self.extent, f.multiply(f.add(block, count), str(plan.item_rows)))
        self._outer(outer)
        self._rows(first, last)
        following = f.add(item, count)
        f.instructions[index] = f"  {item} = phi i64 [ %begin, %{before} ], [ {following}, %{f.label} ]"
        f.jump(head)
        f.start(done)
        f.emit_void("ret void")
        return f.text()

    def _outer(self, outer: str) -> None:
        """Batch and split of an item: base pointers and the ranges of the reduced loops."""
        f = self.f
        index: dict[str, str] = {}
        for role in ("splits", "c", "b"):
            index[role] = f.i64("srem", outer, self.size[role])
            outer = f.i64("sdiv", outer, self.size[role])
        index["a"] = outer
        for buffer in self.nest.buffers:
            counters = {role: index[role] for role in "abc"}
            if self._is_split(buffer):
                counters["k"] = index["splits"]
            self.base[buffer.name] = self._offset(buffer, counters, self.pointers[buffer.name])
        self.range = {role: ("0", self.size[role]) for role in "kl"}
        if self.nest.partial:
            role = "l" if "l" in self.loops else "k"
            ends = (index["splits"], f.add(index["splits"], "1"))
            low, high = (f.i64("sdiv", f.multiply(end, self.size[role]), self.size["splits"]) for end in ends)
            self.range[role] = low, high

    def _rows(self, first: str, last: str) -> None:
        f, plan = self.f, self.plan
        spans = {role: f.i64("sub nsw", high, low) for role, (low, high) in self.range.items()}
        whole = f.multiply(spans["k"], spans["l"])
        self.empty = f.emit(f"icmp sle i64 {whole}, 0")
        self.blocks = f.most("1", f.ceiling(spans["k"], plan.depth)) if "k" in self.loops else "1"
        self.repeats = f.most("1", spans["l"]) if "l" in self.loops else "1"
        passes = f.multiply(self.repeats, self.blocks) if "l" in self.loops else self.blocks
        several = f.emit(f"icmp sgt i64 {self.size['n']}, {plan.column_block}")
        with f.loop(first, last, str(plan.row_block)) as ic:
            rows = f.least(str(plan.row_block), f.i64("sub nsw", last, ic))
            start = "0"
            if plan.symmetric:
                start = f.multiply(f.i64("sdiv", ic, str(plan.column_block)), str(plan.column_block))
            with f.loop(start, self.size["n"], str(plan.column_block)) as jc:
                columns = f.least(str(plan.column_block), f.i64("sub nsw", self.size["n"], jc))
                fresh_rows = f.emit(f"icmp eq i64 {jc}, {start}")
                fresh_columns = f.emit(f"or i1 {several}, {f.emit(f'icmp eq i64 {ic}, {first}')}")
                with f.loop("0", passes) as number:
                    self._pass(number, passes, (ic, rows, fresh_rows), (jc, columns, fresh_columns))

    def _pass(self, number: str, passes: str, down: tuple[str, str, str], across: tuple[str, str, str]) -> None:
        """One block of k at one position of l: pack what is new, then all tiles of the block of the output.

        All positions of l come before the next block of k, so that buffers without l are packed once a block.
        """
        f, plan = self.f, self.plan
        low, high = self.range["k"]
        block, step, at_l = number, "0", "0"
        if "l" in self.loops:
            block, step = f.i64("sdiv", number, self.repeats), f.i64("srem", number, self.repeats)
            at_l = f.add(self.range["l"][0], step)
        if "k" in self.loops:
            at_k = f.add(low, f.multiply(block, str(plan.depth)))
            depth = f.least(str(plan.depth), f.i64("sub nsw", high, at_k))
        else:
            at_k, depth = "0", "1"
        depth = f.emit(f"select i1 {self.empty}, i64 0, i64 {depth}")
        position = f.add(f.multiply(at_l, self.size["k"]), at_k) if "l" in self.loops else at_k
        counters = {"k": at_k, "l": at_l}
        groups = (
            (plan.row_buffers, "m", plan.rows, down),
            (plan.column_buffers, "n", plan.columns, across),
            (plan.k_buffers, "", 1, ("0", "1", "true")),
        )
        changing = {False: f.emit(f"icmp ne i64 {self.blocks}, 1"), True: f.emit(f"icmp ne i64 {passes}, 1")}
        for buffers, role, width, (start, extent, fresh) in groups:
            for outer in (False, True):
                pointer = [buffer for buffer in buffers if ("l" in buffer.roles) == outer]
                if not pointer:
                    continue
                wanted = f.emit(f"or i1 {fresh}, {changing[outer]}")
                if step != "0" and not outer:
                    wanted = f.emit(f"and i1 {wanted}, {f.emit(f'icmp eq i64 {step}, 0')}")
                with f.when(wanted):
                    for buffer in pointer:
                        self._pack(buffer, role, width, {**counters, role: start}, extent, depth)
        first, last = f.emit(f"icmp eq i64 {number}, 0"), f.emit(f"icmp eq i64 {f.add(number, '1')}, {passes}")
        tail = f"ptr {self.cells}", f"i64 {depth}", f"i64 {position}", f"i1 {first}", f"i1 {last}"
        self._tiles(counters, down, across, tail)

    def _pack(self, buffer: Buffer, role: str, width: int, counters: dict[str, str], extent: str, depth: str) -> None:
        f = self.f
        varies = bool(set(buffer.roles) & set("kl"))
        layers = depth if "k" in buffer.roles else "1"
        arguments = (
            f"ptr {self.packed[buffer.name]}, ptr {self._offset(buffer, counters, self.base[buffer.name])}, "
            f"i64 {self.stride(buffer, role)}, i64 {self.stride(buffer, 'k')}, i64 {extent}, i64 {layers}"
        )
        call = f"call fastcc void {pack_name(buffer.dtype, width)}({arguments})"
        if not varies:
            f.emit_void(call)
            return
        with f.when(f.emit(f"xor i1 {self.empty}, true")):
            f.emit_void(call)

    def _tiles(
        self, counters: dict[str, str], down: tuple[str, str, str], across: tuple[str, str, str], tail: tuple[str, ...]
    ) -> None:
        f, plan = self.f, self.plan
        (ic, rows, _), (jc, columns, _) = down, across
        _, depth, _, _, last = tail
        layers = depth.removeprefix("i64 ")
        with f.loop("0", columns, str(plan.columns)) as jr:
            j0 = f.add(jc, jr)
            stop = rows
            if plan.symmetric:
                below = f.i64("sub nsw", f.add(j0, str(plan.columns)), ic)
                stop = f.most("0", f.least(rows, below))
            with f.loop("0", stop, str(plan.rows)) as ir:
                i0 = f.add(ic, ir)
                index = {**counters, "m": i0, "n": j0}
                arguments = [
                    f"ptr {self._operand_address(buffer, ir, jr, layers, index)}" for buffer in map_buffers(plan)
                ]
                at = {"m": i0, "n": j0}
                arguments += [f"ptr {self._offset(buffer, at, self.base[buffer.name])}" for buffer in self.nest.outs]
                if plan.symmetric:
                    first_cell = f.multiply(ir, str(plan.columns))
                    for buffer in self.nest.outs:
                        arguments.append(f"ptr {f.at(self.strips[buffer.name], first_cell, STORED[buffer.dtype])}")
                skew = f.i64("sub nsw", i0, j0) if plan.symmetric else str(-plan.rows)
                counts = [
                    f"i64 {f.least(str(plan.rows), f.i64('sub nsw', rows, ir))}",
                    f"i64 {f.least(str(plan.columns), f.i64('sub nsw', columns, jr))}",
                    f"i64 {skew}",
                ]
                self._call_tile((ir, jr), arguments, counts, tail)
            if plan.symmetric:
                with f.when(last.removeprefix("i1 ")):
                    self._mirror((ic, j0), stop, f.least(str(plan.columns), f.i64("sub nsw", columns, jr)))

    def _call_tile(
        self, corner: tuple[str, str], arguments: list[str], counts: list[str], tail: tuple[str, ...]
    ) -> None:
        """Call the micro-kernel of a tile, whose accumulators lie by its first row and column."""
        f, plan, (cells, depth, position, first, last) = self.f, self.plan, tail
        down, across = corner
        down_by = f.multiply(f.i64("sdiv", down, str(plan.rows)), self.panels)
        tile = f.add(down_by, f.i64("sdiv", across, str(plan.columns)))
        state = f.at(self.state, f.multiply(tile, str(plan.state_bytes)))
        rest = [cells, f"ptr {state}", depth, position, *counts, first, last]
        call = ", ".join(["ptr %integers", "ptr %numbers", *arguments, *rest])
        f.emit_void(f"call fastcc void {tile_name(plan.optimistic)}({call})")

    def _mirror(self, corner: tuple[str, str], rows: str, columns: str) -> None:
        """Copy the strips of a panel to the other side of the diagonal."""
        f = self.f
        i0, j0 = corner
        reach = f.add(f.i64("sub nsw", j0, i0), "1")
        for buffer in self.nest.outs:
            into = self._offset(buffer, {"m": j0, "n": i0}, self.base[buffer.name])
            strides = f"i64 {self.stride(buffer, 'm')}, i64 {self.stride(buffer, 'n')}"
            arguments = f"ptr {into}, ptr {self.strips[buffer.name]}, {strides}"
            f.emit_void(
                f"call fastcc void {mirror_name(buffer.dtype)}({arguments}, i64 {rows}, i64 {columns}, i64 {reach})"
            )

    def _operand_address(self, buffer: Buffer, ir: str, jr: str, layers: str, counters: dict[str, str]) -> str:
        """Return the address of an operand of a tile: in a panel, in a row, or in the array itself."""
        f, plan = self.f, self.plan
        if buffer in plan.cell_buffers:
            return self._offset(buffer, counters, self.base[buffer.name])
        pointer = self.packed[buffer.name]
        if buffer in plan.k_buffers:
            return pointer
        start = ir if buffer in plan.row_buffers else jr
        return f.at(pointer, f.multiply(start, layers if "k" in buffer.roles else "1"), self.element)
