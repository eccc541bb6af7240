"""The pairwise functions of scikit-learn under its signatures, against scikit-learn."""

import inspect
import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.spatial
import sklearn.metrics
import torch
from sklearn.metrics import pairwise
from sklearn.neighbors import NearestNeighbors

import kernmantle as km
from kernmantle import errors
from kernmantle.testing import assert_close

from ..arrays import Foreign

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(17, 5)), RANDOM.normal(size=(9, 5))
METRICS = {
    "euclidean": {}, "l2": {}, "l1": {}, "manhattan": {}, "cityblock": {}, "cosine": {}, "braycurtis": {},
    "canberra": {}, "chebyshev": {}, "correlation": {}, "hamming": {}, "mahalanobis": {}, "minkowski": {"p": 1.3},
    "seuclidean": {}, "sqeuclidean": {}, "dice": {}, "jaccard": {}, "rogerstanimoto": {}, "russellrao": {},
    "sokalsneath": {}, "yule": {},
}  # fmt: skip
BETWEEN_TWO = {"seuclidean": {"V": X.var(0)}, "mahalanobis": {"VI": np.linalg.inv(np.cov(X.T))}}
KERNELS = [
    ("linear", {}), ("poly", {}), ("polynomial", {"degree": 2, "coef0": 0.5}), ("rbf", {}), ("rbf", {"gamma": 0.3}),
    ("laplacian", {}), ("laplacian", {"gamma": 2.0}), ("sigmoid", {"gamma": 0.1}), ("cosine", {}),
    ("chi2", {"gamma": 0.4}), ("chi2", {}), ("additive_chi2", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(km.pairwise_distances, sklearn.metrics.pairwise_distances), (km.pairwise_kernels, pairwise.pairwise_kernels)],
)
def test_signatures_are_those_of_scikit_learn(ours, theirs):
    mine, other = (inspect.signature(function).parameters for function in (ours, theirs))
    assert [(p.name, p.kind, p.default) for p in mine.values()] == [(p.name, p.kind, p.default) for p in other.values()]


def with_holes(rows):
    """Rows with zeros; two of nothing else, one constant."""
    rows = rows * (np.abs(rows) > 0.5)
    rows[1:3], rows[3] = 0, 1.5
    return rows


DATA = {
    "dense": lambda rows: rows,
    "holes": with_holes,
    "integers": lambda rows: np.rint(3 * rows).astype(int),
    "truths": lambda rows: rows > 0,
}


@pytest.mark.parametrize("metric", [*METRICS, "nan_euclidean", "haversine", "matching"])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.filterwarnings("ignore:Data was converted to boolean", "ignore:invalid value")
def test_distances(metric, data):
    x, y = (DATA[data](rows)[:, : 2 if metric == "haversine" else None] for rows in (X, Y))
    given, between = METRICS.get(metric, {}), BETWEEN_TWO.get(metric, {})
    sets = {"one": (x, None, given), "the same": (x, x, given), "two": (x, y, {**given, **between})}
    for name, (left, right, options) in sets.items():
        if (metric, data) == ("mahalanobis", "holes") and name != "two":
            left = right = None if right is None else X
            left = X if left is None else left
        wanted = sklearn.metrics.pairwise_distances(left, right, metric, **options)
        found = km.pairwise_distances(left, right, metric, n_jobs=2, **options)
        assert_close(found, wanted, depth=25)


@pytest.mark.parametrize("metric", BETWEEN_TWO)
def test_two_sets_need_their_scale(metric):
    with pytest.raises(ValueError, match="is required"):
        sklearn.metrics.pairwise_distances(X, Y, metric)
    with pytest.raises(errors.ParameterError, match=r"VI? is required for metric .* two sets of rows"):
        km.pairwise_distances(X, Y, metric)


