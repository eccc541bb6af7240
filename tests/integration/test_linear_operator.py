"""linear_operator's Kronecker products through ours: its own test cases, and a multitask model after one call."""

from __future__ import annotations

import unittest

import pytest
import torch

import kernmantle
from kernmantle.testing import assert_close

linear_operator = pytest.importorskip("linear_operator")
cases = pytest.importorskip("linear_operator.test.linear_operator_test_case")
ours = pytest.importorskip("kernmantle.integrations.linear_operator")


def _definite(*batch, size):
    a = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(size))
    return a @ a.mT + torch.eye(size)


class TestKronecker(cases.LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_call_lanczos = True
    should_call_cholesky = False
    should_call_lanczos_diagonalization = False

    def create_linear_op(self):
        factors = [_definite(size=2), _definite(size=3), _definite(size=4)]
        return ours.KroneckerProductLinearOperator(*(f.requires_grad_() for f in factors))

    def evaluate_linear_op(self, linear_op):
        a, b, c = (op.to_dense() for op in linear_op.linear_ops)
        return torch.kron(a, torch.kron(b, c))


class TestKroneckerBatch(TestKronecker):
    seed = 0

    def create_linear_op(self):
        factors = [_definite(3, size=2), _definite(3, size=3), _definite(3, size=4)]
        return ours.KroneckerProductLinearOperator(*(f.requires_grad_() for f in factors))

    def evaluate_linear_op(self, linear_op):
        parts = zip(*(op.to_dense() for op in linear_op.linear_ops), strict=True)
        return torch.stack([torch.kron(a, torch.kron(b, c)) for a, b, c in parts])


class TestKroneckerRectangular(cases.RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        generator = torch.Generator().manual_seed(1)
        factors = [torch.randn(*shape, generator=generator).requires_grad_() for shape in [(2, 3), (3, 2), (4, 2)]]
        return ours.KroneckerProductLinearOperator(*factors)

    def evaluate_linear_op(self, linear_op):
        a, b, c = (op.to_dense() for op in linear_op.linear_ops)
        return torch.kron(a, torch.kron(b, c))


def test_is_found_as_an_attribute():
    assert kernmantle.integrations.linear_operator is ours
    with pytest.raises(AttributeError, match="no_such_library"):
        _ = kernmantle.integrations.no_such_library


@pytest.fixture
def installed():
    ours.install()
    yield
    ours.uninstall()


def test_install_reaches_every_kronecker_operator(installed, monkeypatch):
    seen = []
    monkeypatch.setattr(ours, "kron_matmul", lambda *args, **kw: seen.append(1) or _kron(*args, **kw))
    _kron = kernmantle.kron_matmul
    operator = linear_operator.operators.KroneckerProductLinearOperator(
        linear_operator.operators.DenseLinearOperator(_definite(size=3)),
        linear_operator.operators.IdentityLinearOperator(2),
    )
    v = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    expected = torch.kron(_definite(size=3), torch.eye(2)).double() @ v.double()
    assert_close(operator @ v, expected, depth=6)
    assert seen


def test_multitask_model_trains_alike(installed):
    gpytorch = pytest.importorskip("gpytorch")

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
            self.covar_module = gpytorch.kernels.MultitaskKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, rank=1)

        def forward(self, x):
            return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))

    def loss():
        torch.manual_seed(0)
        x = torch.linspace(0, 1, 15).double().unsqueeze(-1)
        y = torch.cat([x.sin(), x.cos()], -1)
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2)
        model = Model(x, y, likelihood).double()
        value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y)
        value.backward()
        return value.detach(), model.covar_module.data_covar_module.raw_lengthscale.grad

    found = loss()
    ours.uninstall()
    expected = loss()
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got, wanted, depth=1000)
