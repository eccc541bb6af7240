"""Functions, kernels and contractions as metrics of ``cdist`` and ``pdist``."""

import numpy as np
import pytest
import scipy.spatial.distance as scipys
import torch

import kernmantle as km
from kernmantle.errors import ParameterError, TraceError
from kernmantle.testing import assert_close

A, B = np.random.default_rng(0).normal(size=(6, 3)), np.random.default_rng(1).normal(size=(5, 3))


def bounded(a, b):
    return abs(a - b) / (1 + abs(a - b))


def test_a_function_is_compiled_and_summed_over_the_columns():
    gaps = np.abs(A[:, None] - B)
    assert_close(km.cdist(A, B, bounded), (gaps / (1 + gaps)).sum(-1), depth=3)
    own = km.cdist(torch.from_numpy(A).requires_grad_(), None, bounded)
    assert own.requires_grad
    assert_close(own.detach(), km.cdist(A, A, bounded), depth=3)
    out = np.empty((6, 5))
    assert km.cdist(A, B, metric=bounded, out=out) is out
    assert_close(out, km.cdist(A, B, bounded), depth=1)


def test_kernels_and_contractions_that_are_distances():
    root = km.Kernel(lambda a, b: (a - b) ** 2, km.sqrt)
    assert_close(km.cdist(A, B, root), scipys.cdist(A, B), depth=8)
    form = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    assert_close(km.cdist(A, B, form), scipys.cdist(A, B, "cityblock"), depth=3)


def test_condensed_distances_of_a_function():
    assert_close(km.pdist(A, bounded), scipys.squareform(km.cdist(A, metric=bounded), checks=False), depth=1)
    out = np.empty(15)
    assert km.pdist(A, bounded, out=out) is out
    assert_close(out, km.pdist(A, bounded), depth=1)
    assert_close(km.pdist(A, scipys.canberra), scipys.pdist(A, "canberra"), depth=3)


@pytest.mark.parametrize("name", ["canberra", "cityblock", "euclidean", "cosine"])
def test_functions_of_scipy_are_their_names(name):
    assert_close(km.cdist(A, B, getattr(scipys, name)), scipys.cdist(A, B, name), depth=8)


def test_what_is_no_distance_is_refused():
    with pytest.raises(TraceError, match="one entry of each row"):
        km.cdist(A, B, lambda a, b: np.abs(a - b).sum())
    with pytest.raises(ParameterError, match="similarity"):
        km.cdist(A, B, km.Gaussian(1.0))
    with pytest.raises(ParameterError, match="takes no w"):
        km.cdist(A, B, bounded, w=np.ones(3))
    with pytest.raises(ParameterError, match="takes no root"):
        km.cdist(A, B, bounded, root=False)
    with pytest.raises(ParameterError, match="not 3"):
        km.cdist(A, B, 3)
