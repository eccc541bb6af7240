"""The suite of layers: every case has its own name, and each kind is checked against float64."""

from __future__ import annotations

import pytest

from benchmarks import kronsparse, layers, run
from benchmarks.case import Suite
from kernmantle.kronsparse import KSPattern
from tests.unit.test_bench_kronsparse import SETTINGS, STAMP


def test_cases_have_names_of_their_own_and_chains_fit() -> None:
    names = [row.name for row in layers.suite().rows]
    assert len(set(names)) == len(names)
    for name, (first, second) in layers.CHAINS.items():
        one, other = KSPattern(*first), KSPattern(*second)
        assert one.out_features == other.in_features
        if name != layers.VIT:
            columns, rows = (int(word.rstrip(",")) for word in name.split()[0:3:2])
            assert (one.in_features, other.out_features) == (columns, rows)
            assert one.nnz + other.nnz <= 0.12 * rows * columns


@pytest.mark.parametrize("how", ["", "eager"])
@pytest.mark.parametrize("step", [False, True], ids=["forward", "step"])
def test_layers_of_language_models_are_checked(step, how) -> None:
    chain = (4, 8, 8, 1), (1, 8, 8, 4)
    own = kronsparse.layer_case(16, "bf16", step, "cpu", how, chain, "small")
    assert own.name.startswith("small ")
    row = run.measure(own, Suite("layers", "cpu", ()), STAMP, SETTINGS)
    assert row["status"] == "ok"
    assert row["results"]["dense"]["status"] == "ok"
