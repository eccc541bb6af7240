"""Lambdas whose expressions are hundreds of operations deep, or name themselves twice at every step."""

from functools import reduce

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

X, Y = (torch.linspace(-0.4, 0.5, size, dtype=torch.float64).reshape(-1, 3) for size in (12, 15))
DEEP = {
    "a sum": ("sum", lambda p, q: reduce(lambda s, i: s + abs(p - q) * i, range(500), p)),
    "a product": ("sum", lambda p, q: reduce(lambda s, i: s * (1 + (p - q) / (i + 9)), range(500), p)),
    "quotients": ("sum", lambda p, q: reduce(lambda s, i: s / (2 + p - q), range(500), p)),
    "a sum of both sides": ("logsumexp", lambda p, q: reduce(lambda s, i: s + (p - q) / (1 + i), range(500), p)),
}
DOUBLED = {
    "squares": ("sum", lambda p, q: reduce(lambda s, _: s * s, range(40), 1 - abs(p - q) * 1e-9)),
    "products": ("sum", lambda p, q: reduce(lambda s, _: s * (s + q), range(40), p)),
    "sums": ("logsumexp", lambda p, q: reduce(lambda s, _: s + s * 0.5, range(40), (p - q) * 1e-6)),
}
REDUCED = {"sum": torch.sum, "logsumexp": torch.logsumexp}


@pytest.mark.parametrize("name", [*DEEP, *DOUBLED])
def test_values_and_gradients(name):
    how, function = (DEEP | DOUBLED)[name]
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    found = km.contract("mk,nk->mn", function, x, y, reduce=how)
    wanted = REDUCED[how](function(x[:, None], y[None]), -1)
    assert_close(found, wanted, depth=500)
    if name in ("a product", "a sum of both sides"):  # whose gradients take long to compile
        return
    gradients, expected = (torch.autograd.grad(each.sum(), (x, y)) for each in (found, wanted))
    for mine, theirs in zip(gradients, expected, strict=True):
        assert_close(mine, theirs, depth=500, magnitude=theirs.abs().max())
