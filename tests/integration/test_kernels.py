"""Values and derivatives of every kernel and of compositions, on every backend."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle import errors
from kernmantle.pairwise import KERNELS
from kernmantle.testing import assert_close

from ..arrays import normal as rows
from ..kernel_oracles import CASES, ORACLES

NAMES = sorted(KERNELS)
IDS = [f"{name} {settings}" for name, settings in CASES]


def made(name, **settings):
    return getattr(km, name)(**settings)


def types(settings, backend):
    """Every setting in the reference's own type and in the one kernels are mostly used in; all once in both."""
    if settings:
        return [torch.float64 if backend == "reference" else torch.float32]
    return [torch.float64, torch.float32]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_values(name, settings, backend, device):
    for dtype in types(settings, backend):
        _check_values(name, settings, dtype, device)


def _check_values(name, settings, dtype, device):
    x, y = rows(9, 4, dtype=dtype, device=device), rows(6, 4, seed=1, dtype=dtype, device=device)
    expected = ORACLES[name](x.double().cpu().numpy(), y.double().cpu().numpy(), **settings)
    result = made(name, **settings)(x, y)
    assert result.dtype == dtype
    assert_close(result, expected, depth=4 * 8)


@pytest.mark.parametrize("name", NAMES)
def test_halves_are_computed_in_float32(name, backend, device):
    x, y = rows(5, 4, dtype=torch.bfloat16, device=device), rows(6, 4, seed=1, dtype=torch.bfloat16, device=device)
    result = made(name)(x, y)
    assert result.dtype == torch.bfloat16
    assert_close(result, ORACLES[name](x.double().cpu().numpy(), y.double().cpu().numpy()), depth=32)


def test_sums_of_halves_in_pairs(backend, device):
    """To 5 roundings of float16 of the sum, as documented, and one of the result."""
    x, y = (rows(*s, seed=i, dtype=torch.float16, device=device) for i, s in enumerate([(40, 32), (50, 32)]))
    expected = torch.exp(-torch.cdist(x.double().cpu(), y.double().cpu(), p=1) / 64)
    found = km.Laplace(64.0)(x, y, precision="half").cpu()
    assert found.dtype == torch.float16
    sums = -64 * expected.log()
    assert bool(((found - expected).abs() <= expected * (6 * 2.0**-11) * (1 + sums / 64)).all())
    if device == "cpu":
        assert torch.equal(found, km.Laplace(64.0)(x, y))


@pytest.mark.parametrize("name", NAMES)
def test_products_and_gradients_of_halves(name):
    x, y, v = (rows(*shape, seed=i, dtype=torch.bfloat16) for i, shape in enumerate([(5, 4), (6, 4), (6, 2)]))
    kernel = made(name, **({"bandwidth": 4.0} if name == "Wendland" else {}))
    wide = [value.double() for value in (x, y, v)]
    with km.config(backend="reference"):
        for how in ("matmul", "gradient"):
            result, expected = getattr(kernel, how)(x, y, v), getattr(kernel, how)(*wide)
            assert result.dtype == torch.bfloat16
            assert_close(result, expected, depth=128)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_the_diagonal(name, settings):
    with km.config(backend="reference"):
        _check_diagonal(name, settings)


def _check_diagonal(name, settings):
    x, row = rows(7, 4), KERNELS[name]
    kernel = made(name, **settings)
    assert_close(kernel.diagonal(x), kernel(x).diagonal(), depth=32)
    if not row.diagonal:
        return
    known = {hyper.name: hyper.default for hyper in row.hyper} | {o.name: o.default for o in row.options}
    numbers = {**known, **settings, "a": (x * x).sum(-1).cpu().numpy(), "columns": 4, "tanh": np.tanh}
    expected = np.broadcast_to(eval(row.diagonal, numbers), (7,))
    assert_close(kernel.diagonal(x), expected, depth=32)


