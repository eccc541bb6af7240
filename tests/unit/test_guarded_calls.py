"""The bound call of the last tensors is found without a key, and only where their key would be the same."""

from __future__ import annotations

import copy
import pickle
import sys
import threading

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import kernmantle as km
from kernmantle.pairwise import kernel_products
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.kernel_store import collected
from kernmantle.runtime.lru import clear_all
from kernmantle.structured.kron import matmul as kron_calls
from kernmantle.structured.kronsparse import chain_autograd
from kernmantle.torch_ops import call_key, torch_private
from kernmantle.torch_ops.call_key import find
from kernmantle.torch_ops.torch_private import guard_of
from kernmantle.torch_ops.tuned_tiles import tuning

PATTERNS = [(2, 4, 3, 1), (1, 6, 8, 1)]


def layer_and_rows(rows=5, **options):
    torch.manual_seed(0)
    return km.KSLinear(6, 6, PATTERNS, **options), torch.randn(rows, 6)


def tensors_of(layer, x):
    return (x, *layer.weights, layer.bias)


def dense(layer, x):
    """The result in float64, from the entries of the factors."""
    value = x.detach().double()
    for weight in layer.weights:
        a, b, c, d = weight.shape
        own = weight.detach().double()
        value = torch.einsum("nakl,ajkl->najl", value.reshape(-1, a, c, d), own).reshape(-1, a * b * d)
    return value + layer.bias.detach().double()


@pytest.fixture(autouse=True)
def _no_plans():
    PLANS.clear()


def found_for(layer, x, activation=None):
    """The bound call of a layer that guards find."""
    tensors = (x, *layer.weights) if layer.bias is None else tensors_of(layer, x)
    return find((layer._traced_form, activation, layer.bias is None), tensors)


@pytest.fixture
def warm():
    layer, x = layer_and_rows()
    for _ in range(3):
        layer(x)
    assert found_for(layer, x) is not None
    return layer, x


def test_the_second_call_in_a_row_is_guarded() -> None:
    layer, x = layer_and_rows()
    found = []
    for _ in range(4):
        layer(x)
        found.append(found_for(layer, x))
    assert found[:2] == [None, None]  # the first one binds, the second one finds it by its key
    assert found[2] is found[3] is not None
    assert found[3] in PLANS.values()


def test_a_call_found_by_guards_answers_as_that_of_its_key(warm, monkeypatch) -> None:
    layer, x = warm
    monkeypatch.setattr(call_key, "call_key", lambda *_: pytest.fail("a key"))
    monkeypatch.setattr("kernmantle.structured.kronsparse.linear.chain_key", lambda *_: pytest.fail("a key"))
    for scale in (1.0, -2.5):
        layer.weights[0].data.mul_(scale)
        km.testing.assert_close(layer(x * scale), dense(layer, x * scale), depth=24)


CHANGED = {
    "another number of rows": lambda layer, x: torch.randn(6, 6),
    "other strides": lambda layer, x: torch.randn(6, 5).mT,
    "an odd address": lambda layer, x: torch.randn(31)[1:].view(5, 6),
    "a gradient by x": lambda layer, x: x.clone().requires_grad_(),
    "a lazy sign": lambda layer, x: torch._neg_view(x),
    "a subclass": lambda layer, x: x.as_subclass(type("Own", (torch.Tensor,), {})),
    "an array": lambda layer, x: x.numpy(),
    "a meta tensor": lambda layer, x: x.to("meta"),
    "float64": lambda layer, x: x.double(),
    "a sparse tensor": lambda layer, x: x.to_sparse(),
    "a weight that is frozen": lambda layer, x: layer.weights[0].requires_grad_(False) is None or x,
    "a weight in other strides": lambda layer, x: (
        setattr(layer.weights[0], "data", layer.weights[0].data.transpose(1, 2).contiguous().transpose(1, 2)) or x
    ),
    "no bias": lambda layer, x: setattr(layer, "bias", None) or x,
    "another algorithm": lambda layer, x: setattr(layer, "algorithm", "einsum") or x,
    "another memory order": lambda layer, x: setattr(layer, "batch_last", True) or x.mT.contiguous().mT,
    "plans that are cleared": lambda layer, x: clear_all() or x,
}


@pytest.mark.parametrize("change", CHANGED)
def test_another_key_is_a_miss(warm, change) -> None:
    layer, x = warm
    assert found_for(layer, CHANGED[change](layer, x)) is None


AROUND = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "another backend": lambda: km.config(backend="reference"),
    "another precision": lambda: km.config(precision="ieee"),
    "other threads": lambda: km.config(threads=3),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a mode": lambda: FlopCounterMode(display=False),
    "forward mode": forward_ad.dual_level,
    "kernels that are collected": collected,
    "tiles that are tuned": tuning,
}


