"""DBSCAN and HDBSCAN: scikit-learn's labels, and scipy's spanning tree of the whole matrix."""

import itertools

import numpy as np
import pytest
import sklearn.cluster
import torch
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

import kernmantle as km
from kernmantle import errors, estimators
from kernmantle.estimators import dbscan, hdbscan, neighbourhood
from kernmantle.estimators import spanning_tree as spanning_tree_module
from kernmantle.estimators.measure import Measure
from kernmantle.estimators.spanning_tree import spanning_tree
from kernmantle.pairwise.distance import REPORTED, Distances, distances
from kernmantle.testing import assert_close


def absolute(a, b):
    return abs(a - b)


def skewed(a, b):
    return km.maximum(a - b, 0)


RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-5, 5, (6, 3))[RANDOM.integers(0, 6, 400)] + 0.6 * RANDOM.normal(size=(400, 3))
LINE = RANDOM.permutation(np.linspace(0, 1, 200))[:, None]
METRICS = {
    "name": ("cityblock", "cityblock"), "lambda": (absolute, "cityblock"), "kernel": (km.Kernel(absolute), "cityblock"),
    "euclidean": ("euclidean", "euclidean"),
}  # fmt: skip


def same(ours, theirs):
    assert (ours.labels_ == theirs.labels_).all()
    assert (ours.core_sample_indices_ == theirs.core_sample_indices_).all()
    assert_close(ours.components_, theirs.components_, depth=1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("metric", "name"), METRICS.values(), ids=METRICS)
def test_dbscan_is_that_of_scikit_learn(metric, name, weighted):
    weights = RANDOM.integers(-1, 3, len(X)).astype(float) if weighted else None
    for eps, count in ((0.2, 2), (0.4, 4), (0.7, 4), (0.7, 1), (1.2, 10), (99.0, 5), (1e-9, 2)):
        options = {"eps": eps, "min_samples": count}
        theirs = sklearn.cluster.DBSCAN(metric=name, **options).fit(X, sample_weight=weights)
        same(estimators.DBSCAN(metric=metric, **options).fit(X, sample_weight=weights), theirs)
        if metric == "cityblock":
            stored = estimators.DBSCAN(metric="precomputed", **options).fit(cdist(X, X, name), sample_weight=weights)
            assert (stored.labels_ == theirs.labels_).all()


def test_dbscan_of_chains_duplicates_and_single_rows():
    grid = np.stack(np.meshgrid(np.arange(12), np.arange(9)), -1).reshape(-1, 2)[RANDOM.permutation(108)] + 0.0
    cases = [(LINE, 1.01 / 199, 2), (LINE, 0.99 / 199, 2), (LINE, 0.99 / 199, 1), (np.zeros((20, 2)), 0.1, 20)]
    cases += [(np.zeros((1, 2)), 0.1, 1), (np.zeros((1, 2)), 0.1, 2), (grid, 1.0, 5), (np.repeat(X, 3, 0), 0.3, 6)]
    for rows, eps, count in cases:
        options = {"eps": eps, "min_samples": count}
        same(estimators.DBSCAN(**options).fit(rows), sklearn.cluster.DBSCAN(algorithm="kd_tree", **options).fit(rows))


@pytest.fixture(params=[4e-6, 0.01, 0.2, 9.0])
def by_products(request, monkeypatch):
    """Euclidean distances by products, whatever they are of, and whatever error they are taken to have."""

    def products(measure, rows, radius):
        power = measure.euclidean_power
        return neighbourhood.Rounded.of(rows, radius ** (2 / power)) if power else None

    monkeypatch.setattr(dbscan, "rounded", products)
    monkeypatch.setattr(hdbscan, "rounded", products)
    monkeypatch.setattr(spanning_tree_module, "ASKED", 0)
    monkeypatch.setattr(neighbourhood, "_PRODUCT_ERROR", request.param)


