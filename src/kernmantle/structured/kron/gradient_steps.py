"""The steps of the gradients of a Kronecker product: partial products of x and of the gradient, and sums over both.

For one factor all others must be on either side. Either those of the other part go onto one side at once, so there are
as many partial products as with all intermediate results stored, and never more than log2 of them in memory where parts
are halves; or one factor after the other in the order of fewest multiplications, and back, where others would make
large what is between. Small neighbours share the gradient of their product, from which theirs follow. What the last
factors need is one step from the gradient of x. What the product left between its passes is not made again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

from ...torch_ops.autograd import constant
from .execute import Sizes
from .modes import Mode, cheapest, columns, contracted, grouped, parse, rows, text_of

# Neighbouring factors up to this size together share one gradient.
JOINT = 64
_WIDE_JOINT = 2048  # with a price
X, GRAD, SAVED = 0, 1, 2
Value = tuple[int, tuple[int, ...]]
"""A value's number, and the positions whose factors, or adjoint factors, are applied to it."""


class Price(Protocol):
    """Seconds of the steps, for the arrays of a call on a device."""

    def may_join(self, group: Sequence[Mode]) -> bool:
        """Return whether neighbouring factors may share one gradient."""
        ...

    def product(self, text: str, is_adjoint: bool) -> float:
        """Return those of the product of a text, by adjoint factors where it says so."""
        ...

    def sum(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return those of neighbouring factors' gradients, over ``left`` entries before them and ``right`` behind."""
        ...


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
def gradient_steps(
    text: str, shapes: Sizes, wanted: tuple[bool, ...], batched: tuple[bool, ...], of_x: bool,
    saved: tuple[tuple[int, ...], ...] = (), price: Price | None = None,
) -> Any:  # fmt: skip
    """Return the steps that find the gradients of the wanted factors, and of x; ``batched`` factors share none.

    Values are numbered, x first, the gradient of the product second, then those of x with the factors at each of the
    positions ``saved`` applied. A step is ("product", source, text, whether by adjoint factors, whether it gives the
    gradient of x, values that are not read again), which makes the next value; or ("sum", value of x, value of the
    gradient, positions of a group, rows before it, size of what is summed, values that are not read again); with a
    price a group may have factors that are not wanted. The steps are those of least ``price``, or that move fewest
    entries.
    """
    return _quickest(text, shapes, wanted, batched, of_x, saved, price)[1]


def seconds_of_steps(
    text: str, shapes: Sizes, wanted: tuple[bool, ...], of_x: bool, saved: tuple[tuple[int, ...], ...], price: Price
) -> float:
    """Return what the steps of gradients take at a price."""
    return _quickest(text, shapes, wanted, (False,) * len(shapes), of_x, saved, price)[0]


@lru_cache(maxsize=4096)
def _quickest(
    text: str, shapes: Sizes, wanted: tuple[bool, ...], batched: tuple[bool, ...], of_x: bool,
    saved: tuple[tuple[int, ...], ...], price: Price | None,
) -> tuple[float, tuple[tuple[Any, ...], ...]]:  # fmt: skip
    modes, every = parse(text, shapes), contracted(parse(text, shapes))
    is_wanted = [mode.factor is not None and wanted[mode.factor] for mode in modes]
    alone = [position for position in every if not is_wanted[position] or batched[modes[position].factor or 0]]
    together = [position for position in every if position not in alone]
    found: list[_Steps] = []
    sizes = (JOINT,) if price is None else (1, JOINT, _WIDE_JOINT)
    groupings = [grouped(modes, together, most) for most in sizes]
    for number, own in enumerate(dict.fromkeys(groupings)):
        groups = tuple(sorted((*own, *((position,) for position in alone))))
        by_chain = _Steps(text, shapes, modes, is_wanted, of_x, saved, price)
        by_chain.follow(groups)
        found.append(by_chain)
        if number == 0:  # with a price these are single factors, which are joined where that costs less
            by_parts = _Steps(text, shapes, modes, is_wanted, of_x, saved, price)
            by_parts.halve(groups, tuple(own for own in every if batched[modes[own].factor or 0]))
            found.append(by_parts)
    for own in found:
        if of_x and not own.through:
            own.multiply((GRAD, ()), every, True, True)
    best = min(found, key=lambda one: one.cost)
    return best.cost, _released(best.steps)


class _Steps:
    """Steps of the gradients, and their price, or the entries that they read and write."""

    def __init__(
        self, text: str, shapes: Sizes, modes: Sequence[Mode], is_wanted: Sequence[bool], of_x: bool,
        saved: Sequence[tuple[int, ...]], price: Price | None,
    ) -> None:  # fmt: skip
        self.text, self.shapes, self.modes, self.is_wanted, self.of_x = text, shapes, modes, is_wanted, of_x
        self.every, self.price = contracted(modes), price
        self.saved: list[Value] = [(SAVED + index, positions) for index, positions in enumerate(saved)]
        self.steps: list[list[Any]] = []
        self.count, self.cost, self.through = SAVED + len(saved), 0.0, False

    def _size(self, done: tuple[int, ...], adjoint: bool) -> int:
        return math.prod(mode.rows if (i in done) != adjoint else mode.columns for i, mode in enumerate(self.modes))

    def _from_saved(self, source: Value, run: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
        """Return the value of x with the fewest positions missing to a source with a run applied, and those."""
        wanted = {*source[1], *run}
        for value in self.saved:
            missing = tuple(sorted(wanted.difference(value[1])))
            if wanted.issuperset(value[1]) and len(missing) < len(run):
                source, run = value, missing
        return source, run

    def _price_of_product(self, source: Value, run: tuple[int, ...], adjoint: bool) -> float:
        source, run = (source, run) if adjoint else self._from_saved(source, run)
        if not run:
            return 0.0
        if self.price is None:
            return self._size(source[1], adjoint) + self._size(source[1] + run, adjoint)
        return self.price.product(partial_text(self.text, self.shapes, run, source[1], adjoint), adjoint)

    def _price_of_sum(self, group: tuple[int, ...], x: Value, grad: Value) -> float:
        if self.price is None:
            return self._size(x[1], False) + self._size(grad[1], True)
        right = math.prod(
            mode.rows if index in x[1] else mode.columns for index, mode in enumerate(self.modes) if index > group[-1]
        )
        return self.price.sum([self.modes[position] for position in group], self._left(group, grad), right)

    def _left(self, group: tuple[int, ...], grad: Value) -> int:
        before = enumerate(self.modes[: group[0]])
        return math.prod(mode.columns if i in grad[1] else mode.rows for i, mode in before)

    def multiply(self, source: Value, run: tuple[int, ...], adjoint: bool, is_last: bool) -> Value:
        """Apply the factors at some positions, or their adjoints, to a value."""
        self.cost += self._price_of_product(source, run, adjoint)
        done = source[1] + run
        if not adjoint:
            source, run = self._from_saved(source, run)
            if not run:
                return source[0], done
        text = partial_text(self.text, self.shapes, run, source[1], adjoint)
        self.steps.append(["product", source[0], text, adjoint, is_last, ()])
        self.through |= is_last
        self.count += 1
        return self.count - 1, done

    def add(self, group: tuple[int, ...], x: Value, grad: Value) -> None:
        """Sum the gradient of the product of a group of factors, from values with all others applied."""
        own = [self.modes[position] for position in group]
        self.steps.append(["sum", x[0], grad[0], group, self._left(group, grad), (rows(own), columns(own)), ()])
        self.cost += self._price_of_sum(group, x, grad)

    def _are_wanted(self, positions: tuple[int, ...]) -> bool:
        return any(self.is_wanted[position] for position in positions)

    def halve(self, groups: tuple[tuple[int, ...], ...], alone: tuple[int, ...]) -> None:
        """All others must be on either side of a factor: those of the other part go onto one side at once.

        Factors at the positions ``alone`` share no gradient.
        """
        self._part(groups, 0, len(groups), (X, ()), (GRAD, ()), self._middle(groups, alone))

    def _part(
        self, groups: tuple[tuple[int, ...], ...], begin: int, end: int, x: Value, grad: Value,
        middle: Callable[[int, int], int],
    ) -> None:  # fmt: skip
        if not self._are_wanted(sum(groups[begin:end], ())):
            return
        at = middle(begin, end)
        if at == begin:
            group = sum(groups[begin:end], ())
            self.add(group, x, grad)
            if self.of_x and len(group) + len(grad[1]) == len(self.every):
                self.multiply(grad, group, True, True)
            return
        first, second = sum(groups[begin:at], ()), sum(groups[at:end], ())
        if self._are_wanted(first):
            self._part(groups, begin, at, self.multiply(x, second, False, False), grad, middle)
        if self._are_wanted(second):
            self._part(groups, at, end, x, self.multiply(grad, first, True, False), middle)

    def _may_join(self, group: tuple[int, ...], alone: tuple[int, ...]) -> bool:
        """Return whether factors are neighbours that may share one gradient."""
        if len(group) == 1:
            return True
        is_run = group[-1] - group[0] == len(group) - 1 and not set(group).intersection(alone)
        return is_run and self.price is not None and self.price.may_join([self.modes[index] for index in group])

    def _middle(self, groups: tuple[tuple[int, ...], ...], alone: tuple[int, ...]) -> Callable[[int, int], int]:
        """Return where to part neighbouring groups, their begin where they share one gradient.

        For the least price, in halves of the groups where there is none.
        """
        if self.price is None:
            return lambda begin, end: (begin + end) // 2

        @cache
        def best(begin: int, end: int) -> tuple[float, int]:
            if not self._are_wanted(sum(groups[begin:end], ())):
                return 0.0, begin
            x, grad = (X, sum(groups[end:], ())), (GRAD, sum(groups[:begin], ()))
            found, own = list[tuple[float, int]](), sum(groups[begin:end], ())
            if self._may_join(own, alone):
                is_last = self.of_x and end == len(groups)
                through = self._price_of_product(grad, own, True) if is_last else 0.0
                found.append((self._price_of_sum(own, x, grad) + through, begin))
            for at in range(begin + 1, end):
                first, second = sum(groups[begin:at], ()), sum(groups[at:end], ())
                seconds = best(begin, at)[0] + best(at, end)[0]
                seconds += self._price_of_product(x, second, False) if self._are_wanted(first) else 0.0
                seconds += self._price_of_product(grad, first, True) if self._are_wanted(second) else 0.0
                found.append((seconds, at))
            return min(found)

        return lambda begin, end: best(begin, end)[1]

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
