"""Kronecker-sparse products by FMA instructions on the GPU, every plan that may be chosen, against float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from kernmantle.structured.mode_product import cuda
from kernmantle.structured.mode_product.fma_plan import candidates
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.testing import assert_close
from kernmantle.torch_ops.cuda import limits

pytestmark = pytest.mark.cuda

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Blocks of few columns or rows; extents beside whole vectors, tiles of l and of columns; batches at their edges.
PATTERNS = (
    (2, 3, 33, 37), (1, 40, 2, 5), (3, 1, 7, 64), (2, 17, 3, 1), (1, 9, 16, 130), (2, 4, 5, 67), (1, 130, 1, 3),
    (1, 2, 70, 24),
)  # fmt: skip
BATCHES = (1, 31, 64, 257)
GUARD = 64


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_plan(pattern, dtype, first) -> None:
    a, b, c, d = pattern
    kind, source = DTYPES[dtype], torch.Generator("cuda").manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source, device="cuda").to(kind)

    for index, batch in enumerate(BATCHES):
        groups, is_transposed = 1 + index % 2, index % 3 == 1
        problem = replace(
            contiguous(pattern, batch, dtype, first), groups=groups, bias=index > 0, activation="relu" * (index == 2)
        )
        x = made(groups, batch, a * c * d) if first else made(groups, a * c * d, batch).mT
        weight = made(groups, a, c, b, d).transpose(2, 3) if is_transposed else made(groups, *pattern)
        bias = made(groups, a * b * d)
        rows = x.double().reshape(groups, batch, a, c, d)
        equation = "gnikl,gijkl->gnijl"
        wanted, terms = (
            torch.einsum(equation, one, other).reshape(groups, batch, -1) + problem.bias * offset[:, None]
            for one, other, offset in (
                (rows, weight.double(), bias.double()), (rows.abs(), weight.double().abs(), bias.double().abs()),
            )
        )  # fmt: skip
        wanted = functional.relu(wanted) if problem.activation else wanted
        for plan in candidates(problem, limits(0)):
            whole = torch.full((wanted.numel() + 2 * GUARD,), torch.nan, device="cuda").to(kind)
            inside = whole[GUARD:-GUARD]
            out = inside.view(wanted.shape) if first else inside.view(groups, a * b * d, batch).mT
            strides = (*x.stride(), *out.stride(), *weight.stride(), a * b * d)
            run = cuda._without_tiles(plan, problem, 0, strides)
            assert run is not None
            run(x, weight, bias, out, None)
            assert_close(out, wanted, depth=c, magnitude=terms)
            assert torch.isnan(whole[:GUARD]).all(), plan
            assert torch.isnan(whole[-GUARD:]).all(), plan


def test_infinities_and_nan_are_of_their_rows_alone() -> None:
    for first, bad in itertools.product((True, False), (torch.inf, torch.nan)):
        pattern = 1, 3, 20, 33
        problem = contiguous(pattern, 40, "f32", first)
        x = torch.randn(40, 20 * 33, device="cuda")
        x[7, 5] = bad
        x, weight = (x[None] if first else x.T.contiguous().T[None]), torch.ones(1, *pattern, device="cuda")
        for plan in candidates(problem, limits(0)):
            out = torch.zeros(1, 40, 3 * 33, device="cuda")
            out = out if first else out.mT.contiguous().mT
            run = cuda._without_tiles(plan, problem, 0, (*x.stride(), *out.stride(), *weight.stride(), 0))
            assert run is not None
            run(x, weight, None, out, None)
            is_bad = ~torch.isfinite(out[0])
            assert is_bad[7].sum() == 3
            assert is_bad.sum() == 3
