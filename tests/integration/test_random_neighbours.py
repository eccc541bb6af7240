"""Random calls for nearest rows against all distances in float64: ties, duplicates, NaN, infinities, one query."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import ParameterError
from kernmantle.testing.tolerances import FORMATS, tolerance

SLICE, WHOLE, CHUNKS = 40, 2000, 10
METRICS = {
    "euclidean": ({}, lambda gaps: gaps.square().sum(-1).sqrt()),
    "sqeuclidean": ({"metric": "sqeuclidean"}, lambda gaps: gaps.square().sum(-1)),
    "cityblock": ({"p": 1}, lambda gaps: gaps.abs().sum(-1)),
    "chebyshev": ({"p": math.inf}, lambda gaps: gaps.abs().amax(-1)),
    "lambda": ({"metric": lambda a, b: abs(a - b) + abs(a - b) ** 2}, lambda gaps: (gaps.abs() + gaps**2).sum(-1)),
}  # fmt: skip
POINTS = ("normal", "normal", "offset", "integers", "duplicates", "itself", "NaN", "infinite", "equal")
TYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOST = {"cpu": 20_000, "cuda": 2_000_000}


@dataclass(frozen=True)
class Query:
    """A call: points by a name, and what is asked for."""

    metric: str
    points: str
    dtype: torch.dtype
    m: int
    n: int
    k: int
    count: int
    seed: int


def generate(seed: int, device: str) -> Query:
    """Return the call of a seed; a third of them have one query, ask for all rows, or for more than there are."""
    random = np.random.default_rng(seed)

    def extent(most: float) -> int:
        return int(math.exp(random.uniform(0, math.log(most))))

    metric, points = str(random.choice([*METRICS])), str(random.choice(POINTS))
    m = 1 if random.random() < 0.2 else extent(300 if device == "cuda" else 60)
    n = extent(MOST[device] / m if device == "cuda" else 400)
    k = extent(130 if device == "cuda" else 40)
    kind = random.random()
    count = n if kind < 0.1 and n <= 300 else n + 1 if kind < 0.15 else extent(min(n, 40) + 1)
    return Query(metric, points, TYPES[random.integers(len(TYPES))], m, n, k, count, seed)


def drawn(query: Query) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both sets of points as they are stored."""
    source = torch.Generator().manual_seed(query.seed)
    x, y = (torch.randn(rows, query.k, generator=source) for rows in (query.m, query.n))
    if query.points == "offset":
        x, y = x + 10, y + 10
    elif query.points == "integers":
        x, y = x.round(), y.round()
    elif query.points == "duplicates":
        y = y[torch.randint(max(1, query.n // 4), (query.n,), generator=source)]
    elif query.points == "itself":
        x = y[torch.randint(query.n, (query.m,), generator=source)]
    elif query.points == "equal":
        x, y = torch.ones_like(x), torch.ones_like(y)
    elif query.points in ("NaN", "infinite"):
        value = math.nan if query.points == "NaN" else math.inf
        y[torch.rand(y.shape, generator=source) < 0.02] = value
        x[torch.rand(x.shape, generator=source) < 0.01] = value
    return x.to(query.dtype), y.to(query.dtype)


def check(query: Query, device: str) -> None:
    """Compare values, positions and the order of equal values with all distances in float64."""
    x, y = drawn(query)
    options, formula = METRICS[query.metric]
    if query.count > query.n:
        with pytest.raises(ParameterError, match=f"from 1 to {query.n}"):
            km.argkmin(x.to(device), y.to(device), query.count, **options)
        return
    values, places = km.argkmin(x.to(device), y.to(device), query.count, return_values=True, **options)
    values, places = values.cpu(), places.cpu()
    step = max(1, 4_000_000 // y.numel())
    d = torch.cat([formula(part.double()[:, None] - y.double()) for part in x.split(step)])
    wanted = torch.as_tensor(np.sort(d.numpy(), axis=-1)[:, : query.count])
    assert values.shape == places.shape == wanted.shape
    assert values.dtype == query.dtype
    assert (places.sort(-1)[0].diff(dim=-1) > 0).all(), "a row is there twice"
    computed = torch.float32 if query.dtype.itemsize < 8 else torch.float64
    there, smallest = d.gather(-1, places), FORMATS[str(query.dtype).removeprefix("torch.")].floor
    for found, share, least in (
        (there, tolerance(computed, query.k), 0.0), (values.double(), tolerance(query.dtype, query.k), smallest),
    ):  # fmt: skip
        assert torch.equal(found.isnan(), wanted.isnan()), "NaN comes last"
        finite = wanted.isfinite()
        assert torch.equal(found[~finite & ~wanted.isnan()], wanted[~finite & ~wanted.isnan()])
        assert ((found - wanted).abs()[finite] <= least + share * wanted[finite].abs()).all()
    same = there[:, 1:] == there[:, :-1]
    if query.points in ("integers", "equal"):
        assert (places[:, 1:] > places[:, :-1])[same].all(), "equal distances come by index"


def failures(seeds: range, device: str = "cpu") -> list[str]:
    """Return what is wrong with the calls of these seeds."""
    found: list[str] = []
    for seed in seeds:
        query = generate(seed, device)
        try:
            check(query, device)
        except Exception as error:  # noqa: BLE001, all seeds are tried
            found.append(f"{type(error).__name__}: {error}\n    {query}")
    return found


def test_a_slice_of_the_calls() -> None:
    wrong = failures(range(SLICE))
    assert not wrong, "\n".join(wrong)


@pytest.mark.cuda
def test_a_slice_on_the_gpu() -> None:
    wrong = failures(range(SLICE), "cuda")
    assert not wrong, "\n".join(wrong)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_call(chunk: int) -> None:
    each = WHOLE // CHUNKS
    wrong = failures(range(chunk * each, (chunk + 1) * each))
    assert not wrong, "\n".join(wrong)


@pytest.mark.cuda
@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_call_on_the_gpu(chunk: int) -> None:
    each = WHOLE // CHUNKS
    wrong = failures(range(chunk * each, (chunk + 1) * each), "cuda")
    assert not wrong, "\n".join(wrong)


def test_the_calls_have_every_metric_type_and_kind_of_points() -> None:
    queries = [generate(seed, "cpu") for seed in range(WHOLE)]
    assert {query.metric for query in queries} == set(METRICS)
    assert {query.points for query in queries} == set(POINTS)
    assert {query.dtype for query in queries} == set(TYPES)
    assert sum(query.count > query.n for query in queries) >= 50
    assert sum(query.count == query.n for query in queries) >= 100
    assert sum(query.m == 1 for query in queries) >= 300


def test_the_check_sees_a_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    search = km.argkmin

    def shifted(x: torch.Tensor, y: torch.Tensor, count: int, **options: object) -> object:
        values, places = search(x, y, count, **options)
        return values, (places + 1) % len(y)

    monkeypatch.setattr(km, "argkmin", shifted)
    seeds = [seed for seed in range(40) if generate(seed, "cpu").points == "normal"]
    plain = [seed for seed in seeds if 1 < generate(seed, "cpu").n > generate(seed, "cpu").count]
    assert plain
    assert all(failures(range(seed, seed + 1)) for seed in plain)