def test_rows_whose_products_do_not_decide_are_asked_again(by_products):
    grid = np.stack(np.meshgrid(np.arange(12), np.arange(9)), -1).reshape(-1, 2)[RANDOM.permutation(108)] + 0.0
    cases = [(X, *case) for case in ((0.2, 2), (0.4, 4), (0.7, 4), (0.7, 1), (1.2, 10), (99.0, 5), (1e-9, 2))]
    cases += [(LINE, 1.01 / 199, 2), (LINE, 0.99 / 199, 2), (LINE, 0.99 / 199, 1), (grid, 1.0, 5)]
    cases += [(np.repeat(X, 3, 0), 0.3, 6), (np.zeros((20, 2)), 0.1, 20), (np.zeros((1, 2)), 0.1, 2)]
    for rows, eps, count in cases:
        options = {"eps": eps, "min_samples": count}
        theirs = sklearn.cluster.DBSCAN(algorithm="kd_tree", **options).fit(rows)
        same(estimators.DBSCAN(**options).fit(rows), theirs)
        if eps == 0.4:
            options["eps"] = eps**2
            same(estimators.DBSCAN(metric="sqeuclidean", **options).fit(rows), theirs)


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_rows_that_float32_does_not_hold_the_squares_of_are_compared_by_distances(scale):
    rows = torch.from_numpy(X * scale).float()
    products = neighbourhood.Rounded.of(rows, 0.25 * scale**2)
    assert (products is None) == (scale != 1)


@pytest.mark.parametrize("rechecked", [1, 10**9])
def test_rounds_of_products(monkeypatch, rechecked):
    """Few or many rows that are asked again come to the same components as scipy's."""
    monkeypatch.setattr(dbscan, "_RECHECKED", rechecked)
    rows = torch.from_numpy(X)
    for radius in (0.1, 0.3, 0.5, 0.9):
        found = distances("euclidean", {}, rows, rows)
        graph = cdist(X, X) <= radius
        wanted = connected_components(graph, directed=False)[1]
        for error in (None, 1e-6, 0.05, 0.4):
            monkeypatch.setattr(neighbourhood, "_PRODUCT_ERROR", error or 0)
            products = None if error is None else neighbourhood.Rounded.of(rows, radius**2)
            hood = neighbourhood.Neighbourhood(found, radius, products)
            assert (dbscan.connected(hood).numpy() == wanted).all()


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_products_are_on_the_sure_side(side, shift):
    """With float32 products of rows far from the origin, too."""
    rows = torch.randn(400, 20, generator=torch.Generator().manual_seed(0)) + shift
    exact = cdist(rows.double(), rows.double())
    for radius in np.quantile(exact, [0.01, 0.3, 0.7]):
        hood = neighbourhood.Neighbourhood(
            distances("euclidean", {}, rows, rows), radius, neighbourhood.Rounded.of(rows, radius**2)
        )
        counts = hood.reduced(neighbourhood.COUNT, side).numpy()
        nearly = (exact <= radius * (1 + side * 1e-3)).sum(1)
        wanted = (exact <= radius).sum(1)
        assert (side * counts >= side * wanted).all()
        assert (side * counts <= side * nearly).all()


@pytest.mark.parametrize(
    ("options", "power"),
    [
        ({"metric": "l2"}, 1), ({"metric": "sqeuclidean"}, 2), ({"metric": "minkowski", "p": 2}, 1),
        ({"metric": "minkowski", "p": 1}, 0), ({"metric": "cosine"}, 0), ({"metric": absolute}, 0),
        ({"metric": "precomputed"}, 0), ({"metric": "minkowski", "metric_params": {"w": np.ones(3)}}, 0),
    ],
)  # fmt: skip
def test_which_distances_are_compared_as_products(options, power):
    given = {"p": None, "metric_params": None} | options
    assert Measure.of(given["metric"], given["p"], given["metric_params"]).euclidean_power == power


def test_dbscan_joins_by_either_distance_where_they_are_two():
    for rows in (LINE, LINE[::-1].copy()):
        ours = estimators.DBSCAN(0.5 / 199, min_samples=1, metric=skewed).fit(rows)  # zero to all larger ones
        assert (ours.labels_ == 0).all()


TREES = {  # no two weights of the tree are equal where one row alone is its density
    "one": {"min_samples": 1}, "leaf": {"min_samples": 1, "cluster_selection_method": "leaf"},
    "small": {"min_samples": 1, "min_cluster_size": 2}, "epsilon": {"min_samples": 1, "cluster_selection_epsilon": 0.5},
    "single": {"min_samples": 1, "allow_single_cluster": True, "min_cluster_size": 150},
    "largest": {"min_samples": 1, "max_cluster_size": 60}, "dense": {"min_samples": 1, "min_cluster_size": 12},
    "alpha": {"min_samples": 1, "alpha": 1.5, "algorithm": "ball_tree"},
}  # fmt: skip


