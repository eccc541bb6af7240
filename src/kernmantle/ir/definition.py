"""Definitions, the lambdas of users traced once; programs are made once the kinds of their parameters are known."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ..errors import EquationError, ParameterError
from .differentiate import is_symmetric
from .equation import Equation, parse
from .laws import broken_law
from .node import Node, Number, const, substitute, var, variables
from .program import Operand, Program, reduction_document, reduction_of
from .reducers import Fold, Lambda, Selection, Semiring
from .reductions import REDUCTIONS, SOFTMAX, Reduction, fold, of_rows, semiring
from .show import from_ssa, number_of, to_ssa
from .simplify import exponents, lift, simplify
from .trace import Trace, signature, trace
from .traced import is_number, to_number

_RESERVED = re.compile(r"[xs]\d+")


@dataclass(frozen=True)
class Definition:
    """Traced expressions over operands x0, x1, ... (the equation's order) and parameters by their names."""

    equation: Equation
    map: tuple[Node, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Node, ...]
    single: bool
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, Number], ...]

    @property
    def text(self) -> str:
        """Canonical text; ``Definition.parse`` is its inverse."""
        return json.dumps(
            [
                self.equation.text,
                to_ssa(self.map),
                [reduction_document(reduction) for reduction in self.reductions],
                to_ssa(self.outputs),
                self.single,
                self.parameters,
                [[name, repr(value)] for name, value in self.defaults],
            ]
        )

    @staticmethod
    def parse(text: str) -> Definition:
        """Return the definition of a canonical text."""
        return _parse(text)

    @property
    def operand_names(self) -> dict[str, str]:
        """Canonical name of every named operand."""
        return {name: f"x{i}" for i, name in enumerate(self.equation.names) if name is not None}

    @property
    def exponents(self) -> frozenset[str]:
        """Parameters that stand in an exponent."""
        return frozenset(exponents(self.map + self.outputs)) & set(self.parameters)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Definition:
    equation, maps, reductions, outputs, single, parameters, defaults = json.loads(text)
    return Definition(
        parse(equation), from_ssa(maps), tuple(map(reduction_of, reductions)), from_ssa(outputs), single,
        tuple(parameters), tuple((name, number_of(value)) for name, value in defaults),
    )  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """A program and where the values of its operands come from."""

    program: Program
    tensor_parameters: tuple[str, ...]
    numbers: tuple[str | Number, ...]

    def described(self, names: Mapping[str, str]) -> str:
        """Return the program for people: parameters by their names, literals by their values, operands by ``names``."""
        shown = {new: var(name) for new, name in names.items()}
        for operand, entry in zip(self.program.numbers, self.numbers, strict=True):
            shown[operand.name] = var(entry) if isinstance(entry, str) else const(entry)
        steps = [replace(r, step=tuple(substitute(r.step, shown))) if r.is_fold else r for r in self.program.reductions]
        maps, outputs = substitute(self.program.map, shown), substitute(self.program.outputs, shown)
        return str(replace(self.program, map=tuple(maps), reductions=tuple(steps), outputs=tuple(outputs)))


def _reduction(entry: object) -> Reduction:
    if isinstance(entry, Semiring):
        traced = trace(entry.plus, [var("s0"), var("t")], {}, what="plus of the semiring")
        plus, zero = simplify([_only(traced, "plus of the semiring")])[0], _finite_or_inf(entry.zero, "zero")
        problem = broken_law(plus, zero)
        if problem:
            raise ParameterError(problem)
        return semiring(plus, zero)
    if isinstance(entry, str) and entry in REDUCTIONS:
        return REDUCTIONS[entry]
    if isinstance(entry, Selection):
        return of_rows(type(entry).__name__.lower(), entry.count)
    if entry == SOFTMAX:
        return of_rows(SOFTMAX)
    if isinstance(entry, Fold):
        raise ParameterError("a Fold takes the place of the map and cannot be one of several reductions")
    suggested = get_close_matches(str(entry), REDUCTIONS, 1)
    hint = f"; did you mean {suggested[0]!r}?" if suggested else ""
    if entry in ("mean", "average"):
        hint = "; the mean is reduce='sum' with epilogue=lambda s, n: s / n and n= the number of terms"
    name = str(getattr(entry, "__name__", entry)).capitalize()
    if name in ("Smallest", "Largest"):
        hint = f"; the five {name.lower()} entries of each row are km.{name}(5)"
    raise ParameterError(f"reduce={entry!r} is none of {', '.join(REDUCTIONS)}, a Semiring or a Fold{hint}")


def _only(traced: Trace, what: str) -> Node:
    if traced.is_tuple:
        raise ParameterError(f"the {what} returns {len(traced.roots)} values in a tuple; it has one")
    return traced.roots[0]


