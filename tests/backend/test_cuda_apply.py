"""Every kind of row nest compiles for every generation; what some are written as is in ``golden.cuda_code``."""

import itertools
from dataclasses import replace

import pytest

from kernmantle.backends.cuda import row_reduce_plan, tiles
from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.row_reduce_plan import WORK_BYTES, by_products
from kernmantle.compiler.patterns import scale
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.node import Node, var

from ..cuda.row_nests import LAPLACE, SQUARES, RowCase, cases
from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

HEADLINE = {
    "rows_thin": RowCase("rows_thin", LAPLACE, PRODUCT, 100000, 100000, 3),
    "rows_norms": RowCase("rows_norms", SQUARES, PRODUCT, 100000, 100000, 3),
    "rows_thin_deep": RowCase("rows_thin_deep", LAPLACE, PRODUCT, 100000, 100000, 10),
    "rows_thin_logs": RowCase("rows_thin_logs", LAPLACE, "logsumexp", 100000, 100000, 3),
    "rows_tile": RowCase("rows_tile", LAPLACE, PRODUCT, 40000, 40000, 20),
    "rows_pipelined": RowCase("rows_pipelined", LAPLACE, PRODUCT, 30000, 30000, 1024, 16),
    "rows_logsumexp": RowCase("rows_logsumexp", LAPLACE, "logsumexp", 30000, 30000, 100),
    "rows_nearest": RowCase("rows_nearest", LAPLACE, "largest", 30000, 30000, 100, 10),
}


@pytest.mark.parametrize(
    ("case", "card"), list(zip(cases()[::8], itertools.cycle(CARDS))), ids=lambda value: getattr(value, "name", value)
)
def test_every_kind_of_row_nest_compiles(case: RowCase, card: str) -> None:
    plan = case.plan(CARDS[card])
    cubin = compile_source(emit_rows(plan), card, headers(), case.name)
    assert cubin.binary[:4] == b"\x7fELF"
    assert plan.shared <= CARDS[card].shared_per_block


@pytest.mark.parametrize("tile", tiles.ROW_TILES, ids=lambda tile: tile.name)
def test_every_tile_of_rows_compiles_and_keeps_its_accumulators(tile: tiles.Tile, monkeypatch) -> None:
    monkeypatch.setattr(row_reduce_plan, "ROW_TILES", (tile,))
    plan = HEADLINE["rows_tile"].plan(CARDS["sm_80"])
    assert (plan.form, plan.tile.name) == ("tile", tile.name)
    cubin = compile_source(emit_rows(plan), "sm_80", headers(), tile.name)
    assert cubin.resources.spill_stores <= 4 * tile.rows * tile.columns, "more is spilled than there are accumulators"


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", HEADLINE)
def test_work_space_is_bounded(name: str, card: str) -> None:
    case, limits = HEADLINE[name], CARDS[card]
    plan = case.plan(limits)
    for width in (1, 16, 128):
        blocks = plan.blocks(case.sizes(), limits, width)
        assert 1 <= blocks <= plan.tiles(case.sizes())[0]
        assert plan.work_bytes(blocks, width) <= WORK_BYTES


@pytest.mark.parametrize("k", [3, 64, 256, 512, 1024, 4096])
@pytest.mark.parametrize(("m", "n"), [(30000, 30000), (1000000, 500), (5000, 100000), (129, 40000)])
def test_rows_of_a_launch_stay_near(m: int, n: int, k: int) -> None:
    case, limits = RowCase("band", LAPLACE, PRODUCT, 128, 128, k), CARDS["sm_90"]
    sizes = case.sizes() | {"m": m, "n": n}
    plan = case.plan(limits)
    band = plan.band(sizes, limits, 1)
    assert 0 < band <= m
    if band < m:
        assert band % plan.tile.m == 0
        assert band * k * 4 <= 36 << 20
        assert plan.blocks({**sizes, "m": band}, limits, 1) == plan.blocks(sizes, limits, 1)
    else:
        together = min(m, plan.blocks(sizes, limits, 1) * plan.tile.m)
        assert plan.form == "thin" or n < 40 * plan.tile.n or together * k * 4 <= 36 << 20


@pytest.mark.parametrize(
    ("card", "m", "k", "form"),
    [
        ("sm_90", 30000, 64, "pipelined"),
        ("sm_90", 30000, 17, "pipelined"),
        ("sm_90", 30000, 3, "thin"),
        ("sm_90", 128, 1024, "tile"),
        ("sm_80", 30000, 64, "tile"),
    ],
)
def test_log_sums_take_one_exponential_an_entry(card: str, m: int, k: int, form: str) -> None:
    """By the warp-specialized kernel where there is a tile of it for every multiprocessor."""
    plan = RowCase("log_sums", LAPLACE, "logsumexp", m, m, k).plan(CARDS[card])
    assert plan.form == form
    assert "SUMS_EXPONENTIALS = true" in emit_rows(plan)
    exact = replace(plan, rows=replace(plan.rows, matrix=replace(plan.rows.matrix, precision="ieee")))
    assert "SUMS_EXPONENTIALS" not in emit_rows(exact)


def test_precise_entries_take_no_quick_function() -> None:
    case = HEADLINE["rows_thin"]
    quick = case.plan(CARDS["sm_90"])
    slow = replace(quick, rows=replace(quick.rows, matrix=replace(quick.rows.matrix, precision="ieee")))
    assert "exp2_fast(" in emit_rows(quick).split("struct Apply")[1]
    assert "exp2_fast(" not in emit_rows(slow).split("struct Apply")[1]
    assert "1e-6" not in str(slow)


@pytest.mark.parametrize(
    ("k", "how", "there"),
    [(64, "sum", False), (256, "sum", True), (1024, "sum", True), (256, "largest", False), (1024, "largest", True)],
)
def test_squares_of_many_numbers_are_left_to_products(k: int, how: str, there: bool) -> None:
    case = RowCase("squares", SQUARES, how, 30000, 30000, k)
    assert by_products(case.rows, case.sizes(), CARDS["sm_90"]) is there
    exact = replace(case.rows, matrix=replace(case.rows.matrix, precision="ieee"))
    assert not by_products(exact, case.sizes(), CARDS["sm_90"])
    assert not by_products(HEADLINE["rows_pipelined"].rows, HEADLINE["rows_pipelined"].sizes(), CARDS["sm_90"])


@pytest.mark.parametrize(
    ("readers", "there"), [(("exp2",), True), ((), False), (("sqrt",), False), (("exp2", "sqrt"), False)]
)
def test_rows_are_scaled_under_exponentials_alone(readers: tuple[str, ...], there: bool) -> None:
    """Elsewhere what large rows lose by rounding is not small against sums of small differences."""
    nest = HEADLINE["rows_thin"].plan(CARDS["sm_90"]).rows.matrix
    product = Node("mul", (var("f0"), var("s0")))
    read = [Node(op, (product,)) for op in readers] or [product]
    output = read[0] if len(read) == 1 else Node("add", tuple(read))
    assert (scale(nest, output, {"f0"}) is not None) == there
