"""Habits of scikit-learn's users: gamma, precomputed and callable kernels, stored state, Gaussian processes."""

import copy
import json
import pickle
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse
import sklearn.cluster
import sklearn.decomposition
import sklearn.kernel_approximation
import sklearn.kernel_ridge
import sklearn.neighbors
import torch
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor as TheirProcess
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV

import kernmantle as km
from kernmantle import estimators
from kernmantle.errors import ParameterError, TraceError
from kernmantle.estimators import gaussian_process, likelihood
from kernmantle.estimators.state import DEVICES
from kernmantle.testing import assert_close

X, Y = load_iris(return_X_y=True)
CONDITIONED = 10**7
"""Depth of results of systems whose matrix has a condition number of a million."""
CHOICES = {
    "rbf": {"gamma": 0.1}, "laplacian": {"gamma": 0.2}, "linear": {}, "cosine": {},
    "poly": {"gamma": 0.3, "degree": 2, "coef0": 2.0}, "sigmoid": {"gamma": 0.01, "coef0": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("kernel", CHOICES)
def test_a_ridge_with_the_names_of_scikit_learn_is_theirs(kernel):
    ours = estimators.KernelRidge(1.0, kernel=kernel, **CHOICES[kernel]).fit(X, Y)
    theirs = sklearn.kernel_ridge.KernelRidge(alpha=1.0, kernel=kernel, **CHOICES[kernel]).fit(X, Y)
    assert_close(ours.predict(X), theirs.predict(X), depth=CONDITIONED)


def test_numbers_that_a_kernel_has_not_are_not_used_as_there():
    ours = estimators.KernelRidge(kernel="rbf", gamma=0.1, degree=7, coef0=3.0).fit(X, Y)
    assert_close(ours.predict(X), estimators.KernelRidge(kernel="rbf", gamma=0.1).fit(X, Y).predict(X), depth=1)


@pytest.mark.parametrize(("text", "value"), [("scale", 1 / (4 * X.var())), ("auto", 0.25)])
def test_gamma_by_its_names(text, value):
    found = estimators.KernelRidge(kernel="rbf", gamma=text).fit(X, Y).kernel_
    assert_close(found.bandwidth, (0.5 / value) ** 0.5, depth=200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "rbf", "gamma": 0.1, "bandwidth": 1.0}, "one of the two"),
        ({"kernel": "matern", "gamma": 0.1}, "has a bandwidth instead"),
        ({"kernel": "rbf", "gamma": -1}, "above 0"),
        ({"kernel": "rbf", "gamma": "wide"}, "'scale' or 'auto'"),
        ({"kernel": "precomputed", "bandwidth": 1.0}, "neither bandwidth"),
        ({"kernel": "precomputed"}, "must be square"),
        ({"kernel": RBF()}, "kernel='gaussian'"),
        ({"kernel": 3}, "neither a km.Kernel"),
    ],
)
def test_choices_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        estimators.KernelRidge(**options).fit(X, Y)


def test_precomputed_kernels():
    K, weights = rbf_kernel(X, gamma=0.1), np.random.default_rng(0).uniform(0, 2, len(X)).round()
    for options in ({}, {"sample_weight": weights}):
        ours = estimators.KernelRidge(kernel="precomputed").fit(K, Y, **options)
        theirs = sklearn.kernel_ridge.KernelRidge(kernel="precomputed").fit(K, Y, **options)
        assert_close(ours.predict(K[:20]), theirs.predict(K[:20]), depth=CONDITIONED)
    named = estimators.KernelClassifier(kernel="rbf", gamma=0.1).fit(X, Y)
    given = estimators.KernelClassifier(kernel="precomputed").fit(K, Y)
    assert_close(given.predict_proba(K), named.predict_proba(X), depth=CONDITIONED)
    parts = [
        kind(3, kernel="precomputed").fit(K).transform(K[:9])
        for kind in (estimators.KernelPCA, sklearn.decomposition.KernelPCA)
    ]
    assert_close(np.abs(parts[0]), np.abs(parts[1]), depth=CONDITIONED)
    with pytest.raises(ValueError, match="'cholesky'"):
        estimators.KernelRidge(kernel="precomputed", solver="cg").fit(K, Y)
    with pytest.raises(ValueError, match="raise alpha"):
        estimators.KernelRidge(kernel="precomputed").fit(-10 * K, Y)
    search = GridSearchCV(estimators.KernelRidge(kernel="precomputed"), {"alpha": [0.1, 1.0]}, cv=3).fit(K, Y)
    assert search.best_estimator_._rows.shape == (150, 150)


