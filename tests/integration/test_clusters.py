"""Clusters: scikit-learn's from the same start, edges, tensors, and rows that nobody stores a matrix of."""

import warnings

import numpy as np
import pytest
import sklearn.cluster
import torch
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import kernmantle as km
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


@pytest.mark.parametrize("kind", ["KMeans", "KMedoids", "KernelKMeans"])
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


METRICS = [
    ("minkowski", {"p": 1.3}, {}), ("canberra", {}, {}),
    ("mahalanobis", {}, {"VI": np.linalg.inv(np.cov(ROWS[:60].T))}),
    (km.Kernel(lambda a, b: abs(a - b) / (1 + abs(a - b))), {}, None),
]  # fmt: skip


def distances(metric, options, x, y):
    if isinstance(metric, str):
        return cdist(x, y, metric, **options)
    gap = np.abs(x[:, None] - y)
    return (gap / (1 + gap)).sum(2)


def by_hand(matrix, medoids):
    """Alternation on a stored matrix: the medoids that no step changes."""
    while True:
        labels = matrix[:, medoids].argmin(1)
        members = [np.flatnonzero(labels == cluster) for cluster in range(len(medoids))]
        after = np.array([own[matrix[np.ix_(own, own)].sum(0).argmin()] for own in members])
        if (after == medoids).all():
            return medoids
        medoids = after


@pytest.mark.parametrize(("metric", "given", "theirs"), METRICS, ids=[str(row[0])[:9] for row in METRICS])
def test_medoids_are_those_of_a_stored_matrix(metric, given, theirs):
    x, fresh = ROWS[:60], ROWS[60:90]
    matrix = distances(metric, {**given, **(theirs or {})}, x, x)
    own = {"metric": metric, "metric_params": given, "random_state": 0}
    start = np.array([3, 20, 40, 59])
    found = estimators.KMedoids(4, init=start, **own).fit(x)
    assert (found.medoid_indices_ == by_hand(matrix, start)).all()
    assert estimators.KMedoids(4, method="pam", init=start, **own).fit(x).inertia_ <= found.inertia_
    assert start.tolist() == [3, 20, 40, 59]
    for init in ("k-medoids++", "heuristic", "build"):
        swapped = estimators.KMedoids(4, method="pam", init=init, **own).fit(x)
        medoids = swapped.medoid_indices_
        assert_close(swapped.inertia_, matrix[:, medoids].min(1).sum(), depth=200)
        assert (swapped.labels_ == matrix[:, medoids].argmin(1)).all()
        others = [np.r_[np.delete(medoids, i), c] for i in range(4) for c in range(60)]
        assert swapped.inertia_ <= min(matrix[:, each].min(1).sum() for each in others) + 1e-9
    across = distances(metric, {**given, **(theirs or {})}, fresh, x)[:, medoids]
    assert (swapped.predict(fresh) == across.argmin(1)).all()
    assert_close(swapped.transform(fresh), across, depth=100)
    assert (swapped.cluster_centers_ == x[medoids]).all()


def test_medoids_of_given_distances():
    matrix = cdist(ROWS[:200], ROWS[:200], "cityblock")
    for method in ("alternate", "pam"):
        stored, fused = (
            estimators.KMedoids(5, metric=metric, method=method, random_state=1).fit(x)
            for metric, x in (("precomputed", matrix), ("cityblock", torch.from_numpy(ROWS[:200])))
        )
        assert (stored.medoid_indices_ == fused.medoid_indices_.numpy()).all()
        assert stored.cluster_centers_ is None
        across = cdist(ROWS[200:220], ROWS[:200], "cityblock")
        assert (stored.predict(across) == fused.predict(torch.from_numpy(ROWS[200:220])).numpy()).all()
    assert fused.inertia_ <= estimators.KMedoids(5, metric="cityblock", random_state=1).fit(ROWS[:200]).inertia_
    single = estimators.KMedoids(1, metric="cityblock", method="pam").fit(ROWS[:200])
    assert single.medoid_indices_.tolist() == [matrix.sum(0).argmin()]


BAD = [
    (lambda x: estimators.KMedoids(2, method="clara").fit(x), "'method' parameter of KMedoids"),
    (lambda x: estimators.KMedoids(2, metric="kl").fit(x), "not symmetric"),
    (lambda x: estimators.KMedoids(2, metric="euclidian").fit(x), "did you mean 'euclidean'"),
    (lambda x: estimators.KMedoids(2, metric=km.Gaussian(1.0)).fit(x), "is a similarity"),
    (lambda x: estimators.KMedoids(2, metric="precomputed").fit(x), r"square matrix.*\(30, 4\)"),
    (lambda x: estimators.KMedoids(2, init=[1, 1]).fit(x), "n_clusters=2 different indices"),
    (lambda x: estimators.KMedoids(2, init=[1, 30]).fit(x), "n_clusters=2 different indices"),
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
