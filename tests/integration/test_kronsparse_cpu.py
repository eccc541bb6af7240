"""Kernels of Kronecker-sparse products on a CPU, and layers that go straight to them, against float64."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kernmantle as km
from kernmantle.backends.cpu import jit
from kernmantle.kronsparse import KSLinear, PackedKSLinear
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse.chain_autograd import chain_key
from kernmantle.structured.mode_product import cpu
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.testing import assert_close

from ..cases import first, pairwise

BATCHES = (1, 2, 3, 4, 9, 16, 33, 40, 127, 300, 520)
DTYPES = {"f32": torch.float32, "f64": torch.float64}
CHAIN = [(6, 8, 8, 1), (1, 12, 24, 2)]
MACHINES = {"as it is": None, "16 registers of 32 bytes": (32, 16), "16 registers of 16 bytes": (16, 16)}


@pytest.fixture(params=MACHINES)
def machine(request, monkeypatch):
    """Vectors of this machine, and those of others as far as it has them."""
    vectors = MACHINES[request.param]
    if vectors is not None:
        if vectors[0] > jit.host().vector_bytes:
            pytest.skip("this machine has no such vectors")
        narrow = replace(jit.host(), vector_bytes=vectors[0], vector_registers=vectors[1])
        monkeypatch.setattr(jit, "host", lambda: narrow)
    plans = cpu._first, cpu._last, cpu._gradient
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()


def case(seed, dtype):
    """A pattern, a batch and numbers for it."""
    draw = random.Random(seed)
    while True:
        a, b, c, d = draw.choice((1, 2, 3)), *draw.choices((1, 2, 5, 16, 33, 48, 70, 300), k=2), draw.choice(
            (1, 1, 2, 3, 4, 6, 8, 16, 24, 32)
        )  # fmt: skip
        batch = draw.choice(BATCHES)
        if a * b * c * d * batch < 3_000_000:
            break
    source = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)

    return draw, (a, b, c, d), batch, numbers


def exact(x, weight):
    a, _, c, d = weight.shape
    return torch.einsum("nikl,ijkl->nijl", x.reshape(len(x), a, c, d), weight).reshape(len(x), -1)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("seed", first(10, range(24)))
def test_products(seed, dtype, machine):
    draw, (a, b, c, d), batch, numbers = case(seed, dtype)
    weight = numbers(a, c, b, d).transpose(1, 2) if draw.random() < 0.4 else numbers(a, b, c, d)
    bias, packed = numbers(a * b * d) if draw.random() < 0.5 else None, PackedWeights() if draw.random() < 0.5 else None
    if draw.random() < 0.4:
        x, out = numbers(a * c * d, batch).T, torch.full((a * b * d, batch), torch.nan, dtype=dtype).T
    else:
        x = numbers(batch, a * c * d + 3)[:, 1 : a * c * d + 1]
        out = torch.full((batch, a * b * d), torch.nan, dtype=dtype)
    for _ in range(2):
        ran = cpu.product(x[None], weight[None], None if bias is None else bias[None], out[None], packed)
        assert ran is not None
        value, terms = exact(x.double(), weight.double()), exact(x.double().abs(), weight.double().abs())
        if bias is not None:
            value, terms = value + bias.double(), terms + bias.double().abs()
        assert_close(out, value, depth=c + 1, magnitude=terms)
        out.fill_(torch.nan)


@pytest.mark.parametrize(
    ("blocks", "dtype", "last", "transposed"),
    pairwise(
        [(512, 2, 2), (9, 2, 2), (37, 4, 4), (16, 4, 3), (41, 2, 4), (33, 1, 2), (3, 4, 1)],
        DTYPES.values(), [False, True], [False, True],
    ),
)  # fmt: skip
def test_small_blocks_share_vectors(blocks, dtype, last, transposed, machine):
    """Whole windows, one that reaches back, and fewer blocks than a window has."""
    (a, b, c), routes = blocks, set[bool]()
    source = torch.Generator().manual_seed(0)
    for batch in (1, 2, 3, 4, 8, 17, 40):
        given = torch.randn(a, *((c, b) if transposed else (b, c)), 1, generator=source, dtype=torch.float64).to(dtype)
        weight = given.transpose(1, 2) if transposed else given
        bias = torch.randn(a * b, generator=source, dtype=torch.float64).to(dtype) if batch % 2 else None
        x = torch.randn(batch, a * c, generator=source, dtype=torch.float64).to(dtype)
        out = torch.full((batch, a * b), torch.nan, dtype=dtype)
        if last:
            x, out = x.T.contiguous().T, out.T.contiguous().T
        route = cpu.product(x[None], weight[None], None if bias is None else bias[None], out[None], None)
        assert route is not None
        routes.add("blocks" in route)
        value, terms = exact(x.double(), weight.double()), exact(x.double().abs(), weight.double().abs())
        if bias is not None:
            value, terms = value + bias.double(), terms + bias.double().abs()
        assert_close(out, value, depth=c + 1, magnitude=terms)
    assert True in routes or not b <= jit.host().vector_bytes // x.element_size() <= a * b


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("seed", first(7, range(16)))
def test_gradients_of_weights(seed, dtype, machine):
    _, (a, b, c, d), batch, numbers = case(seed, dtype)
    x, grad = numbers(batch, a * c * d + 5)[:, : a * c * d], numbers(batch, a * b * d)
    found = cpu.gradient(x[None], grad[None], (a, b, c, d))
    assert found is not None

    def summed(x, grad):
        return torch.einsum("nikl,nijl->ijkl", x.reshape(batch, a, c, d), grad.reshape(batch, a, b, d))

    x, grad = x.double(), grad.double()
    assert_close(found[0], summed(x, grad), dtype=dtype, depth=batch, magnitude=summed(x.abs(), grad.abs()))


@pytest.mark.parametrize(
    ("pattern", "batch", "last"),
    [
        ((1, 80, 130, 32), 61, False),  # lines of x brought together
        ((2, 70, 97, 48), 50, False),
        ((1, 70, 513, 4), 97, False),  # several depths, the last of one
        ((1, 101, 259, 3), 1030, True),  # rows of weights and columns of x packed
        ((2, 520, 7, 2), 1025, True),  # two blocks of rows
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_large_products_pack(pattern, batch, last, packed, machine):
    source = torch.Generator().manual_seed(0)
    a, b, c, d = pattern
    weight, bias = torch.randn(pattern, generator=source), torch.randn(a * b * d, generator=source)
    x = torch.randn(batch, a * c * d, generator=source)
    out = torch.full((batch, a * b * d), torch.nan)
    if last:
        x, out = x.T.contiguous().T, out.T.contiguous().T
    held = PackedWeights() if packed else None
    for threads in (1, 3):
        with km.config(threads=threads):
            assert cpu.product(x[None], weight[None], bias[None], out[None], held) is not None
        value, terms = exact(x.double(), weight.double()), exact(x.double().abs(), weight.double().abs())
        assert_close(out, value + bias.double(), depth=c + 1, magnitude=terms + bias.double().abs())
        out.fill_(torch.nan)


def test_groups_go_one_by_one():
    source = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 40, 48, generator=source), torch.randn(3, 2, 5, 6, 4, generator=source)
    bias, out = torch.randn(3, 40, generator=source), torch.empty(3, 40, 40)
    assert cpu.product(x, weight, bias, out, None) is not None
    for group in range(3):
        value = exact(x[group].double(), weight[group].double()) + bias[group].double()
        assert_close(out[group], value, dtype=torch.float32, depth=7)


def test_results_do_not_depend_on_threads():
    source = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 600, 384, generator=source), torch.randn(1, 1, 768, 192, 2, generator=source)
    grad = torch.randn(1, 600, 1536, generator=source)
    found = []
    for threads in (1, 2, 3):
        with km.config(threads=threads):
            out = torch.empty(1, 600, 1536)
            cpu.product(x, weight, None, out, None)
            found.append((out, cpu.gradient(x, grad, (1, 768, 192, 2))))
    assert all(torch.equal(one, other) for own in found[1:] for one, other in zip(found[0], own, strict=True))


def layer_of(bias=True, dtype=torch.float64):
    torch.manual_seed(0)
    return KSLinear(48, 24, CHAIN, bias=bias, dtype=dtype, algorithm="kernel")


def dense(layer, x):
    """The same by torch, from what its parameters are now."""
    value = x
    for weight in layer.weights:
        value = exact(value, weight)
    return value if layer.bias is None else value + layer.bias


def is_bound(layer, x, activation=None):
    """Return whether the launch cache has the call."""
    if isinstance(layer, PackedKSLinear):
        key = chain_key(x, layer._weights, layer._bias, activation, layer._options, layer._packed)
    else:
        key = chain_key(x, tuple(layer.weights), layer.bias, activation, layer._options, None, None, layer._form)
    return key is not None and key in PLANS


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [1, 16, 700])
def test_a_layer_sees_its_weights_change(batch, bias):
    layer, x = layer_of(bias), torch.randn(batch, 48, dtype=torch.float64)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: None,
            lambda: layer.weights[1].mul_(2),
            lambda: setattr(layer.weights[0], "data", torch.randn(6, 8, 8, 1, dtype=torch.float64)),
            lambda: setattr(layer.weights[1], "data", torch.randn(1, 2, 24, 12, dtype=torch.float64).transpose(1, 3)),
            lambda: setattr(layer, "bias", torch.nn.Parameter(torch.ones(24, dtype=torch.float64))),
            lambda: layer.load_state_dict({key: value + 1 for key, value in layer.state_dict().items()}),
        ):
            change()
            for _ in range(2):
                assert_close(layer(x), dense(layer, x), depth=64)
                assert is_bound(layer, x)
                packed = layer.pack()
                assert_close(packed(x), dense(layer, x), depth=64)
                assert is_bound(packed, x) or packed.info == "torch dense"
                assert_close(layer(x, "gelu"), torch.nn.functional.gelu(dense(layer, x)), depth=64)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("algorithm", ["auto", "kernel"])
@pytest.mark.parametrize("packed", [False, True])
def test_bound_calls_by_other_algorithms(packed, algorithm, batch_last, dtype):
    torch.manual_seed(0)
    patterns = [(16, 2, 2, 1), (1, 2, 2, 16), (4, 8, 8, 1)]
    layer = KSLinear(32, 32, patterns, batch_last=batch_last, algorithm=algorithm, dtype=dtype)
    layer = layer.eval().requires_grad_(False)
    for shape in ((32,), (32, 3), (32, 2, 5), (32, 900)):
        for _ in range(3):
            x = torch.randn(shape).to(dtype)
            value = dense(copy.deepcopy(layer).double(), x.reshape(32, -1).double().T.contiguous()).T.reshape(shape)
            found = (layer.pack() if packed else layer)(x if batch_last else x.movedim(0, -1))
            assert_close(found if batch_last else found.movedim(-1, 0), value, depth=64, dtype=dtype)
            with torch.no_grad():
                layer.weights[1].mul_(-1)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_bound_calls_of_halves_give_what_first_ones_do(batch_last):
    torch.manual_seed(0)
    layer = KSLinear(48, 24, CHAIN, batch_last=batch_last, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn((48, 7) if batch_last else (7, 48)).bfloat16()
    PLANS.clear()
    first = layer(x, "relu")
    assert is_bound(layer, x, "relu")
    assert torch.equal(layer(x, "relu"), first)


@pytest.mark.parametrize("shape", [(48,), (1, 48), (5, 48), (2, 3, 48), (300, 48)])
@pytest.mark.parametrize("frozen", [(), ("weights.0",), ("weights.1", "bias"), ("weights.0", "weights.1", "bias")])
@pytest.mark.parametrize("wanted", [False, True])
def test_gradients_of_bound_calls(shape, frozen, wanted):
    layer = layer_of()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name not in frozen)
    x = torch.randn(shape, dtype=torch.float64)
    for _ in range(2):
        x = torch.randn_like(x).requires_grad_(wanted)
        tensors = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
        if not tensors:
            return
        ours = torch.autograd.grad(layer(x, "silu").square().sum(), tensors)
        theirs = torch.autograd.grad(torch.nn.functional.silu(dense(layer, x.reshape(-1, 48))).square().sum(), tensors)
        assert is_bound(layer, x, "silu")
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, depth=4096)


def test_second_derivatives_of_bound_calls():
    layer = layer_of()
    x = torch.randn(4, 48, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        tensors = [x, *layer.parameters()]
        found = []
        for value in (layer(x), dense(layer, x)):
            own = torch.autograd.grad(value.pow(3).sum(), tensors[:3], create_graph=True)
            found.append(torch.autograd.grad(sum(each.square().sum() for each in own), tensors))
        for one, other in zip(*found, strict=True):
            assert_close(one, other, depth=4096)
    torch.autograd.gradgradcheck(layer, [x], fast_mode=True)


@pytest.mark.parametrize("batch", [1, 5, 700])
def test_checkpoints_and_batches_of_gradients(batch):
    PLANS.clear()
    layer, x = layer_of(), torch.randn(batch, 48, dtype=torch.float64, requires_grad=True)
    tensors = [x, *layer.parameters()]
    for _ in range(2):  # made anew by another path than the first time, then by the same
        found = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), tensors)
        wanted = torch.autograd.grad(dense(layer, x).square().sum(), tensors)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, depth=4096)
    if batch < 700:
        cotangents = torch.randn(3, batch, 24, dtype=torch.float64)
        found = torch.autograd.grad(layer(x), tensors, cotangents, is_grads_batched=True)
        wanted = torch.autograd.grad(dense(layer, x), tensors, cotangents, is_grads_batched=True)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, depth=4096)


def test_parts_of_the_gradients():
    layer, x = layer_of(), torch.randn(5, 48, dtype=torch.float64, requires_grad=True)
    tensors = [x, *layer.parameters()]
    for _ in range(2):
        for own in (tensors[:1], tensors[1:2], tensors[2:3], tensors[3:], tensors[1:]):
            found = torch.autograd.grad(layer(x).square().sum(), own)
            for one, other in zip(found, torch.autograd.grad(dense(layer, x).square().sum(), own), strict=True):
                assert_close(one, other, depth=4096)


def test_graphs_are_kept_and_freed_as_torch_does():
    layer, x = layer_of(), torch.randn(4, 48, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        value = layer(x).sum()
        first = torch.autograd.grad(value, x, retain_graph=True)
        assert torch.equal(first[0], torch.autograd.grad(value, x)[0])
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(value, x)
        value = layer(x)
        with torch.no_grad():
            layer.weights[1].add_(1)
        with pytest.raises(RuntimeError, match="inplace"):
            value.sum().backward()


def test_known_calls_heed_their_surroundings():
    layer, x = layer_of(dtype=torch.float32), torch.randn(4, 48)
    for _ in range(2):
        with torch.no_grad():
            assert layer(x).dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            with km.config(backend="reference"):
                assert_close(layer(x), dense(layer.double(), x.double()), dtype=torch.float32, depth=64)
            layer.float()
            mapped = torch.func.vmap(layer)(x[:, None])
            assert_close(mapped[:, 0], dense(layer, x), depth=64)
            with torch.inference_mode():
                assert_close(layer(x), dense(layer, x), depth=64)
    other = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert_close(other(x), dense(layer, x), depth=64)
    with torch.no_grad(), pytest.raises(km.errors.ShapeError):
        layer(torch.ones(4, 49))


def called_before(batch, **options):
    """A layer and an input of a kind that it has seen."""
    torch.manual_seed(0)
    layer = km.KSLinear(8, 6, [(2, 8, 4, 1), (1, 6, 16, 1)], algorithm="kernel", dtype=torch.float64, **options)
    x = torch.randn(*batch, 8, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        layer(x)
    return layer, x


@pytest.mark.parametrize("batch", [(5,), (2, 5), ()], ids=str)
def test_many_cotangents_of_a_known_layer(batch):
    layer, x = called_before(batch)
    read, cotangents = (x, *layer.parameters()), torch.randn(4, *batch, 6, dtype=torch.float64)
    found = torch.autograd.grad(layer(x), read, cotangents, is_grads_batched=True)
    for place, own in enumerate(cotangents):
        for several, wanted in zip(found, torch.autograd.grad(layer(x), read, own), strict=True):
            assert_close(several[place], wanted, depth=100)


@pytest.mark.parametrize("batch", [(5,), (2, 5), ()], ids=str)
def test_results_of_a_known_layer_may_be_changed_in_place(batch):
    layer, x = called_before(batch)
    (wanted,) = torch.autograd.grad((layer(x) + 1).square().sum(), x)
    result = layer(x)
    result += 1
    (found,) = torch.autograd.grad(result.square().sum(), x)
    assert_close(found, wanted, depth=100)


def test_a_matrix_that_autocast_kept_is_not_taken_without_it():
    x = torch.randn(5, 8)
    for algorithm in ("dense", "auto"):
        layer = km.KSLinear(8, 12, [(2, 3, 4, 1), (1, 6, 3, 2)], algorithm=algorithm).eval().pack()
        with torch.no_grad():
            for _ in range(3):
                wanted = layer(x)
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            assert torch.equal(layer(x), wanted)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("into", [False, True])
def test_second_calls_are_taken_from_the_launch_cache(into, count, batch_last, monkeypatch):
    patterns = [(6, 8, 8, 1), (1, 2, 24, 2)][:count]
    features = 48 if count == 1 else 4

    def fail(*_, **__):
        raise AssertionError("went through checks or plans")

    for repeated in (False, True):
        if repeated:
            monkeypatch.setattr("kernmantle.structured.kronsparse.matmul._checked", fail)
            monkeypatch.setattr("kernmantle.structured.kronsparse.chain_autograd._bind", fail)
        weights = [torch.randn(pattern, dtype=torch.float64) for pattern in patterns]
        bias = torch.randn(features, dtype=torch.float64)
        x = torch.randn((48, 5) if batch_last else (5, 48), dtype=torch.float64)
        out = torch.empty((features, 5) if batch_last else (5, features), dtype=torch.float64) if into else None
        found = km.kron_sparse_matmul(x, weights, bias=bias, activation="relu", batch_last=batch_last, out=out)
        assert out is None or found is out
        value = x.T if batch_last else x
        for weight in weights:
            value = exact(value, weight)
        value = (value + bias).relu()
        assert_close(found, value.T if batch_last else value, depth=48)


def test_out_that_overlaps_is_refused_by_bound_calls_too():
    whole, weight = torch.randn(9, 48, dtype=torch.float64), torch.randn(6, 8, 8, 1, dtype=torch.float64)
    km.kron_sparse_matmul(whole[:4], weight, out=whole[4:8])
    for out in (whole[4:8], whole[4:8]):
        assert km.kron_sparse_matmul(whole[:4], weight, out=out) is out
    with pytest.raises(km.errors.OutputError):
        km.kron_sparse_matmul(whole[:4], weight, out=whole[2:6])
    with pytest.raises(km.errors.OutputError):
        km.kron_sparse_matmul(whole[:4], weight, out=whole[:4])


def test_patterns_are_checked_by_second_calls_too():
    x, weight = torch.randn(5, 48), torch.randn(6, 8, 8, 1)
    for _ in range(2):
        for pattern in ((6, 8, 8, 1), [6, 8, 8, 1], None, km.KSPattern(6, 8, 8, 1)):
            assert km.kron_sparse_matmul(x, weight, pattern).shape == (5, 48)
        for pattern in ((3, 8, 16, 1), [3, 8, 16, 1]):
            with pytest.raises(km.errors.ShapeError):
                km.kron_sparse_matmul(x, weight, pattern)


def test_gradients_of_a_layer_whose_saved_x_comes_back_in_another_layout():
    layer = layer_of()
    x = torch.randn(5, 60, dtype=torch.float64)[:, :48].requires_grad_()
    wanted = torch.autograd.grad(dense(layer, x).square().sum(), [x, *layer.parameters()])
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
        ):
            value = layer(x).square().sum()
        found = torch.autograd.grad(value, [x, *layer.parameters()])
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, depth=4096)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pattern", [(512, 2, 2, 1), (1, 2, 2, 512), (3, 33, 40, 3), (1, 300, 7, 2)], ids=str)
def test_one_entry_of_a_batch_that_is_last_goes_as_a_row(pattern, packed):
    a, b, c, d = pattern
    layer = KSLinear(a * c * d, a * b * d, [pattern], batch_last=True).eval().requires_grad_(False)
    row = KSLinear(a * c * d, a * b * d, [pattern], True, list(layer.weights)).eval().requires_grad_(False)
    row.bias.copy_(layer.bias)
    weight, bias = layer.weights[0].double(), layer.bias.double()
    layer, row = (layer.pack(), row.pack()) if packed else (layer, row)
    x = torch.randn(a * c * d, 1)
    for _ in range(2):
        found = layer(x)
        assert found.shape == (a * b * d, 1)
        assert torch.equal(found.T, row(x.T))
        assert layer.info == row.info
        assert torch.equal(layer(x[:, 0]), found[:, 0])
    wanted = exact(x.T.double(), weight) + bias
    terms = exact(x.T.double().abs(), weight.abs()) + bias.abs()
    assert_close(found.T, wanted, depth=c + 1, magnitude=terms)


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_any_stride_of_an_axis_of_one_entry(dtype, batch_last):
    weight = torch.randn(1, 12, 1, 1).to(dtype)
    x = torch.randn(2, 2).to(dtype)[::2, ::2]
    assert x.shape == (1, 1)
    assert x.stride() == (4, 2)
    exact = weight.double().flatten() * x.double()
    exact = exact.mT if batch_last else exact
    found = km.kronsparse.kron_sparse_matmul(x, weight, batch_last=batch_last)
    assert_close(found, exact)
    layer = KSLinear(1, 12, [(1, 12, 1, 1)], bias=False, dtype=dtype, batch_last=batch_last)
    layer.weights[0].data.copy_(weight)
    for own in (layer, layer.pack()):
        assert_close(own(x), exact)
        assert_close(own(x), exact)
