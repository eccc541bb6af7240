"""The fast eager path: a call that looks like an earlier one goes straight to its prepared kernel.

What a call looks like is everything the checks depend on: shapes, strides, types, devices and alignment of the
tensors, kinds of the parameters and the exponents that are part of the program. Values of numbers are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..config import current
from ..contraction.definition import Definition
from ..expr.node import Number
from ..expr.simplify import POWER_CLASSES
from .autograd import plain
from .checks import autocasts, number_of
from .dtypes import DTYPES
from .execute import Prepared, Types, allocate, last_route, prepare
from .launcher import collecting

_LIMIT = 256
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Bound(NamedTuple):
    """A program's text, where its values come from, and the reduction that keeps it from having a gradient."""

    text: str
    tensor_parameters: tuple[str, ...]
    numbers: tuple[str | Number, ...]
    without_gradient: str


@dataclass(frozen=True)
class _Known:
    prepared: Prepared
    dtypes: tuple[torch.dtype, ...]
    tensor_names: tuple[str, ...]
    numbers: tuple[str | Number, ...]
    skip_second: bool


class Recall:
    """Earlier calls of one contraction."""

    def __init__(self, definition: Definition) -> None:
        self._exponents = definition.exponents
        self._named_operands = tuple(name for name in definition.equation.names if name is not None)
        self._defaults = dict(definition.defaults)
        self._single = definition.single
        self._known: dict[tuple[Any, ...], _Known] = {}
        self.route = ""

    def _key(self, operands: Sequence[Any], precision: str | None, named: Mapping[str, Any]) -> tuple[Any, ...] | None:
        if not operands or not plain([v for v in (*operands, *named.values()) if isinstance(v, torch.Tensor)]):
            return None
        settings = current()
        facts: list[Any] = [precision, settings.backend, settings.precision]
        watched = torch.is_grad_enabled()
        for value in operands:
            if type(value) not in _TENSORS or (watched and value.requires_grad):
                return None
            facts.append((value.shape, value.stride(), value.dtype, value.device, value.data_ptr() % 16))
        facts.append(len(operands) > 1 and operands[0] is operands[1])
        for name, value in named.items():
            if type(value) is float or type(value) is int:
                facts.append((name, value if name in self._exponents and value in POWER_CLASSES else None))
            elif (
                type(value) in _TENSORS and not (watched and value.requires_grad) and value.device == operands[0].device
            ):
                facts.append((name, value.shape, value.stride(), value.dtype, value.data_ptr() % 16))
            else:
                return None
        return tuple(facts)

    def __call__(self, operands: Sequence[Any], precision: str | None, named: Mapping[str, Any]) -> Any:
        """Result of a call that is known, else None."""
        if not self._known or collecting():
            return None
        key = self._key(operands, precision, named)
        known = None if key is None else self._known.get(key)
        if known is None or autocasts(operands[0].device):
            return None
        tensors = [operands[0], *operands[2:]] if known.skip_second else list(operands)
        tensors += [named[name] for name in known.tensor_names]
        numbers = [
            number_of(named.get(entry, self._defaults.get(entry)), entry) if isinstance(entry, str) else entry
            for entry in known.numbers
        ]
        outs = [allocate(known.prepared.shape, dtype, operands[0].device) for dtype in known.dtypes]
        known.prepared.run(tensors, numbers, outs)
        self.route = known.prepared.route
        return outs[0] if self._single else tuple(outs)

    def learn(
        self, operands: Sequence[Any], params: Mapping[str, Any] | None, precision: str | None,
        named: Mapping[str, Any], bound: Bound, types: str,
    ) -> None:  # fmt: skip
        """Remember a call that went through all checks."""
        self.route = last_route()
        if params is not None or self._named_operands or collecting():
            return
        key = self._key(operands, precision, named)
        if key is None or autocasts(operands[0].device):
            return
        if bound.numbers and not operands[0].is_floating_point():
            return  # whether a number fits integers depends on its value
        twin = len(operands) > 1 and operands[0] is operands[1] and '"symmetric":true' in bound.text
        tensors = [operands[0], *operands[2:]] if twin else list(operands)
        tensors += [named[name] for name in bound.tensor_parameters]
        prepared = prepare(bound.text, types, tensors, None)
        dtypes = tuple(DTYPES[name] for name in Types.parse(types).outs)
        if len(self._known) >= _LIMIT:
            self._known.clear()
        numbers = tuple(entry if isinstance(entry, str) else float(entry) for entry in bound.numbers)
        self._known[key] = _Known(prepared, dtypes, bound.tensor_parameters, numbers, twin)
