"""VJPs on a GPU: every tile has a case, and kernels are written together or apart."""

from __future__ import annotations

import re

from kernmantle.backends.cuda import vjp_plan
from kernmantle.backends.cuda.vjp_emit import emit

from ..cuda.vjp_nests import cases
from .test_cuda_compile import CARDS

CASES = {case.name: case for case in cases()}


def test_every_tile_has_a_case():
    planned = {plan.tile.name for case in CASES.values() if (plan := case.plan(CARDS["sm_90"])) is not None}
    assert planned == {tile.name for tile in vjp_plan.VJP_TILES}


def test_kernels_are_written_together_or_apart():
    plan = CASES["two_powers_1"].plan(CARDS["sm_90"])
    entry = re.compile(r'extern "C".*?\n}\n', re.DOTALL)
    apart = [emit(plan, [name]) for name in plan.kernels]
    assert [entry.findall(text)[0] for text in apart] == entry.findall(emit(plan))
    assert all(len(entry.findall(text)) == 1 for text in apart)
