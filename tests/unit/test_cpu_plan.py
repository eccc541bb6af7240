"""Plans for the CPU: what is vectorised, what is held where, how work is cut."""

from __future__ import annotations

import pytest

from kernmantle.backends.cpu import gram_plan
from kernmantle.compiler.nest import SIZES, Buffer, Nest
from kernmantle.ir.node import Node, const, var
from kernmantle.ir.reductions import REDUCTIONS

A, B, C = var("x0"), var("x1"), var("x2")
DISTANCE = Node("abs", (Node("sub", (A, B)),))


def nest(roles: str, out: str, mapped: Node, reduce: str = "sum", compute: str = "f32", **flags) -> Nest:
    operands = tuple(Buffer(f"x{i}", part, compute) for i, part in enumerate(roles.split(",")))
    outs = (Buffer("out0", out, compute),)
    return Nest(operands, ("p",), outs, (mapped,), (REDUCTIONS[reduce],), (var("s0"),), compute, **flags)


def sizes(**given: int) -> dict[str, int]:
    return {role: given.get(role, 1) for role in SIZES}


@pytest.mark.parametrize(
    ("compute", "vector_bytes", "lanes"),
    [("f32", 32, 8), ("f64", 32, 4), ("i32", 64, 16), ("i64", 16, 2), ("bool", 32, 8)],
)
def test_lanes(compute, vector_bytes, lanes):
    assert gram_plan.plan(nest("mk,nk", "mn", DISTANCE, compute=compute), vector_bytes, 16).lanes == lanes


def test_operands_by_how_they_are_held():
    total = Node("add", (DISTANCE, Node("mul", (C, Node("add", (var("x3"), var("x4")))))))
    plan = gram_plan.plan(nest("mk,nk,k,mn,", "mn", total), 32, 16)
    names = [
        [buffer.name for buffer in buffers]
        for buffers in (plan.row_buffers, plan.column_buffers, plan.k_buffers, plan.cell_buffers)
    ]
    assert names == [["x0"], ["x1"], ["x2", "x4"], ["x3"]]


def test_an_operand_that_nothing_reads_is_not_held():
    assert gram_plan.plan(nest("mk,nk,mn", "mn", DISTANCE), 32, 16).cell_buffers == ()


