"""Layers called again as before launch what is bound on a GPU, and still see what changed."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse.chain_autograd import chain_key
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

CHAINS = {
    "blocks": [(6, 16, 24, 1), (1, 24, 16, 6)],
    "interleaved": [(1, 40, 24, 6), (3, 8, 16, 5)],
    "narrow": [(12, 2, 2, 6), (6, 4, 4, 6)],
    "one": [(2, 33, 40, 2)],
}
SHAPES = ((), (1,), (7,), (2, 3), (130,))


def sizes(patterns):
    (a, _, c, d), final = patterns[0], patterns[-1]
    return a * c * d, final[0] * final[1] * final[3]


def layer_of(patterns, dtype, batch_last=False, algorithm="auto"):
    torch.manual_seed(0)
    layer = km.KSLinear(
        *sizes(patterns), patterns, batch_last=batch_last, algorithm=algorithm, device="cuda", dtype=dtype
    )
    return layer.eval().requires_grad_(False)


def through(layer, x, batch_last, of):
    """The product in float64 of what ``of`` gives for x and for each parameter as it is now."""
    rows = of(x.reshape(x.shape[0], -1).T if batch_last else x.reshape(-1, x.shape[-1])).double()
    for weight in layer.weights:
        a, b, c, d = weight.shape
        rows = torch.einsum("nikl,ijkl->nijl", rows.view(-1, a, c, d), of(weight).double()).reshape(-1, a * b * d)
    rows = rows + of(layer.bias).double()
    return rows.T.reshape(-1, *x.shape[1:]) if batch_last else rows.reshape(*x.shape[:-1], -1)


def check(found, layer, x, batch_last=False, final=lambda value: value):
    """Assert that a result is right; what is between factors is rounded too."""
    wanted = final(through(layer, x, batch_last, lambda value: value))
    assert found.shape == wanted.shape
    terms = len(layer.patterns) * through(layer, x, batch_last, torch.abs)
    assert_close(found, wanted, depth=layer.in_features, magnitude=terms)


def is_bound(layer, x, activation=None):
    """Return whether the launch cache has the call."""
    if isinstance(layer, km.KSLinear):
        key = chain_key(x, tuple(layer.weights), layer.bias, activation, layer._options, None, None, layer._form)
    else:
        key = chain_key(x, layer._weights, layer._bias, activation, layer._options, layer._packed)
    return key is not None and key in PLANS


@pytest.mark.parametrize("packed", [False, True], ids=["given", "packed"])
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("algorithm", ["auto", "kernel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_bound_calls(chain, dtype, algorithm, batch_last, packed):
    layer = layer_of(CHAINS[chain], dtype, batch_last, algorithm)
    size = layer.in_features
    for batch in SHAPES:
        shape = (size, *batch) if batch_last else (*batch, size)
        for _ in range(3):
            x = torch.randn(shape, device="cuda").to(dtype)
            own = layer.pack() if packed else layer
            found, route = own(x), own.info
            check(found, layer, x, batch_last)
            PLANS.clear()
            check(own(x), layer, x, batch_last)
            assert algorithm == "auto" or (torch.equal(own(x), found) and own.info == route)
            layer.weights[-1].mul_(-1)
            check(layer(x, "relu"), layer, x, batch_last, torch.relu)


def test_calls_are_bound():
    for packed in (False, True):
        layer = layer_of(CHAINS["blocks"], torch.float32, algorithm="kernel")
        layer = layer.pack() if packed else layer
        x = torch.randn(129, layer.in_features, device="cuda")
        layer(x)
        torch.cuda.synchronize()  # an image that a stream may still be writing is not taken for granted
        layer(x)
        assert is_bound(layer, x)
        assert not is_bound(layer, x.clone().requires_grad_())
        assert not is_bound(layer, torch.randn(129, layer.in_features + 1, device="cuda")[:, 1:])
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert not is_bound(layer, x)
        with km.config(backend="reference"):
            assert not is_bound(layer, x)


def test_results_are_new_arrays_and_other_streams_are_followed():
    layer = layer_of(CHAINS["interleaved"], torch.float32, algorithm="kernel")
    packed, x = layer.pack(), torch.randn(40, layer.in_features, device="cuda")
    first = packed(x)
    kept = first.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        second = packed(2 * x)
    torch.cuda.current_stream().wait_stream(stream)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)
    check(second, layer, 2 * x)


@pytest.mark.parametrize("calls", [1, 2])
def test_in_a_graph(calls):
    """What one call packed is read by the graph: none packs anew in each replay."""
    layer = layer_of(CHAINS["blocks"], torch.bfloat16, algorithm="kernel")
    packed, x = layer.pack(), torch.randn(400, layer.in_features, device="cuda").bfloat16()
    for _ in range(calls):
        packed(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # waits for the device first
        found = packed(x)
    assert any(len(part) for part in packed._packed.parts)
    assert not any(part._pending for part in packed._packed.parts)
    layer.weights[0].zero_()  # what the graph reads is the snapshot's
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(found, packed(x))
    assert float(found.abs().max()) > 1


def test_copies_and_other_weights_of_the_same_look():
    first = layer_of(CHAINS["blocks"], torch.float32, algorithm="kernel")
    x = torch.randn(9, first.in_features, device="cuda")
    first(x)
    second = copy.deepcopy(first)
    for own in second.parameters():
        own.add_(0.5)
    for layer in (second, first, second):
        check(layer(x), layer, x)
        check(layer.pack()(x), layer, x)


STEPS = (
    [(4, 5, 57, 8)], [(2, 32, 2, 4), (2, 1, 4, 32)], [(8, 32, 32, 3), (6, 7, 8, 16), (7, 2, 1, 96)],
    [(3, 2, 2, 3), (9, 2, 1, 2)], [(8, 1, 1, 5), (10, 4, 4, 1)], [(6, 16, 24, 1), (1, 24, 16, 6)],
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("patterns", STEPS, ids=str)
def test_steps_of_no_rows_and_of_a_sum(patterns, batch_last, dtype) -> None:
    layer = layer_of(patterns, dtype, batch_last).requires_grad_(True)
    features = sizes(patterns)[0]
    for rows in ((0,), (2, 0), (1,), (5,), (70,)):
        x = torch.randn(features, *rows) if batch_last else torch.randn(*rows, features)
        x = x.to("cuda", dtype).requires_grad_()
        leaves = [x, *layer.parameters()]
        value = layer(x)
        assert value.shape == ((sizes(patterns)[1], *rows) if batch_last else (*rows, sizes(patterns)[1]))
        found = torch.autograd.grad(value.sum(), leaves)  # by a gradient that is one number for all
        if not x.numel():
            assert all(not own.any() and own.shape == leaf.shape for own, leaf in zip(found, leaves, strict=True))
            continue
        wanted, terms = (sums(layer, x, batch_last, of) for of in (lambda value: value, torch.abs))
        for own, other, size in zip(found, wanted, terms, strict=True):
            assert_close(own, other, depth=features + x.numel(), magnitude=size)


def sums(layer, x, batch_last, of):
    """The gradients of the sum of a product in float64, of what ``of`` gives for x and the parameters."""
    own = {name: of(value.detach()).double().requires_grad_() for name, value in (("x", x), *layer.named_parameters())}
    names = {id(value): name for name, value in layer.named_parameters()}
    value = through(layer, own["x"], batch_last, lambda value: own[names[id(value)]] if id(value) in names else value)
    return torch.autograd.grad(value.sum(), list(own.values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("patterns", [*STEPS, [(3, 3, 44, 3)], [(33, 17, 4, 3), (3, 3, 187, 3)]], ids=str)
def test_a_row_whose_features_lie_apart(patterns, dtype) -> None:
    layer, features = layer_of(patterns, dtype), sizes(patterns)[0]
    memory = torch.full((features, 3), math.nan, device="cuda", dtype=dtype)
    memory[:, 1] = torch.randn(features, device="cuda")
    for x in (memory[:, 1], memory[:, 1][None], memory.mT[1:2]):
        for called in (layer, layer.pack()):
            for _ in range(2):
                check(called(x), layer, x)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_gradients_of_millions_of_rows(batch_last) -> None:
    """Parts of sums over rows that do not begin at vectors were added in bfloat16."""
    if torch.cuda.get_device_properties(0).total_memory < 30 << 30:
        pytest.skip("takes 20 GB")
    patterns, period, rows = [(1, 16, 16, 16), (16, 16, 16, 1)], 1024, 8_640_549
    torch.manual_seed(0)
    parts = [torch.randn(period, 256, device="cuda").bfloat16() for _ in range(2)]
    x, grad = (part.repeat(-(-rows // period), 1)[:rows] for part in parts)
    counts = torch.full((period, 1), float(rows // period), device="cuda", dtype=torch.float64)
    counts[: rows % period] += 1
    weights = [(torch.randn(p, device="cuda") / 4).bfloat16().requires_grad_() for p in patterns]
    if batch_last:
        x, grad = x.T.contiguous(), grad.T.contiguous()
    found = torch.autograd.grad(km.kron_sparse_matmul(x, weights, batch_last=batch_last), weights, grad)
    own = [weight.detach().double().requires_grad_() for weight in weights]
    value = parts[0].double()
    for (a, b, c, d), weight in zip(patterns, own, strict=True):
        value = torch.einsum("nikl,ijkl->nijl", value.view(-1, a, c, d), weight).reshape(-1, a * b * d)
    for got, wanted in zip(found, torch.autograd.grad(value, own, parts[1].double() * counts), strict=True):
        assert_close(got, wanted, depth=16, magnitude=4 * wanted.abs().max().expand_as(wanted))
