"""Applies: products with the matrix of a contraction, or reductions of its rows, without storing the matrix.

``kernmantle::apply`` is the torch operator; its arguments are the canonical text of the apply and, for a product, v
behind the tensors of the program. Its derivatives are registered where they are made, in ``row_reduce_autograd``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..arrays import check_same_device
from ..compiler.row_reduce import Apply
from ..ir.definition import Definition, bind
from ..ir.node import Number
from ..ir.simplify import power_classes
from .autograd import apply, constant
from .checks import Call, number_of
from .dtypes import DTYPES, compute_type, name_of
from .execute import BoundProgram, Types, result_types
from .flops import counted, rows_flops
from .info import RunInfo
from .operator import by_key, implement, mapped_first, packed, read
from .row_reduce_execute import prepare, run, shapes, whole_geometry
from .torch_private import plain


def _run(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    *numbers, text, types = numbers_and_texts
    return run(text, types, tensors, read(*numbers))


def _fake(tensors: list[torch.Tensor], *numbers_and_texts: Any) -> list[torch.Tensor]:
    text, types = numbers_and_texts[-2:]
    parsed = Apply.parse(text)
    shape = shapes(parsed, whole_geometry(parsed, [tuple(t.shape) for t in tensors]))
    return [tensors[0].new_empty(shape, dtype=DTYPES[name]) for name in Types.parse(types).outs]


@counted("apply")
def _flops(shapes: Any, *numbers_and_texts: Any, **_: Any) -> int:
    return rows_flops(Apply.parse(numbers_and_texts[-2]), shapes)


def _vmap(info: Any, in_dims: Any, tensors: Any, *numbers_and_texts: Any) -> tuple[Any, Any]:
    parsed = Apply.parse(numbers_and_texts[-2])
    axes = [len(operand.axes) for operand in parsed.inner.tensors] + [2] * parsed.weighted
    results = _operator(mapped_first(tensors, in_dims[0], axes), *numbers_and_texts)
    return results, [0] * len(results)


_operator = implement("apply", by_key(_run), _fake, _vmap)


class Defined(Protocol):
    """An object with a definition and its canonical text, as a contraction has."""

    @property
    def definition(self) -> Definition:
        """The traced expressions."""
        ...

    @property
    def text(self) -> str:
        """Canonical text of the definition."""
        ...


@constant
def _bound(
    text: str, tensors: tuple[str, ...], literals: tuple[tuple[str, Number], ...], how: str, count: int
) -> tuple[str, tuple[str, ...], tuple[str | Number, ...]]:
    """Return the text of the apply, names of the parameters that are tensors, and where its numbers come from."""
    binding = bind(Definition.parse(text), frozenset(tensors), literals)
    return Apply(binding.program, how, count).text, binding.tensor_parameters, binding.numbers


@constant
def _bound_entries(
    text: str, tensors: tuple[str, ...], literals: tuple[tuple[str, Number], ...]
) -> tuple[str, tuple[str, ...], tuple[str | Number, ...]]:
    """Return the text of the program of the entries, names of its tensors, and where its numbers come from."""
    binding = bind(Definition.parse(text), frozenset(tensors), literals)
    return binding.program.text, binding.tensor_parameters, binding.numbers


_entry_types = constant(result_types)


def entries(
    score: Defined, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any], precision: str | None = None,
    info: RunInfo | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the outputs of a definition on tensors that are checked, with whatever derivative is recorded."""
    call = Call.of(score.definition, operands, parameters)
    values = {name: number_of(value, name) for name, value in call.numbers.items()}
    text, names, numbers = _bound_entries(score.text, call.names, _literals(score, values))
    tensors = [*operands, *(parameters[name] for name in names)]
    types = _entry_types(text, tuple(name_of(t.dtype, "an operand") for t in operands), precision or "default")
    return apply(text, types, [float(values[n] if isinstance(n, str) else n) for n in numbers], tensors, info)


@constant
def _types(stored: tuple[str, ...], selects: bool, precision: str) -> str:
    return Types(compute_type(stored), (stored[0], *(["i64"] * selects)), precision).text


@constant
def _exponents(text: str) -> frozenset[str]:
    return Definition.parse(text).exponents


