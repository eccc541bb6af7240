"""Backward passes that a call binds once, found again by the addresses of the saved tensors.

A pass is bound for tensors of one layout. It fits another backward pass of the same call if each saved tensor has the
address that it had and lies as it did, by torch's guard, or is contiguous where there is none, and each cotangent is
contiguous. Addresses alone are not enough: a hook that moves saved tensors elsewhere may return them at the same
address in another memory order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from .torch_private import guard_of, plain

Key = TypeVar("Key")
Pass = TypeVar("Pass")
Maybe = torch.Tensor | None
Guard = Callable[..., bool] | None


_STRIDED = torch.strided
_address, _is_in_one_piece, _records = torch.Tensor.data_ptr, torch.Tensor.is_contiguous, torch.is_grad_enabled


def addresses(tensors: Sequence[Maybe]) -> list[int]:
    """Return the addresses of tensors, 0 for None."""
    try:
        return list(map(_address, tensors))  # pyright: ignore[reportArgumentType]
    except TypeError:  # for None, if not all gradients are needed
        return [0 if each is None else each.data_ptr() for each in tensors]


def bound_pass(
    passes: Mapping[Key, tuple[Pass, Guard]], key: Key, before: list[int], saved: Sequence[Maybe],
    grads: Sequence[Maybe],
) -> Pass | None:  # fmt: skip
    """Return the pass of a call that fits saved tensors and cotangents; None on a miss, and under a transform.

    ``key`` says which gradients are needed, ``before`` are the addresses of the tensors when they were saved.
    """
    found = passes.get(key)
    if found is None or _records():
        return None
    own, guard = found
    # Torch runs this in a thread of its own, on a core to which every object that is touched has to come first.
    if guard is None:
        present = [grad for grad in grads if grad is not None]
        ready = len(present) == len(grads) and plain(present) and are_ready(present)
        return own if ready and lie(before, saved) else None
    tensors: Any = (*grads, *saved)
    for tensor in tensors:
        if tensor is None or tensor.layout is not _STRIDED or tensor.is_nested:
            return None
    if not guard(*tensors) or forward_ad._current_level >= 0 or before != list(map(_address, saved)):  # pyright: ignore
        return None
    for grad in tensors[: len(grads)]:
        if grad.data_ptr() % 16:
            return None
    return own


def keep_pass(
    passes: dict[Key, tuple[Pass, Guard]], key: Key, before: list[int], saved: Sequence[Maybe],
    grads: Sequence[torch.Tensor], found: Pass,
) -> bool:  # fmt: skip
    """Store a pass that was bound for these tensors, so that :func:`bound_pass` can find it; return whether it is."""
    if before != addresses(saved) or not are_ready(grads):
        return False
    tensors: Any = (*grads, *saved)
    guard = None if any(each is None for each in saved) else guard_of(tensors)
    if guard is None and not lie(before, saved):
        return False
    passes[key] = found, guard
    return True


def are_ready(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors are in one piece and aligned."""
    return all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in tensors)


def lie(before: list[int], saved: Sequence[Maybe]) -> bool:
    """Return whether tensors have the same addresses as before and are contiguous."""
    try:
        return before == list(map(_address, saved)) and all(map(_is_in_one_piece, saved))  # pyright: ignore
    except TypeError:
        return before == addresses(saved) and all(each is None or each.is_contiguous() for each in saved)
