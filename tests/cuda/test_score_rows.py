"""Row reductions from score tiles on the GPU against float64, and what happens to points that do not suit them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import score_plan
from kernmantle.torch_ops.info import RunInfo

from .points import assert_same_in_a_graph, normal, small_sizes_too, squared
from .tasks import apply

pytestmark = pytest.mark.cuda
SQUARES = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
DOT = km.Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: km.exp(s / 10))
WEIGHTED = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * (a - b) ** 2)
ENDS = km.Contraction("mk,nk,u:m,t:n->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s, u, t: km.exp(-s / 100) * u + t)
EDGES = [(191, 127, 20), (192, 128, 16), (193, 129, 33), (16, 1, 20), (385, 1000, 64), (700, 4097, 100), (130, 260, 96)]
EDGES += [(257, 4225, 17), (256, 128, 21), (200, 300, 37), (383, 513, 49), (192, 640, 53)]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from small_sizes_too(monkeypatch, score_plan, "_LEAST_ENTRIES", "_LEAST_ROWS", "_LEAST_DEPTH")


def share(found: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor) -> float:
    """Largest error as a share of a size; where that is 0 the value must be right."""
    assert torch.equal(found[size == 0].double(), wanted[size == 0])
    return ((found - wanted).abs() / size)[size > 0].max().item() if (size > 0).any() else 0.0


@pytest.mark.parametrize(("m", "n", "k"), EDGES)
def test_products_and_reductions_agree_with_float64(m: int, n: int, k: int) -> None:
    x, y, h = normal(m, k), normal(n, k, seed=1), math.sqrt(k)
    kernel, d = km.Gaussian(h), squared(x, y)
    entries = (-d / (2 * h * h)).exp()
    for width in (1, 3, 8):
        v = normal(n, width)
        assert share(kernel.matmul(x, y, v), entries @ v.double(), entries @ v.double().abs()) < 1e-6
    assert " score, " in kernel.info
    assert share(kernel.logsumexp(x, y), entries.logsumexp(1), entries.logsumexp(1).abs() + 1) < 1e-6
    for how in ("min", "max"):
        assert share(apply(SQUARES, how, [x, y], {})[0], getattr(d, how)(1)[0], getattr(d, how)(1)[0]) < 1e-5
    assert share(apply(SQUARES, "sum", [x, y], {})[0], d.sum(1), d.sum(1)) < 1e-5
    products, v, info = (x.double() @ y.double().T / 10).exp(), normal(n, 2), RunInfo()
    found = apply(DOT, "product", [x, y], {}, v, info=info)[0]
    assert share(found, products @ v.double(), products @ v.double().abs()) < 3e-6
    assert " score, " in info.route


def hard(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = normal(1500, 50), normal(2000, 50, seed=1)
    twins = torch.cat([x.flip(0) + 1e-3 * normal(1500, 50, seed=2), y])
    far, outlier = torch.cat([x, x[:2] + 100]), x.clone()
    outlier[7] *= 1e6
    centres = 10 * normal(200, 50)
    return {
        "itself": (x, x),
        "offset": (x + 1e3, y + 1e3),
        "offset itself": (x + 1e4, x + 1e4),
        "twins": (x, twins),
        "twins of few": (x, torch.cat([x[::10] + 1e-6 * normal(150, 50), y])),
        "clusters": (centres.repeat(8, 1) + 0.05 * normal(1600, 50), centres.repeat(10, 1) + 0.05 * normal(2000, 50)),
        "outlier": (outlier, y),
        "far": (far, far),
        "small": (x * 1e-12, y * 1e-12),
        "large": (x * 1e15, y * 1e15),
        "unlike": (x * 1e-4, y),
        "equal": (torch.ones(500, 40, device="cuda"), torch.ones(700, 40, device="cuda")),
    }[name]


HARD = ("itself", "offset", "offset itself", "twins", "twins of few", "clusters", "outlier", "far", "small", "large")


@pytest.mark.parametrize("name", [*HARD, "unlike", "equal"])
def test_squared_distances_that_lose_digits(name: str) -> None:
    x, y = hard(name)
    d = squared(x, y)
    for how, wanted in (("min", d.min(1)[0]), ("max", d.max(1)[0]), ("sum", d.sum(1))):
        assert share(apply(SQUARES, how, [x, y], {})[0], wanted, wanted) < 1e-5
    h = float(d.median().sqrt()) or 1.0
    v, entries = normal(y.shape[0], 1), (-d.sqrt() / h).exp()
    found = km.Laplace(bandwidth=h, p=2.0).matmul(x, y, v)
    assert share(found, entries @ v.double(), entries @ v.double().abs()) < 2e-6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_points_that_are_not_finite_spoil_their_own_distances_only(value: float, side: int) -> None:
    pair = [normal(1500, 50), normal(2000, 50, seed=1)]
    pair[side][5, 3] = value
    d, v = squared(*pair), normal(2000, 2)
    found = km.Gaussian(7.0).matmul(*pair, v)
    entries = (-d / 98).exp()
    wanted = entries @ v.double()
    assert torch.equal(found.isnan(), wanted.isnan())
    fine = ~wanted.isnan()
    assert share(found[fine], wanted[fine], (entries @ v.double().abs())[fine]) < 1e-6
    nearest = apply(SQUARES, "max", pair, {})[0]
    assert torch.allclose(nearest.double(), d.max(1)[0], rtol=1e-5, equal_nan=True)


def test_other_operands_and_layouts() -> None:
    x, y, v = normal(50, 1500).T, normal(2000, 100)[:, ::2], normal(5, 2000).T
    d = squared(x, y)
    entries = (-d / 98).exp()
    size = entries @ v.double().abs()
    assert share(km.Gaussian(7.0).matmul(x, y, v), entries @ v.double(), size) < 1e-6
    bandwidth = torch.tensor(7.0, device="cuda")
    assert share(km.Gaussian(bandwidth).matmul(x, y, v), entries @ v.double(), size) < 1e-6
    w = normal(50).abs() + 0.1
    weighted = squared(x * w.sqrt(), y * w.sqrt()).min(1)[0]
    assert share(apply(WEIGHTED, "min", [x, y], {"w": w})[0], weighted, weighted) < 1e-5
    u, t = normal(1500).abs(), normal(2000).abs()
    entries = (-d / 100).exp() * u.double()[:, None] + t.double()
    info = RunInfo()
    found = apply(ENDS, "product", [x, y], {"u": u, "t": t}, v, info=info)[0]
    assert share(found, entries @ v.double(), entries @ v.double().abs()) < 1e-6
    assert " score, " in info.route


def test_growing_exponentials_and_batches_take_differences() -> None:
    growing = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s: km.exp(s / 300))
    x, y, v = normal(3, 700, 50), normal(3, 800, 50), normal(3, 800, 1)
    entries = torch.stack([(squared(a, b) / 300).exp() for a, b in zip(x, y, strict=True)])
    wanted, size = entries @ v.double(), entries @ v.double().abs()
    assert share(apply(growing, "product", [x, y], {}, v)[0], wanted, size) < 1e-6
    assert share(apply(growing, "product", [x[0], y[0]], {}, v[0])[0], wanted[0], size[0]) < 1e-6


def test_the_same_bits_again_and_in_a_graph() -> None:
    x, y, v, kernel = normal(1500, 50), normal(2000, 50), normal(2000, 1), km.Gaussian(7.0)
    assert_same_in_a_graph(lambda: kernel.matmul(x, y, v), x)


def test_the_comparison_can_fail() -> None:
    x, y = normal(300, 20), normal(400, 20)
    assert share(apply(SQUARES, "min", [x, y * 1.001], {})[0], squared(x, y).min(1)[0], squared(x, y).min(1)[0]) > 1e-5


@pytest.mark.parametrize("name", ["rising", "falling", "steps", "absent", "infinite", "not a number", "nothing"])
def test_log_sums_keep_up_with_entries_of_any_size(name: str) -> None:
    """Later tiles are summed relative to the largest entry of earlier ones, until that is too small."""
    x, y = normal(700, 20), normal(3000, 20, seed=1)
    terms = {
        "rising": torch.linspace(-500, 500, 3000),
        "falling": torch.linspace(500, -500, 3000),
        "steps": torch.arange(3000) // 128 * 40.0,
        "absent": torch.where(torch.arange(3000) < 2900, -math.inf, 0.0),
        "infinite": torch.where(torch.arange(3000) == 1500, math.inf, 0.0),
        "not a number": torch.where(torch.arange(3000) == 1500, math.nan, 0.0),
        "nothing": torch.full((3000,), -math.inf),
    }[name].cuda()
    own = km.Contraction("mk,nk,t:n->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s, t: t - s)
    (found,) = apply(own, "logsumexp", [x, y], {"t": terms.float()})
    wanted = torch.logsumexp(terms.double() - squared(x, y), 1)
    if name in ("infinite", "not a number", "nothing"):
        assert torch.equal(found.nan_to_num(0.5), wanted.float().nan_to_num(0.5))
    else:
        # An error of a score counts as much as its term does in the sum; it goes with what is squared, not with the
        # difference: where few terms count, nothing averages it out.
        shares = torch.softmax(terms.double() - squared(x, y), 1)
        sizes = shares @ y.double().square().sum(1) + x.double().square().sum(1)
        assert ((found - wanted).abs() <= 2e-6 + 3e-7 * wanted.abs() + 1.5e-7 * sizes).all()


LINEAR = km.Contraction("mk,nk,t:n->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s, t, c: t - c * s)


@pytest.mark.parametrize("bits", [2.0, 60.0, 70.0, 1000.0])
@pytest.mark.parametrize("name", ["normal", "itself", "offset", "twins", "clusters", "outlier", "unlike", "equal"])
def test_log_sums_of_linear_entries(name: str, bits: float) -> None:
    """Exponents of up to 64 bits are not looked at for lost digits; the longest pair of points has ``bits``."""
    x, y = hard(name) if name != "normal" else (normal(1500, 64), normal(2000, 64, seed=1))
    centre = y.double().mean(0)
    squares = [(points.double() - centre).square().sum(1) for points in (x, y)]
    factor = bits * math.log(2) / (float(squares[0].max() + squares[1].max()) or 1.0)
    t = normal(y.shape[0])
    entries = t.double() - factor * squared(x, y)
    (found,) = apply(LINEAR, "logsumexp", [x, y], {"t": t, "c": factor})
    wanted, shares = entries.logsumexp(1), torch.softmax(entries, 1)
    sizes = factor * (squares[0] + shares @ squares[1])
    assert ((found - wanted).abs() <= 2e-6 + 3e-7 * wanted.abs() + 3e-7 * sizes).all()


def test_log_sums_of_linear_entries_of_points_that_are_not_finite() -> None:
    pair, t = [normal(400, 40), normal(500, 40, seed=1)], normal(500)
    pair[0][3, 1], pair[0][7, 2], pair[1][5, 3], t[9] = math.nan, math.inf, -math.inf, -math.inf
    entries = t.double() - 0.1 * squared(*pair)
    (found,) = apply(LINEAR, "logsumexp", pair, {"t": t, "c": 0.1})
    wanted = entries.logsumexp(1)
    assert torch.allclose(found.double(), wanted, rtol=1e-6, atol=1e-5, equal_nan=True)
    assert found.isnan()[3]


@pytest.mark.parametrize("size", [0.1, 1.0, 3.0, 1e15])
def test_log_sums_of_inner_products(size: float) -> None:
    x, y, t = size * normal(700, 64), normal(3000, 64, seed=1), normal(3000)
    own = km.Contraction("mk,nk,t:n->mn", lambda a, b: a * b, epilogue=lambda s, t, c: c * s + t)
    entries = 0.3 * x.double() @ y.double().T + t.double()
    (found,) = apply(own, "logsumexp", [x, y], {"t": t, "c": 0.3})
    wanted, shares = entries.logsumexp(1), torch.softmax(entries, 1)
    sizes = 0.3 * x.double().norm(dim=1) * (shares @ y.double().norm(dim=1))
    assert ((found - wanted).abs() <= 2e-6 + 3e-7 * wanted.abs() + 3e-7 * sizes).all()
