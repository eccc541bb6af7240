"""The key of a call, from its tensors; a call that may not take the direct path has none.

A call without a key goes through all checks and torch's dispatcher: while torch.compile traces, under a transform of
torch.func, a mode, forward AD, autocast or a trace, for subclasses of Tensor, lazily negated views, zeros without
memory and tensors without strides, and while kernels are only collected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch.autograd import forward_ad

from ..config import current
from ..runtime.dispatch import PLANS, CallKey, TensorSpec
from ..runtime.kernel_store import collected_jobs
from .torch_private import PLAIN, autocasts, guard_of, is_autocast_on, no_transform
from .tuned_tiles import session

_address, _records, _threads = torch.Tensor.data_ptr, torch.is_grad_enabled, torch.get_num_threads
_new_key = tuple.__new__  # of a named tuple, in half the time of its constructor


def program_key(
    operation: Hashable, options: tuple[Hashable, ...], tensors: Iterable[torch.Tensor | None],
    settings: tuple[Hashable, ...] | None = None,
) -> CallKey:  # fmt: skip
    """Return the key of a program on tensors that are checked, below autograd and every transform.

    ``settings`` are those of the configuration in force, or of the one in which the call was bound.
    """
    specs = [t if t is None else (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, False) for t in tensors]
    if settings is None:
        own = current()
        settings = own.backend, own.precision
    return _new_key(CallKey, (operation, options, settings, tuple(specs)))


def call_key(
    operation: Hashable, options: tuple[Hashable, ...], values: Sequence[Any], is_cast: bool = False
) -> CallKey | None:
    """Return the key of a user's call on values that should be tensors or None; None where it has none.

    Callers ask first whether torch.compile traces, so that it need not trace the code that gathers the values.
    ``is_cast``: the values already have the type to which autocast, if it is on, casts them.
    """
    if collected_jobs() is not None or not no_transform():
        return None
    records, plain = torch.is_grad_enabled(), PLAIN
    specs: list[TensorSpec | None] = []
    add = specs.append
    try:
        for t in values:
            if t is None:
                add(None)
            elif type(t) in plain and not (t.is_neg() or t._is_zerotensor()):
                add((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, records and t.requires_grad))
            else:
                return None
    except RuntimeError:  # no strides or no memory: sparse tensors, wrappers of transforms
        return None
    if not is_cast and is_autocast_on() and any(t is not None and autocasts(t.device) for t in values):
        return None
    own = current()
    return _new_key(CallKey, (operation, options, (own.backend, own.precision), tuple(specs)))


class _Guarded:
    """The bound call that tensors of one shape had last, with what says that their key would be the same.

    ``before`` is the key of the last miss: a guard is made where two of them in a row are the same.
    """

    __slots__ = ("before", "last")

    def __init__(self) -> None:
        self.before: CallKey | None = None
        self.last: tuple[Any, ...] | None = None


def find(call: Hashable, tensors: Sequence[Any], by_shape: bool = False) -> Any:
    """Return the bound call that these tensors have by torch's guards, without their key; None on a miss.

    A key takes the host a fifth of what a layer's forward call takes. ``call`` has what the key of the caller has
    besides its tensors and settings; it says which tensors there are, none of them None. What it has last is found, or
    with ``by_shape``, for callers who share it, last with the shape of the first tensor.
    """
    try:
        for tensor in tensors:
            if tensor.is_nested or tensor.data_ptr() & 15:
                return None
        entry = PLANS.get((call, tensors[0].shape) if by_shape else call)
    except (AttributeError, TypeError, RuntimeError):  # an array of another library, sparse ones, what has no hash
        return None
    if entry is None or (last := entry.last) is None:
        return None
    guard, count, records, settings, threads, found = last
    if (
        len(tensors) != count or not guard(*tensors) or current() is not settings or _records() is not records
        or forward_ad._current_level >= 0 or collected_jobs() is not None or session() is not None
        or _threads() != threads
    ):  # fmt: skip
        return None
    entry.before = None
    return found


def find_by_key(key: CallKey | None, call: Hashable, tensors: Sequence[Any], by_shape: bool = False) -> Any:
    """Return the bound call that a key has, None on a miss; :func:`find` finds it the third time in a row."""
    found = None if key is None else PLANS.get(key)
    if found is None or session() is not None:
        return found
    if len(set(map(id, tensors))) < len(tensors) or any(tensor is None for tensor in tensors):
        return found  # a guard is false of tensors that are there twice
    at = (call, tensors[0].shape) if by_shape else call
    entry = PLANS.get(at)
    if entry is None:
        entry = PLANS.setdefault(at, _Guarded())
    if entry.before != key:
        entry.before = key
        return found
    _guard(entry, tensors, found)
    return found


def keep(call: Hashable, tensors: Sequence[Any], found: Any) -> None:
    """Have :func:`find` find what was bound for these tensors at once, where calls now may be found."""
    if collected_jobs() is None and session() is None and no_transform():
        _guard(PLANS.setdefault(call, _Guarded()), tensors, found)


def _guard(entry: _Guarded, tensors: Sequence[Any], found: Any) -> None:
    guard = None if reduce(or_, map(_address, tensors), 0) & 15 else guard_of(tensors)
    if guard is not None:
        entry.last = guard, len(tensors), _records(), current(), _threads(), found


def key_and_plan(
    operation: Hashable, options: tuple[Hashable, ...], tensors: Sequence[Any], by_shape: bool = False
) -> tuple[CallKey | None, Any]:
    """Return the bound call of a user's call on tensors, and on a miss its key if it has one, see :func:`call_key`."""
    call = operation, options
    found = find(call, tensors, by_shape)
    if found is not None:
        return None, found
    key = call_key(operation, options, tensors)
    return key, find_by_key(key, call, tensors, by_shape)


def is_recorded(key: CallKey) -> bool:
    """Return whether a gradient by any of the tensors of a key is recorded."""
    for spec in key.tensors:  # noqa: SIM110 - a generator takes 0.5 us longer
        if spec is not None and spec[-1]:
            return True
    return False
