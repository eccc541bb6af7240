"""Kronecker passes over one factor by wgmma against float64: any extents, edges, arrays that begin anywhere."""

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
# Rows, columns and rows of the factor, columns to its right.
AXES = [
    (600, 57, 57, 300), (600, 57, 57, 301), (300, 64, 64, 257), (700, 128, 128, 64), (600, 115, 30, 130),
    (600, 17, 100, 302), (70000, 57, 57, 1), (70001, 64, 64, 1), (70000, 62, 41, 1), (70000, 127, 128, 1),
    (70003, 9, 120, 1), (600, 193, 216, 66), (36000, 190, 190, 1), (36001, 243, 68, 1), (600, 256, 256, 65),
]  # fmt: skip


def only_axes(monkeypatch):
    monkeypatch.setattr(cuda, "KINDS", ("axis",))


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize(("rows", "columns", "out_columns", "right"), AXES)
def test_one_axis_of_any_size(rows, columns, out_columns, right, dtype, monkeypatch):
    """Factors in either order, arrays that begin anywhere and lie apart, and nothing written beside the result."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    only_axes(monkeypatch)
    torch.manual_seed(rows)
    kind, width, wide = DTYPES[dtype], columns * right, out_columns * right
    factors = [(torch.randn(columns, out_columns, device="cuda") / math.sqrt(columns)).to(kind)]
    if rows % 2:
        factors = [factors[0].mT.contiguous().mT]
    identity = [right] if right > 1 else []
    for begin, gap in ((0, 0), (1, 0), (3, 5), (8, 8)):
        x = torch.randn(begin + rows * (width + gap), device="cuda").to(kind)[begin:].view(rows, -1)[:, :width]
        memory = torch.full((begin + rows * (wide + gap) + 9,), 7.0, dtype=kind, device="cuda")
        out = memory[begin : begin + rows * (wide + gap)].view(rows, -1)[:, :wide]
        km.kron_matmul(x, [*factors, *identity], out=out)
        exact = factors[0].double().mT @ x.double().view(rows, columns, right) if right > 1 else None
        wanted = in_float64(x, factors) if exact is None else exact.view(rows, -1)
        assert norm_error(out, wanted) < ALLOWED[dtype]
        out.fill_(7)
        assert bool((memory == 7).all())


def test_rows_of_an_axis_keep_their_own_accuracy(monkeypatch):
    """Rows of memory differ by powers of two; entries that are not finite spoil their own row alone."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    only_axes(monkeypatch)
    torch.manual_seed(0)
    x = (
        torch.randn(70000, 57, device="cuda")
        * torch.exp2(torch.arange(70000.0, device="cuda") * 37 % 101 - 50)[:, None]
    )
    factors = [torch.randn(57, 57, device="cuda") / 8]
    right = km.kron_matmul(x, factors)
    assert norm_error(right, in_float64(x, factors)) < 1e-6
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled[5, 7] = bad
        found = km.kron_matmul(spoiled, factors)
        assert not torch.isfinite(found[5]).any()
        rest = torch.arange(70000, device="cuda") != 5
        assert torch.equal(found[rest], right[rest])


def test_products_of_small_factors_take_one_axis():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    torch.manual_seed(0)
    x, info = torch.randn(40000, 4 * 25, device="cuda"), RunInfo()
    factors = [torch.randn(p, p, device="cuda") / math.sqrt(p) for p in (4, 25)]
    found = multiply(x, factors, "right", 1, info=info)
    assert norm_error(found, in_float64(x, factors)) < 1.5e-6