def test_a_singular_covariance_is_an_error_whatever_the_units():
    for column in (X[:, 0] + 2 * X[:, 1], np.full(len(X), 3.0)):
        rows = np.column_stack([X, column])
        for call in (
            lambda r: km.pairwise_distances(r, metric="mahalanobis"),
            lambda r: km.cdist(r, metric="mahalanobis"),
        ):
            with pytest.raises(errors.ParameterError, match="singular"):
                call(rows)
    units = 10.0 ** np.arange(-10, 15, 5)
    wanted = sklearn.metrics.pairwise_distances(X, metric="mahalanobis")
    assert_close(km.pairwise_distances(X * units, metric="mahalanobis"), wanted, depth=100)


def test_negative_weights_are_refused_as_scipy_does():
    for function in (scipy.spatial.distance.cdist, km.cdist):
        with pytest.raises(ValueError, match="negative"):
            function(X, Y, metric="cityblock", w=np.array([1.0, -1, 1, 1, 1]))


def test_distances_of_one_set_have_gradients_and_transforms():
    x = torch.from_numpy(X[:4]).clone().requires_grad_()
    for metric in ("cosine", "braycurtis", "seuclidean"):
        assert torch.autograd.gradcheck(lambda x, m=metric: km.pairwise_distances(x, metric=m), (x,))
    spoilt = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    km.pairwise_distances(spoilt, metric="cosine").sum().backward()
    assert_close(spoilt.grad[0], np.zeros(2))
    assert bool(spoilt.grad.isfinite().all())


def test_options_of_metrics():
    weights = [1.0, 0.0, 2.0, 1.0, 0.5]
    wanted = sklearn.metrics.pairwise_distances(X, Y, "minkowski", p=3, w=np.array(weights))
    assert_close(km.pairwise_distances(X, Y, "minkowski", p=3, w=weights), wanted, depth=5)
    assert_close(km.pairwise_distances(X, squared=True), pairwise.euclidean_distances(X, squared=True), depth=5)


def test_the_covariance_of_one_column_is_a_matrix():
    wanted = np.abs(X[:, :1] - X[:, 0]) / X[:, 0].std(ddof=1)
    assert_close(km.pairwise_distances(X[:, :1], metric="mahalanobis"), wanted, depth=25)


def test_missing_entries():
    x = np.where(RANDOM.random(X.shape) < 0.4, np.nan, X)
    x[0] = np.nan
    wanted = pairwise.nan_euclidean_distances(x, Y)
    assert_close(km.pairwise_distances(x, Y, "nan_euclidean"), wanted, depth=5)
    wanted = pairwise.nan_euclidean_distances(x, squared=True)
    assert_close(km.pairwise_distances(x, metric="nan_euclidean", squared=True), wanted, depth=5)
    with pytest.raises(errors.ParameterError, match="X holds infinity or NaN"):
        km.pairwise_distances(x, Y)
    assert np.isnan(km.pairwise_distances(x, Y, ensure_all_finite=False)[0]).all()
    with pytest.raises(errors.ParameterError, match="X holds infinity"):
        km.pairwise_distances(np.full((2, 2), np.inf), metric="nan_euclidean")


def test_places_on_a_sphere():
    x, y = X[:, :2] / 2, Y[:, :2] / 2
    assert_close(km.pairwise_distances(x, y, "haversine"), pairwise.haversine_distances(x, y), depth=2)
    poles = np.array([[np.pi / 2, 0.0], [-np.pi / 2, 1.0]])
    assert_close(km.pairwise_distances(poles, metric="haversine"), np.array([[0.0, np.pi], [np.pi, 0.0]]), depth=2)


@pytest.mark.parametrize(("metric", "given"), KERNELS)
def test_kernels(metric, given):
    x, y = (np.abs(X), np.abs(Y)) if "chi2" in metric else (X, Y)
    x = x * (np.abs(x) > 0.5)
    for other in (y, None):
        wanted = pairwise.pairwise_kernels(x, other, metric, **given)
        assert_close(km.pairwise_kernels(x, other, metric, **given), wanted, depth=25)


