"""Backward passes that a call binds once, found again by where the tensors lie that its forward pass saved.

A pass is bound for tensors of one layout. It fits those of another backward pass of the same call where each of them
is in one piece and lies where it lay, and each cotangent is in one piece. Addresses alone are not enough: a hook that
keeps tensors elsewhere may bring them back to their memory in another order.
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
    """Return where tensors lie, 0 for none."""
    try:
        return list(map(_address, tensors))  # pyright: ignore[reportArgumentType]
    except TypeError:  # of None, where few gradients are wanted
        return [0 if each is None else each.data_ptr() for each in tensors]


def bound_pass(
    passes: Mapping[Key, Pass], key: Key, before: list[int], saved: Sequence[Maybe], grads: Sequence[torch.Tensor]
) -> Pass | None:
    """Return the pass of a call that fits saved tensors and cotangents; None without one, and while it is watched.

    ``key`` says which gradients are needed, ``before`` are the addresses of the tensors when they were saved.
    """
    found = passes.get(key)
    if found is None or torch.is_grad_enabled() or not plain(grads):
        return None
    for grad in grads:
        if not grad.is_contiguous() or grad.data_ptr() % 16:
            return None
    return found if _lie(before, saved) else None


def keep_pass(
    passes: dict[Key, Pass], key: Key, before: list[int], saved: Sequence[Maybe], grads: Sequence[torch.Tensor],
    found: Pass,
) -> None:  # fmt: skip
    """Keep a pass that was bound for these tensors, where :func:`bound_pass` may find it."""
    if _lie(before, saved) and all(grad.is_contiguous() and grad.data_ptr() % 16 == 0 for grad in grads):
        passes[key] = found


def _lie(before: list[int], saved: Sequence[Maybe]) -> bool:
    """Return whether tensors lie where they lay, each in one piece."""
    try:
        return before == list(map(_address, saved)) and all(map(_is_in_one_piece, saved))  # pyright: ignore
    except TypeError:
        return before == addresses(saved) and all(each is None or each.is_contiguous() for each in saved)
