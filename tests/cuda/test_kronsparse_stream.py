"""Kronecker-sparse products of few rows that read the weights where they lie, by every kind of tile."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernmantle.structured.mode_product import cuda, stream_mma_plan, stream_plan
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PATTERNS = (((2, 13, 9, 5), 7), ((1, 30, 21, 17), 18), ((2, 8, 6, 42), 16), ((2, 3, 7, 300), 3), ((1, 40, 33, 1), 200))
OF_TENSOR_CORES = (
    ((1, 50, 90, 37), 70), ((2, 33, 35, 24), 9), ((1, 20, 130, 97), 12), ((3, 64, 48, 16), 130), ((1, 41, 33, 3), 23),
)  # fmt: skip
MOST_KINDS = 8
EDGE = 32  # numbers before and behind a result, which stay as they are


def terms(x, weight, pattern):
    """The product in the type of its operands, for x (N, features)."""
    a, _, c, d = pattern
    return torch.einsum("nikl,ijkl->nijl", x.unflatten(1, (a, c, d)), weight).flatten(1)


def surrounded(rows, features, dtype, last):
    """Memory for a result (1, N, features), and the result within it."""
    memory = torch.full((rows * features + 2 * EDGE,), 7.0, device="cuda", dtype=dtype)
    inner = memory[EDGE:-EDGE]
    return memory, (inner.view(features, rows).mT if last else inner.view(rows, features))[None]


def compare(pattern, rows, dtype, last, along, kinds_of) -> None:
    """Compare the product by every kind of plan, with a bias and an activation, with float64."""
    a, b, c, d = own = pattern if along else (pattern[0], pattern[2], pattern[1], pattern[3])
    torch.manual_seed(0)
    x = torch.randn(a * c * d, rows, device="cuda").to(DTYPES[dtype])
    x = x.mT[None] if last else x.mT.contiguous()[None]
    weight, bias = (torch.randn(size, device="cuda").to(DTYPES[dtype]) for size in (pattern, (1, a * b * d)))
    weight = weight if along else weight.transpose(1, 2)
    exact = functional.gelu(terms(x[0].double(), weight.double(), own) + bias.double())
    size = terms(x[0].double().abs(), weight.double().abs(), own) + bias.double().abs()
    memory, out = surrounded(rows, a * b * d, DTYPES[dtype], last)
    problem = cuda.problem_of(x, weight[None], bias, "gelu", "", out)
    assert problem is not None
    for plan in kinds_of(problem):
        memory.fill_(7.0)
        run = cuda._streamed(plan, problem, 0, (*x.stride(), *out.stride(), *weight[None].stride(), 0))
        assert run is not None
        run(x, weight[None], bias, out, None)
        assert_close(out[0], exact, depth=c, magnitude=size)
        assert bool((memory[:EDGE] == 7).all())
        assert bool((memory[-EDGE:] == 7).all())


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pattern", "rows"), PATTERNS, ids=str)
def test_every_kind_of_tile(pattern, rows, dtype, last, along) -> None:
    def kinds_of(problem):
        found = stream_plan.candidates(problem, along, cuda.limits(0))
        kinds = {(plan.threads, plan.vector, plan.sharing > 1, plan.rows > 8, plan.own > 2): plan for plan in found}
        assert len(kinds) >= 4
        return kinds.values()

    compare(pattern, rows, dtype, last, along, kinds_of)


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("pattern", "rows"), OF_TENSOR_CORES, ids=str)
def test_every_kind_of_tile_of_tensor_cores(pattern, rows, dtype, last, along) -> None:
    def kinds_of(problem):
        found = stream_mma_plan.candidates(problem, along, cuda.limits(0))
        kinds = {(plan.warp_l, plan.full, plan.cluster, plan.warps_j > 1, plan.stages > 2): plan for plan in found}
        return list(kinds.values())[:MOST_KINDS]

    compare(pattern, rows, dtype, last, along, kinds_of)
