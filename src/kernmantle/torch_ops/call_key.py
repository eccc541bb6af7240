"""The key of a call, from its tensors; a call that may not take the direct path has none.

A call without a key goes through all checks and torch's dispatcher: while torch.compile traces, under a transform of
torch.func, a mode, forward AD, autocast or a trace, for subclasses of Tensor, lazily negated views and tensors without
strides, and while kernels are only collected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from ..config import current
from ..runtime.dispatch import CallKey, TensorSpec
from ..runtime.kernel_store import collected_jobs
from .torch_private import PLAIN, autocasts, is_autocast_on, unwatched

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


def is_recorded(key: CallKey) -> bool:
    """Return whether a gradient by any of the tensors of a key is recorded."""
    for spec in key.tensors:  # noqa: SIM110 - a generator takes 0.5 us longer
        if spec is not None and spec[-1]:
            return True
    return False
