"""Queries of nearest neighbours and of radii: scikit-learn, scipy and the whole matrix as oracles."""

import pickle

import numpy as np
import pytest
import sklearn.neighbors
import torch
from scipy.spatial.distance import cdist, cityblock
from sklearn.base import clone

import kernmantle as km
from kernmantle import errors, estimators
from kernmantle.pairwise.distance import Distances, numbered
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Z = RANDOM.normal(size=(60, 5)), RANDOM.normal(size=(25, 5))
OWN = {
    "lambda": lambda a, b: abs(a - b),
    "kernel": km.Kernel(lambda a, b: abs(a - b)),
    "contraction": km.Contraction("ik,jk->ij", lambda a, b: abs(a - b)),
    "name": "cityblock",
    "power": "minkowski",
}


def near(metric="cityblock", **given):
    return estimators.NearestNeighbors(metric=metric, **given).fit(X)


@pytest.mark.parametrize("metric", OWN.values(), ids=OWN)
def test_every_way_to_say_a_metric_orders_rows_alike(metric):
    ours = near(metric, p=1, radius=4.0)
    theirs = sklearn.neighbors.NearestNeighbors(metric="cityblock", radius=4.0).fit(X)
    for rows in (Z, None):
        distances, indices = ours.kneighbors(rows, 7)
        expected, places = theirs.kneighbors(rows, 7)
        assert_close(distances, expected, depth=10)
        assert (indices == places).all()
        assert (ours.kneighbors(rows, 7, return_distance=False) == places).all()
        found, at = ours.radius_neighbors(rows, sort_results=True)
        wanted, where = theirs.radius_neighbors(rows, sort_results=True)
        for one, other, place, right in zip(found, wanted, at, where, strict=True):
            assert_close(one, other, depth=10)
            assert (place == right).all()
        for mode in ("connectivity", "distance"):
            for query in ("kneighbors_graph", "radius_neighbors_graph"):
                graph, wanted = getattr(ours, query)(rows, mode=mode), getattr(theirs, query)(rows, mode=mode)
                assert (graph.format, graph.shape, graph.nnz) == ("csr", wanted.shape, wanted.nnz)
                assert_close(graph.toarray(), wanted.toarray(), depth=10)


@pytest.mark.parametrize("metric", ["canberra", "cosine", "mahalanobis", "euclidean"])
def test_metrics_are_those_of_scipy(metric):
    options = {"VI": np.linalg.inv(np.cov(X.T))} if metric == "mahalanobis" else {}
    ours, expected = near(metric, metric_params=options), cdist(Z, X, metric, **options)
    assert_close(ours.kneighbors(Z, 60)[0], np.sort(expected), depth=1000)
    radius = float(np.median(expected))
    assert (ours.radius_neighbors_graph(Z, radius).toarray() == (expected <= radius)).all()


def test_parameters_of_lambdas_and_contractions():
    expected = np.argsort((abs(Z[:, None] - X) ** 1.3).sum(-1))[:, :3]
    for metric in (lambda a, b, p: abs(a - b) ** p, km.Contraction("mk,nk->mn", lambda a, b, p=2: abs(a - b) ** p)):
        assert (near(metric, metric_params={"p": 1.3}).kneighbors(Z, 3, False) == expected).all()
        assert (km.argkmin(Z, X, 3, metric=metric, p=1.3) == expected).all()


def test_clusters_take_any_metric():
    for name in ("KMedoids", "SpectralClustering"):
        options = {"affinity": "nearest_neighbors"} if name == "SpectralClustering" else {}
        found = [
            getattr(estimators, name)(3, metric=metric, random_state=0, **options).fit(X).labels_
            for metric in (OWN["lambda"], OWN["contraction"], "cityblock")
        ]
        assert (found[0] == found[2]).all()
        assert (found[1] == found[2]).all()


