"""Products of matrices as the vendor's library has them, column-major, computed here from what it is told."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

from kernmantle.torch_ops import cuda_matmul
from kernmantle.torch_ops.blas_handles import BlasHandles
from kernmantle.torch_ops.cuda_matmul import BoundMatmul, form_of


def matrix(shape, is_columns_first, batch):
    rows, columns = shape
    if is_columns_first:
        return torch.randn(*batch, columns, rows + 8).bfloat16()[..., :rows].mT
    return torch.randn(*batch, rows, columns + 8).bfloat16()[..., :columns]


def taken(memory, side, batch):
    """Return op(matrix) as the library reads it: columns lie ``step`` apart, their entries together."""
    seen = memory.as_strided((batch, side.rows, side.columns), (side.apart, 1, side.step), memory.storage_offset())
    return seen.mT if side.transposed else seen


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("orders", list(itertools.product((False, True), repeat=3)), ids=str)
def test_column_major_products(orders, batch):
    torch.manual_seed(0)
    rows, inner, columns = 16, 24, 32
    shapes = (rows, inner), (inner, columns), (rows, columns)
    left, right, out = (matrix(shape, order, batch) for shape, order in zip(shapes, orders, strict=True))
    form, straight = form_of(left, right, out)
    assert form.dtype == "bf16"
    a, b = (left, right) if straight else (right, left)
    assert not form.d.transposed
    target = taken(out, form.d, form.batch)
    target.copy_(taken(a, form.a, form.batch).float() @ taken(b, form.b, form.batch).float())
    torch.testing.assert_close(out.float(), (left.float() @ right.float()).bfloat16().float())


def test_blocks_that_interleave():
    blocks, rows = 8, 24
    between = torch.randn(40, rows * blocks).bfloat16().view(40, blocks, rows).permute(1, 2, 0)  # (blocks, rows, 40)
    right, out = torch.randn(blocks, 40, 16).bfloat16(), torch.empty(rows, blocks, 16).bfloat16().transpose(0, 1)
    form, straight = form_of(between, right, out)
    a, b = (between, right) if straight else (right, between)
    target = taken(out, form.d, blocks)
    target.copy_(taken(a, form.a, blocks).float() @ taken(b, form.b, blocks).float())
    torch.testing.assert_close(out.float(), (between.float() @ right.float()).bfloat16().float())


def test_vectors_belong_to_features():
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((16, 24), (32, 24), (32,)))
    out = torch.empty(16, 32).bfloat16()
    form, straight = form_of(x, weight.mT, out, bias)
    assert (form.biased, form.summed, straight) == (True, False, False)
    assert form.d.rows == len(bias)  # the library adds a bias along the rows of D
    form, straight = form_of(out.mT, x, weight, sums=bias)
    assert (form.biased, form.summed, straight) == (False, True, False)
    assert form.d.columns == len(bias)  # and sums B over what is contracted, for each column of D
    read = taken(out, form.b, 1)[0]
    torch.testing.assert_close(read.float().sum(0), out.float().sum(0))


def test_what_is_not_taken():
    x, weight, out = (torch.randn(*shape).bfloat16() for shape in ((16, 24), (24, 32), (16, 32)))
    assert form_of(x, weight, out) is not None
    assert form_of(x.float(), weight.float(), out.float()) is None
    assert form_of(torch.randn(16, 25).bfloat16()[:, 1:], weight, out) is None
    assert form_of(x, torch.randn(24, 64).bfloat16()[:, ::2], out) is None
    assert form_of(x[:0], weight, out[:0]) is None
    assert form_of(x, weight, torch.empty(32, 16).bfloat16().mT, torch.randn(32).bfloat16()) is None


def test_every_thread_has_a_handle_of_cublas_before_a_graph_is_captured(monkeypatch):
    """Torch would make it with the first product of the thread, which a stream that is captured does not allow."""
    made, launched = [], []
    for name, found in {"_cuda_getDevice": lambda: 1, "_cuda_getCurrentRawStream": lambda index: 7}.items():
        monkeypatch.setattr(torch._C, name, found, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: made.append(len(launched)))
    monkeypatch.setattr(cuda_matmul, "enter_thread", lambda: None)
    monkeypatch.setattr(cuda_matmul, "HANDLES", BlasHandles())

    class Product:
        workspace = 0

        def __call__(self, *given):
            launched.append(given)

    call = BoundMatmul(Product(), True, 1)
    call((1, 2, 3, 0))
    call((1, 2, 3, 0))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call, (1, 2, 3, 0)).result()
    assert made == [0, 2]
    assert launched == [(1, 2, 3, 0, 0, 7)] * 3
