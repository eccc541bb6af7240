"""What cdist and pdist refuse, and what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle.errors import DeviceError, DtypeError, GradientError, OutputError, ParameterError, ShapeError
from kernmantle.pairwise.inputs import Request

X, Y = torch.zeros(4, 3), torch.ones(5, 3)
TRACKED = torch.zeros(4, 3, requires_grad=True)
SQUARE = torch.zeros(4, 4)


def read_only():
    array = np.zeros((4, 5))
    array.flags.writeable = False
    return array


METRIC = [
    ({"metric": "euclidian"}, ParameterError, "unknown metric 'euclidian'; did you mean 'euclidean'"),
    ({"metric": "chebishev"}, ParameterError, "did you mean 'chebyshev'"),
    ({"metric": "xyzzy"}, ParameterError, "unknown metric 'xyzzy'; there are braycurtis, canberra"),
    ({"metric": 3}, ParameterError, "metric must be a name, a function, .*, not 3; a power is p="),
    ({"p": -1}, ParameterError, "p must be at least 0, got -1"),
    ({"p": math.nan}, ParameterError, "p must be at least 0, got nan"),
    ({"p": torch.tensor([1.0, -1.0])}, ParameterError, "p must be at least 0 everywhere"),
    ({"p": torch.tensor([1.0, math.nan])}, ParameterError, "p must be at least 0 everywhere"),
    ({"p": "2"}, ParameterError, "p must be a number or an array of numbers, got .2."),
    ({"p": torch.tensor([True])}, ParameterError, "p has dtype torch.bool"),
    ({"p": 2, "metric": "cosine"}, ParameterError, "metric 'cosine' takes no p; p is for minkowski"),
    ({"p": torch.ones(2), "metric": "cosine"}, ParameterError, "metric 'cosine' takes no p; p is for minkowski"),
    ({"p": 1, "metric": "euclidean"}, ParameterError, "metric 'euclidean' takes no p"),
    ({"p": torch.ones(2), "w": torch.ones(3, 3)}, ShapeError, "batch axes do not broadcast"),
    ({"w": torch.ones(3), "metric": "seuclidean"}, ParameterError, "metric 'seuclidean' takes no w; w is for bray"),
    ({"w": torch.ones(3), "metric": "jensenshannon"}, ParameterError, "metric 'jensenshannon' takes no w"),
    ({"V": torch.ones(3)}, ParameterError, "metric 'minkowski' takes no V; V is for seuclidean"),
    ({"VI": torch.eye(3), "metric": "seuclidean"}, ParameterError, "takes no VI; VI is for mahalanobis"),
    ({"base": 2}, ParameterError, "takes no base; base is for jensenshannon"),
    ({"metric": "seuclidean", "V": torch.ones(4)}, ShapeError, r"V must have shape \(3,\) or.*V has shape \(4,\)"),
    ({"metric": "mahalanobis", "VI": torch.ones(3)}, ShapeError, r"VI must have shape \(3, 3\)"),
    ({"metric": "mahalanobis", "VI": torch.ones(3, 2)}, ShapeError, r"VI must have shape \(3, 3\)"),
    ({"metric": "jensenshannon", "base": 1}, ParameterError, "base must be above 1, got 1"),
    ({"metric": "jensenshannon", "base": 0}, ParameterError, "base must be above 1"),
    ({"metric": "jensenshannon", "base": -2.0}, ParameterError, "base must be above 1"),
    ({"metric": "jensenshannon", "base": torch.tensor([2.0, 1.0])}, ParameterError, "base must be above 1"),
    ({"w": [1.0, [1.0], 1.0]}, DtypeError, "w is a list that cannot be converted to an array"),
    ({"w": "ones"}, DtypeError, "w must be a torch tensor.*not str"),
    ({"w": [1.0, -1.0, 1.0]}, ParameterError, "w must not be negative, it has -1.0"),
    ({"w": 1.0}, DtypeError, "w is a number; pass an array"),
    ({"w": torch.ones(4)}, ShapeError, r"w must have shape \(3,\) or a batch of it: x has shape \(4, 3\)"),
    ({"w": torch.ones(3, device="meta")}, DeviceError, "x is on cpu but w is on meta"),
    ({"precision": "double"}, ParameterError, "precision must be one of"),
]

ROWS = [
    ((X, torch.zeros(5, 4)), ShapeError, r"the same number of columns: x has shape \(4, 3\), y has shape \(5, 4\)"),
    ((X, Y.to(torch.complex64)), DtypeError, "y is complex64; rows are of real numbers"),
    ((X, Y.to("meta")), DeviceError, "x is on cpu but y is on meta"),
    ((X[0], Y), ShapeError, r"x must have rows and columns, it has shape \(3,\)"),
    ((X, Y[0]), ShapeError, r"y must have rows and columns, it has shape \(3,\)"),
    ((torch.zeros(2, 4, 3), torch.zeros(3, 5, 3)), ShapeError, "batch axes do not broadcast"),
    (([[1.0], [1.0, 2.0]], Y), DtypeError, "x is a list that cannot be converted to an array"),
    ((X, [Y[0], Y[1]]), DtypeError, r"y is a list of tensors; join them with torch.stack"),
    ((X, [["a"]]), DtypeError, "numbers or booleans"),
    ((1.0, Y), DtypeError, "x is a number"),
    ((X.to_sparse(), Y), DtypeError, "x has layout torch.sparse_coo"),
    ((X.to(torch.complex64), Y.to(torch.complex64)), DtypeError, "x is complex64; rows are of real numbers"),
    ((np.array([["a"]]),), DtypeError, "numbers or booleans"),
]

OUT = [
    ((X, Y), {"out": torch.empty(5, 4)}, OutputError, r"out has shape \(5, 4\), the result has \(4, 5\)"),
    ((X, Y), {"out": torch.empty(4, 5).double()}, OutputError, "out has dtype torch.float64"),
    (
        (X.bool(), Y.bool()),
        {"out": torch.empty(4, 5).int(), "metric": "dice"},
        OutputError,
        "out has dtype torch.int32",
    ),
    ((SQUARE,), {"out": SQUARE}, OutputError, "out overlaps"),
    ((SQUARE,), {"out": SQUARE, "metric": "cosine"}, OutputError, "out overlaps"),
    ((SQUARE,), {"out": SQUARE, "metric": "yule"}, OutputError, "out overlaps"),
    ((X, Y), {"out": torch.empty(1, 5).expand(4, 5)}, OutputError, "share memory"),
    ((X, Y), {"out": torch.empty(4, 5, requires_grad=True)}, GradientError, "out requires a gradient"),
    ((TRACKED, Y), {"out": torch.empty(4, 5)}, GradientError, "out= cannot be combined with a gradient"),
    ((TRACKED, Y), {"out": torch.empty(4, 5), "metric": "cosine"}, GradientError, "out= cannot be combined"),
    ((X, Y), {"out": [0.0]}, OutputError, "out must be a writable"),
    ((X.double().numpy(), Y.double().numpy()), {"out": read_only()}, OutputError, "read-only"),
]


@pytest.mark.parametrize(("options", "error", "message"), METRIC)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        km.cdist(X, Y, **options)
    with pytest.raises(error, match=message):
        km.pdist(X, **options)


@pytest.mark.parametrize("metric", ["minkowski", "cosine"])
@pytest.mark.parametrize(("arrays", "error", "message"), ROWS)
def test_rows(arrays, error, message, metric):
    with pytest.raises(error, match=message):
        km.cdist(*arrays, metric=metric)


@pytest.mark.parametrize(("arrays", "options", "error", "message"), OUT)
def test_out(arrays, options, error, message):
    with pytest.raises(error, match=message):
        km.cdist(*arrays, **options)


def test_out_of_pdist():
    for out, error in ((torch.empty(5), OutputError), (torch.empty(6).double(), OutputError), (SQUARE[0], OutputError)):
        with pytest.raises(error):
            km.pdist(X if out.dim() else SQUARE, out=out)
    with pytest.raises(OutputError, match="overlaps"):
        km.pdist(SQUARE, out=SQUARE.flatten()[:6])
    with pytest.raises(GradientError):
        km.pdist(TRACKED, out=torch.empty(6))


def test_too_few_rows_for_a_covariance():
    with pytest.raises(ParameterError, match="covariance of 2 rows with 3 columns is singular: pass VI="):
        km.cdist(X[:1], Y[:1], metric="mahalanobis")


def test_nothing_is_written_before_an_error():
    out = torch.full((4, 5), 7.0)
    with pytest.raises(GradientError):
        km.cdist(TRACKED, Y, out=out)
    assert bool((out == 7).all())


def test_a_gradient_that_numpy_would_lose():
    with pytest.raises(GradientError, match="lose the gradient of y"):
        km.cdist(X.numpy(), Y.clone().requires_grad_())


@pytest.mark.parametrize(
    "options", [{"out": torch.empty(5, 4)}, {"precision": "double"}], ids=lambda given: next(iter(given))
)
@pytest.mark.parametrize("metric", ["cosine", "mahalanobis", "kl"])
def test_the_result_is_checked_before_rows_are_prepared(monkeypatch, metric, options):
    monkeypatch.setattr(Request, "prepared", lambda _: pytest.fail("prepared first"))
    with pytest.raises((OutputError, ParameterError)):
        km.cdist(X, Y, metric=metric, **options)
    options = {"out": torch.empty(3)} if "out" in options else options
    with pytest.raises((OutputError, ParameterError)):
        km.pdist(X, metric=metric, **options)
