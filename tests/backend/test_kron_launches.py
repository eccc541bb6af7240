"""Steps of Kronecker products whose passes are launches alone, whose kernels are interpreted, against float64."""

import math

import pytest
import torch

import kernmantle as km
from kernmantle.structured.kron import autograd, bound_gradients, linear
from kernmantle.testing import assert_close
from kernmantle.torch_ops.joined_launches import BothPasses

from ..gpu_on_host import gpu_on_host


@pytest.fixture
def started():
    """The launches on a GPU, by the plans of their kernels."""
    with gpu_on_host() as host:
        yield host.memory.launches


def _product(weights):
    found = weights[0]
    for weight in weights[1:]:
        found = torch.kron(found, weight)
    return found


@pytest.fixture
def both(monkeypatch):
    """Count passes that were launches on tables."""
    counted = {"run": 0, "run_backward": 0}
    for name in counted:
        own = getattr(BothPasses, name)

        def counting(*arguments, name=name, run=own):
            counted[name] += 1
            return run(*arguments)

        monkeypatch.setattr(BothPasses, name, counting)
    return counted


def drawn(*shape, dtype):
    return torch.randn(shape).to(dtype)


def applied(x, weights):
    """The product of x and the transposed weights, one after the other."""
    value, right = x, 1
    for weight in reversed(weights):
        value = weight @ value.reshape(-1, weight.shape[1], right)
        right *= weight.shape[0]
    return value.reshape(len(x), right)


def check(found, exact, depth):
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape
        assert_close(one, other, dtype=one.dtype, depth=depth, magnitude=other.abs().max())


