"""Layers of a module that make their matrices together, what kernels are told computed here, against dense layers."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_matrix, chain_products, chain_training
from kernmantle.structured.kronsparse import groups as grouping
from kernmantle.structured.kronsparse.group_op import count_of
from kernmantle.structured.kronsparse.matrices import MADE, TRACED
from kernmantle.structured.mode_product import grouped
from kernmantle.testing import assert_close
from tests.integration.test_kronsparse_train import Matmul, computed, launched

PATTERNS = ((6, 4, 3, 1), (1, 5, 12, 2)), ((2, 4, 5, 1), (1, 9, 4, 2)), ((3, 4, 6, 1), (1, 3, 6, 2))
"""18 to 10 to 18 to 6 features."""


class Model(nn.Module):
    """Three layers, the second of which is called where its input is positive, and one that is not grouped."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = (18, 10, 18, 6)
        self.layers = nn.ModuleList(
            km.KSLinear(sizes[at], sizes[at + 1], PATTERNS[at], dtype=torch.float64) for at in range(count)
        )
        self.last = km.KSLinear(6, 6, [(3, 2, 2, 1)], dtype=torch.float64)

    def forward(self, x: torch.Tensor, skips: bool = False) -> torch.Tensor:
        """Apply them."""
        first, second, third = self.layers
        x = first(x, activation="silu")
        if skips:
            return x.sum()
        return self.last(third(torch.tanh(second(x))))


@pytest.fixture
def model(monkeypatch):
    """A model whose launches are computed on the CPU, and in which every chain of two goes through its matrix."""

    def any_device(weights, dtype):
        return dtype is torch.float64 and chain_matrix.has_matrix(tuple(tuple(weight.shape) for weight in weights))

    for module, name, other in (
        (grouped, "bind_products", computed), (chain_matrix, "makes_matrix", any_device),
        (grouping, "makes_matrix", any_device), (grouping, "is_on_gpu", lambda _: True),
        (grouping, "shares_matrix", lambda *_: True), (chain_training, "shares_matrix", lambda *_: True),
        (chain_products, "matmul", lambda: Matmul),
        (chain_matrix, "factor_matrix", lambda: NoTiles),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, other)
    PLANS.clear()
    launched.clear()
    yield km.kronsparse.group(Model())
    PLANS.clear()
    assert MADE.matrices == TRACED.matrices == {}


class NoTiles:
    """No kernels of tiles."""

    @staticmethod
    def bind_matrix(*_):
        """None."""

    @staticmethod
    def bind_matrix_gradient(*_):
        """None."""


def dense(model: nn.Module, x: torch.Tensor, skips: bool = False) -> torch.Tensor:
    """The same by matrices."""
    first, second, third = model.layers
    linear = nn.functional.linear
    x = nn.functional.silu(linear(x, first.to_dense(), first.bias))
    if skips:
        return x.sum()
    x = linear(torch.tanh(linear(x, second.to_dense(), second.bias)), third.to_dense(), third.bias)
    return linear(x, model.last.to_dense(), model.last.bias)


