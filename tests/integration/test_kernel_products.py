"""What kernels compute without storing their matrix, against the matrix; on every backend where it matters."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from sklearn.neighbors import NearestNeighbors
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle import errors
from kernmantle.pairwise import KERNELS, bound
from kernmantle.runtime.dispatch import PLANS
from kernmantle.testing import assert_close
from kernmantle.torch_ops import blocks, row_reduce_autograd, row_reduce_blocks, row_reduce_one_block
from kernmantle.torch_ops.recompute import recompute

from ..arrays import normal as rows

KERNEL = 0.5 * km.Gaussian(2.0) + km.Laplace(1.5)
NAMES = sorted(KERNELS)


@pytest.fixture(params=[1 << 30, 4 * 11 * 8, 5 * 8], ids=["one block", "blocks of rows", "blocks of both"])
def small_blocks(request, monkeypatch):
    """Blocks so small that there are many, some of part of the columns."""
    monkeypatch.setattr(blocks, "_IN_CACHE", request.param)
    monkeypatch.setattr(blocks, "LARGEST", request.param * row_reduce_one_block.COPIES)
    monkeypatch.setitem(row_reduce_blocks.BLOCK_BYTES, "cpu", request.param)


@pytest.mark.parametrize("shape", [(11,), (11, 1), (11, 3)])
def test_matmul(shape, small_blocks, backend, device):
    x, y, v = rows(9, 3, device=device), rows(11, 3, seed=1, device=device), rows(*shape, seed=2, device=device)
    assert_close(KERNEL.matmul(x, y, v), KERNEL(x, y) @ v, depth=32)
    square = rows(9, *shape[1:], seed=3, device=device)
    assert_close(KERNEL.matmul(x, None, square, diagonal=0.3), KERNEL(x, diagonal=0.3) @ square, depth=32)


def test_matmul_of_a_batch(small_blocks):
    x, y, v = rows(2, 1, 5, 3), rows(3, 7, 3, seed=1), rows(7, 2, seed=2)
    kernel = km.Cauchy(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert_close(kernel.matmul(x, y, v), kernel(x, y) @ v, depth=32)
    assert_close(kernel.matmul(x, y, rows(3, 7, 2)), kernel(x, y) @ rows(3, 7, 2), depth=32)
    assert kernel.matmul(rows(1, 5, 3), rows(7, 3), rows(4, 1, 7, 2)).shape == (4, 3, 5, 2)


@pytest.mark.parametrize("columns", [1, 3, 16, 40])
@pytest.mark.parametrize("entries", [0, 1 << 20], ids=["reciprocals", "divided"])
def test_products_with_lengthscales_are_bound_with_or_without_reciprocals(entries, columns, device, monkeypatch):
    """A kernel divides by lengthscales where entries are few; more are multiplied by reciprocals made before."""
    monkeypatch.setitem(bound._MOST_DIVIDED, device, entries)
    PLANS.clear()
    shapes = (9, columns), (11, columns), (11, 2), (9, 2)
    x, y, v, cotangent = (rows(*shape, seed=seed, device=device).float() for seed, shape in enumerate(shapes))
    lengths, out = 0.5 + torch.arange(columns, device=device).float() / 4, v.new_empty(9, 2)

    def plainly(x, y, v, lengths):
        squares = ((x[:, None] - y) / lengths).square().sum(-1)
        return torch.exp(-squares / 8) @ v

    def wanted():
        own = [each.detach().double().requires_grad_() for each in (x, y, v, lengths)]
        result = plainly(*own)
        return result.detach(), torch.autograd.grad(result, own, cotangent.double())

    kernel, moving = km.Gaussian(2.0, lengthscales=lengths), [each.clone().requires_grad_() for each in (x, y, v)]
    trained = lengths.clone().requires_grad_()
    recorded = km.Gaussian(2.0, lengthscales=trained)
    for factor in (1.0, 2.0, 0.5):
        with torch.no_grad():
            lengths.mul_(factor)  # read anew by each call
            trained.mul_(factor)
        expected, gradients = wanted()
        assert_close(kernel.matmul(x, y, v), expected, depth=64)
        assert kernel.matmul(x, y, v, out=out) is out
        assert_close(out, expected, depth=64)
        assert_close(kernel.matmul(x, y, v[:, 0]), expected[:, 0], depth=64)
        whole = plainly(x.double(), y.double(), torch.eye(11, device=device).double(), lengths.double())
        assert_close(kernel.logsumexp(x, y), whole.logsumexp(1), depth=64)
        found = torch.autograd.grad(recorded.matmul(*moving), [*moving, trained], cotangent)
        for one, other in zip(found, gradients, strict=True):
            assert_close(one, other, depth=64 * columns)
    assert {plan.divides for plan in PLANS.values() if isinstance(plan, bound.BoundReduction)} == {entries > 0}


@pytest.mark.parametrize("kernel", [KERNEL, "of lengthscales"], ids=["sum", "lengthscales"])
@pytest.mark.parametrize("shape", [(11,), (11, 3)])
@pytest.mark.parametrize("spread", [1, 2])
def test_matmul_writes_to_out(kernel, shape, spread, device):
    """The first call goes through all checks, the second is bound where out is contiguous; both write to out."""
    x, y, v = rows(9, 3, device=device), rows(11, 3, seed=1, device=device), rows(*shape, seed=2, device=device)
    if kernel is not KERNEL:
        kernel = km.Gaussian(lengthscales=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, device=device))
    for scale in (1.0, 2.0, 3.0):
        memory = torch.full((9 * spread, *shape[1:]), torch.nan, dtype=torch.float64, device=device)
        out = memory[::spread]
        assert kernel.matmul(x, y, scale * v, out=out) is out
        assert_close(out, kernel(x, y) @ (scale * v), depth=32)
        assert spread == 1 or bool(memory[1::2].isnan().all())
    square = rows(9, *shape[1:], seed=3, device=device)
    assert_close(kernel.matmul(x, None, square, diagonal=0.3, out=out), kernel(x, diagonal=0.3) @ square, depth=32)
    on_host = np.empty((9, *shape[1:]))
    arguments = [each.cpu().numpy() for each in (x, y, v)]
    if kernel is KERNEL:
        assert kernel.matmul(*arguments, out=on_host) is on_host
        assert_close(on_host, kernel(x, y) @ v, depth=32)


def test_what_out_refuses():
    """Each call is refused, cold and where the same call with a right out is bound."""
    x, v = rows(8, 3), rows(8, 3, seed=2)
    buffer = torch.empty(64, dtype=torch.float64)
    x, out = buffer[:24].view(8, 3).copy_(x), torch.empty(8, 3, dtype=torch.float64)
    overlapping = buffer[8:32].view(8, 3)
    for _ in range(2):
        with pytest.raises(errors.OutputError, match="shape"):
            KERNEL.matmul(x, x, v, out=out[:4])
        with pytest.raises(errors.OutputError, match="dtype"):
            KERNEL.matmul(x, x, v, out=out.float())
        with pytest.raises(errors.OutputError, match="overlaps"):
            KERNEL.matmul(x, x, v, out=overlapping)
        with pytest.raises(errors.OutputError, match="overlaps"):
            KERNEL.matmul(x, None, v, out=v)
        with pytest.raises(errors.GradientError, match="out="):
            KERNEL.matmul(x, x, v.clone().requires_grad_(), out=out)
        KERNEL.matmul(x, x, v, out=out)
        KERNEL.matmul(x, None, v, out=out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matmul_of_halves_is_summed_in_float32(dtype):
    x, y, v = rows(9, 3, dtype=dtype), rows(400, 3, seed=1, dtype=dtype), rows(400, seed=2, dtype=dtype)
    result = KERNEL.matmul(x, y, v)
    assert result.dtype == dtype
    matrix = KERNEL(x.double(), y.double())
    assert_close(result, matrix @ v.double(), depth=400, magnitude=np.sqrt(400))


def test_derivatives_of_matmul(small_blocks):
    x, y, v = rows(3, 2).requires_grad_(), rows(4, 2, seed=1).requires_grad_(), rows(4, 2, seed=2).requires_grad_()
    bandwidth = torch.tensor([1.3, 2.0], dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([0.7, 1.6], dtype=torch.float64, requires_grad=True)

    def product(x, y, v, bandwidth, lengths):
        return (km.Gaussian(bandwidth, lengthscales=lengths) + bandwidth * km.Linear()).matmul(x, y, v)

    with km.config(backend="reference"):
        assert gradcheck(product, (x, y, v, bandwidth, lengths), fast_mode=True)
        assert gradgradcheck(product, (x, y, v, bandwidth, lengths), fast_mode=True)
        assert gradcheck(lambda x, v: KERNEL.matmul(x, None, v), (y, v))


def test_gradients_of_matmul_are_those_of_the_matrix(small_blocks):
    x, y, v = rows(6, 3).requires_grad_(), rows(8, 3, seed=1).requires_grad_(), rows(8, 2, seed=2).requires_grad_()
    kernel = km.Cosine() * km.Laplace(2.0, 1.3)

    def gradients(result):
        first = torch.autograd.grad(result.square().sum(), (x, y, v), create_graph=True)
        return [result, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, y, v))]

    with km.config(backend="reference"):
        found, expected = gradients(kernel.matmul(x, y, v)), gradients(kernel(x, y) @ v)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, depth=512)


def test_a_recomputed_function_of_one_array_twice():
    x = rows(4, 3).requires_grad_()

    def function(a, b):
        return a @ b.mT, (a * b).argmax(-1)

    product, places = recompute(function, x, x)
    assert not places.requires_grad
    assert gradcheck(lambda x: recompute(function, x, x)[0], (x,))
    assert gradgradcheck(lambda x: recompute(function, x, x)[0], (x,))
    assert_close(product, x @ x.mT)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("needed", ["all", "points", "v", "width"])
def test_gradients_of_a_small_matrix_are_bound(needed, same, monkeypatch):
    """The second backward pass goes the way that the first one has found, for other values and cotangents."""
    for turn in range(3):
        x, y, v = rows(9, 3, seed=turn), rows(9 if same else 11, 3, seed=turn + 5), rows(11, 2, seed=turn + 9)
        v, width = v[: len(y)], torch.tensor(1.3 + turn, dtype=torch.float64)
        own = {"points": [x] if same else [x, y], "v": [v], "width": [width]}
        leaves = [leaf for name, group in own.items() for leaf in group if needed in ("all", name)]
        for leaf in leaves:
            leaf.requires_grad_()
        kernel, other = km.Gaussian(width) + 0.5 * km.Laplace(1.5, p=1), x if same else y
        cotangent = rows(9, 2, seed=turn + 20) if turn < 2 else torch.ones(1, 1, dtype=torch.float64).expand(9, 2)
        found = torch.autograd.grad(kernel.matmul(x, None if same else y, v), leaves, cotangent)
        gaps = x[:, None] - other
        matrix = torch.exp(gaps.square().sum(-1) / (-2 * width**2)) + 0.5 * torch.exp(-gaps.abs().sum(-1) / 1.5)
        for one, exact in zip(found, torch.autograd.grad(matrix @ v, leaves, cotangent), strict=True):
            assert_close(one, exact, depth=64, magnitude=exact.abs().max())
        if needed != "v" and turn == 0:
            monkeypatch.setattr(row_reduce_autograd, "_through_blocks", None)
            monkeypatch.setattr(row_reduce_one_block, "_is_one_block", None)
        elif turn == 1:
            monkeypatch.undo()  # the third cotangent has other strides


def test_memory_of_the_backward_is_bounded(monkeypatch):
    """No tensor as large as the matrix is kept or made."""
    x, v = rows(300, 3, dtype=torch.float32).requires_grad_(), rows(300, 2, seed=2, dtype=torch.float32)
    monkeypatch.setattr(blocks, "LARGEST", row_reduce_one_block.COPIES * 300 * 4 * 20)
    monkeypatch.setitem(row_reduce_blocks.BLOCK_BYTES, "cpu", 300 * 4 * 20)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, torch.Tensor):
                    largest = max(largest, value.numel())
            return result

    with Watch(), km.config(backend="reference"):
        KERNEL.matmul(x, None, v).square().sum().backward()
    assert 0 < largest <= 300 * 20


@pytest.mark.parametrize("kind", ["sum", "max", "logsumexp"])
def test_reductions_over_rows(kind, small_blocks, backend, device):
    x, y = rows(9, 3, device=device), rows(11, 3, seed=1, device=device)
    dense = {"sum": lambda k: k.sum(-1), "max": lambda k: k.amax(-1), "logsumexp": lambda k: k.logsumexp(-1)}[kind]
    assert_close(getattr(KERNEL, kind)(x, y), dense(KERNEL(x, y)), depth=32)
    nothing = getattr(KERNEL, kind)(x, y[:0])
    assert_close(nothing, np.full(9, 0.0 if kind == "sum" else -np.inf))


@pytest.mark.parametrize("kind", ["sum", "max", "logsumexp"])
def test_derivatives_of_reductions(kind, small_blocks):
    x, y = rows(3, 2).requires_grad_(), rows(4, 2, seed=1).requires_grad_()
    with km.config(backend="reference"):
        assert gradcheck(getattr(KERNEL, kind), (x, y))
        assert gradgradcheck(getattr(KERNEL, kind), (x, y), fast_mode=True)


def test_neighbours(small_blocks, backend, device):
    x, y = rows(9, 3, device=device), rows(11, 3, seed=1, device=device)
    indices = km.argkmin(x, y, 4)
    model = NearestNeighbors(n_neighbors=4, algorithm="brute").fit(y.cpu().numpy())
    distances, expected = model.kneighbors(x.cpu().numpy())
    assert np.array_equal(indices.cpu().numpy(), expected)
    values, again = km.argkmin(x, y, 4, return_values=True)
    assert torch.equal(again, indices)
    assert_close(values, distances, depth=8)
    values, indices = km.Gaussian(2.0).argkmax(x, y, 4, return_values=True)
    assert np.array_equal(indices.cpu().numpy(), expected)
    assert_close(values, np.exp(-(distances**2) / 8), depth=8)


def test_neighbours_by_a_metric_or_a_kernel():
    x, y = rows(9, 3), rows(11, 3, seed=1)
    for options in ({"p": 1}, {"metric": "canberra"}, {"metric": "seuclidean", "V": torch.ones(3).double()}):
        expected = km.cdist(x, y, **options).topk(3, largest=False)
        values, indices = km.argkmin(x, y, 3, return_values=True, **options)
        assert torch.equal(indices, expected.indices)
        assert_close(values, expected.values, depth=8)
    own = km.Kernel(lambda a, b: abs(a - b) ** 3)
    assert torch.equal(km.argkmin(x, y, 2, metric=own), own(x, y).topk(2, largest=False).indices)
    assert torch.equal(km.argkmin(x, count=1)[:, 0], torch.arange(9))
    assert isinstance(km.argkmin(x.numpy(), y.numpy(), 2), np.ndarray)


def test_distances_of_neighbours_have_gradients():
    x, y = rows(4, 3).requires_grad_(), rows(5, 3, seed=1).requires_grad_()
    with km.config(backend="reference"):
        assert gradcheck(lambda x, y: km.argkmin(x, y, 2, return_values=True)[0], (x, y))


def test_an_operator_serves_scipy():
    x = rows(40, 3).numpy()
    v = rows(40, seed=1).numpy()
    operator = KERNEL.operator(x, diagonal=0.1)
    matrix = KERNEL(x) + 0.1 * np.eye(40)
    linear = scipy.sparse.linalg.aslinearoperator(operator)
    assert linear.shape == (40, 40)
    assert linear.dtype == np.float64
    solution, failed = scipy.sparse.linalg.cg(linear, v, rtol=1e-12)
    assert not failed
    assert np.allclose(matrix @ solution, v, rtol=0, atol=1e-9)
    assert_close(linear @ v, matrix @ v, depth=64)
    assert_close(operator.diagonal(), np.diag(matrix), depth=8)
    assert_close(operator.dense(), matrix, depth=8)


@pytest.mark.parametrize("make", [rows, lambda *shape, **seed: rows(*shape, **seed).numpy()], ids=["torch", "numpy"])
def test_an_operator_is_multiplied_as_scipy_s_linear_operators_are(make):
    x, y, v, w = make(5, 3), make(7, 3, seed=1), make(5, seed=2), make(7, 2, seed=3)
    operator, matrix = KERNEL.operator(x, y), KERNEL(x, y)
    for found, exact in (
        (v * operator, v @ matrix), (operator * w, matrix @ w), ((2 * operator) @ w, 2 * (matrix @ w)),
        ((operator * np.float64(3)).dot(w), 3 * (matrix @ w)), (-operator @ w, -(matrix @ w)),
        ((operator / 4) @ w, matrix @ w / 4), (operator.transpose() * v, v @ matrix),
        (v.tolist() * operator, v @ matrix),
        ((torch.tensor(2.0) * operator.adjoint()) @ v, 2 * (v @ matrix)),
    ):  # fmt: skip
        assert type(found) is type(exact)
        assert_close(found, exact, depth=64)
    square, ridge = KERNEL.operator(x, diagonal=0.5), 0.5 * np.eye(5)
    assert_close((3 * square).dense(), 3 * (np.asarray(KERNEL(x)) + ridge), depth=8)
    with pytest.raises(errors.ShapeError, match="row for each of the 5 rows"):
        operator.transpose() * w
    with pytest.raises(errors.ParameterError, match="must be a number, a list of numbers or an array"):
        "a" * operator


def test_an_operator_and_its_transpose():
    lopsided = km.Kernel(lambda x, y: km.maximum(x - y, 0))
    x, y = rows(5, 3), rows(7, 3, seed=1)
    for kernel in (lopsided, KERNEL, km.NTK() + km.Cosine(lengthscales=torch.ones(3).double())):
        operator, matrix = kernel.operator(x, y), kernel(x, y)
        assert operator.shape == (5, 7)
        assert operator.T.shape == (7, 5)
        assert operator.dtype == torch.float64
        assert_close(operator @ rows(7, 2), matrix @ rows(7, 2), depth=32)
        assert_close(operator.T @ rows(5), matrix.mT @ rows(5), depth=32)
        assert_close(operator.rmatvec(rows(5)), matrix.mT @ rows(5), depth=32)
        assert_close(operator.T.dense(), matrix.mT, depth=32)
        assert_close(rows(2, 5) @ operator.dense(), operator.__rmatmul__(rows(2, 5)), depth=32)
        assert_close(operator.T.T.matmat(rows(7, 2)), matrix @ rows(7, 2), depth=32)
    assert "5 x 7 operator of " in repr(KERNEL.operator(x, y))
    assert not lopsided.is_symmetric


def dense_gradient(kernel, z, x, coef):
    """By torch, through the matrix."""
    z = z.detach().requires_grad_()
    predictions = kernel(z, x) @ coef
    return torch.stack([torch.autograd.grad(predictions[..., o].sum(), z, retain_graph=True)[0]
                        for o in range(coef.shape[-1])], -3)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_predictor(name, small_blocks):
    z, x, coef = rows(6, 3), rows(11, 3, seed=1), rows(11, 2, seed=2)
    settings = {"bandwidth": 4.0} if name == "Wendland" else {}
    for kernel in (getattr(km, name)(**settings), getattr(km, name)(**settings, lengthscales=rows(3).abs() + 0.5)):
        with km.config(backend="reference"):
            expected = dense_gradient(kernel, z, x, coef)
            assert_close(kernel.gradient(z, x, coef), expected, depth=128)
            assert_close(kernel.gradient(z, x, coef[:, 0]), expected[0], depth=128)


@pytest.mark.parametrize(
    "kernel",
    [km.Laplace(2.0), km.Laplace(2.0, 1.3), km.Gaussian(), KERNEL * km.Linear(), km.Laplace(p=np.inf)],
    ids=repr,
)
def test_gradient_on_every_backend(kernel, backend, device):
    z, x, coef = (rows(*shape, seed=i, device=device) for i, shape in enumerate([(7, 5), (20, 5), (20, 3)]))
    assert_close(kernel.gradient(z, x, coef), dense_gradient(kernel, z, x, coef), depth=256)


@pytest.mark.parametrize("outputs", [1, 3, 4, 9])
def test_gradient_of_many_outputs(outputs, small_blocks):
    z, x, coef = (rows(*shape, seed=i) for i, shape in enumerate([(7, 5), (20, 5), (20, outputs)]))
    for kernel in (km.Laplace(2.0, 1.3), KERNEL * km.Linear(), km.Laplace(2.0, lengthscales=rows(5).abs() + 0.5)):
        assert_close(kernel.gradient(z, x, coef), dense_gradient(kernel, z, x, coef), depth=256)
    batched = km.Laplace(torch.tensor([1.0, 2.0]).double())
    assert_close(batched.gradient(z, x, coef)[1], km.Laplace(2.0).gradient(z, x, coef), depth=256)


def test_gradient_far_from_the_origin():
    z, x, coef = (rows(*shape, seed=i) for i, shape in enumerate([(7, 5), (20, 5), (20, 3)]))
    expected = km.Gaussian(2.0).gradient(z, x, coef)
    far = km.Gaussian(2.0).gradient((z + 100).float(), (x + 100).float(), coef.float())
    kept = km.Gaussian(2.0).gradient((z + 100).float().double(), (x + 100).float().double(), coef.float().double())
    assert_close(far, kept, depth=64, magnitude=expected.abs().max())


def test_gradient_of_a_batch():
    z, x, coef = rows(2, 1, 4, 3), rows(3, 5, 3, seed=1), rows(5, 2, seed=2)
    kernel = km.Laplace(torch.tensor([1.0, 2.0, 3.0]).double()) * km.Gaussian(2.0)
    result = kernel.gradient(z, x, coef)
    assert result.shape == (2, 3, 2, 4, 3)
    single = km.Laplace(2.0) * km.Gaussian(2.0)
    assert_close(result[1, 1], single.gradient(z[1, 0], x[1], coef), depth=128)
    assert km.Laplace(p=np.inf).gradient(z, x, coef).shape == (2, 3, 2, 4, 3)


@pytest.mark.parametrize("kernel", [km.Kernel(lambda x, y: abs(x - y)), km.Linear(), km.Laplace()], ids=repr)
def test_a_batch_that_the_gradient_does_not_depend_on(kernel):
    z, x, coef = rows(4, 3), rows(5, 3, seed=1), rows(5, 2, seed=2)
    result = (kernel + torch.tensor([1.0, 2.0]).double()).gradient(z, x, coef)
    assert result.shape == (2, 2, 4, 3)
    assert_close(result[1], kernel.gradient(z, x, coef), depth=64)


@pytest.mark.parametrize(
    "kernel", [km.Laplace(2.0, 1.5), km.Gaussian(), km.Cosine() * km.Cauchy(), km.Laplace(p=np.inf)], ids=repr
)
def test_derivatives_of_the_gradient(kernel):
    z, x, coef = (rows(*s, seed=i).requires_grad_() for i, s in enumerate([(3, 2), (4, 2), (4, 2)]))
    with km.config(backend="reference"):
        assert gradcheck(kernel.gradient, (z, x, coef))
        assert gradgradcheck(kernel.gradient, (z, x, coef), fast_mode=True)


def test_derivatives_of_the_gradient_by_hyperparameters(small_blocks):
    z, x, coef = (rows(*s, seed=i) for i, s in enumerate([(3, 2), (4, 2), (4, 2)]))
    bandwidth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    with km.config(backend="reference"):
        assert gradcheck(lambda b: (km.Laplace(b, 1.5) + km.Gaussian(b)).gradient(z, x, coef), (bandwidth,))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_agop(average, centred, small_blocks):
    z, x, coef = rows(9, 3), rows(11, 3, seed=1), rows(11, 2, seed=2)
    for kernel in (KERNEL, km.Laplace(2.0, 1.3)):
        gradients = kernel.gradient(z, x, coef)
        if centred:
            gradients = gradients - gradients.mean(-2, keepdim=True)
        expected = torch.einsum("omd,ome->de", gradients, gradients) / (9 if average else 1)
        options = {"average": average, "centred": centred}
        assert_close(kernel.agop(z, x, coef, **options), expected, depth=256)
        assert_close(kernel.agop(z, x, coef, diagonal=True, **options), expected.diagonal(), depth=256)
        assert_close(kernel.agop(z, None, rows(9)), kernel.agop(z, z, rows(9)), depth=64)


def test_derivatives_of_agop(small_blocks):
    z, x, coef = (rows(*s, seed=i).requires_grad_() for i, s in enumerate([(3, 2), (4, 2), (4, 2)]))
    with km.config(backend="reference"):
        assert gradcheck(partial(KERNEL.agop, centred=True), (z, x, coef))


@pytest.mark.parametrize("shape", [(0, 4, 3), (3, 0, 3), (3, 4, 0), (1, 1, 1)])
def test_edge_shapes(shape):
    m, n, k = shape
    z, x, coef = rows(m, k), rows(n, k), rows(n, 2)
    for kernel in (KERNEL, km.NTK()):
        assert kernel.matmul(z, x, coef).shape == (m, 2)
        assert kernel.gradient(z, x, coef).shape == (2, m, k)
        assert kernel.agop(z, x, coef, centred=True, average=True).shape == (k, k)
        if n:
            assert kernel.argkmax(z, x, 1).shape == (m, 1)
        else:
            assert_close(kernel.matmul(z, x, coef), np.zeros((m, 2)))
            assert_close(kernel.gradient(z, x, coef), np.zeros((2, m, k)))


BAD = [
    (lambda x: KERNEL.matmul(x, x, rows(5)), errors.ShapeError, "for each of the 4 rows of y"),
    (lambda x: KERNEL.matmul(x, x, rows(4).to(torch.complex64)), errors.DtypeError, "v is complex64"),
    (lambda x: KERNEL.matmul(x, rows(6, 3), rows(6), diagonal=1.0), errors.ShapeError, "as many rows"),
    (lambda x: KERNEL.matmul(rows(2, 4, 3), x, rows(3, 4, 1)), errors.ShapeError, "v has shape"),
    (lambda x: KERNEL.gradient(x, x, rows(3, 2)), errors.ShapeError, "coef must have a row for each"),
    (lambda x: KERNEL.agop(x, x, torch.tensor(1.0).double()), errors.ShapeError, "coef must have a row for each"),
    (lambda x: KERNEL.agop(x, x, rows(2, 4)), errors.ShapeError, "coef must have a row for each of the 4"),
    (lambda x: KERNEL.matmul(x, x, torch.tensor(1.0).double()), errors.ShapeError, "for each of the 4 rows of y"),
    (lambda x: KERNEL.gradient(rows(2, 4, 3), x, rows(3, 4, 2)), errors.ShapeError, "coef has shape"),
    (lambda x: km.argkmin(x, x, 5), errors.ParameterError, "from 1 to 4"),
    (lambda x: km.argkmin(x, x, 0), errors.ParameterError, "count"),
    (lambda x: KERNEL.argkmax(x, x, 2.0), errors.ParameterError, "count"),
    (lambda x: km.argkmin(x[:1], x[:1], 1, metric="mahalanobis"), errors.ParameterError, "singular"),
    (lambda x: km.argkmin(x, x, 1, q=2), errors.ParameterError, "no option 'q'"),
    (lambda x: km.argkmin(x, x, 1, metric=KERNEL, p=2), errors.ParameterError, "takes no p"),
    (lambda x: KERNEL.operator(x, rows(6, 3), diagonal=1.0), errors.ShapeError, "as many rows"),
    (lambda x: KERNEL.operator(x, rows(4, 3)).diagonal(), errors.ShapeError, "two sets of rows"),
    (lambda x: km.median_bandwidth(x[:1]), errors.ShapeError, "two rows"),
    (lambda x: km.median_bandwidth(x, sample=1), errors.ParameterError, "sample"),
    (lambda x: km.standardise(x[:0]), errors.ShapeError, "one row"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), BAD, ids=range(len(BAD)))
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call(rows(4, 3))


def test_the_median_of_distances():
    x = rows(30, 3)
    distances = torch.pdist(x).numpy()
    assert_close(km.median_bandwidth(x), np.median(distances), depth=8)
    assert_close(km.median_bandwidth(x[:4], p=1), np.median(torch.pdist(x[:4], 1).numpy()), depth=8)
    assert km.median_bandwidth(rows(2, 5, 3)).shape == (2,)
    large = rows(3000, 3)
    exact, sampled = km.median_bandwidth(large, sample=None), km.median_bandwidth(large)
    assert abs(exact - sampled) < 0.1 * exact
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    assert len({km.median_bandwidth(large, generator=g).item() for g in generators}) == 1
    assert_close(km.Gaussian(km.median_bandwidth(x))(x).diagonal(), np.ones(30))


def test_standardise():
    x, z = rows(30, 3) * 5 + 2, rows(4, 3, seed=1)
    x[:, 1] = 7.0
    ready, others = km.standardise(x, z)
    deviation = np.where(x.std(0, unbiased=False) > 0, x.std(0, unbiased=False), 1.0)
    assert_close(ready, (x.numpy() - x.mean(0).numpy()) / deviation, depth=30)
    assert_close(others, (z.numpy() - x.mean(0).numpy()) / deviation, depth=30)
