"""Clusters: scikit-learn's from the same start, edges, tensors, and rows that nobody stores a matrix of."""

import warnings

import numpy as np
import pytest
import sklearn.cluster
import torch
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from kernmantle import estimators
from kernmantle.testing import assert_close

ROWS = np.random.default_rng(0).normal(size=(1500, 5))
WEIGHTS = np.random.default_rng(1).integers(0, 4, 1500).astype(float)


def same_means(ours, theirs):
    assert (ours.labels_ == theirs.labels_).all()
    assert ours.n_iter_ == theirs.n_iter_
    assert_close(ours.cluster_centers_, theirs.cluster_centers_, depth=1500)
    assert_close(ours.inertia_, theirs.inertia_, depth=1500)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize(
    "given",
    [
        {"init": ROWS[:7]},
        {},
        {"init": "random", "n_init": 3},
        {"init": lambda x, k, random_state: x[-k:].copy(), "n_init": 1},
    ],
)
def test_means_are_those_of_scikit_learn(given, weights):
    options = {"n_clusters": 7, "random_state": 5, **given}
    theirs = sklearn.cluster.KMeans(**options).fit(ROWS, sample_weight=weights)
    ours = estimators.KMeans(**options).fit(ROWS, sample_weight=weights)
    same_means(ours, theirs)
    fresh = ROWS[:50] + 0.3
    assert (ours.predict(fresh) == theirs.predict(fresh)).all()
    assert_close(ours.transform(fresh), theirs.transform(fresh), depth=10)
    assert_close(ours.score(fresh), theirs.score(fresh), depth=100)


def test_a_cluster_without_rows_takes_the_farthest():
    start = np.full((5, 5), 50.0)
    start[0] = 0
    theirs = sklearn.cluster.KMeans(5, init=start, n_init=1, max_iter=500).fit(ROWS)
    ours = estimators.KMeans(5, init=start, max_iter=500).fit(ROWS)
    assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1
    assert_close(ours.inertia_, theirs.inertia_, depth=1500)
    weighted = estimators.KMeans(5, init=start, max_iter=500).fit(ROWS, sample_weight=WEIGHTS)
    assert len(np.unique(weighted.labels_[WEIGHTS > 0])) == 5


def test_means_of_float32_are_as_good_as_those_of_float64():
    """A mean of many rows far from the origin; sums in float32 alone would lose it."""
    x = (np.random.default_rng(0).uniform(size=(200_000, 2)) + 1000).astype(np.float32)
    found = estimators.KMeans(1).fit(x)
    assert_close(found.cluster_centers_[0], x.astype(np.float64).mean(0), magnitude=0)


@pytest.mark.parametrize("kind", ["KMeans"])
def test_equal_rows_and_an_early_end_warn(kind):
    twice = np.repeat([[0.0, 0.0], [1.0, 1.0]], 5, 0)
    with pytest.warns(ConvergenceWarning, match="found 2 distinct clusters, fewer than n_clusters=4"):
        assert len(np.unique(getattr(estimators, kind)(4, random_state=0).fit(twice).labels_)) == 2
    with pytest.warns(ConvergenceWarning, match="stopped after max_iter=1 steps"):
        getattr(estimators, kind)(8, random_state=0, max_iter=1).fit(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = getattr(estimators, kind)(1, random_state=0).fit(ROWS[:1])
    assert found.inertia_ == 0
    assert found.labels_.tolist() == [0]


def test_several_runs_keep_the_best():
    x, y = make_blobs(300, centers=8, cluster_std=0.3, random_state=0)
    runs = [estimators.KMeans(8, init="random", n_init=1, random_state=seed).fit(x).inertia_ for seed in range(6)]
    assert max(runs) > 1.05 * min(runs)
    many = estimators.KMeans(8, init="random", n_init=20, random_state=0, verbose=True).fit(x)
    assert many.inertia_ <= 1.001 * min(runs)
    assert adjusted_rand_score(many.labels_, y) > 0.9


def test_tensors_and_strides_and_gradients():
    x = torch.from_numpy(ROWS)
    tensors = estimators.KMeans(6, random_state=2).fit(x.T.contiguous().T)
    arrays = estimators.KMeans(6, random_state=2).fit(ROWS[:, ::-1][:, ::-1])
    assert torch.equal(tensors.labels_, torch.from_numpy(arrays.labels_))
    assert_close(tensors.cluster_centers_, arrays.cluster_centers_)
    assert torch.equal(tensors.fit_predict(x), tensors.labels_)
    z = x[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(tensors.transform, z)
    assert not tensors.fit(x.clone().requires_grad_()).cluster_centers_.requires_grad


BAD = [
    (lambda x: estimators.KMeans(0).fit(x), "'n_clusters' parameter of KMeans must be an int"),
    (lambda x: estimators.KMeans(31).fit(x), "n_samples=30 should be >= n_clusters=31"),
    (lambda x: estimators.KMeans(2, init="k-medians").fit(x), "'init' parameter of KMeans"),
    (lambda x: estimators.KMeans(2, init=x[:3]).fit(x), r"shape \(3, 4\), it must have \(2, 4\)"),
    (lambda x: estimators.KMeans(2, init=x[:2] * np.nan).fit(x), "init of KMeans contains NaN"),
    (lambda x: estimators.KMeans(2, tol=-1.0).fit(x), "'tol' parameter"),
    (lambda x: estimators.KMeans(2).fit(x * np.inf), "NaN|infinity"),
    (lambda x: estimators.KMeans(2).fit(x, sample_weight=-np.ones(30)), "[Nn]egative"),
    (lambda x: estimators.KMeans(2).fit(x).predict(x[:, :3]), "features"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call(load_iris().data[:30])
