"""``kron_matmul`` against a product of axes in float64: sizes, sides, batches, views, types, and bad input."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import kernmantle as km
from kernmantle.structured.kron import execute
from kernmantle.testing import assert_close, tolerance

from ..cases import sampled
from ..kron_oracle import MIXED, REAL_WORLD, SQUARE, drawn, limited, named, oracle

SMALL = [size for size in SQUARE + MIXED if math.prod(p for p, _ in size[1]) * size[0] <= 1 << 16]
LARGE = [limited(size, 1 << 17) for size in SQUARE + MIXED if size not in SMALL]
HUGE = 1 << 21


def _depth(factors):
    return sum(f if isinstance(f, int) else f.shape[-2] + f.shape[-1] for f in factors)


def _check(x, factors, **options):
    result = km.kron_matmul(x, factors, **options)
    expected = oracle(x, factors, options.get("side", "right"))
    assert_close(result, expected, dtype=x.dtype, depth=_depth(factors))
    return result


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("size", SMALL + LARGE, ids=named)
def test_sizes(size, side):
    _check(*drawn(size, torch.float32, side), side=side)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("size", (SMALL + LARGE)[::2], ids=named)
def test_sizes_in_float64(size, side):
    _check(*drawn(size, torch.float64, side), side=side)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "size", [limited(size, HUGE) for size in REAL_WORLD if math.prod(p for p, _ in size[1]) <= HUGE], ids=named
)
def test_real_world_sizes(size, dtype):
    _check(*drawn(size, dtype))


BEYOND = [pytest.param(limited(size, 1)) for size in REAL_WORLD if math.prod(p for p, _ in size[1]) > HUGE]


@pytest.mark.slow
@pytest.mark.parametrize("size", sampled(2, BEYOND), ids=named)
def test_sizes_beyond_any_cache(size):
    _check(*drawn(size, torch.float32))


def test_threads_do_not_change_a_bit():
    x, factors = drawn((64, [(8, 8)] * 4), torch.float32)
    results = []
    for threads in (1, 2, 3):
        with km.config(threads=threads):
            results.append(km.kron_matmul(x, factors))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_backends(backend):
    x, factors = drawn((5, [(8, 7), (3, 4), (6, 6)]), torch.float32)
    with km.config(backend=backend):
        _check(x, factors)
        operator = km.KroneckerProduct(factors)
        x @ operator
    assert operator.info.partition(":")[0] == {"auto": "llvm", "reference": "torch"}[backend]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("size", [(5, [(8, 8)] * 3), (3, [(31, 63), (5, 1)]), (9, [(2, 3), (3, 2)])], ids=named)
def test_halves_are_summed_in_float32(size, side, dtype):
    _check(*drawn(size, dtype, side), side=side)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_exact(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 4, (5, 6), generator=generator, dtype=dtype)
    factors = [torch.randint(0, 3, shape, generator=generator, dtype=dtype) for shape in [(2, 3), (3, 2)]]
    result = km.kron_matmul(x, factors, alpha=2)
    assert result.dtype == dtype
    assert np.array_equal(result.numpy(), 2 * oracle(x, factors))


def test_complex_numbers_warn_once_about_the_slower_path(monkeypatch):
    monkeypatch.setattr(execute, "_WARNED", set())
    x, factors = torch.randn(3, 6, dtype=torch.complex128), [torch.randn(2, 3, dtype=torch.complex128), 3]
    with pytest.warns(km.errors.KernmantleWarning, match="one factor at a time"):
        km.kron_matmul(x, factors)
    result = km.kron_matmul(x.conj(), [factors[0].mH.mT, 3], alpha=1j)
    expected = 1j * (x.conj().resolve_conj().numpy() @ np.kron(factors[0].conj().resolve_conj().numpy(), np.eye(3)))
    assert np.allclose(result.numpy(), expected, rtol=tolerance("float64", 6), atol=tolerance("float64", 6))


@pytest.mark.parametrize("side", ["right", "left"])
def test_vectors(side):
    x, factors = drawn((1, [(3, 4), (5, 2)]), torch.float64, side)
    flat = x.reshape(-1)
    result = km.kron_matmul(flat, factors, side=side)
    expected = oracle(x, factors, side).reshape(-1)
    assert_close(result, expected, depth=20)


def test_vector_with_batched_factors():
    x, factors = (
        torch.randn(8, dtype=torch.float64),
        [torch.randn(6, 2, 3, dtype=torch.float64), torch.randn(4, 4).double()],
    )
    assert_close(km.kron_matmul(x, factors), oracle(x[None], factors)[..., 0, :], depth=12)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("own", "first", "second"),
    [((4,), (), ()), ((), (4,), ()), ((3, 1), (1, 4), ()), ((2, 3, 4), (3, 1), (4,)), ((5, 1), (5, 1), (5, 1))],
)
def test_batches_broadcast(own, first, second, side):
    factors = [torch.randn(*first, 2, 3, dtype=torch.float64), torch.randn(*second, 5, 4, dtype=torch.float64)]
    shape = (7, 10) if side == "right" else (12, 7)
    result = _check(torch.randn(*own, *shape, dtype=torch.float64), factors, side=side)
    assert result.shape[:-2] == torch.broadcast_shapes(own, first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["right", "left"])
def test_views_are_read_in_place(side, dtype):
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(2, 36, 34, generator=generator, dtype=dtype)
    f, g = (
        torch.randn(8, 6, generator=generator, dtype=dtype),
        torch.randn(9, 12, generator=generator, dtype=dtype)[::3],
    )
    factors = [f[::2].mT, g[:, :6].mT] if side == "right" else [f[:4, ::2], g]
    for x in (wide.mT[:, ::2, :], wide[:, :, :17].mT, wide.mT[:1].expand(3, -1, -1)[:, 1:, :]):
        _check(x if side == "right" else x.mT, factors, side=side)


def test_identities_make_products_along_one_axis():
    x, f = torch.randn(5, 24, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    expected = torch.einsum("mabc,bd->madc", x.reshape(5, 2, 3, 4), f).reshape(5, -1)
    assert_close(km.kron_matmul(x, [2, f, 4]), expected, depth=3)
    assert torch.equal(km.kron_matmul(x, [4, 6]), x)


def test_identities_alone_give_memory_of_their_own():
    x = torch.zeros(2, 6)
    km.kron_matmul(x, [2, 3]).add_(1)
    assert not x.any()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_alpha_beta_and_y_in_place(side, dtype):
    x, factors = drawn((6, [(4, 3), (8, 8)]), dtype, side)
    product = oracle(x, factors, side)
    y = torch.randn(product.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    expected = 0.5 * product - 2 * y.double().numpy()
    result = km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-2, y=y)
    assert_close(result, expected, dtype=dtype, depth=23)
    kept = km.kron_matmul(x, factors, side=side, alpha=0.5, beta=-2, y=y, out=y)
    assert kept is y
    assert torch.equal(y, result)


def test_y_broadcasts_is_added_by_default_and_not_read_for_beta_zero():
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float64)
    row = torch.randn(24, dtype=torch.float64)
    assert_close(km.kron_matmul(x, factors, beta=3, y=row), oracle(x, factors) + 3 * row.numpy(), depth=23)
    nothing = torch.full((6, 24), float("nan"), dtype=torch.float64)
    assert_close(km.kron_matmul(x, factors, beta=0, y=nothing), oracle(x, factors), depth=23)
    assert_close(km.kron_matmul(x, factors, y=row), oracle(x, factors) + row.numpy(), depth=23)
    found = km.KroneckerProduct([factor.mT for factor in factors]).matmul(x.mT, y=row[:, None])
    assert_close(found.mT, oracle(x, factors) + row.numpy(), depth=23)
    batch = torch.randn(2, 6, 24, dtype=torch.float64)
    assert_close(km.kron_matmul(x, factors, beta=1, y=batch), oracle(x, factors) + batch.numpy(), depth=23)


def test_tensors_for_alpha_and_beta_have_one_entry_per_batch_entry():
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float64)
    alpha, beta = torch.tensor([1.0, -2.0]).double(), torch.tensor([[3.0], [0.5], [0.0]]).double()
    y = torch.randn(6, 24, dtype=torch.float64)
    result = km.kron_matmul(x, factors, alpha=alpha, beta=beta, y=y)
    expected = alpha.numpy()[:, None, None] * oracle(x, factors) + beta.numpy()[..., None, None] * y.numpy()
    assert_close(result, expected, depth=23)


@pytest.mark.parametrize("columns", [False, True])
def test_out_takes_any_strides(columns):
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float32)
    wide = torch.full((24, 12) if columns else (12, 48), 7.0)
    out = wide.mT[::2] if columns else wide[::2, ::2]
    assert km.kron_matmul(x, factors, out=out) is out
    assert_close(out, oracle(x, factors), depth=23)
    assert (wide == 7).sum() == wide.numel() - out.numel()


def test_numpy_comes_back_as_numpy():
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float64)
    result = km.kron_matmul(x.numpy(), [f.numpy() for f in factors], beta=1.0, y=np.ones((6, 24)))
    assert isinstance(result, np.ndarray)
    assert_close(result, oracle(x, factors) + 1, depth=23)


def test_one_pass_per_factor_gives_the_same():
    x, factors = drawn((6, [(4, 3), (8, 8), (5, 6)]), torch.float64)
    _check(x, factors, fuse=False)


@pytest.mark.parametrize("shape", [((0, 6), [(2, 3), (3, 2)]), ((4, 0), [(0, 3), (3, 2)]), ((4, 6), [(2, 0), (3, 2)])])
def test_empty_axes(shape):
    (rows, width), sizes = shape
    x, factors = torch.ones(rows, width), [torch.ones(p, q) for p, q in sizes]
    y = torch.full((rows, math.prod(q for _, q in sizes)), 2.0)
    assert torch.equal(km.kron_matmul(x, factors), torch.zeros_like(y))
    if not width:
        assert torch.equal(km.kron_matmul(x, factors, beta=0.5, y=y), torch.ones_like(y))


def test_nan_and_infinity_propagate():
    x, factors = drawn((4, [(4, 4), (8, 8)]), torch.float32)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    result = km.kron_matmul(x, factors)
    assert result[1].isnan().all()
    assert not result[2].isfinite().any()
    assert_close(result[::3], oracle(x[::3], factors), depth=24)


def test_wide_range_of_magnitudes():
    x, factors = drawn((8, [(8, 8)] * 3), torch.float32)
    x *= 2.0 ** torch.arange(-100, 100, 25)[:, None]
    assert_close(
        km.kron_matmul(x, factors) / x.abs().amax(1, keepdim=True),
        oracle(x, factors) / x.abs().amax(1, keepdim=True).double().numpy(),
        depth=48,
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=4),
    st.integers(1, 20),
    st.sampled_from(["right", "left"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_random_sizes(sizes, rows, side, dtype):
    if math.prod(max(p, q) for p, q in sizes) <= 20000:
        _check(*drawn((rows, sizes), dtype, side), side=side)


def test_autocast_casts_as_for_a_matrix_product():
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = km.kron_matmul(x, factors)
    assert result.dtype == torch.bfloat16
    assert_close(result, oracle(x.bfloat16(), [f.bfloat16() for f in factors]), depth=23)


def test_autocast_casts_scales_of_batches():
    x, factors = drawn((6, [(4, 3), (8, 8)]), torch.float32)
    x, scales = x.expand(2, *x.shape), torch.tensor([0.5, 2.0])
    y = torch.ones(2, 6, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = km.kron_matmul(x, factors, alpha=scales, beta=scales, y=y)
    x, y, scales, *factors = (each.bfloat16() for each in (x, y, scales, *factors))
    assert torch.equal(found, km.kron_matmul(x, factors, alpha=scales, beta=scales, y=y))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 9, 67, 1003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_that_fill_no_block(dtype, rows, fuse):
    """On a CPU rows without gaps are blocks together, those that are left over one of their own; others are not."""
    x, factors = drawn((rows, [(3, 5), (4, 2), (9, 11)]), dtype, "right")
    exact = oracle(x, factors, "right")
    most = abs(exact).max()
    assert_close(km.kron_matmul(x, factors, fuse=fuse), exact, depth=16, magnitude=most)
    y = torch.ones(rows, exact.shape[1], dtype=dtype)
    assert_close(
        km.kron_matmul(x, factors, alpha=0.5, beta=2.0, y=y, out=y, fuse=fuse),
        0.5 * exact + 2,
        depth=16,
        magnitude=most,
    )
    apart = torch.full((rows, x.shape[1] + 3), torch.nan, dtype=dtype)
    apart[:, 1:-2] = x
    into = torch.full((exact.shape[1], rows + 1), torch.nan, dtype=dtype)
    out = into[:, :rows].mT
    assert_close(km.kron_matmul(apart[:, 1:-2], factors, out=out, fuse=fuse), exact, depth=16, magnitude=most)
    assert into[:, rows].isnan().all()
    turned = x.mT.contiguous().mT
    assert_close(km.kron_matmul(turned, factors, fuse=fuse), exact, depth=16, magnitude=most)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_of_wide_factors_are_multiplied_along_their_axes(dtype, side):
    """torch's products of halves would take their place on a CPU, up to ten times as slow."""
    x, factors = drawn((10, [(400, 400)]) if side == "right" else (64, [(300, 260)]), dtype, side)
    operator = km.KroneckerProduct(factors)
    assert (x @ operator if side == "right" else operator @ x).dtype == dtype
    assert "along" in operator.info
    y = torch.ones_like(km.kron_matmul(x, factors, side=side))
    found = km.kron_matmul(x, factors, side=side, alpha=0.5, beta=2.0, y=y, out=y)
    assert_close(found, 0.5 * oracle(x, factors, side) + 2, depth=400)
    leaves = [each.clone().requires_grad_() for each in (x, *factors)]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    own, wanted = (
        torch.autograd.grad(km.kron_matmul(values[0], values[1:], side=side).sum(), values)
        for values in (leaves, exact)
    )
    for slope, right in zip(own, wanted, strict=True):
        assert_close(slope, right, depth=1000, magnitude=right.abs().max())
