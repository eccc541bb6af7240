"""Derivatives of a program as steps: derived programs, and functions of torch between them, on values by name.

The same steps run if a derivative of the derivative is recorded or a transform is active and, bound to the layout of
the values, in warm backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from ..errors import GradientError
from ..ir import autodiff
from ..ir.program import Program
from .dtypes import NAMES
from .execute import Types

Tensors = Sequence[torch.Tensor]
Rule = tuple[str, int, tuple[str, ...], tuple[str, ...]]
Run = Callable[[Tensors, Sequence[float]], list[torch.Tensor]]
_BATCH_LETTERS = "ABCDEFGHIJ"
TOGETHER = 6
"""Most gradients of one program, each of which has its sums in registers."""


def no_gradient(name: str) -> GradientError:
    """Return the error for a derivative through a reduction that has none."""
    return GradientError(
        f"a reduction by {name} has no gradient; detach the operands, use torch.no_grad(), "
        "or one of sum, prod, min, max, logsumexp"
    )


@dataclass(frozen=True, eq=False)
class Differentiable:
    """The properties of a program that its derivatives depend on.

    Parameters
    ----------
    text, types : str
        The program and its types.
    full, full_types : str
        The program that also returns its raw accumulators, where derivatives need them and the outputs lack them.
    outputs, accumulators : int
        Their numbers.
    tensors, numbers : tuple of str
        Names of the operands.
    axes : mapping
        Axes of every tensor by name.
    symmetric, identity, saves : bool
        Whether ``x1`` is ``x0``; whether the outputs are the accumulators; whether derivatives read the accumulators.
    """

    text: str
    types: str
    full: str
    full_types: str
    outputs: int
    accumulators: int
    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    axes: Mapping[str, str]
    symmetric: bool
    identity: bool
    saves: bool

    def split(self, values: Sequence[Any]) -> tuple[Sequence[float], Tensors]:
        """Return the numbers and the tensors of values in the order of a recorded call."""
        return values[: len(self.numbers)], values[len(self.numbers) :]

    def named(
        self, saved: Tensors, numbers: Sequence[float], grads: Sequence[torch.Tensor | None] = ()
    ) -> dict[str, Any]:
        """Return values by name: tensors and accumulators, cotangents that are there, numbers."""
        names = (*self.tensors, *(f"a{i}" for i in range(len(saved) - len(self.tensors))))
        values: dict[str, Any] = dict(zip(names, saved, strict=True))
        values |= {f"g{o}": grad for o, grad in enumerate(grads) if grad is not None}
        return values | dict(zip(self.numbers, numbers, strict=True))


@lru_cache(maxsize=4096)
def differentiable(text: str, types: str) -> Differentiable:
    """Return what derivatives need to know of a program; GradientError if it has none."""
    program, own = Program.parse(text), Types.parse(types)
    reduction = autodiff.undifferentiable(program)
    if reduction is not None:
        raise no_gradient(reduction.name)
    full, full_types = program, own
    saves, identity = autodiff.reads_accumulators(program), autodiff.accumulator_is_output(program)
    if saves and not (identity and all(name == own.compute for name in own.outs)):
        full = autodiff.with_accumulators(program)
        full_types = replace(own, outs=own.outs + (own.compute,) * len(program.reductions))
    return Differentiable(
        text, types, full.text, full_types.text, len(program.outputs), len(program.reductions),
        tuple(op.name for op in program.tensors), tuple(op.name for op in program.numbers),
        {op.name: op.axes for op in program.operands}, program.symmetric, identity, saves,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _rule(kind: str, text: str, *args: Any) -> Rule | None:
    """Return a derived program and the values that it takes; None if the derivative is zero."""
    program = getattr(autodiff, kind)(replace(Program.parse(text), symmetric=False), *args)
    if program is None:
        return None
    names = [[op.name for op in group] for group in (program.tensors, program.numbers)]
    return program.renamed().text, len(program.outputs), tuple(names[0]), tuple(names[1])


@lru_cache(maxsize=4096)
def _typed(types: str, outs: int, name: str = "") -> str:
    """Return the types of a derived program: so many outputs of the type named, or of the arithmetic's."""
    own = Types.parse(types)
    return replace(own, outs=(name or own.compute,) * outs).text


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """A step of a derivative that runs a program on values of some slots; its results take the next slots."""

    run: Run
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]

    def __call__(self, values: list[Any]) -> None:
        """Append the results to the values."""
        values += self.run([values[slot] for slot in self.tensors], [values[slot] for slot in self.numbers])


