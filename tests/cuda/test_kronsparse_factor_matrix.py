"""The matrix of two factors, and gradients of both from its gradient in clusters, against float64."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import factor_matrix
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = (torch.bfloat16, torch.float16)
CHAINS = {
    "vision": ((6, 64, 64, 1), (1, 768, 192, 2)), "words": ((16, 64, 64, 1), (1, 200, 256, 4)),
    "single": ((3, 64, 64, 1), (1, 104, 192, 1)), "wide": ((2, 128, 64, 1), (1, 36, 64, 4)),
    "tiles": ((1, 64, 64, 1), (1, 1100, 32, 2)),
}  # fmt: skip
DEEP = {"deep": ((3, 64, 128, 1), (1, 100, 96, 2)), **CHAINS}


def operands(chain, batch, dtype):
    torch.manual_seed(0)
    first, second = ((torch.randn(own, device="cuda") / math.sqrt(own[2])).to(dtype) for own in chain)
    (a, _, c, _), (_, b, _, d) = chain
    x, bias, grad = (
        torch.randn(shape, device="cuda").to(dtype) for shape in ((batch, a * c), (b * d,), (b * d, a * c))
    )
    return x, first, second, bias, grad


def matrix_of(first, second):
    """Entries ((j, l), (o, c)) of the matrix in the type of its factors."""
    blocks, wide, depth, _ = first.shape
    _, b, _, l = second.shape
    return torch.einsum(
        "jorl,orlc->jloc", second.view(b, blocks, wide // l, l), first.view(blocks, wide // l, l, depth)
    ).reshape(b * l, blocks * depth)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", DEEP.values(), ids=DEEP)
def test_matrices_are_made(chain, dtype) -> None:
    _, first, second, _, grad = operands(chain, 1, dtype)
    made = torch.full_like(grad, math.nan)
    bound = factor_matrix.bind_matrix(first, second, made)
    assert bound is not None
    bound.run((second, first, made, None))
    terms = matrix_of(first.double().abs(), second.double().abs())
    assert_close(made, matrix_of(first.double(), second.double()), depth=first.shape[1], magnitude=terms)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True)], ids=str)
def test_gradients_of_factors_are_taken_from_that_of_their_matrix(chain, dtype, asked) -> None:
    for batch in (0, 1, 700):
        _, first, second, bias, grad = operands(chain, 1, dtype)
        rows = torch.randn(batch, bias.numel(), device="cuda").to(dtype) if batch else None
        sums = torch.full_like(bias, math.nan)
        found = [
            torch.full_like(own, math.nan) if wanted else None
            for own, wanted in zip((first, second), asked, strict=True)
        ]
        shaped = grad.view(1, *grad.shape, 1)
        bound = factor_matrix.bind_matrix_gradient(first, second, shaped, *found, None if rows is None else rows[None])
        assert bound is not None
        bound(first, second, shaped, *found, None if rows is None else (rows, sums))
        if rows is not None:
            assert_close(sums, rows.double().sum(0), depth=batch, magnitude=rows.double().abs().sum(0))
        for own, wanted, terms, depth in zip(
            found, exact(first.double(), second.double(), grad.double()),
            exact(first.double().abs(), second.double().abs(), grad.double().abs()), (second.shape[1], 64), strict=True,
        ):  # fmt: skip
            if own is not None:
                assert_close(own, wanted, depth=depth, magnitude=terms)


def exact(first, second, grad):
    """The gradients of the first factor and of the second."""
    leaves = [own.detach().requires_grad_() for own in (first, second)]
    return torch.autograd.grad(matrix_of(*leaves), leaves, grad)


def test_what_does_not_fit_takes_other_kernels() -> None:
    _, first, second, bias, grad = operands(CHAINS["vision"], 40, torch.bfloat16)
    shaped, rows = grad.view(1, *grad.shape, 1), torch.randn(5, bias.numel() + 1, device="cuda").bfloat16()
    assert factor_matrix.bind_matrix(first, second, shaped) is not None
    assert factor_matrix.bind_matrix(first, second.mT.contiguous().mT, shaped) is None
    assert factor_matrix.bind_matrix(first.float(), second.float(), shaped.float()) is None
    assert factor_matrix.bind_matrix_gradient(first, second, shaped, first, second, rows[None, :, :-1]) is None
    deep = [torch.empty(own, device="cuda", dtype=torch.bfloat16) for own in DEEP["deep"]]
    assert (
        factor_matrix.bind_matrix_gradient(*deep, torch.empty(1, 200, 384, 1, device="cuda").bfloat16(), *deep, None)
        is None
    )


@pytest.mark.parametrize("batch", [40, 6000])
def test_layers_take_both(batch, monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "matrix")
    called = []
    for name in ("bind_matrix", "bind_matrix_gradient"):
        own = getattr(factor_matrix, name)

        def noted(*given, own=own, name=name):
            found = own(*given)
            called.extend([name] * (found is not None))
            return found

        monkeypatch.setattr(factor_matrix, name, noted)
    layer = km.KSLinear(384, 1536, CHAINS["vision"], device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2, batch // 2, 384, device="cuda").bfloat16().requires_grad_()
    grad = torch.randn(2, batch // 2, 1536, device="cuda").bfloat16()
    value = layer(x)
    found = torch.autograd.grad(value, [x, *layer.weights, layer.bias], grad)
    # What launches on addresses and what is left for other calls have a launch each.
    assert called == ["bind_matrix", "bind_matrix_gradient", "bind_matrix_gradient"]
    wide = [leaf.detach().double().requires_grad_() for leaf in (x, *layer.weights, layer.bias)]
    sizes = [leaf.detach().abs().requires_grad_() for leaf in wide]
    pairs = []
    for (value, first, second, bias), slope in ((wide, grad.double()), (sizes, grad.double().abs())):
        result = value @ matrix_of(first, second).mT + bias
        pairs.append(torch.autograd.grad(result, [value, first, second, bias], slope))
    for own, wanted, terms in zip(found, *pairs, strict=True):
        assert_close(own, wanted, depth=batch + 768, magnitude=terms)
