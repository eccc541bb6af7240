"""Backward passes that a call binds once, found again by the addresses of the saved tensors.

A pass is bound for tensors of one layout. It fits another backward pass of the same call if each saved tensor is
contiguous and has the address that it had, and each cotangent is contiguous. Addresses alone are not enough: a hook
that moves saved tensors elsewhere may return them at the same address in another memory order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch

from .torch_private import plain

Key = TypeVar("Key")
Pass = TypeVar("Pass")
Maybe = torch.Tensor | None


_address, _is_in_one_piece = torch.Tensor.data_ptr, torch.Tensor.is_contiguous


def addresses(tensors: Sequence[Maybe]) -> list[int]:
    """Return the addresses of tensors, 0 for None."""
    try:
        return list(map(_address, tensors))  # pyright: ignore[reportArgumentType]
    except TypeError:  # for None, if not all gradients are needed
        return [0 if each is None else each.data_ptr() for each in tensors]


def bound_pass(
    passes: Mapping[Key, Pass], key: Key, before: list[int], saved: Sequence[Maybe], grads: Sequence[torch.Tensor]
) -> Pass | None:
    """Return the pass of a call that fits saved tensors and cotangents; None on a miss, and under a transform.

    ``key`` says which gradients are needed, ``before`` are the addresses of the tensors when they were saved.
    """
    found = passes.get(key)
    if found is None or torch.is_grad_enabled() or not plain(grads):
        return None
    for grad in grads:
        if not grad.is_contiguous() or grad.data_ptr() % 16:
            return None
    return found if lie(before, saved) else None


def keep_pass(
    passes: dict[Key, Pass], key: Key, before: list[int], saved: Sequence[Maybe], grads: Sequence[torch.Tensor],
    found: Pass,
) -> None:  # fmt: skip
    """Store a pass that was bound for these tensors, so that :func:`bound_pass` can find it."""
    if lie(before, saved) and all(grad.is_contiguous() and grad.data_ptr() % 16 == 0 for grad in grads):
        passes[key] = found


def lie(before: list[int], saved: Sequence[Maybe]) -> bool:
    """Return whether tensors have the same addresses as before and are contiguous."""
    try:
        return before == list(map(_address, saved)) and all(map(_is_in_one_piece, saved))  # pyright: ignore
    except TypeError:
        return before == addresses(saved) and all(each is None or each.is_contiguous() for each in saved)
