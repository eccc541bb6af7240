"""Kernels of Kronecker-sparse products: what is planned, and that they compile everywhere with few spills."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import cache

import pytest

from kernmantle.codegen.cuda import headers
from kernmantle.codegen.kronsparse_cuda import ENTRY, PREPARE, emit, emit_narrow
from kernmantle.contraction import kronsparse_plan
from kernmantle.contraction.kronsparse_plan import KronSparsePlan, Problem, narrow_plan
from kernmantle.contraction.nest import BYTES
from kernmantle.runtime.nvrtc import Cubin, compile_source

from .test_cuda_compile import CARDS

PATTERNS = ((6, 64, 64, 1), (1, 768, 192, 2), (1, 128, 128, 3), (1, 64, 64, 128), (3, 37, 45, 5))
DTYPES = ("f32", "f16", "bf16")
MOST_SPILLED = 192  # bytes a thread, a few of thousands of accesses


def problem(pattern, batch=25088, dtype="f32", first=True, y_first=None) -> Problem:
    a, b, c, d = pattern
    size, sides = BYTES[dtype], ((c, first), (b, first if y_first is None else y_first))
    access = [
        math.gcd(16, size * (a * m * d if side else batch), size * (m * d if d < 4 else d) if side else 0)
        for m, side in sides
    ]
    return Problem(pattern, 1, batch, dtype, first, sides[1][1], access[0], access[1] // size)


def planned(given: Problem, card: str) -> KronSparsePlan:
    found = kronsparse_plan.plan(given, CARDS[card])
    assert found is not None
    return found


@cache
def compiled(source: str, card: str) -> Cubin:
    return compile_source(source, card, headers(), "kronsparse")


HEADLINE = list(itertools.product(PATTERNS, DTYPES, (True, False), CARDS))


@pytest.mark.parametrize(("pattern", "dtype", "first", "card"), HEADLINE[::4], ids=str)
def test_compiles_within_its_registers(pattern, dtype, first, card) -> None:
    given = problem(pattern, dtype=dtype, first=first)
    chosen = planned(given, card)
    log = compiled(emit(chosen), card).log
    taken = [int(found) for found in re.findall(r"Used (\d+) registers", log)]
    spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(taken) == len(spilled) == 2, log
    assert max(taken) <= chosen.registers
    assert max(spilled) <= MOST_SPILLED
    assert chosen.shared(given) <= CARDS[card].shared_per_block
    assert chosen.blocks_each(given, CARDS[card]) >= 1


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("dtype", "first"), list(itertools.product(("f32", "f16", "f64"), (True, False))), ids=str)
def test_narrow_blocks_compile(card, dtype, first) -> None:
    for pattern in ((3, 2, 2, 1), (2, 4, 4, 8)):
        chosen = narrow_plan(problem(pattern, dtype=dtype, first=first), CARDS[card])
        assert chosen is not None
        resources = compiled(emit_narrow(chosen), card).resources
        assert 0 < resources.registers <= 255
        assert resources.spill_stores == 0


@pytest.mark.parametrize("card", CARDS)
def test_every_pattern_has_a_tile(card) -> None:
    for b, c, d in itertools.product((1, 48, 1000), (1, 100, 768), (1, 2, 3, 9)):
        for dtype, first, batch in itertools.product(("f32", "f16"), (True, False), (1, 4096)):
            given = problem((2, b, c, d), batch, dtype, first)
            chosen = planned(given, card)
            assert chosen.shared(given) <= CARDS[card].shared_per_block
            assert chosen.tile.grouped == (card == "sm_90") or not chosen.tile.grouped


def test_sizes_reach_the_source_only_through_the_tile() -> None:
    given = problem((6, 64, 64, 1))
    larger = replace(given, batch=30016, groups=3)
    assert emit(planned(given, "sm_90")) == emit(planned(larger, "sm_90"))
    assert emit(planned(given, "sm_90")) != emit(planned(problem((6, 64, 64, 1), first=False), "sm_90"))
    source = emit(planned(given, "sm_90"))
    assert ENTRY in source
    assert PREPARE in source


def test_wide_blocks_are_not_narrow() -> None:
    assert narrow_plan(problem((1, 64, 64, 1)), CARDS["sm_90"]) is None
    assert narrow_plan(problem((1, 2, 2, 4), y_first=False), CARDS["sm_90"]) is None
    assert narrow_plan(problem((1, 2, 2, 4)), CARDS["sm_90"]) is not None


def test_a_plan_prints_what_it_does() -> None:
    assert "wgmma" in str(planned(problem((6, 64, 64, 1)), "sm_90"))
    assert "3 x f16 f32" in str(planned(problem((6, 64, 64, 1)), "sm_80"))
    assert "batch last to first" in str(planned(problem((6, 64, 64, 1), first=False, y_first=True), "sm_80"))
    assert "2x2" in str(narrow_plan(problem((1, 2, 2, 4)), CARDS["sm_80"]))
