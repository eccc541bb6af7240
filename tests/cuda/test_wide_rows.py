"""Products with many columns of v by entries in registers and tensor cores, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import wide_plan
from kernmantle.torch_ops.info import RunInfo

from .points import assert_alike, assert_same_in_a_graph, normal, share, small_sizes_too, squared
from .tasks import apply

pytestmark = pytest.mark.cuda
CITY = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s: 1 / (1 + s))
GROWING = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=km.exp)
RAW = km.Contraction("mk,nk->mn", lambda a, b: a * b)
ENDS = km.Contraction("mk,nk,u:m,t:n->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s, u, t: km.exp(-s) * u + t)
EDGES = [
    (191, 127, 3, 64), (192, 128, 1, 33), (193, 129, 2, 16), (16, 1, 8, 17), (385, 1000, 5, 64), (700, 4097, 4, 50),
    (5000, 20000, 3, 64), (130, 65, 7, 32),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from small_sizes_too(monkeypatch, wide_plan, "_LEAST_WORK", "_LEAST_ROWS")


@pytest.mark.parametrize(("m", "n", "k", "width"), EDGES)
def test_products_agree_with_float64(m: int, n: int, k: int, width: int) -> None:
    x, y, v = normal(m, k), normal(n, k, seed=1), normal(n, width, seed=2)
    kernel = km.Gaussian(1.3)
    assert share(kernel.matmul(x, y, v), (-squared(x, y) / 3.38).exp(), v) < 1e-6
    assert " wide, " in kernel.info
    entries = 1 / (1 + (x.double()[:, None] - y.double()).abs().sum(-1))
    assert share(apply(CITY, "product", [x, y], {}, v)[0], entries, v) < 1e-6
    assert share(apply(RAW, "product", [x, y], {}, v)[0], x.double() @ y.double().T, v) < 2e-6


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e3, 1e12])
def test_scales_of_entries_and_of_columns(scale: float) -> None:
    x, y, v = normal(600, 3), normal(2000, 3, seed=1), normal(2000, 40, seed=2)
    v *= torch.logspace(-18, 18, 40, device="cuda")
    assert share(apply(RAW, "product", [x * scale, y], {}, v)[0], (x * scale).double() @ y.double().T, v) < 2e-6
    info = RunInfo()
    near, others = x / 4, y / 4
    found = apply(GROWING, "product", [near, others], {}, v, info=info)[0]
    assert share(found, squared(near, others).exp(), v) < 1e-5
    assert " wide, " in info.route
    spread = v.clone()
    spread[::7] *= 1e-6
    entries = (-squared(x, y) / 2).exp()
    assert share(km.Gaussian(1.0).matmul(x, y, spread), entries, spread) < 1e-6


def test_other_operands_and_layouts() -> None:
    x, y, v = normal(4, 700).T, normal(1500, 8)[:, ::2], normal(40, 1500).T
    u, t, info = normal(700), normal(1500), RunInfo()
    entries = (-squared(x, y)).exp() * u.double()[:, None] + t.double()
    found = apply(ENDS, "product", [x, y], {"u": u, "t": t}, v, info=info)[0]
    assert share(found, entries, v) < 1e-6
    assert " wide, " in info.route
    h = torch.tensor(1.5, device="cuda")
    assert share(km.Gaussian(h).matmul(x, y, v), (-squared(x, y) / 4.5).exp(), v) < 1e-6


@pytest.mark.parametrize(("k", "width"), [(3, 40), (1, 16), (8, 9)])
@pytest.mark.parametrize("kind", ["far rows", "far columns", "lonely rows", "itself", "offset", "narrow", "broad"])
def test_powers_of_points_of_all_kinds(kind: str, k: int, width: int) -> None:
    x, y, v, h = normal(1000, k), normal(3000, k, seed=1), normal(3000, width, seed=2), 1.3 * math.sqrt(k)
    if kind == "far rows":
        x[::70] *= 3
    elif kind == "far columns":
        y[200:2000:300] *= 20
    elif kind == "lonely rows":  # whose entries are all small
        x[300:310] = 4.0
    elif kind == "itself":
        x = y[:1000].clone()
    elif kind == "offset":
        x, y = x + 30, y + 30
    else:
        h *= 0.2 if kind == "narrow" else 30
    kernel, entries = km.Gaussian(h), (-squared(x, y) / (2 * h * h)).exp()
    found = kernel.matmul(x, y, v)
    assert share(found, entries, v) < 4e-6
    assert (found - entries @ v.double()).norm() < 1e-6 * (entries**2 @ v.double() ** 2).sqrt().norm()
    assert " wide, " in kernel.info
    y[7, 0] = math.nan
    assert kernel.matmul(x, y, v).isnan().all()
    y[7, 0], x[5, 0] = 0.5, math.nan
    found = kernel.matmul(x, y, v)
    assert found[5].isnan().all()
    assert torch.isfinite(found[6:]).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(value: float) -> None:
    x, y, v = normal(400, 3), normal(900, 3, seed=1), normal(900, 20, seed=2)
    for place in (x, y, v):
        old = place[5, 2].item()
        place[5, 2] = value
        for contraction, entries in ((RAW, x.double() @ y.double().T), (CITY, None)):
            if entries is None:
                entries = 1 / (1 + (x.double()[:, None] - y.double()).abs().sum(-1))
            assert_alike(apply(contraction, "product", [x, y], {}, v)[0], entries @ v.double())
        place[5, 2] = old


def test_the_same_bits_again_and_in_a_graph() -> None:
    x, y, v, kernel = normal(1500, 3), normal(2000, 3), normal(2000, 24), km.Gaussian(1.0)
    assert_same_in_a_graph(lambda: kernel.matmul(x, y, v), x)


def test_the_comparison_can_fail() -> None:
    x, y, v = normal(300, 3), normal(400, 3), normal(400, 20)
    found = km.Gaussian(1.0).matmul(x, y * 1.0001, v)
    assert share(found, (-squared(x, y) / 2).exp(), v) > 1e-6