def test_a_kernel_of_ones_own_and_filtered_parameters():
    k = km.Matern(2.0) + km.Linear()
    assert_close(km.pairwise_kernels(X, Y, k), k(X, Y))
    wanted = pairwise.pairwise_kernels(X, Y, "rbf", gamma=0.2)
    assert_close(km.pairwise_kernels(X, Y, "rbf", filter_params=True, gamma=0.2, degree=3), wanted, depth=5)


def test_precomputed_is_given_back():
    distances = sklearn.metrics.pairwise_distances(X)
    assert km.pairwise_distances(distances, metric="precomputed") is not None
    assert (km.pairwise_kernels(distances, metric="precomputed") == distances).all()
    with pytest.raises(errors.ShapeError, match="it needs 17 columns"):
        km.pairwise_distances(X, metric="precomputed")


@pytest.fixture
def library(monkeypatch):
    module = types.ModuleType("foreign")
    module.from_dlpack = lambda tensor: Foreign(np.from_dlpack(tensor))
    monkeypatch.setitem(sys.modules, "foreign", module)
    monkeypatch.setattr(Foreign, "__module__", "foreign")


def test_arrays_of_every_kind(library):
    wanted = sklearn.metrics.pairwise_distances(X, Y, "manhattan")
    of_torch = km.pairwise_distances(torch.from_numpy(X).float(), torch.from_numpy(Y).float(), "manhattan")
    assert isinstance(of_torch, torch.Tensor)
    assert_close(of_torch, wanted, depth=5)
    of_foreign = km.pairwise_distances(Foreign(X), Foreign(Y), "manhattan")
    assert isinstance(of_foreign, Foreign)
    assert_close(of_foreign.array, wanted, depth=5)
    assert isinstance(km.pairwise_kernels(Foreign(X), metric="rbf"), Foreign)
    assert_close(km.pairwise_distances(X.tolist(), Y.tolist(), "manhattan"), wanted, depth=5)
    whole = np.arange(12).reshape(4, 3)
    assert_close(km.pairwise_distances(whole), sklearn.metrics.pairwise_distances(whole), depth=3)
    assert_close(km.pairwise_distances(torch.from_numpy(whole)), sklearn.metrics.pairwise_distances(whole), depth=3)


@pytest.mark.cuda
@pytest.mark.parametrize("metric", ["manhattan", "cosine", "seuclidean", "nan_euclidean"])
def test_arrays_on_a_gpu(metric):
    wanted = sklearn.metrics.pairwise_distances(X, metric=metric)
    found = km.pairwise_distances(torch.from_numpy(X).cuda(), metric=metric)
    assert found.is_cuda
    assert_close(found.cpu(), wanted, depth=25)
    kernel = km.pairwise_kernels(torch.from_numpy(X).cuda(), metric="rbf")
    assert_close(kernel.cpu(), pairwise.pairwise_kernels(X, metric="rbf"), depth=25)
    if find_spec("cupy") is not None:
        import cupy

        found = km.pairwise_distances(cupy.asarray(X), metric=metric)
        assert isinstance(found, cupy.ndarray)
        assert_close(cupy.asnumpy(found), wanted, depth=25)


@pytest.mark.cuda
def test_neighbours_and_kernels_of_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    x, y = cupy.asarray(X), cupy.asarray(Y)
    wanted = sklearn.metrics.pairwise.manhattan_distances(Y, X)
    values, places = km.argkmin(y, x, 4, p=1, return_values=True)
    assert isinstance(places, cupy.ndarray)
    assert_close(cupy.asnumpy(values), np.sort(wanted, 1)[:, :4], depth=5)
    assert_close(np.take_along_axis(wanted, cupy.asnumpy(places), 1), np.sort(wanted, 1)[:, :4], depth=5)
    kernel = km.Laplace(3.0, p=1)
    assert_close(cupy.asnumpy(kernel(y, x)), np.exp(-wanted / 3), depth=5)
    product = kernel.matmul(y, x, cupy.ones((len(X), 2)))
    assert isinstance(product, cupy.ndarray)
    assert_close(cupy.asnumpy(product)[:, 0], np.exp(-wanted / 3).sum(1), depth=5 * len(X))


