"""Arrays of libraries that follow the array API: what comes back is theirs, with the values that numpy arrays give.

``array_api_strict`` and JAX run where they are installed, CuPy on a GPU; an array type of our own, with nothing but
the methods of DLPack, always does.
"""

import types

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import DtypeError
from kernmantle.testing import assert_close

RANDOM = np.random.default_rng(0)
X, Y, V = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=(5, 4)), RANDOM.normal(size=(5, 2))
F, G = RANDOM.normal(size=(2, 2)), RANDOM.normal(size=(2, 2))
SPD = X.T @ X + np.eye(4)
CALLS = {
    "cdist": (km.cdist, X, Y),
    "cdist of a name": (lambda x, y: km.cdist(x, y, "canberra"), X, Y),
    "one set": (lambda x: km.cdist(x, p=1), X),
    "pdist": (km.pdist, X),
    "a kernel": (km.Matern(2.0), X, Y),
    "its product": (lambda x, y, v: km.Gaussian(1.0).matmul(x, y, v), X, Y, V),
    "neighbours": (lambda x, y: km.argkmin(x, y, 2), X, Y),
    "a contraction": (lambda x, y: km.contract("mk,nk->mn", lambda a, b: a + b, x, y, reduce="min"), X, Y),
    "Kronecker": (lambda x, f, g: km.kron_matmul(x, [f, g]), X, F, G),
    "a system": (lambda a, b: km.linalg.solve_cholesky(a, b).x, SPD, V[:4]),
    "standardised": (km.standardise, X),
    "values and gradients": (lambda x: km.with_gradients(km.Gaussian(1.0), x), X),
}


class Plain:
    """An array with its shape and the methods of DLPack, and nothing else."""

    def __init__(self, tensor):
        self._tensor, self.shape = tensor, tuple(tensor.shape)

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __array_namespace__(self, **_):
        return types.SimpleNamespace(from_dlpack=lambda other: Plain(torch.from_dlpack(other)))


def library(name):
    """How to make an array from one of numpy, and the way back."""
    if name == "DLPack":
        return (lambda array: Plain(torch.from_numpy(array.copy()))), (lambda array: array._tensor.numpy())
    if name == "cupy":
        if not torch.cuda.is_available():
            pytest.skip("CuPy needs a GPU")
        cupy = pytest.importorskip("cupy")
        return cupy.asarray, cupy.asnumpy
    if name == "jax":
        jax = pytest.importorskip("jax")
        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray, np.asarray
    strict = pytest.importorskip("array_api_strict")
    return strict.asarray, np.from_dlpack


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["DLPack", "array_api_strict", "jax", "cupy"])
def test_results_are_arrays_of_the_same_library(name, call):
    there, back = library(name)
    function, *arrays = CALLS[call]
    found, wanted = function(*map(there, arrays)), function(*arrays)
    assert type(found) is type(there(X))
    if wanted.dtype.kind == "i":
        assert np.array_equal(back(found), wanted)
    else:
        assert_close(back(found), wanted, depth=1000)


@pytest.mark.parametrize("name", ["DLPack", "array_api_strict", "cupy"])
def test_memory_is_shared_and_types_are_promoted(name):
    there, back = library(name)
    x = there(X.astype(np.float32))
    assert back(km.cdist(x, x)).dtype == np.float32
    mixed = km.cdist(x, there(Y))
    assert back(mixed).dtype == np.float64
    assert_close(back(mixed), km.cdist(X.astype(np.float32).astype(float), Y), depth=1000)
    with pytest.raises(DtypeError, match="another array with __dlpack__"):
        km.cdist(x, types.SimpleNamespace(shape=(5, 4)))
