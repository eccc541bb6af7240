"""LLVM IR of Kronecker-sparse products of small blocks on a CPU: lanes are the results of several blocks.

``c[p, (i, j, n)] = bias[i, j] + sum over k of w[i, j, k] a[p, (i, k, n)]`` for a few neighbouring n or one. Numbers of
so many i are loaded together, and shuffled for each k; weights are shuffled once for some neighbouring p.
"""

from __future__ import annotations

from collections.abc import Callable

from ...backends.cpu.builder import Function, vector
from .cpu_plan import SMALL_FIELDS, SMALL_ROWS, SmallTile, Tile
from .cpu_vectors import HEAD, Vectors


def emit(tile: SmallTile) -> str:
    """LLVM IR for so many blocks at a time; an item is one such window of some rows, which ends at the last block."""
    own = Vectors(Tile(tile.dtype, tile.lanes, 1, 1, 1, False, False, ""))
    b, c, n = tile.b, tile.c, tile.neighbours
    f = Function(HEAD)
    field = own.integers(f, SMALL_FIELDS)
    names = ("weight", "a", "c", "bias") if tile.batch_last else ("a", "weight", "c", "bias")
    names = names if tile.bias else names[:3]
    pointers = {name: own.pointer(f, slot) for slot, name in enumerate(names)}

    def shuffled(value: str, count: int, index: Callable[[int, int, int], int]) -> str:
        """Return the number of each lane (i, j, n) among so many."""
        kind = vector(own.element, count)
        lanes = [index(lane // (b * n), lane // n % b, lane % n) for lane in range(tile.lanes)]
        if count == 1:
            kind, value = (
                f"<1 x {own.element}>",
                f.emit(f"insertelement <1 x {own.element}> poison, {kind} {value}, i64 0"),
            )
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        return f.emit(f"shufflevector {kind} {value}, {kind} poison, <{tile.lanes} x i32> <{chosen}>")

    def loaded(pointer: str, first: str, each: int) -> tuple[str, int]:
        """Return the numbers of all blocks of a window, so many of each."""
        count = tile.blocks * each
        return own.number(f, own.at(f, pointer, f.multiply(first, str(each)), of=own.stored), tile.dtype, count), count

    windows = f.ceiling(field["blocks"], tile.blocks)
    with f.loop("%begin", "%end") as item:
        window, row = f.i64("srem", item, windows), f.multiply(f.i64("sdiv", item, windows), str(SMALL_ROWS))
        first = f.least(f.multiply(window, str(tile.blocks)), f.i64("sub nsw", field["blocks"], str(tile.blocks)))
        weight = loaded(pointers["weight"], first, b * c)
        along_j, along_k = (1, b) if tile.transposed else (c, 1)
        factors = [shuffled(*weight, lambda i, j, _, k=k: i * b * c + j * along_j + k * along_k) for k in range(c)]
        begun = shuffled(*loaded(pointers["bias"], first, b), lambda i, j, _: i * b + j) if tile.bias else ""
        with f.loop(row, f.least(field["p"], f.add(row, str(SMALL_ROWS)))) as p:
            source = own.at(f, pointers["a"], f.multiply(p, field["a_p"]), of=own.stored)
            values, total = loaded(source, first, c * n), begun
            for k in range(c):
                value = shuffled(*values, lambda i, _, m, k=k: (i * c + k) * n + m)
                total = own.fma(f, value, factors[k], total or "zeroinitializer")
            shift = f.multiply(first, str(b * n))
            target = own.at(f, pointers["c"], f.multiply(p, field["c_p"]), shift, of=own.stored)
            own.put(f, total, target, tile.dtype, tile.lanes)
    f.emit_void("ret void")
    return f"; Kronecker-sparse {tile}\n\n{f.text()}\n"