THEIRS = {
    "RBFKernel": (lambda: km.Gaussian(1.7), {}, {"lengthscale": 1.7}),
    "PeriodicKernel": (lambda: km.Periodic(1.4, 3.1), {}, {"lengthscale": 1.4**2, "period_length": 3.1}),
    "RQKernel": (lambda: km.RationalQuadratic(1.5, 0.6), {}, {"lengthscale": 1.5, "alpha": 0.6}),
    "LinearKernel": (lambda: 0.7 * km.Linear(), {}, {"variance": 0.7}),
    "PolynomialKernel": (lambda: km.Polynomial(2, coef0=0.8), {"power": 2}, {"offset": 0.8}),
    **{f"MaternKernel {nu}": (lambda nu=nu: km.Matern(1.7, nu), {"nu": nu}, {"lengthscale": 1.7})
       for nu in (0.5, 1.5, 2.5)},
    # For q = 2 theirs has j where Rasmussen and Williams (4.21) have its square.
    **{f"PiecewisePolynomialKernel {q}": (lambda q=q: km.Wendland(4.0, smoothness=q), {"q": q}, {"lengthscale": 4.0})
       for q in (0, 1, 3)},
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_gpytorch_has_the_same(name):
    gpytorch = pytest.importorskip("gpytorch")
    ours, options, values = THEIRS[name]
    theirs = getattr(gpytorch.kernels, name.split()[0])(**options).double()
    for key, value in values.items():
        setattr(theirs, key, torch.tensor(value, dtype=torch.float64))
    x, y = rows(9, 4), rows(6, 4, seed=1)
    with km.config(backend="reference"):
        assert_close(ours()(x, y), theirs(x, y).to_dense(), depth=64)


@pytest.mark.parametrize("name", NAMES)
def test_one_array_gives_a_symmetric_matrix(name, backend, device):
    x = rows(33, 3, device=device)
    kernel = made(name)
    matrix = kernel(x)
    assert_close(matrix, made(name)(x, x.clone()), depth=16)
    if "matmul" not in kernel.info:
        assert torch.equal(matrix, matrix.mT)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("Linear", "Polynomial", "Sigmoid")])
def test_equal_rows_in_float32(name):
    """Distances are exact where they are small, so float32 is as accurate on the diagonal as elsewhere."""
    x = rows(20, 30, dtype=torch.float32) * 10
    near = x + 1e-5 * rows(20, 30, seed=3, dtype=torch.float32)
    expected = ORACLES[name](x.double().numpy(), near.double().numpy())
    assert_close(made(name)(x, near).diagonal(), expected.diagonal(), depth=30, magnitude=np.abs(expected).max())


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_rows(name):
    x, y = rows(3, 2).requires_grad_(), rows(4, 2, seed=1).requires_grad_()
    settings = {"bandwidth": 4.0} if name == "Wendland" else {}
    kernel = made(name, **settings)
    with km.config(backend="reference"):
        assert gradcheck(kernel, (x, y))
        assert gradgradcheck(kernel, (x, y), fast_mode="NTK" in name)
        assert gradcheck(kernel, (x,), fast_mode=True)


HYPER = [(name, hyper.name) for name in NAMES for hyper in KERNELS[name].hyper if hyper.name != "dimension"]


@pytest.mark.parametrize(("name", "hyper"), HYPER)
def test_derivatives_of_hyperparameters(name, hyper):
    x, y = rows(3, 2), rows(4, 2, seed=1)
    value = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    base = {"gamma": 0.1, "coef0": 4.0} if name == "Polynomial" else {"bandwidth": 3.0} if name == "Wendland" else {}

    def function(value):
        return made(name, **{**base, hyper: value})(x, y)

    with km.config(backend="reference"):
        assert_close(function(value), made(name, **{**base, hyper: 1.4})(x, y), depth=8)
        if name == "Polynomial" and hyper == "gamma":
            value = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        assert gradcheck(function, (value,))
        assert gradgradcheck(function, (value,))


@pytest.mark.parametrize(("name", "hyper"), HYPER)
def test_a_batch_of_hyperparameters(name, hyper):
    with km.config(backend="reference"):
        _check_batch(name, hyper)


def test_a_batch_of_powers(backend, device):
    _check_batch("Laplace", "p", device)


