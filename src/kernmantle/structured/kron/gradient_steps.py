"""The steps of the gradients of a Kronecker product: partial products of x and of the gradient, and sums over both.

For one factor all others must be on either side. Either those of the other half go onto one side at once, so there are
as many partial products as with all intermediate results stored, and never more than log2 of them in memory; or one
factor after the other in the order of fewest multiplications, and back, where others would make large what is between.
Small neighbours share the gradient of their product, from which theirs follow. What the last factors need is one step
from the gradient of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...torch_ops.autograd import constant
from .execute import Sizes
from .modes import Mode, cheapest, columns, contracted, grouped, parse, rows, text_of

# Neighbouring factors up to this size together share one gradient.
JOINT = 64
X, GRAD = 0, 1
Value = tuple[int, tuple[int, ...]]
"""A value's number, and the positions whose factors, or adjoint factors, are applied to it."""


@constant
def partial_text(text: str, shapes: Sizes, run: tuple[int, ...], done: tuple[int, ...], adjoint: bool) -> str:
    """Return the text of the product at the positions ``run`` alone, on a tensor to which ``done`` are applied."""
    entries: list[int | str] = []
    for position, mode in enumerate(parse(text, shapes)):
        if position in run and mode.factor is not None:
            entries.append(mode.factor)
        else:
            entries.append(f"i{mode.rows if (position in done) != adjoint else mode.columns}")
    return text_of(entries)


@constant
def gradient_steps(text: str, shapes: Sizes, wanted: tuple[bool, ...], batched: tuple[bool, ...], of_x: bool) -> Any:
    """Return the steps that find the gradients of the wanted factors, and of x; ``batched`` factors share none.

    Values are numbered, x first and the gradient of the product second. A step is ("product", source, text, whether by
    adjoint factors, whether it gives the gradient of x, values that are not read again), which makes the next value; or
    ("sum", value of x, value of the gradient, positions of a group, rows before it, size of what is summed, values that
    are not read again).
    """
    modes, every = parse(text, shapes), contracted(parse(text, shapes))
    is_wanted = [mode.factor is not None and wanted[mode.factor] for mode in modes]
    alone = [position for position in every if not is_wanted[position] or batched[modes[position].factor or 0]]
    together = [position for position in every if position not in alone]
    groups = tuple(sorted((*grouped(modes, together, JOINT), *((position,) for position in alone))))
    by_halves, by_chain = (_Steps(text, shapes, modes, is_wanted, of_x) for _ in range(2))
    by_halves.halve(groups, (X, ()), (GRAD, ()))
    by_chain.follow(groups)
    best = min(by_halves, by_chain, key=lambda one: one.moved)
    if of_x and not best.through:
        best.multiply((GRAD, ()), every, True, True)
    return _released(best.steps)


class _Steps:
    """Steps of the gradients, and the entries that they read and write."""

    def __init__(self, text: str, shapes: Sizes, modes: Sequence[Mode], is_wanted: Sequence[bool], of_x: bool) -> None:
        self.text, self.shapes, self.modes, self.is_wanted, self.of_x = text, shapes, modes, is_wanted, of_x
        self.every = contracted(modes)
        self.steps: list[list[Any]] = []
        self.count, self.moved, self.through = 2, 0, False

    def _size(self, done: tuple[int, ...], adjoint: bool) -> int:
        return math.prod(mode.rows if (i in done) != adjoint else mode.columns for i, mode in enumerate(self.modes))

    def multiply(self, source: Value, run: tuple[int, ...], adjoint: bool, is_last: bool) -> Value:
        """Apply the factors at some positions, or their adjoints, to a value."""
        number, done = source
        text = partial_text(self.text, self.shapes, run, done, adjoint)
        self.steps.append(["product", number, text, adjoint, is_last, ()])
        self.moved += self._size(done, adjoint) + self._size(done + run, adjoint)
        self.through |= is_last
        self.count += 1
        return self.count - 1, done + run

    def add(self, group: tuple[int, ...], x: Value, grad: Value) -> None:
        """Sum the gradient of the product of a group of factors, from values with all others applied."""
        before = enumerate(self.modes[: group[0]])
        left = math.prod(mode.columns if i in grad[1] else mode.rows for i, mode in before)
        own = [self.modes[position] for position in group]
        self.steps.append(["sum", x[0], grad[0], group, left, (rows(own), columns(own)), ()])
        self.moved += self._size(x[1], False) + self._size(grad[1], True)

    def _are_wanted(self, positions: tuple[int, ...]) -> bool:
        return any(self.is_wanted[position] for position in positions)

    def halve(self, groups: tuple[tuple[int, ...], ...], x: Value, grad: Value) -> None:
        """All others must be on either side of a factor: those of the other half go onto one side at once."""
        if not self._are_wanted(sum(groups, ())):
            return
        if len(groups) == 1:
            (group,) = groups
            self.add(group, x, grad)
            if self.of_x and len(group) + len(grad[1]) == len(self.every):
                self.multiply(grad, group, True, True)
            return
        middle = len(groups) // 2
        first, second = sum(groups[:middle], ()), sum(groups[middle:], ())
        if self._are_wanted(first):
            self.halve(groups[:middle], self.multiply(x, second, False, False), grad)
        if self._are_wanted(second):
            self.halve(groups[middle:], x, self.multiply(grad, first, True, False))

    def follow(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """One factor after the other in the order of fewest multiplications, and back."""
        whole = [
            Mode(columns([self.modes[i] for i in group]), rows([self.modes[i] for i in group]), index)
            for index, group in enumerate(groups)
        ]
        order = [groups[position] for position in cheapest(whole)]
        wanted = [position for position, group in enumerate(order) if self._are_wanted(group)]
        if not wanted:
            return
        values: list[Value] = [(X, ())]
        for group in order[: wanted[-1]]:
            values.append(self.multiply(values[-1], group, False, False))
        grad: Value = (GRAD, ())
        for position in reversed(range(0 if self.of_x else wanted[0], len(order))):
            if position in wanted:
                self.add(order[position], values[position], grad)
            if position > 0 and (self.of_x or position > wanted[0]):
                grad = self.multiply(grad, order[position], True, False)
            elif position == 0 and self.of_x:
                self.multiply(grad, order[0], True, True)


def _released(steps: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    """Return the steps, each with the values that none after it reads."""
    read: set[int] = {X, GRAD}
    for step in reversed(steps):
        sources = {step[1]} if step[0] == "product" else {step[1], step[2]}
        step[-1] = tuple(sorted(sources - read))
        read |= sources
    return tuple(map(tuple, steps))
