"""The nearest columns of rows by score tiles on the GPU against float64, and points that do not suit them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import select_plan
from kernmantle.torch_ops import cuda_row_reduce_parts
from kernmantle.torch_ops.info import RunInfo

from .points import normal, small_sizes_too, squared
from .tasks import apply

pytestmark = pytest.mark.cuda
SQUARES = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
ROOTS = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=km.sqrt)
NEGATED = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s: -s)
WEIGHTED = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * (a - b) ** 2)
SCALED = km.Contraction("mk,nk,h:->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s, h: s * h)
EDGES = [
    (255, 127, 1, 1), (256, 128, 16, 2), (257, 129, 17, 31), (16, 1, 3, 1), (17, 32, 20, 32), (64, 1000, 64, 10),
    (300, 4097, 100, 10), (700, 5000, 33, 32), (130, 2049, 128, 16), (40, 15, 8, 15), (513, 20000, 2, 5),
    (129, 257, 129, 1), (128, 256, 192, 32), (300, 4097, 200, 10), (64, 1000, 256, 31), (257, 3001, 384, 5),
    (130, 2300, 385, 10), (40, 15, 500, 15), (70, 2100, 784, 32), (20, 700, 4096, 3),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from small_sizes_too(
        monkeypatch, select_plan, "_LEAST_ENTRIES", "_LEAST_ROWS", "_LEAST_COLUMNS", "_LEAST_DEPTH"
    )


def nearest(contraction: km.Contraction, x: torch.Tensor, y: torch.Tensor, count: int, **given: Any) -> Any:
    info = RunInfo()
    found = apply(contraction, "smallest", [x, y], given, count=count, info=info)
    assert " select, " in info.route
    return found


def check(values: torch.Tensor, places: torch.Tensor, d: torch.Tensor, share: float = 3e-6) -> None:
    """Values are the smallest of d, in order, NaN last, each where it is said to be and nowhere twice."""
    count = places.shape[-1]
    wanted = torch.as_tensor(np.sort(d.cpu().numpy(), axis=-1)[..., :count]).to(d.device)
    there = d.gather(-1, places)
    for found in (values.double(), there):
        assert torch.equal(found.isnan(), wanted.isnan())
        fine = ~wanted.isnan() & (wanted < math.inf)
        assert torch.equal(found[~fine & ~wanted.isnan()], wanted[~fine & ~wanted.isnan()])
        assert ((found - wanted).abs()[fine] <= share * wanted[fine] + 1e-42).all()
    assert (places.sort(-1)[0].diff(dim=-1) > 0).all()
    same = values[..., 1:] == values[..., :-1]
    assert (places[..., 1:] > places[..., :-1])[same].all()


@pytest.mark.parametrize(("m", "n", "k", "count"), EDGES)
def test_the_nearest_are_those_of_float64(m: int, n: int, k: int, count: int) -> None:
    x, y = normal(m, k), normal(n, k, seed=1)
    d = squared(x, y)
    check(*nearest(SQUARES, x, y, count), d, 1e-6)
    check(*nearest(ROOTS, x, y, count), d.sqrt(), 1e-6)


PARTS = [(300, 5000, 200, 50), (300, 5000, 20, 33), (130, 4097, 64, 100), (16, 20000, 100, 256), (64, 1300, 3, 64)]


def in_parts(contraction: km.Contraction, x: torch.Tensor, y: torch.Tensor, count: int, how: str = "smallest") -> Any:
    info = RunInfo()
    found = apply(contraction, how, [x, y], {}, count=count, info=info)
    assert "parts of the columns" in info.route
    return found


@pytest.mark.parametrize(("m", "n", "k", "count"), PARTS)
def test_more_than_one_warp_selects_come_from_parts(m: int, n: int, k: int, count: int) -> None:
    x, y = normal(m, k), normal(n, k, seed=1)
    d = squared(x, y)
    check(*in_parts(SQUARES, x, y, count), d, 1e-6)
    check(*in_parts(ROOTS, x, y, count), d.sqrt(), 1e-6)
    values, places = in_parts(NEGATED, x, y, count, "largest")
    check(-values, places, d, 1e-6)


@pytest.mark.parametrize("name", ["itself", "offset", "twins", "clusters", "outlier", "equal", "few values"])
def test_parts_of_points_whose_products_tell_little(name: str) -> None:
    x, y = hard(name)
    y = y.repeat(4, 1)
    check(*in_parts(SQUARES, x, y, 100), squared(x, y))


@pytest.mark.parametrize("kind", ["one part", "few columns", "NaN"])
def test_parts_that_have_more_of_the_nearest_than_they_select(kind: str) -> None:
    x, y = normal(200, 20), 5 * normal(6000, 20, seed=1)
    if kind == "one part":
        y[3::15] = 0.1 * normal(400, 20, seed=2)  # 100 columns make 15 parts
    elif kind == "few columns":
        x, y = x[:40], y[:480]  # all of the 32 columns of a part are selected
    else:
        y[100:5950, 3] = math.nan
    check(*in_parts(SQUARES, x, y, 100), squared(x, y))


def test_parts_of_other_layouts_and_types() -> None:
    x, y = normal(50, 600).T, normal(5000, 100)[:, ::2]
    check(*in_parts(SQUARES, x, y, 64), squared(x, y))
    pairs = normal(3, 80, 20), normal(3, 4000, 20, seed=1)
    values, places = in_parts(SQUARES, *pairs, 50)
    for i in range(3):
        check(values[i], places[i], squared(pairs[0][i], pairs[1][i]))
    x, y = normal(300, 40).bfloat16(), normal(6000, 40, seed=1).bfloat16()
    values, places = in_parts(SQUARES, x, y, 40)
    assert values.dtype == torch.bfloat16
    d = squared(x, y)
    there, wanted = d.gather(-1, places), d.sort(-1).values[:, :40]
    assert ((there - wanted).abs() <= 3e-6 * wanted).all()
    assert torch.equal(values, there.to(torch.bfloat16)) or ((values.double() - there).abs() <= 4e-3 * there).all()


def test_parts_in_bands_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_row_reduce_parts, "_BAND_BYTES", 12 * 9 * 32 * 130)
    x, y = normal(400, 20), normal(5000, 20, seed=1)
    check(*in_parts(SQUARES, x, y, 64), squared(x, y), 1e-6)


def test_parts_are_captured_in_a_graph() -> None:
    x, y = normal(300, 20), normal(5000, 20, seed=1)
    first = km.argkmin(x, y, 50, metric="sqeuclidean", return_values=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = km.argkmin(x, y, 50, metric="sqeuclidean", return_values=True)
    x.copy_(x.flip(0))
    graph.replay()
    assert torch.equal(found[0], first[0].flip(0))
    assert torch.equal(found[1], first[1].flip(0))


def hard(name: str, k: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = normal(600, k), normal(3000, k, seed=1)
    outlier, outliers, centres = y.clone(), y.clone(), 10 * normal(30, k)
    outlier[7] *= 1e6
    outliers[5::128] *= 1e4
    low = normal(4000, 1, seed=2) * 1e-3
    return {
        "itself": (x, x),
        "offset": (x + 1e3, y + 1e3),
        "offset itself": (x + 1e4, x + 1e4),
        "twins": (x, torch.cat([x.flip(0) + 1e-3 * normal(600, k, seed=2), y])),
        "twins of few": (x, torch.cat([x[::10] + 1e-6 * normal(60, k), y])),
        "clusters": (centres.repeat(20, 1) + 0.05 * normal(600, k), centres.repeat(100, 1) + 0.05 * normal(3000, k)),
        "tight clusters": (centres.repeat(20, 1), centres.repeat(100, 1) + 1e-4 * normal(3000, k)),
        "outlier": (x, outlier),
        "outliers": (x, outliers),
        "far rows": (torch.cat([x[:100] * 1e8, x]), y),
        "small": (x * 1e-12, y * 1e-12),
        "tiny": (x * 1e-18, y * 1e-18),
        "large": (x * 1e15, y * 1e15),
        "huge": (x * 1e18, y * 1e18),
        "unlike": (x * 1e-4, y),
        "unlike columns": (x, y * 1e-4),
        "one number": (low[:500], low),
        "equal": (torch.ones(100, 40, device="cuda"), torch.ones(700, 40, device="cuda")),
        "few values": ((2 * normal(300, 3)).round(), (2 * normal(5000, 3, seed=3)).round()),
    }[name]


HARD = (
    "itself", "offset", "offset itself", "twins", "twins of few", "clusters", "tight clusters", "outlier", "outliers",
    "far rows", "small", "tiny", "large", "huge", "unlike", "unlike columns", "one number", "equal", "few values",
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 10, 32])
@pytest.mark.parametrize("name", HARD)
def test_points_whose_products_tell_little(name: str, count: int) -> None:
    x, y = hard(name)
    d = squared(x, y)
    d = torch.where(d > 3.4028235e38, math.inf, d)
    check(*nearest(SQUARES, x, y, count), d)


@pytest.mark.parametrize("k", [200, 500])
@pytest.mark.parametrize("name", [name for name in HARD if name not in ("one number", "equal", "few values")])
def test_points_of_many_numbers_whose_products_tell_little(name: str, k: int) -> None:
    x, y = hard(name, k)
    d = squared(x, y)
    d = torch.where(d > 3.4028235e38, math.inf, d)
    check(*nearest(SQUARES, x, y, 10), d)


@pytest.mark.parametrize("k", [20, 300])
def test_equal_columns_come_by_index(k: int) -> None:
    x = normal(300, k)
    places = nearest(SQUARES, x, x.repeat(40, 1), 32)[1]
    assert torch.equal(places, torch.arange(300, device="cuda")[:, None] + 300 * torch.arange(32, device="cuda"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("k", [50, 300])
def test_points_that_are_not_finite(value: float, side: int, k: int) -> None:
    pair = [normal(600, k), normal(3000, k, seed=1)]
    pair[side][5, 3] = value
    check(*nearest(SQUARES, *pair, 10), squared(*pair))
    pair[1][10:2995, 7] = value
    check(*nearest(SQUARES, *pair, 20), squared(*pair))
    pair[0][9, 7] = value
    check(*nearest(SQUARES, *pair, 20), squared(*pair))


def test_weights_layouts_types_and_batches() -> None:
    x, y, w = normal(50, 600).T, normal(3000, 100)[:, ::2], normal(50).abs()
    check(*nearest(SQUARES, x, y, 10), squared(x, y))
    w[3] = 0.0
    check(*nearest(WEIGHTED, x, y, 10, w=w), squared(x, y, w.double()))
    w[4] = -1.0
    found = nearest(WEIGHTED, x, y, 10, w=w)
    wanted = squared(x, y, w.double()).sort(-1)[0][:, :10]
    assert torch.allclose(found[0].double(), wanted, rtol=1e-4, atol=1e-4)
    x, y, w = normal(300, 200).bfloat16().T, normal(3000, 600)[:, ::2], normal(300).abs()
    check(*nearest(SQUARES, x.float(), y, 10), squared(x, y))
    check(*nearest(WEIGHTED, x.float(), y, 10, w=w), squared(x, y, w.double()))
    x, y = normal(3, 1, 257, 30), normal(2, 2049, 30)
    d = ((x.double()[..., :, None, :] - y.double()[..., None, :, :]) ** 2).sum(-1)
    check(*nearest(SQUARES, x, y, 7), d)
    h = torch.tensor(2.0, device="cuda")
    check(*nearest(SCALED, x, y, 7, h=h), d * 2)
    found = nearest(SCALED, x, y, 7, h=-h)
    assert torch.allclose(found[0].double(), (d * -2).sort(-1)[0][..., :7], rtol=1e-5)


def test_metrics_and_kernels_take_it() -> None:
    x, y = normal(600, 40), normal(3000, 40, seed=1)
    d = squared(x, y).sqrt()
    values, places = km.argkmin(x, y, 12, return_values=True)
    check(values, places, d)
    kernel = km.Gaussian(5.0)
    values, places = kernel.argkmax(x, y, 12, return_values=True)
    assert " select, " in kernel.info
    assert torch.equal(places, km.argkmin(x, y, 12, metric="sqeuclidean"))
    assert torch.allclose(values.double(), (-d.gather(1, places).square() / 50).exp(), rtol=1e-5)
    assert torch.equal(km.Laplace(3.0, p=2.0).argkmax(x, y, 12), places)


@pytest.mark.parametrize("k", [24, 300, 400])
def test_bands_of_rows(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    monkeypatch.setattr(select_plan, "BAND_BYTES", 1)
    x, y = normal(1000, k), normal(2100, k, seed=1)
    check(*nearest(SQUARES, x, y, 9), squared(x, y))


def test_the_same_bits_again_and_in_a_graph() -> None:
    x, y = normal(700, 50), normal(3000, 50, seed=1)
    first = nearest(SQUARES, x, y, 8)
    assert all(torch.equal(a, b) for a, b in zip(first, nearest(SQUARES, x, y, 8), strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = nearest(SQUARES, x, y, 8)
    x.copy_(normal(700, 50, seed=5))
    graph.replay()
    check(*captured, squared(x, y))
    y.copy_(torch.ones_like(y))
    graph.replay()
    check(*captured, squared(x, y))


def test_the_comparison_can_fail() -> None:
    x, y = normal(300, 20), normal(400, 20, seed=1)
    values, places = nearest(SQUARES, x, y, 5)
    with pytest.raises(AssertionError):
        check(values, places.roll(1, 0), squared(x, y))
    with pytest.raises(AssertionError):
        check(values * 1.001, places, squared(x, y))
