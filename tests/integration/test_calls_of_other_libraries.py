"""Calls as users of SciPy, scikit-learn, PyTorch and GPyTorch write them: their results, or errors with what to do."""

import numpy as np
import pytest
import scipy.sparse.linalg
import sklearn.decomposition
import sklearn.kernel_ridge
import torch
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import additive_chi2_kernel, chi2_kernel

import kernmantle as km
from kernmantle import estimators
from kernmantle.errors import ParameterError
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(40, 4)), RANDOM.normal(size=(25, 4))
TARGETS = np.sin(X[:, 0])
CONDITIONED = 10**5
"""Depth of results of systems whose matrix has a condition number of ten thousand."""


def test_kernels_are_subtracted_from_numbers_and_from_each_other():
    k, other = km.Gaussian(1.3), km.Laplace(2.0)
    assert_close((1 - k)(X, Y), 1 - k(X, Y), depth=8)
    assert_close((k - other)(X, Y), k(X, Y) - other(X, Y), depth=8)
    assert_close((np.float64(2.0) - k)(X, Y), 2 - k(X, Y), depth=8)
    assert_close((3 - k - other).matmul(X, Y, Y[:, 0]), (3 - k(X, Y) - other(X, Y)) @ Y[:, 0], depth=100)
    bandwidth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    (1 - km.Gaussian(bandwidth))(torch.from_numpy(X), torch.from_numpy(Y)).sum().backward()
    assert bandwidth.grad < 0


def test_an_operator_is_one_of_scipy_and_has_its_diagonal():
    k = km.Gaussian(1.0)
    operator = scipy.sparse.linalg.aslinearoperator(k.operator(X))
    assert_close(operator @ TARGETS, k(X) @ TARGETS, depth=100)
    assert_close(scipy.sparse.linalg.eigsh(k.operator(X), 3)[0], np.linalg.eigvalsh(k(X))[-3:], depth=1000)
    assert_close(k.operator(X).diagonal(), np.diagonal(k(X)), depth=4)
    with pytest.raises(AttributeError, match=r"k\.operator\(x\)\.diagonal\(\)"):
        k.diag(X)


HINTS = [
    (lambda: km.cdist(X, Y, p="inf"), r"float\('inf'\)"),
    (lambda: km.cdist(X, Y, p="two"), "p must be a number"),
    (lambda: km.cdist(X, Y, "nan_euclidean"), "no missing values"),
    (lambda: km.cdist(X, Y, "haversine"), "unit vectors"),
    (lambda: km.cdist(X, Y, "wminkowski"), "'minkowski' takes weights"),
    (lambda: km.contract("mk,nk->mn", lambda a, b: a * b, X, Y, reduce="mean"), "epilogue=lambda s, n: s / n"),
    (lambda: km.linalg.eigh(np.eye(3), UPLO="L"), "lower=True"),
    (lambda: km.linalg.svd(np.eye(3), full_matrices=False), "the k largest"),
    (lambda: km.linalg.cg(np.eye(3), np.ones(3), rtol=1e-8), "tolerance="),
    (lambda: km.linalg.cg(np.eye(3), np.ones(3), maxiter=7), "max_iterations="),
    (lambda: km.replace_linears(torch.nn.Linear(4, 4), 0.5, exclude=["x"]), "a mapping leaves layers"),
    (lambda: km.replace_linears(torch.nn.Linear(4, 4), density=0.5), r"replace_linears\(model, 0\.25\)"),
    (lambda: estimators.KernelClassifier(C=10.0), "the penalty is alpha="),
    (lambda: estimators.KernelClassifier(class_weight="balanced"), "sample_weight="),
    (lambda: estimators.GaussianProcessRegressor(alpha=0.1), "noise="),
    (lambda: estimators.GaussianProcessRegressor(optimizer=None), "optimise=False"),
    (lambda: estimators.GaussianProcessRegressor(normalize_y=True), "standardised"),
    (lambda: km.Gaussian(gamma=0.5), r"bandwidth=\(2 \* gamma\) \*\* -0.5"),
    (lambda: km.Laplace(gamma=0.5), "bandwidth=1 / gamma"),
    (lambda: km.Gaussian(sigma=0.5), "sigma is bandwidth here"),
    (lambda: km.argkmin(X, Y, k=3), "how many neighbours is count="),
    (lambda: km.argkmin(X, Y, n_neighbors=3), "how many neighbours is count="),
    (lambda: km.attention(X, X, X, is_causal=True), "causal=True"),
    (lambda: km.attention(X, X, X, score="canberra", attn_mask=np.eye(40) > 0), "mask= takes a boolean mask"),
]


