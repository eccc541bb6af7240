"""Kernels of GPyTorch on fused products, against GPyTorch's own."""

import gpytorch
import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.integrations.gpytorch import FusedKernel, FusedKernelOperator, LaplaceKernel, MaternKernel, RBFKernel
from kernmantle.testing import assert_close

from ..arrays import normal as rows

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


def test_hyperparameters_are_registered_and_have_the_gradients_of_the_formula():
    bandwidth = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    kernel = FusedKernel(0.5 * km.Gaussian(1.2) + km.Laplace(bandwidth)).double()
    kernel.lengthscale = 1.5
    names = {name for name, _ in kernel.named_parameters()}
    assert names == {"raw_lengthscale", "raw_scale", "raw_bandwidth", "bandwidth_2"}
    assert kernel.bandwidth_2 is bandwidth
    x, y, v = rows(11, 3), rows(7, 3, seed=1), rows(7, 2, seed=2)
    wanted = [kernel.raw_scale, kernel.raw_bandwidth, bandwidth, kernel.raw_lengthscale]

    def dense():
        scale, first, length = (torch.nn.functional.softplus(raw) for raw in (wanted[0], wanted[1], wanted[3]))
        differences = (x[:, None] - y) / length.reshape(())
        squares, absolutes = differences.square().sum(-1), differences.abs().sum(-1)
        return scale * torch.exp(-squares / (2 * first**2)) + torch.exp(-absolutes / bandwidth)

    found = (
        (kernel(x, y).evaluate_kernel() @ v, dense() @ v),
        (kernel(x, y).to_dense(), dense()),
        (kernel(x, x + 0.1, diag=True)[:7], None),
    )
    for ours, oracle in found:
        if oracle is None:
            assert_close(ours.detach(), kernel(x, x + 0.1).to_dense().detach().diagonal()[:7], depth=100)
            continue
        assert_close(ours.detach(), oracle.detach(), depth=1000)
        gradients = [torch.autograd.grad(value.square().sum(), wanted) for value in (ours, oracle)]
        for mine, theirs in zip(*gradients, strict=True):
            assert_close(mine, theirs, depth=10**4)


@pytest.mark.parametrize("cholesky_size", [800, 1])
def test_every_hyperparameter_moves_in_training(cholesky_size):
    x = torch.linspace(0, 6, 30, dtype=torch.float64)[:, None]
    y = torch.sin(x[:, 0])
    kernel = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(torch.nn.Parameter(torch.tensor(2.0)))).double()
    model = Model(x, y, kernel).double()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    before = {name: value.detach().clone() for name, value in kernel.named_parameters()}
    search = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.max_cholesky_size(cholesky_size):
        for _ in range(3):
            search.zero_grad()
            (-marginal(model(x), y)).backward()
            search.step()
    assert all(not torch.equal(value, before[name]) for name, value in kernel.named_parameters())
    again = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(torch.nn.Parameter(torch.tensor(9.0)))).double()
    again.load_state_dict(kernel.state_dict())
    values = again.hyperparameters
    k = values["scale"] * km.Gaussian(values["bandwidth"]) + km.Laplace(values["bandwidth_2"])
    assert_close(kernel(x).to_dense().detach(), k(x / kernel.lengthscale).detach(), depth=100)


def test_batches_and_columns_of_hyperparameters():
    x, y = rows(5, 3), rows(4, 3, seed=1)
    kernel = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(2.0), batch_shape=torch.Size([2])).double()
    kernel.raw_scale.data[1] += 1.0
    scale = kernel.hyperparameters["scale"].detach()
    wanted = [s * km.Gaussian(1.0)(x / l, y / l) + km.Laplace(2.0)(x / l, y / l)
              for s, l in zip(scale, kernel.lengthscale.detach(), strict=True)]  # fmt: skip
    assert_close(kernel(x, y).to_dense().detach(), torch.stack(wanted), depth=100)
    assert_close(kernel(x, diag=True).detach(), (scale + 1)[:, None].expand(2, 5), depth=100)
    lengths = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    kernel = FusedKernel(km.Gaussian(1.5, lengthscales=lengths) + km.Linear(0.3)).double()
    assert dict(kernel.named_buffers())["lengthscales"] is not None
    kernel.lengthscale = 1.0
    assert_close(
        kernel(x, y).to_dense().detach(), (km.Gaussian(1.5, lengthscales=lengths) + km.Linear(0.3))(x, y), depth=100
    )
    assert_close(kernel(x, diag=True).detach(), 1.3 + x.square().sum(1), depth=100)


def test_what_cannot_be_trained_is_an_error():
    log = torch.zeros((), requires_grad=True)
    with pytest.raises(errors.ParameterError, match=r"'bandwidth' requires a gradient and is not an nn.Parameter"):
        FusedKernel(km.Gaussian(log.exp()))
    with pytest.raises(errors.ParameterError, match="transform is not trained"):
        FusedKernel(km.Gaussian(1.0).transformed(torch.eye(3, requires_grad=True)))
    with pytest.raises(errors.ParameterError, match=r"'nu_prior' is of no number of the kernel, which has scale"):
        FusedKernel(0.5 * km.Matern(2.0), nu_prior=gpytorch.priors.GammaPrior(2.0, 1.0))
    with pytest.raises(errors.ParameterError, match="length scale in place of the bandwidth"):
        FusedKernel(km.Gaussian(2.0), bandwidth_prior=gpytorch.priors.GammaPrior(2.0, 1.0))


