"""The table of kernels, the expressions that are made from it, and what is shown of both."""

from __future__ import annotations

import inspect
import pickle

import pytest
import torch

import kernmantle as km
from kernmantle import pairwise
from kernmantle.errors import ParameterError
from kernmantle.ir.simplify import POWER_CLASSES
from kernmantle.pairwise import CONSTRUCTORS, KERNELS
from kernmantle.pairwise.gradient import plan, ranges
from kernmantle.pairwise.kernel_form import diagonal, gram, is_symmetric, swapped
from kernmantle.pairwise.kernel_row import RANGES
from kernmantle.torch_ops import blocks

from ..kernel_oracles import ORACLES, SETTINGS

NAMES = sorted(KERNELS)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_coherent(name):
    row = KERNELS[name]
    assert row.name == name
    assert row.summary
    assert not row.summary.endswith(".")
    names = [hyper.name for hyper in row.hyper] + [option.name for option in row.options]
    assert len(set(names)) == len(names)
    assert all(hyper.range in RANGES and hyper.meaning for hyper in row.hyper)
    assert all(option.is_allowed(option.default) and option.allowed for option in row.options)
    kernel = getattr(km, name)()
    assert kernel.is_symmetric == row.symmetric
    assert kernel.is_stationary == row.stationary
    assert set(kernel.hyperparameters) <= {hyper.name for hyper in row.hyper}


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_tested(name):
    assert name in ORACLES, f"{name!r} needs a NumPy definition in ORACLES of tests/kernel_oracles.py"
    assert name in SETTINGS, f"{name!r} needs hyperparameters to be tested with in SETTINGS of tests/kernel_oracles.py"
    tested = {key for settings in SETTINGS[name] for key in settings}
    assert tested == {hyper.name for hyper in KERNELS[name].hyper} | {o.name for o in KERNELS[name].options}


@pytest.mark.parametrize("name", NAMES)
def test_a_constructor_says_what_it_takes(name):
    constructor = CONSTRUCTORS[name]
    assert name in km.__all__, f"{name!r} is not in _OF_KERNELS of src/kernmantle/__init__.py"
    assert constructor is getattr(km, name)
    assert pickle.loads(pickle.dumps(constructor)) is constructor
    assert getattr(pairwise, name) is constructor
    parameters = inspect.signature(constructor).parameters
    expected = [hyper.name for hyper in KERNELS[name].hyper] + [o.name for o in KERNELS[name].options]
    assert list(parameters) == [*expected, "lengthscales"]
    assert all(f"{parameter} : " in constructor.__doc__ for parameter in parameters)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_not_part_of_the_expressions(name):
    row = KERNELS[name]
    options = {option.name: option.default for option in row.options}
    for hyper in row.hyper:
        forms = {getattr(km, name)(**options, **{hyper.name: value}).form for value in (0.77, 1.23, 7.1)}
        assert len(forms) == 1
    exponents = [hyper.name for hyper in row.hyper if hyper.exponent]
    for exponent in exponents:
        forms = {getattr(km, name)(**options, **{exponent: value}).form for value in POWER_CLASSES}
        assert len(forms) == len(POWER_CLASSES)


def test_equal_sums_are_taken_once():
    shared = km.Gaussian(1.0) + km.Matern(2.0) * km.Cauchy() + km.RationalQuadratic() + km.Laplace(p=2)
    assert len(shared.form.maps) == 1
    assert len((km.Laplace() + km.ProductLaplace(2.0)).form.maps) == 1
    assert len((km.Laplace(p=1.3) + km.ProductLaplace(p=1.3)).form.maps) == 1
    assert len((km.Laplace(p=1.3) + km.ProductLaplace(p=1.4)).form.maps) == 2
    p = torch.tensor(1.3)
    assert len((km.Laplace(p=p) + km.ExponentialPower(p=p)).form.maps) == 1
    assert len((km.Laplace(p=p) + km.ExponentialPower(p=p.clone())).form.maps) == 2
    assert len((km.NTK() + km.SphereNTK() + km.Gaussian()).form.maps) == 1