@dataclass(frozen=True, eq=False)
class TorchStep:
    """A step of a derivative by a function of torch, whose result takes the next slot."""

    function: Callable[..., torch.Tensor]
    slots: tuple[int, ...]

    def __call__(self, values: list[Any]) -> None:
        """Append the result to the values."""
        values.append(self.function(*[values[slot] for slot in self.slots]))


class Derivation:
    """A derivative under construction: values by name, and the steps that compute those which are not arguments.

    ``runs(text, types, tensors)`` returns what runs a program on such tensors.
    """

    def __init__(self, values: Mapping[str, Any], runs: Callable[[str, str, Tensors], Run]) -> None:
        self._slots = {name: slot for slot, name in enumerate(values)}
        self._values, self._runs = list(values.values()), runs
        self.steps: list[ProgramStep | TorchStep] = []

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __getitem__(self, name: str) -> Any:
        return self._values[self._slots[name]]

    def get(self, name: str) -> Any:
        """Return the value of a name, None if it has none."""
        return self[name] if name in self._slots else None

    def at(self, slot: int | None) -> Any:
        """Return the value of a slot, None for none."""
        return None if slot is None else self._values[slot]

    def slot(self, name: str) -> int:
        """Return the slot of a value."""
        return self._slots[name]

    def alias(self, name: str, other: str) -> None:
        """Give a value a second name."""
        self._slots[name] = self._slots[other]

    def _take(self, step: ProgramStep | TorchStep, results: Sequence[str]) -> None:
        self._slots |= {name: len(self._values) + index for index, name in enumerate(results)}
        step(self._values)
        self.steps.append(step)

    def by_torch(self, result: str, function: Callable[..., torch.Tensor], *names: str) -> None:
        """Compute a value by a function of torch."""
        self._take(TorchStep(function, tuple(self._slots[name] for name in names)), [result])

    def by_program(
        self, results: Sequence[str], text: str, types: str, tensors: Sequence[str], numbers: Sequence[str]
    ) -> None:
        """Compute values by a program."""
        run = self._runs(text, types, [self[name] for name in tensors])
        own, others = (tuple(self._slots[name] for name in group) for group in (tensors, numbers))
        self._take(ProgramStep(run, own, others), results)

    def by_rule(self, results: Sequence[str], rule: Rule, types: str) -> None:
        """Compute values by a derived program."""
        text, _, tensors, numbers = rule
        self.by_program(results, text, types, tensors, numbers)


def gradients(
    own: Derivation, program: Differentiable, needed: Sequence[bool], present: tuple[bool, ...]
) -> tuple[int | None, ...]:
    """Add the gradients by the tensors that are needed; return their slots.

    ``present`` says which outputs of the full program have a cotangent.
    """
    if program.symmetric:
        own.alias("x1", "x0")
    through = (_add_cotangents(own, program, present), present[: program.outputs])
    for names in _alike(own, program, needed, through[0]):
        _add_together(own, program, names, through[0])
    return tuple(
        _add_gradient(own, program, name, through) if wanted else None
        for name, wanted in zip(program.tensors, needed, strict=True)
    )


@dataclass(frozen=True, eq=False)
class BoundBackward:
    """The bound call of a backward pass: its steps, and the slots of the gradients, None for those not needed."""

    steps: tuple[ProgramStep | TorchStep, ...]
    gradients: tuple[int | None, ...]
    route = "the programs of a backward pass"

    def __call__(self, tensors: Tensors, numbers: Sequence[float], _: object = ()) -> list[torch.Tensor | None]:
        """Return the gradients for saved tensors and cotangents, and numbers."""
        values: list[Any] = [*tensors, *numbers]
        for step in self.steps:
            step(values)
        return [None if slot is None else values[slot] for slot in self.gradients]


def _add_statistics(own: Derivation, program: Differentiable, i: int) -> None:
    """Add what the slope of accumulator i needs beyond the accumulator itself."""
    extra = _rule("statistics", program.text, i)
    if extra:
        names = [f"{letter}{i}" for letter in autodiff.STATISTICS[: extra[1]]]
        own.by_rule(names, extra, _typed(program.types, extra[1]))


