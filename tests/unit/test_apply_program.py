"""Applies as text, and their lowering to row nests."""

import pytest

from kernmantle.compiler.nest import Buffer
from kernmantle.compiler.row_reduce import COLUMNS, HOW, Apply, can_lower, lower_rows
from kernmantle.ir.definition import bind, define
from kernmantle.ir.functions import FUNCTIONS

exp = FUNCTIONS["exp"]


def program(equation="mk,nk->mn", mapped=lambda a, b: abs(a - b), reduce="sum", epilogue=None, **options):
    return bind(define(equation, mapped, reduce, epilogue), frozenset(options.get("tensors", ()))).program


GRAM = program(epilogue=lambda s, h: exp(-s / h))


@pytest.mark.parametrize("how", HOW)
def test_text_round_trip(how):
    apply = Apply(GRAM, how, 3)
    assert Apply.parse(apply.text) == apply
    assert how in str(apply)
    assert apply.out == apply.row + COLUMNS * (how in ("product", "smallest", "largest"))


def test_roles_of_a_product():
    rows = lower_rows(Apply(GRAM, "product"), ["f32", "f16"], "bf16", ["f32"], "f32").rows
    assert [(buffer.name, buffer.roles, buffer.dtype) for buffer in rows.buffers] == [
        ("x0", "mk", "f32"), ("x1", "nk", "f16"), ("w", "mn", "f32"), ("v", "nl", "bf16"), ("out0", "ml", "f32"),
    ]  # fmt: skip
    assert rows.reduction.name == "sum"
    assert len(rows.folded) == 1
    assert rows.matrix.numbers[-1] == "u0"


def test_roles_of_a_reduction_and_a_selection():
    rows = lower_rows(Apply(GRAM, "max"), ["f64", "f64"], "f64", ["f64"], "f64").rows
    assert rows.v is None
    assert rows.outs == (Buffer("out0", "m", "f64"),)
    rows = lower_rows(Apply(GRAM, "smallest", 4), ["f32", "f32"], "f32", ["f32", "i64"], "f32").rows
    assert rows.selects
    assert [buffer.roles for buffer in rows.outs] == ["ml", "ml"]


def test_exponentials_to_the_base_two():
    rows = lower_rows(Apply(GRAM, "sum"), ["f32", "f32"], "f32", ["f32"], "f32", binary=True).rows
    assert rows.matrix.outputs[0].op == "exp2"


@pytest.mark.parametrize(
    ("inner", "compute"),
    [
        (program("mk,nk,mn->mn", lambda a, b, c: a * b * c), "f32"),
        (program("mkl,nkl->mn"), "f32"),
        (program("m,n->mn"), "f32"),
        (GRAM, "i32"),
    ],
)
def test_what_has_no_nest(inner, compute):
    assert can_lower(Apply(GRAM, "sum"), "f32")
    assert not can_lower(Apply(inner, "sum"), compute)


def test_entries_may_read_operands_of_their_own():
    tabled = Apply(program("mk,nk,t:mn->mn", epilogue=lambda s, t: s + t), "sum")
    assert can_lower(tabled, "f32")
    rows = lower_rows(tabled, ["f32", "f32", "f32"], "f32", ["f32"], "f32").rows
    assert [buffer.roles for buffer in rows.matrix.operands] == ["mk", "nk", "mn"]
