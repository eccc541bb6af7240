"""Kronecker passes over two axes against float64: any extents, edges, arrays that begin anywhere."""

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
ALLOWED = {"f32": 1.5e-6, "f16": 1.5e-3, "bf16": 1.2e-2}
# Rows, and factors (columns, rows).
PRODUCTS = [
    (300, [(34, 34), (21, 21)]), (77, [(55, 40), (29, 31)]), (5000, [(3, 5), (9, 7)]), (40, [(109, 109), (63, 63)]),
    (300, [(17, 17), (64, 64)]), (1, [(12, 40), (40, 12)]), (33, [(8, 8), (120, 120)]), (41, [(45, 45), (27, 26)]),
    (200, [(10, 10), (11, 11), (9, 9)]),
]  # fmt: skip


def only_two_axes(monkeypatch):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("measured on Hopper alone")
    monkeypatch.setattr(cuda, "KINDS", ("two_axis",))


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize(("rows", "sizes"), PRODUCTS)
def test_two_axes_of_any_size(rows, sizes, dtype, monkeypatch):
    """Factors in either order, arrays that begin anywhere and lie apart, and nothing written beside the result."""
    only_two_axes(monkeypatch)
    torch.manual_seed(rows)
    kind = DTYPES[dtype]
    wide, high = (math.prod(size[side] for size in sizes) for side in (0, 1))
    factors = [(torch.randn(p, q, device="cuda") / math.sqrt(p)).to(kind) for p, q in sizes]
    if rows % 2:
        factors = [factor.mT.contiguous().mT for factor in factors]
    for begin, gap in ((0, 0), (1, 0), (2, 0), (3, 5), (8, 8)):
        x = torch.randn(begin + rows * (wide + gap), device="cuda").to(kind)[begin:].view(rows, -1)[:, :wide]
        memory = torch.full((begin + rows * (high + gap) + 9,), 7.0, dtype=kind, device="cuda")
        out = memory[begin : begin + rows * (high + gap)].view(rows, -1)[:, :high]
        km.kron_matmul(x, factors, out=out)
        assert norm_error(out, in_float64(x, factors)) < ALLOWED[dtype]
        out.fill_(7)
        assert bool((memory == 7).all())


def test_rows_keep_their_own_accuracy(monkeypatch):
    """Rows of memory differ by powers of two; entries that are not finite spoil their own row alone."""
    only_two_axes(monkeypatch)
    torch.manual_seed(0)
    sizes = torch.exp2(torch.arange(600.0, device="cuda") * 37 % 101 - 50)
    x = torch.randn(600, 12 * 13, device="cuda") * sizes[:, None]
    factors = [torch.randn(p, p, device="cuda") / 4 for p in (12, 13)]
    found = km.kron_matmul(x, factors)
    assert norm_error(found, in_float64(x, factors)) < 1e-6
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled[5, 7] = bad
        own = km.kron_matmul(spoiled, factors)
        assert not torch.isfinite(own[5]).any()
        rest = torch.arange(600, device="cuda") != 5
        assert torch.equal(own[rest], found[rest])


@pytest.mark.parametrize(("kind", "rows"), [("two_axis", 70), ("mma", 71)])
@pytest.mark.parametrize(("power", "size"), [(-8, 1024), (9, 1 / 256)])
def test_factors_that_are_one_are_scaled_by_their_largest_entries(power, size, kind, rows, monkeypatch):
    """float16 does not hold the entries of these products."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("measured on Hopper alone")
    monkeypatch.setattr(cuda, "KINDS", (kind,))
    torch.manual_seed(0)
    scales = (2.0**power, 2.0**power, 1.0, 1.0)
    drawn = [scale * torch.randn(p, p, device="cuda") for scale, p in zip(scales, (3, 11, 4, 7), strict=True)]
    x, info = (size * torch.randn(rows, 924, device="cuda")).half(), RunInfo()
    factors = [(factor / math.sqrt(len(factor))).half() for factor in drawn]
    found = multiply(x, factors, "right", 1, info=info)
    assert f"{kind} 33x33*28x28" in info.route
    assert norm_error(found, in_float64(x, factors)) < ALLOWED["f16"]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_of_halves_take_two_axes(dtype):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("measured on Hopper alone")
    torch.manual_seed(0)
    x, info = torch.randn(20000, 34 * 21, device="cuda").to(DTYPES[dtype]), RunInfo()
    factors = [(torch.randn(p, p, device="cuda") / math.sqrt(p)).to(DTYPES[dtype]) for p in (34, 21)]
    found = multiply(x, factors, "right", 1, info=info)
    assert norm_error(found, in_float64(x, factors)) < ALLOWED[dtype]
    assert "two_axis 34x34*21x21" in info.route
