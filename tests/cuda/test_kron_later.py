"""Passes of Kronecker products that prepare their factors while the pass ahead of them still runs: never older ones."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kron.matmul import multiply
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS
from kernmantle.torch_ops.info import RunInfo

from ..kron_oracle import oracle, terms

pytestmark = pytest.mark.cuda
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
CALLS = 24
# Rows, factors and type of products of at least two passes of ours, of every kind behind another one.
PRODUCTS = [
    (3, (5, 29, 19, 7), F16), (32, (3, 4, 2, 2, 24, 52, 2), F16), (5, (4, 9, 6, 170, 26), F16),
    (22, (67, 7, 14, 17, 4), F32), (4, (3, 3, 3, 76, 35), F16), (10, (27, 2, 2, 2, 2, 36, 58), F32),
    (9, (12, 11, 22, 10, 2, 18), F32),
    (4, (2, 4, 4, 8, 2, 24, 2, 5), BF16), (40, (64, 64, 64), F32), (12, (128, 128, 128), F32), (25, (8,) * 6, F64),
    (1, (7, 63, 11, 28, 4), F16),
]  # fmt: skip


def _named(product) -> str:
    rows, sizes, dtype = product
    return f"{rows}_{'x'.join(map(str, sizes))}_{str(dtype)[6:]}"


def _arrays(rows, sizes, dtype):
    """x, factors, and for each call factors of its own."""
    make = torch.Generator("cuda").manual_seed(len(sizes))
    total = 1
    for size in sizes:
        total *= size
    x = torch.randn(rows, total, generator=make, device="cuda").to(dtype)
    owns = [torch.randn(CALLS, p, p, generator=make, device="cuda").div(p**0.5).to(dtype) for p in sizes]
    return x, [own[0].clone() for own in owns], owns


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("product", PRODUCTS, ids=_named)
def test_factors_that_change_between_calls_are_never_read_before(product, captured):
    x, factors, owns = _arrays(*product)
    outs = [torch.empty_like(x) for _ in range(CALLS)]

    def calls():
        for call, out in enumerate(outs):
            for factor, own in zip(factors, owns, strict=True):
                factor.copy_(own[call])
            km.kron_matmul(x, factors, out=out)

    if captured:
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            calls()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            calls()
        for out in outs:
            out.zero_()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        one, alone = torch.cuda.CUDAGraph(), torch.empty_like(x)
        with torch.cuda.graph(one):
            km.kron_matmul(x, factors, out=alone)
    else:
        calls()
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # so that all launches are queued
        calls()
    torch.cuda.synchronize()
    for call, out in enumerate(outs):
        for factor, own in zip(factors, owns, strict=True):
            factor.copy_(own[call])
        torch.cuda.synchronize()
        if captured:  # by the plan of graphs
            one.replay()
        else:
            alone = km.kron_matmul(x, factors)
        torch.cuda.synchronize()
        assert torch.equal(out, alone), call


@pytest.mark.parametrize("product", PRODUCTS, ids=_named)
def test_factors_of_a_product_ahead_are_never_read_before(product):
    x, _, owns = _arrays(*product)
    ones = [torch.eye(own.shape[-1], dtype=own.dtype, device="cuda") for own in owns]
    torch.cuda._sleep(20_000_000)
    outs = []
    for call in range(CALLS):
        made = [km.kron_matmul(one, [own[call]]) for one, own in zip(ones, owns, strict=True)]
        outs.append(km.kron_matmul(x, made))
        del made  # its memory is that of later ones
    torch.cuda.synchronize()
    for call, out in enumerate(outs):
        exact = [km.kron_matmul(one, [own[call]]) for one, own in zip(ones, owns, strict=True)]
        torch.cuda.synchronize()
        assert torch.equal(out, km.kron_matmul(x, exact)), call


@pytest.mark.parametrize("product", PRODUCTS, ids=_named)
def test_products_of_several_passes_of_ours_are_right(product):
    x, factors, _ = _arrays(*product)
    info = RunInfo()
    found = multiply(x, factors, info=info)
    assert " then " in info.route
    exact, magnitude = oracle(x, factors), terms(x, factors)
    if x.dtype in (F16, BF16):
        magnitude = DEVIATIONS * (2 * len(factors)) ** 0.5 * magnitude
    assert_close(found.cpu(), exact, dtype=x.dtype, depth=sum(product[1]), magnitude=magnitude)


GRADIENTS = [
    (40, (64, 64, 64), F32), (300, (8,) * 5, F32), (20, (16,) * 4, BF16), (33, (14, 12, 8, 9), F32),
    (9, (24, 30, 7, 5), F16), (64, (32, 32, 32), F32), (3000, (12, 13), F32), (50, (5,) * 5, F16),
    (1, (4, 14, 169), F32), (58, (2, 14, 107), BF16), (2174, (199, 4), BF16), (404, (5, 30, 3, 3, 2, 3), BF16),
    (579, (45, 9, 2), BF16), (6, (30, 2, 12, 7, 69), F16), (4, (18, 4, 12, 89, 5), F32), (200, (14, 8, 73), F32),
]  # fmt: skip


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("product", GRADIENTS, ids=_named)
def test_gradients_by_factors_that_change_between_calls_are_those_of_each(product, captured):
    x, factors, owns = _arrays(*product)
    grad = torch.randn(x.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(x.dtype)
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]

    def step():
        return torch.autograd.grad(km.kron_matmul(x, factors), leaves, grad)

    def change(call):
        with torch.no_grad():
            for factor, own in zip(factors, owns, strict=True):
                factor.copy_(own[call])

    def steps():
        found = []
        for call in range(8):
            change(call)
            found.append(step())
        return found

    def graph_of(call):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()
        return graph, found

    steps()
    torch.cuda.synchronize()
    if captured:
        graph, several = graph_of(steps)
        graph.replay()
        one, alone = graph_of(step)
    else:
        torch.cuda._sleep(20_000_000)  # so that all launches are queued
        several = steps()
    torch.cuda.synchronize()
    for call, found in enumerate(several):
        change(call)
        torch.cuda.synchronize()
        if captured:
            one.replay()
        else:
            alone = step()
        torch.cuda.synchronize()
        for own, wanted in zip(found, alone, strict=True):
            assert torch.equal(own, wanted), (call, own.shape)


@pytest.mark.parametrize("product", GRADIENTS, ids=_named)
def test_gradients_in_a_graph_are_those_of_float64(product):
    x, factors, _ = _arrays(*product)
    grad = torch.randn(x.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(x.dtype)
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]

    def step():
        return torch.autograd.grad(km.kron_matmul(x, factors), leaves, grad)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for call in range(3):
        with torch.no_grad():
            x.copy_(x.roll(call, 0))
        graph.replay()
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = torch.autograd.grad(km.kron_matmul(wide[0], wide[1:]), wide, grad.double())
    rounds = DEVIATIONS * (2 * len(factors)) ** 0.5 if x.dtype in (F16, BF16) else 1
    for own, wanted in zip(found, exact, strict=True):
        assert_close(own, wanted, depth=x.numel(), magnitude=rounds * wanted.square().mean().sqrt())
