"""Spectral mixtures and covariances of values and gradients, against formulas written out and GPyTorch."""

import math
import pickle

import gpytorch
import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import DtypeError, ParameterError, ShapeError
from kernmantle.integrations.gpytorch import FusedKernelGrad, SpectralMixtureKernel
from kernmantle.pairwise import CONSTRUCTORS
from kernmantle.testing import assert_close
from kernmantle.torch_ops import derivation

SMOOTH = [
    "Cauchy", "Gaussian", "Linear", "Matern", "Periodic", "Polynomial", "RationalQuadratic", "Sigmoid", "Wendland",
]  # fmt: skip


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def mixture(count, columns, *batch, seed=0):
    random = np.random.default_rng(seed)
    shapes = (*batch, count), (*batch, count, columns), (*batch, count, columns)
    return [torch.from_numpy(random.uniform(0.2, 1.2, shape)).requires_grad_() for shape in shapes]


def written_out(x, y, weights, means, scales, separable):
    """The formula, every Gaussian, pair and column stored."""
    gaps = (x[..., :, None, :] - y[..., None, :, :]).unsqueeze(-4)
    each = torch.exp(-2 * math.pi**2 * gaps**2 * scales[..., None, None, :] ** 2)
    each = each * torch.cos(2 * math.pi * gaps * means[..., None, None, :])
    if separable:
        return (weights[..., None, None, None] * each).sum(-4).prod(-1)
    return (weights[..., None, None] * each.prod(-1)).sum(-3)


@pytest.mark.parametrize(
    ("count", "columns", "separable"),  # of one column, separable or not is the same
    [(1, 1, False), (4, 1, True), (3, 2, False), (3, 2, True), (2, 5, False), (2, 5, True)],
)
def test_values_products_and_gradients(count, columns, separable):
    parameters = mixture(count, columns)
    x, y = normal(11, columns).requires_grad_(), normal(7, columns, seed=1).requires_grad_()
    v = normal(7, 2, seed=2)
    k = km.SpectralMixture(*parameters, separable=separable)
    expected = written_out(x, y, *parameters, separable)
    assert_close(k(x, y).detach(), expected.detach(), depth=100)
    assert_close(k.matmul(x, y, v).detach(), (expected @ v).detach(), depth=100)
    wanted = [*parameters, x, y]
    for ours, oracle in ((k(x, y), expected), (k.matmul(x, y, v), expected @ v)):
        gradients = (torch.autograd.grad(value.square().sum(), wanted, retain_graph=True) for value in (ours, oracle))
        for mine, theirs in zip(*gradients, strict=True):
            assert_close(mine, theirs, depth=10**4)
    assert k.is_symmetric
    assert k.is_stationary
    whole = parameters[0].sum() ** (columns if separable else 1)
    assert_close(k.diagonal(x).detach(), whole.detach().expand(11), depth=100)


@pytest.mark.parametrize(("count", "together"), [(3, 2), (4, 3), (7, 5)])
def test_gradients_that_share_their_terms_share_programs(count, together, monkeypatch):
    """By the lengthscales and periods of at most three Gaussians together, by the weights of at most six."""
    found = []

    def noted(step, values):
        before = len(values)
        run(step, values)
        found.append(len(values) - before)

    run = derivation.ProgramStep.__call__
    monkeypatch.setattr(derivation.ProgramStep, "__call__", noted)
    parameters = mixture(count, 2)
    x, y = normal(5, 2), normal(4, 2, seed=1)
    own = km.SpectralMixture(*parameters, separable=True)(x, y)
    torch.autograd.grad(own.sin().sum(), parameters)
    found = [outputs for outputs in found[1:] if outputs]  # after the statistics of the product
    assert sum(found) == 3 * count
    assert len(found) == together
    assert max(found) <= derivation.TOGETHER


