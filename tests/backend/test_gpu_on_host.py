"""Host code of GPU plans, whose kernels are interpreted: random products with gradients, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from kernmantle.structured.kronsparse import chain_training

from ..gpu_on_host import gpu_on_host
from ..random_structured import check, generate

CHUNKS, STRUCTURES = 20, 10


def checked(structure: int, *variants: int, captured: bool = False) -> None:
    """Check variants one after the other, of which later ones may take what earlier ones bound."""
    with gpu_on_host(captured) as host:
        for variant in variants:
            try:
                check(structure, variant, "cpu")
            except Exception as error:
                raise AssertionError(f"{generate(structure, variant).name}: {error} {host.error}") from error


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_products_and_gradients(chunk: int) -> None:
    for structure in range(STRUCTURES * chunk, STRUCTURES * (chunk + 1)):
        checked(structure, 0, 4, 0)
        checked(structure, 1, captured=True)


@pytest.mark.parametrize("kind", ["blocks", "factors", "matrix"])
def test_every_kind_of_step(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Which kind is taken is a matter of seconds: products as small as these are one launch a factor."""
    taken = 0

    def kind_for(*described: Any, **how: Any) -> str:
        nonlocal taken
        patterns, batch, dtype, last, options, device, *_ = described
        if not chain_training._has_kernels(batch, dtype, options, device):
            return "factors"
        if kind not in chain_training.expected(patterns, batch, dtype, last, device):
            return "grouped"
        taken += 1
        return kind

    monkeypatch.setattr(chain_training, "kind_for", kind_for)
    for structure in range(0, CHUNKS * STRUCTURES, 4):
        if generate(structure, 0).name.startswith("sparse"):
            checked(structure, 2, 2)
    assert taken
