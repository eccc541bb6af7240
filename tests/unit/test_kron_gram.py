"""The gradient of a Kronecker factor by a kernel: what is handed to it, and what is made of the blocks' shares."""

import ctypes

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import gradient_cuda
from kernmantle.testing import assert_close

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)


def _array(address, shape):
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)


@pytest.fixture
def started(monkeypatch):
    """A kernel by numpy; what it was started with."""
    starts = []

    def start(kernel, index, blocks, arguments):
        rows, columns, tiles = kernel
        if len(arguments) == 4:
            parts, out, shares, size = arguments
            _array(out, (size,))[:] = _array(parts, (shares, size)).sum(0)
            return
        v, u, parts, count, right = arguments
        shares = blocks // tiles
        product = np.einsum("lqr,lpr->lqp", _array(v, (count, rows, right)), _array(u, (count, columns, right)))
        out = _array(parts, (shares, rows, columns))
        for share in range(shares):
            out[share] = product[share::shares].sum(0)
        starts.append((blocks, count, right))

    monkeypatch.setattr(gradient_cuda, "index_of", lambda device: 0)
    monkeypatch.setattr(gradient_cuda, "limits", lambda index: HOPPER)
    monkeypatch.setattr(gradient_cuda, "resident", lambda kernel, index: 1)
    monkeypatch.setattr(gradient_cuda, "start", start)
    return starts


@pytest.mark.parametrize(
    ("rows", "columns", "tiles"),
    [(64, 64, 1), (3, 5, 1), (31, 7, 1), (100, 128, 1), (130, 180, 2), (200, 230, 4)],
)
@pytest.mark.parametrize(("count", "right"), [(1, 1), (500, 1), (40, 12)])
def test_shares_are_added_up(started, monkeypatch, rows, columns, tiles, count, right):
    monkeypatch.setattr(gradient_cuda, "load_kernels", lambda *_, **__: [(rows, columns, tiles)])
    u, v = torch.randn(count, columns, right), torch.randn(count, rows, right)
    found = gradient_cuda.bind_sum(u, v)(u, v)
    assert_close(found, torch.einsum("lqr,lpr->qp", v.double(), u.double()), depth=count * right)
    ((blocks, *sizes),) = started
    assert sizes == [count, right]
    assert blocks % tiles == 0
    assert blocks <= 132


def test_what_has_no_kernel_is_left_to_products(started):
    whole = torch.randn(3, 8, 4)
    assert gradient_cuda.bind_sum(whole.double(), whole.double()) is None
    assert gradient_cuda.bind_sum(whole.mT, whole.mT) is None
    assert gradient_cuda.bind_sum(torch.randn(3, 300, 1), torch.randn(3, 300, 1)) is None
    assert not started