@pytest.mark.parametrize("metric", ["nan_euclidean", "haversine", "minkowski"])
def test_gradients_of_distances(metric):
    x, y = (torch.from_numpy(rows[:3, :2]).clone().requires_grad_() for rows in (X, Y))
    options = {"p": 2.5} if metric == "minkowski" else {}
    assert torch.autograd.gradcheck(lambda x, y: km.pairwise_distances(x, y, metric, **options), (x, y))


def test_a_missing_entry_has_no_gradient_and_spoils_none():
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    km.pairwise_distances(x, torch.zeros(1, 2, dtype=torch.float64), "nan_euclidean").sum().backward()
    root = 13**0.5
    assert_close(x.grad, np.array([[2**0.5, 0.0], [2 / root, 3 / root]]))


def test_gradients_of_kernels():
    x = torch.from_numpy(np.abs(X[:3])).requires_grad_()
    gamma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for metric in ("rbf", "laplacian", "chi2", "poly"):
        assert torch.autograd.gradcheck(lambda x, g, m=metric: km.pairwise_kernels(x, None, m, gamma=g), (x, gamma))
    zeros = torch.zeros(2, 3, requires_grad=True)
    km.pairwise_kernels(zeros, metric="chi2").sum().backward()
    assert (zeros.grad == 0).all()


def test_argkmin_is_the_search_of_scikit_learn():
    for metric in ("euclidean", "manhattan", "chebyshev", "canberra"):
        search = NearestNeighbors(n_neighbors=4, metric=metric, algorithm="brute").fit(X)
        distances, places = search.kneighbors(Y)
        found, indices = km.argkmin(Y, X, 4, metric=metric, return_values=True)
        assert (indices == places).all()
        assert_close(found, distances, depth=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: km.pairwise_distances(X, metric="euclidian"), "did you mean 'euclidean'"),
        (lambda: km.pairwise_distances(X, metric="cosine", squared=True), "takes no squared"),
        (lambda: km.pairwise_distances(X, metric="cosine", gamma=1.0), "takes no gamma"),
        (lambda: km.pairwise_distances(X, metric="haversine", p=1.0), "takes no p"),
        (lambda: km.pairwise_distances(X, metric="haversine"), "two columns"),
        (lambda: km.pairwise_distances(X[0]), "rows and columns"),
        (lambda: km.pairwise_distances(types.SimpleNamespace(toarray=None)), "sparse"),
        (lambda: km.pairwise_kernels(X, metric="matern"), "unknown kernel 'matern'"),
        (lambda: km.pairwise_kernels(X, metric="rbf", degree=2), "takes no 'degree'"),
        (lambda: km.pairwise_kernels(X, metric="rbf", gamma=0), "gamma must be a positive number"),
        (lambda: km.pairwise_kernels(X, metric="rbf", gamma="scale"), "gamma must be a positive number, not 'scale'"),
        (lambda: km.pairwise_kernels(X, metric="chi2"), "X has some"),
        (lambda: km.pairwise_kernels(X, metric=km.Linear(), gamma=1.0), "takes no gamma"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises((errors.ParameterError, errors.ShapeError), match=message):
        call()


def test_precomputed_distances_are_not_negative():
    with pytest.raises(errors.ParameterError, match="non-negative values"):
        km.pairwise_distances(np.full((5, 5), -1.0), metric="precomputed")
    assert km.pairwise_kernels(np.full((5, 5), -1.0), metric="precomputed")[0, 0] == -1
