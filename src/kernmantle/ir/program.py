"""Programs: ``out[...] = outputs(reduce(map(operands)))`` over named axes, possibly one nested in another.

A program knows nothing of shapes, devices or arrays. Its text is canonical: it is the argument of the torch
operator, the key of every cache and what a pickle holds.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .node import Node, substitute, var, variables
from .reductions import REDUCTIONS, SELECTIONS, SOFTMAX, Reduction, fold, of_rows, semiring
from .show import from_ssa, pretty, to_ssa


@dataclass(frozen=True)
class Operand:
    """One input: a tensor over some axes, a number (axes "", passed by value) or an inner program."""

    name: str
    axes: str
    number: bool = False
    inner: Program | None = None


@dataclass(frozen=True)
class Program:
    """``out[out] = outputs(⊕ map)``: the reduced axes are those of the operands that ``out`` lacks.

    ``map`` has one entry per accumulator, reduced by the entry of ``reductions`` at the same index; ``outputs``
    are expressions over the accumulators s0, s1, ... and the operands without a reduced axis. With
    ``symmetric`` the operands x0 and x1 are one tensor, given once. With ``reproducible`` mapped values round as in
    every other such program, because they are compared with a result of one. ``product_order``
    counts the derivatives of a product that led to the program.
    """

    operands: tuple[Operand, ...]
    out: str
    map: tuple[Node, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Node, ...]
    symmetric: bool = False
    reproducible: bool = False
    product_order: int = 0

    @property
    def axes(self) -> str:
        """Every axis: those of the output, then the reduced ones in order of appearance."""
        order = self.out + "".join(operand.axes for operand in self.operands)
        return "".join(dict.fromkeys(order))

    @property
    def reduced(self) -> str:
        """The axes that are reduced away."""
        return self.axes[len(self.out) :]

    @property
    def rounds_alike(self) -> bool:
        """Return whether mapped values must round as in other programs: on request, or for a reduction."""
        return self.reproducible or any(reduction.reproducible for reduction in self.reductions)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands whose arrays the caller passes, in order."""
        alias = "x1" if self.symmetric else None
        return tuple(op for op in self.operands if not op.number and op.name != alias)

    @property
    def numbers(self) -> tuple[Operand, ...]:
        """The operands passed by value, in order."""
        return tuple(op for op in self.operands if op.number)

    @property
    def equation(self) -> str:
        """The equation of the array operands."""
        return ",".join(op.axes for op in self.operands if not op.number) + "->" + self.out

    def operand(self, name: str) -> Operand:
        """Return the operand of that name."""
        return next(op for op in self.operands if op.name == name)

    def pruned(self) -> Program:
        """Return the program without unused operands, the last ones first, as far as an array and all axes stay."""
        steps = [node for red in self.reductions if red.is_fold for node in red.step]
        used = set(variables([*self.map, *self.outputs, *steps]))
        remaining = list(self.operands)
        for operand in reversed(self.operands):
            if operand.name not in used:
                others = [other for other in remaining if other is not operand]
                has_array = operand.number or any(not other.number for other in others)
                if has_array and set(operand.axes) <= {axis for other in others for axis in other.axes}:
                    remaining = others
        return replace(self, operands=tuple(remaining))

    def renamed(self) -> Program:
        """Return the program with arrays named x0, x1, ... and numbers p0, p1, ..., so that none can collide."""
        arrays = [op.name for op in self.operands if not op.number]
        new = {name: f"x{i}" for i, name in enumerate(arrays)}
        new |= {op.name: f"p{i}" for i, op in enumerate(self.numbers)}
        by = {old: var(name) for old, name in new.items()}
        operands = tuple(replace(op, name=new[op.name]) for op in self.operands)
        maps, outputs = tuple(substitute(self.map, by)), tuple(substitute(self.outputs, by))
        return replace(self, operands=operands, map=maps, outputs=outputs)

    def with_batch(self, batch: Mapping[str, str], out: str) -> Program:
        """Return the program with batch axes named: ``batch`` gives the letters to put before each operand's axes."""
        operands = tuple(replace(op, axes=batch.get(op.name, "") + op.axes) for op in self.operands)
        return replace(self, operands=operands, out=out + self.out)

    @property
    def text(self) -> str:
        """Canonical text; ``Program.parse`` is its inverse."""
        return _text(self)

    @staticmethod
    def parse(text: str) -> Program:
        """Return the program of a canonical text."""
        return _parse(text)

    def __str__(self) -> str:
        maps = ", ".join(
            f"{red.name} {pretty(red.step[0] if red.is_fold else value)}"
            for red, value in zip(self.reductions, self.map, strict=True)
        )
        tail = ", ".join(map(pretty, self.outputs))
        inner = "".join(f"; {op.name} = ({op.inner})" for op in self.operands if op.inner is not None)
        return f"{self.equation}: {maps}{'' if tail == 's0' else ' -> ' + tail}{inner}"


def reduction_document(reduction: Reduction) -> object:
    """Return a reduction as JSON: its name, or what a user's is made of."""
    if reduction.name in REDUCTIONS:
        return reduction.name
    return [reduction.name, to_ssa(reduction.step), repr(reduction.init[0])]


def reduction_of(document: Any) -> Reduction:
    """Return the inverse of ``reduction_document``."""
    if isinstance(document, str):
        return REDUCTIONS[document]
    name, step, init = document
    if name in (SOFTMAX, *SELECTIONS):
        return of_rows(name, int(init))
    (expression,) = from_ssa(step)
    make = fold if name == "fold" else semiring
    return make(expression, ast.literal_eval(init) if init not in ("inf", "-inf", "nan") else float(init))


def _operand_document(operand: Operand) -> list[object]:
    if operand.inner is not None:
        return [operand.name, operand.axes, _document(operand.inner)]
    return [operand.name, operand.axes, "number"] if operand.number else [operand.name, operand.axes]


def _operand(document: list[Any]) -> Operand:
    name, axes = document[:2]
    kind: Any = document[2] if len(document) > 2 else None
    return Operand(name, axes, kind == "number", None if kind in (None, "number") else _program(kind))


def _document(program: Program) -> dict[str, object]:
    return {
        "operands": [_operand_document(operand) for operand in program.operands],
        "out": program.out,
        "map": to_ssa(program.map),
        "reduce": [reduction_document(reduction) for reduction in program.reductions],
        "outputs": to_ssa(program.outputs),
        **({"symmetric": True} if program.symmetric else {}),
        **({"reproducible": True} if program.reproducible else {}),
        **({"product_order": program.product_order} if program.product_order else {}),
    }


def _program(document: dict[str, Any]) -> Program:
    return Program(
        tuple(_operand(entry) for entry in document["operands"]),
        document["out"],
        from_ssa(document["map"]),
        tuple(reduction_of(entry) for entry in document["reduce"]),
        from_ssa(document["outputs"]),
        document.get("symmetric", False),
        document.get("reproducible", False),
        document.get("product_order", 0),
    )


@lru_cache(maxsize=4096)
def _text(program: Program) -> str:
    return json.dumps(_document(program), separators=(",", ":"))


@lru_cache(maxsize=4096)
def _parse(text: str) -> Program:
    return _program(json.loads(text))


def elementwise(operands: Sequence[Operand], out: str, outputs: Sequence[Node]) -> Program:
    """Return the program without a reduction: each output is an expression of the operands."""
    maps = tuple(outputs)
    reductions = (REDUCTIONS["sum"],) * len(maps)
    return Program(tuple(operands), out, maps, reductions, tuple(var(f"s{i}") for i in range(len(maps))))