@pytest.mark.parametrize("around", AROUND)
def test_other_settings_are_a_miss(warm, around) -> None:
    layer, x = warm
    with AROUND[around]():
        assert found_for(layer, x) is None
    assert found_for(layer, x) is not None


def test_torchs_threads_are_a_setting(warm) -> None:
    layer, x = warm
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert found_for(layer, x) is None
    finally:
        torch.set_num_threads(before)


def test_transforms_are_a_miss(warm) -> None:
    layer, x = warm
    found = []
    torch.func.vmap(lambda row: found.append(found_for(layer, x)) or row)(x)
    torch.func.grad(lambda row: found.append(found_for(layer, x)) or row.sum())(x)
    torch.jit.trace(lambda row: found.append(found_for(layer, x)) or row + 1, (x,))
    assert set(found) == {None}


def without_strides():
    """Tensors of which torch's guard would ask for strides, and end the process."""
    x = torch.randn(5, 6)
    return {
        "nested": torch.nested.nested_tensor([x, x[:3]]),
        "jagged": torch.nested.nested_tensor([x, x[:3]], layout=torch.jagged),
        "sparse": x.to_sparse(),
        "compressed": x.to_sparse_csr(),
        "opaque": x.to_mkldnn(),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["nested", "jagged", "sparse", "compressed", "opaque"])
def test_tensors_without_strides_are_errors_of_warm_calls(warm, kind) -> None:
    layer, x = warm
    other, v, kernel = without_strides()[kind], torch.randn(5, 6), km.Gaussian(1.0)
    for _ in range(4):
        km.cdist(x, v, p=1.5)
        kernel.matmul(x, x.clone(), v)
    for call in (layer, lambda own: km.cdist(own, v, p=1.5), lambda own: kernel.matmul(x, x.clone(), own)):
        with pytest.raises(km.errors.KernmantleError):
            call(other)
    assert found_for(layer, other) is None


@pytest.mark.parametrize("kind", ["sparse", "compressed", "opaque"])
def test_cotangents_without_strides_are_errors_of_warm_steps(kind) -> None:
    layer, x = layer_and_rows()
    for _ in range(4):
        torch.autograd.grad(layer(x), list(layer.parameters()), torch.ones(5, 6))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(layer(x), list(layer.parameters()), without_strides()[kind])
    own = torch.autograd.grad(layer(x), list(layer.parameters()), torch.ones(5, 6))
    assert all(bool(torch.isfinite(each).all()) for each in own)


def test_an_activation_is_a_key_of_its_own(warm) -> None:
    layer, x = warm
    assert found_for(layer, x, "relu") is None
    for _ in range(3):
        km.testing.assert_close(layer(x, "relu"), dense(layer, x).relu(), depth=24)


def test_rows_that_take_turns_have_one_guard_at_most(monkeypatch) -> None:
    layer, made = layer_and_rows()[0], []
    monkeypatch.setattr(call_key, "guard_of", lambda tensors: made.append(1) or guard_of(tensors))
    for rows in (5, 5, 5, 7, 5, 7, 5, 7, 5, 7):
        value = torch.randn(rows, 6)
        km.testing.assert_close(layer(value), dense(layer, value), depth=24)
    assert made == [1]
    for _ in range(2):
        layer(value)
    assert made == [1, 1]


def test_layers_of_one_form_share_what_is_found(warm) -> None:
    """So do copies and pickles. A plan has nothing of the tensors that it was bound for."""
    layer, x = warm
    others = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer_and_rows()[0]
    others[0].weights[0].data.mul_(3)
    for other in others:
        assert found_for(other, x) is found_for(layer, x) is not None
        for _ in range(3):
            km.testing.assert_close(other(x), dense(other, x), depth=24)
            grads = torch.autograd.grad(other(x).square().sum(), list(other.parameters()))
            own = copy.deepcopy(other).double()
            wanted = torch.autograd.grad(dense_recorded(own, x.double()).square().sum(), list(own.parameters()))
            for grad, exact in zip(grads, wanted, strict=True):
                km.testing.assert_close(grad, exact, depth=24 * 5)


def dense_recorded(layer, x):
    """The result of a layer in float64, of which gradients can be taken."""
    value = x
    for weight in layer.weights:
        a, b, c, d = weight.shape
        value = torch.einsum("nakl,ajkl->najl", value.reshape(-1, a, c, d), weight).reshape(-1, a * b * d)
    return value + layer.bias


def test_without_torchs_guards_every_call_has_a_key(monkeypatch) -> None:
    monkeypatch.setattr(torch_private, "_TensorGuards", None)
    layer, x = layer_and_rows()
    for _ in range(3):
        km.testing.assert_close(layer(x), dense(layer, x), depth=24)
    assert found_for(layer, x) is None


