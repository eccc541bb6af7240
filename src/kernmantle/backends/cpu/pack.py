"""Moving data between strided arrays of storage types and dense buffers of the compute type, as LLVM functions."""

from __future__ import annotations

from .builder import BY_EIGHTS, FLOATING, SIZE, STORED, Function, splat, suffix, vector

_UNSIGNED = ("u8", "bool")
_RUN_BYTES = 64  # that are read at once along a row: a cache line


def widened(f: Function, text: str, stored: str, element: str, lanes: int) -> str:
    """Return a stored value as the compute type."""
    if stored == "bf16":
        text, stored = _from_bfloat(f, text, lanes), "f32"
    source = STORED[stored]
    kind, target = vector(source, lanes), vector(element, lanes)
    if source == element:
        return text
    if source in FLOATING:
        if element not in FLOATING:
            return f.emit(f"call {target} @llvm.fptosi.sat.{suffix(target)}.{suffix(kind)}({kind} {text})")
        word = "fpext" if SIZE[element] > SIZE[source] else "fptrunc"
    elif element in FLOATING:
        word = "uitofp" if stored in _UNSIGNED else "sitofp"
    elif SIZE[element] > SIZE[source]:
        word = "zext" if stored in _UNSIGNED else "sext"
    else:
        word = "trunc"
    return f.emit(f"{word} {kind} {text} to {target}")


def narrowed(f: Function, text: str, element: str, stored: str, lanes: int) -> str:
    """Return a computed value (``element`` i1 for conditions) as a stored type."""
    target = STORED[stored]
    kind, into = vector(element, lanes), vector(target, lanes)
    if stored == "bool" and element != "i1":
        test = "fcmp une" if element in FLOATING else "icmp ne"
        text, element = f.emit(f"{test} {kind} {text}, zeroinitializer"), "i1"
        kind = vector("i1", lanes)
    if stored == "bf16":
        return _as_bfloat(f, text, element, lanes)
    if element == target:
        return text
    if element == "i1":
        word = "uitofp" if target in FLOATING else "zext"
    elif element in FLOATING and target in FLOATING:
        word = "fpext" if SIZE[target] > SIZE[element] else "fptrunc"
    elif element in FLOATING:
        return f.emit(f"call {into} @llvm.fptosi.sat.{suffix(into)}.{suffix(kind)}({kind} {text})")
    elif target in FLOATING:
        word = "sitofp"
    else:
        word = "sext" if SIZE[target] > SIZE[element] else "trunc"
    return f.emit(f"{word} {kind} {text} to {into}")


def _from_bfloat(f: Function, text: str, lanes: int) -> str:
    """Return the float with these upper bits."""
    wide, short = vector("i32", lanes), vector("i16", lanes)
    bits = f.emit(f"shl {wide} {f.emit(f'zext {short} {text} to {wide}')}, {splat('16', 'i32', lanes)}")
    return f.emit(f"bitcast {wide} {bits} to {vector('float', lanes)}")


def _as_bfloat(f: Function, text: str, element: str, lanes: int) -> str:
    """Rounded to nearest even on the bits: the instruction some machines have flushes subnormals."""
    kind, wide, short = vector("float", lanes), vector("i32", lanes), vector("i16", lanes)
    if element != "float":
        source = vector(element, lanes)
        word = {"double": "fptrunc", "i1": "uitofp"}.get(element, "sitofp")
        text = f.emit(f"{word} {source} {text} to {kind}")

    def constant(value: int) -> str:
        return splat(str(value), "i32", lanes)

    bits = f.emit(f"bitcast {kind} {text} to {wide}")
    high = f.emit(f"lshr {wide} {bits}, {constant(16)}")
    even = f.emit(f"and {wide} {high}, {constant(1)}")
    moved = f.emit(f"add {wide} {f.emit(f'add {wide} {bits}, {constant(0x7FFF)}')}, {even}")
    rounded = f.emit(f"lshr {wide} {moved}, {constant(16)}")
    quiet = f.emit(f"or {wide} {high}, {constant(0x40)}")
    unordered = f.emit(f"fcmp uno {kind} {text}, zeroinitializer")
    chosen = f.emit(f"select {vector('i1', lanes)} {unordered}, {wide} {quiet}, {wide} {rounded}")
    return f.emit(f"trunc {wide} {chosen} to {short}")


def transposed(f: Function, rows: list[str], element: str) -> list[str]:
    """Return the square of vectors transposed by exchanging ever larger blocks."""
    size = len(rows)
    kind = vector(element, size)
    step = 1
    while step < size:
        low = ", ".join(f"i32 {j if not j & step else size + j - step}" for j in range(size))
        high = ", ".join(f"i32 {j + step if not j & step else size + j}" for j in range(size))
        new = list(rows)
        for row in range(size):
            if not row & step:
                operands = f"{kind} {rows[row]}, {kind} {rows[row + step]}, <{size} x i32>"
                new[row] = f.emit(f"shufflevector {operands} <{low}>")
                new[row + step] = f.emit(f"shufflevector {operands} <{high}>")
        rows, step = new, 2 * step
    return rows


def pack_name(stored: str, width: int) -> str:
    """Return the name of the packing function of a storage type and a panel width."""
    return f"@km_pack_{stored}_{width}"


