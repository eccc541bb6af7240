"""Rows on the GPU: the same bits again, long passes and close points against float64."""

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

from .row_nests import cases

pytestmark = pytest.mark.cuda


def test_runs_give_the_same_bits_again() -> None:
    from .harness import Machine
    from .row_harness import run

    case = next(case for case in cases() if case.name == "few_rows")
    first, second = (run(Machine(), case)[0] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("spread", "middle"), [(1.0, 0.0), (1.0, 100.0), (20.0, 0.0)])
@pytest.mark.parametrize("k", [2, 3, 4, 10])
def test_long_passes_agree_where_points_are_small_and_where_not(k: int, spread: float, middle: float) -> None:
    generator = torch.Generator("cuda").manual_seed(k)
    x, y, v = (torch.randn(100_000, width, device="cuda", generator=generator) for width in (k, k, 1))
    x, y = spread * x + middle, spread * y + middle
    y[70_001] *= 1 + 1e3 * (spread == 1.0 and middle == 0.0)
    kernel = km.Gaussian(1.0)
    found = kernel.matmul(x, y, v)
    assert "from norms and products" in kernel.info
    some = torch.arange(0, 100_000, 997, device="cuda")
    squares = (x[some, None].double() - y[None].double()).square().sum(-1)
    exact, entries = (-squares / 2).exp() @ v.double(), (-squares / 2).exp() @ v.double().abs()
    assert_close(found[some], exact, depth=100_000, magnitude=entries)


@pytest.mark.parametrize("distance", [1.0, 4.6, 6.4, 9.0, 26.0, 40.0])
@pytest.mark.parametrize("k", [2, 3, 4, 10, 15])
def test_close_points_far_from_their_middle_keep_their_digits(k: int, distance: float) -> None:
    """Squared distances by norms and products lose digits with the distance from the middle; differences do not."""
    generator = torch.Generator("cuda").manual_seed(k)
    middles = torch.randn(50, k, device="cuda", generator=generator)
    middles *= distance / middles.norm(dim=1, keepdim=True)
    near = middles[torch.arange(6000, device="cuda") % 50]
    x, y = (near + 0.2 * torch.randn(6000, k, device="cuda", generator=generator) for _ in range(2))
    v = torch.randn(6000, 1, device="cuda", generator=generator)
    found = km.Gaussian(1.0).matmul(x, y, v)
    entries = (-(x[:, None].double() - y[None].double()).square().sum(-1) / 2).exp()
    terms = (entries.square() @ v.double().square()).sqrt()
    assert (found.double() - entries @ v.double()).norm() <= 1e-6 * terms.norm()


@pytest.mark.parametrize("size", [1e-37, 1e24, 1e34])
@pytest.mark.parametrize("k", [3, 10])
def test_weights_of_any_size_keep_their_digits(k: int, size: float) -> None:
    """Sums without the norms of rows are up to 2^31 times as large as results."""
    generator = torch.Generator("cuda").manual_seed(k)
    x, y = (0.5 * torch.randn(9000, k, device="cuda", generator=generator) for _ in range(2))
    x[:50] *= 4.5 / x[:50].norm(dim=1, keepdim=True)
    v = size * torch.rand(9000, 1, device="cuda", generator=generator)
    found = km.Gaussian(1.0).matmul(x, y, v)
    exact = (-(x[:, None].double() - y[None].double()).square().sum(-1) / 2).exp() @ v.double()
    assert ((found.double() - exact).abs() <= 3e-6 * exact + 1e-42).all()