@pytest.mark.parametrize("separable", [False, True])
def test_batches_of_mixtures(separable):
    parameters = [value.detach() for value in mixture(2, 3, 4)]
    x, y = normal(4, 6, 3), normal(5, 3, seed=1)
    k = km.SpectralMixture(*parameters, separable=separable)
    assert_close(k(x, y), written_out(x, y, *parameters, separable), depth=100)


def test_rows_of_one_column_and_numpy():
    k = km.SpectralMixture(np.array([1.0, 0.5]), np.array([0.0, 1.0]), np.array([0.1, 0.3]))
    x = np.linspace(0, 2, 5)[:, None]
    columns = [torch.tensor(value, dtype=torch.float64) for value in ([1.0, 0.5], [[0.0], [1.0]], [[0.1], [0.3]])]
    expected = written_out(torch.from_numpy(x), torch.from_numpy(x), *columns, False)
    assert_close(torch.from_numpy(k(x)), expected, depth=100)
    same = pickle.loads(pickle.dumps(k))
    assert np.array_equal(same(x), k(x))
    both = k + km.Gaussian(1.0)
    assert_close(torch.from_numpy(both(x)), expected + torch.from_numpy(km.Gaussian(1.0)(x)), depth=100)
    assert repr(k).startswith("SpectralMixture(weights=")


def test_a_mean_of_zero_has_the_gradient_of_the_formula():
    means = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    weights, _, scales = (value.detach() for value in mixture(2, 1))
    x = normal(6, 1)
    k = km.SpectralMixture(weights, means, scales)
    (found,) = torch.autograd.grad(k(x, normal(4, 1, seed=1)).sum(), means)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([1.0], [[1.0]], [[0.0]]), ParameterError, "above 0"),
        (([1.0], [[1.0]], [[math.nan]]), ParameterError, "above 0"),
        (([1.0], [[math.inf]], [[1.0]]), ParameterError, "finite"),
        (([1.0], [[1.0], [2.0]], [[1.0], [1.0]]), ShapeError, r"\(\.\.\., q\)"),
        (([1.0], [[1.0, 2.0]], [[1.0]]), ShapeError, r"\(\.\.\., q\)"),
        (([], [], []), ShapeError, r"\(\.\.\., q\)"),
        ((1.0, [1.0], [1.0]), ShapeError, "one entry for each Gaussian"),
        ((torch.ones(1, dtype=torch.int64), [1.0], [1.0]), DtypeError, "floating point"),
    ],
)
def test_bad_mixtures(arguments, error, match):
    with pytest.raises(error, match=match):
        km.SpectralMixture(*arguments)


def test_rows_of_other_columns():
    with pytest.raises(ShapeError, match="columns"):
        km.SpectralMixture([1.0], [[1.0, 2.0]], [[1.0, 1.0]])(np.zeros((3, 3)))
    with pytest.raises(ParameterError, match="at most 64"):
        km.SpectralMixture(np.ones(65), np.ones(65), np.ones(65), separable=True)


@pytest.mark.parametrize("options", [{}, {"ard_num_dims": 2}, {"ard_num_dims": 2, "batch_shape": torch.Size([3])}])
def test_the_kernel_of_gpytorch(options):
    ours, theirs = (
        kind(num_mixtures=3, **options).double()
        for kind in (SpectralMixtureKernel, gpytorch.kernels.SpectralMixtureKernel)
    )
    for seed, parameter in enumerate(ours.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed)
    theirs.load_state_dict(ours.state_dict())
    columns = options.get("ard_num_dims", 1)
    x, y, v = normal(9, columns), normal(7, columns, seed=1), normal(7, 2, seed=2)
    assert_close(ours(x, y).to_dense().detach(), theirs(x, y).to_dense().detach(), depth=1000)
    assert_close(ours(x, diag=True).detach(), theirs(x, diag=True).detach(), depth=1000)
    found = []
    for product, kernel in ((ours(x, y).evaluate_kernel() @ v, ours), (theirs(x, y).to_dense() @ v, theirs)):
        found.append((product.detach(), torch.autograd.grad(product.square().sum(), list(kernel.parameters()))))
    assert_close(found[0][0], found[1][0], depth=1000)
    for mine, other in zip(found[0][1], found[1][1], strict=True):
        assert_close(mine, other, depth=10**5)
    paper = SpectralMixtureKernel(num_mixtures=3, separable=False, **options).double()
    paper.load_state_dict(ours.state_dict())
    parameters = paper.mixture_weights, paper.mixture_means.squeeze(-2), paper.mixture_scales.squeeze(-2)
    assert_close(paper(x, y).to_dense().detach(), written_out(x, y, *parameters, False).detach(), depth=1000)