def test_a_guard_is_none_of_a_tensor_that_is_there_twice() -> None:
    x, y = torch.randn(3), torch.randn(3)
    assert guard_of((x, x)) is None
    guard = guard_of((x, y))
    assert guard is not None
    assert guard(y, x)
    assert not guard(y, x[:2])
    assert find("no call", (x, y)) is None


def test_a_packed_layer_is_found_until_it_is_converted() -> None:
    layer, x = layer_and_rows()
    packed = layer.pack()
    for _ in range(3):
        km.testing.assert_close(packed(x), dense(layer, x), depth=24)
    own = (x, packed._bias)
    assert find((packed._packed.identity, None, packed._options), own) is not None
    assert find((packed._packed.identity, None, packed._options), (x[:3].clone(), packed._bias)) is None
    packed.double()
    wide = x.double()
    assert find((packed._packed.identity, None, packed._options), (wide, packed._bias)) is None
    for _ in range(3):
        km.testing.assert_close(packed(wide), dense(layer, x), depth=24)


def test_threads_share_a_layer() -> None:
    """Each thread has rows of its own number, with and without gradients, and threads change every few instructions."""
    layer, before, wrong = layer_and_rows()[0], sys.getswitchinterval(), []
    sys.setswitchinterval(1e-6)

    def work(rows: int) -> None:
        x = torch.randn(rows, 6)
        with torch.set_grad_enabled(rows % 2 == 0):
            found = [layer(x) for _ in range(60)]
        wrong.extend(each for each in found if each.requires_grad != (rows % 2 == 0))
        try:
            for each in found:
                km.testing.assert_close(each.detach(), dense(layer, x), depth=24)
        except AssertionError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (5, 6, 7, 8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


KERNEL_CALLS = {
    "product": lambda own, x, y, v, out: own.matmul(x, y, v),
    "product to out": lambda own, x, y, v, out: own.matmul(x, y, v, out=out),
    "rows among themselves": lambda own, x, y, v, out: own.matmul(x, None, v[: len(x)]),
    "sums": lambda own, x, y, v, out: own.sum(x, y),
    "matrix": lambda own, x, y, v, out: own(x, y),
}


def kernel_of(name, width, p=1.5):
    return {
        "one length": lambda: km.Gaussian(width),
        "lengths": lambda: km.Gaussian(lengthscales=torch.full((3,), width)),
        "a power": lambda: km.Kernel(lambda x, y, bandwidth, p: abs(x - y) ** p / bandwidth, bandwidth=width, p=p),
    }[name]()


@pytest.mark.parametrize("name", ["one length", "lengths", "a power"])
@pytest.mark.parametrize("how", KERNEL_CALLS)
def test_calls_of_a_kernel_are_found_and_follow_what_changes(monkeypatch, name, how) -> None:
    """Values, rows of another number and hyperparameters: each result is that of a new kernel, whose call has a key."""
    torch.manual_seed(1)
    own, call, out = kernel_of(name, 2.0), KERNEL_CALLS[how], torch.empty(4, 2)
    x, y, v = torch.randn(4, 3), torch.randn(5, 3), torch.randn(5, 2)

    def agree(width, *arrays):
        found = call(own, *arrays, out[: len(arrays[0])]).clone()
        with monkeypatch.context() as keyed:
            for module in (call_key, kernel_products):
                keyed.setattr(module, "find", lambda *_: None)
            assert torch.equal(found, call(kernel_of(name, width), *arrays, out[: len(arrays[0])]))

    for scale in (1.0, 1.0, 1.0, -2.0):
        agree(2.0, scale * x, y, scale * v)
    agree(2.0, x[:3].clone(), y, v)
    if name == "lengths":
        own.lengthscales = torch.full((3,), 3.0)
    else:
        own.bandwidth = 3.0
    for _ in range(4):
        agree(3.0, x, y, v)
    if name == "a power":
        own.p, fresh = 1.0, kernel_of(name, 3.0, 1.0)  # by absolute values, without powers
        for _ in range(4):
            assert torch.equal(call(own, x, y, v, out), call(fresh, x, y, v, torch.empty(4, 2)))


def test_a_warm_product_has_no_key(monkeypatch) -> None:
    own, (x, y, v) = km.Gaussian(2.0), (torch.randn(4, 3), torch.randn(5, 3), torch.randn(5, 2))
    out = torch.empty(4, 2)
    for _ in range(3):
        first = own.matmul(x, y, v)
        own.sum(x, y)
    for _ in range(3):
        own.matmul(x, y, v, out=out)
    monkeypatch.setattr("kernmantle.pairwise.bound.call_key", lambda *_: pytest.fail("a key"))
    assert torch.equal(own.matmul(x, y, v, out=out), first)
    own.sum(x, y)


def test_a_warm_contraction_has_no_key(monkeypatch) -> None:
    own = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    for _ in range(3):
        own(x, y, p=1.3)
    with monkeypatch.context() as keyed:
        keyed.setattr(call_key, "call_key", lambda *_: pytest.fail("a key"))
        expected = ((x[:, None] - y).abs().double() ** 1.7).sum(-1)
        km.testing.assert_close(own(x, y, p=1.7), expected, depth=3)
        with pytest.raises(pytest.fail.Exception):
            own(x, y, p=2.0)  # an exponent of a class is a key of its own
    km.testing.assert_close(own(x, y, p=2.0), ((x[:, None] - y).double() ** 2).sum(-1), depth=3)


def test_rows_among_themselves_are_compared_once(monkeypatch) -> None:
    """A guard is false of a tensor that is there twice: the same rows are one operand of the key."""
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    own = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    for _ in range(3):
        own(x, x)
    with monkeypatch.context() as keyed:
        keyed.setattr(call_key, "call_key", lambda *_: pytest.fail("a key"))
        for value in (x, 2 * x):
            km.testing.assert_close(own(value, value), dense_l1(value, value), depth=3)
    for other in (x.clone(), y, x[:4].clone(), x):
        km.testing.assert_close(own(x, other), dense_l1(x, other), depth=3)


def dense_l1(x, y):
    return (x[:, None].double() - y.double()).abs().sum(-1)


SCORES = km.Contraction("mk,nk->mn", lambda x, y: (x - y) ** 2)
FUNCTIONS = {
    "kron_matmul": (lambda x, f, g, h: km.kron_matmul(x, [f, g]), lambda x, f, g, h: x @ torch.kron(f, g)),
    "kron_matmul to out": (
        lambda x, f, g, h: km.kron_matmul(x, [f, g], out=x.new_empty(len(x), 9)),
        lambda x, f, g, h: x @ torch.kron(f, g),
    ),
    "kron_matmul plus y": (
        lambda x, f, g, h: km.kron_matmul(x, [f, g], y=x.new_ones(len(x), 9), beta=2.0),
        lambda x, f, g, h: x @ torch.kron(f, g) + 2,
    ),
    "kron_matmul and an identity": (
        lambda x, f, g, h: km.kron_matmul(x, [2, g]),
        lambda x, f, g, h: x @ torch.kron(torch.eye(2).to(g), g),
    ),
    "kron_matmul of one factor twice": (
        lambda x, f, g, h: km.kron_matmul(x, [g, g]),
        lambda x, f, g, h: x @ torch.kron(g, g),
    ),
    "kron_sparse_matmul": (
        lambda x, f, g, h: km.kron_sparse_matmul(x, h[None, ..., None]),
        lambda x, f, g, h: x @ h.mT,
    ),
    "scores": (
        lambda x, f, g, h: km.contract("mn,n->m", lambda s, w: km.exp(-s) * w, SCORES.lazy(x, h), h[:, 0]),
        lambda x, f, g, h: torch.exp(-((x[:, None] - h) ** 2).sum(-1)) @ h[:, 0],
    ),
}


def no_key(*arguments):
    """What scores are an operand of asks for a key, which it does not have."""
    assert key_of(*arguments) is None


key_of = call_key.call_key


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_found_and_follow_what_changes(monkeypatch, name) -> None:
    """Values are read at each call; other rows, types, strides and gradients have keys of their own."""
    torch.manual_seed(2)
    call, plain = FUNCTIONS[name]
    own = [torch.randn(shape) for shape in ((6, 4), (2, 3), (2, 3), (5, 4))]

    def agree(x, *others):
        wanted = plain(*(each.detach().double().contiguous() for each in (x, *others)))
        km.testing.assert_close(call(x, *others).detach(), wanted, depth=16)

    for _ in range(4):
        agree(*own)
    if "twice" not in name:
        with monkeypatch.context() as keyed:
            for module in (call_key, kron_calls, chain_autograd):
                keyed.setattr(module, "call_key", no_key)
            for tensor in own:
                tensor.mul_(-1.5)
            agree(*own)
    x, f, g, h = own
    for _ in range(3):
        agree(x[:3].clone(), f, g, h)
        agree(x.mT.contiguous().mT, f, g, h)
        agree(x, f.mT.contiguous().mT, g, h)
        agree(*own)
        agree(*(each.double() for each in own))
    moving = x.clone().requires_grad_()
    if "out" not in name:
        for _ in range(4):
            (grad,) = torch.autograd.grad(call(moving, f, g, h).square().sum(), moving)
            exact = x.double().requires_grad_()
            (wanted,) = torch.autograd.grad(plain(exact, *(each.double() for each in own[1:])).square().sum(), exact)
            km.testing.assert_close(grad, wanted, depth=81)
