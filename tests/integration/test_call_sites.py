"""Operators in code that Inductor writes: call sites past torch's dispatcher, guards, and what is there instead."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter

import pytest
import torch
from torch._inductor import lowering
from torch._inductor.utils import fresh_inductor_cache, run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

import kernmantle as km
from kernmantle.runtime.lru import clear_all
from kernmantle.structured.kronsparse import chain_training
from kernmantle.testing import assert_close
from kernmantle.torch_ops import call_site

CHAIN = "kron_sparse_chain"
PATTERNS = [(3, 4, 5, 1), (1, 6, 4, 3)]  # 15 features to 18


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    with fresh_inductor_cache():
        yield
    torch._dynamo.reset()


def exact(layer, x, cotangent):
    """Return the result and the gradients of x, the weights and the bias in float64."""
    leaves = [each.detach().double().requires_grad_() for each in (x, *layer.weights, layer.bias)]
    rows = leaves[0]
    for weight in leaves[1:-1]:
        a, b, c, d = weight.shape
        rows = torch.einsum("nikl,ijkl->nijl", rows.reshape(-1, a, c, d), weight).reshape(len(x), a * b * d)
    value = rows + leaves[-1]
    return [value.detach(), *torch.autograd.grad(value, leaves, cotangent.double())]


def step(call, layer, x, cotangent):
    value = call(x)
    return [value.detach(), *torch.autograd.grad(value, [x, *layer.weights, layer.bias], cotangent)]


def check(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, depth=400)


def operands(rows=7):
    layer = km.KSLinear(15, 18, PATTERNS)
    return layer, torch.randn(rows, 15, requires_grad=True), torch.randn(rows, 18)


@pytest.fixture
def bound(monkeypatch):
    """Count how often each operator is bound."""
    counted = Counter()
    for load in (km.KSLinear, km.kron_matmul):
        assert load, "which has operators of its own"
    for name, bind in list(call_site.BINDS.items()):

        def count(*args, name=name, bind=bind):
            counted[name] += 1
            return bind(*args)

        monkeypatch.setitem(call_site.BINDS, name, count)
    return counted


def test_steps_are_call_sites_that_find_what_was_bound(bound):
    layer, x, cotangent = operands()
    compiled = torch.compile(layer, fullgraph=True)
    found, codes = run_and_get_code(lambda: step(compiled, layer, x, cotangent))
    check(found, exact(layer, x, cotangent))
    for name, code in zip((CHAIN, f"{CHAIN}_backward"), codes, strict=True):
        assert f"CallSite('{name}')" in code
        assert "= torch.ops.kernmantle." not in code
    for _ in range(4):  # the first call has a mode around it, the backward pass new tensors each time, laid out alike
        x, cotangent = torch.randn_like(x, requires_grad=True), torch.randn_like(cotangent)
        check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))
    assert bound == {CHAIN: 2, f"{CHAIN}_backward": 1}


@pytest.mark.parametrize("change", ["configuration", "plans", "alignment"])
def test_what_was_bound_is_not_found_for_something_else(change, bound):
    layer, x, cotangent = operands()
    compiled = torch.compile(layer, fullgraph=True)
    for _ in range(2):
        step(compiled, layer, x, cotangent)
    before = bound[CHAIN]
    step(compiled, layer, x, cotangent)
    assert bound[CHAIN] == before
    if change == "configuration":
        with km.config(precision="ieee"):
            check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))
    elif change == "plans":
        clear_all()
        check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))
    else:
        odd = torch.empty(7 * 15 + 1)[1:].view(7, 15).copy_(x.detach()).requires_grad_()
        check(step(compiled, layer, odd, cotangent), exact(layer, odd, cotangent))
    assert bound[CHAIN] == before + 1


def test_two_layers_of_one_code_have_their_own_weights():
    """Equal code is one module of Python, so that both layers are called at the same call sites."""
    for _ in range(2):
        torch._dynamo.reset()
        layer, x, cotangent = operands()
        compiled = torch.compile(layer, fullgraph=True)
        for _ in range(2):
            check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))


def test_call_sites_hold_no_tensor():
    layer, x, cotangent = operands()
    compiled = torch.compile(layer, fullgraph=True)
    for _ in range(3):
        step(compiled, layer, x, cotangent)
    x, cotangent = torch.randn_like(x, requires_grad=True), torch.randn_like(cotangent)
    alive = [weakref.ref(each) for each in (x, cotangent, *step(compiled, layer, x, cotangent))]
    del x, cotangent
    gc.collect()
    assert [each() for each in alive] == [None] * len(alive)


def test_rows_that_change():
    layer, *_ = operands()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (7, 5, 7, 32, 5):
        x, cotangent = torch.randn(rows, 15, requires_grad=True), torch.randn(rows, 18)
        check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))


def test_kronecker_products(bound):
    x, f, g = given = [torch.randn(shape, requires_grad=True) for shape in [(6, 12), (3, 5), (4, 2)]]
    compiled = torch.compile(lambda x, f, g: km.kron_matmul(x, [f, g]), fullgraph=True)
    cotangent = torch.randn(6, 10)
    wide = [each.detach().double().requires_grad_() for each in given]
    value = wide[0] @ torch.kron(*wide[1:])
    wanted = [value.detach(), *torch.autograd.grad(value, wide, cotangent.double())]
    for _ in range(4):
        value = compiled(x, f, g)
        check([value.detach(), *torch.autograd.grad(value, given, cotangent)], wanted)
    assert bound == {"kron": 2, "kron_backward": 1}


@pytest.mark.parametrize("missing", ["add_layout_constraint", "constrain_to_fake_tensors", "register_lowering"])
def test_another_inductor_calls_the_operators(missing, monkeypatch):
    for name in call_site.BINDS:
        monkeypatch.delitem(lowering.lowerings, getattr(torch.ops.kernmantle, name).default, raising=False)
    with monkeypatch.context() as changed:
        ours = type(sys)("lowering")
        ours.__dict__.update({key: value for key, value in vars(lowering).items() if key != missing})
        changed.setitem(sys.modules, "torch._inductor.lowering", ours)
        layer, x, cotangent = operands()
        compiled = torch.compile(layer, fullgraph=True)
        found, codes = run_and_get_code(lambda: step(compiled, layer, x, cotangent))
    check(found, exact(layer, x, cotangent))
    assert not any("CallSite" in code for code in codes)
    assert all("= torch.ops.kernmantle." in code for code in codes)
    for name in call_site.BINDS:
        lowering.lowerings.pop(getattr(torch.ops.kernmantle, name).default, None)


def test_code_in_cpp_calls_the_operators():
    layer, x, cotangent = operands()
    with torch._inductor.config.patch(cpp_wrapper=True):
        compiled = torch.compile(layer, fullgraph=True)
        found, codes = run_and_get_code(lambda: step(compiled, layer, x, cotangent))
    check(found, exact(layer, x, cotangent))
    assert not any("CallSite" in code for code in codes)


def test_code_of_an_earlier_process_has_its_call_sites():
    """What Inductor stores on disk is read again without any lowering."""
    layer, x, cotangent = operands()
    step(torch.compile(layer, fullgraph=True), layer, x, cotangent)
    torch._dynamo.reset()
    for name in call_site.BINDS:
        lowering.lowerings.pop(getattr(torch.ops.kernmantle, name).default, None)
    torch._inductor.codecache.PyCodeCache.cache_clear()
    check(step(torch.compile(layer, fullgraph=True), layer, x, cotangent), exact(layer, x, cotangent))


@pytest.mark.parametrize("kind", ["factors", "matrix"])
@pytest.mark.parametrize("wanted", ["1111", "0111", "1001", "0010"])
@pytest.mark.parametrize("batch_last", [False, True])
def test_operators_of_a_chain_say_what_they_give(kind, wanted, batch_last):
    layer, x, cotangent = operands()
    x = x.detach()
    if batch_last:
        x, cotangent = x.T.contiguous(), cotangent.T.contiguous()
    weights, bias = [weight.detach() for weight in layer.weights], layer.bias.detach()
    forward, backward = (f"{kind} {each} {batch_last:d} auto " for each in (wanted[0], wanted))
    chain, gradients = (getattr(torch.ops.kernmantle, name).default for name in (CHAIN, f"{CHAIN}_backward"))
    torch.library.opcheck(chain, (x, weights, bias, forward), test_utils=("test_schema", "test_faketensor"))
    value, *saved = chain(x, weights, bias, forward)
    found = gradients(x, weights, saved, cotangent, backward)
    with FakeTensorMode(allow_non_fake_inputs=True):
        said = gradients(x, weights, saved, cotangent, backward)
    assert [(each.shape, each.stride()) for each in found] == [(each.shape, each.stride()) for each in said]
    rows, slopes = (x.T, cotangent.T) if batch_last else (x, cotangent)
    expected = exact(layer, rows, slopes)
    check([value.T if batch_last else value], expected[:1])
    own = [expected[1], expected[4], *expected[2:4]]  # of x, the bias and the weights
    wishes = [each for each, needs in zip(own, wanted, strict=True) if needs == "1"]
    if wanted[0] == "1" and batch_last:
        found[0] = found[0].T
    check(found, wishes)


def test_a_step_through_the_matrix(monkeypatch):
    monkeypatch.setattr(chain_training, "kind_for", lambda *_, **__: "matrix")
    layer, x, cotangent = operands()
    compiled = torch.compile(layer, fullgraph=True)
    for _ in range(3):
        check(step(compiled, layer, x, cotangent), exact(layer, x, cotangent))
