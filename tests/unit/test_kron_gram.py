"""The gradient of a Kronecker factor by a kernel: what is handed to it, and what is made of the blocks' shares."""

import ctypes

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.arch import arch as generation
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import gradient_cuda
from kernmantle.structured.kron.factor_gradient_plan import gram
from kernmantle.structured.kron.gradient_cost import over_two_rows, rows_together, sum_seconds
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
    monkeypatch.setattr(gradient_cuda, "load_kernel", lambda *_: (rows, columns, tiles))
    monkeypatch.setattr(gradient_cuda, "load_kernels", lambda *_, **__: [(rows, columns, tiles)])
    u, v = torch.randn(count, columns, right), torch.randn(count, rows, right)
    found = gradient_cuda.bind_sum(u, v)(u, v)
    assert_close(found, torch.einsum("lqr,lpr->qp", v.double(), u.double()), depth=count * right)
    ((blocks, *sizes),) = started
    assert sizes == [count, right]
    assert blocks % tiles == 0
    assert blocks <= 132


@pytest.mark.parametrize(
    ("rows", "columns", "right", "arch", "tiles"),
    [
        (150, 150, 1, "sm_90", 1), (136, 100, 512, "sm_90", 1), (180, 164, 1, "sm_90", 1), (180, 164, 512, "sm_90", 2),
        (240, 240, 512, "sm_90", 4), (150, 150, 17, "sm_90", 4), (150, 150, 1, "sm_120", 9),
    ],
)  # fmt: skip
def test_wide_sums_of_halves_have_few_tiles_where_a_block_has_room(rows, columns, right, arch, tiles):
    found = gram(rows, columns, right, "f16", True, arch)
    assert found.tiles == tiles
    assert found.shared <= generation(arch).shared_per_block
    own = [found.deep if found.order == "along" else capacity for capacity in found.capacities]
    copies = [length // vec for length, vec in zip(own, (found.vec_v, found.vec_u), strict=True)]
    assert all(found.threads % across == 0 for across in copies)


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_sum_over_two_rows_at_a_time_is_that_of_both(started, monkeypatch, is_wide):
    monkeypatch.setattr(gradient_cuda, "load_kernel", lambda *_: (10, 6, 1))
    monkeypatch.setattr(gradient_cuda, "load_kernels", lambda *_, **__: [(10, 6, 1)])
    u, v = torch.randn(3000, 3, 1), torch.randn(3000, 5, 1)
    found = gradient_cuda.bind_two_rows(u, v, is_wide)(u, v)
    assert_close(found, torch.einsum("lqr,lpr->qp", v.double(), u.double()), depth=3000)
    assert [sizes for _, *sizes in started] == [[1500, 1]]


def test_rows_of_an_odd_number_of_halves_are_summed_two_at_a_time():
    def rows(size, count=10**6, right=1, stored="bf16"):
        found = over_two_rows(size, count, right, stored, HOPPER)
        return found and (found.rows, found.columns)

    assert [rows((17, 17)), rows((5, 8)), rows((63, 2))] == [(34, 34), (10, 16), (126, 4)]
    others = [rows((16, 8)), rows((17, 17), stored="f32"), rows((17, 17), right=3), rows((17, 17), 10**6 + 1)]
    assert others == [None] * 4
    methods = sum_seconds((17, 17), 6772398, 1, "bf16", HOPPER, True)
    assert min(methods, key=methods.get) == "two rows"


@pytest.mark.parametrize(("size", "together"), [((12, 20), 2), ((84, 64), 2), ((62, 6), 4), ((30, 60), 4)])
@pytest.mark.parametrize("is_wide", [False, True])
def test_rows_that_are_no_whole_vectors_are_multiplied_together(size, together, is_wide):
    (rows, columns), dtype = size, torch.bfloat16
    assert rows_together(size, 40, 1, "bf16") == together
    u, v = (torch.randint(-2, 3, (40, side, 1)).to(dtype) for side in (columns, rows))  # sums are exact
    found = gradient_cuda.bind_rows(u, v, is_wide)(u.view(8, -1), v)  # a value comes as it lies
    assert torch.equal(found, torch.einsum("lqr,lpr->qp", v.double(), u.double()).to(dtype))


def test_rows_that_cannot_be_multiplied_together_are_taken_one_by_one():
    cases = [((16, 24), 40, 1, "f16"), ((12, 20), 41, 1, "f16"), ((70, 6), 42, 1, "bf16"), ((17, 16), 40, 1, "bf16")]
    cases += [((12, 20), 40, 1, "f32"), ((12, 20), 40, 3, "f16"), ((132, 20), 40, 1, "f16")]
    assert [rows_together(*case) for case in cases] == [1] * 7
    assert "mm of rows" in sum_seconds((84, 84), 10**6, 1, "bf16", HOPPER, True)
    assert "mm of rows" not in sum_seconds((84, 84), 10**6, 1, "bf16", HOPPER, False)


def test_what_has_no_kernel_is_left_to_products(started):
    whole = torch.randn(3, 8, 4)
    assert gradient_cuda.bind_sum(whole.double(), whole.double()) is None
    assert gradient_cuda.bind_sum(whole.mT, whole.mT) is None
    assert gradient_cuda.bind_sum(torch.randn(3, 300, 1), torch.randn(3, 300, 1)) is None
    assert not started


@pytest.mark.parametrize("sizes", [((8, 8),), ((5, 3),), ((2, 3), (4, 2)), ((31, 7),), ((4, 4), (2, 2), (3, 3))])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_kernel_that_applies_factors_is_handed_them_by_their_strides(started, monkeypatch, sizes, transposed):
    count, right, slope = 500, 3, -2.0
    (rows, columns), starts = np.prod(sizes, axis=0).tolist(), []

    def start(kernel, index, blocks, arguments):
        if len(arguments) == 4:
            parts, out, shares, size = arguments
            total = _array(parts, (shares, rows, columns)).sum(0)
            _array(out, (size,))[:] = (total.T if transposed else total).reshape(-1)
            return
        v, u, parts, _, _, applied, scale, *factors = arguments
        whole = np.ones((1, 1))
        for place, (q, p) in enumerate(sizes):
            address, *steps = factors[3 * place : 3 * place + 3]
            flat = _array(address, (q * p,))
            whole = np.kron(whole, np.lib.stride_tricks.as_strided(flat, (q, p), [4 * step for step in steps]))
        v, u = _array(v, (count, rows, right)), _array(u, (count, columns, right))
        _array(parts, (blocks, rows, columns))[:] = np.einsum("lqr,lpr->qp", v, u) / blocks
        _array(applied, u.shape)[:] = scale * np.einsum("qp,lqr->lpr", whole, v)
        starts.append(blocks)

    totals = []

    def total(stored, arch, of_transposed=()):
        totals.append(of_transposed)
        return "total"

    monkeypatch.setattr(gradient_cuda, "start", start)
    monkeypatch.setattr(gradient_cuda, "load_kernel", lambda *_: "kernel")
    monkeypatch.setattr(gradient_cuda, "_total", total)
    u, v = torch.randn(count, columns, right), torch.randn(count, rows, right)
    given = [torch.randn(p, q) if transposed else torch.randn(q, p) for q, p in sizes]
    factors = [factor.mT if transposed else factor for factor in given]
    finish, applied = gradient_cuda.bind_applying(u, v, factors, transposed).started(u, v, given, slope)
    found = finish()
    exact, whole = torch.einsum("lqr,lpr->qp", v.double(), u.double()), torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        whole = torch.kron(whole, factor.double())
    assert_close(found, exact.mT if transposed else exact, depth=count * right)
    assert_close(applied.view(u.shape), slope * torch.einsum("qp,lqr->lpr", whole, v.double()), depth=rows)
    assert totals == [((rows, columns),) if transposed else ()]
    assert starts[0] > 1


def test_wide_factors_and_single_chunks_are_applied_apart(started):
    def bound(rows, columns, count, dtype=torch.float32):
        u, v = (torch.randn(count, side, 20).to(dtype) for side in (columns, rows))
        return gradient_cuda.bind_applying(u, v, [torch.randn(rows, columns).to(dtype)], False)

    assert bound(97, 8, 100) is None
    assert bound(8, 97, 100) is None
    assert bound(16, 16, 1) is None
    assert bound(129, 8, 100, torch.float16) is None
    assert bound(8, 129, 100, torch.float16) is None
