"""What is launched for a row nest on the GPU, with a GPU that only writes down what it is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernmantle.compiler.nest import SIZES, size_slot
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.torch_ops import cuda_row_reduce

from ..cuda.row_nests import LAPLACE, RowCase
from .row_launches import launched
from .test_cuda_compile import CARDS

MAIN, JOIN = object(), object()
X, Y, V, OUT = 1 << 40, 2 << 40, 3 << 40, 4 << 40
M, N, K, C = 20000, 30000, 1024, 3


@pytest.fixture
def launches(monkeypatch):
    """Kernel, blocks and arguments of every launch."""
    made = launched(monkeypatch)
    monkeypatch.setattr(cuda_row_reduce, "index_of", lambda device: 0)
    monkeypatch.setattr(cuda_row_reduce, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda_row_reduce, "_load", lambda chosen: (MAIN, JOIN))
    monkeypatch.setattr(cuda_row_reduce, "allocate", lambda shape, dtype, device: torch.empty(shape, dtype=dtype))
    return made


def prepared(k):
    """Plan and launcher of a product of M x N, rows of x and y of k numbers."""
    case = RowCase("launches", LAPLACE, PRODUCT, M, N, k, C)
    steps = [(0, 0, 0, k, 0, 1, 0), (0, 0, 0, 0, k, 1, 0), (0,) * 7, (0, 0, 0, 0, C, 0, 1), (0, 0, 0, C, 0, 0, 1)]
    integers = np.array([*(case.sizes()[role] for role in SIZES), *sum(steps, ())], np.int64)
    buffers = case.rows.buffers
    launcher = cuda_row_reduce.TARGET().prepare(case.rows, integers, [16] * len(buffers), torch.device("cuda"))
    return cuda_row_reduce.plan_rows(
        case.rows, case.sizes(), CARDS["sm_90"], cuda_row_reduce.Layout(tuple(steps), (16,) * 5)
    ), launcher


def test_bands_cover_all_rows_once(launches):
    chosen, launcher = prepared(K)
    launcher.run([X, Y, 0, V, OUT], (7.0, -0.2))
    place = 5 + chosen.integers.index(size_slot("m"))
    mains = [(blocks, given) for kernel, blocks, given in launches if kernel is MAIN]
    first = 0
    for _, given in mains:
        assert given[:4] == (X + 4 * K * first, Y, V, OUT + 4 * C * first)
        first += given[place]
    assert first == M
    assert len(mains) > 1
    assert max(given[place] for _, given in mains) * K * 4 <= 36 << 20
    assert all(given[-2:] == (7.0, -0.2) for _, given in mains)


def test_each_band_is_joined_before_the_next(launches):
    _, launcher = prepared(K)
    launcher.run([X, Y, 0, V, OUT], (7.0, -0.2))
    assert [kernel for kernel, _, _ in launches] == [MAIN, JOIN] * (len(launches) // 2)
    for (_, blocks, main), (_, joins, join) in zip(launches[::2], launches[1::2], strict=True):
        assert joins == blocks - 1
        assert join[: len(main)] == main
        assert join[len(main)] == blocks


def test_few_numbers_pass_in_one_launch(launches):
    _, launcher = prepared(64)
    launcher.run([X, Y, 0, V, OUT], (7.0, -0.2))
    assert [kernel for kernel, _, _ in launches] == [MAIN, JOIN]
    assert launches[0][2][:4] == (X, Y, V, OUT)


@pytest.mark.parametrize("k", [64, K])
def test_further_launches_differ_in_addresses_alone(launches, k):
    """They are bound to the numbers of the first one; others are not."""
    _, launcher = prepared(k)
    launcher.run([X, Y, 0, V, OUT], (7.0, -0.2))
    first = [given for *_, given in launches]
    moved = 1 << 44
    for numbers in ((7.0, -0.2), (8.0, -0.2), (7.0, -0.2)):
        launches.clear()
        launcher.run([X + moved, Y + moved, 0, V + moved, OUT + moved], numbers)
        at = len(first[0]) - 2
        for (_, _, given), before in zip(launches, first, strict=True):
            assert [own - other for own, other in zip(given[:4], before[:4], strict=True)] == [moved] * 4
            assert given[5:at] == before[5:at]
            assert given[at : at + 2] == numbers
            assert given[at + 2 :] == before[at + 2 :]
