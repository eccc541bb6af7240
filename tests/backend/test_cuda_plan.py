"""The planner: what it chooses, and that what it says of a kernel is so."""

import functools
from dataclasses import replace

import pytest

from kernmantle.backends.cuda import gram_plan
from kernmantle.backends.cuda.gram_plan import (
    TILES,
    CudaPlan,
    DeviceLimits,
    candidates,
    cell_words,
    is_heavy,
    plan,
    shared_bytes,
)
from kernmantle.compiler.nest import ROLES, SIZES, Buffer, Layout, Nest
from kernmantle.ir.node import Node, const
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.torch_ops.tuned_tiles import names

from ..cuda.nests import GAP, L1, PLUS, ROOT, SQUARE, VJP, Case, G, cases, fold, gram, op, slopes_of_powers, var

HOPPER = DeviceLimits("sm_90", 132, 227 << 10, 228 << 10, threads_per_sm=2048)
ADA = DeviceLimits("sm_89", 128)


def sizes(**given: int) -> dict[str, int]:
    return {role: given.get(role, 1) for role in SIZES}


def facts(nest: Nest, extents: dict[str, int], alignment: int = 16) -> Layout:
    case = Case("", nest, extents)
    buffers = range(len(nest.buffers))
    return Layout(tuple(case.strides(i) for i in buffers), (alignment,) * len(buffers))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("limits", [HOPPER, ADA], ids=lambda limits: limits.arch)
def test_every_nest_has_a_tile_that_fits(case: Case, limits: DeviceLimits) -> None:
    for tile in candidates(case.nest, case.extents(), limits):
        assert shared_bytes(case.nest, tile) <= limits.shared_per_block
        assert tile.schema != "pipelined" or limits.arch == "sm_90"
    assert candidates(case.nest, case.extents(), limits)


@pytest.mark.parametrize("limits", [HOPPER, ADA], ids=lambda limits: limits.arch)
def test_a_tile_that_was_not_measured_is_tried_and_not_chosen(limits: DeviceLimits, monkeypatch) -> None:
    middle = next(tile for tile in TILES if tile.name == "middle")
    power = gram(op("pow", L1, var("p")), numbers=("p",))
    extents = sizes(m=4096, n=4096, k=64)
    for nest in (gram(L1), power):
        layout = facts(nest, extents)
        chosen, tried = plan(nest, extents, limits, layout).tile, names(nest, extents, limits, layout)
        quick = (replace(middle, name="madeup", efficiency=each, heavy=each) for each in (0.0, 100.0))
        for new, first in zip(quick, (chosen.name, "madeup"), strict=True):
            monkeypatch.setattr(gram_plan, "TILES", (new, *TILES))
            assert plan(nest, extents, limits, layout).tile.name == first
            assert plan(nest, extents, limits, layout, "madeup").tile == new
            assert "madeup" in names(nest, extents, limits, layout)
            monkeypatch.setattr(gram_plan, "TILES", TILES)
        assert names(nest, extents, limits, layout) == tried


def test_large_problems_take_the_ring_on_hopper_and_the_wide_tile_elsewhere() -> None:
    nest, extents = gram(L1), sizes(m=30000, n=30000, k=1024)
    assert plan(nest, extents, HOPPER, facts(nest, extents)).schema == "pipelined"
    assert plan(nest, extents, ADA, facts(nest, extents)).tile.name == "wide"


def test_small_outputs_spread_over_the_machine() -> None:
    nest, extents = gram(L1), sizes(m=512, n=512, k=64)
    chosen = plan(nest, extents, HOPPER, facts(nest, extents))
    assert chosen.blocks(extents, HOPPER) >= HOPPER.sm_count


def test_functions_take_small_threads() -> None:
    nest, extents = gram(op("pow", L1, var("p")), numbers=("p",)), sizes(m=8192, n=8192, k=256)
    assert is_heavy(nest)
    assert not is_heavy(gram(SQUARE))
    tile = plan(nest, extents, HOPPER, facts(nest, extents)).tile
    assert tile.rows * tile.columns <= 16


@pytest.mark.parametrize(
    ("k", "stride", "alignment", "width"),
    [(64, 64, 16, 4), (64, 64, 8, 2), (64, 66, 16, 2), (63, 63, 16, 1), (64, 64, 4, 1)],
)
def test_accesses_are_as_wide_as_strides_and_pointers_allow(k: int, stride: int, alignment: int, width: int) -> None:
    nest, extents = gram(L1), sizes(m=300, n=300, k=k)
    along = tuple({"m": stride, "k": 1}.get(role, 0) for role in ROLES)
    found = Layout((along, *facts(nest, extents).strides[1:]), (alignment, 16, 16))
    assert plan(nest, extents, HOPPER, found).access[0].width == width


def test_transposed_operands_are_read_along_the_tile() -> None:
    nest, extents = gram(L1), sizes(m=300, n=300, k=64)
    strides = tuple({"m": 1, "k": 300}.get(role, 0) for role in ROLES)
    access = plan(nest, extents, HOPPER, Layout((strides, *facts(nest, extents).strides[1:]), (16,) * 3)).access[0]
    assert (access.run, access.width) == ("tile", 4)


