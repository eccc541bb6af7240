"""Products of halves whose batch is last and begins between words, over a copy of x in whole vectors."""

from __future__ import annotations

import math

import pytest
import torch

from kernmantle.kronsparse import KSLinear, kron_sparse_matmul
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

COPIED = "x copied to whole vectors"
CASES = (((9, 700, 150, 1), 999), ((20, 587, 113, 1), 615), ((12, 500, 150, 2), 999))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("pattern", "batch"), CASES, ids=str)
def test_products_over_a_copy(pattern, batch, dtype) -> None:
    a, b, c, d = pattern
    torch.manual_seed(0)

    def product(x, weight, bias):
        return torch.einsum("iklf,ijkl->ijlf", x.view(a, c, d, batch), weight).reshape(-1, batch) + bias[:, None]

    for before in (0, 1):
        memory = torch.full((a * c * d * batch + 2,), math.nan, device="cuda", dtype=dtype)
        x = memory[before : before + a * c * d * batch].view(a * c * d, batch)
        x.normal_()
        kind = {"batch_last": True, "algorithm": "kernel"}
        layer = KSLinear(a * c * d, a * b * d, [pattern], **kind, device="cuda", dtype=dtype)
        weight, bias = layer.weights[0].detach(), layer.bias.detach()
        wide = [own.double() for own in (x, weight, bias)]
        wanted, terms = product(*wide), product(*[own.abs() for own in wide])
        packed = layer.pack()
        for _ in range(2):
            assert_close(packed(x), wanted, depth=c, magnitude=terms)
        assert packed.info.endswith(COPIED)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = packed(x)
        x.mul_(-1)
        graph.replay()
        torch.testing.assert_close(found, packed(x), rtol=0, atol=0)
        x.mul_(-1)
        out = torch.empty_like(found)
        kron_sparse_matmul(x, weight, out=out, **kind)
        assert_close(out + bias[:, None], wanted, depth=c, magnitude=2 * terms)
