"""Storing a tile of results: whole tiles as vectors, edges and strided ones through a buffer."""

from __future__ import annotations

from collections.abc import Mapping

from ..contraction.cpu_plan import CpuPlan
from .llvm_pack import narrowed, scatter_name
from .llvm_spell import Speller, Value
from .llvm_text import SIZE, STORED, vector

Place = tuple[int | None, int | None]


def write(
    spell: Speller, plan: CpuPlan, dtype: str, place: int, values: Mapping[Place, Value], strides: tuple[str, str]
) -> None:
    """Store the values of output ``place`` at every place of the tile."""
    f = spell.function
    target, size = STORED[dtype], SIZE[STORED[dtype]]
    lanes = plan.columns // (1 if plan.across else plan.vectors)
    vectors: dict[tuple[int, int], str] = {}
    for (i, j), value in values.items():
        wide = spell.wide(value, lanes)
        vectors[i or 0, j or 0] = narrowed(f, wide.text, spell.element_of(wide.kind), dtype, lanes)
    simple = f.do(f"and i1 {f.do(f'icmp eq i64 %columns, {plan.columns}')}, {f.do(f'icmp eq i64 {strides[1]}, 1')}")
    simple = f.do(f"and i1 {simple}, {f.do(f'icmp sle i64 %skew, {1 - plan.rows}')}")
    whole, other, done = f.fresh("whole"), f.fresh("other"), f.fresh("done")
    f.branch(simple, whole, other)
    f.start(whole)
    for i in range(plan.rows):
        with f.when(f.do(f"icmp sgt i64 %rows, {i}")):
            line = f.at(f"%out_{place}", f.multiply(strides[0], str(i)), target)
            for j in range(plan.columns // lanes):
                f.store(vector(target, lanes), vectors[i, j], f.at(line, str(j * lanes), target), size)
    if plan.symmetric:
        _through_buffer(spell, plan, dtype, place, vectors, strides, [True])
    f.jump(done)
    f.start(other)
    _through_buffer(spell, plan, dtype, place, vectors, strides, [False, True] if plan.symmetric else [False])
    f.jump(done)
    f.start(done)


def _through_buffer(
    spell: Speller, plan: CpuPlan, dtype: str, place: int, vectors: Mapping[tuple[int, int], str],
    strides: tuple[str, str], mirrored: list[bool],
) -> None:  # fmt: skip
    f = spell.function
    target, size = STORED[dtype], SIZE[STORED[dtype]]
    lanes = plan.columns // (1 if plan.across else plan.vectors)
    buffer = f.room(target, plan.rows * plan.columns)
    for (i, j), text in vectors.items():
        index = str(i * plan.columns + j * lanes)
        f.store(vector(target, lanes), text, f.at(buffer, index, target), size)
    for mirror in mirrored:
        pointer, (sm, sn) = f"%out_{place}", strides
        if mirror:
            pointer, sm, sn = f"%mirror_{place}", sn, sm
        counts = "i64 %rows, i64 %columns, i64 %skew"
        call = f"call fastcc void {scatter_name(dtype, mirror)}"
        f.say(f"{call}(ptr {pointer}, ptr {buffer}, i64 {sm}, i64 {sn}, {counts})")
