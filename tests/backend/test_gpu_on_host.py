"""Host code of GPU plans, whose kernels are interpreted: random products with gradients, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernmantle.structured.kronsparse import chain_training

from ..gpu_on_host import gpu_on_host
from ..random_structured import check, generate

CHUNKS, STRUCTURES = 20, 10
Call = tuple[int, bool, bool]
"""A variant, whether a graph is captured, and whether arrays are odd, see ``check``."""
PLAIN, OTHER, CAPTURED, ODD = (0, False, False), (4, False, False), (0, True, False), (0, False, True)
# What a call binds, later ones of its kind take; those of vectors find it by a guard in the third one.
CALLS = (PLAIN, PLAIN, PLAIN, CAPTURED, OTHER), (PLAIN, ODD, ODD, CAPTURED, OTHER)
MOST_DENSE = 1 << 18  # numbers of a matrix, which torch makes one by one


def checked(structure: int, *calls: Call) -> None:
    """Check calls one after the other."""
    with gpu_on_host() as host:
        for variant, host.captured, odd in calls:
            try:
                check(structure, variant, "cpu", odd)
            except Exception as error:
                raise AssertionError(f"{generate(structure, variant).name}: {error} {host.error}") from error


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_products_and_gradients(chunk: int) -> None:
    for structure in range(STRUCTURES * chunk, STRUCTURES * (chunk + 1)):
        checked(structure, *CALLS[structure % 2])


@pytest.mark.parametrize("kind", ["blocks", "factors", "matrix"])
def test_every_kind_of_step(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Which kind is taken is a matter of seconds: products as small as these are one launch a factor."""
    taken = 0

    def kind_for(*described: Any, **how: Any) -> str:
        nonlocal taken
        patterns, batch, dtype, last, options, device, *_ = described
        if not chain_training._has_kernels(batch, dtype, options, device):
            return "factors"
        sides = [math.prod(patterns[end]) // patterns[end][axis] for end, axis in ((0, 1), (-1, 2))]
        found = chain_training.expected(patterns, batch, dtype, last, device)
        if kind not in found or (kind == "matrix" and math.prod(sides) > MOST_DENSE):
            return "grouped"
        taken += 1
        return kind

    monkeypatch.setattr(chain_training, "kind_for", kind_for)
    for structure in range(0, CHUNKS * STRUCTURES, 3):
        if generate(structure, 0).name.startswith("sparse"):
            checked(structure, *CALLS[structure % 2])
    assert taken