def _check_batch(name, hyper, device="cpu"):
    x, y = rows(5, 3, device=device), rows(4, 3, seed=1, device=device)
    values = [0.8, 1.7]
    base = {"coef0": 20.0} if name == "Polynomial" else {}
    batch = made(name, **{**base, hyper: torch.tensor(values, dtype=torch.float64, device=device)})(x, y)
    single = torch.stack([made(name, **{**base, hyper: value})(x, y) for value in values])
    assert batch.shape == (2, 5, 4)
    assert_close(batch, single, depth=16)


@pytest.mark.parametrize("name", NAMES)
def test_lengthscales_divide_the_columns(name):
    with km.config(backend="reference"):
        _check_lengthscales(name)


def test_lengthscales_on_every_backend(backend, device):
    _check_lengthscales("Matern", device)


def _check_lengthscales(name, device="cpu"):
    x, y = rows(5, 3, device=device), rows(4, 3, seed=1, device=device)
    lengths = torch.tensor([[0.5, 1.0, 2.0], [3.0, 1.0, 0.25]], dtype=torch.float64, device=device)
    expected = torch.stack([made(name)(x / scale, y / scale) for scale in lengths])
    assert_close(made(name, lengthscales=lengths)(x, y), expected, depth=32)
    kernel, out = made(name, lengthscales=lengths[0]), torch.empty(len(x), len(y), dtype=x.dtype, device=device)
    assert_close(kernel(x, y), expected[0], depth=32)
    assert kernel(x, y, out=out) is out
    assert torch.equal(out, kernel(x, y))


def test_derivatives_of_lengthscales():
    x, y = rows(3, 2), rows(4, 2, seed=1)
    lengths = torch.tensor([0.7, 1.9], dtype=torch.float64, requires_grad=True)

    def function(lengths):
        return (km.Matern(2.0, lengthscales=lengths) + km.Cosine(lengthscales=lengths))(x, y)

    with km.config(backend="reference"):
        assert gradcheck(function, (lengths,))
        assert gradgradcheck(function, (lengths,))