def test_a_composition_of_three_is_one_contraction():
    kernel = 2.0 * km.Gaussian(3.0) + km.Laplace(2.0) * km.Linear(1.0)
    contraction = gram(kernel.form)
    assert "sum (x0 - x1) * (x0 - x1), sum abs(x0 - x1), sum x0 * x1 ->" in repr(contraction)
    assert gram(kernel.form) is contraction
    assert str(diagonal(kernel.form).definition.equation.text) == "mk,mk->m"


def test_names_of_shared_hyperparameters():
    kernel = km.Gaussian(1.0) + km.Cauchy(2.0) + 3 * km.Laplace(4.0, 1.3)
    assert dict(kernel.hyperparameters) == {
        "bandwidth": 1.0, "bandwidth_2": 2.0, "bandwidth_3": 4.0, "p": 1.3, "scale": 3,
    }  # fmt: skip
    lengths = torch.ones(3)
    assert list((km.Gaussian(lengthscales=lengths) + km.NTK()).hyperparameters) == ["bandwidth", "bias", "lengthscales"]


def test_transposed_forms():
    lopsided = km.Kernel(lambda x, y, a: km.exp(a * x - y), lambda s, b: s / b, a=1.0, b=2.0) * km.Cosine()
    assert not is_symmetric(lopsided.form)
    assert swapped(swapped(lopsided.form)) == lopsided.form
    assert km.NTK().transposed().form == km.NTK().form


def test_which_gradients_are_matrix_products():
    assert plan(km.Laplace(p=float("inf")).form) is None
    for kernel, general, affine in (
        (km.Gaussian(), False, 1), (km.Linear(), False, 1), (km.Laplace(), True, 0), (km.Laplace(p=1.3), True, 0),
        (km.Gaussian() + km.Laplace(), True, 1), (km.NTK(), False, 1), (km.SumPowerLaplace(), True, 0),
    ):  # fmt: skip
        found = plan(kernel.form)
        assert found is not None
        assert (bool(found.general), len(found.affine)) == (general, affine), kernel


def test_reprs():
    assert repr(km.Laplace(10.0, p=1.3)) == "Laplace(bandwidth=10.0, p=1.3)"
    assert repr(km.Gaussian(torch.tensor(2.0))) == "Gaussian(bandwidth=tensor(2))"
    assert repr(km.Gaussian(torch.ones(3))) == "Gaussian(bandwidth=tensor(3,))"
    assert repr(2 * (km.NTK(depth=3) + 1)) == "2 * (NTK(depth=3) + 1)"


def test_lists_of_numbers_are_arrays():
    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    listed, exact = km.Gaussian(lengthscales=[1.0, 2.0]), km.Gaussian(lengthscales=torch.tensor([1.0, 2.0]).double())
    assert torch.equal(listed(x), exact(x))


def test_a_kernel_that_does_not_exist():
    with pytest.raises(AttributeError, match="Lapace"):
        _ = km.Lapace
    with pytest.raises(ParameterError, match="bandwidth is one length for all columns"):
        km.Gaussian(lengthscale=1.0)
    with pytest.raises(ParameterError, match="a list of numbers or an array, not list"):
        km.Gaussian(lengthscales=[1.0, "2"])
    with pytest.raises(ParameterError, match="it has bandwidth, p, lengthscales"):
        km.Laplace(zzz=1)


@pytest.mark.parametrize("outputs", [1, 32])
@pytest.mark.parametrize("kernel", [km.Laplace(), km.Gaussian() + km.Laplace()], ids=repr)
def test_blocks_of_gradients_are_bounded(kernel, outputs):
    call, (coef,) = kernel.prepared(torch.empty(10_000, 768), torch.empty(9_000, 768), coef=torch.empty(9_000, outputs))
    count = len(plan(kernel.form).affine) + len(plan(kernel.form).general)
    for per_point in (0, outputs * 768):
        chosen = list(ranges(call, coef, per_point))
        heights = [points.stop - points.start for points in chosen]
        assert sum(heights) == 10_000
        assert [points.start for points in chosen[1:]] == [points.stop for points in chosen[:-1]]
        assert max(heights) - min(heights) <= 1
        assert max(heights) * 4 * max(count * 9_000, 2 * per_point) <= blocks.LARGEST
    wide = list(ranges(call, coef, 0, 4 * 9_000 * 10_000 * count))
    assert wide == [slice(0, 10_000)]
