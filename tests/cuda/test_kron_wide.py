"""Kronecker passes over a wide factor by wgmma against float64: what is beside it, edges, any arrays."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kron import cuda
from kernmantle.structured.kron.matmul import multiply
from kernmantle.torch_ops.info import RunInfo

from .test_kron import DTYPES, in_float64, norm_error

pytestmark = pytest.mark.cuda
ALLOWED = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}
# Rows of x, and factors, of which an identity is a number.
PRODUCTS = [
    (6001, [(95, 95)]), (700, [(190, 190)]), (3000, [(216, 216)]), (611, [(100, 180)]), (5003, [(70, 33)]),
    (901, [(160, 96)]), (405, [(215, 215), 33]), (407, [(167, 160), 24]), (903, [(213, 213), 2]),
    (205, [(66, 250), 64]), (1001, [(213, 213), (2, 2)]), (901, [(89, 89), (5, 5)]), (333, [(144, 171), (16, 16)]),
    (801, [(7, 7), (73, 73)]), (777, [(4, 4), (56, 51)]), (500, [(12, 12), (13, 17), (11, 11)]),
    (2, [(3, 3), (181, 181)]),
]  # fmt: skip


def only_wide(monkeypatch):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    monkeypatch.setattr(cuda, "KINDS", ("wide",))


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize(("rows", "factors"), PRODUCTS)
def test_one_wide_factor(rows, factors, dtype, monkeypatch):
    """Factors in either order, arrays that begin anywhere and lie apart, and nothing written beside the result."""
    only_wide(monkeypatch)
    torch.manual_seed(rows)
    kind = DTYPES[dtype]
    own = [f if isinstance(f, int) else (torch.randn(f, device="cuda") / math.sqrt(f[0])).to(kind) for f in factors]
    if rows % 2:
        own = [f if isinstance(f, int) else f.mT.contiguous().mT for f in own]
    width, out_width = (math.prod(f if isinstance(f, int) else f[side] for f in factors) for side in (0, 1))
    dense = [torch.eye(f, dtype=kind, device="cuda") if isinstance(f, int) else f for f in own]
    for begin, gap in ((0, 0), (1, 0), (3, 5), (8, 8)):
        x = torch.randn(begin + rows * (width + gap), device="cuda").to(kind)[begin:].view(rows, -1)[:, :width]
        memory = torch.full((begin + rows * (out_width + gap) + 9,), 7.0, dtype=kind, device="cuda")
        out = memory[begin : begin + rows * (out_width + gap)].view(rows, -1)[:, :out_width]
        km.kron_matmul(x, own, out=out)
        assert norm_error(out, in_float64(x, dense)) < ALLOWED[dtype]
        out.fill_(7)
        assert bool((memory == 7).all())


@pytest.mark.parametrize("beside", [1, 9])
def test_positions_keep_their_own_accuracy(beside, monkeypatch):
    """Rows differ by powers of two; what is not finite spoils its own position alone."""
    only_wide(monkeypatch)
    torch.manual_seed(0)
    rows = 3000
    x = torch.randn(rows, 157 * beside, device="cuda")
    x *= torch.exp2(torch.arange(float(rows), device="cuda") * 37 % 101 - 50)[:, None]
    factor = torch.randn(157, 157, device="cuda") / 12
    right = km.kron_matmul(x, [factor, beside])
    exact = (factor.double().mT @ x.double().view(rows, 157, beside)).view(rows, -1)
    errors = (right.double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(errors.max()) < 1e-6
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled.view(rows, 157, beside)[5, 3, -1] = bad
        found = km.kron_matmul(spoiled, [factor, beside]).view(rows, 157, beside)
        assert not torch.isfinite(found[5, :, -1]).any()
        found[5, :, -1] = right.view(rows, 157, beside)[5, :, -1]
        assert torch.equal(found.view(rows, -1), right)


def test_an_odd_wide_factor_takes_such_a_pass():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    torch.manual_seed(0)
    x, info = torch.randn(3000, 21 * 191, device="cuda"), RunInfo()
    factors = [torch.randn(p, p, device="cuda") / math.sqrt(p) for p in (21, 191)]
    found = multiply(x, factors, "right", 1, info=info)
    assert norm_error(found, in_float64(x, factors)) < 1.5e-6
    assert "191x191" in info.route.partition("wide ")[2]