def test_precomputed_distances():
    square, wide = cdist(X, X, "cityblock"), cdist(Z, X, "cityblock")
    ours, direct = estimators.NearestNeighbors(metric="precomputed", radius=4.0).fit(square), near(radius=4.0)
    for rows, matrix in ((Z, wide), (None, None)):
        assert (ours.kneighbors(matrix, 4, False) == direct.kneighbors(rows, 4, False)).all()
        graphs = ours.radius_neighbors_graph(matrix), direct.radius_neighbors_graph(rows)
        assert (graphs[0] != graphs[1]).nnz == 0
    labels = (X[:, 0] > 0).astype(int)
    for name in ("KNeighborsClassifier", "RadiusNeighborsClassifier", "KNeighborsRegressor"):
        given = {"radius": 5.0} if "Radius" in name else {}
        one = getattr(estimators, name)(metric="precomputed", **given).fit(square, labels).predict(wide)
        assert (one == getattr(estimators, name)(metric="cityblock", **given).fit(X, labels).predict(Z)).all()
    with pytest.raises(ValueError, match="must be square"):
        ours.fit(wide)
    with pytest.raises(ValueError, match="Negative values"):
        ours.kneighbors(-wide)


def test_a_row_is_none_of_its_own_neighbours_whatever_duplicates_there_are():
    rows = np.repeat([[0.0], [1.0]], 4, 0)
    ours = estimators.NearestNeighbors(3, radius=0).fit(rows)
    distances, indices = ours.kneighbors()
    assert (distances == 0).all()
    assert (indices != np.arange(8)[:, None]).all()
    assert (indices // 4 == np.arange(8)[:, None] // 4).all()
    assert [sorted(row) for row in ours.radius_neighbors(return_distance=False)] == [
        [other for other in range(8) if other // 4 == row // 4 and other != row] for row in range(8)
    ]
    labels = np.arange(8)
    assert (estimators.KNeighborsClassifier(1).fit(rows, labels).predict(None) != labels).all()


def test_edges():
    one = estimators.NearestNeighbors(1, radius=0.0).fit([[1.0]])
    assert one.kneighbors([[3.0]])[0] == 2
    assert [len(row) for row in one.radius_neighbors([[3.0], [1.0]], return_distance=False)] == [0, 1]
    assert [len(row) for row in one.radius_neighbors(return_distance=False)] == [0]
    assert one.radius_neighbors_graph([[3.0]]).shape == (1, 1)
    with pytest.raises(ValueError, match="n_neighbors < n_samples_fit"):
        one.kneighbors()
    with pytest.raises(ValueError, match="n_neighbors <= n_samples_fit"):
        one.kneighbors([[3.0]], 2)
    assert near().kneighbors(Z, 60)[1].shape == (25, 60)
    with pytest.raises(TypeError, match="must be an integer"):
        one.kneighbors([[3.0]], 1.0)
    with pytest.raises(ValueError, match="radius must be a number"):
        one.radius_neighbors([[3.0]], -1.0)
    with pytest.raises(ValueError, match="mode='weights'"):
        one.kneighbors_graph([[3.0]], mode="weights")
    for rows in ([[np.nan]], [[np.inf]]):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            one.kneighbors(rows)
    grid = np.stack(np.meshgrid(np.arange(7), np.arange(6)), -1).reshape(-1, 2) + 0.0
    for metric, count in (("euclidean", 4), ("chebyshev", 8), ("cityblock", 4)):  # at the radius exactly
        graph = estimators.NearestNeighbors(radius=1.0, metric=metric).fit(grid).radius_neighbors_graph()
        assert graph.sum(1).max() == count


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        (lambda a, b: abs(a - b).sum(), errors.TraceError, "one entry of each row"),
        (lambda a: a, errors.TraceError, "takes 1 positional argument"),
        (lambda a, b, p: abs(a - b) ** p, errors.ParameterError, "'p' is missing"),
        (cityblock, errors.ParameterError, "metric='cityblock'"),
        (km.Contraction("mk,kn->mn", lambda a, b: a * b), errors.ParameterError, "two sets of rows"),
        (km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p), errors.ParameterError, "'p' of the metric is"),
        (km.Gaussian(1.0), errors.ParameterError, "is a similarity"),
        ("euclidian", errors.ParameterError, "did you mean 'euclidean'"),
    ],
)
def test_a_metric_that_makes_no_sense_is_refused_by_fit(metric, error, message):
    for name in ("NearestNeighbors", "KNeighborsRegressor", "RadiusNeighborsRegressor", "KMedoids"):
        with pytest.raises(error, match=message):
            getattr(estimators, name)(metric=metric).fit(X, X[:, 0])


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_votes_and_means_within_a_radius_are_those_of_scikit_learn(weights):
    rows, targets = np.concatenate([X, X[:5]]), np.concatenate([X, X[:5]]) @ np.ones((5, 2)) + [0.0, 1.0]
    labels = np.array(["no", "yes"])[(targets[:, 0] > 0).astype(int)]
    asked = np.concatenate([Z, X[:3], [[9.0] * 5]])
    given = {"radius": 5.0, "weights": weights, "metric": "cityblock"}
    ours = estimators.RadiusNeighborsRegressor(**given).fit(rows, targets)
    theirs = sklearn.neighbors.RadiusNeighborsRegressor(**given).fit(rows, targets)
    with pytest.warns(UserWarning, match="predicted as NaN"):
        found = ours.predict(asked)
    with pytest.warns(UserWarning, match="predicting NaN"):
        expected = theirs.predict(asked)
    assert_close(found[:-1], expected[:-1], depth=1000)
    assert np.isnan(found[-1]).all()
    for outlier in ("no", "most_frequent"):
        votes = estimators.RadiusNeighborsClassifier(outlier_label=outlier, **given).fit(rows, labels)
        wanted = sklearn.neighbors.RadiusNeighborsClassifier(outlier_label=outlier, **given).fit(rows, labels)
        assert (votes.predict(asked) == wanted.predict(asked)).all()
        assert_close(votes.predict_proba(asked), wanted.predict_proba(asked), depth=1000)
    with pytest.raises(ValueError, match=r"No neighbors found for 1 rows.*outlier_label"):
        estimators.RadiusNeighborsClassifier(**given).fit(rows, labels).predict(asked)
    with pytest.raises(TypeError, match="cannot be converted to the type of y"):
        estimators.RadiusNeighborsClassifier(outlier_label="perhaps it is neither", **given).fit(rows, labels)
    alone = estimators.RadiusNeighborsRegressor(**given).fit(X, X[:, 0]).predict(None)
    part = [estimators.RadiusNeighborsRegressor(**given).fit(np.delete(X, i, 0), np.delete(X[:, 0], i)) for i in (0, 7)]
    assert_close(alone[[0, 7]], [one.predict(X[[i]])[0] for one, i in zip(part, (0, 7), strict=True)], depth=1000)


