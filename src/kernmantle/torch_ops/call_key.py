"""The key of a call, from its tensors; a call that may not take the direct path has none.

A call without a key goes through all checks and torch's dispatcher: while torch.compile traces, under a transform of
torch.func, a mode, forward AD, autocast or a trace, for subclasses of Tensor, lazily negated views and tensors without
strides, and while kernels are only collected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..config import current
from ..runtime.dispatch import PLANS, CallKey, TensorSpec
from ..runtime.kernel_store import collected_jobs
from .torch_private import PLAIN, autocasts, guard_of, is_autocast_on, unwatched
from .tuned_tiles import session

_records, _threads = torch.is_grad_enabled, torch.get_num_threads
_STRIDED = torch.strided
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
    if collected_jobs() is not None or not unwatched():
        return None
    records, plain = torch.is_grad_enabled(), PLAIN
    specs: list[TensorSpec | None] = []
    add = specs.append
    try:
        for t in values:
            if t is None:
                add(None)
            elif type(t) in plain and not t.is_neg():
                add((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, records and t.requires_grad))
            else:
                return None
    except RuntimeError:  # no strides or no memory: sparse tensors, wrappers of transforms
        return None
    if not is_cast and is_autocast_on() and any(t is not None and autocasts(t.device) for t in values):
        return None
    own = current()
    return _new_key(CallKey, (operation, options, (own.backend, own.precision), tuple(specs)))


class CallSite:
    """The bound call of a caller whose tensors are mostly those of its last call, found without a key.

    A key takes the host a fifth of what a layer's forward call takes. While torch's guard says that the tensors are
    like those of the last call, and settings are the same, so is its key. A guard is made for the third call in a row.
    Whoever has a site has a new one where something else of its key changes. It is copied and pickled empty.
    """

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._before: CallKey | None = None
        self._last: tuple[Any, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CallSite, ()

    def find(self, tensors: Sequence[Any], option: object) -> Any:
        """Return the bound call for tensors and an option of the call, None on a miss."""
        last = self._last
        if last is None:
            return None
        guard, own, count, records, settings, threads, clears, found = last
        try:
            for tensor in tensors:
                if tensor.layout is not _STRIDED or tensor.is_nested:
                    return None
        except AttributeError:  # an array of another library, or None
            return None
        if (
            len(tensors) != count or not guard(*tensors) or option != own or current() is not settings
            or _records() is not records or forward_ad._current_level >= 0 or collected_jobs() is not None
            or session() is not None or _threads() != threads or PLANS.clears != clears
        ):  # fmt: skip
            return None
        for tensor in tensors:
            if tensor.data_ptr() & 15:
                return None
        self._before = None
        return found

    def plan(
        self, operation: Hashable, options: tuple[Hashable, ...], values: Sequence[Any]
    ) -> tuple[CallKey | None, Any]:
        """Return the bound call of a user's call, and on a miss its key if it has one, see :func:`call_key`."""
        found = self.find(values, options)
        if found is not None:
            return None, found
        key = call_key(operation, options, values)
        found = None if key is None else PLANS.get(key)
        if found is not None and key is not None:
            self.keep(key, values, options, found)
        return key, found

    def keep(self, key: CallKey, tensors: Sequence[Any], option: object, found: Any) -> None:
        """Store the bound call that the key of these tensors has, if the key of the last miss was the same."""
        if self._before != key:
            self._before = key
            return
        if session() is not None or len(set(map(id, tensors))) < len(tensors):
            return  # a guard is false of tensors that are there twice
        guard = None if any(t is None or t.data_ptr() % 16 for t in tensors) else guard_of(tensors)
        if guard is not None:
            own = current(), _threads(), PLANS.clears
            self._last = guard, option, len(tensors), _records(), *own, found


def is_recorded(key: CallKey) -> bool:
    """Return whether a gradient by any of the tensors of a key is recorded."""
    for spec in key.tensors:  # noqa: SIM110 - a generator takes 0.5 us longer
        if spec is not None and spec[-1]:
            return True
    return False
