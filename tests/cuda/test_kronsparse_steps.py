"""Kronecker-sparse chains whose neighbours are joined, on the GPU against float64."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.kronsparse import butterfly, dft
from kernmantle.structured.kronsparse import chain_execute
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = (torch.float32, torch.bfloat16)


def exact(x, weights, bias=None):
    """Rows times the chain, and the size of the terms, in float64."""
    found = []
    for own in (lambda value: value, torch.abs):
        value = own(x.double())
        for weight in weights:
            a, _, c, d = weight.shape
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), own(weight.double())).flatten(1)
        found.append(value if bias is None else value + own(bias.double()))
    return found


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_of_a_butterfly_run_as_fewer(dtype, batch_last) -> None:
    torch.manual_seed(0)
    levels = butterfly(1024)
    layer = km.KSLinear(1024, 1024, levels, batch_last=batch_last, device="cuda", dtype=dtype)
    layer.requires_grad_(False)
    packed = layer.pack()
    for batch in (5, 4096):
        x = torch.randn((1024, batch) if batch_last else (batch, 1024), device="cuda").to(dtype)
        steps, _ = chain_execute.plan((x.T if batch_last else x)[None], list(layer.weights), "auto", True)
        assert len(steps) <= 4
        wanted, terms = exact(x.T if batch_last else x, layer.weights, layer.bias)
        found = packed(x)
        assert_close(found.T if batch_last else found, wanted, dtype=dtype, depth=64, magnitude=terms)


def test_a_transform_in_one_layer() -> None:
    chain = dft(256, device="cuda")
    layer = km.KSLinear(256, 512, chain.patterns, False, chain.weights).requires_grad_(False).pack()
    x = torch.randn(300, 256, device="cuda")
    wanted = torch.fft.fft(x.double())
    found = layer(x[:, chain.permutation]).double()
    assert float((torch.complex(*found.chunk(2, -1)) - wanted).norm() / wanted.norm()) < 2e-6