@pytest.mark.parametrize("options", TREES.values(), ids=TREES)
def test_hdbscan_is_that_of_scikit_learn(options):
    own = {name: value for name, value in options.items() if name != "algorithm"}
    theirs = sklearn.cluster.HDBSCAN(metric="cityblock", copy=True, **options).fit(X)
    stored = estimators.HDBSCAN(metric="precomputed", **own).fit(cdist(X, X, "cityblock"))
    for ours in (estimators.HDBSCAN(metric=absolute, **own).fit(X), stored):
        assert (ours.labels_ == theirs.labels_).all()
        assert_close(ours.probabilities_, theirs.probabilities_, depth=1000)
    cuts = ours.dbscan_clustering(0.8, 4), theirs.dbscan_clustering(0.8, 4)
    assert adjusted_rand_score(*cuts) == 1


def blobs(seed):
    return make_blobs(300, centers=5, n_features=3, cluster_std=[0.5, 1, 1.5, 0.7, 2.0], random_state=seed)[0]


@pytest.mark.parametrize("how", ["eom", "leaf"])
@pytest.mark.parametrize("metric", ["cityblock", "euclidean"])
def test_edges_of_equal_length_are_those_of_scikit_learn(metric, how):
    """Edges as long as a core distance are equal in many pairs: those to the first rows are taken."""
    for seed, (size, count) in enumerate([(12, None), (10, 5), (25, 8), (6, 3)] * 2):
        options = {"min_samples": count, "metric": metric, "cluster_selection_method": how}
        theirs = sklearn.cluster.HDBSCAN(size, copy=True, **options).fit(blobs(seed))
        ours = estimators.HDBSCAN(size, **options).fit(blobs(seed))
        assert (ours.labels_ == theirs.labels_).all()
        assert_close(ours.probabilities_, theirs.probabilities_, depth=1000)


def test_labels_of_random_calls_are_those_of_scikit_learn():
    random = np.random.default_rng(1)
    for seed in range(24):
        size, count = int(random.integers(2, 16)), int(random.integers(1, 9))
        options = {
            "min_samples": count, "metric": ["euclidean", "cityblock", "chebyshev"][seed % 3],
            "cluster_selection_method": ["eom", "leaf"][seed % 2], "allow_single_cluster": seed % 5 == 0,
            "max_cluster_size": 40 if seed % 7 == 1 else None,
        }  # fmt: skip
        rows = blobs(seed) if seed % 4 else random.normal(size=(200, 2))
        theirs = sklearn.cluster.HDBSCAN(size, copy=True, **options).fit(rows)
        ours = estimators.HDBSCAN(size, **options).fit(rows)
        assert (ours.labels_ == theirs.labels_).all()
        assert_close(ours.probabilities_, theirs.probabilities_, depth=1000)
        assert (ours.dbscan_clustering(1.0, 4) == theirs.dbscan_clustering(1.0, 4)).all()


def test_labels_are_those_of_the_package_hdbscan():
    theirs = pytest.importorskip("hdbscan").HDBSCAN
    for seed, (size, count) in enumerate([(10, 5), (25, 8), (6, 3)]):
        for metric, how in itertools.product(("cityblock", "euclidean", "chebyshev"), ("eom", "leaf")):
            rows = blobs(seed)
            exact = theirs(
                size, min_samples=count - 1, metric="precomputed", cluster_selection_method=how,
                approx_min_span_tree=False,
            ).fit(cdist(rows, rows, metric))  # fmt: skip
            # a row counts as the first of its own neighbours here, as in scikit-learn
            ours = estimators.HDBSCAN(size, min_samples=count, metric=metric, cluster_selection_method=how).fit(rows)
            assert (ours.labels_ == exact.labels_).all()
            assert_close(ours.probabilities_, exact.probabilities_, depth=1000)


