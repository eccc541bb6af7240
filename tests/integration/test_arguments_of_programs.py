"""Arguments that come from other parts of a program: their results, or errors with what to do."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import kernmantle as km
from kernmantle.errors import DtypeError, GradientError, OutOfMemoryError, ParameterError, ShapeError
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(9, 4)), RANDOM.normal(size=(7, 4))
SYMMETRIC = [[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]]


def tensor(*shape, dtype=torch.float64):
    return torch.from_numpy(RANDOM.normal(size=shape)).to(dtype)


WITH_HYPERPARAMETER = {
    "matrix": lambda k: k(X, Y),
    "product": lambda k: k.matmul(X, Y, Y[:, 0]),
    "sum": lambda k: k.sum(X, Y),
    "gradient": lambda k: k.gradient(X, Y, Y[:, 0]),
    "largest": lambda k: k.argkmax(X, Y, 2, return_values=True)[0],
}


@pytest.mark.parametrize("name", WITH_HYPERPARAMETER)
def test_numpy_rows_and_a_hyperparameter_that_is_trained(name):
    call = WITH_HYPERPARAMETER[name]
    trained = km.Gaussian(nn.Parameter(torch.tensor(1.5, dtype=torch.float64)))
    with pytest.raises(GradientError, match=r"x is a ndarray.* hyperparameter; pass x as a tensor.*no_grad"):
        call(trained)
    with torch.no_grad():
        found = call(trained)
    assert isinstance(found, np.ndarray)
    assert_close(found, call(km.Gaussian(1.5)))


@pytest.mark.parametrize(
    ("dtype", "other"),
    [(torch.float8_e4m3fn, "float32"), (torch.uint16, "int64"), (torch.bool, "int64"), (torch.complex32, "complex64")],
)
def test_kronecker_products_of_types_without_products_name_another(dtype, other):
    x, f = torch.ones(2, 4).to(dtype), torch.ones(2, 2).to(dtype)
    name = str(dtype).removeprefix("torch.")
    calls = [lambda: km.kron_matmul(x, [f, f]), lambda: km.kron_linear(x, f, f), lambda: km.KroneckerProduct([f]) @ x.T]
    for call in calls:
        with pytest.raises(DtypeError, match=rf"x is {name}; .* with \.to\(torch\.{other}\)"):
            call()


def test_distances_of_8_bits_name_the_argument():
    rows = torch.ones(3, 2).to(torch.float8_e5m2)
    for call in (km.cdist, km.pdist, km.Gaussian(1.0)):
        with pytest.raises(DtypeError, match=r"x is float8_e5m2; convert it with \.float\(\)"):
            call(rows)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = nn.ParameterList([tensor(2, 3), tensor(2, 3)])

    def forward(self, x):
        return km.kron_matmul(x, self.factors)


def test_a_list_of_parameters_is_a_list_of_factors():
    layer, x = Layer(), torch.from_numpy(X)
    matrix = torch.kron(*layer.factors)
    assert_close(layer(x), x @ matrix, depth=4)
    assert_close(layer(x), x @ matrix, depth=4)  # a call of which the plan is stored
    assert_close(km.KroneckerProduct(layer.factors).to_dense(), matrix)
    layer(x).square().sum().backward()
    found = [factor.grad for factor in layer.factors]
    assert_close(found, torch.autograd.grad((x @ matrix).square().sum(), [*layer.factors]), depth=100)
    assert_close(torch.export.export(layer, (x,)).module()(x), x @ matrix, depth=4)
    assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), x @ matrix, depth=4)


@pytest.mark.parametrize(
    ("factors", "hint"),
    [(tensor(3, 2, 2), r"Tensor; write list\(factors\)"), (tensor(2, 2), r"Tensor; write \[factor\] for one"),
     ((tensor(2, 2) for _ in range(2)), r"generator; write list\(factors\)")],
)  # fmt: skip
def test_factors_that_are_no_list_say_how_to_make_one(factors, hint):
    with pytest.raises(ShapeError, match=hint):
        km.kron_matmul(tensor(1, 4), factors)


def test_kronecker_products_are_summed_by_sum():
    terms = [km.KroneckerProduct([tensor(2, 2), tensor(3, 3)]) for _ in range(3)]
    matrix = sum(term.to_dense() for term in terms)
    assert_close(sum(terms).to_dense(), matrix)
    assert_close(sum(terms[1:], 0 + (terms[0] - terms[1])).to_dense(), matrix - terms[1].to_dense(), depth=4)
    for wrong in (lambda: 1 + terms[0], lambda: terms[0] + 1, lambda: 1.5 + sum(terms)):
        with pytest.raises(TypeError, match=r"s \* km.KroneckerProduct\(\[n\]\) is s times the identity"):
            wrong()
    with pytest.raises(TypeError, match="unsupported operand"):
        "1" + terms[0]


def test_sizes_that_fit_transposed_factors_say_so():
    factors = [tensor(2, 3), tensor(4, 5)]
    with pytest.raises(ShapeError, match=r"3 \* 5 = 15 rows; it fits the transposed factors: pass factor.mT"):
        km.kron_matmul(tensor(1, 8), [factor.mT for factor in factors])
    with pytest.raises(ShapeError, match=r"2 \* 4 = 8 rows$"):
        km.kron_matmul(tensor(1, 9), factors)


def test_an_adapted_layer_of_other_features_is_named():
    with pytest.raises(ShapeError, match=r"base gives \(4, 7\), but x \(w1 ⊗ w2\)ᵀ has shape \(4, 6\)"):
        km.kron_linear(tensor(4, 6), tensor(2, 2), tensor(3, 3), base=torch.nn.Linear(6, 7).double())


def test_solvers_that_take_operators_take_lists_as_matrices():
    matrix = np.array(SYMMETRIC)
    values, _ = km.linalg.eigh(SYMMETRIC)
    assert isinstance(values, np.ndarray)
    assert_close(values, np.linalg.eigvalsh(matrix), depth=100)
    assert_close(km.linalg.svd(SYMMETRIC, 2)[1], np.linalg.svd(matrix)[1][:2], depth=100)
    right = [1.0, 2.0, 3.0]
    assert_close(matrix @ km.linalg.cg(SYMMETRIC, right, tolerance=1e-12).x, np.array(right), depth=1000)
    assert_close(km.linalg.eigh(SYMMETRIC, np.eye(3).tolist())[0], np.linalg.eigvalsh(matrix), depth=100)
    with pytest.raises(ShapeError, match="square"):
        km.linalg.eigh([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def test_what_shares_launches_is_named():
    layer, x = km.KSLinear(4, 4, [(1, 4, 4, 1)]), torch.ones(2, 4)
    with pytest.raises(ParameterError, match=r"torch\.nn\.Module, as one block of a model, not list"):
        km.kronsparse.group([layer, layer])
    for layers, rows in ((x, [layer]), (layer, x)):
        with pytest.raises(ParameterError, match=r"the layers come first, as apply_each\(\[query, key\], x\)"):
            km.kronsparse.apply_each(layers, rows)
    found = km.kronsparse.apply_each(nn.ModuleList([layer, layer]), x)
    assert_close(torch.stack(found).detach(), torch.stack([layer(x)] * 2).detach())


@pytest.mark.parametrize("name", ["gradient", "agop"])
@pytest.mark.parametrize("kernel", [km.Gaussian(1.5), km.Laplace(1.3) + km.Matern(nu=2.5)], ids=["one", "sum"])
def test_gradients_of_predictors_are_trained_in_a_compiled_graph(kernel, name):
    torch._dynamo.reset()
    x, y, coef = (torch.from_numpy(own).requires_grad_() for own in (X, Y, Y[:, :2]))

    def loss(x, y, coef):
        return getattr(kernel, name)(x, y, coef).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (x, x[:5]):
        found = torch.autograd.grad(compiled(rows, y, coef), (x, y, coef))
        for own, wanted in zip(found, torch.autograd.grad(loss(rows, y, coef), (x, y, coef)), strict=True):
            assert_close(own, wanted, depth=100)


def test_gradients_of_too_many_predictors_say_how_much_memory_they_take():
    points, coef = torch.ones(1, 2).expand(2**30, 2), torch.ones(3, 1).expand(3, 2**20)
    with pytest.raises(OutOfMemoryError, match=r"result of shape \(1048576, 1073741824, 2\) \(8388608\.0 GiB\)"):
        km.Gaussian(1.0).gradient(points, torch.ones(3, 2), coef)


def test_kronecker_products_change_their_type_as_tensors_do():
    factor, scale = tensor(2, 3).requires_grad_(), tensor(1)[0].requires_grad_()
    product = scale * km.KroneckerProduct([factor, 2])
    for moved in (product.to(torch.float32), product.to("cpu", torch.float32), (product + product).to(torch.float32)):
        assert moved.dtype == torch.float32
        assert moved.to_dense().dtype == torch.float32
    assert_close(product.to(torch.float32).to_dense().double(), product.to_dense(), dtype=torch.float32, depth=4)
    assert_close((product + product).to(torch.float64).to_dense(), 2 * product.to_dense(), depth=4)
    product.to(torch.float32).to_dense().sum().backward()
    assert_close(factor.grad, (2 * scale).expand(2, 3).detach(), dtype=torch.float32, depth=4)
    assert km.KroneckerProduct([3]).to(torch.float16).dtype == torch.float16


def test_what_is_none_is_a_default_that_is_not_shown():
    assert repr(km.Gaussian(None)) == "Gaussian()"
    assert_close(km.Gaussian(None)(X, Y), km.Gaussian()(X, Y))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_of_a_process_have_no_warning_about_rounding(dtype):
    x = RANDOM.normal(size=(30, 2)).astype(dtype)
    process = km.estimators.GaussianProcessRegressor(optimise=False).fit(x, x[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = process.sample_y(x[:20], 5)
    assert found.shape == (20, 5)
    assert np.isfinite(found).all()
