"""What people typed first, coming from libraries they know, and what it has to give: values, or an error that helps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris
from sklearn.neighbors import KNeighborsClassifier

import kernmantle as km
from kernmantle.config import current
from kernmantle.errors import DeviceError, KernmantleError, KernmantleWarning, LinearAlgebraError, ParameterError
from kernmantle.estimators import GaussianProcessRegressor
from kernmantle.estimators import KNeighborsClassifier as Neighbors
from kernmantle.testing import assert_close
from kernmantle.torch_ops.row_reduce import task_of


def test_every_hyperparameter_of_a_sum_is_a_parameter():
    pytest.importorskip("gpytorch")
    from kernmantle.integrations.gpytorch import FusedKernel

    kernel = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(torch.nn.Parameter(torch.tensor(2.0))))
    x = torch.randn(5, 2)
    kernel(x).to_dense().sum().backward()
    names = [name for name, own in kernel.named_parameters() if own.grad is not None and own.grad.abs().sum() > 0]
    assert len(names) == len(list(kernel.parameters())) == 4


def test_a_wrong_identity_is_refused():
    a = -torch.rand(2, 4) - 1
    with pytest.raises(ParameterError, match="pass -inf"):
        km.contract("mk,nk->mn", lambda p, q: p + q, a, a, reduce=km.Semiring(km.maximum, 0.0))


@pytest.mark.parametrize("own", [lambda a, b: abs(a - b), km.Kernel(lambda a, b: abs(a - b))], ids=["lambda", "Kernel"])
def test_neighbours_by_a_distance_of_ones_own(own):
    x, y = load_iris(return_X_y=True)
    wanted = KNeighborsClassifier(5, metric="manhattan").fit(x, y)
    assert abs(Neighbors(5, metric=own).fit(x, y).score(x, y) - wanted.score(x, y)) <= 1 / len(x)


def test_a_configuration_that_changes_nothing_says_so():
    before = current().precision
    with pytest.warns(KernmantleWarning, match="km.set_config"):
        km.config(precision="ieee")
    assert current().precision == before


def test_a_block_is_of_its_thread():
    with km.config(precision="ieee"):
        assert ThreadPoolExecutor(1).submit(lambda: current().precision).result() != "ieee"
        assert current().precision == "ieee"


def test_a_likelihood_without_a_maximum_is_told():
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    with pytest.warns(Warning, match=r"features \[1, 2\]"):
        GaussianProcessRegressor(ard=True).fit(x, np.sin(x[:, 0]))


def test_a_negative_matrix_has_no_factor():
    with pytest.raises(LinearAlgebraError, match="leading minor of order 1"):
        km.linalg.solve_cholesky(-np.eye(3), np.ones(3))


def test_the_metric_is_the_third_argument_and_lists_are_arrays():
    x = np.random.default_rng(0).random((3, 2))
    assert_close(km.cdist(x, x, "canberra"), cdist(x, x, "canberra"), depth=2)
    assert_close(km.cdist([[0, 0]], [[1, 1]]), cdist([[0, 0]], [[1, 1]]), depth=2)


def test_one_bandwidth_a_column_is_no_batch():
    with pytest.raises(ParameterError, match="lengthscales="):
        km.Gaussian(torch.ones(4))(torch.randn(6, 4))


def test_axes_may_have_names():
    a, b = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    found = km.contract("batch state, state next -> batch next", lambda p, q: p + q, a, b)
    assert_close(found, (a[:, :, None] + b[None]).sum(1), depth=3)


def test_a_state_of_replaced_layers_is_loaded_into_others():
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(64, 64)) for _ in range(2)]
    km.replace_linears(models[0], 0.25)
    km.replace_linears(models[1], 0.25, project=False)
    assert models[1].load_state_dict(models[0].state_dict()) == ([], [])
    x = torch.randn(7, 64)
    assert torch.equal(models[0](x), models[1](x))


X, Y = torch.ones(4, 3), torch.ones(5, 3)
MISTAKES = {
    "columns": (lambda: km.cdist(X, Y[:, :2]), r"same number of columns: x has shape \(4, 3\), y has shape \(5, 2\)"),
    "attention": (lambda: km.attention(X, Y[:, :2], Y), r"q and k must have the same number of columns"),
    "two sets": (lambda: km.pdist(X, Y), r"not an array of shape \(5, 3\); .* are cdist\(x, y\)"),
    "power": (lambda: km.contract("mk,nk->mn", lambda a, b: (a - b) ^ 2, X, Y), r"a power is \*\*"),
    "sum": (lambda: km.contract("mk,nk->mn", lambda a, b: torch.sum(a - b), X, Y), "reduce= sums or compares"),
    "arguments": (lambda: km.contract("mk,nk->mn", lambda a: a, X, Y), r"(?s):\d+: the map takes 1 .*\nwrite one"),
    "no Gram matrix": (
        lambda: km.linalg.solve_kernel(km.Gaussian(1.0), X * np.nan, X[:, 0], 1.0),
        "order 1 is NaN or not",
    ),
    "one factor": (lambda: km.KroneckerProduct([X]) @ X[0, :2], r"2 rows, but 4x3 has 3 columns"),
    "shapes": (lambda: km.nearest_kron(X, (2, 2)), r"shapes must be the \(rows, columns\) of each factor"),
    "percent": (lambda: km.replace_linears(torch.nn.Sequential(torch.nn.Linear(4, 4)), 25), "up to 1, not 25"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_argument_and_what_to_do(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(KernmantleError, match=message):
        call()


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"device='cuda:99' of KernelRidge cannot be used here"):
        km.estimators.KernelRidge(device="cuda:99").fit(np.eye(4), np.ones(4))


ELSEWHERE = torch.tensor(2.0, device="meta")
COST = km.Kernel(lambda a, b, w: abs(a - b) * w, w=ELSEWHERE)
OTHER_DEVICE = {
    "matmul": lambda: km.Gaussian(ELSEWHERE).matmul(X, None, X[:, 0]),
    "operator": lambda: km.Gaussian(ELSEWHERE).operator(X) @ X[:, 0],
    "logsumexp": lambda: km.Gaussian(ELSEWHERE).logsumexp(X),
    "selection": lambda: km.Gaussian(ELSEWHERE).argkmax(X, X, 1),
    "batch": lambda: km.Gaussian(ELSEWHERE.expand(2)).sum(X[None]),
    "sum of kernels": lambda: (km.Gaussian(1.0) + ELSEWHERE * km.Laplace(1.0)).matmul(X, None, X[:, 0]),
    "scores": lambda: km.contract("mn->m", lambda s: s, km.Gaussian(ELSEWHERE).lazy(X, X)),
    "attention": lambda: km.attention(X, X, X, score=km.Gaussian(ELSEWHERE)),
    "transport": lambda: km.ot.sinkhorn(X, X, eps=0.5, cost=COST),
    "two samples": lambda: km.stats.mmd(X, X, km.Gaussian(ELSEWHERE), permutations=0),
}


@pytest.mark.parametrize("call", OTHER_DEVICE.values(), ids=list(OTHER_DEVICE))
def test_a_hyperparameter_on_another_device_is_named(call):
    with pytest.raises(DeviceError, match=r"x is on cpu but (bandwidth|scale|w) is on meta"):
        call()


def test_a_product_checks_the_device_of_every_tensor():
    contraction = km.Contraction("mk,nk->mn", lambda a, b, q: a * b * q)
    with pytest.raises(DeviceError, match="operand 0 is on cpu but parameter 'q' is on meta"):
        task_of(contraction, "sum", [X, X], {"q": ELSEWHERE})
