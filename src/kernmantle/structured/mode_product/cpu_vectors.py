"""Instructions on the vectors of a tile of Kronecker-sparse products, and what packs its operands."""

from __future__ import annotations

from collections.abc import Iterator

from ...backends.cpu.builder import ELEMENTS, SIZE, STORED, Function, suffix, vector
from ...backends.cpu.pack import narrowed, widened
from .cpu_plan import Tile

ENTRY = "km"
HEAD = f"void @{ENTRY}(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch)"


class Vectors:
    """Instructions on the vectors of a tile."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.element, self.stored = tile, ELEMENTS[tile.compute], STORED[tile.dtype]
        self.size = SIZE[self.element]
        self.kind = vector(self.element, tile.lanes)
        self.tail = ""  # the mask of a group that is read where it lies
        self.present = ", i64 %present" if tile.tail else ""  # neighbours that its group has

    def at(self, f: Function, pointer: str, *offsets: str, of: str = "") -> str:
        """Return the address so many elements on, which are those of ``of`` in memory."""
        for offset in offsets:
            if offset != "0":
                pointer = f.at(pointer, offset, of or self.element)
        return pointer

    def words(self, f: Function, numbers: str) -> str:
        """Return how many words are so many numbers."""
        return f.ceiling(numbers, 2) if self.tile.dot2 else numbers

    def origin(self, f: Function, pointer: str, r: str, stride: str) -> tuple[str, str, str]:
        """Return where the number of a word lies, that which makes it a pair, and whether that is among %r."""
        if not self.tile.dot2:
            return self.at(f, pointer, f.multiply(r, stride), of=self.stored), "", ""
        first = f.multiply(r, "2")
        present = f.emit(f"icmp slt i64 {f.add(first, '1')}, %r")
        one = self.at(f, pointer, f.multiply(first, stride), of=self.stored)
        step = f.emit(f"select i1 {present}, i64 {stride}, i64 0")
        return one, self.at(f, one, step, of=self.stored), present

    def word(self, f: Function, origin: tuple[str, str, str], offset: str, lanes: int, mask: str = "") -> str:
        """Return the words of neighbours, so many numbers from the first; zeros where a mask is."""
        (one, other, present), kind = origin, vector(self.stored, lanes)

        def read(pointer: str) -> str:
            pointer = self.at(f, pointer, offset, of=self.stored)
            if mask:
                return self.bits_masked(f, pointer, mask, lanes, self.tile.dtype)
            return f.load(kind, pointer, SIZE[self.stored])

        low = read(one)
        if not self.tile.dot2:
            return widened(f, low, self.tile.dtype, self.element, lanes)
        high = f.emit(f"select i1 {present}, {kind} {read(other)}, {kind} zeroinitializer")
        words = vector("i32", lanes)
        low, high = (f.emit(f"zext {kind} {half} to {words}") for half in (low, high))
        shift = "16" if lanes == 1 else "splat (i32 16)"
        both = f.emit(f"or {words} {low}, {f.emit(f'shl {words} {high}, {shift}')}")
        return f.emit(f"bitcast {words} {both} to {vector(self.element, lanes)}")

    def word_run(self, f: Function, pointer: str) -> str:
        """Return a vector of words whose numbers lie together."""
        tile = self.tile
        if not tile.dot2:
            return self.number(f, pointer, tile.dtype, tile.lanes)
        kind = vector(self.stored, 2 * tile.lanes)
        return f.emit(f"bitcast {kind} {f.load(kind, pointer, SIZE[self.stored])} to {self.kind}")

    def transposed(self, f: Function, rows: list[str]) -> list[str]:
        """Return the columns of as many vectors as one has lanes: blocks off the diagonal change places, doubled."""
        found, lanes, step = list(rows), self.tile.lanes, 1
        while step < lanes:
            for i in range(lanes):
                if i & step:
                    continue
                ends = f"{self.kind} {found[i]}, {self.kind} {found[i + step]}"
                low = [lane if not lane & step else lanes + lane - step for lane in range(lanes)]
                high = [lane + step if not lane & step else lanes + lane for lane in range(lanes)]
                found[i], found[i + step] = (
                    f.emit(f"shufflevector {ends}, <{lanes} x i32> <{', '.join(f'i32 {lane}' for lane in own)}>")
                    for own in (low, high)
                )
            step *= 2
        return found

    def tails(self, f: Function, done: str, group: int) -> Iterator[str]:
        """Branch by whether %present neighbours are a whole group; yield the mask where they are not."""
        if self.tile.tail and group > 1:
            whole, some = f.fresh("whole"), f.fresh("some")
            mask = self.mask(f, "%present", group)
            f.branch(f.emit(f"icmp sge i64 %present, {group}"), whole, some)
            f.start(whole)
            yield ""
            f.jump(done)
            f.start(some)
            yield mask
        else:
            yield ""
        f.jump(done)

    def number(self, f: Function, pointer: str, dtype: str, lanes: int) -> str:
        """Return numbers of a type in memory as they are multiplied."""
        stored = STORED[dtype]
        return widened(f, f.load(vector(stored, lanes), pointer, SIZE[stored]), dtype, self.element, lanes)

    def put(self, f: Function, value: str, pointer: str, dtype: str, lanes: int) -> None:
        """Put numbers into memory as those of a type."""
        stored = STORED[dtype]
        f.store(vector(stored, lanes), narrowed(f, value, self.element, dtype, lanes), pointer, SIZE[stored])

    def load(self, f: Function, pointer: str) -> str:
        """Return the vector in memory."""
        return f.load(self.kind, pointer, self.size)

    def repeated(self, f: Function, pointer: str) -> str:
        """Return the group at an address, again and again."""
        lanes, group = self.tile.lanes, self.tile.multipliers
        if group == lanes:
            return self.load_masked(f, pointer, self.tail, self.tile.compute) if self.tail else self.load(f, pointer)
        own = vector(self.element, group)
        value = f.load(own, pointer, self.size)
        if group == 1:
            value = f.emit(f"insertelement {self.kind} poison, {self.element} {value}, i64 0")
            return f.emit(f"shufflevector {self.kind} {value}, {self.kind} poison, <{lanes} x i32> zeroinitializer")
        indices = ", ".join(f"i32 {lane % group}" for lane in range(lanes))
        return f.emit(f"shufflevector {own} {value}, {own} poison, <{lanes} x i32> <{indices}>")

    def fma(self, f: Function, a: str, b: str, c: str) -> str:
        """``a b + c``; of pairs the sum of both products."""
        kind = self.kind
        if self.tile.dot2:
            words = vector("bfloat", 2 * self.tile.lanes)
            a, b = (f.emit(f"bitcast {kind} {value} to {words}") for value in (a, b))
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.tile.lanes}"
            return f.emit(f"call {kind} @{name}({kind} {c}, {words} {a}, {words} {b})")
        return f.emit(f"call {kind} @llvm.fma.{suffix(kind)}({kind} {a}, {kind} {b}, {kind} {c})")

    def prefetch(self, f: Function, pointer: str, write: int = 0) -> None:
        """Ask the second cache for what is at an address, or is going to be written there."""
        f.emit_void(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {write}, i32 2, i32 1)")

    def mask(self, f: Function, valid: str, lanes: int = 0) -> str:
        """Return which of the lanes are below a count."""
        lanes = lanes or self.tile.lanes
        low = f.most("-1", f.least(valid, str(lanes)))
        low = f.emit(f"trunc i64 {low} to i32")
        wide = f"<{lanes} x i32>"
        one = f.emit(f"insertelement {wide} poison, i32 {low}, i64 0")
        every = f.emit(f"shufflevector {wide} {one}, {wide} poison, {wide} zeroinitializer")
        indices = ", ".join(f"i32 {lane}" for lane in range(lanes))
        return f.emit(f"icmp slt {wide} <{indices}>, {every}")

    def load_masked(self, f: Function, pointer: str, mask: str, dtype: str) -> str:
        """Return the vector of a type in memory, zero where the mask is."""
        return widened(
            f, self.bits_masked(f, pointer, mask, self.tile.lanes, dtype), dtype, self.element, self.tile.lanes
        )

    def bits_masked(self, f: Function, pointer: str, mask: str, lanes: int, dtype: str) -> str:
        """Return the numbers of a type in memory as they lie there, zero where the mask is."""
        kind, size = vector(STORED[dtype], lanes), SIZE[STORED[dtype]]
        return f.emit(
            f"call {kind} @llvm.masked.load.{suffix(kind)}.p0(ptr {pointer}, i32 {size}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)"
        )

    def store_masked(self, f: Function, value: str, pointer: str, mask: str, dtype: str) -> None:
        """Put the lanes of a mask into memory as numbers of a type."""
        lanes = self.tile.lanes
        kind, size = vector(STORED[dtype], lanes), SIZE[STORED[dtype]]
        value = narrowed(f, value, self.element, dtype, lanes)
        f.emit_void(
            f"call void @llvm.masked.store.{suffix(kind)}.p0({kind} {value}, ptr {pointer}, i32 {size}, "
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
        "internal fastcc void @pack(ptr noalias %into, ptr noalias %b, i64 %r, i64 %b_r, i64 %b_q, "
        f"i64 %lanes{own.present}) noinline"
    )
    group = vector(own.element, tile.group)
    every, words = tile.width // tile.group, own.words(f, "%r")
    present = f.least(str(every), f.i64("sdiv", "%lanes", str(tile.group)))
    apart, done = f.fresh("apart"), f.fresh("done")
    if tile.tail:
        f.jump(apart)
    else:
        _packing_together(own, f, words, apart, done)
    f.start(apart)
    for tail in own.tails(f, done, tile.group):
        with f.loop(_squares(own, f, present) if tile.group == 1 else "0", words) as r:
            origin, target = own.origin(f, "%b", r, "%b_r"), own.at(f, "%into", f.multiply(r, str(tile.width)))
            with f.loop("0", present) as index:
                value = own.word(f, origin, f.multiply(index, "%b_q"), tile.group, tail)
                f.store(group, value, own.at(f, target, f.multiply(index, str(tile.group))), own.size)
            with f.loop(present, str(every)) as index:
                f.store(group, "zeroinitializer", own.at(f, target, f.multiply(index, str(tile.group))), own.size)
    f.start(done)
    f.emit_void("ret void")
    return f.text()


def _packing_together(own: Vectors, f: Function, words: str, apart: str, done: str) -> None:
    """Write vectors of a panel whose groups lie together; go on where they lie apart."""
    tile, together = own.tile, f.fresh("together")
    f.branch(f.emit(f"icmp eq i64 %b_q, {tile.group}"), together, apart)
    f.start(together)
    whole, some = f.fresh("whole"), f.fresh("some")
    f.branch(f.emit(f"icmp sge i64 %lanes, {tile.width}"), whole, some)
    for label in (whole, some):
        f.start(label)
        masks = [""] * tile.vectors
        if label == some:
            masks = [own.mask(f, f.i64("sub nsw", "%lanes", str(v * tile.lanes))) for v in range(tile.vectors)]
        with f.loop("0", words) as r:
            origin, target = own.origin(f, "%b", r, "%b_r"), own.at(f, "%into", f.multiply(r, str(tile.width)))
            for v in range(tile.vectors):
                value = own.word(f, origin, str(v * tile.lanes), tile.lanes, masks[v])
                f.store(own.kind, value, own.at(f, target, str(v * tile.lanes)), own.size)
        f.jump(done)


def _squares(own: Vectors, f: Function, present: str) -> str:
    """Transpose squares of a panel where words of neighbouring r lie together; return of how many r.

    The last square of some overlaps the one before, and repeats the last lane for those that are not there.
    """
    tile = own.tile
    lanes, numbers = str(tile.lanes), 2 if tile.dot2 else 1
    whole = f.i64("sdiv", "%r", str(numbers))
    fits = f.emit(f"and i1 {f.emit('icmp eq i64 %b_r, 1')}, {f.emit(f'icmp sge i64 {whole}, {lanes}')}")
    deep = f.emit(f"select i1 {fits}, i64 {whole}, i64 0")
    last, final = f.i64("sub nsw", present, "1"), f.i64("sub nsw", deep, lanes)
    with f.loop("0", deep, lanes) as start, f.loop("0", present, lanes) as first:
        r = f.least(start, final)
        corner = own.at(f, "%b", f.multiply(r, str(numbers)), of=own.stored)
        offsets = [f.multiply(f.least(f.add(first, str(i)), last), "%b_q") for i in range(tile.lanes)]
        rows = [own.word_run(f, own.at(f, corner, offset, of=own.stored)) for offset in offsets]
        target = own.at(f, "%into", f.multiply(r, str(tile.width)), first)
        for i, column in enumerate(own.transposed(f, rows)):
            f.store(own.kind, column, own.at(f, target, str(i * tile.width)), own.size)
    return deep


def packing_rows(own: Vectors) -> str:
    """Tiles of the rows of a, the groups of one r next to each other; rows of the last tile that are not there stay.

    Rows of halves whose r lie together stay rows, of words.
    """
    tile, many = own.tile, own.tile.multipliers
    f = Function(
        "internal fastcc void @pack_a(ptr noalias %into, ptr noalias %a, i64 %p, i64 %r, i64 %a_p, "
        f"i64 %a_r{own.present}) noinline"
    )
    group, wide = vector(own.element, many), vector(own.element, tile.rows * many)
    row_elements, words = str(tile.rows * many), own.words(f, "%r")
    tile_elements, every = f.multiply(words, row_elements), f.ceiling("%p", tile.rows)

    def present(tile_index: str) -> tuple[str, str]:
        """Return the first row of a tile, and how many are there."""
        first = f.multiply(tile_index, str(tile.rows))
        return first, f.least(str(tile.rows), f.i64("sub nsw", "%p", first))

    done = f.fresh("done")
    if tile.stays_rows:
        rows, others = f.fresh("rows"), f.fresh("others")
        f.branch(f.emit("icmp eq i64 %a_r, 1"), rows, others)
        f.start(rows)
        _word_rows(own, f, words)
        f.jump(done)
        f.start(others)
    for tail in own.tails(f, done, many):
        across, down = f.fresh("across"), f.fresh("down")
        f.branch(f.emit("icmp sgt i64 %a_p, %a_r"), across, down)
        f.start(across)
        with f.loop("0", every) as index:
            first, count = present(index)
            with f.loop("0", count) as low:
                source = own.at(f, "%a", f.multiply(f.add(first, low), "%a_p"), of=own.stored)
                target = own.at(f, "%into", f.multiply(index, tile_elements), f.multiply(low, str(many)))
                with f.loop("0", words) as r:
                    value = own.word(f, own.origin(f, source, r, "%a_r"), "0", many, tail)
                    f.store(group, value, own.at(f, target, f.multiply(r, row_elements)), own.size)
        f.jump(done)
        f.start(down)
        whole = "0"
        if not tail:
            is_contiguous = f.emit(f"icmp eq i64 %a_p, {many}")
            whole = f.emit(f"select i1 {is_contiguous}, i64 {f.i64('sdiv', '%p', str(tile.rows))}, i64 0")
        with f.loop("0", words) as r:
            origin, target = own.origin(f, "%a", r, "%a_r"), own.at(f, "%into", f.multiply(r, row_elements))
            with f.loop("0", whole) as index:
                value = own.word(f, origin, f.multiply(index, row_elements), tile.rows * many)
                f.store(wide, value, own.at(f, target, f.multiply(index, tile_elements)), own.size)
            with f.loop(whole, every) as index:
                first, count = present(index)
                into = own.at(f, target, f.multiply(index, tile_elements))
                with f.loop("0", count) as low:
                    value = own.word(f, origin, f.multiply(f.add(first, low), "%a_p"), many, tail)
                    f.store(group, value, own.at(f, into, f.multiply(low, str(many))), own.size)
    f.start(done)
    f.emit_void("ret void")
    return f.text()


def _word_rows(own: Vectors, f: Function, words: str) -> None:
    """Write the words of each row of a, one row behind the other."""
    lanes, numbers = str(own.tile.lanes), 2 if own.tile.dot2 else 1
    whole = f.multiply(f.i64("sdiv", "%r", str(numbers * own.tile.lanes)), lanes)
    with f.loop("0", "%p") as p:
        source = own.at(f, "%a", f.multiply(p, "%a_p"), of=own.stored)
        target = own.at(f, "%into", f.multiply(p, words))
        with f.loop("0", whole, lanes) as r:
            value = own.word_run(f, own.at(f, source, f.multiply(r, str(numbers)), of=own.stored))
            f.store(own.kind, value, own.at(f, target, r), own.size)
        with f.loop(whole, words) as r:
            value = own.word(f, own.origin(f, source, r, "1"), "0", 1)
            f.store(own.element, value, own.at(f, target, r), own.size)


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