def agrees(model: nn.Module, skips: bool = False) -> None:
    """Assert that values and all gradients are those of matrices."""
    leaves = [torch.randn(2, 3, 18, dtype=torch.float64, requires_grad=True)]
    leaves += [own for own in model.parameters() if own.requires_grad]
    found, wanted = model(leaves[0], skips), dense(model, leaves[0], skips)
    torch.testing.assert_close(found, wanted)
    slope = torch.randn_like(wanted)
    options = {"allow_unused": True, "materialize_grads": True}
    ours, theirs = (torch.autograd.grad(value, leaves, slope, **options) for value in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_one_launch_makes_the_matrices_and_one_takes_their_gradients_apart(model) -> None:
    for _ in range(3):
        agrees(model)
    assert launched == [3, 6] * 3
    assert [layer.info for layer in model.layers] == ["torch dense"] * 3
    assert model.last.info != "torch dense"


def test_changed_weights_are_seen_by_the_next_call(model) -> None:
    agrees(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    agrees(model)
    model.layers[0].weights[0].data = torch.randn(6, 4, 3, 1, dtype=torch.float64)
    agrees(model)


def test_layers_that_are_not_called_and_frozen_weights(model) -> None:
    agrees(model, skips=True)
    model.layers[0].weights[1].requires_grad_(False)
    model.layers[1].requires_grad_(False)
    agrees(model)
    agrees(model, skips=True)


def test_second_derivatives_and_many_cotangents(model) -> None:
    x = torch.randn(2, 18, dtype=torch.float64, requires_grad=True)
    leaves = [x, *model.parameters()]
    torch.autograd.gradcheck(lambda *_: model(x), leaves, fast_mode=True)
    torch.autograd.gradgradcheck(lambda *_: model(x), leaves, fast_mode=True)
    many = torch.randn(2, 2, 6, dtype=torch.float64)
    found = torch.autograd.grad(model(x), leaves, many, is_grads_batched=True)
    wanted = torch.autograd.grad(dense(model, x), leaves, many, is_grads_batched=True)
    torch.testing.assert_close(found, wanted)


def test_a_graph_that_is_kept_gives_the_same_twice(model) -> None:
    value = model(torch.randn(4, 18, dtype=torch.float64)).sum()
    first = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(value, list(model.parameters())), first)


def test_saved_tensors_that_hooks_move(model) -> None:
    def moved(own: torch.Tensor) -> torch.Tensor:
        order = range(own.dim() - 1, -1, -1)
        return own.detach().permute(*order).contiguous().permute(*order)

    with torch.autograd.graph.saved_tensors_hooks(moved, moved):
        agrees(model)


@pytest.mark.parametrize("how", ["no gradients", "other type", "transform", "precision"])
def test_other_calls_go_their_own_way(how, model) -> None:
    x = torch.randn(3, 18, dtype=torch.float64)
    if how == "other type":
        model.float()
        x = x.float()
        assert_close(model(x), dense(model.double(), x.double()), dtype=torch.float32, depth=64)
    elif how == "no gradients":
        with torch.no_grad():
            torch.testing.assert_close(model(x), dense(model, x))
    elif how == "transform":
        torch.testing.assert_close(torch.func.vmap(model)(x), dense(model, x))
    else:
        with km.config(precision="ieee"):
            torch.testing.assert_close(model(x), dense(model, x))
    assert launched == []


@pytest.mark.parametrize("within", [False, True], ids=["group", "group within a group"])
def test_a_compiled_step_has_two_operators_for_all_layers(within, model) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(module, _):
        called = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        graphs.extend(name for name in called if "kron_sparse" in name)
        return make_boxed_func(module.forward)

    own = km.kronsparse.group(nn.Sequential(model)) if within else model
    compiled = torch.compile(own, fullgraph=True, backend=aot_autograd(fw_compiler=backend))
    leaves = [torch.randn(2, 3, 18, dtype=torch.float64, requires_grad=True), *model.parameters()]
    for frozen in (None, model.layers[0].weights[1], None):
        if frozen is not None:
            frozen.requires_grad_(False)
        with torch.no_grad():
            for leaf in leaves:
                leaf.mul_(1.25)  # which the next call sees
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        launched.clear()
        found, wanted = compiled(leaves[0]), dense(model, leaves[0])
        torch.testing.assert_close(found, wanted)
        slope = torch.randn_like(wanted)
        ours, theirs = (torch.autograd.grad(value, asked, slope) for value in (found, wanted))
        torch.testing.assert_close(ours, theirs)
        assert launched == [3, 6]
        assert MADE.matrices == {}
        with km.config(precision="ieee"):  # which no kernel that takes several products in a launch has
            launched.clear()
            torch.testing.assert_close(torch.autograd.grad(compiled(leaves[0]), asked, slope), theirs)
            assert launched == []
        if frozen is not None:
            frozen.requires_grad_(True)
    chain, matrices = (f"kernmantle.kron_sparse_{name}" for name in ("chain", "matrices"))
    each = [f"{matrices}.default", f"{chain}.default", f"{chain}_backward.default", f"{matrices}_backward.default"]
    assert graphs[:4] == each


def test_code_that_is_broken_off_goes_on_without_matrices(model) -> None:
    torch._dynamo.reset()

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second, third = self.model.layers
            x = first(x, activation="silu")
            torch._dynamo.graph_break()
            return self.model.last(third(torch.tanh(second(x))))

    compiled = torch.compile(km.kronsparse.group(Broken()), backend="aot_eager")
    leaves = [torch.randn(4, 18, dtype=torch.float64, requires_grad=True), *model.parameters()]
    for _ in range(2):
        found, wanted = compiled(leaves[0]), dense(model, leaves[0])
        torch.testing.assert_close(found, wanted)
        ours, theirs = (torch.autograd.grad(value.sum(), leaves) for value in (found, wanted))
        torch.testing.assert_close(ours, theirs)
        assert TRACED.matrices == {}


def test_compiled_calls_of_any_number_of_rows_and_without_gradients(model) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    for rows in (4, 5, 7):
        x = torch.randn(rows, 18, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), dense(model, x))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), dense(model, x))
    assert launched == []