def test_functions_as_kernels():
    ours = estimators.KernelRidge(kernel=km.minimum).fit(X, Y)
    theirs = sklearn.kernel_ridge.KernelRidge(kernel=lambda a, b: np.minimum(a, b).sum()).fit(X, Y)
    assert_close(ours.predict(X), theirs.predict(X), depth=CONDITIONED)
    scaled = estimators.KernelRidge(
        kernel=lambda a, b, width: km.exp(-abs(a - b) / width), kernel_params={"width": 2.0}
    )
    assert scaled.fit(X, Y).kernel_.width == 2.0
    with pytest.raises(TraceError, match="whole rows"):
        estimators.KernelRidge(kernel=lambda a, b: np.exp(-np.abs(a - b).sum())).fit(X, Y)


def test_other_estimators_take_gamma():
    drawn = estimators.Nystroem("rbf", n_components=20, gamma=0.1, random_state=0).fit(X)
    theirs = sklearn.kernel_approximation.Nystroem(kernel="rbf", gamma=0.1, n_components=20, random_state=0).fit(X)
    assert drawn.kernel_.bandwidth == 5**0.5
    np.testing.assert_array_equal(drawn.component_indices_, theirs.component_indices_)
    parts = [
        np.abs(kind(2, kernel="rbf", gamma=0.1).fit_transform(X))
        for kind in (estimators.KernelPCA, sklearn.decomposition.KernelPCA)
    ]
    assert_close(*parts, depth=CONDITIONED)
    clusters = estimators.SpectralClustering(2, affinity="rbf", gamma=0.5, random_state=0).fit(X)
    assert clusters.affinity_.bandwidth == 1.0
    assert laplacian_kernel(X[:2], gamma=0.1)[0, 1] == pytest.approx(
        float(estimators.KernelRidge(kernel="laplacian", gamma=0.1).fit(X, Y).kernel_(X[:2])[0, 1])
    )


def fitted(name):
    """An estimator of that name, fitted."""
    options = {
        "GaussianProcessRegressor": {"optimise": False}, "RecursiveFeatureMachine": {"n_iterations": 1},
        "RecursiveFeatureMachineClassifier": {"n_iterations": 1}, "HDBSCAN": {"store_centers": "both"},
        "SpectralClustering": {"random_state": 0},
    }.get(name, {})  # fmt: skip
    options |= {"radius": 9.0} if "Radius" in name else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return getattr(estimators, name)(**options).fit(X, Y)


def leaves(value, path=""):
    """What of a state is neither a number, a text nor an array: skops would have to trust more than its type."""
    if isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, part in parts for found in leaves(part, f"{path}.{key}")]
    if isinstance(value, torch.Tensor):
        return [path]
    if type(value).__module__.startswith("kernmantle") and not callable(value):
        return leaves(value.__getstate__() or {}, path)
    if isinstance(value, km.Kernel):
        json.loads(value.__getstate__()["form"])
        return leaves(value.__getstate__(), path)
    return []


@pytest.mark.parametrize("name", estimators.__all__)
def test_what_is_stored_of_a_fit_is_arrays(name):
    estimator = fitted(name)
    assert leaves(estimator.__getstate__()) == []
    again = pickle.loads(pickle.dumps(estimator))
    act = next(act for act in ("predict", "transform", "fit_predict", "kneighbors") if hasattr(again, act))
    found, wanted = getattr(again, act)(X), getattr(estimator, act)(X)
    for one, other in zip(*[(v if isinstance(v, tuple) else (v,)) for v in (found, wanted)], strict=True):
        np.testing.assert_array_equal(one, other)
    skops = pytest.importorskip("skops.io")
    stored = skops.dumps(estimator)
    trusted = skops.get_untrusted_types(data=stored)
    assert all(kind.startswith("kernmantle.") for kind in trusted)
    loaded = getattr(skops.loads(stored, trusted=trusted), act)(X)
    np.testing.assert_array_equal(loaded[0], wanted[0])


def test_a_state_with_a_tensor_is_found():
    assert leaves({"a": [1, torch.ones(1)], "b": {"c": np.ones(1)}}) == [".a.1"]
    assert estimators.KernelRidge().fit(X, Y).__getstate__()[DEVICES]["_rows"] == "cpu"