def _finite_or_inf(value: object, what: str) -> Number:
    if not is_number(value):
        raise ParameterError(f"{what} must be a number, not {value!r}")
    number = to_number(value)
    if number != number:
        raise ParameterError(f"{what} is NaN, which no value is an identity of")
    return number


def _environment(
    function: Lambda, count: int, expected_names: Mapping[str, Node], what: str
) -> tuple[dict[str, Node], dict[str, Number]]:
    names, defaults = signature(function, count, what)
    numbers: dict[str, Number] = {}
    for name in names:
        if name not in expected_names and _RESERVED.fullmatch(name):
            raise ParameterError(
                f"parameter {name!r} of the {what} has the name of an operand or accumulator; rename it"
            )
        if name in defaults and name not in expected_names:
            if not is_number(defaults[name]):
                kind = type(defaults[name]).__name__
                raise ParameterError(f"the default of parameter {name!r} is a {kind}; pass it at the call instead")
            number = to_number(defaults[name])
            numbers[name] = int(number) if isinstance(number, bool) else number
    return {name: expected_names.get(name, var(name)) for name in names}, numbers


def _entries(reduce: Any, count: int) -> list[Any]:
    """Return one reduction per accumulator."""
    return [*reduce] if isinstance(reduce, (tuple, list)) else [reduce] * count


def _check_of_rows(reductions: Sequence[Reduction], epilogue: Lambda | None) -> None:
    """Raise ParameterError for a reduction of rows that does not stand alone."""
    names = [reduction.name for reduction in reductions if reduction.is_of_rows]
    if not names:
        return
    if SOFTMAX in names:
        if names != [SOFTMAX, SOFTMAX]:
            raise ParameterError(
                "reduce='softmax' takes a map that returns the pair (logit, value), whose values are weighted by the "
                f"softmax of the logits; this one returns {len(reductions)} value{'s' * (len(reductions) > 1)}"
            )
    elif len(reductions) > 1 or epilogue is not None:
        raise ParameterError(f"{names[0].capitalize()} stands alone: with one value of the map, and no epilogue")


def define(equation: str, map: Lambda | None, reduce: Any = "sum", epilogue: Lambda | None = None) -> Definition:
    """Trace a map, a reduction and an epilogue over an equation."""
    parsed = parse(equation)
    names = {name: var(f"x{i}") for i, name in enumerate(parsed.names) if name is not None}
    positional = [var(f"x{i}") for i, name in enumerate(parsed.names) if name is None]
    defaults: dict[str, Number] = {}
    declared: list[str] = []
    if isinstance(reduce, Fold):
        if map is not None:
            raise ParameterError("a Fold takes the place of the map: pass map=None with reduce=Fold(step, init)")
        environment, defaults = _environment(reduce.step, len(positional) + 1, names, "step of the fold")
        traced = trace(reduce.step, [var("s0"), *positional], environment, what="step of the fold")
        declared += environment
        step = _only(traced, "step of the fold")
        maps, reductions = (const(0),), (fold(step, _finite_or_inf(reduce.init, "init")),)
        single = True
    else:
        if map is None:
            raise ParameterError("map=None is for reduce=Fold(step, init) only: pass a lambda over the operands")
        environment, defaults = _environment(map, len(positional), names, "map")
        traced = trace(map, positional, environment, what="map")
        declared += environment
        maps, single = traced.roots, not traced.is_tuple
        entries = _entries(reduce, len(maps))
        if len(entries) != len(maps):
            raise ParameterError(f"reduce names {len(entries)} reductions, the map returns {len(maps)} values")
        reductions = tuple(_reduction(entry) for entry in entries)
        _check_of_rows(reductions, epilogue)
    accumulators = [var(f"s{i}") for i in range(1 if any(row.name == SOFTMAX for row in reductions) else len(maps))]
    single = single or len(accumulators) < len(maps)
    outputs: tuple[Node, ...] = tuple(accumulators)
    if epilogue is not None:
        environment, more = _environment(epilogue, len(accumulators), names, "epilogue")
        clash = next((name for name in more if defaults.get(name, more[name]) != more[name]), None)
        if clash is not None:
            raise ParameterError(
                f"parameter {clash!r} has default {defaults[clash]} in the map, {more[clash]} in the epilogue"
            )
        defaults |= more
        traced = trace(epilogue, accumulators, environment, what="epilogue")
        declared += environment
        outputs, single = traced.roots, not traced.is_tuple
    parameters = tuple(dict.fromkeys(name for name in declared if name not in names))
    return _checked(parsed, maps, reductions, outputs, single, parameters, defaults)