def powers():
    return 0.5 * km.Laplace(2.0, p=1.3) + km.RationalQuadratic(1.2, alpha=2.0)


def test_every_number_has_its_name_a_constraint_and_a_prior():
    prior = gpytorch.priors.GammaPrior(2.0, 1.0)
    kernel = FusedKernel(powers(), alpha_prior=prior, scale_constraint=gpytorch.constraints.Interval(0.1, 2.0)).double()
    names = {"raw_lengthscale", "raw_scale", "raw_bandwidth", "raw_bandwidth_2", "raw_p", "raw_alpha"}
    assert {name for name, _ in kernel.named_parameters()} == names
    assert {name for name, _ in kernel.named_constraints()} == {f"{name}_constraint" for name in names}
    assert [name for name, *_ in kernel.named_priors()] == ["alpha_prior"]
    for name, value in {"scale": 0.5, "bandwidth": 2.0, "bandwidth_2": 1.2, "p": 1.3, "alpha": 2.0}.items():
        assert_close(getattr(kernel, name).detach().float(), torch.tensor(value), depth=4)
        setattr(kernel, name, value / 1.25)
        assert_close(getattr(kernel, name).detach().float(), torch.tensor(value / 1.25), depth=4)
    kernel.initialize(alpha=torch.tensor(0.7, dtype=torch.float64), p=torch.tensor(1.9, dtype=torch.float64))
    kernel.register_prior("bandwidth_prior", prior, "bandwidth")
    kernel.sample_from_prior("bandwidth_prior")
    values = kernel.hyperparameters
    assert values["bandwidth"] != 1.6
    k = values["scale"] * km.Laplace(values["bandwidth"], p=1.9) + km.RationalQuadratic(
        values["bandwidth_2"], alpha=0.7
    )
    x = rows(9, 3)
    assert_close(kernel(x).to_dense().detach(), k(x / kernel.lengthscale).detach(), depth=100)
    assert_close(kernel(x, diag=True).detach(), k(x / kernel.lengthscale).diagonal().detach(), depth=100)
    with pytest.raises(RuntimeError, match="constraint"):
        kernel.scale = 5.0


def test_powers_are_numbers_until_they_are_trained():
    kernel = FusedKernel(powers()).double()
    assert [name for name, value in kernel.named_parameters() if not value.requires_grad] == ["raw_p"]
    assert kernel.hyperparameters["p"] == 1.3
    again = FusedKernel(powers()).float()
    kernel.p = 1.0
    again.load_state_dict(kernel.state_dict())
    assert again.hyperparameters["p"] == 1.0
    assert "raw_p" not in dict(kernel(rows(4, 2)).evaluate_kernel().tensor_params)
    kernel.raw_p.requires_grad_()
    kernel.p = 1.3
    x, y, v = rows(11, 3), rows(7, 3, seed=1), rows(7, 2, seed=2)
    found = kernel(x, y).evaluate_kernel() @ v
    given = [kernel.hyperparameters[name].detach().requires_grad_() for name in ("p", "alpha")]
    k = 0.5 * km.Laplace(2.0, p=given[0]) + km.RationalQuadratic(1.2, alpha=given[1])
    exact = k(x / kernel.lengthscale.detach(), y / kernel.lengthscale.detach()) @ v
    assert_close(found.detach(), exact.detach(), depth=1000)
    mine = torch.autograd.grad(found.square().sum(), [kernel.raw_p, kernel.raw_alpha])
    theirs = torch.autograd.grad(exact.square().sum(), given)
    for slope, wanted, raw in zip(mine, theirs, (kernel.raw_p, kernel.raw_alpha), strict=True):
        assert_close(slope, wanted * torch.sigmoid(raw.detach()), depth=10**4)
    trained = FusedKernel(km.Laplace(1.0, p=1.3), p_prior=gpytorch.priors.NormalPrior(1.3, 0.1))
    assert trained.raw_p.requires_grad
    assert not LaplaceKernel(p=1.3).raw_p.requires_grad
    batch = FusedKernel(km.Laplace(1.0, p=1.3), batch_shape=torch.Size([2])).double()
    batch.p = torch.tensor([1.0, 2.0])
    wanted = [
        km.Laplace(1.0, p=p)(x / length) for p, length in zip((1.0, 2.0), batch.lengthscale.detach(), strict=True)
    ]
    assert_close(batch(x).to_dense().detach(), torch.stack(wanted), depth=100)


def test_a_training_of_a_power_follows_the_prior():
    x = rows(30, 2)
    y = x[:, 0].sin()
    kernel = FusedKernel(km.RationalQuadratic(1.0), alpha_prior=gpytorch.priors.GammaPrior(2.0, 1.0))
    model = Model(x, y, kernel).double()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    found = -marginal(model(x), y)
    without = -gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)
    kernel.alpha = 3.0
    moved = -marginal(model(x), y)
    slope = torch.autograd.grad(moved, kernel.raw_alpha)[0]
    assert found == without
    assert slope != 0
    log = torch.distributions.Gamma(2.0, 1.0).log_prob(kernel.alpha.detach()).float()
    bare = Model(x, y, FusedKernel(km.RationalQuadratic(1.0))).double()
    bare.covariance.base_kernel.alpha = 3.0
    plain = -gpytorch.mlls.ExactMarginalLogLikelihood(bare.likelihood, bare)(bare(x), y)
    assert_close((plain - moved).detach() * len(x), log.double(), dtype="float32", depth=1000)


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
