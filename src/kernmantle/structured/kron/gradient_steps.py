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
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

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

    def applying_sum(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return those of the same where adjoint factors are applied by the same kernel; infinity without one."""
        ...

    def passing(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return those of a pass that finds the gradient of each factor and applies them; infinity without one."""
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
    gradient, positions of a group, rows before it, size of what is summed, values that are not read again); or both at
    once, ("applying sum", what a sum has, text of the product of the gradient, whether it gives the gradient of x,
    values that are not read again); or, with the gradient of every factor of the group, ("pass", the same up to that,
    text of the product of x, values that are not read again). With a price a group may have factors that are not
    wanted. The steps are those of
    least ``price``, or that move fewest entries.
    """
    return _quickest(text, shapes, wanted, batched, of_x, saved, price)[1]


def seconds_of_steps(
    text: str, shapes: Sizes, wanted: tuple[bool, ...], of_x: bool, saved: tuple[tuple[int, ...], ...], price: Price
) -> float:
    """Return what the steps of gradients take at a price."""
    return _quickest(text, shapes, wanted, (False,) * len(shapes), of_x, saved, price)[0]


@dataclass(frozen=True)
class GradientSeconds:
    """Returns what the gradients of a product take at a price where it saves results between its passes.

    Of ``entries`` at most, where each axis has one.
    """

    text: str
    shapes: Sizes
    wanted: tuple[bool, ...]
    of_x: bool
    price: Price
    entries: float = math.inf

    def __call__(self, saved: tuple[tuple[int, ...], ...]) -> float:
        """Return the seconds; infinity for more than may be saved."""
        modes = parse(self.text, self.shapes)
        sizes = [math.prod(mode.rows if at in own else mode.columns for at, mode in enumerate(modes)) for own in saved]
        if sum(sizes) > self.entries:
            return math.inf
        return seconds_of_steps(self.text, self.shapes, self.wanted, self.of_x, saved, self.price)


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
        if number > 0:
            continue
        # With a price these are single factors, which are joined where that costs less, from either end.
        for order in (groups,) if price is None else (groups, groups[::-1]):
            by_parts = _Steps(text, shapes, modes, is_wanted, of_x, saved, price)
            by_parts.halve(order, tuple(own for own in every if batched[modes[own].factor or 0]))
            found.append(by_parts)
    for own in found:
        if of_x and not own.through:
            own.multiply((GRAD, ()), every, True, True)
    best = min(found, key=lambda one: one.cost)
    return best.cost, _released(best.steps)


def _together(groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the positions of groups in their order."""
    return tuple(sorted(sum(groups, ())))


class _Split(NamedTuple):
    """How a span of groups is parted: the price, where, and whether adjoint factors are applied on the way.

    At its begin where it shares one gradient.
    """

    seconds: float
    at: int
    through: bool


class _Prices:
    """Prices of the steps of a product, each found once, by positions and those applied to x and to the gradient."""

    def __init__(self, text: str, shapes: Sizes, price: Price) -> None:
        modes = parse(text, shapes)

        def sides(group: tuple[int, ...], x: tuple[int, ...], grad: tuple[int, ...]) -> tuple[list[Mode], int, int]:
            """Return the factors of a group, and the entries before them and behind."""
            last = group[-1] + 1
            after = enumerate(modes[last:], last)
            right = math.prod([mode.rows if index in x else mode.columns for index, mode in after])
            return [modes[position] for position in group], left_of(modes, group, grad), right

        self.product = cache(
            lambda run, done, adjoint: price.product(partial_text(text, shapes, run, done, adjoint), adjoint)
        )
        self.sum = cache(lambda group, x, grad: price.sum(*sides(group, x, grad)))
        self.applying_sum = cache(lambda group, x, grad: price.applying_sum(*sides(group, x, grad)))
        self.passing = cache(lambda group, x, grad: price.passing(*sides(group, x, grad)))


_prices = lru_cache(maxsize=64)(_Prices)


def left_of(modes: Sequence[Mode], group: tuple[int, ...], grad: tuple[int, ...]) -> int:
    """Return the entries of a gradient with some factors applied before those of a group."""
    return math.prod([mode.columns if i in grad else mode.rows for i, mode in enumerate(modes[: group[0]])])