def _add_cotangents(own: Derivation, program: Differentiable, present: tuple[bool, ...]) -> tuple[bool, ...]:
    """Add the cotangent h_i of each accumulator that has one; return which have."""
    found: list[bool] = []
    of_outputs = present[: program.outputs]
    for i in range(program.accumulators):
        parts = [f"g{program.outputs + i}"] if f"g{program.outputs + i}" in own else []
        if program.identity:
            parts += [f"g{i}"] if present[i] else []
        else:
            rule = _rule("cotangent", program.text, i, of_outputs)
            if rule:
                own.by_rule([f"through the outputs {i}"], rule, _typed(program.types, 1))
                parts.append(f"through the outputs {i}")
        found.append(len(parts) > 0)
        if len(parts) == 2:
            own.by_torch(f"h{i}", torch.add, *parts)
        elif parts:
            own.alias(f"h{i}", parts[0])
        if parts:
            _add_statistics(own, program, i)
    return tuple(found)


def _symmetrized(value: torch.Tensor) -> torch.Tensor:
    return value + value.mT


def _add_gradient(own: Derivation, program: Differentiable, name: str, present: Sequence[tuple[bool, ...]]) -> int:
    """Add the gradient by one operand, through the accumulators and through the outputs; return its slot."""
    operand, renamed = own[name], dict[str, str]()
    if _is_symmetrized(program, name):
        for i, there in enumerate(present[0]):
            if there:
                renamed[f"h{i}"] = f"symmetrized h{i}"
                own.by_torch(renamed[f"h{i}"], _symmetrized, f"h{i}")
    types, total = _typed(program.types, 1, NAMES[operand.dtype]), ""
    for kind, there in zip(("vjp", "direct"), present, strict=True):
        rule = _rule(kind, program.text, name, there)
        if rule:
            part = f"{kind} {name}"
            if part not in own:
                _add_sums(own, [part], rule, types, renamed, _batch_shape(program, name, operand))
            if total:
                own.by_torch(f"sum {name}", torch.add, total, part)
            total = f"sum {name}" if total else part
    if not total:
        own.by_torch(f"zero {name}", torch.zeros_like, name)
        return own.slot(f"zero {name}")
    if own[total].shape != operand.shape:
        own.by_torch(f"fitted {name}", partial(_sum_to, operand.shape), total)
        total = f"fitted {name}"
    return own.slot(total)


def _is_symmetrized(program: Differentiable, name: str) -> bool:
    """Return whether an operand stands for both rows of a pair, and its gradient takes a symmetrized cotangent."""
    return name == "x0" and program.symmetric


def _batch_shape(program: Differentiable, name: str, operand: torch.Tensor) -> torch.Size:
    return operand.shape[: operand.dim() - len(program.axes[name])]