def test_groups_within_groups_and_calls_that_fail(model) -> None:
    outer = km.kronsparse.group(nn.Sequential(model))
    x = torch.randn(2, 18, dtype=torch.float64)
    torch.testing.assert_close(outer(x), dense(model, x))
    assert launched == [3]
    with pytest.raises(km.errors.ShapeError):
        outer(torch.randn(2, 17, dtype=torch.float64))
    agrees(model)


def test_copies_have_groups_of_their_own(model) -> None:
    agrees(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2)
    launched.clear()
    agrees(other)
    assert launched == [3, 6]
    agrees(model)


def test_threads_do_not_share_what_a_call_has_made(model) -> None:
    seen = []

    def look(*_) -> None:
        other = threading.Thread(target=lambda: seen.append(dict(MADE.matrices)))
        other.start()
        other.join()
        seen.append(len(MADE.matrices))

    model.layers[0].register_forward_pre_hook(look)
    model(torch.randn(2, 18, dtype=torch.float64))
    assert seen == [{}, 3]


@pytest.mark.parametrize("biased", [True, False])
def test_layers_of_the_same_rows_are_one_product(biased, model) -> None:
    chains = PATTERNS[0], ((3, 2, 6, 1), (1, 3, 6, 1)), PATTERNS[0]
    outs = [chain[-1][0] * chain[-1][1] * chain[-1][3] for chain in chains]
    layers = [km.KSLinear(18, out, chain, biased, dtype=torch.float64) for out, chain in zip(outs, chains, strict=True)]
    x = torch.randn(2, 3, 18, dtype=torch.float64, requires_grad=True)
    leaves = [x, *(own for layer in layers for own in layer.parameters())]
    linear = nn.functional.linear

    def apply(_=None):
        return km.kronsparse.apply_each(layers, x)

    for _ in range(2):
        launched.clear()
        found, wanted = apply(), [linear(x, layer.to_dense(), layer.bias) for layer in layers]
        torch.testing.assert_close(found, tuple(wanted))
        slopes = [torch.randn_like(value) for value in wanted]
        ours, theirs = (torch.autograd.grad(values, leaves, slopes) for values in (found, wanted))
        torch.testing.assert_close(ours, theirs)
        assert launched == [3, 6]
    torch.autograd.gradcheck(lambda *_: apply(), leaves, fast_mode=True)
    torch.autograd.gradgradcheck(lambda *_: apply(), leaves, fast_mode=True)
    launched.clear()
    with torch.no_grad():
        torch.testing.assert_close(apply(), tuple(wanted))
    layers[1].algorithm = "dense"
    torch.testing.assert_close(apply(), tuple(wanted))
    assert launched == []


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_model_of_tokens_is_a_group_too(how, model) -> None:
    torch._dynamo.reset()
    embedding = nn.Embedding(7, 18, dtype=torch.float64)
    own = km.kronsparse.group(nn.Sequential(embedding, Model()))
    called = own if how == "eager" else torch.compile(own, fullgraph=True, backend="aot_eager")
    for tokens in (torch.tensor([[1, 2, 6], [0, 3, 1]]), torch.tensor([4])):
        launched.clear()
        leaves = list(own.parameters())
        found, wanted = called(tokens), dense(own[1], embedding(tokens))
        torch.testing.assert_close(found, wanted)
        ours, theirs = (torch.autograd.grad(value.sum(), leaves) for value in (found, wanted))
        torch.testing.assert_close(ours, theirs)
        assert launched == [3, 6]