def compositions(device):
    """Parts, what is made of them, and how many sums that takes."""
    lengths = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, device=device)
    scale = torch.tensor(0.3, dtype=torch.float64, device=device)
    weighted = km.Gaussian(lengthscales=lengths), km.Cauchy(lengthscales=lengths)
    return [
        ((km.Gaussian(3.0), km.Matern(bandwidth=2.0, nu=2.5)), lambda a, b: 0.5 * a + b, 1),
        ((km.Laplace(2.0), km.Linear(1.0)), lambda a, b: a * b - 0.25, 2),
        ((km.Laplace(2.0, 1.3), km.Laplace(4.0, 1.3)), lambda a, b: a + scale * b, 1),
        ((km.Laplace(2.0, 1.3), km.Laplace(2.0, 1.4)), lambda a, b: a - b, 2),
        (weighted, lambda a, b: a + b, 1),
        ((weighted[0], km.Cauchy()), lambda a, b: a * b, 2),
        ((km.NTK(), km.Cosine(), km.NTK(0.2, 3)), lambda a, b, c: a + b * c, 2),
        ((km.Gaussian(2.0),), lambda a: (1 + a) ** 2 / 3, 1),
        ((km.Gaussian(2.0),), lambda a: 2 / (1 + a), 1),
        ((km.Cauchy(), km.Cosine()), lambda a, b: 1 / (a / (3 + b)), 2),
        ((km.Linear(), km.Polynomial(2)), lambda a, b: -(a**3) + b, 1),
        ((km.Wendland(4.0), km.Cosine(lengthscales=lengths), km.NTK()), lambda a, b, c: a + b + c, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("place", range(len(compositions("cpu"))))
def test_a_composition_is_one_kernel(place, backend, device):
    parts, combined, sums = compositions(device)[place]
    kernel, x, y = combined(*parts), rows(7, 3, device=device), rows(5, 3, seed=1, device=device)
    expected = combined(*(part(x, y) for part in parts))
    assert_close(kernel(x, y), expected, depth=32)
    assert len(kernel.form.maps) == sums
    assert_close(kernel.diagonal(x), kernel(x).diagonal(), depth=32)
    assert_close(pickle.loads(pickle.dumps(kernel))(x, y), expected, depth=32)


@pytest.mark.parametrize(
    ("combined", "text"),
    [
        (lambda a, b: a / (b * a), "Gaussian(bandwidth=1.0) / (Cosine() * Gaussian(bandwidth=1.0))"),
        (lambda a, b: a / (b / a), "Gaussian(bandwidth=1.0) / (Cosine() / Gaussian(bandwidth=1.0))"),
        (lambda a, b: a / b * a, "Gaussian(bandwidth=1.0) / Cosine() * Gaussian(bandwidth=1.0)"),
        (lambda a, b: a - (b - a), "Gaussian(bandwidth=1.0) - (Cosine() - Gaussian(bandwidth=1.0))"),
        (lambda a, b: 2 / (a + b), "2 * (Gaussian(bandwidth=1.0) + Cosine()) ** -1"),
    ],
)
def test_the_text_of_a_composition_has_the_brackets_it_needs(combined, text):
    assert repr(combined(km.Gaussian(1.0), km.Cosine())) == text


def test_batched_parts_compose():
    x, bandwidths = rows(4, 3), torch.tensor([1.0, 2.0], dtype=torch.float64)
    scales = torch.tensor([[0.5], [0.25], [2.0]], dtype=torch.float64)
    kernel = scales * km.Gaussian(bandwidths) + km.Laplace(bandwidths)
    assert kernel(x).shape == (3, 2, 4, 4)
    single = 2.0 * km.Gaussian(2.0) + km.Laplace(2.0)
    assert_close(kernel(x)[2, 1], single(x), depth=16)


def test_a_kernel_of_ones_own(backend, device):
    def mapped(x, y, width):
        return km.maximum(1 - abs(x - y) / width, 0), abs(x - y)

    kernel = km.Kernel(mapped, lambda s, t, scale=0.5: scale * s * km.exp(-t), width=2.0)
    x, y = rows(5, 3, device=device), rows(4, 3, seed=1, device=device)
    gap = (x[:, None] - y).abs()
    expected = 0.5 * (1 - gap / 2).clamp(min=0).sum(-1) * torch.exp(-gap.sum(-1))
    assert_close(kernel(x, y), expected, depth=8)
    assert_close((kernel + km.Laplace())(x, y), expected + torch.exp(-gap.sum(-1)), depth=8)
    assert len((kernel + km.Laplace()).form.maps) == 2
    assert "width=2.0" in repr(kernel)
    assert_close(pickle.loads(pickle.dumps(kernel))(x, y), expected, depth=8)


def test_a_kernel_of_ones_own_may_ignore_a_hyperparameter():
    kernel = km.Kernel(lambda x, y, unused: x * y, unused=3.0) + km.Linear()
    assert_close(kernel(rows(3, 2)), 2 * rows(3, 2) @ rows(3, 2).mT, depth=4)


def test_changing_a_number_compiles_nothing():
    forms = [km.Laplace(bandwidth, p).form for bandwidth, p in ((1.0, 1.3), (2.5, 1.7))]
    assert forms[0] is forms[1]
    assert (0.5 * km.Gaussian(1.0) + km.Cauchy()).form == (0.7 * km.Gaussian(2.0) + km.Cauchy(3.0)).form


def test_numpy_in_numpy_out():
    x, y = np.random.default_rng(0).normal(size=(4, 3)), np.ones((2, 3))
    result = km.Gaussian(np.float64(2.0))(x, y)
    assert isinstance(result, np.ndarray)
    assert_close(result, ORACLES["Gaussian"](x, y, 2.0), depth=8)
    assert km.Gaussian()(np.eye(2, dtype=int)).dtype == np.float64
    assert km.Gaussian()(torch.eye(2, dtype=torch.int32)).dtype == torch.float32
    assert km.Gaussian(np.array([1.0, 2.0]))(x).shape == (2, 4, 4)
    out = np.empty((4, 2))
    assert km.Gaussian(2.0)(x, y, out=out) is out
    assert_close(out, result)


@pytest.mark.parametrize("kernel", [km.Gaussian(), km.NTK()], ids=repr)
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (17, 33, 5)])
def test_edge_shapes(kernel, shape, backend, device):
    m, n, k = shape
    x, y = rows(m, k, device=device), rows(n, k, seed=1, device=device)
    result = kernel(x, y)
    assert result.shape == (m, n)
    if not k:
        expected = np.zeros((m, n)) if kernel.form.reads_squares else np.ones((m, n))
    else:
        oracle = ORACLES[repr(kernel).partition("(")[0]]
        expected = oracle(x.cpu().numpy(), y.cpu().numpy()) if m and n else np.empty((m, n))
    assert_close(result, expected, depth=32)


