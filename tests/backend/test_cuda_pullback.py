"""Pullbacks on a GPU: which tile a call gets, and that every kind of kernel compiles without spilling."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

import kernmantle as km
from kernmantle.codegen.cuda import headers
from kernmantle.codegen.cuda_pullback import emit
from kernmantle.contraction import cuda_pullback
from kernmantle.contraction.cuda_plan import Facts
from kernmantle.contraction.cuda_pullback import PullPlan, pull_plan
from kernmantle.contraction.nest import ROLES, SIZES
from kernmantle.ops.contract import Contraction
from kernmantle.ops.cpu import CpuTarget
from kernmantle.ops.launcher import Launcher, nothing
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


@pytest.fixture
def found(monkeypatch) -> list[PullPlan | None]:
    """Plans of what is called, as a GPU would have them."""
    plans: list[PullPlan | None] = []

    def prepare(_, nest, integers, alignment, device):
        values, count = integers.tolist(), len(nest.ports)
        strides = tuple(tuple(values[len(SIZES) + p * len(ROLES) :][: len(ROLES)]) for p in range(count))
        sizes = dict(zip(SIZES, values, strict=False))
        plans.append(pull_plan(nest, sizes, CARDS["sm_90"], Facts(strides, tuple(alignment))))
        return Launcher(nothing, "noted")

    monkeypatch.setattr(CpuTarget, "prepare", prepare)
    monkeypatch.setattr(CpuTarget, "parallel", lambda *_: 132)
    monkeypatch.setattr(CpuTarget, "pulls", lambda _, *given: cuda_pullback.pulls(*given))
    return plans


@pytest.mark.parametrize(("outputs", "engine"), [(1, "scalar"), (16, "wgmma"), (32, "wgmma")])
@pytest.mark.parametrize("p", [1, 1.3])
def test_many_outputs_run_on_tensor_cores(found, outputs, engine, p):
    z, x, weights = torch.empty(6000, 96), torch.empty(6001, 96), torch.empty(6000, 6001)
    slope = Contraction(
        "mk,nk,mn,no->omk", (lambda z, x, w, c: c * w * km.sign(z - x)) if p == 1 else
        (lambda z, x, w, c, p: c * w * km.sign(z - x) * abs(z - x) ** (p - 1)),
    )  # fmt: skip
    named = {} if p == 1 else {"p": p}
    slope(z, x, weights, torch.empty(6001, outputs), **named)
    assert found[-1] is not None
    assert found[-1].tile.engine == engine
    assert found[-1].slope.kind == ("signs" if p == 1 else "powers")
    slope(z, x, weights, torch.empty(6001, outputs), precision="ieee", **named)
    assert found[-1] is not None
    assert found[-1].tile.engine == "scalar"