@pytest.mark.parametrize("cholesky_size", [800, 1])
def test_a_model_with_it_is_trained(cholesky_size):
    x = torch.linspace(0, 1, 40, dtype=torch.float64)
    y = torch.sin(12 * math.pi * x)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = SpectralMixtureKernel(num_mixtures=2)
            self.covar_module.mixture_means = torch.tensor([5.5, 1.0]).view(2, 1, 1)
            self.covar_module.mixture_scales = torch.tensor([0.5, 0.5]).view(2, 1, 1)

        def forward(self, rows):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Model(likelihood).double()
    before = [parameter.detach().clone() for parameter in model.covar_module.parameters()]
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.max_cholesky_size(cholesky_size):
        for _ in range(25):
            optimiser.zero_grad()
            (-objective(model(x), y)).backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            z = torch.tensor([1.02, 1.05], dtype=torch.float64)
            mean = model(z).mean
    assert all((one != other).any() for one, other in zip(before, model.covar_module.parameters(), strict=True))
    assert (mean - torch.sin(12 * math.pi * z)).abs().max() < 0.3


def test_bad_input_of_the_kernel():
    kernel = SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2).double()
    with gpytorch.settings.debug(False), pytest.raises(ParameterError, match="ard_num_dims is 2"):
        kernel(normal(3, 3)).to_dense()
    with pytest.raises(ParameterError, match="last_dim_is_batch"):
        kernel(normal(3, 2), last_dim_is_batch=True).to_dense()


def by_pairs(function, x, y):
    """Blocks by torch's own derivatives of a function of two rows, pair by pair."""
    found = []
    for one in x:
        rows = []
        for other in y:
            both = torch.cat([one, other])
            d = len(one)

            def call(joined, d=d):
                return function(joined[:d], joined[d:])

            gradient, hessian = torch.func.grad(call)(both), torch.func.hessian(call)(both)
            top = torch.cat([call(both)[None], gradient[d:]])
            rows.append(torch.cat([top[None], torch.cat([gradient[:d, None], hessian[:d, d:]], 1)]))
        found.append(torch.cat(rows, 1))
    return torch.cat(found)