@pytest.mark.parametrize(
    ("roles", "out", "extents", "swap"),
    [
        ("mk,nk", "mn", None, False),
        ("mk,nk", "mn", sizes(m=1000, n=3), True),
        ("mk,nk", "mn", sizes(m=3, n=1000), False),
        ("mk,nk", "mn", sizes(m=4, n=3), False),
        ("mk,k", "m", None, True),
        ("nk,k", "n", None, False),
        ("k,k", "", None, False),
    ],
)
def test_which_role_is_vectorised(roles, out, extents, swap):
    plan = gram_plan.plan(nest(roles, out, DISTANCE), 32, 16, extents)
    assert plan.swap == swap
    assert plan.actual("m") == ("n" if swap else "m")


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("maps", [1, 3, 6])
def test_accumulators_stay_in_registers(registers, maps):
    one = nest("mk,nk", "mn", DISTANCE)
    count = tuple(Node("mul", (DISTANCE, const(i))) for i in range(maps))
    many = Nest(one.operands, one.numbers, one.outs, count, (REDUCTIONS["sum"],) * maps, one.outputs, "f32")
    plan = gram_plan.plan(many, 32, registers)
    assert plan.rows * plan.vectors * maps <= max(registers // 2, maps)


def test_an_accumulator_over_rows_alone_costs_no_cells():
    one = nest("mk,nk", "mn", DISTANCE)
    maps = DISTANCE, Node("mul", (A, A)), Node("mul", (B, B))
    many = Nest(one.operands, one.numbers, one.outs, maps, (REDUCTIONS["sum"],) * 3, one.outputs, "f32")
    assert gram_plan.plan(many, 32, 16).rows == gram_plan.plan(one, 32, 16).rows


@pytest.mark.parametrize(
    ("mapped", "reduce", "optimistic"),
    [
        (DISTANCE, "sum", False),
        (DISTANCE, "min", True),
        (Node("pow", (DISTANCE, var("p"))), "sum", True),
        (Node("pow", (A, var("p"))), "sum", False),
        (Node("pow", (DISTANCE, A)), "sum", False),
    ],
)
def test_short_forms(mapped, reduce, optimistic):
    assert gram_plan.plan(nest("mk,nk", "mn", mapped, reduce), 32, 16).optimistic == optimistic
    assert not gram_plan.plan(nest("mk,nk", "mn", DISTANCE, reduce, "i32"), 32, 16).optimistic


@pytest.mark.parametrize(
    ("node", "known"),
    [
        (Node("abs", (A,)), True), (Node("mul", (A, A)), True), (Node("mul", (A, B)), False), (A, False),
        (Node("add", (Node("abs", (A,)), const(1))), True), (Node("add", (Node("abs", (A,)), const(-1))), False),
        (Node("sqrt", (Node("exp", (A,)),)), True), (Node("neg", (Node("abs", (A,)),)), False),
    ],
)  # fmt: skip
def test_never_negative(node, known):
    assert gram_plan.never_negative(node) == known


def test_only_half_is_computed_where_nothing_tells_rows_from_columns():
    assert gram_plan.plan(nest("mk,nk,k", "mn", DISTANCE, symmetric=True), 32, 16).symmetric
    assert not gram_plan.plan(nest("mk,nk,m", "mn", DISTANCE, symmetric=True), 32, 16).symmetric
    assert not gram_plan.plan(nest("mk,nk", "mn", DISTANCE, symmetric=True, partial=True), 32, 16).symmetric


@pytest.mark.parametrize(
    ("mapped", "n", "k", "mirrored"),
    [
        (DISTANCE, 1000, 4, False), (DISTANCE, 1000, 12, True), (DISTANCE, 3000, 12, False), (DISTANCE, 3000, 40, True),
        (Node("pow", (DISTANCE, var("p"))), 3000, 1, True),
    ],
)  # fmt: skip
def test_only_half_is_computed_where_that_is_quicker(mapped, n, k, mirrored):
    one = nest("mk,nk", "mn", mapped, symmetric=True)
    assert gram_plan.plan(one, 32, 16, sizes(m=n, n=n, k=k)).symmetric == mirrored


@pytest.mark.parametrize(
    "extents", [sizes(m=10**6, n=10**6, k=10**6), sizes(m=10**6, n=3, k=10**7), sizes(m=7, n=10**9)]
)
@pytest.mark.parametrize("roles", ["mk,nk,k", "mk,nk,mnk", "mkl,nl,mn"])
def test_scratch_is_bounded(extents, roles):
    plan = gram_plan.plan(nest(roles, "mn", Node("mul", (DISTANCE, C)), "logsumexp", "f64"), 64, 32)
    assert gram_plan.work(plan, extents).scratch_bytes < 8 << 20


def test_scratch_of_little_work_is_little():
    plan = gram_plan.plan(nest("mk,nk", "mn", DISTANCE), 32, 16)
    assert gram_plan.work(plan, sizes(m=5, n=7, k=3)).scratch_bytes < 4096


def test_items():
    plan = gram_plan.plan(nest("mk,nk", "mn", DISTANCE), 32, 16)
    rows = plan.item_rows
    assert gram_plan.work(plan, sizes(m=rows, n=5, k=3)).items == 1
    assert gram_plan.work(plan, sizes(m=rows + 1, n=5, k=3, a=2, b=3, c=5, splits=7)).items == 2 * 2 * 3 * 5 * 7
    assert gram_plan.work(plan, sizes(m=0, n=5)).items == 0
    assert gram_plan.work(plan, sizes(m=5, n=0)).items == 0


def test_a_thread_is_worth_more_than_a_little_work():
    plan = gram_plan.plan(nest("mk,nk", "mn", DISTANCE), 32, 16)
    assert gram_plan.work(plan, sizes(m=64, n=64, k=16)).grain > 4
    assert gram_plan.work(plan, sizes(m=2048, n=2048, k=256)).grain == 1


def test_a_plan_says_what_it_does():
    words = str(gram_plan.plan(nest("mk,nk", "mn", DISTANCE, "min", symmetric=True), 32, 16))
    assert "gram tile 4x16 (2 vectors of 8)" in words
    assert "rows x0, columns x1" in words
    assert "symmetric optimistic f32" in words
