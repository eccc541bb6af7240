"""Host code of GPU plans, whose kernels are interpreted: random products with gradients, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import execute, transpose
from kernmantle.structured.mode_product.cost import TRANSPOSED
from kernmantle.structured.mode_product.operands import Operands

from ..gpu_on_host import gpu_on_host
from ..random_structured import check, generate

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU that is here would be taken for this one")
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("pattern", [(2, 5, 7, 3), (1, 8, 16, 4), (3, 16, 5, 2), (1, 9, 4, 5), (2, 3, 8, 6)], ids=str)
def test_blocks_of_many_weights_over_transposed_rows(monkeypatch: pytest.MonkeyPatch, pattern: Any, dtype: Any) -> None:
    monkeypatch.setattr(transpose, "arranges", lambda *_: True)
    (a, b, c, d), near = pattern, {"rtol": 1e-2, "atol": 2e-2 if dtype == torch.float16 else 1e-4}
    torch.manual_seed(0)
    weight, x, grad = (torch.randn(1, *size).to(dtype) for size in (pattern, (11, a * c * d), (11, a * b * d)))
    with gpu_on_host() as host:
        for own, rows, columns in ((weight, x, b), (weight.transpose(2, 3), grad, c)):
            out = torch.empty(1, 11, a * columns * d, dtype=dtype)
            execute.product_by(TRANSPOSED, Operands(rows, own), out)
            exact = torch.einsum("nikl,ijkl->nijl", rows[0].double().view(11, a, -1, d), own[0].double())
            torch.testing.assert_close(out[0].double(), exact.flatten(1), **near)
        found = execute.gradient(x, grad, pattern, TRANSPOSED, "")
        assert not host.error, host.error
    sides = x[0].double().view(11, a, c, d), grad[0].double().view(11, a, b, d)
    torch.testing.assert_close(found[0].double(), torch.einsum("nikl,nijl->ijkl", *sides), **near)
    assert found.is_contiguous()
