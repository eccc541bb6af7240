"""Every metric against scipy in float64: values, weights, batches, types, shapes, powers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial import distance

import kernmantle as km
from benchmarks.metric_samples import rows
from kernmantle.pairwise import METRICS, condensed
from kernmantle.testing import assert_close

from .distances import NAMES, exact, pair, varied, weights

POWERS = [0, 0.3, 0.5, 1, 1.3, 1.5, 2, 2.5, 3, 4, 7.5, math.inf]
COUNTING = {"hamming", "jaccard", "rogerstanimoto", "russellrao", "sokalsneath", "yule"}


def powered(x, y, p, w=None):
    """Minkowski by scipy, which has no p = 0."""
    if p == 0:
        differs = x[:, None] != y[None]
        return (differs if w is None else w * differs).sum(-1).astype(float)
    return distance.cdist(x, y, "minkowski", p=p, w=w)


@pytest.mark.parametrize("name", NAMES)
def test_value(name):
    row = METRICS[name]
    x, y = pair(row)
    for options in varied(row):
        assert_close(km.cdist(x, y, metric=name, **options), exact(row, x, y, **options), depth=5)


@pytest.mark.parametrize("name", [name for name in NAMES if METRICS[name].domain == "real" or METRICS[name].boolean])
def test_rows_of_zeros_and_constants(name):
    row = METRICS[name]
    x = rows("real", 6, 5, 1).numpy()
    x[0], x[1], x[2, 3], x[3] = 0, 2, 0, x[4]
    options = {"V": weights() + 0.5} if name == "seuclidean" else {"VI": np.eye(5)} if name == "mahalanobis" else {}
    assert_close(km.cdist(x, x[1:], metric=name, **options), exact(row, x, x[1:], **options), depth=5)


def test_weighted_dice_of_numbers_is_that_of_two_rows():
    x, w = rows("real", 4, 5, 1).numpy(), weights()
    wanted = np.array([[distance.dice(a, b, w) for b in x] for a in x])
    assert_close(km.cdist(x, metric="dice", w=w), wanted, depth=5, magnitude=abs(wanted).max())


@pytest.mark.parametrize("name", NAMES)
def test_columns_that_are_one_or_none(name):
    row = METRICS[name]
    for m, n, k in [(0, 3, 4), (3, 0, 4), (1, 1, 1), (2, 3, 0), (3, 2, 1)]:
        x, y = pair(row, m, n, k)
        options = {"seuclidean": {"V": np.ones(k)}, "mahalanobis": {"VI": np.eye(k)}}.get(name, {})
        result = km.cdist(x, y, metric=name, **options)
        nothing = k == 0 and name in ("cosine", "correlation", "jensenshannon")
        assert_close(result, np.zeros((m, n)) if nothing else exact(row, x, y, **options), depth=1)


def test_the_covariance_of_no_columns():
    x, y = np.ones((3, 0)), np.ones((2, 0))
    assert np.array_equal(km.cdist(x, y, metric="mahalanobis"), distance.cdist(x, y, "mahalanobis"))


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_a_row(name):
    row = METRICS[name]
    x, y = pair(row)
    x[1, 2] = np.nan
    options = {"V": np.ones(5)} if name == "seuclidean" else {"VI": np.eye(5)} if name == "mahalanobis" else {}
    result = km.cdist(x, y, metric=name, **options)
    others = np.delete(np.arange(len(x)), 1)
    assert_close(result[others], exact(row, x[others], y, **options), depth=5, magnitude=1)
    if name in COUNTING:
        assert_close(result, exact(row, np.where(np.isnan(x), 0.5, x), y), depth=5)
    else:
        assert np.isnan(result[1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_set_of_rows(name):
    row = METRICS[name]
    x, _ = pair(row)
    options = {"w": weights()} if "w" in row.options else {}
    own = km.cdist(x, metric=name, **options)
    assert_close(own, exact(row, x, x, **options), depth=5)
    if row.symmetric:
        np.testing.assert_array_equal(own, own.T)
    if row.zero_diagonal:
        np.testing.assert_array_equal(np.diag(own), np.zeros(len(x)))


def test_small_distances_keep_their_digits():
    x = rows("positive", 3, 50, 1).double()
    near = x * (1 + 1e-4 * rows("real", 3, 50, 2))
    for name in ("cosine", "correlation", "jensenshannon", "hellinger", "euclidean"):
        single = km.cdist(x.float(), near.float(), metric=name).diagonal()
        wanted = km.cdist(x.float().double(), near.float().double(), metric=name).diagonal()
        np.testing.assert_array_less(abs(single.double() - wanted), 2e-3 * wanted)


@pytest.mark.parametrize("name", NAMES)
def test_batches(name):
    row = METRICS[name]
    x = torch.stack([rows(row.domain, 4, 5, seed) for seed in (1, 2)])[:, None]
    y = torch.stack([rows(row.domain, 7, 5, seed) for seed in (3, 4, 5)])
    w = torch.stack([torch.from_numpy(weights(seed=seed)) for seed in (7, 8, 9)]) if "w" in row.options else None
    result = km.cdist(x, y, metric=name, w=w)
    assert result.shape == (2, 3, 4, 7)
    for i in range(2):
        for j in range(3):
            one = km.cdist(x[i, 0], y[j], metric=name, w=None if w is None else w[j])
            assert_close(result[i, j], one, depth=5)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_power(p, weighted):
    x, y = pair(METRICS["minkowski"])
    w = weights() if weighted else None
    wanted = powered(x, y, p, w)
    assert_close(km.cdist(x, y, p=p, w=w), wanted, depth=5, magnitude=0)
    assert_close(km.cdist(x, y, p=np.float64(p), w=w), wanted, depth=5, magnitude=0)
    assert_close(km.cdist(x, y, p=np.asarray([p]), w=w), wanted[None], depth=5, magnitude=0)
    sums = wanted if p in (0, math.inf) else powered(x, y, p, w) ** p
    assert_close(km.cdist(x, y, p=p, w=w, root=False), sums, depth=5)


def test_batch_of_powers():
    x, y = pair(METRICS["minkowski"])
    for powers in (POWERS, POWERS[:-1]):
        wanted = np.stack([powered(x, y, p) for p in powers])
        assert_close(km.cdist(x, y, p=np.array(powers)), wanted, depth=5)
        result = km.cdist(torch.from_numpy(x), torch.from_numpy(y), p=torch.tensor(powers, dtype=torch.float64))
        assert_close(result, wanted, depth=5)
    both = np.stack([x, x + 1])
    result = km.cdist(both, y, p=np.array([[1], [3.5]]))
    assert_close(result, np.stack([[powered(rows, y, p) for rows in both] for p in (1, 3.5)]), depth=5)


def test_a_power_per_row_of_a_batch_and_one_for_all():
    x, y = pair(METRICS["minkowski"])
    batch = np.stack([x, 2 * x, 3 * x])
    one = km.cdist(batch, y, p=np.array([1.3]))
    assert_close(one, np.stack([powered(rows, y, 1.3) for rows in batch]), depth=5)
    own = km.cdist(batch, y, p=np.array([1.0, 0.5, math.inf]))
    assert_close(
        own, np.stack([powered(rows, y, p) for rows, p in zip(batch, (1, 0.5, math.inf), strict=True)]), depth=5
    )


def test_what_cannot_be_read_and_is_invalid_gives_nan():
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    contract = torch.compile(lambda p: km.cdist(x, p=p), fullgraph=True, backend="eager")
    result = contract(torch.tensor([2.0, -1.0, math.nan]))
    assert_close(result[0], km.cdist(x.double()))
    assert result[1:].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_without_root(name):
    row = METRICS[name]
    x, y = pair(row)
    wanted = exact(row, x, y)
    whole = wanted if row.form.root is None else wanted**2
    assert_close(km.cdist(x, y, metric=name, root=False), whole, depth=5)
    assert_close(km.cdist(x, y, metric=name), wanted, depth=5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NAMES),
        *zip(NAMES, itertools.cycle([torch.float16, torch.bfloat16]), strict=False),
    ],
)
def test_narrow_types(name, dtype):
    row = METRICS[name]
    x, y = (torch.from_numpy(rows).to(dtype) for rows in pair(row))
    result = km.cdist(x, y, metric=name)
    assert result.dtype == dtype
    assert_close(result, exact(row, x.double().numpy(), y.double().numpy()), depth=5)
    target = torch.empty_like(result)
    assert km.cdist(x, y, metric=name, out=target) is target
    assert torch.equal(target, result) or bool((target == result).logical_or(result.isnan()).all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64])
def test_whole_numbers(name, dtype):
    row = METRICS[name]
    x, y = ((rows > 0.4).astype(dtype) for rows in (np.random.default_rng(0).random((count, 5)) for count in (7, 6)))
    options = {"VI": np.eye(5)} if name == "mahalanobis" else {}
    if name == "jensenshannon":
        x[:, 0] = y[:, 0] = 1
    with np.errstate(all="ignore"):
        wanted = exact(row, x.astype(float), y.astype(float), **options)
    host = km.cdist(x, y, metric=name, **options)
    assert host.dtype == np.float64
    assert_close(host, wanted, depth=5)
    options = {label: torch.from_numpy(value).float() for label, value in options.items()}
    single = km.cdist(torch.from_numpy(x), torch.from_numpy(y), metric=name, **options)
    assert single.dtype == torch.float32
    assert_close(single, wanted, depth=5)


def test_whole_weights():
    x, y = pair(METRICS["cityblock"])
    wanted = distance.cdist(x, y, "cityblock", w=[1, 0, 2, 3, 1])
    assert_close(km.cdist(x, y, metric="cityblock", w=np.array([1, 0, 2, 3, 1])), wanted, depth=5)


def test_variances_and_covariances_are_those_of_scipy():
    x, y = pair(METRICS["seuclidean"], 9, 8)
    for name in ("seuclidean", "mahalanobis"):
        assert_close(km.cdist(x, metric=name), distance.cdist(x, x, name), depth=5)
        assert_close(km.pdist(x, metric=name), distance.pdist(x, name), depth=5)
        assert_close(km.cdist(x + 1e3, y + 1e3, metric=name), distance.cdist(x, y, name), depth=5, magnitude=1e3)
    skewed = np.random.default_rng(0).random((5, 5))
    skewed = skewed @ skewed.T + np.triu(skewed) - np.triu(skewed).T
    assert_close(
        km.cdist(x, y, metric="mahalanobis", VI=skewed), distance.cdist(x, y, "mahalanobis", VI=skewed), depth=25
    )


def test_own_variances_of_a_batch():
    x, y = pair(METRICS["seuclidean"], 9, 8)
    for name, option, value in (("seuclidean", "V", np.ones(5)), ("mahalanobis", "VI", np.eye(5))):
        scales = np.array([1.0, 2.0, 5.0])
        result = km.cdist(x, y, metric=name, **{option: np.stack([scale * value for scale in scales])})
        factors = 1 / scales if option == "V" else scales
        wanted = np.sqrt(factors)[:, None, None] * distance.cdist(x, y)
        assert_close(result, wanted, depth=5)
        batch = km.cdist(np.stack([x, 3 * x]), y, metric=name)
        assert_close(batch, np.stack([distance.cdist(rows, y, name) for rows in (x, 3 * x)]), depth=25)


@pytest.mark.parametrize("base", [2, 10.0, np.float32(2)])
def test_base(base):
    x, y = pair(METRICS["jensenshannon"])
    wanted = exact(METRICS["jensenshannon"], x, y, base=float(base))
    assert_close(km.cdist(x, y, metric="jensenshannon", base=base), wanted, depth=5)
    assert_close(
        km.cdist(x, y, metric="jensenshannon", base=np.array([base, base])), np.stack([wanted, wanted]), depth=5
    )


@pytest.mark.parametrize("name", NAMES)
def test_other_names(name):
    row = METRICS[name]
    x, y = pair(row, k=3)
    for alias in row.aliases:
        np.testing.assert_array_equal(km.cdist(x, y, metric=alias), km.cdist(x, y, metric=name))
        if row.scipy and alias not in ("manhattan", "l1", "l2"):
            distance.cdist(x, y, alias)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 40])
def test_condensed(name, n, monkeypatch):
    monkeypatch.setattr(condensed, "SMALLEST_BLOCK", 4)
    row = METRICS[name]
    x = rows(row.domain, n, 3, 1).numpy()
    options = {"V": np.ones(3)} if name == "seuclidean" else {"VI": np.eye(3)} if name == "mahalanobis" else {}
    upper = np.triu_indices(n, 1)
    wanted = exact(row, x, x, **options)[upper]
    result = km.pdist(x, metric=name, **options)
    assert_close(result, wanted, depth=3)
    target = np.empty_like(result)
    assert km.pdist(x, metric=name, out=target, **options) is target
    np.testing.assert_array_equal(target, result)


def test_condensed_batches_and_powers():
    x = np.stack([rows("real", 6, 3, seed).numpy() for seed in (1, 2)])
    result = km.pdist(x, p=np.array([[1.0], [3.0], [math.inf]]))
    wanted = [[distance.pdist(one, "minkowski", p=p) for one in x] for p in (1.0, 3.0, math.inf)]
    assert_close(result, np.array(wanted), depth=3)
    half = torch.from_numpy(x).half()
    assert km.pdist(half, metric="cosine").dtype == torch.float16
    assert km.pdist(half, metric="cosine").shape == (2, 15)


def test_autocast_computes_in_float32():
    x, y = (torch.from_numpy(rows).float() for rows in pair(METRICS["mahalanobis"]))
    inverse = torch.eye(5) + 0.001
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, options in (("mahalanobis", {"VI": inverse}), ("inner_product", {}), ("cosine", {})):
            result = km.cdist(x, y, metric=name, **options)
            half = km.cdist(x.bfloat16(), y.bfloat16(), metric=name, **{k: v.bfloat16() for k, v in options.items()})
            assert result.dtype == half.dtype == torch.float32
            double = {label: value.double() for label, value in options.items()}
            assert_close(result, km.cdist(x.double(), y.double(), metric=name, **double), depth=25)


@pytest.mark.parametrize("metric", ["cosine", "correlation"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("power", [-30, -22, -9.5, -9, 9, 9.5, 22, 30])
def test_directions_of_rows_whose_squares_the_type_does_not_hold(metric, dtype, power):
    scale = 10.0 ** (power if dtype == torch.float32 else 8 * power)
    x, y = rows("real", 5, 4, 1).to(dtype), rows("real", 6, 4, 2).to(dtype)
    expected = distance.cdist(x.double().numpy(), y.double().numpy(), metric)
    for moved in (x * scale, torch.cat([x[:2] * scale, x[2:]])):  # of all rows, and of some
        assert_close(km.cdist(moved, y, metric=metric), torch.from_numpy(expected), depth=64)