def test_indices_of_rows_that_record_gradients():
    asked, rows = torch.from_numpy(Z).requires_grad_(), torch.from_numpy(X)
    with torch.no_grad():
        wanted = km.argkmin(asked, rows, 3, metric="cityblock")
    assert torch.equal(km.argkmin(asked.detach(), rows, 3, metric="cityblock"), wanted)
    distances, indices = km.argkmin(asked, rows, 3, metric="cityblock", return_values=True)
    assert torch.equal(indices, wanted)
    assert distances.requires_grad


def test_tensors_come_back_as_tensors_with_gradients_of_the_distances():
    asked = torch.from_numpy(Z).requires_grad_()
    ours = estimators.NearestNeighbors(3, radius=4.0, metric="cityblock").fit(torch.from_numpy(X))
    distances, indices = ours.kneighbors(asked)
    (gradient,) = torch.autograd.grad(distances.sum(), asked)
    assert_close(gradient, np.sign(Z[:, None] - X[indices]).sum(1), depth=10)
    found, places = ours.radius_neighbors(asked)
    assert isinstance(found, list)
    assert all(isinstance(part, torch.Tensor) for part in (*found, *places))
    labels = torch.from_numpy(X[:, 0] > 0).long()
    votes = estimators.RadiusNeighborsClassifier(5.0).fit(torch.from_numpy(X), labels)
    assert isinstance(votes.predict(torch.from_numpy(X)), torch.Tensor)
    half = estimators.NearestNeighbors(3).fit(X.astype(np.float32))
    assert half.kneighbors(Z.astype(np.float32))[0].dtype == np.float32