KERNELS = [
    km.Gaussian(2.0), 0.5 * km.Laplace(1.5, p=1.3) + km.Matern(nu=2.5) ** 2, km.Wendland(9.0), km.Cosine(),
    km.NTK(0.1, depth=3), km.Gaussian(lengthscales=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    km.Linear().transformed(np.ones((4, 2))), km.Kernel(lambda a, b, width: abs(a - b) / width, width=3.0),
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_kernel_without_code_is_the_same_kernel(kernel):
    again = km.Kernel.__new__(km.Kernel)
    again.__setstate__(copy.deepcopy(kernel.__getstate__()))
    assert repr(again) == repr(kernel)
    assert_close(again(X[:9]), kernel(X[:9]), depth=1)
    assert again.is_similarity == kernel.is_similarity


RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(60, 2))
TARGETS = np.sin(ROWS[:, 0]) + 0.3 * ROWS[:, 1] ** 2 + 0.1 * RANDOM.normal(size=60)


def process(**options):
    return estimators.GaussianProcessRegressor(**options).fit(ROWS, TARGETS)


def test_bounds_hold_and_are_said():
    with pytest.warns(ConvergenceWarning, match=r"bound of the bandwidth, 0.5"):
        found = process(bounds={"bandwidth": (0.1, 0.5)})
    assert found.bandwidths_[0] == pytest.approx(0.5)
    free = process()
    assert free.bandwidths_[0] > 0.5
    assert free.log_marginal_likelihood_ > found.log_marginal_likelihood_


def test_restarts_find_the_better_maximum():
    bad = {"bandwidth": 40.0, "noise": 0.9, "max_iter": 40}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one, more = process(**bad), process(**bad, n_restarts_optimizer=3, random_state=0)
    assert more.log_marginal_likelihood_ >= one.log_marginal_likelihood_ - 1e-6
    assert more.n_iter_ > one.n_iter_
    assert (
        process(n_restarts_optimizer=1, random_state=3).noise_ == process(n_restarts_optimizer=1, random_state=3).noise_
    )


def test_priors_move_the_maximum_as_the_formula_says():
    prior = torch.distributions.Gamma(3.0, 30.0)
    free, held = process(), process(priors={"bandwidth": prior})
    assert held.bandwidths_[0] < free.bandwidths_[0]
    assert held.log_marginal_likelihood_ < free.log_marginal_likelihood_

    def total(found):
        return found.log_marginal_likelihood_ + float(prior.log_prob(torch.tensor(found.bandwidths_[0])))

    assert total(held) > total(free)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": {"width": (1, 2)}}, "bounds has no 'width'"),
        ({"bounds": {"noise": (2, 1)}}, "0 < low < high"),
        ({"priors": {"width": None}}, "priors has no 'width'"),
        ({"priors": {"noise": 3.0}}, "log_prob"),
        ({"solver": "lu"}, "none of auto"),
        ({"n_restarts_optimizer": -1}, "n_restarts_optimizer"),
        ({"kernel": RBF()}, "scale and the noise are included"),
    ],
)
def test_options_of_a_process_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        process(**options)


