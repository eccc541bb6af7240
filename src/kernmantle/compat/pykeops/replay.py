"""Reductions of formulas that were reduced before: the calls of torch and of this library that they took, once more.

A formula is lowered by some hundred steps of Python, which depend on its structure and on the shapes of its variables,
not on their values. The second call of a structure notes what its variables go through; later ones repeat that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ...runtime.lru import LRUCache
from ...torch_ops.torch_private import no_transform
from .expression import Expression, Fold, Leaf, Map, Number, substituted

Parts = tuple[Expression | None, ...]
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "requires_grad", "ndim", "is_cuda"})
_NUMBERS = frozenset({"dim", "size", "numel", "element_size", "is_floating_point"})
"""Attributes and methods that depend on the type and the shape of a tensor alone."""
_SEEN, _REFUSED = "seen", "refused"
_TAPES: LRUCache[Any, Any] = LRUCache(1024)


class _Ref:
    """The result of a step, by its number; variables come first."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


Filling = Callable[[list[Any]], Any]


def _filling(parts: Any) -> Filling:
    """Return the function of the results so far that gives arguments, which refer to them."""
    kind = type(parts)
    if kind is _Ref:
        return itemgetter(parts.index)
    if kind is dict:
        names, values = list(parts), _filling(tuple(parts.values()))
        return (lambda found: dict(zip(names, values(found), strict=True))) if parts else lambda _: parts
    if kind is not tuple and kind is not list:
        return lambda _: parts
    if not any(type(part) in (_Ref, tuple, list, dict) for part in parts):
        return lambda _: parts
    every = [_filling(part) for part in parts]
    return lambda found: kind([fill(found) for fill in every])


class Tape:
    """Steps, each a function with arguments of which some are results of others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._steps: list[tuple[Callable[..., Any], Filling, Filling, bool]] = []
        self._result: Filling = _filling(())
        self.notes: list[Any] = []

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function and note it."""
        result = function(*_mapped(args, _value), **_mapped(kwargs, _value))
        if not isinstance(result, torch.Tensor) and not (
            isinstance(result, tuple) and all(isinstance(part, torch.Tensor) for part in result)
        ):
            raise TypeError(f"{function} returned {type(result).__name__}")
        own, named = _filling(_mapped(args, _ref)), _filling(_mapped(kwargs, _ref))
        self._steps.append((function, own, named, torch.is_grad_enabled()))
        noted = Noted(self, self._count + len(self._steps) - 1, result)
        if isinstance(result, tuple):
            return tuple(self.call(operator.getitem, (noted, at), {}) for at in range(len(result)))
        return noted

    def ends(self, result: Any, notes: Sequence[Any]) -> Any:
        """Describe the results of the steps, and return them."""
        self._result, self.notes = _filling(_mapped(result, _ref)), list(notes)
        return _mapped(result, _value)

    def replay(self, variables: Sequence[torch.Tensor]) -> Any:
        """Take the steps with other values of the variables."""
        values: list[Any] = list(variables)
        now = torch.is_grad_enabled()
        for function, args, kwargs, graph in self._steps:
            if graph is now:
                values.append(function(*args(values), **kwargs(values)))
            else:
                with torch.set_grad_enabled(graph):
                    values.append(function(*args(values), **kwargs(values)))
        return self._result(values)


def _mapped(parts: Any, of: Callable[[Any], Any]) -> Any:
    kind = type(parts)
    if kind is tuple or kind is list:
        return kind([_mapped(part, of) for part in parts])
    if kind is dict:
        return {name: _mapped(part, of) for name, part in parts.items()}
    return of(parts)


def _value(part: Any) -> Any:
    return part.value if type(part) is Noted else part


def _ref(part: Any) -> Any:
    return _Ref(part.index) if type(part) is Noted else part


class Noted:
    """A tensor whose operations are noted. What depends on its values cannot be asked."""

    __slots__ = ("index", "tape", "value")

    def __init__(self, tape: Tape, index: int, value: Any) -> None:
        self.tape, self.index, self.value = tape, index, value

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _tape_of((args, kwargs)).call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return getattr(self.value, name)
        method = getattr(torch.Tensor, name)
        if name in _NUMBERS:
            return lambda *args: method(self.value, *args)
        return lambda *args, **kwargs: self.tape.call(method, (self, *args), kwargs)

    def __bool__(self) -> bool:
        raise TypeError("the steps of a formula do not depend on values")