def test_folds_are_never_cut() -> None:
    horner = fold(op("add", op("mul", var("s0"), 0.5), op("mul", var("x0"), var("x1"))), 0)
    assert all(tile.groups == 1 for tile in candidates(gram(const(0), horner), sizes(m=3, n=5, k=4000), HOPPER))


def test_mirroring_needs_operands_that_cannot_tell_rows_from_columns() -> None:
    assert gram(L1, symmetric=True).mirrors
    assert gram(op("mul", var("w"), L1), w="k", symmetric=True).mirrors
    assert not gram(op("mul", var("w"), L1), w="mk", symmetric=True).mirrors
    assert not gram(L1).mirrors


def test_registers_of_a_cell_are_counted() -> None:
    assert cell_words(gram(L1)) == 1
    assert cell_words(gram(L1, "argmin")) == 3
    assert cell_words(gram(L1, compute="f64", dtype="f64")) == 2
    assert cell_words(gram(op("mul", var("g"), L1), g="mn")) == 2


def test_only_what_a_kernel_takes_is_passed() -> None:
    nest, extents = gram(PLUS, "min"), sizes(m=64, n=64, k=8)
    chosen = plan(nest, extents, HOPPER, facts(nest, extents))
    integers = list(range(100))
    assert chosen.arguments([7, 8, 9], integers, []) == (7, 8, 9, *chosen.integers)
    batched = extents | {"b": 5}
    assert len(plan(nest, batched, HOPPER, facts(nest, batched)).integers) == len(chosen.integers) + 4


def test_a_plan_prints_what_it_does() -> None:
    nest, extents = gram(L1), sizes(m=30000, n=30000, k=1024)
    text = str(plan(nest, extents, HOPPER, facts(nest, extents)))
    assert "pipelined sm_90 tile 128x128x32" in text
    assert "x0 4k" in text
    assert "f32 ieee" in text


def _vjp(root: Node, **flags: object) -> CudaPlan:
    nest, extents = gram(root, **VJP, **flags), sizes(m=8192, n=512, k=8192)
    return plan(nest, extents, HOPPER, facts(nest, extents))


def test_signs_are_counted_in_halves_and_powers_take_their_bit() -> None:
    signs = _vjp(op("neg", op("mul", G, op("sign", GAP))))
    assert signs.tile.matrix_operand
    assert signs.product is not None
    assert (signs.product.sign, signs.product.prefix) == ("half", op("neg", G))
    powers = _vjp(slopes_of_powers(var("p")), numbers=("p",))
    assert powers.product is not None
    assert (powers.product.sign, powers.product.positive) == ("bit", True)
    assert powers.product.rest == (op("pow", L1, op("add", var("p"), -1)),)


def test_signs_that_nothing_hides_at_zero_are_exact() -> None:
    assert _vjp(op("mul", G, op("sign", op("mul", GAP, 2)))).product is None
    assert _vjp(op("mul", op("mul", G, var("p")), op("sign", GAP)), numbers=("p",)).product is None
    masked = op("where", op("eq", GAP, 0), 0, op("rsqrt", L1))
    assert _vjp(op("mul", G, masked)).product is None


def test_the_table_is_used_where_the_exponent_allows_it() -> None:
    powers = _vjp(slopes_of_powers(var("p")), numbers=("p",))
    assert powers.trailing([1.3])[0] == 1
    assert powers.trailing([0.7])[0] == powers.trailing([1.0])[0] == powers.trailing([40.0])[0] == 0
    assert _vjp(op("mul", G, op("mul", op("sign", GAP), ROOT))).trailing([])[0] == 1


def test_compared_values_take_no_quick_form() -> None:
    for root in (ROOT, op("pow", L1, 1.3)):
        nest, extents = gram(root, "max"), sizes(m=8192, n=8192, k=256)
        chosen = plan(nest, extents, HOPPER, facts(nest, extents))
        assert chosen.power is chosen.product is None
        assert "ieee" in str(chosen)
    nest = gram(ROOT)
    assert plan(nest, extents, HOPPER, facts(nest, extents)).power is not None


def test_tiles_have_different_names() -> None:
    assert len({tile.name for tile in TILES}) == len(TILES)
    assert all(replace(tile, name="") for tile in TILES)


@pytest.mark.parametrize("roles", ["mn", "mk"])
def test_any_number_of_operands_has_a_tile(roles):
    names = [f"g{i}" for i in range(24)]
    buffers = (Buffer("x0", "mk", "f64"), Buffer("x1", "nk", "f64"), *(Buffer(name, roles, "f64") for name in names))
    total = functools.reduce(lambda a, b: Node("add", (a, b)), map(var, ["x0", "x1", *names]))
    nest = Nest(buffers, (), (Buffer("out0", "mn", "f64"),), (total,), (REDUCTIONS["sum"],), (var("s0"),), "f64")
    extents = sizes(m=5, n=9, k=17)
    assert all(candidates(nest, extents, limits) for limits in (HOPPER, ADA))