FORMULAS = {
    "Gaussian": (km.Gaussian(0.8), lambda a, b: torch.exp(-(a - b).square().sum() / (2 * 0.64))),
    "Cauchy": (km.Cauchy(1.5), lambda a, b: 1 / (1 + (a - b).square().sum() / 2.25)),
    "RationalQuadratic": (
        km.RationalQuadratic(1.2, 0.7), lambda a, b: (1 + (a - b).square().sum() / (1.4 * 1.44)) ** -0.7,
    ),
    "Periodic": (
        km.Periodic(1.1, 2.0), lambda a, b: torch.exp(-2 * (math.pi * (a - b) / 2).sin().square().sum() / 1.21),
    ),
    "Polynomial": (km.Polynomial(3, 0.5, 1.0), lambda a, b: (0.5 * (a @ b) + 1) ** 3),
    "a sum": (
        0.5 * km.Gaussian(1.0) + km.Linear(2.0), lambda a, b: 0.5 * torch.exp(-(a - b).square().sum() / 2) + a @ b + 2,
    ),
    "a lambda": (km.Kernel(lambda x, y: km.cos(x - y)), lambda a, b: (a - b).cos().sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("columns", [1, 3])
def test_covariances_of_values_and_gradients(name, columns):
    kernel, formula = FORMULAS[name]
    x = normal(4, columns)
    y = torch.cat([x[:2], normal(3, columns, seed=1)])
    assert_close(km.with_gradients(kernel, x, y), by_pairs(formula, x, y), depth=1000)
    whole = km.with_gradients(kernel, x)
    assert_close(whole, by_pairs(formula, x, x), depth=1000)
    found = km.with_gradients(kernel, x.numpy(), y.numpy())
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, km.with_gradients(kernel, x, y).numpy())


def test_covariances_of_a_mixture_and_of_batches():
    parameters = [value.detach() for value in mixture(2, 2)]
    kernel = km.SpectralMixture(*parameters)
    x, y = normal(2, 3, 2), normal(2, 4, 2, seed=1)
    found = km.with_gradients(kernel, x, y)
    assert found.shape == (2, 9, 12)

    def formula(a, b):
        return written_out(a[None], b[None], *parameters, False)[0, 0]

    for own, left, right in zip(found, x, y, strict=True):
        assert_close(own, by_pairs(formula, left, right), depth=10**4)


def test_they_have_gradients_by_hyperparameters_and_rows():
    bandwidth = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    x, y = normal(3, 2).requires_grad_(), normal(2, 2, seed=1)
    weight = normal(9, 6, seed=2)

    def total(call):
        return (call * weight).sum()

    found = torch.autograd.grad(total(km.with_gradients(km.Gaussian(bandwidth), x, y)), (bandwidth, x))
    oracle = by_pairs(lambda a, b: torch.exp(-(a - b).square().sum() / (2 * bandwidth**2)), x, y)
    for mine, theirs in zip(found, torch.autograd.grad(total(oracle), (bandwidth, x)), strict=True):
        assert_close(mine, theirs, depth=10**4)


def matern(scaled, nu):
    polynomial = 1 + scaled if nu == 1.5 else 1 + scaled + scaled**2 / 3
    return polynomial * torch.exp(-scaled)


def blocks_of_matern(x, y, nu, bandwidth):
    """Covariances of values and gradients, from the derivatives of the kernel by the squared distance."""
    gaps, columns = x[:, None] - y[None], x.shape[-1]
    rate = math.sqrt(2 * nu) / bandwidth
    scaled = rate * gaps.norm(dim=-1)
    decay = torch.exp(-scaled)
    if nu == 1.5:
        first = -(rate**2) / 2 * decay
        second = torch.where(scaled == 0, 0.0, rate**4 / 4 * decay / torch.where(scaled == 0, 1.0, scaled))
    else:
        first, second = -(rate**2) / 6 * (1 + scaled) * decay, rate**4 / 12 * decay
    found = x.new_zeros(len(x), len(y), 1 + columns, 1 + columns)
    found[..., 0, 0] = matern(scaled, nu)
    found[..., 1:, 0] = 2 * first[..., None] * gaps
    found[..., 0, 1:] = -2 * first[..., None] * gaps
    identity = torch.eye(columns, dtype=x.dtype)
    found[..., 1:, 1:] = -4 * second[..., None, None] * gaps[..., :, None] * gaps[..., None, :]
    found[..., 1:, 1:] -= 2 * first[..., None, None] * identity
    return found.transpose(1, 2).reshape(len(x) * (1 + columns), -1)


@pytest.mark.parametrize("nu", [1.5, 2.5])
@pytest.mark.parametrize("columns", [1, 3])
def test_matern_has_gradients_where_its_process_does(nu, columns):
    x = normal(5, columns)
    close = [x[2:3] + distance * normal(1, columns, seed=2) for distance in (1e-10, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2)]
    y = torch.cat([x[:2], *close, normal(3, columns, seed=1)])
    kernel = km.Matern(0.9, nu=nu)
    wanted = blocks_of_matern(x, y, nu, 0.9)
    assert_close(km.with_gradients(kernel, x, y), wanted, depth=10**4)
    assert torch.linalg.eigvalsh(km.with_gradients(kernel, x)).min() > 0
    single = x.float()
    assert_close(km.with_gradients(kernel, single), blocks_of_matern(single.double(), single.double(), nu, 0.9))
    bent = km.with_gradients(km.Matern(0.9 * (1 + 1e-6), nu=nu), x, y)
    with pytest.raises(AssertionError):
        assert_close(bent, wanted, depth=10**4)


LENGTHS, MATRIX = torch.tensor([0.7, 1.2, 2.0]).double(), torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 1.0]]).double()
COMPOSED = {
    "with a linear kernel": (
        km.Matern(2.0, nu=1.5) * km.Linear(1.0),
        lambda a, b: matern(3**0.5 * (a - b).norm() / 2, 1.5) * (a @ b + 1),
    ),
    "with lengthscales": (
        km.Matern(nu=2.5, lengthscales=LENGTHS) * km.Matern(3.0, nu=1.5) + 0.3 * km.Gaussian(1.0),
        lambda a, b: matern(5**0.5 * ((a - b) / LENGTHS).norm(), 2.5) * matern(3**0.5 * (a - b).norm() / 3, 1.5)
        + 0.3 * torch.exp(-(a - b).square().sum() / 2),
    ),
    "of transformed rows": (
        km.Matern(2.0, nu=1.5).transformed(MATRIX),
        lambda a, b: matern(3**0.5 * ((a - b) @ MATRIX).norm() / 2, 1.5),
    ),
    "squared": (km.Matern(2.0, nu=2.5) ** 2, lambda a, b: matern(5**0.5 * (a - b).norm() / 2, 2.5) ** 2),
    "a lambda": (
        km.Kernel(lambda x, y, h: ((x - y) / h) ** 2, lambda s: (1 + km.sqrt(s)) * km.exp(-km.sqrt(s)), h=2.0),
        lambda a, b: matern((a - b).norm() / 2, 1.5),
    ),
    "Wendland": (
        km.Wendland(2.0, smoothness=1),
        lambda a, b: (1 - (a - b).norm() / 2).clamp_min(0) ** 4 * (2 * (a - b).norm() + 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_kernels_of_distances_are_composed(name):
    kernel, formula = COMPOSED[name]
    x, y = normal(4, 3), 0.6 * normal(3, 3, seed=1)
    assert_close(km.with_gradients(kernel, x, y), by_pairs(formula, x, y), depth=10**4)
    whole = km.with_gradients(kernel, x)
    assert torch.linalg.eigvalsh(whole).min() > -1e-9 * whole.abs().max()


@pytest.mark.parametrize(
    "kernel",
    [
        km.Matern(nu=0.5), km.Laplace(p=2.0), km.Wendland(smoothness=0), km.Gaussian(1.0) + km.Matern(nu=0.5),
        km.Kernel(lambda x, y: (x - y) ** 2, lambda s: 1 - 2 * km.sqrt(s)),
    ],
)  # fmt: skip
def test_corners_are_refused(kernel):
    with pytest.raises(ParameterError, match="falls linearly with their distance"):
        km.with_gradients(kernel, normal(3, 2))


def test_maxima_outside_of_their_powers_are_refused():
    kernel = km.Kernel(lambda x, y: (x - y) ** 2, lambda s: km.maximum(1 - s, 0) ** 3 + km.maximum(1 - s, 0))
    with pytest.raises(ParameterError, match="it has 'max'"):
        km.with_gradients(kernel, normal(3, 2))


@pytest.mark.parametrize("options", [{}, {"ard_num_dims": 3}])
def test_gradients_of_matern_are_gpytorch_s(options):
    ours = FusedKernelGrad(km.Matern(1.0, nu=2.5), **options).double()
    theirs = gpytorch.kernels.Matern52KernelGrad(**options).double()
    ours.lengthscale = theirs.lengthscale = normal(*theirs.lengthscale.shape).abs() + 0.5
    x = normal(6, 3)
    y = torch.cat([x[:2], normal(4, 3, seed=1)])
    assert_close(ours(x, y).to_dense().detach(), theirs(x, y).to_dense().detach(), depth=10**4)
    assert_close(ours(x, diag=True).detach(), theirs(x, diag=True).detach(), depth=1000)
    weight = normal(24, 24, seed=3)
    slopes = [
        torch.autograd.grad((kernel(x, y).to_dense() * weight).sum(), kernel.raw_lengthscale)[0]
        for kernel in (ours, theirs)
    ]
    assert_close(*slopes, depth=10**5)


@pytest.mark.parametrize("name", sorted(CONSTRUCTORS))
def test_kernels_without_second_derivatives_are_refused(name):
    kernel = CONSTRUCTORS[name]()
    if name in SMOOTH:
        found = km.with_gradients(kernel, normal(3, 2))
        assert torch.linalg.eigvalsh(found).min() > -1e-9 or name == "Sigmoid"
        return
    with pytest.raises(ParameterError, match="no second derivatives"):
        km.with_gradients(kernel, normal(3, 2))
    with pytest.raises(ParameterError, match="no second derivatives"):
        FusedKernelGrad(km.Gaussian(1.0) + kernel)


@pytest.mark.parametrize("options", [{}, {"ard_num_dims": 3}, {"ard_num_dims": 3, "batch_shape": torch.Size([2])}])
def test_kernels_of_gradients_are_gpytorch_s(options):
    ours = FusedKernelGrad(km.Gaussian(1.0), **options).double()
    theirs = gpytorch.kernels.RBFKernelGrad(**options).double()
    ours.lengthscale = theirs.lengthscale = normal(*theirs.lengthscale.shape).abs() + 0.5
    batch = options.get("batch_shape", ())
    x, y = normal(*batch, 6, 3), normal(*batch, 5, 3, seed=1)
    found, wanted = ours(x, y).to_dense(), theirs(x, y).to_dense()
    assert_close(found.detach(), wanted.detach(), depth=1000)
    assert_close(ours(x, diag=True).detach(), theirs(x, diag=True).detach(), depth=1000)
    assert ours(x).shape[-2:] == (24, 24)
    weight = normal(*wanted.shape, seed=3)
    gradients = [
        torch.autograd.grad((value * weight).sum(), kernel.raw_lengthscale)[0]
        for value, kernel in ((found, ours), (wanted, theirs))
    ]
    assert_close(gradients[0], gradients[1], depth=10**4)


def test_a_model_observes_gradients():
    x = torch.linspace(0, 5, 8, dtype=torch.float64)[:, None]
    observed = torch.cat([x.sin(), x.cos()], 1)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, observed, likelihood)
            self.mean_module = gpytorch.means.ConstantMeanGrad()
            self.covar_module = FusedKernelGrad(km.RationalQuadratic(1.5))

        def forward(self, rows):
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2).double()
    likelihood.noise = 1e-4
    likelihood.task_noises = torch.full((2,), 1e-4, dtype=torch.float64)
    model = Model(likelihood).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    (-objective(model(x), observed)).backward()
    assert all(parameter.grad is not None for parameter in model.covar_module.parameters())
    model.eval()
    with torch.no_grad():
        mean = model(torch.tensor([[2.3]], dtype=torch.float64)).mean
    assert (mean - torch.tensor([[math.sin(2.3), math.cos(2.3)]])).abs().max() < 0.05
