"""Score tiles times many columns of v, both products on tensor cores, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda import columns_plan
from kernmantle.backends.cuda.tiles import CARDS, Tile
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.torch_ops.info import RunInfo

from .points import assert_alike, assert_distances, assert_same_in_a_graph, normal, share, small_sizes_too, squared
from .row_nests import SQUARES, RowCase
from .tasks import apply
from .test_score_rows import ENDS, HARD, WEIGHTED, hard

pytestmark = pytest.mark.cuda
RAW = km.Contraction("mk,nk->mn", lambda a, b: a * b)
GROWING = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=lambda s: km.exp(s / 300))
EDGES = [
    (191, 127, 20, 5), (192, 128, 16, 16), (193, 129, 33, 17), (16, 1, 20, 64), (385, 1000, 64, 64),
    (700, 4097, 100, 33), (130, 260, 96, 128), (129, 65, 128, 100), (127, 64, 128, 40), (300, 900, 17, 200),
    (64, 4000, 50, 256), (5000, 3000, 32, 48),
]  # fmt: skip
DEEP = [
    (192, 128, 192, 16), (191, 127, 129, 5), (385, 1000, 300, 33), (16, 1, 200, 64), (130, 4097, 1024, 17),
    (700, 260, 1000, 96), (127, 64, 257, 1), (300, 900, 500, 200), (5000, 3000, 784, 10), (64, 300, 4096, 3),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from small_sizes_too(
        monkeypatch, columns_plan, "_LEAST_ENTRIES", "_LEAST_ROWS", "_LEAST_DEPTH", "_LEAST_WIDTH"
    )


def share_of_products(found: torch.Tensor, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> float:
    """Largest error of (x y^T) v as a share of its absolute products, as inner products may cancel."""
    wanted, size = x.double() @ y.double().T @ v.double(), x.double().abs() @ y.double().abs().T @ v.double().abs()
    assert torch.isfinite(found).all()
    return ((found - wanted).abs() / size.clamp_min(1e-300)).max().item()


@pytest.mark.parametrize(("m", "n", "k", "width"), EDGES)
def test_products_agree_with_float64(m: int, n: int, k: int, width: int) -> None:
    x, y, v, h = normal(m, k), normal(n, k, seed=1), normal(n, width, seed=2), math.sqrt(k)
    kernel, entries = km.Gaussian(h), (-squared(x, y) / (2 * k)).exp()
    found = kernel.matmul(x, y, v)
    assert share(found, entries, v) < 1e-6
    assert (found - entries @ v.double()).norm() < 2e-6 * (entries @ v.double()).norm()
    assert " columns, " in kernel.info
    info = RunInfo()
    found = apply(RAW, "product", [x, y], {}, v, info=info)[0]
    assert share_of_products(found, x, y, v) < 1e-6
    assert " columns, " in info.route


@pytest.mark.parametrize(("k", "width"), [(20, 24), (50, 64), (33, 128)])
@pytest.mark.parametrize("kind", ["itself", "twins", "far", "offset"])
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_powers_with_and_without_lost_digits(times: float, kind: str, k: int, width: int) -> None:
    x, y, v, h = normal(1000, k), normal(3000, k, seed=1), normal(3000, width, seed=2), times * math.sqrt(k)
    if kind == "itself":
        x = y[:1000]
    elif kind == "twins":
        x = y[:1000] + 1e-3 * x
    elif kind == "far":
        x[::50] *= 2.5
        y[300:2000:500] *= 2.5
    else:
        x, y = x + 100, y + 100
    kernel, entries = km.Gaussian(h), (-squared(x, y) / (2 * h * h)).exp()
    found = kernel.matmul(x, y, v)
    assert share(found, entries, v) < 4e-6
    assert (found - entries @ v.double()).norm() < 1e-6 * (entries**2 @ v.double() ** 2).sqrt().norm()
    assert " columns, " in kernel.info


@pytest.mark.parametrize(("m", "n", "k", "width"), DEEP)
def test_products_of_deep_points_agree_with_float64(m: int, n: int, k: int, width: int) -> None:
    x, y, v, h = normal(m, k), normal(n, k, seed=1), normal(n, width, seed=2), math.sqrt(k)
    y[0] = x[3] + 1e-4  # taken by differences
    kernel, entries = km.Gaussian(h), (-squared(x, y) / (2 * k)).exp()
    found = kernel.matmul(x, y, v)
    assert share(found, entries, v) < 1e-6
    assert " deep, " in kernel.info
    assert torch.equal(found, kernel.matmul(x, y, v))
    info = RunInfo()
    assert share_of_products(apply(RAW, "product", [x, y], {}, v, info=info)[0], x, y, v) < 1e-6
    assert " deep, " in info.route


@pytest.mark.parametrize(("k", "width"), [(64, 1), (64, 4), (64, 8), (16, 16), (64, 64), (200, 8)])
def test_sums_of_long_rows_keep_their_digits(k: int, width: int) -> None:
    x, y, v = normal(20000, k), normal(100000, k, seed=1), normal(100000, width, seed=2)
    found = km.Gaussian(math.sqrt(k)).matmul(x, y, v)
    rows = torch.arange(0, len(x), 100, device="cuda")
    entries = (-squared(x[rows], y) / (2 * k)).exp()
    terms = (entries**2 @ v.double() ** 2).sqrt()  # as large as sums of both signs are on average
    assert (found[rows] - entries @ v.double()).norm() < 6e-7 * terms.norm()


def deep_twin(kind: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = normal(2000, x.shape[1], seed=1)
    outlier = x.clone()
    outlier[7] *= 1e6
    return {
        "itself": (x, x), "offset": (x + 1e3, y + 1e3), "small": (x * 1e-12, y * 1e-12), "large": (x * 1e15, y * 1e15),
        "outlier": (outlier, y), "twins": (x, torch.cat([x.flip(0) + 1e-3 * normal(*x.shape, seed=2), y])),
        "equal": (torch.ones(500, 300, device="cuda"), torch.ones(700, 300, device="cuda")),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["itself", "offset", "small", "large", "outlier", "twins", "equal"])
def test_deep_squared_distances_that_lose_digits(kind: str) -> None:
    assert_distances(*deep_twin(kind, normal(1500, 300)), 24)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_deep_points_that_are_not_finite(value: float, side: int) -> None:
    given = [normal(1500, 300), normal(2000, 300, seed=1), normal(2000, 24, seed=2)]
    given[side][5, 3] = value
    x, y, v = given
    found, wanted = km.Gaussian(17.0).matmul(x, y, v), (-squared(x, y) / 578).exp() @ v.double()
    assert_alike(found, wanted)


def tiles() -> list[tuple[Tile, int, int, int]]:
    """Every tile with every number of columns at once, and points and columns of v that it is possible for."""
    found: dict[tuple[str, int, int], tuple[Tile, int, int, int]] = {}
    for k in (16, 32, 50, 90, 128):
        case = RowCase("tiles", SQUARES, PRODUCT, 1 << 15, 1 << 15, k, 256)
        for tile, columns in columns_plan.columns_tiles(case.rows, case.sizes(), CARDS["sm_90"]):
            found[tile.name, columns, tile.depth] = (tile, columns, k, columns + 9)
    return list(found.values())


@pytest.mark.parametrize(
    ("tile", "columns", "k", "width"), tiles(), ids=lambda value: value.name if isinstance(value, Tile) else str(value)
)
def test_every_tile_agrees_with_float64(
    tile: Tile, columns: int, k: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_plan, "columns_tile", lambda *_: (tile, columns))
    x, y, v = normal(1000, k), normal(3333, k, seed=1), normal(3333, width, seed=2)
    y[7] = x[3] + 1e-4  # taken by differences
    kernel = km.Gaussian(math.sqrt(k))
    assert share(kernel.matmul(x, y, v), (-squared(x, y) / (2 * k)).exp(), v) < 1e-6
    assert f"tile {tile.m}x{tile.n}x{tile.depth}" in kernel.info


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e3, 1e12])
def test_scales_of_entries_and_of_columns(scale: float) -> None:
    x, y, v = normal(600, 40), normal(2000, 40, seed=1), normal(2000, 40, seed=2)
    v *= torch.logspace(-18, 18, 40, device="cuda")
    assert share_of_products(apply(RAW, "product", [x * scale, y], {}, v)[0], x * scale, y, v) < 1e-6
    info = RunInfo()
    found = apply(GROWING, "product", [x, y], {}, v, info=info)[0]
    assert share(found, (squared(x, y) / 300).exp(), v) < 1e-6
    assert " columns, " in info.route
    spread = v.clone()
    spread[::7] *= 1e-6
    assert share(km.Gaussian(7.0).matmul(x, y, spread), (-squared(x, y) / 98).exp(), spread) < 1e-6


@pytest.mark.parametrize("name", [*HARD, "unlike", "equal"])
def test_squared_distances_that_lose_digits(name: str) -> None:
    assert_distances(*hard(name), 24)


def test_other_operands_and_layouts() -> None:
    x, y, v = normal(50, 1500).T, normal(2000, 100)[:, ::2], normal(40, 2000).T
    d = squared(x, y)
    assert share(km.Gaussian(7.0).matmul(x, y, v), (-d / 98).exp(), v) < 1e-6
    assert share(km.Gaussian(torch.tensor(7.0, device="cuda")).matmul(x, y, v), (-d / 98).exp(), v) < 1e-6
    w = normal(50).abs() + 0.1
    weighted = squared(x * w.sqrt(), y * w.sqrt())
    assert share(apply(WEIGHTED, "product", [x, y], {"w": w}, v)[0], weighted, v) < 2e-6
    u, t, info = normal(1500).abs(), normal(2000).abs(), RunInfo()
    entries = (-d / 100).exp() * u.double()[:, None] + t.double()
    assert share(apply(ENDS, "product", [x, y], {"u": u, "t": t}, v, info=info)[0], entries, v) < 1e-6
    assert " columns, " in info.route


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_what_is_not_finite_stays_where_it_takes_part(value: float, side: int) -> None:
    given = [normal(1500, 50), normal(2000, 50, seed=1), normal(2000, 24, seed=2)]
    given[side][5, 3] = value
    x, y, v = given
    for found, entries in (
        (km.Gaussian(7.0).matmul(x, y, v), (-squared(x, y) / 98).exp()),
        (apply(RAW, "product", [x, y], {}, v)[0], x.double() @ y.double().T),
    ):
        assert_alike(found, entries @ v.double())


def test_the_same_bits_again_and_in_a_graph() -> None:
    x, y, v, kernel = normal(1500, 50), normal(2000, 50), normal(2000, 64), km.Gaussian(7.0)
    assert_same_in_a_graph(lambda: kernel.matmul(x, y, v), x)


def test_the_comparison_can_fail() -> None:
    x, y, v = normal(300, 20), normal(400, 20), normal(400, 20)
    found = km.Gaussian(4.0).matmul(x, y * 1.0001, v)
    assert share(found, (-squared(x, y) / 32).exp(), v) > 1e-6