def test_many_rows_have_any_smallest_tree(monkeypatch):
    monkeypatch.setattr(spanning_tree_module, "GROWN", 10)
    theirs = sklearn.cluster.HDBSCAN(12, metric="cityblock", copy=True).fit(X).labels_
    ours = estimators.HDBSCAN(12, metric="cityblock").fit(X).labels_
    assert adjusted_rand_score(ours, theirs) > 0.98
    assert np.count_nonzero(ours != theirs) <= len(X) // 100


@pytest.mark.parametrize("count", [1, 2, 5, 40, 400])
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_the_tree_is_the_smallest_of_mutual_reachability(count, alpha):
    for rows in (X, np.round(X), LINE, np.concatenate([X[:300], X[:100]])):
        if count > len(rows):
            continue
        matrix = cdist(rows, rows, "cityblock")
        core = np.sort(matrix, 1)[:, count - 1]
        mutual = np.maximum(np.maximum(core[:, None], core), matrix / alpha)
        expected = np.sort(minimum_spanning_tree(mutual + 1 - np.eye(len(rows))).data) - 1
        found = distances("cityblock", {}, torch.from_numpy(rows), torch.from_numpy(rows))
        tree = spanning_tree(found, count, alpha)
        assert len(tree.weight) == len(rows) - 1
        assert_close(np.sort(tree.weight), expected, depth=1000)
        assert_close(np.maximum(np.maximum(core[tree.one], core[tree.other]), matrix[tree.one, tree.other] / alpha),
                     tree.weight, depth=1000)  # fmt: skip


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_trees_of_rows_that_products_decide_on_are_the_smallest(by_products, monkeypatch, alpha):
    """Of few and of many rows; fewer of them are asked by differences where the error of products is small."""
    asked, ask = [], spanning_tree_module._Reach.ask

    def counted(reach, rows, labels):
        asked.append(len(rows))
        ask(reach, rows, labels)

    monkeypatch.setattr(spanning_tree_module._Reach, "ask", counted)
    for rows, grown in itertools.product((X, np.round(X), LINE, np.concatenate([X[:300], X[:100]])), (10, 20_000)):
        monkeypatch.setattr(spanning_tree_module, "GROWN", grown)
        given = torch.from_numpy(rows).float()
        matrix = cdist(given.double(), given.double())
        for count in (1, 5, 40):
            core = np.sort(matrix, 1)[:, count - 1]
            mutual = np.maximum(np.maximum(core[:, None], core), matrix / alpha)
            expected = np.sort(minimum_spanning_tree(mutual + 1 - np.eye(len(rows))).data) - 1
            found = distances("euclidean", {}, given, given)
            spanning_tree(found, count, alpha)
            plain = sum(asked)
            asked.clear()
            tree = spanning_tree(found, count, alpha, products=neighbourhood.Rounded.of(given, 0.0))
            assert_close(np.sort(tree.weight), expected, dtype="float32", depth=10)
            assert_close(mutual[tree.one, tree.other], tree.weight, dtype="float32", depth=10)
            if rows is X and neighbourhood._PRODUCT_ERROR < 1e-5:
                assert sum(asked) < plain
            asked.clear()


def test_rounds_of_equal_edges_join_all_of_them():
    """A round of three and one of four components, each of which goes to the next; the others stay."""
    toward = torch.tensor([1, 2, 0, 4, 5, 6, 3, 7, 7, 10, 9])
    labels = spanning_tree_module._joined(torch.arange(11), toward)
    wanted = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    assert adjusted_rand_score(labels, wanted) == 1


def test_labels_of_rows_that_products_decide_on_are_those_of_scikit_learn(by_products):
    for seed, (size, count) in enumerate([(12, None), (10, 5), (25, 8), (6, 3)]):
        theirs = sklearn.cluster.HDBSCAN(size, min_samples=count, copy=True).fit(blobs(seed))
        ours = estimators.HDBSCAN(size, min_samples=count).fit(blobs(seed))
        assert (ours.labels_ == theirs.labels_).all()
        assert_close(ours.probabilities_, theirs.probabilities_, depth=1000)