def test_strided_and_batched_rows(backend, device):
    x, y = rows(2, 4, 7, device=device).mT, rows(3, 1, 5, 8, device=device)[..., ::2]
    result = km.Laplace(2.0)(x, y)
    assert result.shape == (3, 2, 7, 5)
    assert_close(result[1, 0], ORACLES["Laplace"](x[0].cpu().numpy(), y[1, 0].cpu().numpy(), 2.0), depth=8)


def test_the_diagonal_is_added_where_indices_are_equal():
    x, y = rows(6, 2), rows(8, 2, seed=1)
    kernel, whole = km.Gaussian(), km.Gaussian()(x, y) + 0.5 * torch.eye(6, 8, dtype=torch.float64)
    assert_close(kernel(x, y, diagonal=0.5), whole)
    for r in (0, 2, 5):
        for c in (0, 3, 6):
            block = kernel(x[r:], y[c:], diagonal=0.5, offsets=(r, c))
            assert_close(block, whole[r:, c:])
    out = torch.empty(6, 8, dtype=torch.float64)
    kernel(x, y, diagonal=0.5, out=out)
    assert_close(out, whole)
    batch = kernel(x, y, diagonal=torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert_close(batch[1], whole)


def test_the_diagonal_has_a_gradient():
    x = rows(3, 2).requires_grad_()
    jitter = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with km.config(backend="reference"):
        assert gradcheck(lambda x, jitter: km.Gaussian()(x, diagonal=jitter), (x, jitter))


def test_rows_that_coincide_have_no_infinite_gradient():
    x = rows(3, 2)
    for name in NAMES:
        z = x.clone().requires_grad_()
        with km.config(backend="reference"):
            made(name)(z, x).sum().backward()
        assert torch.isfinite(z.grad).all(), name


def test_nan_propagates():
    x = rows(3, 2)
    x[1, 0] = math.nan
    for name in NAMES:
        with km.config(backend="reference"):
            result = made(name)(x, rows(2, 2, seed=1))
        assert torch.isnan(result[1]).all(), name
        assert not torch.isnan(result[[0, 2]]).any(), name


def test_lengths_of_rows_whose_cosine_float32_holds(backend, device):
    x = rows(9, 4).float().to(device)
    x = x / x.norm(dim=-1, keepdim=True)
    exact = ORACLES["Cosine"](x.double().cpu().numpy(), x.double().cpu().numpy())
    for length in (1e-15, 1.0, 1e18):
        assert_close(km.Cosine()(x * length), exact, dtype=torch.float32, depth=32)
    beyond = x * 1e25
    assert km.Cosine()(beyond).diagonal().isnan().all()
    largest = beyond.abs().amax(-1, keepdim=True)
    assert_close(km.Cosine()(beyond / largest), exact, dtype=torch.float32, depth=32)


def test_zero_rows_of_angles():
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    assert_close(km.Cosine()(x), np.array([[0.0, 0.0], [0.0, 1.0]]), depth=4)
    right_angle = ORACLES["NTK"](np.array([[-2e-9, 1e-9]]), np.array([[1.0, 2.0]]), 0.5, 3)
    assert_close(km.NTK(0.5, 3)(x)[0, 1:], right_angle[0], depth=4)


BAD = [
    (lambda: km.Gaussian(0.0), errors.ParameterError, "bandwidth of Gaussian must be above 0"),
    (lambda: km.Gaussian(-1), errors.ParameterError, "bandwidth"),
    (lambda: km.Gaussian(math.nan), errors.ParameterError, "NaN"),
    (lambda: km.Gaussian(math.inf), errors.ParameterError, "finite"),
    (lambda: km.Laplace(torch.tensor([1.0, -2.0])), errors.ParameterError, "it has -2.0"),
    (lambda: km.Laplace(torch.tensor(math.nan)), errors.ParameterError, "bandwidth"),
    (lambda: km.Laplace(p=0), errors.ParameterError, "p of Laplace"),
    (lambda: km.Laplace("wide"), errors.ParameterError, "number, a list of numbers or an array"),
    (lambda: km.Matern(nu=2), errors.ParameterError, "0.5, 1.5 or 2.5"),
    (lambda: km.Matern(nu=torch.tensor(1.5, requires_grad=True)), errors.ParameterError, "nu of Matern must be"),
    (lambda: km.Wendland(dimension=torch.tensor(3.0, requires_grad=True)), errors.GradientError, "in steps"),
    (lambda: km.NTK(depth=0), errors.ParameterError, "depth of NTK"),
    (lambda: km.Gaussian(bandwith=2.0), errors.ParameterError, "did you mean 'bandwidth'"),
    (lambda: km.Gaussian(lengthscales=2.0), errors.ShapeError, "use the bandwidth"),
    (lambda: km.Gaussian(lengthscales=torch.tensor([1.0, 0.0])), errors.ParameterError, "lengthscales"),
    (lambda: km.Gaussian(lengthscales=torch.ones(3))(rows(2, 2)), errors.ShapeError, "lengthscales"),
    (lambda: km.Gaussian(torch.ones(3))(rows(2, 2, 2)), errors.ShapeError, "do not broadcast"),
    (lambda: km.Gaussian()(rows(3)), errors.ShapeError, "x must have rows and columns"),
    (lambda: km.Gaussian()(rows(3, 2), rows(3, 4)), errors.ShapeError, "the same number of columns"),
    (lambda: km.Gaussian()(rows(3, 2), rows(3, 2).to(torch.complex64)), errors.DtypeError, "real"),
    (lambda: km.Gaussian()(3.0), errors.DtypeError, "number"),
    (lambda: km.Gaussian()(rows(3, 2).to(torch.complex64)), errors.DtypeError, "real"),
    (lambda: km.Gaussian()(rows(3, 2), out=torch.empty(2, 2)), errors.OutputError, "shape"),
    (lambda: km.Kernel(lambda x, y, a: a * x * y), errors.ParameterError, "'a' is missing"),
    (lambda: km.Kernel(lambda x, y: x * y, b=1), errors.ParameterError, "unknown hyperparameter 'b'"),
    (lambda: km.Kernel(lambda x, y: (x, y)), errors.ParameterError, "one value"),
    (lambda: km.Gaussian() + "a", errors.ParameterError, "number, a list of numbers or an array"),
    (lambda: km.Gaussian()(rows(2, 2), diagonal=math.nan), errors.ParameterError, "NaN"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_a_repr_can_be_read_back():
    for text in (
        "0.5 * Gaussian(bandwidth=3.0) + Matern(bandwidth=2.0, nu=2.5)",
        "(Laplace() + 2) * Linear() ** 2",
        "Laplace(p=1.3) - (Cauchy() - NTK())",
        "(Gaussian() * Cauchy()) ** 0.5 / 3.0",
    ):
        names = {name: getattr(km, name) for name in NAMES}
        assert repr(eval(text, names)) == text


@pytest.mark.parametrize(
    "make", [km.Gaussian, lambda b: 0.5 * km.Linear() + km.Laplace(b), lambda b: km.Periodic(period=b)]
)
def test_a_length_for_every_column_is_not_taken_for_a_batch(make):
    x, lengths = rows(6, 4), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    kernel = make(lengths)
    for call in (lambda: kernel(x), lambda: kernel(x, x[:3]), lambda: kernel.matmul(x, None, x[:, 0])):
        with pytest.raises(errors.ParameterError, match=r"lengthscales= instead of .* the rows as x\[None\]"):
            call()
    wanted = torch.stack([make(float(value))(x) for value in lengths])
    assert_close(kernel(x[None]), wanted, depth=32)
    assert_close(make(lengths[:3])(x), wanted[:3], depth=32)
    assert_close(km.Gaussian(lengthscales=lengths)(x), km.Gaussian()(x / lengths), depth=32)
    assert km.Gaussian(lengths, lengthscales=lengths)(x).shape == (4, 6, 6)
    assert (lengths * km.Gaussian())(x).shape == (4, 6, 6)
