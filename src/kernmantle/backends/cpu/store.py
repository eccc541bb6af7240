"""Storing a tile of results: whole tiles as vectors, edges and strided ones through a buffer."""

from __future__ import annotations

from collections.abc import Mapping

from .builder import SIZE, STORED, Function, vector
from .gram_plan import CpuPlan
from .pack import narrowed, scatter_name
from .spelling import ExpressionEmitter, Value

Position = tuple[int | None, int | None]


def write(
    spell: ExpressionEmitter, plan: CpuPlan, dtype: str, position: int, values: Mapping[Position, Value],
    strides: tuple[str, str],
) -> None:  # fmt: skip
    """Store the values of output ``position`` at every position of the tile."""
    f = spell.function
    target, size = STORED[dtype], SIZE[STORED[dtype]]
    lanes = plan.columns // (1 if plan.across else plan.vectors)
    vectors: dict[tuple[int, int], str] = {}
    for (i, j), value in values.items():
        wide = spell.wide(value, lanes)
        vectors[i or 0, j or 0] = narrowed(f, wide.text, spell.element_of(wide.kind), dtype, lanes)
    simple = f.emit(
        f"and i1 {f.emit(f'icmp eq i64 %columns, {plan.columns}')}, {f.emit(f'icmp eq i64 {strides[1]}, 1')}"
    )
    simple = f.emit(f"and i1 {simple}, {f.emit(f'icmp sle i64 %skew, {1 - plan.rows}')}")
    whole, other, done = f.fresh("whole"), f.fresh("other"), f.fresh("done")
    f.branch(simple, whole, other)
    f.start(whole)
    for i in range(plan.rows):
        with f.when(f.emit(f"icmp sgt i64 %rows, {i}")):
            row = f.at(f"%out_{position}", f.multiply(strides[0], str(i)), target)
            for j in range(plan.columns // lanes):
                f.store(vector(target, lanes), vectors[i, j], f.at(row, str(j * lanes), target), size)
    f.jump(done)
    f.start(other)
    buffer = f.alloca(target, plan.rows * plan.columns)
    _dense(f, plan, target, vectors, buffer)
    counts = "i64 %rows, i64 %columns, i64 %skew"
    call = f"call fastcc void {scatter_name(dtype)}"
    f.emit_void(f"{call}(ptr %out_{position}, ptr {buffer}, i64 {strides[0]}, i64 {strides[1]}, {counts})")
    f.jump(done)
    f.start(done)
    if plan.symmetric:
        _dense(f, plan, target, vectors, f"%strip_{position}")


def _dense(f: Function, plan: CpuPlan, target: str, vectors: Mapping[tuple[int, int], str], into: str) -> None:
    """The whole tile, row by row without gaps."""
    lanes = plan.columns // (1 if plan.across else plan.vectors)
    for (i, j), text in vectors.items():
        position = f.at(into, str(i * plan.columns + j * lanes), target)
        f.store(vector(target, lanes), text, position, SIZE[target])
