"""Sums of squared differences as products: what is planned, and that its kernels compile without spilling."""

from dataclasses import replace
from functools import cache

import pytest

from kernmantle.backends.cuda.emit import emit, headers
from kernmantle.backends.cuda.gram_plan import CudaPlan, DeviceLimits
from kernmantle.backends.cuda.nvrtc import Cubin
from kernmantle.backends.cuda.squares_plan import SquaresPlan, planes, squares_plan
from kernmantle.backends.cuda.tiles import PRODUCT_TILES
from kernmantle.compiler.nest import Layout, Nest

from ..cases import sampled
from ..cuda.nests import L1, SQUARE, Case, W, gram, op
from ..cuda.squares import planned, squares, squares_cases
from ..golden.compiled import compile_source
from .test_cuda_compile import BIG, CARDS

ROOT = (op("sqrt", squares().outputs[0]),)
HEADLINE = {
    "squares": squares(outputs=ROOT),
    "squares_symmetric": squares(outputs=ROOT, symmetric=True),
}
STEPS = ("split", "main", "direct")


def chosen(nest: Nest, card: DeviceLimits, sizes: dict[str, int] | None = None) -> SquaresPlan | None:
    case = Case("squares", nest, sizes or BIG)
    buffers = range(len(nest.buffers))
    facts = Layout(tuple(case.strides(i) for i in buffers), (16,) * len(buffers))
    return squares_plan(nest, case.extents(), card, facts)


def steps(name: str, card: str) -> dict[str, CudaPlan]:
    found = chosen(HEADLINE[name], CARDS[card])
    assert found is not None
    return {step: getattr(found, step) for step in STEPS}


@cache
def compiled(source: str, card: str) -> Cubin:
    return compile_source(source, card, headers(), "squares")


@pytest.mark.parametrize("given", sampled(9, squares_cases()), ids=lambda given: given.case.name)
def test_every_kind_of_case_compiles(given) -> None:
    card = "sm_90" if planned(given.case, CARDS["sm_90"]).main.schema == "wgmma" else "sm_80"
    found = planned(given.case, CARDS[card])
    assert compiled(emit(found.split), card).resources.registers > 0
    assert compiled(emit(found.main), card).resources.registers > 0


def test_hopper_takes_asynchronous_products_and_others_any() -> None:
    schemas = {card: steps("squares", card)["main"].schema for card in CARDS}
    assert schemas == {card: "wgmma" if card == "sm_90" else "mma" for card in CARDS}


def test_tiles_left_over_are_computed_in_tiles_of_the_same_extent() -> None:
    for card in CARDS:
        found = steps("squares", card)
        assert found["direct"].listed
        assert (found["direct"].tile.m, found["direct"].tile.n) == (found["main"].tile.m, found["main"].tile.n)


@pytest.mark.parametrize(
    ("nest", "sizes"),
    [
        (replace(squares(), precision="ieee"), BIG),
        (replace(gram(L1), precision="default"), BIG),
        (squares(compute="f64", dtype="f64"), BIG),
        (squares(), BIG | {"k": 16}),
        (squares(), BIG | {"k": 8193}),
        (squares(), {"m": 512, "n": 512, "k": 64}),
        (squares(), {"m": 8, "n": 1 << 20, "k": 256}),
        (squares(op("mul", W, SQUARE), w="mk"), BIG),
    ],
)
def test_what_products_do_not_pay_for_or_cannot_give_is_left(nest: Nest, sizes: dict[str, int]) -> None:
    assert chosen(nest, CARDS["sm_90"], sizes) is None


def test_medium_sizes_take_narrow_tiles() -> None:
    found = chosen(squares(), CARDS["sm_90"], {"m": 2048, "n": 2048, "k": 256})
    assert found is not None
    assert found.main.tile.name == "narrow products"


def test_one_product_keeps_one_half_and_little_memory() -> None:
    both, one = (chosen(squares(precision=p), CARDS["sm_90"]) for p in ("default", "tf32"))
    assert both is not None
    assert one is not None
    assert (planes(both.main.nest), planes(one.main.nest)) == (2, 1)
    inputs = 4 * 2 * BIG["m"] * BIG["k"]
    assert inputs <= both.scratch.size <= 1.01 * inputs
    assert one.scratch.size <= 0.51 * inputs


def test_own_distances_split_their_operand_once() -> None:
    two, own = (chosen(squares(symmetric=s), CARDS["sm_90"]) for s in (False, True))
    assert two is not None
    assert own is not None
    assert own.scratch.offsets[1] == own.scratch.offsets[2]
    assert own.scratch.offsets[3] == own.scratch.offsets[4]
    assert own.scratch.size < 0.51 * two.scratch.size


def test_a_plan_prints_what_it_does() -> None:
    text = str(chosen(squares(), CARDS["sm_90"]))
    assert "wgmma sm_90 tile 128x192x64" in text
    assert "products of f16 halves to 1e-05" in text


def test_a_tile_that_was_not_measured_is_taken_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case, card = Case("squares", squares(), BIG), CARDS["sm_90"]
    buffers = range(len(case.nest.buffers))
    asked = case.nest, case.extents(), card, Layout(tuple(case.strides(i) for i in buffers), (16,) * len(buffers))
    before = squares_plan(*asked)
    new = replace(PRODUCT_TILES[0], name="new", efficiency=0)
    monkeypatch.setattr("kernmantle.backends.cuda.squares_plan.PRODUCT_TILES", (new, *PRODUCT_TILES))
    assert squares_plan(*asked) == before
    found = squares_plan(*asked, tile="new")
    assert found is not None
    assert found.main.tile is new


def test_tiles_have_different_names() -> None:
    assert len({tile.name for tile in PRODUCT_TILES}) == len(PRODUCT_TILES)


def test_cases_have_different_names() -> None:
    names = [given.case.name for given in squares_cases()]
    assert len(set(names)) == len(names)
