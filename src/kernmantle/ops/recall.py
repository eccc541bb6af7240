"""The fast eager path: a call that looks like an earlier one goes straight to its prepared kernel.

What a call looks like is everything the checks depend on: shapes, strides, types, devices and alignment of the
tensors, kinds of the parameters and the exponents that are part of the program. Values of numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from ..config import current
from ..contraction.definition import Definition
from ..expr.node import Number
from ..expr.simplify import POWER_CLASSES
from ..runtime.lru import LRUCache
from .checks import autocasts, number_of, overlap
from .dtypes import DTYPES
from .execute import Prepared, Types, allocate, last_route, prepare
from .launcher import collecting
from .torch_private import PLAIN, unwatched

_CAPACITY = 256
_ALL: WeakSet[Recall] = WeakSet()


class Bound(NamedTuple):
    """A program's text, where its values come from, and the reduction that keeps it from having a gradient."""

    text: str
    tensor_parameters: tuple[str, ...]
    numbers: tuple[str | Number, ...]
    without_gradient: str


Ready = Callable[[Sequence[Any], Mapping[str, Any], Any], Any]


class Recall:
    """Earlier calls of one contraction."""

    def __init__(self, definition: Definition) -> None:
        self._exponents = definition.exponents
        self._names = definition.equation.names
        self._operand_names = frozenset(name for name in self._names if name is not None)
        self._defaults = dict(definition.defaults)
        self._single = definition.single
        self._is_used = False
        self._known: LRUCache[tuple[Any, ...] | None, tuple[Ready, str]] = LRUCache(_CAPACITY)
        self.route = ""
        _ALL.add(self)

    def forget(self) -> None:
        """Forget every call."""
        self._known.clear()

    def _arrays(self, operands: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the operands in the equation's order, named ones among them; empty where their number is wrong."""
        if len(operands) != len(self._names) - len(self._operand_names):
            return ()
        rest = iter(operands)
        return [next(rest) if name is None else named.get(name) for name in self._names]

    def _key(
        self, arrays: Sequence[Any], precision: str | None, named: Mapping[str, Any], out: Any
    ) -> tuple[Any, ...] | None:
        """Return what the checks and the plan depend on; None under a transform, or for a value of no usual kind."""
        if not arrays or not unwatched():
            return None
        settings = current()
        facts: list[Any] = [precision, settings.backend, settings.precision]
        try:
            for value in arrays:
                if type(value) not in PLAIN or value.is_neg() or (value.requires_grad and torch.is_grad_enabled()):
                    return None
                facts += value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16
            facts.append(len(arrays) > 1 and arrays[0] is arrays[1])
            for name, value in named.items():
                kind = type(value)
                if kind is float or kind is int:
                    facts += name, value if name in self._exponents and value in POWER_CLASSES else None
                elif name not in self._operand_names:
                    if kind not in PLAIN or value.is_neg() or (value.requires_grad and torch.is_grad_enabled()):
                        return None
                    facts += name, value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16
            if out is not None:
                if type(out) not in PLAIN or out.is_neg() or out.requires_grad:
                    return None
                facts += "out", out.shape, out.stride(), out.dtype, out.device, out.data_ptr() % 16
        except RuntimeError:  # no strides or no memory: sparse tensors, wrappers of transforms
            return None
        if torch._C._is_any_autocast_enabled() and autocasts(arrays[0].device):
            return None
        return tuple(facts)

    def __call__(
        self, operands: Sequence[Any], precision: str | None, named: Mapping[str, Any], out: Any = None
    ) -> Any:
        """Return the result of a call whose plan is there, else None."""
        if torch.compiler.is_compiling() or not self._is_used or collecting():
            return None
        arrays = self._arrays(operands, named) if self._operand_names else operands
        known = self._known.get(self._key(arrays, precision, named, out))
        if known is None:
            return None
        ready, self.route = known
        return ready(arrays, named, out)

    def learn(
        self, operands: Sequence[Any], precision: str | None, named: Mapping[str, Any], out: Any,
        bound: Bound, types: str,
    ) -> None:  # fmt: skip
        """Store the plan of a call that went through all checks."""
        self.route = last_route()
        if collecting():
            return
        arrays = self._arrays(operands, named) if self._operand_names else operands
        key = self._key(arrays, precision, named, out)
        if key is None:
            return
        if bound.numbers and not arrays[0].is_floating_point():
            return  # whether a number fits integers depends on its value
        twin = len(arrays) > 1 and arrays[0] is arrays[1] and '"symmetric":true' in bound.text
        tensors = _tensors(arrays, named, twin, bound.tensor_parameters)
        prepared = prepare(bound.text, types, tensors, None if out is None else [out])
        self._is_used = True
        self._known[key] = self._ready(prepared, types, arrays[0].device, twin, bound), prepared.route

    def _ready(self, prepared: Prepared, types: str, device: torch.device, twin: bool, bound: Bound) -> Ready:
        """The call that is left when everything about it is known but its values."""
        run, shape, single, names = prepared.run, prepared.shape, self._single, bound.tensor_parameters
        dtypes = tuple(DTYPES[name] for name in Types.parse(types).outs)
        entries = [
            (entry, self._defaults.get(entry)) if isinstance(entry, str) else ("", float(entry))
            for entry in bound.numbers
        ]
        as_they_are = not twin and not names

        def ready(operands: Sequence[Any], named: Mapping[str, Any], out: Any) -> Any:
            tensors = operands if as_they_are else _tensors(operands, named, twin, names)
            numbers = [number_of(named.get(name, value), name) for name, value in entries] if entries else ()
            if out is not None:
                if any(overlap(out, tensor) for tensor in tensors):
                    return None  # which the checks of a new call refuse
                run(tensors, numbers, (out,))
                if not out.is_inference():
                    torch.autograd.graph.increment_version(out)
                return out
            if single:
                out = allocate(shape, dtypes[0], device)
                run(tensors, numbers, (out,))
                return out
            outs = tuple(allocate(shape, dtype, device) for dtype in dtypes)
            run(tensors, numbers, outs)
            return outs

        return ready


def forget_calls() -> None:
    """Let the next call of every contraction go through all checks and be planned anew."""
    for recall in list(_ALL):
        recall.forget()


def _tensors(operands: Sequence[Any], named: Mapping[str, Any], twin: bool, names: Sequence[str]) -> Sequence[Any]:
    """The tensors a program takes."""
    return [operands[0], *operands[2 if twin else 1 :], *[named[name] for name in names]]