def test_hdbscan_of_rows_that_are_not_finite_and_of_duplicates():
    rows = X.copy()
    rows[7, 1], rows[30, 0], rows[31] = np.nan, np.inf, [np.nan, np.inf, 0]
    options = {"min_samples": 1, "metric": "cityblock"}
    theirs = sklearn.cluster.HDBSCAN(copy=True, **options).fit(rows)
    for given in (rows, torch.from_numpy(rows)):
        ours = estimators.HDBSCAN(**options).fit(given)
        assert (np.asarray(ours.labels_) == theirs.labels_).all()
        assert_close(ours.probabilities_, theirs.probabilities_, depth=1000)
        assert (np.asarray(ours.dbscan_clustering(1.0))[[7, 30]] == [-3, -2]).all()
    twice = np.repeat(X[:60], 8, 0)
    labels = estimators.HDBSCAN(5, metric="cityblock").fit(twice).labels_
    assert (
        adjusted_rand_score(labels, sklearn.cluster.HDBSCAN(5, metric="cityblock", copy=True).fit(twice).labels_) == 1
    )
    apart = cdist(X[:40], X[:40])
    apart[:20, 20:] = apart[20:, :20] = np.inf
    with pytest.warns(UserWarning, match="no finite distance"):
        labels = estimators.HDBSCAN(8, min_samples=1, metric="precomputed").fit(apart).labels_
    assert not set(labels[:20]) & set(labels[20:]) - {-1}


def test_centers_are_those_of_scikit_learn():
    options = {"min_samples": 1, "min_cluster_size": 12, "metric": "cityblock", "store_centers": "both"}
    theirs = sklearn.cluster.HDBSCAN(copy=True, **options).fit(X)
    ours = estimators.HDBSCAN(**options).fit(torch.from_numpy(X))
    assert_close(ours.centroids_, theirs.centroids_, depth=1000)
    assert_close(ours.medoids_, theirs.medoids_, depth=1)


BAD = [
    (lambda: estimators.DBSCAN(0.0).fit(X), "eps must be a number above 0"),
    (lambda: estimators.DBSCAN(min_samples=0).fit(X), "min_samples must be a positive integer"),
    (lambda: estimators.DBSCAN().fit(X * np.nan), "NaN"),
    (lambda: estimators.DBSCAN(metric="precomputed").fit(X), "must be square"),
    (lambda: estimators.DBSCAN(metric="euclidian").fit(X), "did you mean"),
    (lambda: estimators.DBSCAN(metric=km.Gaussian(1.0)).fit(X), "is a similarity"),
    (lambda: estimators.HDBSCAN(1).fit(X), "min_cluster_size must be an integer of at least 2"),
    (lambda: estimators.HDBSCAN(5, 401).fit(X), r"min_samples \(401\) must be at most"),
    (lambda: estimators.HDBSCAN().fit(X[:1]), "n_samples=1"),
    (lambda: estimators.HDBSCAN(alpha=0.0).fit(X), "alpha must be a number above 0"),
    (lambda: estimators.HDBSCAN(metric=skewed).fit(X), "not symmetric"),
    (lambda: estimators.HDBSCAN(metric="kl").fit(np.abs(X)), "not symmetric"),
    (lambda: estimators.HDBSCAN(metric="precomputed").fit(np.triu(cdist(X, X))), "to be symmetric"),
    (lambda: estimators.HDBSCAN(metric="precomputed").fit(cdist(X, X) * np.nan), "np.nan values"),
    (lambda: estimators.HDBSCAN(cluster_selection_method="leaves").fit(X), "none of eom, leaf"),
    (lambda: estimators.HDBSCAN(metric="precomputed", store_centers="both").fit(cdist(X, X)), "Cannot store centers"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call()
    with pytest.raises(errors.TraceError, match="one entry of each row"):
        estimators.DBSCAN(metric=lambda a, b: abs(a - b).sum()).fit(X)


def test_no_matrix_is_stored_and_progress_is_shown(monkeypatch, capsys):
    def matrix(_):
        raise AssertionError

    monkeypatch.setattr(Distances, "matrix", matrix)
    monkeypatch.setitem(REPORTED, "cpu", 100 * len(X))
    plain = [estimators.DBSCAN(0.7), estimators.HDBSCAN(metric="cityblock")]
    for estimator in plain:
        labels = estimator.fit(X).labels_
        assert (estimator.set_params(verbose=True).fit(X).labels_ == labels).all()
        assert "rows" in capsys.readouterr().err
        found = estimator.fit_predict(torch.from_numpy(X))
        assert isinstance(found, torch.Tensor)
        assert (found.numpy() == labels).all()
