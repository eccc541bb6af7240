"""The other half of a symmetric result: a panel's tiles are kept in a strip of scratch and written transposed."""

from __future__ import annotations

from .builder import SIZE, STORED, Function, vector
from .pack import transposed


def mirror_name(stored: str) -> str:
    """Return the name of the function that writes a strip."""
    return f"@km_mirror_{stored}"


def mirror(stored: str, width: int, lanes: int) -> str:
    """Function that writes the columns of a strip [rows][width] as lines, the first ``reach + c`` rows of column c."""
    f = Function(
        f"internal fastcc void {mirror_name(stored)}"
        "(ptr %into, ptr noalias %from, i64 %line, i64 %step, i64 %rows, i64 %columns, i64 %reach) noinline"
    )
    square = min(lanes, width & -width)
    loaded = f.alloca("i64", 1)
    dense = f.emit("icmp eq i64 %step, 1")
    with f.loop("0", "%columns", str(square)) as column:
        f.store("i64", "0", loaded, 8)
        if square > 1:
            whole = f.emit(f"icmp sle i64 {f.add(column, str(square))}, %columns")
            with f.when(f.emit(f"and i1 {whole}, {dense}")):
                count = f.most("0", f.least("%rows", f.add("%reach", column)))
                full = f.multiply(f.i64("sdiv", count, str(square)), str(square))
                _squares(f, STORED[stored], width, square, column, full)
                f.store("i64", full, loaded, 8)
        start = f.load("i64", loaded, 8)
        with f.loop(column, f.least("%columns", f.add(column, str(square)))) as one:
            _vector(f, STORED[stored], width, one, start)
    f.emit_void("ret void")
    return f.text()


def _squares(f: Function, target: str, width: int, square: int, column: str, full: str) -> None:
    kind, size = vector(target, square), SIZE[target]
    with f.loop("0", full, str(square)) as row:
        origin = f.at("%from", f.add(f.multiply(row, str(width)), column), target)
        loaded_rows = [f.load(kind, f.at(origin, str(offset * width), target), size) for offset in range(square)]
        for offset, loaded_row in enumerate(transposed(f, loaded_rows, target)):
            into = f.add(f.multiply(f.add(column, str(offset)), "%line"), row)
            f.store(kind, loaded_row, f.at("%into", into, target), size)


def _vector(f: Function, target: str, width: int, column: str, start: str) -> None:
    size = SIZE[target]
    with f.loop(start, f.least("%rows", f.add("%reach", column))) as row:
        value = f.load(target, f.at("%from", f.add(f.multiply(row, str(width)), column), target), size)
        offset = f.add(f.multiply(column, "%line"), f.multiply(row, "%step"))
        f.store(target, value, f.at("%into", offset, target), size)
