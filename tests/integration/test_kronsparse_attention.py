"""Attention between two layers as one step, what kernels are told computed here, against the composition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernmantle as km
from tests.cases import every_subset
from tests.integration.test_kronsparse_mlp import on_addresses
from tests.integration.test_kronsparse_train import steps

assert steps  # a fixture
HEADS, WIDTH = 2, 32
CHAINS = ((4, 8, 4, 1), (1, 24, 8, 4)), ((4, 8, 8, 1), (1, 4, 8, 4))
LAUNCHED = "grouped", "matrix on addresses"


@pytest.fixture
def use(steps, monkeypatch):
    """Use steps of a kind, in which nothing but the function of both layers launches."""
    on_addresses(monkeypatch)
    return steps


def layers_of(bias: bool = True) -> list[km.KSLinear]:
    torch.manual_seed(0)
    return [
        km.KSLinear(columns, rows, chain, bias, dtype=torch.float64)
        for columns, rows, chain in zip((16, WIDTH), (3 * WIDTH, 16), CHAINS, strict=True)
    ]


def composed(x, qkv, proj, is_causal=False, residual=None):
    """Return the same by the definition of attention."""
    queries, keys, values = (each.unflatten(-1, (HEADS, -1)).transpose(-2, -3) for each in qkv(x).chunk(3, -1))
    scores = queries @ keys.mT / (WIDTH // HEADS) ** 0.5
    if is_causal:
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
    value = proj((scores.softmax(-1) @ values).transpose(-2, -3).flatten(-2))
    return value if residual is None else value + residual


def operands():
    torch.manual_seed(1)
    return [torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True) for _ in range(2)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", ["factors", "matrix", *LAUNCHED])
def test_values_and_gradients(kind, is_causal, bias, use) -> None:
    use(kind)
    qkv, proj = layers_of(bias)
    x, residual = operands()
    for added in (residual, x, None):
        leaves = [x, *([residual] * (added is residual)), *qkv.parameters(), *proj.parameters()]
        wanted = composed(x, qkv, proj, is_causal, added)
        slope = torch.randn_like(wanted)
        theirs = torch.autograd.grad(wanted, leaves, slope)
        for _ in range(4):
            found = km.kronsparse.attention(x, qkv, proj, HEADS, is_causal, added)
            joined = kind == "matrix on addresses" or (kind in LAUNCHED and added is None)
            assert (type(found.grad_fn).__name__ == "_JoinedBackward") == joined
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(torch.autograd.grad(found, leaves, slope, retain_graph=True), theirs)
            torch.testing.assert_close(torch.autograd.grad(found, leaves, slope), theirs)
        strided = torch.randn(2, 5, 32, dtype=torch.float64)[..., ::2]
        ours = torch.autograd.grad(km.kronsparse.attention(x, qkv, proj, HEADS, is_causal, added), leaves, strided)
        again = torch.autograd.grad(composed(x, qkv, proj, is_causal, added), leaves, strided)
        torch.testing.assert_close(ours, again)


@pytest.mark.parametrize("bias", [True, False])
def test_every_subset_of_gradients(bias, use) -> None:
    use("matrix on addresses")
    qkv, proj = layers_of(bias)
    x, residual = operands()
    leaves = [x, residual, *qkv.parameters(), *proj.parameters()]
    for own in every_subset(leaves):
        found = km.kronsparse.attention(x, qkv, proj, HEADS, True, residual)
        wanted = composed(x, qkv, proj, True, residual)
        for some in (own, own[:1]):
            torch.testing.assert_close(
                torch.autograd.grad(found.square().sum(), some, retain_graph=True),
                torch.autograd.grad(wanted.square().sum(), some, retain_graph=True),
            )


@pytest.mark.parametrize("is_causal", [True, False])
def test_second_derivatives_many_cotangents_and_saved_tensors_that_move(is_causal, use) -> None:
    use("matrix on addresses")
    qkv, proj = layers_of()
    x, _ = operands()
    leaves = [x, *qkv.parameters(), *proj.parameters()]

    def call(*_):
        found = km.kronsparse.attention(x, qkv, proj, HEADS, is_causal, x)
        assert type(found.grad_fn).__name__ == "_JoinedBackward"
        return found

    torch.autograd.gradcheck(call, leaves, fast_mode=True)
    torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    theirs = composed(x, qkv, proj, is_causal, x)
    slope = torch.randn_like(theirs)
    wanted = torch.autograd.grad(theirs, leaves, slope)
    moves = (lambda own: own.mT.contiguous().mT if own.dim() > 1 else own.clone()), torch.clone
    for move in moves:
        with torch.autograd.graph.saved_tensors_hooks(move, lambda own: own):
            value = call()
        found = torch.autograd.grad(value, leaves, slope)
        torch.testing.assert_close(found, wanted)
        assert not any(each.requires_grad for each in found)


class Attending(nn.Module):
    """Both layers, as a block has them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = layers_of()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply them."""
        return km.kronsparse.attention(x, self.qkv, self.proj, HEADS, True, x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant, use) -> None:
    use("matrix on addresses")
    own = Attending()
    x, _ = operands()
    leaves = [x, *own.parameters()]
    composed(x, own.qkv, own.proj, True, x).square().sum().backward()
    wanted = [each.grad for each in leaves]
    for _ in range(3):
        for each in leaves:
            each.grad = None
        torch.utils.checkpoint.checkpoint(own, x, use_reentrant=reentrant).square().sum().backward()
        torch.testing.assert_close([each.grad for each in leaves], wanted)


def test_a_warm_call_sees_what_changes(use) -> None:
    use("matrix on addresses")
    own = Attending()
    x, other = operands()

    def check(node="_JoinedBackward", rows=x, heads=HEADS, is_causal=True):
        for _ in range(4):
            found = km.kronsparse.attention(rows, own.qkv, own.proj, HEADS, is_causal, rows)
            assert (type(found.grad_fn).__name__ if found.requires_grad else "") == node
        torch.testing.assert_close(found, composed(rows, own.qkv, own.proj, is_causal, rows))

    check()
    check(is_causal=False)
    check(rows=other)
    check("AddBackward0", rows=torch.randn(5, 2, 16, dtype=torch.float64).transpose(0, 1))
    with torch.no_grad():
        own.qkv.weights[0].mul_(2)
        check("")
    check()
    hook = own.proj.register_forward_hook(lambda *_: torch.zeros(2, 5, 16, dtype=torch.float64))
    torch.testing.assert_close(own(x), x)
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert own(x).grad_fn is not None
    check()
    found = own(x)
    with torch.no_grad():
        own.qkv.weights[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 5, 16), (0, 5, 16), (2, 1, 16)])
def test_other_shapes(shape, use) -> None:
    use("matrix on addresses" if 0 not in shape else "factors")
    qkv, proj = layers_of()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = km.kronsparse.attention(x, qkv, proj, HEADS)
    torch.testing.assert_close(found, composed(x, qkv, proj))


def test_a_compiled_graph_and_a_group_have_the_composition(use) -> None:
    use("matrix on addresses")
    own = Attending()
    x, _ = operands()
    wanted = composed(x, own.qkv, own.proj, True, x)
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), wanted)
    slopes = (torch.autograd.grad(each.square().sum(), [x, *own.parameters()]) for each in (compiled(x), wanted))
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(km.kronsparse.group(own)(x), wanted.detach())


def test_wrong_arguments() -> None:
    qkv, proj = layers_of()
    x, _ = operands()
    for heads in (0, -2):
        with pytest.raises(km.errors.ParameterError, match="heads"):
            km.kronsparse.attention(x, qkv, proj, heads)
    with pytest.raises(km.errors.ShapeError, match="three times 5 heads"):
        km.kronsparse.attention(x, qkv, proj, 5)
    with pytest.raises(km.errors.ParameterError, match="proj must be a layer, not NoneType"):
        km.kronsparse.attention(x, qkv, None, 2)
    with pytest.raises(km.errors.ParameterError, match="causal must be True or False, not Tensor; no mask is taken"):
        km.kronsparse.attention(x, qkv, proj, HEADS, causal=torch.ones(5, 5))
    with pytest.raises(km.errors.ShapeError, match=r"x has shape \(16,\); attention takes \(..., tokens, features\)"):
        km.kronsparse.attention(x[0, 0], qkv, proj, HEADS)


@pytest.mark.parametrize("kind", ["factors", "matrix", *LAUNCHED])
def test_what_does_not_fit_is_said_before_a_layer_runs(kind, use) -> None:
    use(kind)
    qkv, proj = layers_of()
    x, _ = operands()
    wide = km.KSLinear(48, 16, [(4, 4, 12, 1)], dtype=torch.float64)
    for _ in range(3):
        with pytest.raises(km.errors.ShapeError, match="qkv gives 96 features, not 3 times the 48 that proj takes"):
            km.kronsparse.attention(x, qkv, wide, HEADS)
        with pytest.raises(km.errors.ShapeError, match=r"residual has shape \(2, 5, 15\)"):
            km.kronsparse.attention(x, qkv, proj, HEADS, residual=x[..., 1:])
    with nn.modules.module.register_module_forward_pre_hook(lambda *_: pytest.fail("a layer ran")):
        for layer, message in ((wide, "not 3 times the 48"), (proj, "residual")):
            with pytest.raises(km.errors.ShapeError, match=message):
                km.kronsparse.attention(x, qkv, layer, HEADS, residual=x[..., 1:])
        for heads, causal in ((5, False), (HEADS, 1)):
            with pytest.raises(km.errors.KernmantleError):
                km.kronsparse.attention(x, qkv, proj, heads, causal)