def test_rows_of_what_a_module_is_called_with() -> None:
    assert count_of((2, 3, 18), torch.bfloat16) == 6
    assert count_of((2, 3), torch.int64) == 6
    assert count_of((18,), torch.float32) == count_of((), torch.int64) == 1


def test_hooks_and_other_modules_are_called_by_layers_of_the_same_rows(model) -> None:
    x, seen = torch.randn(2, 18, dtype=torch.float64), []
    layers = [km.KSLinear(18, 10, PATTERNS[0], dtype=torch.float64) for _ in range(2)]
    wanted = [nn.functional.linear(x, layer.to_dense(), layer.bias) for layer in layers]
    handle = layers[1].register_forward_hook(lambda _, __, value: seen.append(value))
    torch.testing.assert_close(km.kronsparse.apply_each(layers, x), tuple(wanted))
    assert len(seen) == 1
    handle.remove()
    layers[0].forward = lambda x, _=None: km.KSLinear.forward(layers[0], x) * 2  # as libraries of hooks replace it
    torch.testing.assert_close(km.kronsparse.apply_each(layers, x), (2 * wanted[0], wanted[1]))
    wrapped = nn.Sequential(layers[1])
    torch.testing.assert_close(km.kronsparse.apply_each([wrapped, layers[1]], x), (wanted[1], wanted[1]))
    torch.testing.assert_close(km.kronsparse.apply_each([wrapped.forward, layers[1]], x), (wanted[1], wanted[1]))
    assert launched == []
    assert km.kronsparse.apply_each([], x) == ()


def test_biases_of_other_sizes_are_refused_though_they_fit_together(model) -> None:
    layers = [km.KSLinear(18, 10, PATTERNS[0], dtype=torch.float64) for _ in range(2)]
    for layer, size in zip(layers, (9, 11), strict=True):
        layer.bias = nn.Parameter(torch.ones(size, dtype=torch.float64))
    for _ in range(3):
        with pytest.raises(km.errors.ShapeError, match=r"bias has shape \(9,\)"):
            km.kronsparse.apply_each(layers, torch.randn(2, 18, dtype=torch.float64))


def test_layers_of_other_rows_are_refused_as_each_is(model) -> None:
    first, second, _ = model.layers
    first.register_forward_hook(lambda *_: pytest.fail("a layer ran"))
    with pytest.raises(km.errors.ShapeError, match=r"18 features on the last axis, the pattern .* takes a c d = 10"):
        km.kronsparse.apply_each([first, second], torch.randn(2, 18, dtype=torch.float64))


def test_more_layers_than_a_launch_takes(model) -> None:
    layers = [km.KSLinear(18, 18, ((6, 4, 3, 1), (1, 9, 12, 2)), dtype=torch.float64) for _ in range(8)]
    deep = km.kronsparse.group(nn.Sequential(*layers))
    x = torch.randn(2, 18, dtype=torch.float64, requires_grad=True)
    wanted = x
    for layer in layers:
        wanted = nn.functional.linear(wanted, layer.to_dense(), layer.bias)
    found = deep(x)
    torch.testing.assert_close(found, wanted)
    leaves = [x, *deep.parameters()]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves))
    assert launched == [6, 2, 12, 4]


def test_a_module_without_layers_is_refused() -> None:
    with pytest.raises(km.errors.ParameterError, match="replace_linears"):
        km.kronsparse.group(nn.Linear(2, 2))
    for wrong, said in (
        (3, "layers come first"),
        ({"a": nn.Linear(2, 2)}, "not dict"),
        ([None], r"layers\[0\] must be"),
    ):
        with pytest.raises(km.errors.ParameterError, match=said):
            km.kronsparse.apply_each(wrong, torch.ones(1, 2))
