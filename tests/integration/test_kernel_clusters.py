"""Clusters by kernels: those of a stored matrix, and scikit-learn's."""

import numpy as np
import pytest
import sklearn.cluster
import torch
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

import kernmantle as km
from kernmantle import estimators
from kernmantle.testing import assert_close

ROWS = np.random.default_rng(0).normal(size=(430, 5))
WEIGHTS = np.random.default_rng(1).uniform(0.5, 4, 400)


def kernel_means(matrix, weights, labels, count):
    """Lloyd's iteration on a stored kernel matrix: labels that no step changes, and the sum of squares."""
    while True:
        members = weights[:, None] * np.eye(count)[labels]
        members /= members.sum(0)
        gaps = matrix.diagonal()[:, None] - 2 * matrix @ members + (members * (matrix @ members)).sum(0)
        if (gaps.argmin(1) == labels).all():
            return labels, (weights * gaps.min(1)).sum()
        labels = gaps.argmin(1)


@pytest.mark.parametrize(
    ("kernel", "weights"),
    [(km.Laplace(2.0), None), (0.5 * km.Gaussian(1.5) + km.Linear(), WEIGHTS)],
    ids=["laplace", "sum, weighted"],
)
def test_kernel_means_are_those_of_a_stored_matrix(kernel, weights):
    x, start = ROWS[:400], np.random.default_rng(2).integers(0, 5, 400)
    found = estimators.KernelKMeans(5, kernel=kernel, init=start, tol=0).fit(x, sample_weight=weights)
    matrix, own = kernel(x), np.ones(400) if weights is None else weights
    labels, inertia = kernel_means(matrix, own, start, 5)
    assert (found.labels_ == labels).all()
    assert_close(found.inertia_, inertia, depth=400)
    members = own[:, None] * np.eye(5)[labels]
    members /= members.sum(0)
    gaps = kernel.diagonal(ROWS[400:430])[:, None] - 2 * kernel(ROWS[400:430], x) @ members
    gaps += (members * (matrix @ members)).sum(0)
    assert (found.predict(ROWS[400:430]) == gaps.argmin(1)).all()
    assert_close(found.transform(ROWS[400:430]), np.sqrt(gaps), depth=10**4)
    assert_close(found.score(ROWS[400:430]), -gaps.min(1).sum(), depth=10**4)


def test_kernel_means_of_inner_products_are_means():
    means = estimators.KMeans(6, random_state=3).fit(ROWS)
    found = estimators.KernelKMeans(6, kernel="linear", random_state=3, tol=0).fit(ROWS)
    assert adjusted_rand_score(found.labels_, means.labels_) == 1
    assert_close(found.inertia_, means.inertia_, depth=10**4)
    assert (found.predict(ROWS) == found.labels_).all()


@pytest.mark.parametrize("affinity", ["kernel", "nearest_neighbors", "precomputed"])
@pytest.mark.parametrize(("shape", "dtype"), [("moons", np.float32), ("circles", np.float64)])
@pytest.mark.filterwarnings("ignore:Graph is not fully connected")
def test_spectral_clusters_are_those_of_scikit_learn(shape, dtype, affinity):
    x, y = make_moons(300, noise=0.06, random_state=0) if shape == "moons" else make_circles(
        300, factor=0.4, noise=0.06, random_state=0
    )  # fmt: skip
    x = x.astype(dtype)
    name = "rbf" if affinity == "kernel" else affinity
    kernel = km.Gaussian(0.15)
    given = kernel(x) if affinity == "precomputed" else x
    theirs = sklearn.cluster.SpectralClustering(2, affinity=name, gamma=1 / (2 * 0.15**2), random_state=0).fit(given)
    chosen = kernel if affinity == "kernel" else affinity
    ours = estimators.SpectralClustering(2, affinity=chosen, random_state=0).fit(given)
    assert adjusted_rand_score(ours.labels_, theirs.labels_) == 1
    assert adjusted_rand_score(ours.labels_, y) > 0.85
    assert ours.embedding_.dtype == dtype
    tensors = estimators.SpectralClustering(2, affinity=chosen, random_state=0).fit(torch.from_numpy(given))
    assert torch.equal(tensors.labels_, torch.from_numpy(ours.labels_))


def test_the_embedding_has_the_eigenvectors_of_the_laplacian():
    x = np.random.default_rng(0).normal(size=(250, 3))
    matrix = np.exp(-cdist(x, x, "sqeuclidean") / (2 * 0.7**2))
    np.fill_diagonal(matrix, 0)
    degrees = matrix.sum(1)
    laplacian = np.eye(250) - matrix / np.sqrt(np.outer(degrees, degrees))
    vectors = np.linalg.eigh(laplacian)[1][:, :4] / np.sqrt(degrees)[:, None]
    found = estimators.SpectralClustering(4, affinity=km.Gaussian(0.7), eigen_tol=1e-13, random_state=0).fit(x)
    assert_close(np.abs(found.embedding_), np.abs(vectors), depth=10**7)


def test_an_affinity_without_a_gap_is_stored_where_it_is_small(monkeypatch):
    x = np.linspace(0, 1, 700)[:, None]
    estimator = estimators.SpectralClustering(7, affinity=km.Gaussian(0.002), eigen_tol=1e-15, random_state=0)
    labels = estimator.fit(x).labels_
    assert (np.diff(labels) != 0).sum() == 6
    monkeypatch.setattr("kernmantle.estimators.spectral.LARGEST_STORED", 699)
    with pytest.raises(ValueError, match="raise eigen_tol"):
        estimator.fit(x)


BAD = [
    (lambda x: estimators.KernelKMeans(2, kernel="lapla").fit(x), "kernel='lapla' of KernelKMeans"),
    (lambda x: estimators.KernelKMeans(2, kernel=km.Kernel(lambda a, b: a - b)).fit(x), "not symmetric"),
    (lambda x: estimators.KernelKMeans(2, init=np.full(30, 2)).fit(x), "a label from 0 to 1 for each of the 30"),
    (lambda x: estimators.SpectralClustering(2, affinity="rbff").fit(x), "affinity='rbff' of SpectralClustering"),
    (lambda x: estimators.SpectralClustering(2, affinity="linear").fit(x - x.mean(0)), "not negative"),
    (lambda x: estimators.SpectralClustering(2, affinity="precomputed").fit(x), "square matrix"),
    (lambda x: estimators.SpectralClustering(2, affinity="precomputed").fit(x[:4]), "not symmetric"),
    (lambda x: estimators.SpectralClustering(2, eigen_tol=0).fit(x), "'eigen_tol' parameter"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call(load_iris().data[:30])
