"""Calls whose plan is there already: with out=, params= and named operands they take the same path as without."""

import threading

import numpy as np
import pytest
import torch

import kernmantle as km
from kernmantle import errors
from kernmantle.runtime.dispatch import PLANS, CallKey
from kernmantle.testing import assert_close

WEIGHTED = km.Contraction("mk,nk,w:k->mn", lambda a, b, w: w * abs(a - b))


def weighted(x, y, w):
    return (w * (x[:, None, :] - y[None, :, :]).abs()).double().sum(-1)


def bound_calls(contraction):
    """How many calls of a contraction are bound."""
    return sum(key.operation == ("contraction", contraction.text) for key in keys())


def keys():
    """The keys of all bound calls, but for what is found by guards."""
    return [key for key in PLANS if isinstance(key, CallKey)]


def arrays(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y, w = (torch.rand(shape, generator=generator) for shape in ((7, 5), (9, 5), (5,)))
    return x, y, w


@pytest.mark.parametrize("given", ["name", "params"])
def test_named_operands_are_read_at_each_call(given):
    for seed in range(4):
        x, y, w = arrays(seed)
        found = WEIGHTED(x, y, w=w) if given == "name" else WEIGHTED(x, y, params={"w": w})
        assert_close(found, weighted(x, y, w), depth=5)
    assert bound_calls(WEIGHTED) > 0


def test_named_operands_of_other_layouts_are_other_calls():
    for seed in range(3):
        x, y, w = arrays(seed)
        for own in (w, torch.stack([w, -w], 1)[:, 0], w.expand(5)):
            assert_close(WEIGHTED(x, y, w=own), weighted(x, y, own), depth=5)
    with pytest.raises(errors.ShapeError, match="takes 2 operands, got 3"):
        WEIGHTED(x, y, w, w=w)
    with pytest.raises(errors.ParameterError, match="missing"):
        WEIGHTED(x, y)


def test_out_is_written_at_each_call():
    contraction = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p)
    out = torch.full((7, 9), float("nan"))
    for seed in range(4):
        x, y, _ = arrays(seed)
        before = out._version
        assert contraction(x, y, p=1.5 + seed, out=out) is out
        wanted = ((x[:, None, :] - y[None, :, :]).abs().double() ** (1.5 + seed)).sum(-1)
        assert_close(out, wanted, depth=5)
        assert out._version > before
        assert km.cdist(x, y, p=1, out=out) is out
        assert_close(out, torch.cdist(x.double(), y.double(), p=1), depth=5)
    assert bound_calls(contraction) > 0


def test_out_of_other_layouts_is_another_call():
    x, y, _ = arrays(0)
    wanted = torch.cdist(x.double(), y.double(), p=1)
    for _ in range(3):
        for out in (torch.empty(7, 9), torch.empty(9, 7).T, torch.empty(7, 18)[:, ::2]):
            assert_close(km.cdist(x, y, p=1, out=out), wanted, depth=5)
        found = np.empty((7, 9), np.float32)
        assert km.cdist(x.numpy(), y.numpy(), p=1, out=found) is found
        assert_close(torch.from_numpy(found), wanted, depth=5)


def test_what_out_may_not_be_is_refused_at_each_call():
    memory = torch.rand(7, 7)
    own = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b))
    own(memory[:, :7], torch.rand(7, 7), out=torch.empty(7, 7))
    for _ in range(2):
        own(memory, torch.rand(7, 7), out=torch.empty(7, 7))
        with pytest.raises(errors.OutputError, match="overlaps an operand"):
            own(memory, torch.rand(7, 7), out=memory)
        with pytest.raises(errors.GradientError, match="out requires a gradient"):
            own(memory, torch.rand(7, 7), out=torch.empty(7, 7, requires_grad=True))
        with pytest.raises(errors.GradientError, match="out= cannot be combined"):
            own(memory.clone().requires_grad_(), torch.rand(7, 7), out=torch.empty(7, 7))
        with pytest.raises(errors.OutputError, match="shape"):
            own(memory, torch.rand(7, 7), out=torch.empty(7, 8))
    with pytest.raises(errors.ParameterError, match="by name and in params="):
        WEIGHTED(*arrays(0)[:2], w=memory[0, :5], params={"w": memory[0, :5]})


def test_calls_with_gradients_are_bound_forward_and_backward():
    for seed in range(3):
        x, y, w = arrays(seed)
        leaves = [t.requires_grad_() for t in (x, y, w)]
        WEIGHTED(x, y, w=w).sum().backward()
        exact = [t.detach().double().requires_grad_() for t in leaves]
        weighted(*exact).sum().backward()
        for leaf, other in zip(leaves, exact, strict=True):
            assert_close(leaf.grad, other.grad, depth=9 * 7)
    operations = {key.operation[0] for key in keys()}
    assert {"contraction", "program", "backward"} <= operations


def test_a_warm_step_plans_nothing(monkeypatch):
    x, y, _ = arrays(0)
    x.requires_grad_()
    kernel = km.Laplace(2.0, p=1)
    for _ in range(2):
        kernel(x, y).sum().backward()
    before = x.grad.clone()
    monkeypatch.setattr(PLANS, "_insert", lambda *_: pytest.fail("a warm step was planned anew"))
    x.grad = None
    kernel(x, y).sum().backward()
    assert_close(2 * x.grad, before, depth=9)


