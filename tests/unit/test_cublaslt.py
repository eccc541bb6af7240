"""What a bound product takes from cuBLASLt, by a stand-in of the library that counts it."""

from __future__ import annotations

import ctypes
import gc

import pytest

from kernmantle.backends.cuda import cublaslt
from kernmantle.backends.cuda.cublaslt import Matmul, MatmulForm, Side
from kernmantle.errors import LaunchError


class Library:
    """Objects that are created and destroyed, by number; algorithms for each product, or for none."""

    def __init__(self, algorithms):
        self.alive, self.made, self.algorithms = set(), 0, algorithms

    def __getattr__(self, name):
        if name.endswith("Create"):
            return self.create
        if name.endswith("Destroy"):
            return lambda made: self.alive.remove(made.value) or 0
        return lambda *_: 0

    def create(self, where, *_):
        self.made += 1
        self.alive.add(self.made)
        where._obj.value = self.made
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments):
        arguments[-1]._obj.value = self.algorithms
        return 0


@pytest.fixture(params=[1, 0])
def library(request, monkeypatch):
    own = Library(request.param)
    monkeypatch.setattr(cublaslt, "library", lambda: own)
    monkeypatch.setattr(cublaslt, "_handle", lambda _: None)
    return own


def test_what_a_product_takes_ends_with_it(library):
    side = Side(64, 64, 64, 64 * 64)
    form = MatmulForm("bf16", 3, side, side, side)
    if library.algorithms:
        product = Matmul(form, 0)
        assert len(library.alive) == 5  # how to multiply, three layouts, what to prefer
        product(16, 32, 48, 0, 0, 0)
        del product
    else:
        with pytest.raises(LaunchError, match="no algorithm"):
            Matmul(form, 0)
    gc.collect()
    assert library.made == 5
    assert not library.alive


def test_each_record_has_a_description_of_its_own(monkeypatch):
    """A program writes the address of a vector into it, while programs of other streams may run."""
    own = Library(1)
    for name in ("cublasLtMatmul", "cublasLtMatmulDescSetAttribute"):
        setattr(own, name, ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 0))
    monkeypatch.setattr(cublaslt, "library", lambda: own)
    monkeypatch.setattr(cublaslt, "_handle", lambda _: ctypes.c_void_p(77))
    monkeypatch.setattr(cublaslt, "_set", lambda *_: None)
    side = Side(64, 64, 64)
    product = Matmul(MatmulForm("bf16", 1, side, side, side, biased=True), 0)
    records = [product.record(stream, 1, 2, 3, 4, 0, 0) for stream in (7, 8)]
    descriptions = [record.arguments[cublaslt._DESCRIPTION] for record in records]
    assert len({product._description.value, *descriptions}) == 3
    assert [record.values[0] for record in records] == descriptions
    assert [record.arguments[cublaslt._STREAM] for record in records] == [7, 8]
    (plain,) = [product.record(7, 1, 2, 3, 0, 0, 0)]
    assert plain.arguments[cublaslt._DESCRIPTION] == product._description.value
    del product, records, plain
    gc.collect()
    assert not own.alive
