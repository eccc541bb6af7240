"""Pullbacks on a GPU: every tile has a case, every kind of kernel compiles without spilling, as a golden file says.

``python -m tests.backend.test_cuda_pullback`` rewrites the golden file.
"""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from kernmantle.codegen.cuda import headers
from kernmantle.codegen.cuda_pullback import emit
from kernmantle.contraction import cuda_pullback
from kernmantle.runtime.nvrtc import compile_source

from ..cuda.pull_nests import cases
from .test_cuda_compile import CARDS, GOLDEN, REGISTER_SLACK, SPILL_FREE

CASES = {case.name: case for case in cases()}
COMPILED = (
    ("one_signs_1", "sm_80"), ("one_signs_1", "sm_86"), ("one_signs_1", "sm_100"), ("one_signs_1", "sm_120"),
    ("sixteen_signs_1", "sm_80"), ("sixteen_signs_1", "sm_120"), ("eight_async_powers_1", "sm_90"),
    ("wide_async_signs_1", "sm_90"),
)  # fmt: skip


@cache
def log(name: str, card: str) -> str:
    plan = CASES[name].plan(CARDS[card])
    assert plan is not None
    return compile_source(emit(plan), card, headers(), name).log


def figures(name: str, card: str) -> dict[str, object]:
    """Threads, shared memory and blocks a multiprocessor has room for; registers and spills of each kernel."""
    plan = CASES[name].plan(CARDS[card])
    assert plan is not None
    found = re.findall(
        r"function 'kernmantle_(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+)", log(name, card), re.DOTALL
    )
    shared = plan.tile.shared(plan.slope.kind)
    return {
        "tile": plan.tile.name, "threads": plan.tile.threads, "shared": shared,
        "resident": min(plan.tile.resident, CARDS[card].shared_per_sm // shared),
        "registers": {kernel: int(registers) for kernel, _, registers in found},
        "spilled": {kernel: int(spilled) for kernel, spilled, _ in found},
    }  # fmt: skip


@pytest.mark.parametrize(("name", "card"), COMPILED)
def test_takes_what_the_golden_file_says(name, card):
    want, got = json.loads((GOLDEN / "pullbacks.json").read_text())[f"{name} {card}"], figures(name, card)
    planned = ("tile", "threads", "shared", "resident")
    assert {key: got[key] for key in planned} == {key: want[key] for key in planned}
    assert got["registers"].keys() == want["registers"].keys()
    assert all(taken <= want["registers"][kernel] + REGISTER_SLACK for kernel, taken in got["registers"].items())
    assert got["registers"]["main"] * got["threads"] * got["resident"] <= CARDS[card].registers_per_sm
    assert got["shared"] * got["resident"] <= CARDS[card].shared_per_sm


@pytest.mark.parametrize(("name", "card"), COMPILED)
def test_every_kind_compiles_without_spilling(name, card):
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log(name, card))]
    assert len(spills) >= 3
    assert max(spills) <= SPILL_FREE


def test_every_tile_has_a_case():
    planned = {plan.tile.name for case in CASES.values() if (plan := case.plan(CARDS["sm_90"])) is not None}
    assert planned == {tile.name for tile in cuda_pullback.PULL_TILES}


def test_kernels_are_written_together_or_apart():
    plan = CASES["two_powers_1"].plan(CARDS["sm_90"])
    entry = re.compile(r'extern "C".*?\n}\n', re.DOTALL)
    apart = [emit(plan, [name]) for name in plan.kernels]
    assert [entry.findall(text)[0] for text in apart] == entry.findall(emit(plan))
    assert all(len(entry.findall(text)) == 1 for text in apart)


if __name__ == "__main__":
    table = {f"{name} {card}": figures(name, card) for name, card in COMPILED}
    (GOLDEN / "pullbacks.json").write_text(json.dumps(table, indent=1) + "\n")
