"""Arguments of odd kinds to functions besides contractions: an error that names them, or the value they mean."""

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle import linalg
from kernmantle.checks import integer, positive
from kernmantle.errors import DtypeError, KernmantleError, ParameterError, ShapeError
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y, V = (torch.from_numpy(RANDOM.normal(size=size)) for size in ((7, 3), (5, 3), (5, 2)))
MATRIX = X.T @ X + torch.eye(3)
K = km.Gaussian(1.3)
F, G = torch.ones(2, 2), torch.ones(3, 3)
SPARSE = torch.eye(3).to_sparse()


class Unnamed:
    """What is no argument of anything."""


NOTHING = Unnamed()
MISTAKES = {
    "precision of a product": (ParameterError, "precision", lambda: K.matmul(X, Y, V, precision="tf-32")),
    "a list as precision": (ParameterError, "precision", lambda: K.matmul(X, Y, V, precision=["ieee"])),
    "a number as precision": (ParameterError, "precision", lambda: K(X, Y, precision=0)),
    "precision of distances": (ParameterError, "precision", lambda: km.cdist(X, Y, p=1.5, precision={})),
    "params": (
        ParameterError, "params must be a dictionary",
        lambda: km.contract("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, X, Y, params=[1.0]),
    ),
    "an equation": (km.errors.EquationError, "equation", lambda: km.contract(["mk"], lambda a: a, X)),
    "coefficients": (DtypeError, "coef is None", lambda: K.gradient(X, Y, None)),
    "coefficients of agop": (DtypeError, "coef is None", lambda: K.agop(X, Y, None)),
    "targets": (DtypeError, "targets y is None", lambda: linalg.solve_kernel(K, X, None, 0.1)),
    "ridge of a system": (ParameterError, "ridge must be", lambda: linalg.solve_kernel(K, X, X[:, 0], None)),
    "ridge of a preconditioner": (ParameterError, "ridge must be", lambda: linalg.nystrom(MATRIX, 2, "a")),
    "words as hyperparameter": (DtypeError, "'bandwidth' is a numpy array", lambda: km.Gaussian(np.array(["a"]))),
    "no weights": (DtypeError, "weights of SpectralMixture", lambda: km.SpectralMixture(None, [[1.0]], [[1.0]])),
    "one weight": (ShapeError, "weights of SpectralMixture is a number", lambda: km.SpectralMixture(1.0, [1.0], [1.0])),
    "complex rows": (DtypeError, "view_as_real", lambda: km.with_gradients(K, X.to(torch.complex128))),
    "complex columns": (DtypeError, "view_as_real", lambda: km.standardise(X.to(torch.complex128))),
    "quantized rows": (
        DtypeError, "dequantize", lambda: km.cdist(torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8)),
    ),
    "columns of 8 bits": (DtypeError, r"convert it with \.float", lambda: km.standardise(X.to(torch.float8_e4m3fn))),
    "rows without a default bandwidth": (
        ParameterError, "median distance of the rows, is inf in float32",
        lambda: km.stats.mmd(1e30 * X.float(), X.float()),
    ),
    "rows of one default bandwidth": (
        ParameterError, "pass a bandwidth", lambda: km.stats.hsic((1e-30 * X).float(), X.float()),
    ),
    "halves of positions": (ParameterError, "integers", lambda: linalg.eigh(MATRIX, subset_by_index=(0.5, 2))),
    "words as positions": (ParameterError, "integers", lambda: linalg.eigh(MATRIX, subset_by_index="ab")),
    "words as bounds": (ParameterError, "low < high", lambda: linalg.eigh(MATRIX, subset_by_value=("a", "b"))),
    "one bound": (ParameterError, "low < high", lambda: linalg.eigh(MATRIX, subset_by_value=1.0)),
    "positions for a workspace": (
        ParameterError, "integers", lambda: linalg.workspace("eigh_iterative", 9, subset_by_index=[1, 2, 3]),
    ),
    "no targets of a sketch": (ShapeError, "y must have", lambda: linalg.sketch_and_project(K, X, X[:, :0], 0.1)),
    "no targets of centres": (ShapeError, "y must have", lambda: linalg.falkon(K, X, X[:, :0], 0.1, Y)),
    "a complex matrix": (DtypeError, r"torch\.linalg solves complex", lambda: linalg.solve_lu(MATRIX + 0j, MATRIX)),
    "a list as factor": (ShapeError, r"factors\[1\] has shape \(2,\)", lambda: km.KroneckerProduct([F, [1.0, 2.0]])),
    "an uneven list as factor": (DtypeError, r"factors\[0\]", lambda: km.kron_matmul(X, [[[1.0], [1.0, 2.0]], G])),
    "rows of an adapter": (DtypeError, "x must be", lambda: km.kron_linear(None, F, G)),
    "one entry to an adapter": (ShapeError, r"x has shape \(\)", lambda: km.kron_linear(torch.tensor(1.0), F, G)),
    "a vector as weight": (ShapeError, r"w1 has shape \(2,\)", lambda: km.kron_linear(torch.ones(1, 6), F[0], G)),
    "a batch of weights": (ShapeError, "w2 has shape", lambda: km.kron_linear(torch.ones(1, 6), F, G.expand(4, 3, 3))),
    "three weights": (ShapeError, "w1 is a tensor or a pair", lambda: km.kron_linear(torch.ones(1, 6), (F, F, F), G)),
    "a layer": (ParameterError, "base must be a layer", lambda: km.kron_linear(torch.ones(1, 6), F, G, base="a")),
    "a shape": (ShapeError, "x must be a shape", lambda: km.kron_workspace(6, [(2, 2), (3, 3)])),
    "a negative length": (ParameterError, "a length of x", lambda: km.kron_workspace((-1, 6), [(2, 2), (3, 3)])),
    "shapes": (ShapeError, "factors must be a list", lambda: km.kron_workspace((1, 6), None)),
    "a device": (ParameterError, "device must be", lambda: km.kron_workspace((1, 6), [(2, 2), (3, 3)], device=None)),
    "a type": (DtypeError, "dtype", lambda: km.kron_workspace((1, 6), [(2, 2), (3, 3)], dtype="f32")),
    "a scale": (ParameterError, "scale must be a number", lambda: km.KroneckerProduct([F, G], None)),
    "halves of a system": (
        DtypeError, "a factor is float16",
        lambda: km.KroneckerProduct([F.half(), G.half()]).solve(torch.ones(6).half()),
    ),
    "metrics": (ParameterError, "unknown metric", lambda: km.pairwise_distances(X, metric=["l1"])),
    "halves": (DtypeError, "a is float16", lambda: km.nearest_kron(torch.ones(6, 6).half(), [(2, 2), (3, 3)])),
    "NaN": (ParameterError, "NaN", lambda: km.nearest_kron(torch.full((6, 6), torch.nan), [(2, 2), (3, 3)])),
    "terms": (ParameterError, "terms must be", lambda: km.nearest_kron(torch.ones(6, 6), [(2, 2), (3, 3)], 1.5)),
    "a dense layer": (ShapeError, "must have 4 features", lambda: km.LinearBatchLast(4, 2)(torch.ones(3, 4))),
    "an array to a layer": (DtypeError, "input must be a tensor", lambda: km.LinearBatchLast(4, 2)(np.ones((4, 3)))),
    "integers to a norm": (DtypeError, "not torch.int64", lambda: km.LayerNormBatchLast(4)(torch.ones(4, 3).long())),
    "features of a norm": (ParameterError, "features must be", lambda: km.LayerNormBatchLast(-1)),
    "a Cholesky factor": (ParameterError, "cholesky_factor", lambda: linalg.cholesky_solve(MATRIX, X[:3, 0])),
    "an LU factor": (ParameterError, "lu_factor", lambda: linalg.lu_solve(None, X[:3, 0])),
    "a preconditioner": (ParameterError, "preconditioner", lambda: linalg.cg(MATRIX, X[:3, 0], preconditioner="a")),
    "a callback": (ParameterError, "callback", lambda: linalg.cg(MATRIX, X[:3, 0], callback=3)),
    "a tolerance": (ParameterError, "tolerance", lambda: linalg.cg(MATRIX, X[:3, 0], tolerance="tight")),
    "a factor of low rank": (ParameterError, "nystrom", lambda: linalg.logdet(MATRIX, preconditioner=lambda v: v)),
    "a generator": (ParameterError, "generator must be", lambda: linalg.trace(MATRIX, probes=2, generator=3)),
    "sparse rows": (DtypeError, "x has layout", lambda: linalg.falkon(K, SPARSE, X[:3, 0], 0.1, 2)),
    "a seed": (ParameterError, "seed must be", lambda: linalg.falkon(K, X, X[:, 0], 0.1, 2, seed="a")),
    "passes": (ParameterError, "passes", lambda: linalg.sketch_and_project(K, X, X[:, 0], 0.1, passes=np.inf)),
    "noise": (ParameterError, "noise", lambda: linalg.pathwise_posterior(K, X, X[:, 0], "a")),
    "rows without columns": (ShapeError, "rows and columns", lambda: km.stats.hsic(X[:, :0], X)),
    "a list as metric": (ParameterError, "unknown kernel", lambda: km.pairwise_kernels(X, metric=["rbf"])),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    kind, pattern, call = MISTAKES[name]
    with pytest.raises(KernmantleError, match=pattern) as caught:
        call()
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1", NOTHING, [1], np.array([1, 2]), torch.tensor(1.5)])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ParameterError, match="count must be a positive integer, not "):
        integer(value, "count")


@pytest.mark.parametrize("value", [0, -1, True, None, "1", b"1", NOTHING, [1.0], 1j, np.inf, np.nan, 10**400])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(ParameterError, match="ridge must be a positive number, not "):
        positive(value, "ridge")


def test_numbers_of_numpy_are_numbers():
    assert integer(np.int64(3), "count") == integer(0, "count", 0) + 3 == 3
    assert type(integer(np.int8(3), "count")) is int
    assert positive(np.float64(0.5), "ridge") == positive(torch.tensor(0.5), "ridge") == 0.5
    assert positive(np.inf, "seconds", infinite=True) == np.inf
    with pytest.raises(ParameterError, match="an integer of at least 2, not 1"):
        integer(1, "count", 2)
    with pytest.raises(ParameterError, match="an integer from 1 to 3, the rows, not 4"):
        integer(4, "count", 1, 3, ", the rows")
    assert_close(linalg.svd(MATRIX, np.int64(2)).s, np.linalg.svd(MATRIX.numpy())[1][:2], depth=100)
    assert km.Smallest(np.int64(2)) == km.Smallest(2)
    assert km.argkmin(X, Y, np.int32(2)).shape == (7, 2)


def test_repeated_rows_have_the_derivatives_of_their_copies():
    for rows, columns in ((X[:1].expand(4, 3), Y), (X, Y[:1].expand(4, 3)), (X.expand(2, 7, 3), Y)):
        expected = km.with_gradients(K, rows.clone(), columns.clone())
        assert_close(km.with_gradients(K, rows, columns), expected, depth=8)


def test_no_outputs_have_no_gradients():
    for kernel in (K, km.Laplace(2.0), km.Linear()):
        assert kernel.gradient(X, Y, V[:, :0]).shape == (0, 7, 3)
        assert_close(kernel.agop(X, Y, V[:, :0]), torch.zeros(3, 3, dtype=torch.float64), depth=1)
        assert_close(kernel.agop(X, Y, V[:, :0], diagonal=True), torch.zeros(3, dtype=torch.float64), depth=1)


@pytest.mark.parametrize("options", [{}, {"average": True, "centred": True}, {"diagonal": True, "centred": True}])
def test_no_points_have_derivatives_that_are_zero(options):
    for kernel in (K, km.Laplace(2.0), km.Linear(), km.NTK()):
        inputs = [part.clone().requires_grad_() for part in (X[:0].expand(2, 0, 3), Y, V)]
        found = kernel.gradient(*inputs)
        assert found.shape == (2, 2, 0, 3)
        total = kernel.agop(*inputs, **options)
        assert not total.any()
        grads = torch.autograd.grad(total.sum() + found.sum(), inputs)
        assert [grad.shape for grad in grads] == [part.shape for part in inputs]
        assert not any(grad.any() for grad in grads)


def test_integers_are_standardised_in_the_type_of_distances():
    rows = np.array([[1, 5], [3, 5], [5, 8]])
    expected = (rows - rows.mean(0)) / rows.std(0)
    assert_close(km.standardise(rows), expected, depth=8)
    assert_close(km.standardise(torch.from_numpy(rows)), torch.from_numpy(expected).float(), depth=8)
    assert_close(km.standardise(rows > 2)[:, 0], (rows > 2)[:, 0].astype(float) * 3 / 2**0.5 - 2**0.5, depth=8)


def test_a_pair_of_weights_may_be_a_list():
    x, u = torch.ones(2, 6), torch.tensor([[1.0], [2.0]])
    expected = torch.ones(6) @ torch.kron(u @ u.T, G).T
    for found in (km.kron_linear(x, [u, u.T], G), km.kron_linear(x, (u, u.T), G)):
        assert_close(found, expected.expand(2, 6), depth=8)
    assert_close(km.kron_linear(x.numpy(), (u @ u.T).numpy(), G.numpy()), expected.expand(2, 6).numpy(), depth=8)


def test_a_metric_that_leaves_the_range_of_the_type_is_named():
    machine = km.estimators.RecursiveFeatureMachine(bandwidth=1e-160)
    with pytest.raises(km.errors.LinearAlgebraError, match="NaN or infinite"):
        machine.fit(1e-160 * X.numpy(), X[:, 0].numpy())


@pytest.mark.parametrize("lower", [np.True_, np.False_, 1, 0])
def test_a_triangle_is_chosen_by_any_truth(lower):
    expected = torch.linalg.solve(MATRIX, X[:3, 0])
    assert_close(linalg.solve_cholesky(MATRIX, X[:3, 0], lower=lower).x, expected, depth=100)
    factor = linalg.cholesky_factor(MATRIX, lower=lower)
    assert_close(linalg.cholesky_solve(factor, X[:3, 0]).x, expected, depth=100)


def test_the_nearest_product_of_a_numpy_array_has_its_error_in_numpy():
    nearest, error = km.nearest_kron(np.kron(np.eye(2), 2 * np.eye(3)), [(2, 2), (3, 3)])
    assert isinstance(error, np.ndarray)
    assert error < 1e-12
    assert_close(nearest.to_dense(), torch.kron(torch.eye(2), 2 * torch.eye(3)).double(), depth=100)


INSIDE = {
    "solve_cholesky": lambda a, b: linalg.solve_cholesky(a, b).x,
    "solve_lu": lambda a, b: linalg.solve_lu(a, b).x,
    "inverse_spd": lambda a, b: linalg.inverse_spd(a).x @ b,
    "logdet_spd": lambda a, b: linalg.logdet_spd(a) * b,
    "eigh": lambda a, b: linalg.eigh(a).w * b,
    "cg": lambda a, b: linalg.cg(a, b, tolerance=1e-12).x,
    "solve_kernel": lambda a, b: linalg.solve_kernel(km.Gaussian(3.0), a, b, 0.1).x,
    "sinkhorn": lambda a, b: km.ot.sinkhorn(a, a + 1, eps=100.0, tolerance=1e-9).value * b,
}
"""Functions of a matrix and a vector that a transform around them does not see."""


@pytest.mark.parametrize("name", INSIDE)
def test_constants_inside_of_a_transform_are_used_and_differentiated_as_outside(name):
    function, scales = INSIDE[name], torch.tensor([0.5, 2.0], dtype=torch.float64)

    def outcome(call):
        a, b = MATRIX.clone().requires_grad_(), X[:3, 0].clone().requires_grad_()
        value = call(a, b)
        return value.detach(), *torch.autograd.grad(value.square().sum(), [a, b])

    expected = outcome(lambda a, b: torch.stack([scale * function(a, b) for scale in scales]))
    found = outcome(lambda a, b: torch.vmap(lambda scale: scale * function(a, b))(scales))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, depth=1000)


def test_some_eigenvalues_of_no_matrices_are_none_of_as_many():
    found = linalg.eigh(MATRIX[None][:0], subset_by_index=(1, 2))
    assert (found.w.shape, found.v.shape, found.info.shape) == ((0, 2), (0, 3, 2), (0,))
    assert linalg.eigh(MATRIX[None][:0], subset_by_index=(1, 1), eigvals_only=True).shape == (0, 1)
    assert linalg.eigh(MATRIX, subset_by_index=np.array([1, 2]), eigvals_only=True).shape == (2,)


def test_values_with_derivatives_run_beside_a_compiled_graph():
    for kernel in (K, km.Matern(2.0, nu=2.5)):
        x, own = X.clone().requires_grad_(), X.clone().requires_grad_()
        expected = 2 * km.with_gradients(kernel, x, Y)
        torch._dynamo.reset()
        found = torch.compile(lambda a, b, k=kernel: 2 * km.with_gradients(k, a, b), backend="aot_eager")(own, Y)
        assert_close(found, expected, depth=8)
        found.sum().backward()
        expected.sum().backward()
        assert_close(own.grad, x.grad, depth=100)
