"""The fast eager path: a product that looks like an earlier one goes straight to its prepared kernels.

What a call looks like is everything the checks depend on: shapes, strides, types, devices and alignment of the
arrays, sizes of identities and the options. Values of numbers and addresses are not; ``out`` is compared with the
other arrays each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..config import current
from ..contraction.kron_modes import parse, text_of
from ..ops.checks import autocasts, reach
from ..ops.execute import allocate
from ..ops.info import RunInfo
from ..ops.kron_execute import Chosen, backend_for, factor_sizes, on_forget, prepared, start
from ..ops.launcher import collecting
from ..ops.torch_private import PLAIN, unwatched
from ..runtime.lru import LRUCache
from .arguments import Product

Look = tuple[Any, ...]
_NUMBERS = (int, float)
_KNOWN: LRUCache[Look, Known] = LRUCache(1024)
on_forget(_KNOWN.clear)


@dataclass(frozen=True)
class Known:
    """A call without its values: which factors are matrices, the result, and bytes from first to last entry."""

    chosen: Chosen
    places: tuple[int, ...]
    shape: tuple[int, ...]
    added: bool
    bytes: tuple[int, ...]
    out_bytes: int

    def run(self, x: Any, factors: Sequence[Any], y: Any, out: Any, alpha: float, beta: float) -> Any:
        """The result; None where ``out`` meets another array, which all checks have to judge."""
        own = [factors[place] for place in self.places]
        if out is None:
            out = allocate(self.shape, x.dtype, x.device)
        else:
            begin = out.data_ptr()
            end = begin + self.out_bytes
            beside = [x, *own, y] if self.added and y is not out else [x, *own]
            for tensor, size in zip(beside, self.bytes, strict=False):
                place = tensor.data_ptr()
                if place < end and begin < place + size:
                    return None
            if not out.is_inference():
                torch.autograd.graph.increment_version([out])
        start(self.chosen, x, own, y if self.added else None, out, (float(alpha), float(beta)))
        return out


def look_of(
    x: Any, factors: Any, y: Any, out: Any, side: Any, alpha: Any, beta: Any, precision: Any, fuse: Any
) -> Look | None:
    """What a call looks like; None if somebody watches it or an argument is of no usual kind."""
    if torch.compiler.is_compiling() or collecting() or not unwatched():
        return None
    if type(alpha) not in _NUMBERS or type(beta) not in _NUMBERS or type(factors) not in (list, tuple):
        return None
    if type(side) is not str or type(fuse) is not bool or type(x) not in PLAIN:
        return None
    if precision is not None and type(precision) is not str:
        return None
    recorded = torch.is_grad_enabled()
    settings = current()
    chosen = settings.precision if precision is None else precision
    facts: list[Any] = [side, chosen, fuse, beta == 0, settings.backend, y is out]
    try:
        for value in (x, y, out, *factors):
            if value is None or type(value) is int:
                facts.append(value)
                continue
            if type(value) not in PLAIN or value.is_neg() or (value.requires_grad and (recorded or value is out)):
                return None
            facts += value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16
    except RuntimeError:  # no strides or no memory: sparse tensors, wrappers of transforms
        return None
    if torch._C._is_any_autocast_enabled() and autocasts(x.device):
        return None
    return tuple(facts)


def recalled(
    look: Look | None, x: Any, factors: Sequence[Any], y: Any, out: Any, alpha: Any, beta: Any, info: RunInfo | None
) -> Any:
    """Result of a call that is known, else None."""
    known = None if look is None else _KNOWN.get(look)
    if known is None:
        return None
    if info is not None:
        info.route = known.chosen.route
    return known.run(x, factors, y, out, alpha, beta)


def learn(look: Look | None, call: Product, result: torch.Tensor) -> None:
    """Remember a call that went through all checks; ``result`` is in canonical form."""
    if look is None or not result.numel():
        return
    entries = call.modes.split(" ")
    places = tuple(place for place, entry in enumerate(entries) if not entry.startswith("i"))
    own = [call.factors[int(entries[place])] for place in places]
    text = text_of([places.index(place) if place in places else entry for place, entry in enumerate(entries)])
    if backend_for(call.x, parse(text, factor_sizes(own))) is None:
        return
    chosen = prepared(text, call.options, call.x, own, call.y, result)
    if chosen.prepared is None:
        return
    sizes = tuple(reach(tensor) for tensor in [call.x, *own, *([] if call.y is None else [call.y])])
    shape = call.shape if call.form == "column" else call.shape[:-1]
    _KNOWN[look] = Known(chosen, places, shape, call.y is not None, sizes, reach(result))
