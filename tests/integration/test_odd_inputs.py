"""Front-door functions at rows of odd shapes, strides, types and sizes, against NumPy and SciPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

import kernmantle as km
from kernmantle.errors import DtypeError, OutputError, ShapeError
from kernmantle.testing import assert_close


def gaussian(x, y):
    return np.exp(-(cdist(x, y) ** 2) / 2)


def weighted(x, y):
    return softmax(x @ y.T / max(x.shape[1], 1) ** 0.5, axis=1) @ y


FACTOR, WEIGHT = np.array([[1.0, -0.5], [0.25, 2.0]]), np.array([0.5, -2.0, 1.0, 0.0])
PRODUCT = km.Contraction("mk,nk->mn", lambda a, b: a * b)
FRONT = {
    "cdist": (lambda x, y: km.cdist(x, y, p=1.5), lambda x, y: cdist(x, y, "minkowski", p=1.5)),
    "canberra": (lambda x, y: km.cdist(x, y, metric="canberra"), lambda x, y: cdist(x, y, "canberra")),
    "kernel": (km.Gaussian(1.0), gaussian),
    "matmul": (lambda x, y: km.Gaussian(1.0).matmul(x, y, y), lambda x, y: gaussian(x, y) @ y),
    "logsumexp": (km.Gaussian(1.0).logsumexp, lambda x, y: logsumexp(gaussian(x, y), axis=1)),
    "attention": (lambda x, y: km.attention(x, y, y), weighted),
    "contract": (
        lambda x, y: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, y), lambda x, y: cdist(x, y, "cityblock"),
    ),
    "product": (PRODUCT, lambda x, y: x @ y.T),
    "kron": (
        lambda x, y: km.kron_matmul(x, [FACTOR.astype(x.dtype), FACTOR.T.astype(x.dtype)]),
        lambda x, y: x @ np.kron(FACTOR, FACTOR.T),
    ),
    "kron_sparse": (
        lambda x, y: km.kron_sparse_matmul(x, np.diag(WEIGHT).astype(x.dtype)[None, :, :, None]),
        lambda x, y: x * WEIGHT,
    ),
}  # fmt: skip
"""Of numpy rows of four columns: ours, and the definition."""
FORMS = {
    "no rows of x": lambda x, y: (x[:0], y),
    "one row each": lambda x, y: (x[:1], y[:1]),
    "reversed": lambda x, y: (x[::-1, ::-1], y[::-2]),
    "by columns": lambda x, y: (np.asfortranarray(x)[1:], np.asfortranarray(y)),
    "one row repeated": lambda x, y: (np.broadcast_to(x[0], x.shape), np.broadcast_to(y[0], y.shape)),
    "read-only": lambda x, y: tuple(np.frombuffer(part.tobytes(), part.dtype).reshape(part.shape) for part in (x, y)),
    "equal rows": lambda x, y: (x, x[:5]),
    "zeros": lambda x, y: (0 * x, -0.0 * y),
    "tiny": lambda x, y: (1e-200 * x, 1e-200 * y),
    "float32": lambda x, y: (x.astype(np.float32), y.astype(np.float32)),
    "float16": lambda x, y: (x.astype(np.float16), y.astype(np.float16)),
}


def rows():
    draw = np.random.default_rng(7)
    return draw.normal(size=(9, 4)), draw.normal(size=(6, 4))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FRONT)
def test_rows_of_odd_forms(name, form):
    x, y = FORMS[form](*rows())
    ours, definition = FRONT[name]
    found, wanted = ours(x, y), definition(x.astype(float), y.astype(float))
    assert isinstance(found, np.ndarray)
    assert found.dtype == x.dtype
    assert found.shape == wanted.shape
    assert_close(torch.from_numpy(found), wanted, depth=16, magnitude=np.maximum(np.abs(wanted), form != "tiny"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["cdist", "kernel", "matmul", "contract", "product"])
def test_what_is_not_finite_stays_in_its_row(name, value):
    (x, y), (ours, _) = rows(), FRONT[name]
    odd = x.copy()
    odd[2] = value
    found, finite = ours(odd, y), ours(x, y)
    others = np.arange(len(x)) != 2
    assert (found[others] == finite[others]).all()
    if np.isnan(value):
        assert np.isnan(found[2]).all()
    elif name in ("kernel", "matmul"):
        assert (found[2] == 0).all()
    else:
        assert np.isinf(found[2]).all() or name == "product"


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_distances_of_integers_do_not_wrap(dtype):
    most = 1 if dtype is np.bool_ else np.iinfo(dtype).max
    x, y = np.array([[0, 1], [1, 1]], dtype), np.array([[1, 0], [most, 1]], dtype)
    assert_close(torch.from_numpy(km.cdist(x, y, p=1)), cdist(x.astype(float), y.astype(float), "cityblock"), depth=2)
    kernel = km.Laplace(100.0, p=1)
    found, wanted = kernel(x, y), np.exp(-cdist(x.astype(float), y.astype(float), "cityblock") / 100)
    assert_close(torch.from_numpy(found), wanted, depth=2)


def written_over(call):
    """Gradient where what was given is changed after the forward pass, None where torch says that it was."""
    leaf = torch.from_numpy(rows()[0]).requires_grad_()
    given = leaf * 1
    result = call(given)
    given.mul_(2)
    try:
        return torch.autograd.grad(result.sum(), leaf)[0]
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


CALLS = {
    "cdist": lambda x, y: km.cdist(x, y, p=1.5),
    "kernel": km.Gaussian(1.0),
    "matmul": lambda x, y: km.Gaussian(1.0).matmul(x, y, y),
    "logsumexp": km.Gaussian(1.0).logsumexp,
    "attention": lambda x, y: km.attention(x, y, y),
    "contract": PRODUCT,
    "sinkhorn": lambda x, y: km.ot.sinkhorn(x, y, eps=1.0).value,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_is_never_of_what_was_written_over(name):
    y = torch.from_numpy(rows()[1])
    found = written_over(lambda x: CALLS[name](x, y))
    if found is not None:
        x = torch.from_numpy(rows()[0]).requires_grad_()
        assert_close(found, torch.autograd.grad(CALLS[name](x, y).sum(), x)[0], depth=16)


@pytest.mark.parametrize(
    "call",
    [km.cdist, km.Gaussian(1.0), lambda x, y: km.argkmin(x, y, 1), lambda x, y: km.Gaussian(1.0).matmul(x, y, y)],
    ids=["cdist", "kernel", "argkmin", "matmul"],
)
def test_errors_name_the_argument(call):
    y = torch.from_numpy(rows()[1])
    with pytest.raises(DtypeError, match=r"^x must be a torch tensor, .* not NoneType"):
        call(None, y)
    with pytest.raises(DtypeError, match=r"x is float8_e4m3fn; convert it with"):
        call(y.to(torch.float8_e4m3fn), y)


def test_errors_say_what_to_do():
    x, y = rows()
    with pytest.raises(ShapeError, match="y has no rows"):
        km.argkmin(x, y[:0], 1)
    fixed = np.zeros((9, 6))
    fixed.flags.writeable = False
    with pytest.raises(OutputError, match="read-only numpy array; pass one"):
        km.cdist(x, y, out=fixed)
    with pytest.raises(OutputError, match="without negative strides"):
        km.cdist(x, y, out=np.zeros((9, 6))[::-1])


NOTHING = {
    "pdist": (km.pdist, (1, 3), (0,)),
    "pdist of no rows": (lambda x: km.pdist(x, metric="canberra"), (2, 0, 3), (2, 0)),
    "eigenvalues": (lambda a: km.linalg.eigh(a).w, (0, 0), (0,)),
    "eigenvectors": (lambda a: km.linalg.eigh(a).v, (2, 0, 0), (2, 0, 0)),
    "logdet": (lambda a: km.linalg.logdet(a).value, (0, 0), ()),
}


@pytest.mark.parametrize("name", NOTHING)
def test_results_without_entries_have_gradients_of_zero(name):
    call, shape, expected = NOTHING[name]
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    found = call(x)
    assert tuple(found.shape) == expected
    found.sum().backward()
    assert x.grad is not None
    assert_close(x.grad, torch.zeros(shape, dtype=torch.float64))
    assert float(found.detach().sum()) == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: km.linalg.svd(a, 1), "without entries"),
        (lambda a: km.nearest_kron(a, [(0, 2), (2, 3)]), "without entries"),
    ],
)
def test_matrices_without_entries_have_no_decomposition(call, text):
    with pytest.raises(ShapeError, match=text):
        call(torch.zeros(0, 6))


@pytest.mark.parametrize(
    "call",
    [
        lambda out: km.cdist(np.eye(3), np.eye(3), out=out),
        lambda out: km.Gaussian(1.0).matmul(np.eye(3), np.eye(3), np.eye(3), out=out),
        lambda out: km.kron_matmul(np.eye(3), [np.eye(3)], out=out),
        lambda out: km.kron_sparse_matmul(np.eye(3), np.ones((1, 3, 3, 1)), out=out),
        lambda out: PRODUCT(np.eye(3), np.eye(3), out=out),
        lambda out: km.pdist(np.eye(3), out=out[0]),
    ],
)
def test_arrays_of_objects_are_not_written_to(call):
    """They are copied to be read, and the copy was written."""
    with pytest.raises(OutputError, match="numpy array of object"):
        call(np.zeros((3, 3), dtype=object))
