"""Random lambdas, twenty to a contraction: values by Python numbers, gradients by differences, then backends."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import kernmantle as km
from kernmantle.ir.ops import evaluate
from kernmantle.testing import assert_close
from kernmantle.testing.strategies import as_lambda, expressions

NAMES = ("a", "b", "p")
REDUCTIONS = ("sum", "max", "logsumexp", "min")
GROUP = 20
UNSHRUNK = settings(max_examples=4, phases=(Phase.explicit, Phase.generate))


def groups(kind, depth=3):
    return st.lists(expressions(NAMES, depth=depth, kind=kind), min_size=GROUP, max_size=GROUP)


def contraction_of(nodes, equation="mk,nk->mn"):
    functions = [as_lambda(node, NAMES) for node in nodes]
    kinds = list(itertools.islice(itertools.cycle(REDUCTIONS), len(nodes)))
    return km.Contraction(equation, lambda a, b, p: tuple(f(a, b, p) for f in functions), reduce=kinds), kinds


def operands(m, n, k, seed=0, device="cpu"):
    random = np.random.default_rng(seed)
    return [torch.tensor(random.uniform(-2, 2, (rows, k)), device=device) for rows in (m, n)]


def pointwise(node, kind, x, y, p):
    """One entry of the result by Python numbers alone."""
    terms = [float(evaluate([node], {"a": a, "b": b, "p": p})[0]) for a, b in zip(x, y, strict=True)]
    if kind == "logsumexp":
        top = max(terms)
        return top + math.log(math.fsum(math.exp(term - top) for term in terms))
    return {"sum": math.fsum, "max": max, "min": min}[kind](terms)


@UNSHRUNK
@given(groups("any"))
def test_values_of_the_reference(nodes):
    contraction, kinds = contraction_of(nodes)
    x, y = operands(2, 3, 4)
    with km.config(backend="reference"):
        found = contraction(x, y, p=0.7)
    for node, kind, result in zip(nodes, kinds, found, strict=True):
        wanted = [[pointwise(node, kind, row, column, 0.7) for column in y.tolist()] for row in x.tolist()]
        assert_close(result, np.array(wanted), depth=4, magnitude=8.0)


@UNSHRUNK
@given(groups("smooth"))
def test_gradients_of_the_reference(nodes):
    contraction, _ = contraction_of(nodes)
    x, y = (value.requires_grad_() for value in operands(2, 2, 3))
    p = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    weights = torch.linspace(-1, 1, GROUP, dtype=torch.float64)

    def function(x, y, p):
        return sum(weight * result for weight, result in zip(weights, contraction(x, y, p=p), strict=True))

    with km.config(backend="reference"):
        assert gradcheck(function, (x, y, p), fast_mode=True, check_forward_ad=True, rtol=1e-3, atol=1e-4)


@settings(UNSHRUNK, max_examples=3)
@given(groups("smooth", depth=2))
def test_second_gradients_of_the_reference(nodes):
    contraction, _ = contraction_of(nodes)
    x, y = (value.requires_grad_() for value in operands(2, 2, 3))
    p = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    with km.config(backend="reference"):
        assert gradgradcheck(
            lambda x, y, p: sum(contraction(x, y, p=p)), (x, y, p), fast_mode=True, rtol=1e-3, atol=1e-3
        )


@pytest.mark.slow
def test_values_on_every_backend(backend, device):
    if backend == "reference":
        return

    @UNSHRUNK
    @given(groups("any"))
    def agree(nodes):
        contraction, _ = contraction_of(nodes)
        x, y = operands(5, 9, 17, device=device)
        found = contraction(x, y, p=0.7)
        narrow = contraction(x.float(), y.float(), p=0.7)
        assert len(found) == len(narrow) == GROUP
        with km.config(backend="reference"):
            wanted = contraction(x.cpu(), y.cpu(), p=0.7)
        for node, result, want in zip(nodes, found, wanted, strict=True):
            assert_close(result, want, depth=17, magnitude=32.0), node

    agree()


@pytest.mark.slow
def test_gradients_on_every_backend(backend, device):
    if backend == "reference":
        return

    @UNSHRUNK
    @given(groups("smooth"))
    def agree(nodes):
        contraction, _ = contraction_of(nodes)
        leaves = [value.requires_grad_() for value in operands(5, 9, 17, device=device)]
        weights = torch.linspace(-1, 1, GROUP, dtype=torch.float64, device=device)

        def gradients(leaves, weights):
            total = sum(
                (weight * result).sum() for weight, result in zip(weights, contraction(*leaves, p=0.7), strict=True)
            )
            return torch.autograd.grad(total, leaves)

        found = gradients(leaves, weights)
        with km.config(backend="reference"):
            wanted = gradients([leaf.detach().cpu().requires_grad_() for leaf in leaves], weights.cpu())
        for result, want in zip(found, wanted, strict=True):
            assert_close(result, want, depth=17 * GROUP, magnitude=32.0)

    agree()


@pytest.mark.parametrize("kind", ["smooth", "any"])
def test_the_generator_makes_what_it_promises(kind):
    seen = []

    @settings(UNSHRUNK, max_examples=10)
    @given(groups(kind))
    def gather(nodes):
        seen.extend(nodes)

    gather()
    assert len(seen) >= 200
    assert len({id(node) for node in seen}) > 100
