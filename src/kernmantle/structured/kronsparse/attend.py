"""Attention between a layer of queries, keys and values and a projection, as one step of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...checks import integer
from ...errors import ParameterError, ShapeError
from ...torch_ops.fused_attention import attend, attend_backward
from ...torch_ops.joined_launches import BothPasses, Ready
from ..mode_product.torch_op import Maybe, Options
from .chain_autograd import factor_by_factor
from .chain_launches import passes_of_step
from .chain_products import Weights
from .joined_layers import StepPasses, apply_joined, check_layers, features
from .linear import KSLinear

_VECTOR = 8  # numbers of a head of which fused attention takes multiples


def attention(
    x: torch.Tensor,
    qkv: nn.Module,
    proj: nn.Module,
    heads: int,
    causal: bool = False,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply multi-head attention between two layers: ``proj(attention(qkv(x))) + residual``.

    An eager training step of two :class:`KSLinear` layers on a GPU is one node of the graph of autograd, in which
    torch's fused attention runs between the launches of both layers. Everything else is the composition of the three.

    Parameters
    ----------
    x : tensor (..., tokens, in_features)
        Sequences.
    qkv : Module
        The layer of queries, keys and values: ``(..., tokens, in_features)`` to ``(..., tokens, 3 width)``, first the
        queries of all heads, then keys, then values.
    proj : Module
        The layer behind it, of ``width`` features.
    heads : int
        It divides ``width``.
    causal : bool
        Whether a token sees only itself and those before it.
    residual : tensor (..., tokens, out_features), optional
        Added to the result.

    Returns
    -------
    tensor (..., tokens, out_features)

    Raises
    ------
    ParameterError
        For what is no layer, a number of heads that is not positive, or a mask as ``causal``.
    ShapeError
        For features of ``qkv`` that are not three times as many heads or do not fit ``proj``, and a residual that does
        not broadcast to the result.
    DtypeError
        For a residual that is no tensor. Errors are raised before a layer runs where its features are known.

    Notes
    -----
    Cost: the FLOP of both layers and of ``torch.nn.functional.scaled_dot_product_attention``, whose kernels run.
    Gradients exist for x, the residual and the parameters of both layers; a step whose gradients are differentiated
    again is the composition. With masks, dropout or grouped queries, write the three out:
    :func:`kernmantle.kronsparse.apply_each` shares the product of several projections.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> qkv = km.KSLinear(64, 192, km.kronsparse.monarch((192, 64), 4, 4))
    >>> proj, x = km.KSLinear(64, 64, km.kronsparse.monarch((64, 64), 4, 4)), torch.randn(2, 5, 64)
    >>> km.kronsparse.attention(x, qkv, proj, heads=4, residual=x).shape
    torch.Size([2, 5, 64])
    """
    if not torch.compiler.is_compiling():  # which guards all that checks read at every call
        if isinstance(qkv, KSLinear) and isinstance(proj, KSLinear):
            kind = "attention", heads, causal
            found = apply_joined(kind, partial(_bind, qkv.out_features, *kind[1:]), x, qkv, proj, residual, 3)
            if found is not None:
                return found
        check_layers(x, residual, 3, qkv=qkv, proj=proj)
        _check_heads(heads, causal, features(qkv, "out"))
        if isinstance(x, torch.Tensor) and x.dim() < 2:
            raise ShapeError(f"x has shape {tuple(x.shape)}; attention takes (..., tokens, features)")
    joint = qkv(x)
    _check_heads(heads, causal, joint.shape[-1])
    value = proj(_mixed(joint, heads, causal))
    return value if residual is None else value + residual


def _check_heads(heads: int, causal: bool, width: int) -> None:
    """Raise the error that says why so many features are no queries, keys and values of these heads."""
    if not isinstance(causal, bool):
        raise ParameterError(f"causal must be True or False, not {type(causal).__name__}; no mask is taken")
    if width % (3 * integer(heads, "heads")):
        raise ShapeError(f"qkv gives {width} features, which are not three times {heads} heads of as many numbers")


def _mixed(joint: torch.Tensor, heads: int, causal: bool) -> torch.Tensor:
    """Return the attention of (..., tokens, 3 width) queries, keys and values."""
    each = joint.unflatten(-1, (3, heads, -1)).movedim(-3, 0).transpose(-2, -3)
    mixed = functional.scaled_dot_product_attention(each[0], each[1], each[2], is_causal=causal)
    return mixed.transpose(-2, -3).flatten(-2)


