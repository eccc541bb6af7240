"""Two layers as one step, what kernels are told computed here, against the composition of both."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import kernmantle as km
from kernmantle.structured.kronsparse import feed_forward, groups
from kernmantle.structured.mode_product import grouped
from tests.cases import every_subset
from tests.integration.test_kronsparse_train import computed, launched, seen, steps

assert steps  # a fixture
CHAINS = {
    "matrix": (((6, 4, 3, 1), (1, 5, 12, 2)), ((2, 4, 5, 1), (1, 9, 4, 2))),
    "batched": (((4, 16, 24, 1), (1, 40, 8, 8)), ((8, 16, 40, 1), (1, 12, 16, 8))),
}
LAUNCHED = "grouped", "matrix on addresses", "batched on addresses"
"""Kinds of steps whose passes are launches alone."""
KINDS = ("factors", "matrix", "batched", *LAUNCHED)


def layers_of(kind: str, bias: bool = True) -> list[km.KSLinear]:
    torch.manual_seed(0)
    found = []
    for chain in CHAINS["batched" if "batched" in kind else "matrix"]:
        (a, _, c, d), (p, q, _, r) = chain
        found.append(km.KSLinear(a * c * d, p * q * r, chain, bias, dtype=torch.float64))
    return found


def composed(x, first, second, activation, residual=None):
    value = second(getattr(nn.functional, activation)(first(x)))
    return value if residual is None else value + residual


joined = []
"""Whether slopes were taken, of each launch of an activation."""


class Activations:
    """Activations on addresses by torch."""

    @staticmethod
    def bind_activation(value, activation, slope):
        def launch(addresses):
            own, *grads, out = (seen(address, value.shape, value.stride()) for address in addresses)
            with torch.enable_grad():
                before = own.clone().requires_grad_()
                after = getattr(nn.functional, activation)(before)
            out.copy_(torch.autograd.grad(after, before, grads[0].clone())[0] if slope else after.detach())
            joined.append(slope)

        return launch


def on_addresses(monkeypatch) -> None:
    """Have steps whose passes are launches alone launch the activation as well."""
    joined.clear()
    for module, name, other in (
        (groups, "is_on_gpu", lambda _: True),
        (feed_forward, "activations", lambda: Activations),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, other)


@pytest.fixture
def use(steps, monkeypatch):
    """Use steps of a kind, in which nothing but the function of both layers launches."""
    on_addresses(monkeypatch)
    return steps


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind, activation, use) -> None:
    use(kind)
    first, second = layers_of(kind)
    for batch in ((8,), (2, 12)):
        x = torch.randn(*batch, first.in_features, dtype=torch.float64, requires_grad=True)
        residual = torch.randn(*batch, second.out_features, dtype=torch.float64, requires_grad=True)
        leaves = [x, residual, *first.parameters(), *second.parameters()]
        wanted = composed(x, first, second, activation, residual)
        slope = torch.randn_like(wanted)
        theirs = torch.autograd.grad(wanted, leaves, slope)
        adds = kind == "matrix on addresses"  # other steps add no residual
        for _ in range(3):  # the second step has what the first one bound
            found = km.kronsparse.mlp(x, first, second, activation, residual)
            assert type(found.grad_fn).__name__ == ("_JoinedBackward" if adds else "AddBackward0")
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(torch.autograd.grad(found, leaves, slope), theirs)
        strided = torch.randn(*batch, 2 * second.out_features, dtype=torch.float64)[..., ::2]
        ours = torch.autograd.grad(km.kronsparse.mlp(x, first, second, activation, residual), leaves, strided)
        torch.testing.assert_close(
            ours, torch.autograd.grad(composed(x, first, second, activation, residual), leaves, strided)
        )
        assert joined == [False, True] * 4 * (kind in LAUNCHED)
        joined.clear()
        leaves.pop(1)
        theirs = torch.autograd.grad(composed(x, first, second, activation), leaves, slope)
        for _ in range(3):
            found = km.kronsparse.mlp(x, first, second, activation)
            ours = torch.autograd.grad(found, leaves, slope, retain_graph=True)
            twice = torch.autograd.grad(found, leaves, 2 * slope)  # in memory of its own
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(twice, tuple(2 * each for each in theirs))
        assert joined == [False, True, True] * 3 * (kind in LAUNCHED)
        joined.clear()
    assert first.info
    assert second.info
    assert launched or kind in ("factors", "batched")


@pytest.mark.parametrize("kind", ["grouped", "matrix on addresses"])
@pytest.mark.parametrize("bias", [True, False])
def test_every_subset_of_gradients(kind, bias, use) -> None:
    use(kind)
    first, second = layers_of(kind, bias)
    x = torch.randn(3, first.in_features, dtype=torch.float64)
    residual = torch.randn(3, second.out_features, dtype=torch.float64)
    leaves = [x, residual, *first.parameters(), *second.parameters()]
    for own in every_subset(leaves):
        found, wanted = (
            km.kronsparse.mlp(x, first, second, "silu", residual),
            composed(x, first, second, "silu", residual),
        )
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), own), torch.autograd.grad(wanted.square().sum(), own)
        )


def test_second_derivatives_many_cotangents_and_saved_tensors_that_move(use) -> None:
    use("matrix on addresses")
    first, second = layers_of("matrix")
    x = torch.randn(2, 18, dtype=torch.float64, requires_grad=True)
    leaves = [x, *first.parameters(), *second.parameters()]

    def call(*_):
        return km.kronsparse.mlp(x, first, second, "silu", x)

    torch.autograd.gradcheck(call, leaves, fast_mode=True)
    torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    many = torch.randn(2, 2, 18, dtype=torch.float64)
    wanted = torch.autograd.grad(composed(x, first, second, "silu", x), leaves, many, is_grads_batched=True)
    torch.testing.assert_close(torch.autograd.grad(call(), leaves, many, is_grads_batched=True), wanted)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda own: own.mT.contiguous().mT if own.dim() > 1 else own.clone(), lambda own: own
    ):
        found = call()
    theirs = composed(x, first, second, "silu", x)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, many[0]), torch.autograd.grad(theirs, leaves, many[0])
    )


@pytest.mark.parametrize(
    "how",
    [
        "no gradients", "hook", "global hook", "own forward", "dense", "transform", "autocast", "broadcast residual",
        "wrong features", "batch last", "strided", "between vectors",
    ],
)  # fmt: skip
def test_other_calls_are_compositions(how, use) -> None:
    use("matrix on addresses")
    first, second = layers_of("matrix")
    x, residual, call = torch.randn(3, 18, dtype=torch.float64, requires_grad=True), None, km.kronsparse.mlp
    for _ in range(3):
        assert type(call(x, first, second).grad_fn).__name__ == "_JoinedBackward"
    if how == "hook":
        first.register_forward_hook(lambda *_: None)
    elif how == "own forward":
        first.forward = partial(km.KSLinear.forward, first)  # as libraries of hooks replace it
    elif how == "dense":
        first = nn.Linear(18, 10, dtype=torch.float64)
    elif how == "broadcast residual":
        residual = torch.randn(18, dtype=torch.float64)
    elif how == "batch last":
        first.batch_last = second.batch_last = True
        x = torch.randn(18, 18, dtype=torch.float64, requires_grad=True)
    elif how in ("strided", "between vectors"):
        memory = torch.randn(55, dtype=torch.float64)
        x = (memory[:54].view(18, 3).mT if how == "strided" else memory[1:].view(3, 18)).requires_grad_()
    elif how == "wrong features":
        with pytest.raises(km.errors.ShapeError):
            call(x[:, :17], first, second)
        return
    if how == "global hook":
        seen = []
        with nn.modules.module.register_module_forward_hook(lambda layer, *_: seen.append(layer)):
            found = call(x, first, second)
        assert [each for each in seen if isinstance(each, km.KSLinear)] == [first, second]
    elif how == "transform":
        found = torch.func.vmap(lambda row: call(row, first, second))(x)
    elif how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = call(x, first, second)
    else:
        with torch.set_grad_enabled(how != "no gradients"):
            found = call(x, first, second, residual=residual)
    torch.testing.assert_close(found, composed(x, first, second, "gelu", residual))
    assert "_JoinedBackward" not in type(found.grad_fn).__name__


class Feeding(nn.Module):
    """Both layers and what is added, as blocks of a transformer have them."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = layers_of("matrix", bias)
        self.activation = "gelu"

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Apply them as one step."""
        return km.kronsparse.mlp(x, self.first, self.second, self.activation, residual)


@pytest.fixture
def together(steps, monkeypatch):
    """Use layers that are quickest through matrices that are made together, on addresses."""
    steps("matrix on addresses")
    on_addresses(monkeypatch)
    for module, name, other in (
        (groups, "makes_matrix", lambda *_: True),
        (groups, "shares_matrix", lambda *_: True), (grouped, "bind_products", computed),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, other)


def residuals(*shape: int) -> list[torch.Tensor | None]:
    """Ones that lie in one piece, and that do not."""
    own = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    return [own, None, own.expand(1, *shape)[0], torch.randn(shape[-1], *shape[:-1]).double().movedim(0, -1)]


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_the_residual_are_launched_on_addresses(bias, together) -> None:
    own = Feeding(bias)
    for activation, batch in (("gelu", (8,)), ("relu", (2, 12)), ("silu", (3, 1))):
        own.activation = activation
        x = torch.randn(*batch, 18, dtype=torch.float64, requires_grad=True)
        for added in residuals(*batch, 18):
            leaves = [
                x,
                *own.parameters(),
                *([added] if added is not None and added.is_leaf and added.requires_grad else []),
            ]
            wanted = composed(x, own.first, own.second, activation, added)
            slope = torch.randn_like(wanted)
            theirs = torch.autograd.grad(wanted, leaves, slope)
            for _ in range(3):
                launched.clear()
                found = own(x, added)
                assert launched == [1, 1, 1, 1]
                adds = added is None or added.is_contiguous()
                assert type(found.grad_fn).__name__ == ("_JoinedBackward" if adds else "AddBackward0")
                torch.testing.assert_close(found, wanted)
                torch.testing.assert_close(torch.autograd.grad(found, leaves, slope), theirs)
    assert own.first.info == own.second.info == "torch dense"


def test_derivatives_of_steps_on_addresses(together) -> None:
    own = Feeding()
    own.activation = "silu"
    x = torch.randn(2, 18, dtype=torch.float64, requires_grad=True)
    leaves = [x, *own.parameters()]
    torch.autograd.gradcheck(lambda *_: own(x, x), leaves, fast_mode=True)
    torch.autograd.gradgradcheck(lambda *_: own(x, x), leaves, fast_mode=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: each.mT.contiguous().mT if each.dim() > 1 else each.clone(), lambda each: each
    ):
        found = own(x, x)
    theirs = composed(x, own.first, own.second, "silu", x)
    slope = torch.randn_like(theirs)
    wanted = torch.autograd.grad(theirs, leaves, slope)
    torch.testing.assert_close(torch.autograd.grad(found, leaves, slope), wanted)


@pytest.mark.parametrize("dense", ["none", "second"])
def test_layers_whose_matrices_a_group_has_made_are_called_one_by_one(dense, together) -> None:
    own = Feeding()
    if dense == "second":
        own.second.algorithm = "dense"
    x = torch.randn(3, 18, dtype=torch.float64, requires_grad=True)
    leaves = [x, *own.parameters()]
    grouped_call = km.kronsparse.group(own)
    for _ in range(4):
        found, wanted = grouped_call(x, x), composed(x, own.first, own.second, "gelu", x)
        assert type(found.grad_fn).__name__ == "AddBackward0"
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves))


def test_a_warm_call_sees_what_changes(use) -> None:
    use("matrix on addresses")
    first, second = layers_of("matrix")
    x, residual = (torch.randn(3, 18, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def warm():
        for _ in range(4):
            found = km.kronsparse.mlp(x, first, second, "gelu", residual)
        assert type(found.grad_fn).__name__ == "_JoinedBackward"

    def check(node, rows, added, activation="gelu"):
        found = km.kronsparse.mlp(rows, first, second, activation, added)
        assert (type(found.grad_fn).__name__ if found.requires_grad else "") == node
        torch.testing.assert_close(found, composed(rows, first, second, activation, added))
        warm()

    warm()
    check("_JoinedBackward", x, None)
    check("_JoinedBackward", x, residual, "relu")
    check("_JoinedBackward", torch.randn(7, 18, dtype=torch.float64, requires_grad=True), None)
    check("AddBackward0", x.detach(), residual.detach())
    check("AddBackward0", torch.randn(18, 3, dtype=torch.float64).mT.requires_grad_(), residual)
    with torch.no_grad():
        assert not km.kronsparse.mlp(x, first, second, "gelu", residual).requires_grad
    hook = second.register_forward_hook(lambda *_: torch.zeros(3, 18, dtype=torch.float64))
    torch.testing.assert_close(km.kronsparse.mlp(x, first, second, "gelu", residual), residual)
    hook.remove()
    warm()
    with torch.no_grad():
        first.weights[0].mul_(2)
    check("_JoinedBackward", x, residual)
    second = layers_of("matrix")[1]
    check("_JoinedBackward", x, residual)
    first.bias = None
    check("_JoinedBackward", x, residual)
    with km.config(precision="ieee"):
        found = km.kronsparse.mlp(x, first, second, "gelu", residual)
        assert type(found.grad_fn).__name__ == "AddBackward0"  # kernels multiply float32 in halves
        torch.testing.assert_close(found, composed(x, first, second, "gelu", residual))


def test_an_activation_is_needed() -> None:
    first, second = layers_of("matrix")
    for wrong in ("", None, "tanh", nn.GELU()):
        with pytest.raises(km.errors.ParameterError, match="activation must be one of 'relu', 'gelu', 'silu', not"):
            km.kronsparse.mlp(torch.randn(3, 18, dtype=torch.float64), first, second, wrong)
    for places, name in (((None, second), "first must be a layer, not NoneType"), ((first, first.bias), "second must")):
        with pytest.raises(km.errors.ParameterError, match=name):
            km.kronsparse.mlp(torch.randn(3, 18, dtype=torch.float64), *places)


class Halved(nn.Linear):
    """A gated linear unit, which gives half of its ``out_features``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return nn.functional.glu(super().forward(x))


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_said_before_a_layer_runs(kind, use) -> None:
    use(kind)
    first, second = layers_of("matrix")
    x = torch.randn(3, 18, dtype=torch.float64, requires_grad=True)
    wide = km.KSLinear(20, 18, [(2, 5, 10, 1), (1, 9, 5, 2)], dtype=torch.float64)
    message = r"residual has shape \(3, 17\), which does not broadcast to the result \(3, 18\)"
    with nn.modules.module.register_module_forward_pre_hook(lambda *_: pytest.fail("a layer ran")):
        for own in (first, nn.Linear(18, 10, dtype=torch.float64)):
            with pytest.raises(km.errors.ShapeError, match="first gives 10 features, but second takes 20"):
                km.kronsparse.mlp(x, own, wide)
            with pytest.raises(km.errors.ShapeError, match=message):
                km.kronsparse.mlp(x, own, second, residual=x[:, 1:])
    for _ in range(3):
        with pytest.raises(km.errors.ShapeError, match="first gives 10 features, but second takes 20"):
            km.kronsparse.mlp(x, first, wide)
        with pytest.raises(km.errors.ShapeError, match=r"residual has shape \(2, 3, 18\)"):
            km.kronsparse.mlp(x, first, second, residual=x.expand(2, 3, 18))
        with pytest.raises(km.errors.DtypeError, match="residual must be a torch tensor, not bool"):
            km.kronsparse.mlp(x, first, second, residual=True)
    assert km.kronsparse.mlp(x, first, second, residual=x[0]).shape == (3, 18)
    assert km.kronsparse.mlp(x, first, nn.LazyLinear(18, dtype=torch.float64), residual=x).shape == (3, 18)
    assert km.kronsparse.mlp(x, Halved(18, 20, dtype=torch.float64), second, residual=x).shape == (3, 18)
    first.register_forward_hook(lambda _, __, value: value.repeat(1, 2))
    assert km.kronsparse.mlp(x, first, wide, residual=x).shape == (3, 18)
    first, _ = layers_of("matrix")
    second.bias = nn.Parameter(torch.zeros(17, dtype=torch.float64))
    for _ in range(3):
        with pytest.raises(km.errors.ShapeError, match=r"bias has shape \(17,\)"):
            km.kronsparse.mlp(x, first, second)