def _literals(contraction: Defined, values: Mapping[str, Number]) -> tuple[tuple[str, Number], ...]:
    """Return the exponents that are part of the expression."""
    powers = _exponents(contraction.text)
    return tuple(
        (name, power) for name in values if name in powers for power in power_classes() if values[name] == power
    )


@dataclass(frozen=True, eq=False)
class BoundApply:
    """An apply bound to tensors of one layout; ``numbers`` are names of parameters, and numbers of the expressions."""

    program: BoundProgram
    numbers: tuple[str | float, ...]
    text: str
    types: str

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the results on tensors and parameters by name."""
        return self.program.results(tensors, self.values(numbers))

    def write(self, tensors: Sequence[torch.Tensor], numbers: Mapping[str, Any], out: torch.Tensor) -> None:
        """Write the one result on tensors and parameters by name to a contiguous tensor."""
        self.program(tensors, self.values(numbers), (out,))

    def task(self, numbers: Mapping[str, Any], info: RunInfo) -> Task:
        """Return the apply with parameters by name, for a call whose derivatives are recorded."""
        return Task(self.text, self.types, self.values(numbers), info, self.program)

    def values(self, numbers: Mapping[str, Any]) -> list[float | int]:
        """Return the numbers of the program from parameters by name."""
        return [
            (own if type(own := numbers[entry]) is float else number_of(own, entry)) if type(entry) is str else entry
            for entry in self.numbers
        ]  # pyright: ignore


def bind_apply(
    contraction: Defined, how: str, operands: Sequence[torch.Tensor], numbers: Mapping[str, Number],
    v: torch.Tensor | None = None, precision: str | None = None, count: int = 0,
) -> BoundApply:  # fmt: skip
    """Return the bound call of a product or reduction whose parameters are all numbers; arguments as of ``task_of``."""
    text, _, entries = _bound(contraction.text, (), _literals(contraction, numbers), how, count)
    tensors = [*operands, *([] if v is None else [v])]
    types = _types(tuple(name_of(t.dtype, "an operand") for t in tensors), count > 0, precision or "default")
    return BoundApply(prepare(text, types, tensors), entries, text, types)


@dataclass(frozen=True)
class Task:
    """An apply as texts, with its numbers; ``info`` takes the route, ``program`` is its bound call if it has one."""

    text: str
    types: str
    numbers: Sequence[Any]
    info: RunInfo = field(default_factory=RunInfo, compare=False)
    program: BoundProgram | None = field(default=None, compare=False)

    @property
    def apply(self) -> Apply:
        """The apply of the text."""
        return Apply.parse(self.text)

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results; derivatives are recorded by the operator, which plain calls without gradients bypass."""
        if plain(tensors) and not torch.compiler.is_compiling():
            if self.program is not None:
                return self.program.results(tensors, self.numbers)
            return run(self.text, self.types, tensors, self.numbers, self.info)
        return _operator(tensors, *packed(self.numbers), self.text, self.types)


def task_of(
    contraction: Defined, how: str, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any],
    v: torch.Tensor | None = None, count: int = 0, precision: str | None = None, info: RunInfo | None = None,
) -> tuple[Task, list[torch.Tensor]]:  # fmt: skip
    """Return an apply and its tensors.

    The contraction is that of the matrix, one output over two axes, whose operands and parameters are checked;
    ``how`` is one of ``compiler.row_reduce.HOW``. Of a product v is (..., n, c), of a selection ``count`` the number of
    entries; ``info`` takes the route.
    """
    call = Call.of(contraction.definition, operands, parameters)
    call = call.with_tensors([torch.as_tensor(array) for array in call.arrays])
    check_same_device(call.tensors, call.labels)
    values = {name: number_of(value, name) for name, value in call.numbers.items()}
    text, names, entries = _bound(contraction.text, call.names, _literals(contraction, values), how, count)
    tensors = [*call.operands, *(call.parameters[name] for name in names), *([v] if v is not None else [])]
    numbers = [float(values[entry]) if isinstance(entry, str) else float(entry) for entry in entries]
    stored = tuple(name_of(t.dtype, "an operand") for t in (*call.operands, *([v] if v is not None else [])))
    types = _types(stored, count > 0, precision or "default")
    return Task(text, types, numbers, RunInfo() if info is None else info), tensors