def test_backward_passes_of_other_gradients_and_layouts_are_others():
    x, y, _ = arrays(0)
    x.requires_grad_(), y.requires_grad_()
    cotangent = torch.linspace(-1, 1, 63).view(7, 9)
    exact = [t.detach().double().requires_grad_() for t in (x, y)]
    wanted = torch.autograd.grad(torch.cdist(*exact, p=1), exact, cotangent.double())
    for _ in range(2):
        for own in (cotangent, cotangent.T.contiguous().T, torch.stack([cotangent, cotangent], 2)[..., 0]):
            found = torch.autograd.grad(km.cdist(x, y, p=1), (x, y), own)
            assert_close(found[0], wanted[0], depth=9)
            assert_close(found[1], wanted[1], depth=9)
            assert_close(torch.autograd.grad(km.cdist(x, y, p=1), y, own)[0], wanted[1], depth=9)
        for elsewhere in (torch.clone, lambda t: t.T.contiguous().T):
            with torch.autograd.graph.saved_tensors_hooks(elsewhere, lambda t: t):
                moved = km.cdist(x, y, p=1)
            assert_close(torch.autograd.grad(moved, y, cotangent)[0], wanted[1], depth=9)
        again = torch.autograd.grad(km.cdist(x, y, p=1), x, cotangent, create_graph=True)[0]
        assert again.requires_grad


@pytest.mark.parametrize("call", ["distance", "kron", "layer"])
def test_saved_tensors_that_come_back_to_their_memory_in_another_order(call):
    """As from a hook that keeps tensors elsewhere, and has their memory again when it brings them back."""
    x, other = torch.rand(6, 6), torch.rand(6, 6).requires_grad_()
    layer = km.KSLinear(6, 6, [(2, 3, 3, 1), (1, 6, 6, 1)])
    calls = {"distance": lambda: km.cdist(x, other, p=1), "kron": lambda: km.kron_matmul(x, [other])}
    own = calls.get(call, lambda: layer(x))
    leaf, cotangent = layer.weights[0] if call == "layer" else other, torch.rand(6, 6)
    wanted = [torch.autograd.grad(own(), leaf, cotangent)[0] for _ in range(3)][-1]
    memory = x.data_ptr()

    def back(pair):
        saved, values = pair
        return saved.copy_(values.T).T if saved.data_ptr() == memory else saved

    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t.detach(), t.clone()), back):
        moved = own()
    assert_close(torch.autograd.grad(moved, leaf, cotangent)[0], wanted, depth=36)
    assert x.data_ptr() == memory


def test_kernels_of_one_form_show_what_they_ran_as_themselves():
    x, y, _ = arrays(0)
    one, other, unused = (km.Gaussian(h) for h in (1.0, 2.0, 3.0))
    one(x, y)
    with km.config(backend="reference"):
        other(x, y)
        other.matmul(x, y, y[:, 0])
    assert "ran as llvm" in one.info
    assert "ran as reference" in other.info
    assert "product ran as" in other.info
    assert "product" not in one.info
    assert "ran as" not in unused.info
    one.max(x, y)
    assert "max ran as" in one.info
    assert "max" not in other.info


def test_threads_have_routes_of_their_own():
    x, y, _ = arrays(0)
    kernels = [km.Gaussian(1.0 + i) for i in range(4)]
    together = threading.Barrier(len(kernels), timeout=20)

    def work(index):
        with km.config(backend="reference" if index % 2 else "auto"):
            for _ in range(20):
                together.wait()
                kernels[index](x, y)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(kernels))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["ran as reference" in kernel.info for kernel in kernels] == [False, True, False, True]


@pytest.mark.parametrize("lengthscales", [False, True])
@pytest.mark.parametrize("how", ["matmul", "vector", "sum", "max", "min", "logsumexp"])
def test_products_and_reductions_of_kernels_are_bound(how, lengthscales):
    for seed in range(3):
        x, y, w = arrays(seed)
        kernel = km.Laplace(lengthscales=w + 0.5, p=1) if lengthscales else km.Laplace(2.0 + seed, p=1)
        own = ((x / (w + 0.5)), (y / (w + 0.5))) if lengthscales else (x / (2.0 + seed), y / (2.0 + seed))
        v = torch.rand(9, 2) if how == "matmul" else torch.rand(9)
        entries = torch.exp(-torch.cdist(*(t.double() for t in own), p=1))
        found = kernel.matmul(x, y, v) if how in ("matmul", "vector") else getattr(kernel, how)(x, y)
        wanted = entries @ v.double() if how in ("matmul", "vector") else {
            "sum": entries.sum(1), "max": entries.amax(1), "min": entries.amin(1), "logsumexp": entries.logsumexp(1)
        }[how]  # fmt: skip
        assert_close(found, wanted, depth=9 * 5)
        assert " ran as " in kernel.info
    own = [key for key in keys() if key.operation == ("reduction", kernel.form.key)]
    assert len({key.options for key in own}) >= 1


def test_what_a_product_may_not_take_is_refused_at_each_call():
    x, y, _ = arrays(0)
    kernel = km.Gaussian(1.5)
    for _ in range(2):
        kernel.matmul(x, y, torch.rand(9))
        with pytest.raises(errors.ShapeError):
            kernel.matmul(x, y, torch.rand(8))
        assert kernel.matmul(x, y, torch.rand(9, dtype=torch.float64)).dtype == torch.float64
        assert kernel.matmul(x.double(), y.double(), torch.rand(9).double()).dtype == torch.float64
        tracked = x.clone().requires_grad_()
        assert kernel.matmul(tracked, y, torch.rand(9)).requires_grad
        assert kernel.matmul(x, y, torch.rand(9)).numpy().shape == (7,)
        assert isinstance(kernel.sum(x.numpy(), y.numpy()), np.ndarray)
