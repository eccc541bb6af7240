"""``kernmantle.compat.pykeops`` on CUDA tensors in float32, against dense arrays of torch in float64."""

from __future__ import annotations

import math

import pytest
import torch

from kernmantle.compat.pykeops.torch import (
    Genred,
    KernelSolve,
    LazyTensor,
    Pm,
    Vi,
    Vj,
    cluster,
    generic_argkmin,
    generic_logsumexp,
    generic_sum,
)
from kernmantle.testing import assert_close

from ..integration import test_compat_pykeops as exactly

pytestmark = pytest.mark.cuda
M, N, D = 130, 333, 3


def points(rows, columns, seed):
    """Numbers between -1 and 1 that float32 holds, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(rows, columns, generator=generator) - 1).double()


def on_gpu(exact):
    return exact.float().cuda()


X, Y, B = points(M, D, 0), points(N, D, 1), points(N, 2, 2)
SQUARES = (X[:, None] - Y).square().sum(-1)


def entries():
    return (-Vi(on_gpu(X)).sqdist(Vj(on_gpu(Y)))).exp()


@pytest.mark.parametrize("name", exactly.FORMULAS)
def test_every_operation(name, monkeypatch):
    monkeypatch.setattr(exactly, "M", M)
    monkeypatch.setattr(exactly, "N", N)
    lazy, exact = exactly.FORMULAS[name]
    e = lazy(LazyTensor(on_gpu(X)[:, None]), LazyTensor(on_gpu(Y)[None]))
    expected = exact(X[:, None], Y[None]).double()
    expected = expected.expand(M, N, expected.shape[-1])
    for axis in (0, 1):
        found = e.sum(dim=axis)
        assert found.is_cuda
        assert found.dtype == torch.float32
        assert_close(found, expected.sum(axis), depth=N, magnitude=expected.abs().sum(axis))
        assert_close(e.max(dim=axis), expected.amax(axis), depth=64)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", [name for name in exactly.KERNELS if name != "over i"])
def test_every_reduction(name, axis):
    lazy, exact = exactly.KERNELS[name]
    e, k = lazy(LazyTensor(on_gpu(X)[:, None]), LazyTensor(on_gpu(Y)[None])), exact(X[:, None], Y[None])
    assert_close(e.sum(axis=axis), k.sum(axis), depth=N, magnitude=k.abs().sum(axis))
    assert_close(e.min(axis=axis), k.amin(axis), depth=64)
    assert_close(e.logsumexp(dim=axis), k.logsumexp(axis), depth=N)
    values, places = e.Kmin_argKmin(2, dim=axis)
    expected = k.topk(2, axis, largest=False).values.movedim(axis, -2)
    assert_close(values, expected.squeeze(-1) if k.shape[-1] == 1 else expected, depth=64)
    assert places.is_cuda
    assert torch.equal(e.argKmin(2, dim=axis), places)
    assert_close(e.max_argmax(dim=axis)[0], k.amax(axis), depth=64)


def test_products_and_their_gradients():
    x, b = on_gpu(X).requires_grad_(), on_gpu(B).requires_grad_()
    scale = torch.tensor([1.5], device="cuda", requires_grad=True)
    found = (-(Pm(scale) * Vi(x).sqdist(Vj(on_gpu(Y))))).exp() @ b
    slopes = torch.autograd.grad(found.square().sum(), [x, b, scale], create_graph=True)
    second = torch.autograd.grad(slopes[0].sum(), b)[0]
    leaves = [each.clone().requires_grad_() for each in (X, B, torch.tensor([1.5]).double())]
    exact = (-leaves[2] * (leaves[0][:, None] - Y).square().sum(-1)).exp() @ leaves[1]
    expected = torch.autograd.grad(exact.square().sum(), leaves, create_graph=True)
    assert_close(found, exact, depth=N)
    for mine, theirs in zip(slopes, expected, strict=True):
        assert_close(mine, theirs, depth=N * M)
    assert_close(second, torch.autograd.grad(expected[0].sum(), leaves[1])[0], depth=N * M)


def test_formulas_as_text():
    given = [on_gpu(each) for each in (X, Y, B)]
    kernel = (-SQUARES).exp()
    text = "Exp(-SqDist(x, y)) * b"
    variables = [f"x = Vi({D})", f"y = Vj({D})", "b = Vj(2)"]
    assert_close(Genred(text, variables, axis=1)(*given), kernel @ B, depth=N)
    assert_close(generic_sum(text, "a = Vi(2)", *variables)(*given), kernel @ B, depth=N)
    logs = generic_logsumexp("-SqDist(x, y)", "a = Vi(1)", *variables[:2])(*given[:2])
    assert_close(logs[:, 0], (-SQUARES).logsumexp(1), depth=N)
    places = generic_argkmin("SqDist(x, y)", "a = Vi(4)", *variables[:2])(*given[:2])
    assert_close(SQUARES.gather(1, places.cpu().long()), SQUARES.topk(4, largest=False).values, depth=64)


def test_batches():
    x, y, b = points(4 * M, D, 3).view(4, M, D), points(4 * N, D, 4).view(4, N, D), points(4 * N, 1, 5).view(4, N, 1)
    gaps = LazyTensor(on_gpu(x)[:, :, None]) - LazyTensor(on_gpu(y)[:, None])
    found = ((-(gaps**2).sum(-1)).exp() * LazyTensor(on_gpu(b)[:, None])).sum(dim=2)
    exact = (-(x[:, :, None] - y[:, None]).square().sum(-1)).exp() @ b
    assert_close(found, exact, depth=N)


def test_ranges():
    r_i = torch.tensor([[0, 50], [50, M]])
    r_j = torch.tensor([[0, 100], [100, 200], [200, N]])
    keep = torch.tensor([[True, False, True], [False, True, False]])
    mask = torch.zeros(M, N, dtype=torch.bool)
    for i, j in keep.nonzero().tolist():
        mask[slice(*r_i[i].tolist()), slice(*r_j[j].tolist())] = True
    e, kernel = entries(), (-SQUARES).exp() * mask
    e.ranges = cluster.from_matrix(*(each.cuda() for each in (r_i, r_j, keep)))
    assert_close(e @ on_gpu(B), kernel @ B, depth=N)
    assert_close(e.sum(dim=0)[:, 0], kernel.sum(0), depth=N)
    assert_close(e.logsumexp(dim=1)[:, 0], (-SQUARES).exp().masked_fill(~mask, -math.inf).logsumexp(1), depth=N)


def test_weights_of_a_softmax():
    e = -Vi(on_gpu(X)).sqdist(Vj(on_gpu(Y)))
    assert_close(e.sumsoftmaxweight(Vj(on_gpu(B)), dim=1), (-SQUARES).softmax(1) @ B, depth=N)


def test_systems():
    solve = KernelSolve(
        "Exp(-G * SqDist(x, y)) * b", [f"x = Vi({D})", f"y = Vj({D})", "b = Vj(1)", "G = Pm(1)"], "b", axis=1
    )
    x, b = on_gpu(X), on_gpu(X[:, :1].exp())
    found = solve(x, x, b, torch.tensor([4.0], device="cuda"), alpha=0.5)
    matrix = (-4 * (X[:, None] - X).square().sum(-1)).exp() + 0.5 * torch.eye(M).double()
    assert_close((matrix @ found.double().cpu()), X[:, :1].exp(), dtype="float32", depth=M * M)
    assert found.is_cuda