PRODUCTS = {
    "a pass": (((32, 32), (32, 32)), 16, torch.float32), "of three": (((8, 8), (8, 8), (8, 8)), 16, torch.float32),
    "sums that apply": (((16, 16), (16, 16)), 16, torch.bfloat16), "two passes": (((32, 32),) * 3, 4, torch.float32),
    "oblong": (((64, 32), (64, 32)), 16, torch.float32),
    "a joint sum that applies": (((4, 4),) * 3, 1024, torch.float32),
    "the same of halves": (((4, 4),) * 3, 1024, torch.bfloat16),
    "a pass that saves": (((45, 45), (18, 18)), 579, torch.bfloat16),
    "the same of three": (((17, 17), (69, 69), (75, 75)), 3, torch.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("alpha", [1, -0.5])
@pytest.mark.parametrize("name", PRODUCTS)
def test_steps_of_adapters(name, alpha, started, both) -> None:
    """Each step is launches of both passes from the second one on, with weights that change."""
    sizes, rows, dtype = PRODUCTS[name]
    torch.manual_seed(0)
    x, weights = drawn(rows, math.prod(p for _, p in sizes), dtype=dtype), [drawn(*size, dtype=dtype) for size in sizes]
    leaves = [x.requires_grad_(), *[each.requires_grad_() for each in weights]]
    launches = []
    for number in range(3):
        with torch.no_grad():
            for each in leaves:
                each.mul_(-0.5)
        started.clear()
        if len(sizes) == 2:
            value = km.kron_linear(x, *weights, scale=alpha)
        else:
            value = km.kron_matmul(x, [each.mT for each in weights], alpha=alpha)
        cotangent = drawn(*value.shape, dtype=dtype)
        found = [value, *torch.autograd.grad(value, leaves, cotangent)]
        launches.append(dict(started))
        wide = [each.detach().double().requires_grad_() for each in leaves]
        exact = alpha * applied(wide[0], wide[1:])
        check(found, [exact, *torch.autograd.grad(exact, wide, cotangent.double())], 4 * (rows + x.shape[1]))
        assert both == {"run": number, "run_backward": number}
    assert launches[0] == launches[1] == launches[2]
    assert sum(launches[0].values()) > 2


def test_a_step_with_a_product_of_the_vendor_is_as_before(started, both) -> None:
    sizes = (5, 3), (4, 6), (7, 2)
    x, weights = drawn(1024, 36, dtype=torch.float32), [drawn(*size, dtype=torch.float32) for size in sizes]
    leaves = [each.requires_grad_() for each in (x, *weights)]
    wide = [each.detach().double().requires_grad_() for each in leaves]
    cotangent = drawn(1024, 140, dtype=torch.float32)
    exact = torch.autograd.grad(wide[0] @ _product(wide[1:]).mT, wide, cotangent.double())
    for _ in range(3):
        found = torch.autograd.grad(km.kron_matmul(x, [each.mT for each in weights]), leaves, cotangent)
        check(found, exact, 4096)
    assert started
    assert both == {"run": 0, "run_backward": 0}


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_every_subset_of_gradients(wanted, started) -> None:
    x, weights = drawn(16, 1024, dtype=torch.float32), [drawn(32, 32, dtype=torch.float32) for _ in range(2)]
    tensors, cotangent = [x, *weights], drawn(16, 1024, dtype=torch.float32)
    leaves = [tensors[number].requires_grad_() for number in wanted]
    wide = [each.detach().double().requires_grad_() for each in tensors]
    exact = torch.autograd.grad(
        wide[0] @ _product(wide[1:]).mT, [wide[number] for number in wanted], cotangent.double()
    )
    for _ in range(3):
        check(torch.autograd.grad(km.kron_linear(*tensors), leaves, cotangent), exact, 4096)
    for own in (leaves[:1], leaves):  # of those that are recorded one alone, and all again
        value = km.kron_linear(*tensors)
        check(torch.autograd.grad(value, own, cotangent), exact[: len(own)], 4096)


def test_a_base_is_added_and_has_the_gradient(started, both) -> None:
    tensors = [
        drawn(16, 1024, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
    ]
    base, cotangent = drawn(16, 1024, dtype=torch.float32), drawn(16, 1024, dtype=torch.float32)
    leaves = [each.requires_grad_() for each in (*tensors, base)]
    for number in range(3):
        value = km.kron_linear(*tensors, scale=2.0, base=base)
        wide = [each.detach().double().requires_grad_() for each in leaves]
        exact = 2 * wide[0] @ _product(wide[1:3]).mT + wide[3]
        found = [value, *torch.autograd.grad(value, leaves, cotangent)]
        check(found, [exact, *torch.autograd.grad(exact, wide, cotangent.double())], 4096)
        assert both["run_backward"] == number


def test_steps_that_overlap_and_graphs_that_are_kept(started, both, monkeypatch) -> None:
    tensors = [
        drawn(16, 1024, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
    ]
    leaves = [each.requires_grad_() for each in tensors]
    cotangents = [drawn(16, 1024, dtype=torch.float32) for _ in range(2)]
    wide = [each.detach().double().requires_grad_() for each in leaves]
    value = wide[0] @ _product(wide[1:]).mT

    def exact_of(cotangent):
        return torch.autograd.grad(value, wide, cotangent.double(), retain_graph=True)

    exact = [exact_of(each) for each in cotangents]
    torch.autograd.grad(km.kron_linear(*tensors), leaves, cotangents[0])
    first, second = km.kron_linear(*tensors), km.kron_linear(*tensors)
    check(torch.autograd.grad(second, leaves, cotangents[1]), exact[1], 4096)
    kept = torch.autograd.grad(first, leaves, cotangents[0], retain_graph=True)
    check(torch.autograd.grad(first, leaves, cotangents[1]), exact[1], 4096)
    check(kept, exact[0], 4096)
    assert both == {"run": 2, "run_backward": 2}
    turned = drawn(1024, 16, dtype=torch.float32).T
    for other, count in ((turned, 3), (torch.tensor(0.5).expand(16, 1024), 4)):  # a cotangent that lies otherwise
        found = torch.autograd.grad(km.kron_linear(*tensors), leaves, other)
        check(found, exact_of(other), 4096)
        assert both == {"run": count, "run_backward": count}
    monkeypatch.setattr(autograd, "MOST_READY", 0)  # a large one goes by other steps
    check(torch.autograd.grad(km.kron_linear(*tensors), leaves, turned), exact_of(turned), 4096)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda each: each):
        found = torch.autograd.grad(km.kron_linear(*tensors), leaves, cotangents[0])
    check(found, exact[0], 4096)
    assert both == {"run": 6, "run_backward": 4}


def test_rows_of_several_axes_are_those_of_one(started, both) -> None:
    x, base = drawn(2, 8, 1024, dtype=torch.float32), drawn(2, 8, 1024, dtype=torch.float32)
    leaves = [
        each.requires_grad_()
        for each in (x, base, drawn(32, 32, dtype=torch.float32), drawn(32, 32, dtype=torch.float32))
    ]
    wide, cotangent = (
        [each.detach().double().requires_grad_() for each in leaves],
        drawn(2, 8, 1024, dtype=torch.float32),
    )
    exact = torch.autograd.grad(wide[0] @ _product(wide[2:]).mT + wide[1], wide, cotangent.double())
    for _ in range(3):
        value = km.kron_linear(x, *leaves[2:], base=base)
        assert "View" not in str(value.grad_fn)
        check(torch.autograd.grad(value, leaves, cotangent), exact, 4096)
    assert both == {"run": 2, "run_backward": 2}


@pytest.mark.parametrize("lies", ["off by one", "in columns", "with room between", "once for all"])
def test_rows_that_a_pass_copies_go_step_by_step(lies, started, both) -> None:
    memory = {
        "off by one": lambda: drawn(16 * 1024 + 1, dtype=torch.float32)[1:].view(16, 1024),
        "in columns": lambda: drawn(1024, 16, dtype=torch.float32).T,
        "with room between": lambda: drawn(16, 1040, dtype=torch.float32)[:, :1024],
        "once for all": lambda: drawn(1, 1024, dtype=torch.float32).expand(16, 1024),
    }
    x, cotangent = memory[lies]().requires_grad_(), drawn(16, 1024, dtype=torch.float32)
    leaves = [x, *[drawn(32, 32, dtype=torch.float32).requires_grad_() for _ in range(2)]]
    wide = [each.detach().double().requires_grad_() for each in leaves]
    exact = torch.autograd.grad(wide[0] @ _product(wide[1:]).mT, wide, cotangent.double())
    for _ in range(4):
        check(torch.autograd.grad(km.kron_linear(*leaves), leaves, cotangent), exact, 4096)
    assert both == {"run": 0, "run_backward": 0}


def test_other_numbers_go_by_steps_of_their_own(started, both) -> None:
    tensors = [
        drawn(16, 1024, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
        drawn(32, 32, dtype=torch.float32),
    ]
    leaves, cotangent = [each.requires_grad_() for each in tensors], drawn(16, 1024, dtype=torch.float32)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    value = wide[0] @ _product(wide[1:]).mT
    exact = torch.autograd.grad(value, wide, cotangent.double())
    for scale in (0.5, 0.5, 3, 3, 0.5):
        found = torch.autograd.grad(km.kron_linear(*tensors, scale=scale), leaves, cotangent)
        check(found, [scale * each for each in exact], 4096)
    assert both["run_backward"] == 2


def test_large_arrays_between_steps_are_let_go_one_by_one(started, both, monkeypatch) -> None:
    monkeypatch.setattr(bound_gradients, "_MOST_BETWEEN", 1 << 10)
    tensors = [
        drawn(16, 256, dtype=torch.bfloat16),
        drawn(16, 16, dtype=torch.bfloat16),
        drawn(16, 16, dtype=torch.bfloat16),
    ]
    leaves = [each.requires_grad_() for each in tensors]
    for _ in range(3):
        torch.autograd.grad(km.kron_linear(*tensors).sum(), leaves)
    assert both == {"run": 0, "run_backward": 0}


def test_without_gradients_no_pass_takes_memory_for_them(started, both) -> None:
    tensors = [drawn(*shape, dtype=torch.float32) for shape in ((16, 1024), (32, 32), (32, 32))]
    leaves = [each.requires_grad_() for each in tensors]
    for _ in range(3):
        torch.autograd.grad(km.kron_linear(*tensors), leaves, torch.ones(16, 1024))
    assert both["run"] == 2
    exact = tensors[0].double() @ _product([each.double() for each in tensors[1:]]).mT
    for without in (torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with without():
                value = km.kron_linear(*tensors)
            assert value.grad_fn is None
            check([value], [exact], 4096)
    assert both["run"] == 2


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("records", [False, True])
def test_calls_that_come_again_are_not_checked_again(records, is_added, started, monkeypatch) -> None:
    tensors = [drawn(*shape, dtype=torch.float32) for shape in ((16, 1024), (32, 32), (32, 32), (16, 1024))]
    for each in tensors:
        each.requires_grad_(records)
    checked, check_one = [], linear._check
    monkeypatch.setattr(
        linear, "_check", lambda value, name, axes: checked.append(name) or check_one(value, name, axes)
    )
    base = tensors[3] if is_added else None

    def called(**others):
        checked.clear()
        km.kron_linear(*tensors[:3], **{"base": base, **others})
        return bool(checked)

    assert [called() for _ in range(4)] == [True, True, True, False]
    assert not called(scale=2)
    assert called(scale=torch.tensor(2.0))
    for _ in range(3):
        assert called(base=lambda _: tensors[3])
    with monkeypatch.context() as patch:
        patch.setattr(linear, "multiply", None)  # which dispatches
        called(base=lambda _: tensors[3])
    tensors[0] = drawn(17, 1024, dtype=torch.float32)
    if not is_added:
        assert called()
    else:
        with pytest.raises(km.errors.ShapeError, match="base gives"):
            called()
