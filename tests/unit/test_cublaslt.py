"""What a bound product takes from cuBLASLt, by a stand-in of the library that counts it."""

from __future__ import annotations

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