def _mixed_by_products(joint: torch.Tensor, heads: int, causal: bool) -> torch.Tensor:
    """Return the attention by operations that have derivatives of every order."""
    queries, keys, values = joint.unflatten(-1, (3, heads, -1)).movedim(-3, 0).transpose(-2, -3).unbind(0)
    scores = queries @ keys.mT * queries.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return (scores.softmax(-1) @ values).transpose(-2, -3).flatten(-2)


@dataclass(frozen=True, eq=False)
class _Attention:
    """Passes of both layers, of which the first one has ``count`` weights and the second one ``rest``.

    ``shape`` is that of what lies between: sequences, tokens, three, heads and their numbers.
    """

    first: BothPasses
    second: BothPasses
    count: int
    rest: int
    shape: tuple[int, ...]
    causal: bool

    def run(
        self, x: torch.Tensor, others: Sequence[Maybe], weights: Weights
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[Ready], Any]:
        """Return the result, what is saved, memory of the backward pass, and what else that reads."""
        bias, other_bias, residual = others
        joint, _, saved, ready = self.first.run((*weights[: self.count], x), (bias, None))
        mixed, found, how = attend(self._each(joint), self.causal)
        mixed = mixed.transpose(1, 2)
        if not mixed.is_contiguous():
            mixed = mixed.contiguous()
        value, _, other, second = self.second.run((*weights[self.count :], mixed), (other_bias, residual))
        return (
            value,
            (*weights, x, joint, mixed, *saved, *other, *found),
            (ready, second),
            (len(saved), len(other), how),
        )

    def _each(self, joint: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return queries, keys and values (sequences, heads, tokens, numbers)."""
        return joint.view(self.shape).permute(2, 0, 3, 1, 4).unbind()

    def run_backward(
        self, saved: Sequence[torch.Tensor], at: list[int], grad: torch.Tensor, ready: Sequence[Ready], rest: Any
    ) -> Sequence[Maybe]:
        """Return the gradients."""
        count, other, *rest = rest
        begin, first, total = self.count + self.rest + 3, self.count, self.count + self.rest
        joint, mixed = saved[begin - 2 : begin]
        ends = begin + count, begin + count + other
        one, two = ready or (None, None)
        read = [*at[first:total], at[begin - 1], *at[ends[0] : ends[1]]]
        of_mixed, of_other, *of_rest = self.second.run_backward(read, grad, two)
        sequences, tokens, _, heads, size = self.shape
        of_heads = of_mixed.view(sequences, tokens, heads, size).transpose(1, 2)  # pyright: ignore
        out, how = mixed.transpose(1, 2), (saved[ends[1] :], *rest)
        each = attend_backward(of_heads, self._each(joint), out, how, self.causal)
        moved = torch.stack([own.transpose(1, 2) for own in each], 2)
        read = [*at[:first], at[total], *at[begin : ends[0]]]
        of_x, of_bias, *of_first = self.first.run_backward(read, moved, one)
        return of_x, of_bias, of_other, *of_first, *of_rest

    def composed(self, x: torch.Tensor, bias: Maybe, weights: Weights, options: Options, records: bool) -> torch.Tensor:
        """Return the result without the second bias."""
        joint = factor_by_factor(x, weights[: self.count], bias, "", options)
        mixed = (_mixed_by_products if records else _mixed)(joint, self.shape[3], self.causal)
        return factor_by_factor(mixed, weights[self.count :], None, "", options)


def _bind(width: int, heads: int, causal: bool, steps: Sequence[StepPasses], x: torch.Tensor) -> _Attention | None:
    """Return both passes; None for other rows than sequences of tokens, and for heads of no whole vectors."""
    _check_heads(heads, causal, width)
    if x.dim() != 3 or width // (3 * heads) % _VECTOR:
        return None
    first, second = (passes_of_step(step.forward, step.backward, step.weights, x.element_size()) for step in steps)
    shape = *x.shape[:2], 3, heads, width // (3 * heads)
    return _Attention(first, second, steps[0].weights, steps[1].weights, shape, causal)