@pytest.mark.parametrize(("call", "text"), HINTS, ids=range(len(HINTS)))
def test_arguments_of_other_libraries_say_what_to_do(call, text):
    with pytest.raises(ParameterError, match=text):
        call()


def test_what_the_hints_say_is_so():
    mean = km.contract("mk,nk->mn", lambda a, b: a * b, X, Y, n=4, epilogue=lambda s, n: s / n)
    assert_close(mean, X @ Y.T / 4, depth=4)
    latitude, longitude = np.radians(RANDOM.uniform(-60, 60, (2, 9)))
    points = np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], 1)
    angle = np.arccos(points[:4] @ points[4:].T)
    assert_close(2 * np.arcsin(km.cdist(points[:4], points[4:]) / 2), angle, depth=1000)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    km.replace_linears(model, {"1": None, "*": 0.5})
    assert isinstance(model[0], km.KSLinear)
    assert isinstance(model[1], torch.nn.Linear)


@pytest.mark.parametrize(
    ("name", "theirs"), [("chi2", lambda x, y: chi2_kernel(x, y, gamma=1.0)), ("additive_chi2", additive_chi2_kernel)]
)
def test_kernels_that_are_expressions_are_in_the_message(name, theirs):
    shares, others = abs(X), abs(Y)
    shares[0, 0] = others[0, 0] = 0
    with pytest.raises(ValueError, match="that one is") as found:
        estimators.KernelRidge(kernel=name).fit(shares, TARGETS)
    kernel = eval(str(found.value).split("that one is ")[1], {"km": km})
    assert_close(kernel(shares, others), theirs(shares, others), depth=10)


@pytest.mark.parametrize("kernel", ["poly", "polynomial", "sigmoid"])
def test_the_gamma_of_a_product_is_that_of_scikit_learn_by_default(kernel):
    options = {"kernel": kernel, "alpha": 3.0}
    if kernel == "sigmoid":
        options["coef0"] = 0.1
    ours = estimators.KernelRidge(**options).fit(X, TARGETS)
    theirs = sklearn.kernel_ridge.KernelRidge(**options).fit(X, TARGETS)
    assert_close(ours.predict(Y), theirs.predict(Y), depth=CONDITIONED)


@pytest.mark.parametrize("weights", [None, abs(TARGETS)], ids=["equal", "weighted"])
def test_a_penalty_of_each_output(weights):
    targets = np.stack([TARGETS, X[:, 1] ** 2, TARGETS - 1], 1)
    options = {"kernel": "rbf", "gamma": 0.3, "alpha": np.array([0.1, 1.0, 10.0])}
    ours = estimators.KernelRidge(**options).fit(X, targets, sample_weight=weights)
    theirs = sklearn.kernel_ridge.KernelRidge(**options).fit(X, targets, sample_weight=weights)
    assert_close(ours.dual_coef_, theirs.dual_coef_, depth=CONDITIONED)
    assert_close(ours.predict(Y), theirs.predict(Y), depth=CONDITIONED)
    with pytest.raises(ValueError, match="3 numbers where y has 2 outputs"):
        ours.fit(X, targets[:, :2])
    with pytest.raises(ValueError, match="alpha must be a number above 0"):
        estimators.KernelRidge([1.0, -1.0, 1.0]).fit(X, targets)


