"""Pullbacks on a GPU: every tile has a case, every kind of kernel compiles without spilling."""

from __future__ import annotations

import re
from functools import cache

import pytest

from kernmantle.codegen.cuda import headers
from kernmantle.codegen.cuda_pullback import emit
from kernmantle.contraction import cuda_pullback
from kernmantle.runtime.nvrtc import compile_source

from ..cuda.pull_nests import cases
from .test_cuda_compile import CARDS, SPILL_FREE

CASES = {case.name: case for case in cases()}
COMPILED = (
    ("one_signs_1", "sm_80"), ("sixteen_signs_1", "sm_80"), ("eight_async_powers_1", "sm_90"),
    ("wide_async_signs_1", "sm_90"),
)  # fmt: skip


@cache
def log(name: str, card: str) -> str:
    plan = CASES[name].plan(CARDS[card])
    assert plan is not None
    return compile_source(emit(plan), card, headers(), name).log


@pytest.mark.parametrize(("name", "card"), COMPILED)
def test_every_kind_compiles_without_spilling(name, card):
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log(name, card))]
    assert len(spills) >= 3
    assert max(spills) <= SPILL_FREE


def test_every_tile_has_a_case():
    planned = {plan.tile.name for case in CASES.values() if (plan := case.plan(CARDS["sm_90"])) is not None}
    assert planned == {tile.name for tile in cuda_pullback.PULL_TILES}
