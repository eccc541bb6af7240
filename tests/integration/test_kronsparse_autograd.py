"""Derivatives of Kronecker-sparse products, torch.func, torch.compile and the registration of the operators."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.kronsparse import KSLinear, KSPattern, kron_sparse_matmul
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import cuda
from kernmantle.structured.mode_product.torch_op import Options
from kernmantle.testing import assert_close

CONFIGURATIONS = [
    (pattern, batch_last)
    for pattern in ((1, 3, 2, 1), (2, 3, 4, 1), (2, 2, 3, 4), (1, 2, 2, 3))
    for batch_last in (False, True)
]


def operands(pattern, batch=(5,), batch_last=False, device="cpu", dtype=torch.float64):
    source = torch.Generator().manual_seed(0)
    own = KSPattern(*pattern)
    shape = (own.in_features, *batch) if batch_last else (*batch, own.in_features)
    return [
        torch.randn(size, generator=source, dtype=dtype).to(device).requires_grad_()
        for size in (shape, pattern, (own.out_features,))
    ]


def by_einsum(x, weight, bias):
    a, _, c, d = weight.shape
    product = torch.einsum("...ikl,ijkl->...ijl", x.unflatten(-1, (a, c, d)), weight)
    return product.flatten(-3) + bias


@pytest.mark.parametrize("algorithm", ["kernel", "bmm", "einsum", "dense"])
@pytest.mark.parametrize(("pattern", "batch_last"), CONFIGURATIONS)
def test_gradcheck(pattern, batch_last, algorithm):
    def function(x, weight, bias):
        return kron_sparse_matmul(x, weight, bias=bias, batch_last=batch_last, algorithm=algorithm)

    given = operands(pattern, (3,), batch_last)
    torch.autograd.gradcheck(function, given, check_forward_ad=True, check_batched_grad=False, fast_mode=True)
    if algorithm == "kernel":
        torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_gradcheck_of_activations_and_chains(activation):
    x, first, _ = operands((2, 3, 2, 1), (4,))
    _, second, bias = operands((1, 4, 3, 2), (4,))

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias, activation=activation)

    torch.autograd.gradcheck(function, (x, first, second, bias), fast_mode=True)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("wanted", ["x, first, second, bias", "first", "second", "x"])
def test_second_derivatives_go_through_what_is_between(wanted, batch_last):
    batch = (2, 2)
    x, first, _ = operands((2, 3, 2, 1), batch, batch_last)
    _, second, bias = operands((1, 4, 3, 2), batch, batch_last)
    named = {"x": x, "first": first, "second": second, "bias": bias}
    asked = wanted.split(", ")

    def function(*given):
        own = {name: value.detach() for name, value in named.items()} | dict(zip(asked, given, strict=True))
        chain = [own["first"], own["second"]]
        return kron_sparse_matmul(own["x"], chain, bias=own["bias"], batch_last=batch_last).square()

    given = [named[name] for name in asked]
    torch.autograd.gradcheck(function, given, fast_mode=True)
    torch.autograd.gradgradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("batch", [(3,), (2, 2), ()], ids=str)
def test_chains_may_be_trained_through_their_matrix(batch, batch_last, monkeypatch):
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: chain_training.MATRIX)
    x, first, _ = operands((2, 3, 2, 1), batch, batch_last)
    _, second, bias = operands((1, 4, 3, 2), batch, batch_last)

    def function(x, first, second, bias):
        return kron_sparse_matmul(x, [first, second], bias=bias, activation="silu", batch_last=batch_last)

    torch.autograd.gradcheck(function, (x, first, second, bias), fast_mode=True)
    torch.autograd.gradgradcheck(function, (x, first, second, bias), fast_mode=True)
    found = function(x, first, second, bias)
    monkeypatch.undo()
    assert_close(found.detach(), function(x, first, second, bias).detach(), depth=12)


def test_training_steps_go_the_way_that_should_be_quickest(monkeypatch):
    monkeypatch.setattr(cuda, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda, "index_of", lambda device: 0)
    wide = ((6, 64, 64, 1), (1, 768, 192, 2))

    monkeypatch.setattr(chain_training, "_has_kernels", lambda *_: True)

    def chosen(patterns, batch, dtype="bf16"):
        """Eagerly, and in a CUDA graph."""
        options = Options(False, "auto", "")
        given = patterns, batch, dtype, False, options, torch.device("cuda")
        assert min(chain_training.expected(*given[:4], given[5]).values()) > 0
        return chain_training.kind_for(*given), chain_training.kind_for(*given, True)

    assert chosen(wide, 65536) == chosen(wide, 25088) == ("matrix", "matrix")
    assert chosen(wide, 25088, "f32") == ("factors", "factors")
    assert chosen(wide, 1) == chosen(wide, 16) == chosen(wide, 16, "f32") == ("grouped", "grouped")
    assert chosen(wide, 2048, "f32") == ("factors", "factors")
    assert chosen(((24, 32, 32, 1), (1, 32, 32, 24)), 256)[1] == "batched"  # 22 us, 40 in groups (decision 0142)
    assert chosen(wide, 4096, "f32") == ("factors", "factors")  # launches that follow one another (decision 0126)
    assert chosen(wide, 4096) == ("grouped", "matrix")
    assert chosen(((24, 16, 16, 1), (1, 96, 96, 4)), 25088) == ("matrix", "matrix")
    assert chosen(((64, 64, 64, 1), (1, 64, 64, 64)), 25088) == ("batched", "batched")
    assert chosen(((64, 64, 64, 1), (1, 64, 64, 64)), 4096) == ("batched", "batched")
    assert chosen(((64, 64, 64, 1), (1, 64, 64, 64)), 1024) == ("batched", "batched")  # a native call each way
    assert chosen(((64, 64, 64, 1), (1, 64, 64, 64)), 25088, "f32") == ("factors", "factors")
    assert chosen(((6, 64, 64, 1),), 16) == ("grouped", "grouped")
    assert chosen(((1, 783, 463, 19),), 107, "f32") == ("blocks", "blocks")
    thin = chain_training.expected(((1, 114, 5, 125),), 2734, "f32", True, torch.device("cuda"))
    assert "blocks" not in thin
    monkeypatch.undo()
    layer = KSLinear(384, 1536, wide, dtype=torch.bfloat16)
    x = torch.empty(1, 25088, 384).bfloat16()
    assert chain_training.kind_of(x, list(layer.weights), layer._options) == "factors"  # on a CPU


@pytest.mark.parametrize("batch", [(4,), (2, 2)], ids=str)
def test_results_of_layers_may_be_changed_in_place(batch):
    layer = KSLinear(4, 8, [(2, 3, 2, 1), (1, 4, 3, 2)], dtype=torch.float64)
    x = torch.randn(*batch, 4, dtype=torch.float64)
    layer(x).relu_().sum().backward()
    found = layer.weights[0].grad.clone()
    layer.zero_grad()
    torch.relu(layer(x)).sum().backward()
    assert torch.equal(found, layer.weights[0].grad)
    assert found.abs().max() > 0


def test_many_cotangents_at_once():
    x, first, _ = operands((2, 3, 2, 1), (4,))
    second = operands((1, 4, 3, 2), (4,))[1]
    cotangents = torch.randn(3, 4, 8, dtype=torch.float64)
    wanted = [
        torch.autograd.grad(kron_sparse_matmul(x, [first, second]), (x, first, second), each) for each in cotangents
    ]
    result = kron_sparse_matmul(x, [first, second])
    found = torch.autograd.grad(result, (x, first, second), cotangents, is_grads_batched=True)
    for several, singles in zip(found, zip(*wanted, strict=True), strict=True):
        assert_close(several, torch.stack(singles), depth=12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_are_accumulated_in_float32(dtype):
    x, weight, bias = operands((2, 5, 4, 3), (2049,), dtype=dtype)
    cotangent = torch.randn(2049, 30, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad(kron_sparse_matmul(x, weight, bias=bias), (x, weight), cotangent)
    exact = [value.detach().double().requires_grad_() for value in (x, weight, bias)]
    wanted = torch.autograd.grad(by_einsum(*exact), exact[:2], cotangent.double())
    size = torch.einsum("nijl,nikl->ijkl", *(
        value.detach().double().abs().unflatten(-1, shape) for value, shape in ((cotangent, (2, 5, 3)), (x, (2, 4, 3)))
    ))  # fmt: skip
    assert_close(found[0], wanted[0], depth=5)
    assert_close(found[1], wanted[1], depth=2049, magnitude=size)


def test_only_what_is_asked_for_is_computed():
    x, weight, bias = operands((2, 3, 4, 2))
    cotangent = torch.ones(5, 12, dtype=torch.float64)
    for place in range(3):
        own = [value.detach().requires_grad_(i == place) for i, value in enumerate((x, weight, bias))]
        wanted = torch.autograd.grad(by_einsum(*own), own[place], cotangent)
        found = torch.autograd.grad(kron_sparse_matmul(own[0], own[1], bias=own[2]), own[place], cotangent)
        assert_close(found[0], wanted[0], depth=5)


@pytest.mark.parametrize("batch", [(0,), (2, 0), ()], ids=str)
def test_gradients_of_small_batches(batch):
    x, weight, bias = operands((2, 3, 4, 2), batch)
    result = kron_sparse_matmul(x, weight, bias=bias)
    assert result.shape == (*batch, 12)
    result.sum().backward()
    assert x.grad.shape == x.shape
    if 0 in batch:
        assert not weight.grad.any()
        assert not bias.grad.any()


@pytest.mark.parametrize(("pattern", "batch_last"), CONFIGURATIONS)
def test_opcheck(pattern, batch_last):
    x, weight, bias = operands(pattern, (6,))
    own = KSPattern(*pattern)
    layout = x.detach().T.contiguous().T if batch_last else x.detach()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for algorithm in ("kernel", "bmm"):
        torch.library.opcheck(
            torch.ops.kernmantle.kron_sparse.default,
            (layout[None], weight.detach()[None], bias.detach()[None], "relu", batch_last, algorithm, ""),
            test_utils=tests,
        )
        given = torch.randn(1, 6, own.out_features, dtype=torch.float64)
        torch.library.opcheck(
            torch.ops.kernmantle.kron_sparse_weight.default, (layout[None], given, *pattern, algorithm, ""),
            test_utils=tests,
        )  # fmt: skip


@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (0, 0, 0), (1, 3, None), (None, None, 0)], ids=str
)
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_vmap(in_dims, batch_last):
    x, weight, bias = (value.detach() for value in operands((2, 3, 4, 2)))
    stacked = [
        value if dim is None else torch.stack([value, 2 * value, value - 1], dim)
        for value, dim in zip((x, weight, bias), in_dims, strict=True)
    ]

    def function(x, weight, bias):
        if batch_last:
            return kron_sparse_matmul(x.T, weight, bias=bias, batch_last=True).T
        return kron_sparse_matmul(x, weight, bias=bias)

    assert_close(vmap(function, in_dims)(*stacked), vmap(by_einsum, in_dims)(*stacked), depth=4)
    nested = vmap(vmap(function, in_dims), (0, None, None))(torch.stack([stacked[0]] * 2), *stacked[1:])
    assert_close(nested[1], vmap(by_einsum, in_dims)(*stacked), depth=4)


def test_functional_derivatives():
    x, weight, bias = (value.detach() for value in operands((2, 2, 3, 2), (3,)))

    def both(function):
        yield lambda w: function(x, w, bias).sin().sum()

    (ours,), (plain,) = both(lambda x, w, b: kron_sparse_matmul(x, w, bias=b)), both(by_einsum)
    for transform in (grad, jacrev, jacfwd, hessian, lambda f: grad(lambda w: grad(f)(w).square().sum())):
        assert_close(transform(ours)(weight), transform(plain)(weight), depth=30)
    tangents = tuple(torch.ones_like(value) for value in (x, weight, bias))
    found = jvp(lambda *given: kron_sparse_matmul(*given[:2], bias=given[2]), (x, weight, bias), tangents)
    for got, want in zip(found, jvp(by_einsum, (x, weight, bias), tangents), strict=True):
        assert_close(got, want, depth=9)


def test_gradients_of_single_samples():
    x, weight, bias = (value.detach() for value in operands((2, 3, 4, 2), (7,)))

    def loss(weight, row, function):
        return function(row, weight, bias).square().sum()

    found = vmap(grad(lambda w, r: loss(w, r, lambda r, w, b: kron_sparse_matmul(r, w, bias=b))), (None, 0))(weight, x)
    wanted = vmap(grad(lambda w, r: loss(w, r, by_einsum)), (None, 0))(weight, x)
    assert_close(found, wanted, depth=10)


def test_second_derivatives_of_no_rows():
    weight = torch.ones(2, 3, 2, 1, dtype=torch.float64)
    found = hessian(lambda x: kron_sparse_matmul(x, weight).square().sum())(torch.ones(0, 4, dtype=torch.float64))
    assert found.shape == (0, 4, 0, 4)


@pytest.mark.parametrize("algorithm", ["auto", "kernel", "bmm", "einsum", "dense"])
@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_many_tangents_at_once(batch_last, algorithm):
    x, first, _ = (value.detach() for value in operands((2, 3, 2, 1), (4,), batch_last))
    _, second, bias = (value.detach() for value in operands((1, 4, 3, 2), (4,)))

    def function(*given):
        way = {"activation": "silu", "batch_last": batch_last, "algorithm": algorithm}
        return kron_sparse_matmul(given[0], given[1:3], bias=given[3], **way)

    def jacobian(**options):
        return torch.autograd.functional.jacobian(function, (x, first, second, bias), **options)

    forward = jacobian(vectorize=True, strategy="forward-mode")
    for found, wanted in zip(forward, jacobian(), strict=True):
        assert_close(found, wanted, depth=30)


def test_tangent_of_the_bias_alone():
    x, weight, bias = (value.detach() for value in operands((2, 3, 4, 2)))
    _, found = jvp(lambda b: kron_sparse_matmul(x, weight, bias=b), (bias,), (bias,))
    assert torch.equal(found, bias.expand(5, 12))


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("batch_last", [False, True], ids=["first", "last"])
def test_compile(fresh, batch_last):
    torch.manual_seed(0)
    layer = KSLinear(12, 20, [(2, 6, 6, 1), (1, 5, 3, 4)], batch_last=batch_last)
    x = torch.randn((12, 7) if batch_last else (7, 12), requires_grad=True)
    compiled = torch.compile(lambda x: layer(x, "gelu").sin(), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(x), layer(x, "gelu").sin(), depth=9)
    wanted = torch.autograd.grad(layer(x, "gelu").sin().sum(), [x, *layer.parameters()])
    found = torch.autograd.grad(compiled(x).sum(), [x, *layer.parameters()])
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, depth=40)


def test_compile_with_a_changing_batch(fresh):
    layer = KSLinear(12, 20, [(2, 6, 6, 1), (1, 5, 3, 4)])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (3, 5, 8):
        x = torch.randn(batch, 2, 12)
        assert_close(compiled(x).detach(), layer(x).detach(), depth=9)


def test_export():
    layer = KSLinear(12, 20, [(2, 6, 6, 1), (1, 5, 3, 4)])
    x = torch.randn(4, 12)
    exported = torch.export.export(layer, (x,))
    module = exported.module()
    result = module(x)
    matrix = layer.to_dense().detach().double()
    assert_close(result.detach(), (x.double() @ matrix.T + layer.bias.detach().double()).float(), depth=9)
    # The graph that was written is trained as the layer is.
    result.square().sum().backward()
    first, second = [weight.detach().double().requires_grad_() for weight in layer.weights]
    dense = by_einsum(by_einsum(x.double(), first, 0), second, layer.bias.detach().double())
    dense.square().sum().backward()
    assert_close(module.get_parameter("weights.0").grad, first.grad.float(), depth=300)
    assert_close(module.get_parameter("weights.1").grad, second.grad.float(), depth=300)


def test_training_steps_agree_with_the_dense_matrix():
    torch.manual_seed(0)
    layer = KSLinear(24, 16, [(4, 4, 6, 1), (1, 4, 4, 4)], dtype=torch.float64)
    x, y = torch.randn(32, 24, dtype=torch.float64), torch.randn(32, 16, dtype=torch.float64)
    own = [parameter.detach().clone().requires_grad_() for parameter in (*layer.weights, layer.bias)]
    optimiser, plain = torch.optim.SGD(layer.parameters(), 0.05), torch.optim.SGD(own, 0.05)
    for _ in range(4):
        loss = (layer(x) - y).square().mean()
        other = (by_einsum(by_einsum(x, own[0], 0), own[1], own[2]) - y).square().mean()
        assert_close(loss.detach(), other.detach(), depth=100)
        for value, step in ((loss, optimiser), (other, plain)):
            step.zero_grad()
            value.backward()
            step.step()


def test_copies_and_pickles():
    layer = KSLinear(12, 20, [(2, 6, 6, 1), (1, 5, 3, 4)])
    x = torch.randn(4, 12)
    layer(x).sum().backward()
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(layer), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), layer(x))
    parameters = {name: value * 2 for name, value in layer.state_dict().items()}
    doubled = functional_call(layer, parameters, (x,))
    assert_close(doubled.detach(), (4 * (layer(x) - layer.bias) + 2 * layer.bias).detach(), depth=9)
