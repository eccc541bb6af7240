"""LLVM IR of Kronecker-sparse products of few rows on a CPU: weights are read as they lie, lanes along what is summed.

``c[p, (q, l)] = bias + sum over k of a[p, (k, l)] b[q, (k, l)]`` with all (k, l) next to each other, for each block.
Neighbours in memory are pairs where there is one l.
"""

from __future__ import annotations

from ...backends.cpu.builder import SIZE, Function, vector
from .cpu_plan import DOT_FIELDS, Tile
from .cpu_vectors import HEAD, Vectors


class _Dots(Vectors):
    """Functions of ``rows`` times ``vectors`` sums at a time."""

    def _sums(self, f: Function, shape: tuple[int, int], ends: tuple[str, str], masked: bool) -> list[str]:
        """Return the accumulators with what is between two places of r."""
        rows, columns = shape
        positions = [(i, j) for i in range(rows) for j in range(columns)]
        with f.carry(self.kind, self.begun, *ends, str(self.step)) as (r, values, following):
            mask = self.mask(f, f.i64("sub nsw", "%r", r), self.step) if masked else ""

            def read(pointer: str) -> str:
                return self._read(f, self.at(f, pointer, r, of=self.stored), mask)

            across = [read(self.at(f, "%b", f.multiply("%b_q", str(j)), of=self.stored)) for j in range(columns)]
            down = [read(self.at(f, "%a", f.multiply("%a_p", str(i)), of=self.stored)) for i in range(rows)]
            following += [self.fma(f, down[i], across[j], values[n]) for n, (i, j) in enumerate(positions)]
        return values

    @property
    def step(self) -> int:
        """Numbers that a vector of words has."""
        return self.tile.lanes * (2 if self.tile.dot2 else 1)

    def _read(self, f: Function, address: str, mask: str) -> str:
        """Return a vector of words, those of a mask if there is one."""
        if not self.tile.dot2:
            if mask:
                return self.load_masked(f, address, mask, self.tile.dtype)
            return self.number(f, address, self.tile.dtype, self.tile.lanes)
        kind = vector(self.stored, self.step)
        if mask:
            value = self.bits_masked(f, address, mask, self.step, self.tile.dtype)
        else:
            value = f.load(kind, address, SIZE[self.stored])
        return f.emit(f"bitcast {kind} {value} to {self.kind}")

    def _added(self, f: Function, value: str) -> str:
        """Return the sums of the lanes of one l each."""
        lanes, group = self.tile.lanes, self.tile.group
        while lanes > group:
            kind, half = vector(self.element, lanes), lanes // 2
            own = f"<{half} x {self.element}>"
            low, high = (
                f.emit(
                    f"shufflevector {kind} {value}, {kind} poison, <{half} x i32> "
                    f"<{', '.join(f'i32 {first + i}' for i in range(half))}>"
                )
                for first in (0, half)
            )
            value, lanes = f.emit(f"fadd {own} {low}, {high}"), half
        if group == 1:
            return f.emit(f"extractelement <1 x {self.element}> {value}, i64 0")
        return value

    def compute(self, rows: int, columns: int) -> str:
        """Return the sums of some rows of a and of b."""
        f = Function(
            f"internal fastcc void @dot_{rows}_{columns}(ptr noalias %a, ptr noalias %b, ptr noalias %c, "
            "ptr noalias %bias, i64 %r, i64 %a_p, i64 %b_q, i64 %c_p) noinline"
        )
        tile = self.tile
        whole = f.i64("sub nsw", "%r", f.i64("srem", "%r", str(self.step)))
        self.begun = ["zeroinitializer"] * (rows * columns)
        self.begun = self._sums(f, (rows, columns), ("0", whole), False)
        self.begun = self._sums(f, (rows, columns), (whole, "%r"), True)
        own = vector(self.element, tile.group)
        for n, value in enumerate(self.begun):
            i, j = divmod(n, columns)
            total = self._added(f, value)
            if tile.bias:
                values = self.number(
                    f, self.at(f, "%bias", str(j * tile.group), of=self.stored), tile.dtype, tile.group
                )
                total = f.emit(f"fadd {own} {total}, {values}")
            address = self.at(f, "%c", f.multiply("%c_p", str(i)), str(j * tile.group), of=self.stored)
            self.put(f, total, address, tile.dtype, tile.group)
        f.emit_void("ret void")
        return f.text()


def emit(tile: Tile) -> str:
    """Return LLVM IR for tiles of that many rows of a and of b; an item is a block of q for all p."""
    own = _Dots(tile)
    f = Function(HEAD)
    field = own.integers(f, DOT_FIELDS)
    names = ("a", "b", "c", "bias") if tile.bias else ("a", "b", "c")
    pointers = {name: own.pointer(f, address) for address, name in enumerate(names)}
    blocks = f.i64("sdiv", f.add(field["q"], f.i64("sub nsw", field["q_block"], "1")), field["q_block"])
    shapes: list[tuple[int, int]] = []
    with f.loop("%begin", "%end") as item:
        outer = f.i64("sdiv", item, blocks)
        first = f.multiply(f.i64("srem", item, blocks), field["q_block"])
        last = f.least(field["q"], f.add(first, field["q_block"]))
        start = {
            name: own.at(f, pointers[name], f.multiply(outer, field[f"{name}_outer"]), of=own.stored) for name in names
        }
        for columns in (tile.vectors, 1):
            stop = f.add(first, f.multiply(f.i64("sdiv", f.i64("sub nsw", last, first), str(columns)), str(columns)))
            with f.loop(first, stop, str(columns)) as q:
                b = own.at(f, start["b"], f.multiply(q, field["b_q"]), of=own.stored)
                shift = f.multiply(q, str(tile.group))
                bias = own.at(f, start["bias"], shift, of=own.stored) if tile.bias else "null"
                begin = "0"
                for rows in tile.heights:
                    shapes.append((rows, columns))
                    count = f.i64("sdiv", f.i64("sub nsw", field["p"], begin), str(rows))
                    end = f.add(begin, f.multiply(count, str(rows)))
                    with f.loop(begin, end, str(rows)) as p:
                        a = own.at(f, start["a"], f.multiply(p, field["a_p"]), of=own.stored)
                        c = own.at(f, start["c"], f.multiply(p, field["c_p"]), shift, of=own.stored)
                        f.emit_void(
                            f"call fastcc void @dot_{rows}_{columns}(ptr {a}, ptr {b}, ptr {c}, ptr {bias}, "
                            f"i64 {field['r']}, i64 {field['a_p']}, i64 {field['b_q']}, i64 {field['c_p']})"
                        )
                    begin = end
            first = stop
    f.emit_void("ret void")
    parts = [f.text(), *(own.compute(*shape) for shape in shapes)]
    return "\n\n".join([f"; Kronecker-sparse sums along lanes, {tile}", *parts]) + "\n"
