"""Torch's fused attention and its gradients, without a node of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from .torch_private import fused_attention_kind

_aten: Any = torch.ops.aten
_FLASH, _EFFICIENT, _CUDNN = 1, 2, 3
"""Kinds that have operators of their own, as ``torch.nn.attention.SDPBackend`` numbers them."""


def attend(each: Sequence[torch.Tensor], is_causal: bool) -> tuple[torch.Tensor, Sequence[torch.Tensor], Any]:
    """Return the attention of queries, keys and values (batch, heads, tokens, numbers), and what its gradients read.

    That is tensors, and how it was taken: the kind is torch's choice in the context of this call.
    """
    queries, keys, values = each
    kind = fused_attention_kind(queries, keys, values, is_causal) if queries.is_cuda else 0
    if kind == _FLASH:
        out, sums, *rest = _aten._scaled_dot_product_flash_attention.default(queries, keys, values, 0.0, is_causal)
        return out, (sums,), (kind, *rest[:6])
    if kind == _CUDNN:
        out, sums, *rest = _aten._scaled_dot_product_cudnn_attention.default(
            queries, keys, values, None, True, 0.0, is_causal
        )
        return out, (sums,), (kind, *rest[:6])
    if kind == _EFFICIENT:
        out, sums, seed, offset = _aten._scaled_dot_product_efficient_attention.default(
            queries, keys, values, None, True, 0.0, is_causal
        )
        return out, (sums,), (kind, seed, offset)
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=is_causal), (), (0,)


def attend_backward(
    grad: torch.Tensor, each: Sequence[torch.Tensor], out: torch.Tensor, found: tuple[Sequence[torch.Tensor], Any],
    is_causal: bool,
) -> Sequence[torch.Tensor]:  # fmt: skip
    """Return the gradients of queries, keys and values from that of the result ``out``."""
    (saved, (kind, *rest)), (queries, keys, values) = found, each
    if kind == _FLASH:
        starts, ends, most, longest, seed, offset = rest
        return _aten._scaled_dot_product_flash_attention_backward.default(
            grad, queries, keys, values, out, *saved, starts, ends, most, longest, 0.0, is_causal, seed, offset
        )
    if kind == _CUDNN:
        starts, ends, most, longest, seed, offset = rest
        return _aten._scaled_dot_product_cudnn_attention_backward.default(
            grad, queries, keys, values, out, *saved, seed, offset, None, starts, ends, most, longest, 0.0, is_causal
        )
    if kind == _EFFICIENT:
        return _aten._scaled_dot_product_efficient_attention_backward.default(
            grad, queries, keys, values, None, out, *saved, *rest, 0.0, [True, True, True, False], is_causal
        )[:3]
    with torch.enable_grad():
        own = [each.detach().requires_grad_() for each in (queries, keys, values)]
        value = functional.scaled_dot_product_attention(own[0], own[1], own[2], is_causal=is_causal)
        return torch.autograd.grad(value, own, grad)