class _Steps:
    """Steps of the gradients, and their price, or the entries that they read and write."""

    def __init__(
        self, text: str, shapes: Sizes, modes: Sequence[Mode], is_wanted: Sequence[bool], of_x: bool,
        saved: Sequence[tuple[int, ...]], price: Price | None,
    ) -> None:  # fmt: skip
        self.text, self.shapes, self.modes, self.is_wanted, self.of_x = text, shapes, modes, is_wanted, of_x
        self.every, self.price = contracted(modes), price
        self.prices = None if price is None else _prices(text, shapes, price)
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
        if self.prices is None:
            return self._size(source[1], adjoint) + self._size(source[1] + run, adjoint)
        return self.prices.product(run, source[1], adjoint)

    def _price_of_sum(self, group: tuple[int, ...], x: Value, grad: Value) -> float:
        if self.prices is None:
            return self._size(x[1], False) + self._size(grad[1], True)
        return self.prices.sum(group, x[1], grad[1])

    def _price_of_applying_sum(self, group: tuple[int, ...], x: Value, grad: Value) -> float:
        return math.inf if self.prices is None else self.prices.applying_sum(group, x[1], grad[1])

    def _price_of_pass(self, group: tuple[int, ...], x: Value, grad: Value) -> float:
        return math.inf if self.prices is None else self.prices.passing(group, x[1], grad[1])

    def _left(self, group: tuple[int, ...], grad: Value) -> int:
        return left_of(self.modes, group, grad[1])

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

    def add_applying(self, group: tuple[int, ...], x: Value, grad: Value, is_last: bool) -> Value:
        """Sum the same and apply the adjoint factors of the group, at once where that costs less."""
        apart = self._price_of_sum(group, x, grad) + self._price_of_product(grad, group, True)
        joint, single = self._price_of_applying_sum(group, x, grad), self._price_of_pass(group, x, grad)
        if apart <= min(joint, single):
            self.add(group, x, grad)
            return self.multiply(grad, group, True, is_last)
        return self.add_at_once("applying sum" if joint <= single else "pass", group, x, grad, is_last)

    def add_at_once(self, kind: str, group: tuple[int, ...], x: Value, grad: Value, is_last: bool) -> Value:
        """Find the gradients of a group and apply its adjoint factors, by a step of a kind."""
        price = self._price_of_pass if kind == "pass" else self._price_of_applying_sum
        self.cost += price(group, x, grad)
        own = [self.modes[position] for position in group]
        step: list[Any] = [x[0], grad[0], group, self._left(group, grad), (rows(own), columns(own))]
        step += [partial_text(self.text, self.shapes, group, grad[1], True), is_last]
        if kind == "pass":
            step.append(partial_text(self.text, self.shapes, group, x[1], False))
        self.steps.append([kind, *step, ()])
        self.through |= is_last
        self.count += 1
        return self.count - 1, grad[1] + group

    def _passes(self, group: tuple[int, ...], x: Value, grad: Value) -> bool:
        """Return whether a pass finds the gradients of a group sooner than a sum, or alone does."""
        if self.price is None:
            return False
        may_sum = len(group) == 1 or self.price.may_join([self.modes[index] for index in group])
        return not may_sum or self._price_of_pass(group, x, grad) < self._price_of_sum(group, x, grad)

    def _are_wanted(self, positions: tuple[int, ...]) -> bool:
        return any(self.is_wanted[position] for position in positions)

    def halve(self, groups: tuple[tuple[int, ...], ...], alone: tuple[int, ...]) -> None:
        """All others must be on either side of a factor: those of the other part go onto one side at once.

        Those of later groups go onto x, of earlier ones onto the gradient. Factors at the positions ``alone`` share no
        gradient.
        """
        self._part(groups, (0, len(groups)), (X, ()), (GRAD, ()), self.of_x, self._splits(groups, alone))

    def _part(
        self, groups: tuple[tuple[int, ...], ...], span: tuple[int, int], x: Value, grad: Value, through: bool,
        split: Callable[[tuple[int, int], bool], _Split],
    ) -> Value:  # fmt: skip
        """Find the gradients of a span of groups; return the gradient, with their factors applied if ``through``."""
        begin, end = span
        own, is_last, chosen = _together(groups[begin:end]), end == len(groups), split(span, through)
        if through and not chosen.through:
            self._part(groups, span, x, grad, False, split)
            return self.multiply(grad, own, True, is_last)
        if not self._are_wanted(own):
            return self.multiply(grad, own, True, is_last) if through else grad
        if chosen.at == begin:
            if through:
                return self.add_applying(own, x, grad, is_last)
            if self._passes(own, x, grad):
                self.add_at_once("pass", own, x, grad, False)
            else:
                self.add(own, x, grad)
            return grad
        first, second = _together(groups[begin : chosen.at]), _together(groups[chosen.at : end])
        follows = self._are_wanted(second)
        if self._are_wanted(first):
            of_x = self.multiply(x, second, False, False)
            after = self._part(groups, (begin, chosen.at), of_x, grad, follows or through, split)
        elif follows or through:
            after = self.multiply(grad, first, True, False)
        else:
            after = grad
        return self._part(groups, (chosen.at, end), x, after, through, split)

    def _is_run(self, group: tuple[int, ...], alone: tuple[int, ...]) -> bool:
        """Return whether factors are neighbours, none of which must stand alone."""
        return group[-1] - group[0] == len(group) - 1 and not set(group).intersection(alone)

    def _may_join(self, group: tuple[int, ...], alone: tuple[int, ...]) -> bool:
        """Return whether factors are neighbours that may share one gradient."""
        if len(group) == 1:
            return True
        is_run = self._is_run(group, alone)
        return is_run and self.price is not None and self.price.may_join([self.modes[index] for index in group])

    def _splits(
        self, groups: tuple[tuple[int, ...], ...], alone: tuple[int, ...]
    ) -> Callable[[tuple[int, int], bool], _Split]:
        """Return how a span of neighbouring groups is parted, of least price; in halves where there is none."""
        if self.price is None:

            def halves(span: tuple[int, int], _: bool) -> _Split:
                begin, end = span
                at = (begin + end) // 2
                goes_on = end == len(groups) and self._are_wanted(_together(groups[at:end]))
                return _Split(0.0, at, goes_on or at == begin)

            return halves

        @cache
        def best(span: tuple[int, int], through: bool) -> _Split:
            begin, end = span
            own = _together(groups[begin:end])
            x, grad = (X, _together(groups[end:])), (GRAD, _together(groups[:begin]))
            found = list[_Split]()
            if through:
                apart = best(span, False)
                found.append(_Split(apart.seconds + self._price_of_product(grad, own, True), apart.at, False))
            if not self._are_wanted(own):
                return min(found, default=_Split(0.0, begin, False))
            if self._may_join(own, alone):
                price = self._price_of_applying_sum if through else self._price_of_sum
                found.append(_Split(price(own, x, grad), begin, through))
            if self._is_run(own, alone):
                found.append(_Split(self._price_of_pass(own, x, grad), begin, through))
            for at in range(begin + 1, end):
                first, second = _together(groups[begin:at]), _together(groups[at:end])
                follows = through or self._are_wanted(second)
                seconds = best((begin, at), follows).seconds + best((at, end), through).seconds
                seconds += self._price_of_product(x, second, False) if self._are_wanted(first) else 0.0
                found.append(_Split(seconds, at, through))
            return min(found)

        return best

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
            group, goes_on = order[position], self.of_x or position > wanted[0]
            if position in wanted and goes_on:
                grad = self.add_applying(group, values[position], grad, position == 0)
            elif position in wanted:
                self.add(group, values[position], grad)
            elif goes_on:
                grad = self.multiply(grad, group, True, position == 0)


def _released(steps: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    """Return the steps, each with the values that none after it reads."""
    read: set[int] = {X, GRAD}
    for step in reversed(steps):
        sources = {step[1]} if step[0] == "product" else {step[1], step[2]}
        step[-1] = tuple(sorted(sources - read))
        read |= sources
    return tuple(map(tuple, steps))