def pack(stored: str, element: str, width: int) -> str:
    """Function that copies ``count`` x ``depth`` elements into panels [panel][depth][width], edges repeated."""
    f = Function(
        f"internal fastcc void {pack_name(stored, width)}"
        "(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline"
    )
    source, size, wide = STORED[stored], SIZE[STORED[stored]], SIZE[element]
    packed_depth = f.alloca("i64", 1)
    panels = f.ceiling("%count", width)
    unit_run, unit_stride = f.emit("icmp eq i64 %run, 1"), f.emit("icmp eq i64 %stride, 1")
    with f.loop("0", panels) as panel:
        first = f.multiply(panel, str(width))
        origin = f.at("%from", f.multiply(first, "%run"), source)
        target = f.at("%into", f.multiply(first, "%depth"), element)
        valid = f.i64("sub nsw", "%count", first)
        last = f.i64("sub nsw", f.least(valid, str(width)), "1")
        whole = f.emit(f"icmp sge i64 {valid}, {width}")
        f.store("i64", "0", packed_depth, 8)
        if width > 1:
            with f.when(f.emit(f"and i1 {whole}, {unit_run}")):
                with f.loop("0", "%depth") as k:
                    loaded = f.load(vector(source, width), f.at(origin, f.multiply(k, "%stride"), source), size)
                    value = widened(f, loaded, stored, element, width)
                    f.store(vector(element, width), value, f.at(target, f.multiply(k, str(width)), element), wide)
                f.store("i64", "%depth", packed_depth, 8)
        else:
            with f.when(unit_stride):
                lanes = _RUN_BYTES // wide
                full = f.multiply(f.i64("sdiv", "%depth", str(lanes)), str(lanes))
                with f.loop("0", full, str(lanes)) as k:
                    loaded = f.load(vector(source, lanes), f.at(origin, k, source), size)
                    f.store(
                        vector(element, lanes),
                        widened(f, loaded, stored, element, lanes),
                        f.at(target, k, element),
                        wide,
                    )
                f.store("i64", full, packed_depth, 8)
        square = min(width & -width, 32 // wide)
        if square > 1:
            with f.when(f.emit(f"and i1 {unit_stride}, {f.emit(f'xor i1 {unit_run}, true')}")):
                full = f.multiply(f.i64("sdiv", "%depth", str(square)), str(square))
                _pack_squares(f, stored, element, width, square, origin, target, last, full)
                f.store("i64", full, packed_depth, 8)
        with f.loop(f.load("i64", packed_depth, 8), "%depth") as k, f.loop("0", str(width)) as w:
            offset = f.add(f.multiply(f.least(w, last), "%run"), f.multiply(k, "%stride"))
            value = widened(f, f.load(source, f.at(origin, offset, source), size), stored, element, 1)
            f.store(element, value, f.at(target, f.add(f.multiply(k, str(width)), w), element), wide)
    f.emit_void("ret void")
    return f.text()


def _pack_squares(
    f: Function, stored: str, element: str, width: int, square: int, origin: str, target: str, last: str, full: str
) -> None:
    source, size, wide = STORED[stored], SIZE[STORED[stored]], SIZE[element]
    with f.loop("0", full, str(square)) as k, f.loop("0", str(width), str(square)) as group:
        rows: list[str] = []
        for row in range(square):
            offset = f.add(f.multiply(f.least(f.add(group, str(row)), last), "%run"), k)
            loaded = f.load(vector(source, square), f.at(origin, offset, source), size)
            rows.append(widened(f, loaded, stored, element, square))
        for column, loaded in enumerate(transposed(f, rows, element)):
            offset = f.add(f.multiply(f.add(k, str(column)), str(width)), group)
            f.store(vector(element, square), loaded, f.at(target, offset, element), wide)


def gather_name(stored: str) -> str:
    """Return the name of the function that reads a tile."""
    return f"@km_gather_{stored}"


def gather(stored: str, element: str, rows: int, columns: int) -> str:
    """Return the function that reads a tile into a dense buffer, edges repeated."""
    f = Function(
        f"internal fastcc void {gather_name(stored)}"
        "(ptr noalias %into, ptr %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns) noinline"
    )
    source, size, wide = STORED[stored], SIZE[STORED[stored]], SIZE[element]
    unit = f.emit("icmp eq i64 %sn, 1")
    whole = f.emit(f"and i1 {unit}, {f.emit(f'icmp eq i64 %columns, {columns}')}")
    last_row, last_column = f.i64("sub nsw", "%rows", "1"), f.i64("sub nsw", "%columns", "1")
    with f.loop("0", str(rows)) as row:
        origin = f.at("%from", f.multiply(f.least(row, last_row), "%sm"), source)
        target = f.at("%into", f.multiply(row, str(columns)), element)
        with f.when(whole):
            loaded = f.load(vector(source, columns), origin, size)
            f.store(vector(element, columns), widened(f, loaded, stored, element, columns), target, wide)
        with f.when(f.emit(f"xor i1 {whole}, true")), f.loop("0", str(columns), tag=BY_EIGHTS) as column:
            offset = f.multiply(f.least(column, last_column), "%sn")
            value = widened(f, f.load(source, f.at(origin, offset, source), size), stored, element, 1)
            f.store(element, value, f.at(target, column, element), wide)
    f.emit_void("ret void")
    return f.text()


def scatter_name(stored: str) -> str:
    """Return the name of the function that writes a tile."""
    return f"@km_scatter_{stored}"


def scatter(stored: str, columns: int) -> str:
    """Return the function that writes the part of a dense tile with column >= row + skew."""
    f = Function(
        f"internal fastcc void {scatter_name(stored)}"
        "(ptr %into, ptr noalias %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns, i64 %skew) noinline"
    )
    target, size = STORED[stored], SIZE[STORED[stored]]
    with f.loop("0", "%rows") as row, f.loop(f.most("0", f.add(row, "%skew")), "%columns") as column:
        value = f.load(target, f.at("%from", f.add(f.multiply(row, str(columns)), column), target), size)
        f.store(target, value, f.at("%into", f.add(f.multiply(row, "%sm"), f.multiply(column, "%sn")), target), size)
    f.emit_void("ret void")
    return f.text()