def _operation(name: str) -> Callable[..., Any]:
    def call(self: Noted, *args: Any) -> Any:
        return self.tape.call(getattr(torch.Tensor, name), (self, *args), {})

    return call


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "getitem", "pow"):
    setattr(Noted, f"__{_name}__", _operation(f"__{_name}__"))


def _tape_of(parts: Any) -> Tape:
    found: list[Tape] = []
    _mapped(parts, lambda part: found.append(part.tape) if type(part) is Noted else None)
    return found[0]


def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of this library that takes tensors, as one step where one of them is noted."""
    found: list[Tape] = []
    _mapped((args, kwargs), lambda part: found.append(part.tape) if type(part) is Noted else None)
    return found[0].call(function, args, kwargs) if found else function(*args, **kwargs)


def is_watched() -> bool:
    """Return whether something sees the calls of torch one by one, which steps that are repeated would hide."""
    return torch.compiler.is_compiling() or not no_transform()


@dataclass(frozen=True)
class Again:
    """A result, notes about it, and the steps that give it again from the tensors of its variables, if they are known.

    ``variables`` are those of the steps, in their order.
    """

    result: Any
    notes: list[Any]
    tape: Tape | None = None
    variables: Sequence[Leaf] = ()


def reduced_again(parts: Parts, key: tuple[Any, ...], reduction: Callable[[Parts, list[Any]], Any]) -> Again:
    """Return a reduction of formulas: by steps that are known, if it has been seen before.

    ``reduction`` takes the formulas and a list for its notes; ``key`` is what else it depends on.
    """
    notes: list[Any] = []
    structure, variables = _structure(parts)
    if is_watched() or any(type(leaf.tensor) is Noted for leaf in variables):
        return Again(reduction(parts, notes), notes)
    whole = structure, key, torch.is_grad_enabled()
    found = _TAPES.get(whole)
    if isinstance(found, Tape):
        return Again(found.replay([leaf.tensor for leaf in variables]), found.notes, found, variables)
    if found == _SEEN:
        tape = Tape(len(variables))
        try:
            result = tape.ends(reduction(_with_noted(parts, variables, tape), notes), notes)
        except (TypeError, AttributeError):  # an operation that cannot be noted: the formula is lowered each time
            _TAPES[whole] = _REFUSED
            notes.clear()
        else:
            _TAPES[whole] = tape
            return Again(result, notes, tape, variables)
    result = reduction(parts, notes)
    if found is None:
        _TAPES[whole] = _SEEN
    return Again(result, notes)


def _with_noted(parts: Parts, variables: Sequence[Leaf], tape: Tape) -> Parts:
    """Return the formulas with tensors whose operations are noted."""
    own: dict[int, Expression] = {}
    for at, leaf in enumerate(variables):
        tensor: Any = Noted(tape, at, leaf.tensor)
        own[id(leaf)] = Leaf(tensor, "".join(sorted(leaf.axes)), leaf.weak)
    return tuple(None if e is None else substituted(e, lambda part: own.get(id(part))) for e in parts)


def _structure(parts: Sequence[Expression | None]) -> tuple[tuple[Any, ...], list[Leaf]]:
    """Return what of formulas does not depend on values, and their variables in its order."""
    numbers: dict[int, int] = {}
    tensors: dict[int, int] = {}
    found: list[Any] = []
    variables: list[Leaf] = []

    def visit(e: Expression) -> int:
        at = numbers.get(id(e))
        if at is not None:
            return at
        if isinstance(e, Leaf):
            tensor = e.tensor
            same = tensors.setdefault(id(tensor), len(tensors))
            row: Any = (e.axes, e.weak, same, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
            variables.append(e)
        elif isinstance(e, Map):
            row = (e.op, *map(visit, e.args))
        elif isinstance(e, Fold):
            row = (e.op, e.dim, None, visit(e.arg))
        else:
            assert isinstance(e, Number)
            row = e.value, type(e.value)
        at = numbers[id(e)] = len(found)
        found.append(row)
        return at

    return (tuple(-1 if e is None else visit(e) for e in parts), *found), variables
