"""Instructions on the vectors of a tile of Kronecker-sparse products, and what packs its operands."""

from __future__ import annotations

from ...backends.cpu.builder import ELEMENTS, SIZE, Function, suffix, vector
from .cpu_plan import Tile

ENTRY = "km"
HEAD = f"void @{ENTRY}(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch)"


class Vectors:
    """Instructions on the vectors of a tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.element = tile, ELEMENTS[tile.dtype]
        self.size = SIZE[self.element]
        self.kind = vector(self.element, tile.lanes)

    def at(self, f: Function, pointer: str, *offsets: str) -> str:
        """Return the address so many elements on."""
        for offset in offsets:
            if offset != "0":
                pointer = f.at(pointer, offset, self.element)
        return pointer

    def load(self, f: Function, pointer: str, lanes: int | None = None) -> str:
        """Return the vector in memory."""
        return f.load(vector(self.element, lanes or self.tile.lanes), pointer, self.size)

    def repeated(self, f: Function, pointer: str) -> str:
        """Return the group at an address, again and again."""
        lanes, group = self.tile.lanes, self.tile.group
        if group == lanes:
            return self.load(f, pointer)
        own = vector(self.element, group)
        value = f.load(own, pointer, self.size)
        if group == 1:
            value = f.emit(f"insertelement {self.kind} poison, {self.element} {value}, i64 0")
            return f.emit(f"shufflevector {self.kind} {value}, {self.kind} poison, <{lanes} x i32> zeroinitializer")
        indices = ", ".join(f"i32 {lane % group}" for lane in range(lanes))
        return f.emit(f"shufflevector {own} {value}, {own} poison, <{lanes} x i32> <{indices}>")

    def fma(self, f: Function, a: str, b: str, c: str) -> str:
        """``a b + c``."""
        kind = self.kind
        return f.emit(f"call {kind} @llvm.fma.{suffix(kind)}({kind} {a}, {kind} {b}, {kind} {c})")

    def prefetch(self, f: Function, pointer: str, write: int = 0) -> None:
        """Ask the second cache for what is at an address, or is going to be written there."""
        f.emit_void(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {write}, i32 2, i32 1)")

    def mask(self, f: Function, valid: str) -> str:
        """Return which of the lanes are below a count."""
        lanes = self.tile.lanes
        low = f.most("-1", f.least(valid, str(lanes)))
        low = f.emit(f"trunc i64 {low} to i32")
        wide = f"<{lanes} x i32>"
        one = f.emit(f"insertelement {wide} poison, i32 {low}, i64 0")
        every = f.emit(f"shufflevector {wide} {one}, {wide} poison, {wide} zeroinitializer")
        indices = ", ".join(f"i32 {lane}" for lane in range(lanes))
        return f.emit(f"icmp slt {wide} <{indices}>, {every}")

    def load_masked(self, f: Function, pointer: str, mask: str) -> str:
        """Return the vector in memory, zero where the mask is."""
        kind, lanes = self.kind, self.tile.lanes
        return f.emit(
            f"call {kind} @llvm.masked.load.{suffix(kind)}.p0(ptr {pointer}, i32 {self.size}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)"
        )

    def store_masked(self, f: Function, value: str, pointer: str, mask: str) -> None:
        """Put the lanes of a mask into memory."""
        kind, lanes = self.kind, self.tile.lanes
        f.emit_void(
            f"call void @llvm.masked.store.{suffix(kind)}.p0({kind} {value}, ptr {pointer}, i32 {self.size}, "
            f"<{lanes} x i1> {mask})"
        )

    def integers(self, f: Function, names: tuple[str, ...]) -> dict[str, str]:
        """Return the arguments of the entry."""
        return {name: f.load("i64", f.at("%integers", str(slot), "i64"), 8) for slot, name in enumerate(names)}

    def pointer(self, f: Function, index: int) -> str:
        """Return an array of the entry."""
        return f.load("ptr", f.at("%pointers", str(index), "ptr"), 8)


def packing(own: Vectors) -> str:
    """Return the rows of a panel, one after the other, from groups ``b_q`` apart; zeros behind the last lane."""
    tile = own.tile
    f = Function(
        "internal fastcc void @pack(ptr noalias %into, ptr noalias %b, i64 %r, i64 %b_r, i64 %b_q, i64 %lanes) noinline"
    )
    group = vector(own.element, tile.group)
    every = tile.width // tile.group
    present = f.least(str(every), f.i64("sdiv", "%lanes", str(tile.group)))
    is_contiguous = f.emit(f"icmp eq i64 %b_q, {tile.group}")
    is_contiguous = f.emit(f"and i1 {is_contiguous}, {f.emit(f'icmp eq i64 {present}, {every}')}")
    together, apart, done = f.fresh("together"), f.fresh("apart"), f.fresh("done")
    f.branch(is_contiguous, together, apart)
    f.start(together)
    with f.loop("0", "%r") as r:
        row_elements, target = (
            own.at(f, "%b", f.multiply(r, "%b_r")),
            own.at(f, "%into", f.multiply(r, str(tile.width))),
        )
        for v in range(tile.vectors):
            value = own.load(f, own.at(f, row_elements, str(v * tile.lanes)))
            f.store(own.kind, value, own.at(f, target, str(v * tile.lanes)), own.size)
    f.jump(done)
    f.start(apart)
    with f.loop("0", "%r") as r:
        row_elements, target = (
            own.at(f, "%b", f.multiply(r, "%b_r")),
            own.at(f, "%into", f.multiply(r, str(tile.width))),
        )
        with f.loop("0", present) as index:
            value = f.load(group, own.at(f, row_elements, f.multiply(index, "%b_q")), own.size)
            f.store(group, value, own.at(f, target, f.multiply(index, str(tile.group))), own.size)
        with f.loop(present, str(every)) as index:
            f.store(group, "zeroinitializer", own.at(f, target, f.multiply(index, str(tile.group))), own.size)
    f.jump(done)
    f.start(done)
    f.emit_void("ret void")
    return f.text()


def packing_rows(own: Vectors) -> str:
    """Tiles of the rows of a, the groups of one r next to each other; rows of the last tile that are not there stay."""
    tile = own.tile
    f = Function(
        "internal fastcc void @pack_a(ptr noalias %into, ptr noalias %a, i64 %p, i64 %r, i64 %a_p, i64 %a_r) noinline"
    )
    group, wide = vector(own.element, tile.group), vector(own.element, tile.rows * tile.group)
    row_elements = str(tile.rows * tile.group)
    tile_elements, every = f.multiply("%r", row_elements), f.ceiling("%p", tile.rows)

    def present(tile_index: str) -> tuple[str, str]:
        """Return the first row of a tile, and how many are there."""
        first = f.multiply(tile_index, str(tile.rows))
        return first, f.least(str(tile.rows), f.i64("sub nsw", "%p", first))

    def copy(source: str, target: str) -> None:
        f.store(group, f.load(group, source, own.size), target, own.size)

    across, down, done = f.fresh("across"), f.fresh("down"), f.fresh("done")
    f.branch(f.emit("icmp sgt i64 %a_p, %a_r"), across, down)
    f.start(across)
    with f.loop("0", every) as index:
        first, count = present(index)
        with f.loop("0", count) as low:
            source = own.at(f, "%a", f.multiply(f.add(first, low), "%a_p"))
            target = own.at(f, "%into", f.multiply(index, tile_elements), f.multiply(low, str(tile.group)))
            with f.loop("0", "%r") as r:
                copy(own.at(f, source, f.multiply(r, "%a_r")), own.at(f, target, f.multiply(r, row_elements)))
    f.jump(done)
    f.start(down)
    is_contiguous = f.emit(f"icmp eq i64 %a_p, {tile.group}")
    whole = f.emit(f"select i1 {is_contiguous}, i64 {f.i64('sdiv', '%p', str(tile.rows))}, i64 0")
    with f.loop("0", "%r") as r:
        source, target = own.at(f, "%a", f.multiply(r, "%a_r")), own.at(f, "%into", f.multiply(r, row_elements))
        with f.loop("0", whole) as index:
            value = f.load(wide, own.at(f, source, f.multiply(index, row_elements)), own.size)
            f.store(wide, value, own.at(f, target, f.multiply(index, tile_elements)), own.size)
        with f.loop(whole, every) as index:
            first, count = present(index)
            begin, into = (
                own.at(f, source, f.multiply(first, "%a_p")),
                own.at(f, target, f.multiply(index, tile_elements)),
            )
            with f.loop("0", count) as low:
                copy(own.at(f, begin, f.multiply(low, "%a_p")), own.at(f, into, f.multiply(low, str(tile.group))))
    f.jump(done)
    f.start(done)
    f.emit_void("ret void")
    return f.text()


def emit_row() -> str:
    """Return LLVM IR that runs kernels in turn; an item is one: address, first buffer, integers and items."""
    f = Function(HEAD)
    with f.loop("%begin", "%end") as item:
        record = f.at("%integers", f.multiply(item, "4"), "i64")
        kernel, buffer, integers, items = (f.load("i64", f.at(record, str(slot), "i64"), 8) for slot in range(4))
        kernel, integers = (f.emit(f"inttoptr i64 {address} to ptr") for address in (kernel, integers))
        pointers = f.at("%pointers", buffer, "i64")
        arguments = f"ptr {pointers}, ptr {integers}, ptr %numbers, i64 0, i64 {items}, ptr %scratch"
        f.emit_void(f"call void {kernel}({arguments})")
    f.emit_void("ret void")
    return f.text() + "\n"
