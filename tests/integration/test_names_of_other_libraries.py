"""What users of scipy, scikit-learn, torch, GPyTorch and KeOps type: a value, or an error that says what to write."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import sklearn.cluster
import sklearn.manifold
import sklearn.svm
import torch
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge as OfSklearn
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.model_selection import GridSearchCV

import kernmantle as km
from kernmantle.errors import DtypeError, ParameterError
from kernmantle.estimators import GaussianProcessRegressor, KernelRidge
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(40, 4)), RANDOM.normal(size=(30, 4))
TARGETS = X[:, 0] + X[:, 1] ** 2


def test_names_of_metrics_may_have_capitals():
    assert_close(km.cdist(X, Y, "CityBlock"), cdist(X, Y, "cityblock"), depth=4)
    with pytest.raises(ParameterError, match="did you mean 'euclidean'"):
        km.cdist(X, Y, "Euclidian")


def test_objects_that_are_numbers_are_float64():
    """Frames with whole numbers and numbers, or of nullable types, become such arrays."""
    assert_close(km.cdist(X.astype(object), Y), cdist(X, Y), depth=4)
    assert km.Gaussian(1.0)(np.array([[1, True], [2.5, False]], dtype=object)).dtype == np.float64


@pytest.mark.parametrize("entry", ["north", None, 1j, np.datetime64("2020-01-01")])
def test_an_object_that_is_no_number_is_named_with_its_place(entry):
    table = np.array([[1.0, 2.0], [3.0, entry]], dtype=object)
    with pytest.raises(DtypeError, match=r"x is a numpy array of object with .* at \[1, 1\].*encode text"):
        km.standardise(table)


def test_kernels_are_summed_by_sum():
    kernels = [km.Gaussian(1.0), km.Laplace(2.0)]
    assert repr(sum(kernels)) == repr(kernels[0] + kernels[1])
    assert_close(sum(kernels)(X, Y), kernels[0](X, Y) + kernels[1](X, Y), depth=4)
    assert_close((1 + kernels[0])(X, Y), 1 + kernels[0](X, Y), depth=4)
    assert_close((0.0 + kernels[0])(X, Y), kernels[0](X, Y), depth=4)


def test_an_operator_is_not_made_an_object_by_numpy():
    operator = km.Gaussian(1.0).operator(X)
    with pytest.raises(TypeError, match=r"operator @ np\.eye"):
        np.asarray(operator)
    assert_close(operator @ np.eye(40), km.Gaussian(1.0)(X), depth=40)


def test_bandwidths_are_searched_by_their_name():
    """``kernel__bandwidth``, as ``kernel__length_scale`` in scikit-learn."""
    mine = km.Gaussian(100.0)
    grid = {"kernel__bandwidth": [0.01, 1.5, 100.0], "alpha": [0.1]}
    found = GridSearchCV(KernelRidge(kernel=mine), grid, cv=3).fit(X, TARGETS)
    gammas = {"gamma": [1 / (2 * each**2) for each in grid["kernel__bandwidth"]], "alpha": [0.1], "kernel": ["rbf"]}
    wanted = GridSearchCV(OfSklearn(), gammas, cv=3).fit(X, TARGETS)
    assert_close(found.cv_results_["mean_test_score"], wanted.cv_results_["mean_test_score"], depth=1000)
    assert found.best_params_["kernel__bandwidth"] == 1.5
    assert mine.bandwidth == 100.0


def test_a_clone_has_a_kernel_of_its_own():
    kernel = 0.5 * km.Gaussian(1.0) + km.Matern(2.0, nu=1.5)
    other = clone(KernelRidge(kernel=kernel))
    other.set_params(kernel__bandwidth_2=5.0)
    assert kernel.bandwidth_2 == 2.0
    assert other.kernel.bandwidth_2 == 5.0
    assert_close(clone(kernel)(X), kernel(X), depth=4)
    with pytest.raises(AttributeError, match="no hyperparameter 'width' to set; there are bandwidth"):
        other.set_params(kernel__width=1.0)


def test_the_likelihood_has_its_name_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GaussianProcessRegressor().fit(X, TARGETS)
    assert model.log_marginal_likelihood_value_ == model.log_marginal_likelihood()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rbf_kernel", "'Gaussian'"),
        ("euclidean_distances", "'cdist'"),
        ("pairwise_distances_argmin_min", "'argkmin'"),
        ("squareform", "'compat.scipy.squareform'"),
        ("scaled_dot_product_attention", "'attention'"),
        ("KMeans", "'estimators.KMeans'"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(name, hint):
    with pytest.raises(AttributeError, match=f"did you mean {hint}"):
        getattr(km, name)


def test_every_name_that_is_suggested_exists():
    for name in km._ALIASES.values():
        found = km
        for part in name.split("."):
            found = getattr(found, part)


def test_estimators_that_are_not_here_say_what_to_do():
    with pytest.raises(AttributeError, match=r"SVC\(kernel='precomputed'\)"):
        _ = km.estimators.SVC
    with pytest.raises(AttributeError, match=r"TSNE\(metric='precomputed', init='random'\)"):
        _ = km.estimators.TSNE
    with pytest.raises(AttributeError, match="did you mean 'KernelRidge'"):
        _ = km.estimators.KernelRigde
    labels = TARGETS > 0
    ours = sklearn.svm.SVC(kernel="precomputed").fit(km.Gaussian(0.5**0.5)(X), labels)
    wanted = sklearn.svm.SVC(kernel="precomputed").fit(rbf_kernel(X, gamma=1.0), labels)
    assert (ours.predict(km.Gaussian(0.5**0.5)(Y, X)) == wanted.predict(rbf_kernel(Y, X, gamma=1.0))).all()
    make = sklearn.cluster.AgglomerativeClustering
    trees = [make(3, metric="precomputed", linkage="average").fit(d) for d in (km.cdist(X), euclidean_distances(X))]
    assert (trees[0].labels_ == trees[1].labels_).all()
    shown = sklearn.manifold.TSNE(metric="precomputed", init="random", perplexity=5, max_iter=250)
    assert shown.fit_transform(km.cdist(X, metric="canberra")).shape == (40, 2)


def test_gammas_of_the_hints_are_right():
    assert_close(km.Gaussian((2 * 0.3) ** -0.5)(X, Y), rbf_kernel(X, Y, gamma=0.3), depth=4)
    assert_close(km.Laplace(1 / 0.3, p=1)(X, Y), np.exp(-0.3 * cdist(X, Y, "cityblock")), depth=4)


@pytest.mark.parametrize("name", ["solve", "inv", "lstsq", "slogdet"])
def test_functions_of_numpy_linalg_lead_to_ours(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; (solve|logdet)"):
        getattr(km.linalg, name)


def test_the_bandwidth_that_is_learned_as_a_length_is_not_set_silently():
    pytest.importorskip("gpytorch")
    from kernmantle.integrations.gpytorch import FusedKernel

    kernel, x = FusedKernel(km.Gaussian(2.0)), torch.from_numpy(X).float()
    with pytest.raises(AttributeError, match=r"set kernel\.lengthscale"):
        kernel.bandwidth = 3.0
    with pytest.raises(AttributeError, match=r"set kernel\.lengthscale"):
        _ = kernel.bandwidth
    kernel.lengthscale = 1.5
    assert_close(kernel(x).to_dense().detach(), km.Gaussian(3.0)(X), depth=100)
    assert FusedKernel(km.Gaussian(2.0) + km.Laplace(1.0)).bandwidth == 2.0


def test_keops_own_first_commands_check_a_product(capsys, monkeypatch):
    keops = km.compat.pykeops
    keops.test_numpy_bindings()
    keops.test_torch_bindings()
    assert capsys.readouterr().out.count("is working!") == 2
    monkeypatch.setattr(keops.numpy, "Genred", lambda *_, **__: lambda x, y, b: 0 * x)
    with pytest.raises(RuntimeError, match="is right"):
        keops.test_numpy_bindings()


def test_layers_without_patterns_say_which_there_are():
    for wrong in (lambda: km.KSLinear(64, 64), lambda: km.KSLinear(64, 64, False)):
        with pytest.raises(ParameterError, match=r"km\.kronsparse\.monarch\(\(out_features, in_features\), p, q\)"):
            wrong()
    assert km.KSLinear(64, 32, km.kronsparse.monarch((32, 64), 8, 8)).out_features == 32


def test_kronecker_products_are_not_made_objects_by_numpy():
    product = km.KroneckerProduct([2 * np.eye(2), 3 * np.eye(3)])
    with pytest.raises(TypeError, match="to_dense"):
        np.asarray(product)
    for other in (np.eye(6), torch.eye(6)):
        with pytest.raises(TypeError, match=r"s \* km\.KroneckerProduct\(\[n\]\)"):
            product + other
    noisy = product + 0.5 * km.KroneckerProduct([6])
    assert_close(noisy.to_dense(), 6.5 * np.eye(6), depth=4)


def test_a_fit_keeps_its_kernel_when_parameters_change():
    model = KernelRidge(0.1, kernel=km.Gaussian(1.0)).fit(X, TARGETS)
    before = model.predict(Y)
    model.set_params(kernel__bandwidth=5.0)
    assert (model.predict(Y) == before).all()
    assert_close(model.fit(X, TARGETS).predict(Y), KernelRidge(0.1, kernel=km.Gaussian(5.0)).fit(X, TARGETS).predict(Y))


def test_a_kernel_that_was_not_called_is_named():
    with pytest.raises(ValueError, match=r"kernel=km\.Matern of KernelRidge makes kernels: call it, as km\.Matern\(\)"):
        KernelRidge(kernel=km.Matern).fit(X, TARGETS)


FIRST_CALLS = (
    "ot.sinkhorn(x, x, eps=1.0)",
    "estimators.KernelRidge().fit(x, x[:, 0]).predict(x)",
    "estimators.KNeighborsRegressor(3).fit(x, x[:, 0]).predict(x)",
    "estimators.HDBSCAN(min_cluster_size=5).fit(x)",
)


def test_first_calls_do_not_import_sympy():
    """As torch.broadcast_shapes does at its first call, for half a second."""
    program = "import sys, numpy as np, kernmantle as km; x = np.random.rand(20, 3)"
    program += "".join(f"\nkm.{call}; assert 'sympy' not in sys.modules, {call!r}" for call in FIRST_CALLS)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