def test_the_iterated_likelihood_and_its_gradient_are_near_those_of_the_factor():
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(300, 2)))
    targets = rows[:, 0].sin() + 0.2 * rows[:, 1]
    losses, slopes = [], []
    for is_iterated in (False, True):

        def made(logs):
            values = logs.exp()
            return values[1] * km.Gaussian(values[2]), values[0]

        search = likelihood.Search(made, rows, targets, is_iterated, [(None, None)] * 3, {}, 9, None)
        logs = torch.tensor([-3.0, 0.1, 0.2], dtype=torch.float64, requires_grad=True)
        losses.append(search.loss(logs))
        slopes.append(logs.grad)
    assert losses[1] == pytest.approx(losses[0], abs=2e-2)
    assert float((slopes[1] - slopes[0]).abs().max()) < 2e-2
    assert losses[1] != losses[0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_marginal_likelihoods_are_those_of_scikit_learn():
    process = estimators.GaussianProcessRegressor("gaussian", ard=True, max_iter=3).fit(X, Y)
    scaled = (Y - Y.mean()) / Y.std()
    theta = np.log([0.05, 1.3, *np.linspace(0.5, 2.0, X.shape[1])])
    exact = TheirProcess(
        ConstantKernel(1.3) * RBF(np.exp(theta[2:])) + WhiteKernel(0.05 + gaussian_process.LEAST_NOISE), alpha=1e-300,
        optimizer=None,
    ).fit(X, scaled)  # fmt: skip
    value, slope = process.log_marginal_likelihood(theta, eval_gradient=True)
    wanted, (scale, *lengths, noise) = exact.log_marginal_likelihood(exact.kernel_.theta, eval_gradient=True)
    assert_close(value, np.float64(wanted), depth=10**4)
    shrunk = 0.05 / (0.05 + gaussian_process.LEAST_NOISE)  # the least noise has no logarithm of its own
    assert_close(slope, np.array([noise * shrunk, scale, *lengths]), depth=10**5)
    assert process.log_marginal_likelihood() == process.log_marginal_likelihood_
    again = process.log_marginal_likelihood(process._logs.numpy())
    assert_close(np.float64(again), np.float64(process.log_marginal_likelihood_), depth=10**4)
    with pytest.raises(ValueError, match="theta has shape"):
        process.log_marginal_likelihood([0.0, 1.0])


def test_a_process_by_iterations_predicts_as_one_by_its_factor():
    options = {"optimise": False, "bandwidth": 1.0, "noise": 0.01}
    one, other = process(solver="cholesky", **options), process(solver="cg", **options)
    at = np.random.default_rng(2).normal(size=(300, 2))
    for first, second in zip(one.predict(at, return_std=True), other.predict(at, return_std=True), strict=True):
        np.testing.assert_allclose(second, first, rtol=0, atol=2e-4)
    np.testing.assert_allclose(*[p.predict(at[:9], return_cov=True)[1] for p in (one, other)], rtol=0, atol=2e-4)
    for name, least in likelihood.ITERATED.items():
        assert one._is_iterated(least, torch.device(name)) is False
        assert estimators.GaussianProcessRegressor()._is_iterated(least - 1, torch.device(name)) is False
        assert estimators.GaussianProcessRegressor()._is_iterated(least, torch.device(name)) is True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert process(solver="cg", max_iter=1).n_iter_ >= 1


def test_hyperparameters_are_read_and_set_by_their_names():
    kernel = km.Gaussian(2.0)
    assert kernel.bandwidth == 2.0
    kernel.bandwidth = 3.0
    assert repr(kernel) == "Gaussian(bandwidth=3.0)"
    assert_close(kernel(X[:5]), km.Gaussian(3.0)(X[:5]), depth=1)
    assert_close(kernel.matmul(X, None, Y * 1.0), km.Gaussian(3.0).matmul(X, None, Y * 1.0), depth=1)
    double = 0.5 * kernel + km.Laplace(1.0)
    kernel.bandwidth = 5.0
    assert (double.scale, double.bandwidth, double.bandwidth_2) == (0.5, 3.0, 1.0)
    double.bandwidth_2 = 4.0
    assert repr(2 * double) == f"2 * ({double!r})"
    assert "with bandwidth_2=4.0" in repr(double)
    assert_close(double(X[:5]), (0.5 * km.Gaussian(3.0) + km.Laplace(4.0))(X[:5]), depth=4)
    lengths = km.Gaussian(lengthscales=torch.ones(4))
    lengths.lengthscales = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert_close(lengths(X[:5]), km.Gaussian(lengthscales=torch.tensor([1.0, 2.0, 3.0, 4.0]))(X[:5]), depth=1)


def test_names_and_values_that_a_kernel_does_not_take():
    kernel = km.Gaussian(2.0)
    with pytest.raises(AttributeError, match="its hyperparameters are bandwidth"):
        _ = kernel.bandwith
    with pytest.raises(AttributeError, match="there are bandwidth"):
        kernel.gamma = 1.0
    with pytest.raises(ParameterError, match="above 0"):
        kernel.bandwidth = -1.0
    with pytest.raises(ParameterError, match="above 0 everywhere"):
        (kernel + km.Laplace()).bandwidth_2 = torch.tensor(-1.0)
    assert not hasattr(kernel, "__array__")
    assert kernel.bandwidth == 2.0


IGNORED = {
    "NearestNeighbors": {"algorithm": "ball_tree", "leaf_size": 3, "n_jobs": -1},
    "KNeighborsClassifier": {"algorithm": "brute", "leaf_size": 3, "n_jobs": 2},
    "KNeighborsRegressor": {"algorithm": "kd_tree", "leaf_size": 3, "n_jobs": 2},
    "RadiusNeighborsClassifier": {"algorithm": "brute", "leaf_size": 3, "n_jobs": 2},
    "RadiusNeighborsRegressor": {"algorithm": "auto", "leaf_size": 3, "n_jobs": None},
    "DBSCAN": {"algorithm": "ball_tree", "leaf_size": 3, "n_jobs": -1},
    "HDBSCAN": {"algorithm": "kd_tree", "leaf_size": 3, "n_jobs": -1, "copy": False},
    "KMeans": {"algorithm": "elkan", "copy_x": False},
    "Nystroem": {"n_jobs": 2},
    "KernelPCA": {"eigen_solver": "arpack", "random_state": 3, "copy_X": False, "n_jobs": 2},
    "SpectralClustering": {"assign_labels": "kmeans", "eigen_solver": "lobpcg", "n_jobs": -1},
}
REFUSED = {
    "algorithm": ("full", "algorithm must be one of"), "leaf_size": (0, "leaf_size must be a positive integer"),
    "n_jobs": (0, "n_jobs must be None or an integer"), "eigen_solver": ("qr", "eigen_solver must be one of"),
    "assign_labels": ("discretize", "those of sklearn.cluster.SpectralClustering"),
}  # fmt: skip


def fixed(name):
    """Parameters with which a fit does not depend on chance, and finds several clusters."""
    made = getattr(estimators, name)
    own = {"random_state": 0, "n_clusters": 3, "n_components": 3, "radius": 1.5}
    return {key: value for key, value in own.items() if key in made().get_params()}


@pytest.mark.parametrize("name", IGNORED)
def test_parameters_of_scikit_learn_that_change_nothing(name):
    made, rows = getattr(estimators, name), X.copy()
    plain = made(**fixed(name)).fit(rows, Y)
    other = made(**fixed(name) | IGNORED[name]).fit(rows, Y)
    assert np.array_equal(rows, X)
    for method in ("predict", "transform", "kneighbors"):
        if hasattr(plain, method):
            assert all(map(np.array_equal, getattr(plain, method)(X), getattr(other, method)(X)))
    if hasattr(plain, "labels_"):
        assert np.array_equal(plain.labels_, other.labels_)
        assert len(set(plain.labels_)) > 1
    theirs = sys.modules[next(each for each in THEIRS if hasattr(sys.modules[each], name))]
    assert {*IGNORED[name]} <= {*getattr(theirs, name)().get_params()}
    for parameter, (value, message) in REFUSED.items():
        if parameter in made().get_params():
            with pytest.raises(ValueError, match=message):
                made(**{parameter: value}).fit(rows, Y)


THEIRS = ("sklearn.cluster", "sklearn.neighbors", "sklearn.decomposition", "sklearn.kernel_approximation")


@pytest.mark.parametrize(
    "call", [lambda s: km.cdist(s, X), lambda s: km.Gaussian(1.0)(X, s), km.pairwise_distances,
             lambda s: estimators.KernelRidge().fit(s, Y), lambda s: estimators.DBSCAN().fit(s)],
)  # fmt: skip
def test_sparse_matrices_are_told_what_to_become(call):
    with pytest.raises((TypeError, ValueError), match=r"toarray\(\)"):
        call(scipy.sparse.csr_matrix(X))


def test_a_detached_kernel_has_its_arrays_where_they_were():
    lengths = torch.ones(3, device="meta", requires_grad=True)
    kernel = likelihood.detached(torch.tensor(2.0, requires_grad=True) * km.Gaussian(1.5, lengthscales=lengths))
    values = kernel.hyperparameters
    assert values["lengthscales"].is_meta
    assert not any(value.requires_grad for value in values.values() if isinstance(value, torch.Tensor))
    assert values["bandwidth"] == 1.5
    assert 2.0 in [float(value) for name, value in values.items() if name != "lengthscales"]


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{"solver": "cholesky", "max_iter": 3}, {"solver": "cg", "optimise": False}])
def test_a_process_with_a_bandwidth_a_column_is_fitted_on_the_gpu(options):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 3))
    y, at = np.sin(x[:, 0]) + 0.1 * random.normal(size=300), random.normal(size=(50, 3))
    found = []
    for device in ("cpu", "cuda"):
        made = estimators.GaussianProcessRegressor(ard=True, device=device, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found.append(made.fit(x, y).predict(at, return_std=True))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_search_by_random_vectors_explains_the_targets(device):
    # whose vectors, and so hyperparameters, are not those of another device
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 3))
    made = estimators.GaussianProcessRegressor(ard=True, max_iter=3, solver="cg", device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made.fit(x, np.sin(x[:, 0]) + 0.1 * random.normal(size=300))
    at = random.normal(size=(50, 3))
    assert made.score(at, np.sin(at[:, 0])) > 0.99
