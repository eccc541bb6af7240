"""Products of float32 matrices in halves on a GPU, against float64."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.compat import kermac
from kernmantle.testing import assert_close
from kernmantle.torch_ops.split_matmul import ONE_SIGN, ONE_SIGN_SHORT, gram, multiply, split, split_rows, worthwhile

pytestmark = pytest.mark.cuda
M, N, K = 257, 96, 3001


def _given(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def _sizes(count: int) -> torch.Tensor:
    return 10.0 ** torch.linspace(-15, 15, count, device="cuda")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_accurate_row_by_row(transposed: bool) -> None:
    left, right = _given(M, K) * _sizes(M)[:, None], _given(K, N, seed=1) * _sizes(N)
    left[3], right[:, 5] = 0.0, 0.0
    left = left.mT.contiguous().mT if transposed else left
    out = torch.full((M, N), torch.nan, device="cuda")
    multiply(split_rows(left), split(right[None], 1), out[None])
    sizes = left.double().norm(dim=1)[:, None] * right.double().norm(dim=0)
    exact = (left.double() @ right.double()) / sizes
    assert_close(out / sizes, exact, dtype=torch.float32, depth=K, magnitude=1.0)
    assert not out[3].any()
    assert not out[:, 5].any()


def test_one_matrix_times_several() -> None:
    left, right = _given(M, K), _given(4, K, N, seed=1)
    found = multiply(split_rows(left), split(right, 1), left.new_empty(4, M, N))
    assert_close(found, left.double() @ right.double(), depth=K)


def test_terms_of_one_sign_keep_what_is_promised() -> None:
    left, right = _given(M, K).abs(), _given(1, K, N, seed=1).abs()
    found = multiply(split_rows(left), split(right, 1), left.new_empty(1, M, N))
    exact = left.double() @ right.double()
    assert float(((found - exact).abs() / exact).max()) <= ONE_SIGN


def test_the_sum_of_outer_products() -> None:
    rows = _given(K, N) * _sizes(N)
    sizes = rows.double().norm(dim=0)
    sizes = sizes[:, None] * sizes
    found = gram(rows)
    exact = (rows.double().mT @ rows.double()) / sizes
    assert float((found / sizes - exact).abs().max()) <= ONE_SIGN_SHORT
    assert_close(found, found.mT.contiguous(), depth=K, magnitude=sizes)


def test_what_is_not_finite_reaches_its_rows_and_columns() -> None:
    left, right = _given(M, K), _given(K, N, seed=1)
    left[7, 11], right[13, 17] = torch.nan, torch.inf
    (found,) = multiply(split_rows(left), split(right[None], 1), left.new_empty(1, M, N))
    bad = torch.zeros(M, N, dtype=torch.bool, device="cuda")
    bad[7], bad[:, 17] = True, True
    assert torch.equal(~found.isfinite(), bad)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_squares_are_products(outputs: int, batched: bool) -> None:
    z, x, weights = _given(1500, 300), _given(2100, 300, seed=1) + 50, _given(1500, 2100, seed=2)
    coef = _given(2100, outputs, seed=3)
    out = torch.full((outputs, 1500, 300), torch.nan, device="cuda")
    out = out[None] if batched else out
    found = kermac.cdist_grad(weights.mT, x.mT, coef.mT, (z + 50).mT, out=out.mT, p=2)
    z, x, weights, coef = ((part + moved).double() for part, moved in ((z, 50), (x, 0), (weights, 0), (coef, 0)))
    exact = torch.stack([(weights * c).sum(1)[:, None] * (z - 50) - (weights * c) @ (x - 50) for c in coef.mT])
    assert found.data_ptr() == out.data_ptr()
    assert_close(out.view_as(exact), exact, depth=2100, magnitude=2100**0.5)


def test_when_halves_are_taken() -> None:
    wide = torch.empty(1 << 12, 1 << 12, device="cuda")
    assert worthwhile(wide, wide)
    assert not worthwhile(wide[:4], wide)
    assert not worthwhile(wide.double(), wide.double())
    assert not worthwhile(wide.requires_grad_(), wide)
    with km.config(precision="ieee"):
        assert not worthwhile(wide.detach(), wide.detach())