def _alike(
    own: Derivation, program: Differentiable, needed: Sequence[bool], present: tuple[bool, ...]
) -> list[list[str]]:
    """Return the operands whose gradients share a program: of equal axes, type and shape, that read the same arrays.

    They share most of their terms, such as those by the lengthscales of a product of kernels.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, wanted in zip(program.tensors, needed, strict=True):
        rule = _rule("vjp", program.text, name, present) if wanted else None
        if rule is not None and not _is_symmetrized(program, name):
            operand = own[name]
            alike = program.axes[name], operand.dtype, operand.shape, frozenset(rule[2])
            groups.setdefault(alike, []).append(name)
    found: list[list[str]] = []
    for names in groups.values():
        size = -(-len(names) // -(-len(names) // TOGETHER))
        chunks = [names[first : first + size] for first in range(0, len(names), size)]
        found += [chunk for chunk in chunks if len(chunk) > 1]
    return found


def _add_together(own: Derivation, program: Differentiable, names: Sequence[str], present: tuple[bool, ...]) -> None:
    """Add the gradients by several operands, through the accumulators, by one program."""
    rule, operand = _rule("VJPs", program.text, tuple(names), present), own[names[0]]
    assert rule is not None
    types = _typed(program.types, len(names), NAMES[operand.dtype])
    results = [f"vjp {name}" for name in names]
    _add_sums(own, results, rule, types, {}, _batch_shape(program, names[0], operand))


def _sum_to(shape: torch.Size, value: torch.Tensor) -> torch.Tensor:
    return value.sum_to_size(shape)


@lru_cache(maxsize=4096)
def _batched(rule: Rule, batch: tuple[str, ...], out: str) -> str:
    """Return the text of a rule whose tensors have these batch letters, of which only ``out`` stay."""
    program = Program.parse(rule[0])
    return program.with_batch({op.name: own for op, own in zip(program.tensors, batch, strict=True)}, out).text


def _add_sums(
    own: Derivation, results: Sequence[str], rule: Rule, types: str, renamed: Mapping[str, str],
    batch_shape: Sequence[int],
) -> None:  # fmt: skip
    """Add the results of a rule, the batch axes that ``batch_shape`` lacks summed in the kernel and not after it."""
    rank = len(batch_shape)
    text, _, tensors, numbers = rule
    names = [renamed.get(name, name) for name in tensors]
    axes = Program.parse(text).tensors
    ranks = [own[name].dim() - len(operand.axes) for name, operand in zip(names, axes, strict=True)]
    if max(ranks) < rank or (max(ranks) == rank and 1 not in batch_shape) or torch.compiler.is_compiling():
        own.by_program(results, text, types, names, numbers)
        return
    letters = _BATCH_LETTERS[: max(ranks)]
    remaining = letters[max(ranks) - rank :] if rank else ""
    views: list[str] = []
    batch: list[str] = []
    for name, lead in zip(names, ranks, strict=True):
        sizes = own[name].shape[:lead]
        batch.append("".join(letters[max(ranks) - lead + axis] for axis in range(lead) if sizes[axis] != 1))
        single = [axis for axis in range(lead) if sizes[axis] == 1]
        if single:
            own.by_torch(f"{name} for {results[0]}", partial(_without_axes, single), name)
        views.append(f"{name} for {results[0]}" if single else name)
    wide = [letter for letter, size in zip(remaining, batch_shape, strict=True) if size != 1]
    present = "".join(letter for letter in wide if any(letter in each for each in batch))
    absent = [axis for axis, letter in enumerate(remaining) if letter not in present]
    summed = [f"summed {result}" for result in results] if absent else results
    own.by_program(summed, _batched(rule, tuple(batch), present), types, views, numbers)
    if absent:
        for result, total in zip(results, summed, strict=True):
            own.by_torch(result, partial(_with_axes, absent), total)


def _without_axes(axes: Sequence[int], value: torch.Tensor) -> torch.Tensor:
    return value.squeeze(tuple(axes))  # pyright: ignore[reportCallIssue, reportArgumentType]


def _with_axes(axes: Sequence[int], value: torch.Tensor) -> torch.Tensor:
    for axis in axes:
        value = value.unsqueeze(axis)
    return value


def tangents(
    program: Differentiable,
    values: Mapping[str, Any],
    moves: Sequence[torch.Tensor | None],
    runs: Callable[[str, str, Tensors], Run],
) -> tuple[torch.Tensor | None, ...]:
    """Return the tangents of the outputs, then of the accumulators."""
    moved = {name: tangent for name, tangent in zip(program.tensors, moves, strict=True) if tangent is not None}
    own, moving = Derivation({**values, **{f"t_{name}": t for name, t in moved.items()}}, runs), [*moved]
    if program.symmetric:
        own.alias("x1", "x0")
        if "x0" in moving:
            moving.append("x1")
            own.alias("t_x1", "t_x0")
    inner = [f"u{i}" for i in range(program.accumulators)]
    for i, name in enumerate(inner):
        _add_statistics(own, program, i)
        rule = _rule("tangent", program.text, i, tuple(moving))
        if rule:
            own.by_rule([name], rule, _typed(program.types, 1))
    accumulators = [own.get(name) for name in inner]
    if program.identity:
        return *accumulators, *accumulators
    rule = _rule("output_tangent", program.text, tuple(moving), tuple(name in own for name in inner))
    assert rule is not None
    outer = [f"output {o}" for o in range(program.outputs)]
    own.by_rule(outer, rule, _typed(program.types, program.outputs))
    return *(own[name] for name in outer), *accumulators
