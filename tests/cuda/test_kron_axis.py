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
    (600, 17, 100, 302), (9000, 57, 57, 9), (9001, 64, 64, 10), (600, 193, 216, 66), (4601, 243, 68, 10),
    (600, 256, 256, 65),
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
    for begin, gap in ((0, 0), (1, 0), (3, 5), (8, 8)):
        x = torch.randn(begin + rows * (width + gap), device="cuda").to(kind)[begin:].view(rows, -1)[:, :width]
        memory = torch.full((begin + rows * (wide + gap) + 9,), 7.0, dtype=kind, device="cuda")
        out = memory[begin : begin + rows * (wide + gap)].view(rows, -1)[:, :wide]
        km.kron_matmul(x, [*factors, right], out=out)
        wanted = (factors[0].double().mT @ x.double().view(rows, columns, right)).view(rows, -1)
        assert norm_error(out, wanted) < ALLOWED[dtype]
        out.fill_(7)
        assert bool((memory == 7).all())


def test_rows_of_an_axis_keep_their_own_accuracy(monkeypatch):
    """Entries of the batch that share tiles differ by powers of two; what is not finite spoils its own column alone."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    only_axes(monkeypatch)
    torch.manual_seed(0)
    rows, beside = 9000, 9
    x = torch.randn(rows, 57 * beside, device="cuda")
    x *= torch.exp2(torch.arange(float(rows), device="cuda") * 37 % 101 - 50)[:, None]
    factor = torch.randn(57, 57, device="cuda") / 8
    right = km.kron_matmul(x, [factor, beside])
    exact = factor.double().mT @ x.double().view(rows, 57, beside)
    assert norm_error(right, exact.view(rows, -1)) < 1e-6
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled[5, 7] = bad
        found = km.kron_matmul(spoiled, [factor, beside]).view(rows, 57, beside)
        assert not torch.isfinite(found[5, :, 7]).any()
        found[5, :, 7] = right.view(rows, 57, beside)[5, :, 7]
        assert torch.equal(found.view(rows, -1), right)


def test_products_of_small_factors_take_one_axis():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    torch.manual_seed(0)
    x, info = torch.randn(8000, 4 * 25 * 80, device="cuda"), RunInfo()  # with fewer columns it is a wide pass
    factors = [torch.randn(p, p, device="cuda") / math.sqrt(p) for p in (4, 25)]
    found = multiply(x, [*factors, 80], "right", 1, info=info)
    assert norm_error(found, in_float64(x, [*factors, torch.eye(80, device="cuda")])) < 1.5e-6
    assert "axis 100x100" in info.route
