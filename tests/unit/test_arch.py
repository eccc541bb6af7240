"""A GPU generation is a row of ``arch``, a tile one of ``cuda_tiles``: made-up ones are planned for, none is named."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from kernmantle.backends.cuda import gram_plan
from kernmantle.backends.cuda.arch import ARCHS, arch
from kernmantle.backends.cuda.emit import emit
from kernmantle.backends.cuda.gram_plan import candidates, plan
from kernmantle.backends.cuda.nvrtc import options
from kernmantle.backends.cuda.squares_plan import squares_plan
from kernmantle.backends.cuda.tiles import CARDS, TILES, DeviceLimits, Tile
from kernmantle.compiler.nest import ROLES, Layout
from kernmantle.ir.node import Node, var

from ..cuda.nests import L1, SQUARE, gram
from ..cuda.vjp_nests import cases as vjp_cases
from ..source import FILES, parsed

SIZES = dict.fromkeys("abc", 1) | {"m": 4096, "n": 4096, "k": 512, "l": 1, "splits": 1}
POWER = gram(Node("pow", (L1, var("p"))), numbers=("p",))
HALVES = replace(gram(L1, dtype="f16"), precision="half")
SQUARES = replace(gram(SQUARE), precision="default")
ROOMS = ("compiler", "backends", "structured")
ARCH = "kernmantle.backends.cuda.arch"


def facts(nest):
    """Strides and alignments of contiguous arrays."""
    whole = {"m": SIZES["k"], "n": SIZES["k"], "k": 1}
    rows = {"mk": whole, "nk": whole, "mn": {"m": SIZES["n"], "n": 1}}
    strides = (tuple(rows[buffer.roles].get(role, 0) if role in buffer.roles else 0 for role in ROLES)
               for buffer in nest.buffers)  # fmt: skip
    return Layout(tuple(strides), (256,) * len(nest.buffers))


@pytest.fixture
def madeup(monkeypatch):
    """Put a row "sm_999" into the table: what sm_90 has, or nothing beside its limits."""

    def put(**given):
        monkeypatch.setitem(ARCHS, "sm_999", replace(ARCHS["sm_90"], name="sm_999", target="sm_999a", **given))
        return replace(CARDS["sm_90"], arch="sm_999")

    return put


def chosen(limits):
    """Names of the tiles of several kinds of kernels."""
    found = [plan(nest, SIZES, limits, facts(nest)).tile.name for nest in (gram(L1), POWER, HALVES)]
    squares = squares_plan(SQUARES, SIZES, limits, facts(SQUARES))
    assert squares is not None
    vjp = [case.plan(limits) for case in vjp_cases() if case.name in ("sixteen_signs_1", "eight_async_powers_1")]
    return [*found, squares.main.schema, squares.direct.schema, *(each and each.tile.engine for each in vjp)]


def test_a_generation_with_the_same_row_is_planned_alike(madeup):
    assert chosen(madeup()) == chosen(CARDS["sm_90"])
    assert {"ring", "table power", "half2", "wgmma"} <= set(chosen(CARDS["sm_90"]))
    assert "--gpu-architecture=sm_999a" in options("sm_999")


def test_a_generation_without_features_gets_none(madeup):
    names = chosen(madeup(features=frozenset(), half_products=1024, mma_share=1.0))
    assert not {"ring", "table power", "half2", "wgmma"} & set(names)
    assert "mma" in names


def test_rates_decide_between_products_and_differences(madeup):
    assert squares_plan(SQUARES, SIZES, madeup(half_products=2048), facts(SQUARES)) is not None
    assert squares_plan(SQUARES, SIZES, madeup(half_products=64), facts(SQUARES)) is None


def test_a_generation_without_a_row_has_what_all_have():
    own = arch("sm_998")
    assert (own.target, own.features, own.sm_count) == ("sm_998", frozenset(), 0)
    assert not DeviceLimits("sm_998", 100).has(("wgmma",))
    assert "sm_998" not in CARDS


def test_cards_are_the_rows_with_multiprocessors():
    assert [*CARDS] == [name for name, row in ARCHS.items() if row.sm_count]
    assert {"sm_80", "sm_90", "sm_100", "sm_120"} <= {*CARDS}
    assert all(name == row.name and row.shared_per_block < row.shared_per_sm for name, row in ARCHS.items())


@pytest.mark.parametrize("requires", [(), ("wgmma",)])
def test_a_tile_is_a_row(monkeypatch, requires):
    row = Tile("madeup", 16, 16, 4, 8, 16, 1, 4, 2, 5.0, requires=requires)
    monkeypatch.setattr(gram_plan, "TILES", (*TILES, row))
    nest = gram(L1)
    assert plan(nest, SIZES, CARDS["sm_90"], facts(nest)).tile == row
    names = [tile.name for tile in candidates(nest, SIZES, CARDS["sm_80"])]
    assert (names[0] == "madeup") == (not requires)
    assert "GramTile<16, 16, 4, 8, 16, 1, 4" in emit(plan(nest, SIZES, CARDS["sm_90"], facts(nest), "madeup"))


def texts(tree):
    """Strings of a module that are no docstrings."""
    said = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


def compared_names(tree):
    """Names of tiles that are compared with a literal."""
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    sides = [
        side
        for node in compared
        if any(isinstance(other, ast.Constant) for other in (node.left, *node.comparators))
        for side in (node.left, *node.comparators)
    ]
    return [
        side
        for side in sides
        if isinstance(side, ast.Attribute) and side.attr == "name" and ast.unparse(side.value).endswith("tile")
    ]


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[1] in ROOMS and name != ARCH])
def test_no_module_asks_for_a_generation_or_a_tile_by_name(name):
    assert [text for text in texts(parsed(name)) if re.fullmatch(r"sm_\d+a?", text)] == []
    assert [ast.unparse(side) for side in compared_names(parsed(name))] == []


def test_names_are_found():
    tree = ast.parse('"sm_90"\nif arch == "sm_90" or plan.tile.name == "held":\n    pass')
    assert texts(tree) == ["sm_90", "held"]
    assert len(compared_names(tree)) == 1
