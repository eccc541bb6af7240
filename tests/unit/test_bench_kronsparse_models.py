"""The suite of whole models with Kronecker-sparse layers, on models that are small."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import kronsparse_models as models
from benchmarks.case import Suite
from kernmantle.kronsparse import KSLinear, PackedKSLinear

from ..measured import measured

SUITE = Suite("kronsparse-models", "cpu", ())


class Small(nn.Module):
    """Two layers of the parts of a model, what they give normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(128, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc2(torch.relu(self.fc1(x))))


def _inputs(device: str) -> torch.Tensor:
    return torch.randn(5, 3, 128, generator=torch.Generator(device).manual_seed(0), device=device)


@pytest.fixture
def small(monkeypatch) -> None:
    kind = models.Kind("small", Small, _inputs, (15, 64), 1, False)
    monkeypatch.setitem(models.KINDS, "small", kind)
    models._models.cache_clear()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", models.TYPES)
@pytest.mark.parametrize("part", ["model", "ffn", "up"])
def test_models_are_checked_against_their_matrices(part, dtype) -> None:
    row = measured(models.case("small", part, dtype, False, "cpu"), SUITE)
    assert row["status"] == "ok", row["results"]
    assert row["results"]["dense"]["status"] == "ok"
    made = models._models("small", part, dtype, "cpu")
    count = sum(isinstance(module, PackedKSLinear) for module in made["sparse"].modules())
    assert count == {"model": 2, "ffn": 2, "up": 1}[part]
    assert not any(isinstance(module, KSLinear | PackedKSLinear) for module in made["dense"].modules())


@pytest.mark.usefixtures("small")
def test_a_model_of_other_weights_is_found_though_its_results_are_normalised(monkeypatch) -> None:
    def other(layer: KSLinear) -> nn.Linear:
        return nn.Linear(layer.in_features, layer.out_features)

    monkeypatch.setattr(models, "filled", other)
    assert measured(models.case("small", "model", "f32", False, "cpu"), SUITE)["status"] == "wrong"


def test_every_part_of_both_models_has_its_rows() -> None:
    names = [case.name for case in models.suite().rows]
    assert len(set(names)) == len(names) == 2 * 8 * 2 * 2
    assert {"ViT-S/16 block bf16 in a graph", "GPT-2-medium qkv f32 eager"} <= set(names)