@pytest.mark.parametrize("alpha", [np.float32(0.5), np.int64(2)])
def test_a_penalty_may_be_any_number_of_numpy(alpha):
    ours = estimators.KernelRidge(alpha, kernel="linear").fit(X, TARGETS)
    assert_close(ours.dual_coef_, estimators.KernelRidge(float(alpha), kernel="linear").fit(X, TARGETS).dual_coef_)


@pytest.mark.parametrize("kernel", ["rbf", km.Gaussian(1.0)])
def test_a_kernel_in_the_place_of_the_penalty_is_named(kernel):
    with pytest.raises(ValueError, match="the kernel is kernel="):
        estimators.KernelRidge(kernel).fit(X, TARGETS)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_rows_are_found_from_their_components_as_scikit_learn_finds_them(kernel):
    options = {"kernel": kernel, "gamma": 0.2, "fit_inverse_transform": True, "alpha": 0.5}
    ours = estimators.KernelPCA(3, **options).fit(X)
    theirs = sklearn.decomposition.KernelPCA(3, **options).fit(X)
    points = ours.transform(Y)
    signs = np.sign((points * theirs.transform(Y)).sum(0))
    assert_close(ours.inverse_transform(points), theirs.inverse_transform(points * signs), depth=CONDITIONED)
    assert_close(abs(ours.X_transformed_fit_), abs(theirs.X_transformed_fit_), depth=CONDITIONED)
    found = ours.inverse_transform(torch.from_numpy(points))
    assert isinstance(found, torch.Tensor)
    assert_close(found, ours.inverse_transform(points), depth=1)
    with pytest.raises(ValueError, match="of 3 components"):
        ours.inverse_transform(points[:, :2])
    with pytest.raises(NotFittedError, match="fit_inverse_transform=True"):
        estimators.KernelPCA(3).fit(X).inverse_transform(points)
    with pytest.raises(ValueError, match="precomputed kernel"):
        estimators.KernelPCA(kernel="precomputed", fit_inverse_transform=True).fit(X @ X.T)


def test_what_is_added_to_an_inner_product_stays_positive_in_training():
    gpytorch = pytest.importorskip("gpytorch")
    from kernmantle.integrations.gpytorch import FusedKernel

    x, y = torch.from_numpy(X), torch.from_numpy(TARGETS)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, kernel, likelihood):
            super().__init__(x, y, likelihood)
            self.mean, self.covariance = gpytorch.means.ZeroMean(), kernel

        def forward(self, rows):
            return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.covariance(rows))

    def trained(kernel):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = Model(kernel, likelihood).double()
        optimiser = torch.optim.Adam((own for own in model.parameters() if own.requires_grad), 0.3)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        for _ in range(12):
            optimiser.zero_grad()
            loss = -objective(model(x), y)
            loss.backward()
            optimiser.step()
        return kernel, float(loss)

    plain, _ = trained(FusedKernel(km.Gaussian(1.0) + km.Linear()))
    assert not plain.raw_offset.requires_grad
    assert float(plain.offset) == 0
    moved, _ = trained(FusedKernel(km.Gaussian(1.0) + km.Linear(1.0)))
    assert 0 < float(moved.offset) < 1
    squares, _ = trained(FusedKernel(km.Polynomial(2.0, coef0=0.5)))
    assert 0 < float(squares.coef0) != 0.5
    own = FusedKernel(km.Linear(), offset_constraint=gpytorch.constraints.GreaterThan(-1.0))
    assert own.raw_offset.requires_grad
    with pytest.raises(ParameterError, match=r"as km\.Gaussian\(\), not str"):
        FusedKernel("rbf")
    with pytest.raises(ParameterError, match=r"km\.Kernel\(lambda a, b"):
        FusedKernel(lambda a, b: a * b)
