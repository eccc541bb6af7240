"""Kernels of GPyTorch on fused products, against GPyTorch's own."""

import gpytorch
import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.integrations.gpytorch import FusedKernel, FusedKernelOperator, LaplaceKernel, MaternKernel, RBFKernel
from kernmantle.testing import assert_close

PAIRS = {
    "rbf": (RBFKernel, gpytorch.kernels.RBFKernel),
    "matern 1/2": (lambda **o: MaternKernel(0.5, **o), lambda **o: gpytorch.kernels.MaternKernel(0.5, **o)),
    "matern 5/2": (lambda **o: MaternKernel(2.5, **o), lambda **o: gpytorch.kernels.MaternKernel(2.5, **o)),
}
SHAPES = {
    "plain": {},
    "one length a column": {"ard_num_dims": 3},
    "batch": {"batch_shape": torch.Size([2]), "ard_num_dims": 3},
}


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(name, options):
    ours, theirs = (make(**options).double() for make in PAIRS[name])
    length = rows(*theirs.lengthscale.shape, seed=3).abs() + 0.7
    ours.lengthscale = theirs.lengthscale = length
    return ours, theirs


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_matrices_products_and_gradients_are_gpytorch_s(name, options):
    ours, theirs = both(name, options)
    x, y, v = rows(11, 3), rows(7, 3, seed=1), rows(7, 2, seed=2)
    assert isinstance(ours(x, y).evaluate_kernel(), FusedKernelOperator)
    assert_close(ours(x, y).to_dense().detach(), theirs(x, y).to_dense().detach(), depth=1000)
    assert_close(ours(x, diag=True).detach(), theirs(x, diag=True).detach(), depth=1000)
    found = []
    for kernel in (ours, theirs):
        product = kernel(x, y).evaluate_kernel() @ v
        (gradient,) = torch.autograd.grad(product.square().sum(), kernel.raw_lengthscale)
        found.append((product.detach(), gradient))
    assert_close(found[0][0], found[1][0], depth=1000)
    assert_close(found[0][1], found[1][1], depth=10**5)


def test_a_kernel_of_ones_own_is_an_operator():
    k = 0.5 * km.Gaussian(1.0) + km.Laplace(2.0, p=1.3)
    kernel = FusedKernel(k).double()
    kernel.lengthscale = 1.75
    x = rows(9, 4)
    operator = kernel(x).evaluate_kernel()
    assert_close(operator.to_dense().detach(), k(x / 1.75), depth=100)
    assert_close((operator @ x).detach(), k(x / 1.75) @ x, depth=1000)
    assert_close(operator[2:5, 1].detach(), k(x / 1.75)[2:5, 1], depth=100)
    assert_close(operator.T.to_dense().detach(), k(x / 1.75), depth=100)
    assert_close(operator.diagonal().detach(), k(x / 1.75).diagonal(), depth=100)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood().double())
        self.mean, self.covariance = gpytorch.means.ConstantMean(), gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


@pytest.mark.parametrize("cholesky_size", [800, 1])
def test_training_and_prediction_follow_those_of_gpytorch(cholesky_size):
    x = torch.linspace(0, 6, 40, dtype=torch.float64)[:, None]
    y = torch.sin(x[:, 0]) + 0.05 * rows(40)
    z = torch.linspace(0.1, 5.9, 17, dtype=torch.float64)[:, None]
    means = []
    for make in PAIRS["rbf"]:
        torch.manual_seed(0)
        model = Model(x, y, make()).double()
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        search = torch.optim.Adam(model.parameters(), lr=0.2)
        precise = gpytorch.settings.cg_tolerance(1e-4), gpytorch.settings.max_cholesky_size(cholesky_size)
        with precise[0], precise[1], gpytorch.settings.num_trace_samples(50):
            for _ in range(6):
                search.zero_grad()
                loss = -marginal(model(x), y)
                loss.backward()
                search.step()
            model.eval()
            with torch.no_grad():
                means.append(model(z).mean)
    assert (means[0] - torch.sin(z[:, 0])).abs().max() < 0.25
    assert (means[0] - means[1]).abs().max() < 0.02


def test_laplace_is_of_any_power():
    x = rows(6, 3)
    kernel = LaplaceKernel(p=1.3).double()
    kernel.lengthscale = 2.0
    assert_close(kernel(x).to_dense().detach(), torch.exp(-torch.cdist(x, x, p=1.3) / 2), depth=100)


def test_bad_input():
    with pytest.raises(errors.ParameterError, match=r"km\.Kernel"):
        FusedKernel("rbf")
    with pytest.raises(errors.ParameterError, match="last_dim_is_batch"):
        RBFKernel()(rows(4, 2), last_dim_is_batch=True).to_dense()
