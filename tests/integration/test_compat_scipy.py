"""``kernmantle.compat.scipy`` against scipy itself, and arguments in the habits of scipy and numpy."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import scipy.spatial.distance as reference

import kernmantle as km
from kernmantle.compat import scipy as distance
from kernmantle.errors import ParameterError
from kernmantle.testing import assert_close

X = np.random.default_rng(0).random((7, 5)) + 0.1
Y = np.random.default_rng(1).random((6, 5)) + 0.1
REAL = (
    "braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean", "jensenshannon",
    "mahalanobis", "minkowski", "seuclidean", "sqeuclidean",
)  # fmt: skip
BOOLEAN = ("dice", "hamming", "jaccard", "rogerstanimoto", "russellrao", "sokalsneath", "yule")


def _rows(metric):
    return (X > 0.6, Y > 0.6) if metric in BOOLEAN else (X, Y)


@pytest.mark.parametrize("metric", [*REAL, *BOOLEAN])
def test_every_metric_as_scipy(metric):
    x, y = _rows(metric)
    if metric == "mahalanobis":  # more rows than columns, for the covariance
        x = np.tile(x, (3, 1)) + 0.1 * np.random.default_rng(2).random((21, 5))
    assert_close(distance.cdist(x, y, metric), reference.cdist(x, y, metric), depth=64)
    assert_close(distance.cdist(XA=x, XB=y, metric=metric), reference.cdist(x, y, metric), depth=64)
    assert_close(distance.pdist(x, metric), reference.pdist(x, metric), depth=64)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_other_types_give_float64(dtype):
    x = (10 * X).astype(dtype)
    found = distance.cdist(x, x)
    assert found.dtype == np.float64
    assert_close(found, reference.cdist(x, x), depth=8)


def test_options_and_out():
    w, out = np.arange(5.0), np.empty((7, 6))
    assert distance.cdist(X, Y, "minkowski", out=out, p=3, w=w) is out
    assert_close(out, reference.cdist(X, Y, "minkowski", p=3, w=w), depth=8)


def test_functions_of_rows_and_other_names_are_scipys():
    def largest(u, v):
        return np.abs(u - v).max()

    assert_close(distance.cdist(X, Y, largest), reference.cdist(X, Y, "chebyshev"), depth=8)
    assert distance.squareform is reference.squareform
    with pytest.raises(AttributeError, match="absent"):
        _ = distance.absent


def test_programs_can_import_it_as_scipys(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.spatial.distance", reference)
    km.compat.install("scipy.spatial.distance")
    assert importlib.import_module("scipy.spatial.distance").cdist is distance.cdist


def test_the_metric_is_the_third_argument_as_in_scipy():
    assert_close(km.cdist(X, Y, "canberra"), reference.cdist(X, Y, "canberra"), depth=8)
    assert_close(km.pdist(X, "cityblock"), reference.pdist(X, "cityblock"), depth=8)
    with pytest.raises(ParameterError, match=r"metric must be a name, .*, not 1\.0; a power is p=\.\.\."):
        km.cdist(X, Y, 1.0)


def test_nested_lists_are_taken():
    found = km.cdist([[0, 0]], [[3, 4]])
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[5.0]]
    assert km.Gaussian(1.0)([[0.0], [0.0]]).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_mixed_precisions_are_promoted():
    wide = km.cdist(X.astype(np.float32), Y)
    assert wide.dtype == np.float64
    assert_close(wide, reference.cdist(X.astype(np.float32), Y), depth=8)
    k = km.Laplace(1.0)
    assert k(X, Y.astype(np.float32)).dtype == np.float64
    assert k.matmul(X.astype(np.float32), None, np.ones(7)).dtype == np.float64
    assert km.cdist(X, Y, "cityblock", w=np.ones(5, np.float32)).dtype == np.float64
