"""Log-sum-exps of sums through products of exponentials on the CPU, against torch in float64."""

import pytest
import torch

import kernmantle as km

M, N, K = 120, 90, 40
PLUS = km.Contraction("mk,nk->mn", lambda a, b: a + b, reduce="logsumexp")
ROUTE = "logarithms of matmul"
ALLOWED = {torch.float32: 3e-6, torch.float64: 1e-13}


def _points(rows, seed, scale=1.0, dtype=torch.float32):
    return scale * torch.randn(rows, K, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _exact(x, y):
    return torch.logsumexp(x.double()[:, None] + y.double(), -1)


def _assert_right(found, want, dtype=torch.float32):
    same = (found == want) | (found.isnan() & want.isnan())
    off = torch.where(same, 0.0, (found.double() - want).abs() / (1 + want.abs()))
    assert float(torch.where(off.isfinite(), off, torch.inf).max()) <= ALLOWED[dtype]


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1000.0])
def test_any_scale(scale, dtype):
    x, y = _points(M, 0, scale, dtype), _points(N, 1, scale, dtype)
    _assert_right(PLUS(x, y), _exact(x, y), dtype)
    assert ROUTE in repr(PLUS)


def test_masks_and_what_is_not_finite():
    x, y = _points(M, 0), _points(N, 1)
    x[20:40, ::2], y[20:60, 1::2] = -torch.inf, -torch.inf
    x[3], y[5], x[4, 1:], y[6, 0] = -torch.inf, -torch.inf, -torch.inf, -torch.inf
    x[7, 3], y[9, 3], x[11, 0] = torch.nan, torch.inf, torch.inf
    _assert_right(PLUS(x, y), _exact(x, y))


def test_rows_whose_largest_terms_lie_apart():
    x, y = _points(M, 0), _points(N, 1)
    x[5, 0] += 200
    y[::30, 1] += 200
    _assert_right(PLUS(x, y), _exact(x, y))


def test_weights_parameters_and_an_epilogue():
    call = km.Contraction(
        "mk,nk,k->mn", lambda a, b, w, t: (a - b + w) / t, reduce="logsumexp", epilogue=lambda s, t: t * s - 1
    )
    x, y, w = _points(M, 0), _points(N, 1), _points(1, 2)[0]
    want = 0.7 * torch.logsumexp((x.double()[:, None] - y.double() + w.double()) / 0.7, -1) - 1
    _assert_right(call(x, y, w, t=0.7), want)
    assert ROUTE in repr(call)


def test_one_set_of_points_and_a_result_that_is_given():
    x, out = _points(M, 0), torch.empty(M, M)
    PLUS(x, x, out=out)
    _assert_right(out, _exact(x, x))
    assert torch.equal(out, out.mT)


def test_as_it_is_written():
    x, y = _points(M, 0), _points(N, 1)
    _assert_right(PLUS(x, y, precision="ieee"), _exact(x, y))
    assert ROUTE not in repr(PLUS)
    unlike = km.Contraction("mk,nk->mn", lambda a, b: a * b, reduce="logsumexp")
    _assert_right(unlike(x, y), torch.logsumexp(x.double()[:, None] * y.double(), -1))
    assert ROUTE not in repr(unlike)


def test_derivatives():
    x, y = (_points(rows, seed, dtype=torch.float64).requires_grad_() for seed, rows in enumerate((M, N)))
    g = torch.randn(M, N, dtype=torch.float64)
    found = torch.autograd.grad(PLUS(x, y), (x, y), g)
    want = torch.autograd.grad(_exact(x, y), (x, y), g)
    for one, other in zip(found, want, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