def test_a_fitted_estimator_has_what_it_traced():
    ours = estimators.NearestNeighbors(metric=OWN["kernel"]).fit(X)
    again = pickle.loads(pickle.dumps(ours))
    assert (again.kneighbors(Z, 4, False) == ours.kneighbors(Z, 4, False)).all()
    assert clone(near(OWN["lambda"])).metric is OWN["lambda"]


def test_a_radius_takes_blocks_of_memory(monkeypatch):
    import kernmantle.estimators.neighbor_queries as module

    monkeypatch.setattr(module, "LARGEST", 8 * 60 * 2)
    heights = []
    whole = Distances.matrix
    monkeypatch.setattr(Distances, "matrix", lambda self: heights.append(self.shape[0]) or whole(self))
    expected = (cdist(X, X) <= 2.0) & ~np.eye(60, dtype=bool)
    assert (near("euclidean").radius_neighbors_graph(radius=2.0).toarray() == expected).all()
    assert max(heights) == 2
    assert sum(heights) == expected.any(1).sum() < 60


def test_rows_that_a_type_does_not_tell_apart_are_refused():
    like = Distances.precomputed(torch.zeros(1, 1))
    assert numbered(3, like).tolist() == [0, 1, 2]
    with pytest.raises(errors.ParameterError, match="pass float64"):
        numbered(1 << 25, like)


@pytest.mark.parametrize("name", ["KNeighborsClassifier", "KNeighborsRegressor"])
@pytest.mark.parametrize("weights", [None, lambda distances: np.exp(-distances)])
def test_weights_may_be_a_function_as_of_scikit_learn(name, weights):
    random = np.random.default_rng(0)
    x, z, y = random.normal(size=(40, 3)), random.normal(size=(9, 3)), random.integers(3, size=40)
    ours, theirs = (getattr(home, name)(4, weights=weights).fit(x, y) for home in (km.estimators, sklearn.neighbors))
    assert_close(
        torch.from_numpy(np.float64(ours.predict(z))), torch.from_numpy(np.float64(theirs.predict(z))), depth=40
    )


def test_bad_weights_of_a_function():
    x, y = np.arange(4.0)[:, None], np.array([0, 1, 0, 1])
    for weights, match in (
        (np.zeros_like, "zero weights"),
        (lambda d: d[:, :1], "gave shape"),
        ("best", "a function or None"),
    ):
        with pytest.raises(ValueError, match=match):
            km.estimators.KNeighborsClassifier(2, weights=weights).fit(x, y).predict(x)


def test_a_radius_may_be_infinite():
    x = np.arange(5.0)[:, None]
    found = km.estimators.NearestNeighbors(radius=np.inf).fit(x).radius_neighbors_graph(mode="distance").toarray()
    assert np.array_equal(found, np.abs(x - x.T))
    with pytest.raises(ValueError, match="radius"):
        km.estimators.NearestNeighbors(radius=np.nan).fit(x).radius_neighbors(x)


@pytest.mark.parametrize("name", ["RadiusNeighborsRegressor", "RadiusNeighborsClassifier"])
def test_weights_within_a_radius_may_be_a_function_of_the_distance_or_none(name):
    y = X[:, 0] if "Regressor" in name else (X[:, 0] > np.median(X[:, 0])).astype(int)
    for ours, theirs in (
        (None, None), (lambda d: km.exp(-d), lambda rows: np.array([np.exp(-d) for d in rows], dtype=object)),
    ):  # fmt: skip
        fitted = getattr(estimators, name)(5.0, weights=ours).fit(X, y)
        want = getattr(sklearn.neighbors, name)(5.0, weights=theirs).fit(X, y).predict(Z)
        assert_close(fitted.predict(Z), want, depth=64)
    with pytest.raises(ValueError, match="a function or None"):
        getattr(estimators, name)(5.0, weights="gaussian").fit(X, y)
