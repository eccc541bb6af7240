"""The suite of layers: every case has its own name, and each kind is checked against float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import blocks, kronsparse, layers
from benchmarks.case import Suite
from kernmantle.kron import kron_linear
from kernmantle.kronsparse import KSLinear, KSPattern

from ..measured import measured, statuses

SUITE = Suite("layers", "cpu", ())


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
    row = measured(own, SUITE)
    assert row["status"] == "ok"
    assert row["results"]["dense"]["status"] == "ok"


def test_a_step_with_a_bias_has_its_gradient() -> None:
    chain, name = ((4, 8, 8, 1), (1, 8, 8, 4)), "small"
    own = kronsparse.layer_case(16, "f32", True, "cpu", "", chain, name, True)
    assert own.name == "small training step 16 f32 with a bias"
    row = measured(own, SUITE)
    assert row["status"] == row["results"]["dense"]["status"] == "ok"
    given = {name: torch.randn(*shape) for name, shape in (("w0", chain[0]), ("w1", chain[1]))}
    for make in (kronsparse._dense_layer, kronsparse._sparse_layer):
        assert [name for name, _ in make(given, True).named_parameters() if name == "bias"] == ["bias"]
        assert make(given).bias is None


@pytest.mark.parametrize("how", ["", "eager"])
@pytest.mark.parametrize("dtype", layers.TYPES)
def test_kronecker_layers_are_checked(dtype, how, monkeypatch) -> None:
    own = layers.kron_case("12 to 30", ((5, 3), (6, 4)), 16, dtype, how, "cpu")
    assert statuses(own, SUITE) == {"kernmantle": "ok", "dense": "ok"}
    monkeypatch.setattr(layers, "kron_linear", lambda x, w1, w2: kron_linear(x, w1, w2, 1.1))
    assert statuses(own, SUITE)["kernmantle"] == "wrong"


def test_kronecker_layers_have_the_features_of_their_names() -> None:
    for name, ((a, b), (c, d)) in layers.KRON.items():
        assert name == f"{b * d} to {a * c}"


SMALL = blocks.Shape(3, 5, 128, 2, True)


@pytest.mark.parametrize("form", blocks.FORMS)
@pytest.mark.parametrize("dtype", layers.TYPES)
def test_blocks_are_checked(dtype, form) -> None:
    row = measured(blocks.block_case("small", SMALL, dtype, "eager", "cpu", form), SUITE)
    assert row["status"] == "ok", row["results"]
    assert row["results"]["dense"]["status"] == "ok"
    made = blocks._blocks(SMALL, dtype, "cpu")
    assert sum(isinstance(module, KSLinear) for module in made[form].modules()) == 4
    assert not any(isinstance(module, KSLinear) for module in made["dense"].modules())


def test_stacks_of_blocks_are_checked() -> None:
    own = blocks.block_case("2 small blocks", SMALL._replace(blocks=2), "f32", "eager", "cpu", "group")
    assert measured(own, SUITE)["status"] == "ok"
    made = blocks._blocks(SMALL._replace(blocks=2), "f32", "cpu")
    assert [
        len([each for each in made[form].modules() if isinstance(each, KSLinear)]) for form in ("group", "dense")
    ] == [8, 0]


def test_a_block_of_other_weights_is_found(monkeypatch) -> None:
    blocks._blocks.cache_clear()
    monkeypatch.setattr(blocks, "filled", lambda layer: nn.Linear(layer.in_features, layer.out_features))
    row = measured(blocks.block_case("small", SMALL, "f32", "", "cpu"), SUITE)
    assert row["status"] == "wrong"
    blocks._blocks.cache_clear()