def of_expressions(
    equation: str, map: Sequence[Node], reductions: Sequence[Reduction], outputs: Sequence[Node]
) -> Definition:
    """Definition of expressions over operands x0, x1, ... and accumulators s0, s1, ...; the rest are parameters."""
    parsed = parse(equation)
    expected_names = {f"x{i}" for i in range(len(parsed.operands))} | {f"s{i}" for i in range(len(map))}
    names = variables([*simplify(map), *simplify(outputs)])
    parameters = tuple(name for name in names if name not in expected_names)
    return _checked(parsed, tuple(map), tuple(reductions), tuple(outputs), len(outputs) == 1, parameters, {})


def _checked(
    equation: Equation, maps: tuple[Node, ...], reductions: tuple[Reduction, ...], outputs: tuple[Node, ...],
    single: bool, parameters: tuple[str, ...], defaults: Mapping[str, Number],
) -> Definition:  # fmt: skip
    operands = {f"x{i}" for i in range(len(equation.operands))}
    for name in variables(outputs):
        if name in operands:
            axes = equation.operands[int(name[1:])]
            lost = [axis for axis in axes if axis not in equation.out]
            if lost:
                raise EquationError(
                    f"the epilogue of {equation.text!r} reads an operand over {equation.written(axes)!r}, "
                    f"but axis {lost[0]!r} is reduced before the epilogue runs"
                )
    reduced = [axis for axis in equation.letters if axis not in equation.out]
    for reduction in reductions:
        if (reduction.is_fold or reduction.result == "index") and len(reduced) != 1:
            advice = ""
            if len(reduced) > 1 and not reduction.is_fold:
                best = reduction.name.removeprefix("arg")
                advice = (
                    f"; keep all but the last of them in the output with reduce=({best!r}, {reduction.name!r}), and "
                    "take the best of those with torch"
                )
            raise EquationError(
                f"{reduction.name} needs exactly one reduced axis, {equation.text!r} reduces {len(reduced)}{advice}"
            )
    return Definition(
        equation, simplify(maps), tuple(replace(r, step=simplify(r.step)) if r.is_fold else r for r in reductions),
        simplify(outputs), single, parameters, tuple(sorted(defaults.items())),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def bind(
    definition: Definition,
    tensors: frozenset[str],
    literals: tuple[tuple[str, Number], ...] = (),
    symmetric: bool = False,
) -> Binding:
    """Program of a definition whose parameters in ``tensors`` are arrays, in ``literals`` part of the program.

    Arrays stay operands where no expression reads them: their batch axes are axes of the result.
    """
    equation = definition.equation
    letters = equation.letters
    canonical = {x: "".join(letters[axis] for axis in axes) for x, axes in _operands(equation).items()}
    values = {name: const(value) for name, value in literals}
    folds = [red.is_fold for red in definition.reductions]
    roots = [*definition.map, *definition.outputs, *(red.step[0] for red in definition.reductions if red.is_fold)]
    roots = list(simplify(substitute(roots, values)))
    lifted, numbers = lift(roots)
    read = [name for name in variables(lifted) if name in definition.parameters]
    used = [*read, *(name for name in definition.parameters if name in tensors and name not in read)]
    rename = {name: f"p{i}" for i, name in enumerate(used)}
    lifted = simplify(substitute(lifted, {name: var(new) for name, new in rename.items()}))
    count, outs = len(definition.map), len(definition.outputs)
    steps = iter(lifted[count + outs :])
    reductions = tuple(
        replace(red, step=(next(steps),)) if is_fold else red
        for red, is_fold in zip(definition.reductions, folds, strict=True)
    )
    operands = [Operand(x, axes) for x, axes in canonical.items()]
    operands += [Operand(rename[name], "", number=name not in tensors) for name in used]
    operands += [Operand(name, "", number=True) for name in numbers]
    out = "".join(letters[axis] for axis in equation.out)
    maps, outputs = tuple(lifted[:count]), tuple(lifted[count : count + outs])
    program = Program(tuple(operands), out, maps, reductions, outputs, symmetric)
    by_value = [name for name in used if name not in tensors]
    return Binding(program, tuple(n for n in used if n in tensors), (*by_value, *numbers.values()))


def _operands(equation: Equation) -> dict[str, str]:
    return {f"x{i}": axes for i, axes in enumerate(equation.operands)}


def symmetric(definition: Definition) -> bool:
    """Return whether the map treats its first two operands alike, so that one array for both needs half the work."""
    axes = definition.equation.operands
    out, shared = definition.equation.out, set(axes[0]) & set(axes[1]) if len(axes) > 1 else set[str]()
    if len(out) != 2 or len(axes) < 2 or any(red.is_fold for red in definition.reductions):
        return False
    own = [set(a) - shared for a in axes[:2]]
    if own != [{out[0]}, {out[1]}] or any(set(a) & set(out) for a in axes[2:]):
        return False
    if axes[0].replace(out[0], "") != axes[1].replace(out[1], "") or axes[0].index(out[0]) != axes[1].index(out[1]):
        return False
    return all(is_symmetric([root], "x0", "x1") for root in definition.map)
