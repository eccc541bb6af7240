"""Passes of launches alone, which take their operands from one table of addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.saved import addresses
from ..mode_product.torch_op import Maybe
from .chain_products import Gradients, Saved, Weights, canonical, in_one_piece

_address = torch.Tensor.data_ptr
MOST_READY = 1 << 24
"""Bytes that a forward pass takes for its backward pass; where it is more, the GPU takes longer."""


@dataclass(frozen=True, eq=False)
class LaunchedForward:
    """A forward pass of launches; its table has no address first, then those of x, weights, a bias and its results.

    ``layouts`` are those of the results, of which the first ones, ``saves``, are saved. Behind them is the address of
    what is added to the last one, where something is.
    """

    launches: LaunchSequence
    layouts: tuple[PlainLayout, ...]
    saves: int

    def run(self, x: torch.Tensor, weights: Weights, bias: Maybe, added: Maybe = None) -> list[torch.Tensor]:
        """Return the results, of the type of x."""
        found = allocate_each(x, self.layouts)
        table = [
            0, x.data_ptr(), *map(_address, weights), 0 if bias is None else bias.data_ptr(), *map(_address, found)
        ]  # fmt: skip
        if added is not None:
            table.append(added.data_ptr())
        self.launches(table)
        return found


GRAD = 1
"""Where the address of the gradient is in the table of a backward pass, which begins with an absent one's."""


class Table:
    """Addresses of a backward pass: none, those of the gradient, of tensors that are read, and of results."""

    def __init__(self, reads: int) -> None:
        self.first, self.shapes = GRAD + 1 + reads, list[tuple[int, ...]]()

    def add(self, shape: tuple[int, ...]) -> int:
        """Return the position of another array to be written."""
        self.shapes.append(shape)
        return self.first + len(self.shapes) - 1

    def bind(
        self, launches: Sequence[tuple[Launch, Pick]], found: Sequence[int], reads: bool, batch_last: bool,
        route: str = "grouped", is_eager: bool = False,
    ) -> LaunchedBackward:  # fmt: skip
        """Return the pass that gives the results at positions ``found``, none at 0."""
        pick = itemgetter(*[at and at - self.first + 1 for at in found])
        layouts = layouts_in_one_piece(self.shapes)
        own = LaunchSequence(launches)
        return LaunchedBackward(own, layouts, pick, reads, batch_last, route, is_eager)


@dataclass(frozen=True, eq=False)
class LaunchedBackward:
    """A backward pass of launches that take their operands from a table of addresses.

    ``layouts`` are those of what it writes, of which ``pick`` takes the gradients of x, the bias and the weights,
    behind None for one that is not wanted. ``reads`` says that launches read all tensors where they lie.
    ``is_eager``: a graph that is captured has something else.
    """

    launches: LaunchSequence
    layouts: tuple[PlainLayout, ...]
    pick: Callable[[Sequence[Maybe]], tuple[Maybe, ...]]
    reads: bool
    batch_last: bool
    route: str
    is_eager: bool = False

    @property
    def launched(self) -> LaunchedBackward | None:
        """Return the pass itself if it reads all tensors where they lie."""
        return self if self.reads else None

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        dtype, values = grad.dtype, (x, *saved)
        if not self.reads:
            grad, weights = canonical(grad, self.batch_last), in_one_piece(weights, dtype)
            values = [None if value is None else canonical(value, self.batch_last) for value in values]
        found = allocate_each(grad, self.layouts)
        self.launches([0, grad.data_ptr(), *addresses((*weights, *values)), *map(_address, found)])
        of_x, of_bias, *of_weights = self.pick((None, *found))
        return of_x, of_bias, of_weights


class JoinedLaunches:
    """Launches of a pass of one step or more, on one table of addresses.

    In it are no tensor, those that are ``read``, those that are made, and parts of one more that is made last, which
    launches alone read. Positions of parts are negative here, as it is not known yet what precedes them.
    """

    def __init__(self, read: int) -> None:
        self.first, self.layouts, self._parts = 1 + read, list[PlainLayout](), list[PlainLayout]()
        self._launches = list[tuple[Launch, list[int]]]()

    def tensor(self, layout: PlainLayout) -> int:
        """Return the position of a tensor that is made."""
        self.layouts.append(layout)
        return self.first + len(self.layouts) - 1

    def part(self, layout: PlainLayout) -> int:
        """Return the position of what launches alone read."""
        self._parts.append(layout)
        return -len(self._parts)

    @property
    def parts(self) -> int:
        """Return how many parts there are."""
        return len(self._parts)

    def launch(self, launch: Launch, operands: Sequence[int]) -> None:
        """Add a launch on the addresses at some positions."""
        self._launches.append((launch, [*operands]))

    def _add(self, launches: LaunchSequence, to: Sequence[int]) -> None:
        """Add launches on a table whose addresses are at positions ``to``."""
        for launch, pick in launches.launches:
            self.launch(launch, [to[at] for at in pick(range(len(to)))])

    def forward(
        self, step: LaunchedForward, x: int, weights: Sequence[int], bias: int, found: Sequence[int], added: int = 0
    ) -> None:
        """Add the forward pass of a step with results at positions ``found``."""
        self._add(step.launches, [0, x, *weights, bias, *found, added])

    def backward(
        self, step: LaunchedBackward, grad: int, weights: Sequence[int], values: Sequence[int], of_x: int = 0
    ) -> list[int]:
        """Add the backward pass of a step; return where the gradients of x, the bias and the weights are, 0 for none.

        That of x is put at ``of_x``, or is made last of them.
        """
        count: Any = range(1 + len(step.layouts))  # behind none
        gives: Any = step.pick(count)
        at = dict[int, int]()
        for number in (*gives[1:], *gives[:1]):
            if number:
                at[number] = of_x if of_x and number == gives[0] else self.tensor(step.layouts[number - 1])
        each = [at[number] if number in at else self.part(step.layouts[number - 1]) for number in count[1:]]
        self._add(step.launches, [0, grad, *weights, *values, *each])
        return [at.get(number, 0) for number in gives]

    def bind(self, itemsize: int) -> tuple[LaunchSequence, tuple[PlainLayout, ...], tuple[int, ...]]:
        """Return the launches, the layouts of all that is made, and the bytes at which parts of the last one begin."""
        offsets, size = list[int](), 0
        for shape, _ in self._parts:
            offsets.append(size)
            size += -(-math.prod(shape) * itemsize // _APART) * _APART
        layouts = (*self.layouts, *layouts_in_one_piece([(size // itemsize,)] if offsets else []))
        end = self.first + len(layouts) - 1
        launches = [
            (launch, itemgetter(*[at if at >= 0 else end - at for at in operands]))
            for launch, operands in self._launches
        ]
        return LaunchSequence(launches, True), layouts, tuple(offsets)


_APART = 256
"""Bytes from which on parts of a tensor begin."""
Ready = tuple[Sequence[int], Sequence[torch.Tensor]]
"""Memory that a forward pass took for the backward one, behind its addresses."""


class BothPasses:
    """Passes of a Function that are launches alone, on tensors that all lie as they did when these were bound.

    The forward pass is given what both passes read and what it alone reads, and makes its result, ``drops`` tensors
    that are let go, and what is saved; the backward pass is given the gradient, what is read, what was saved and its
    parts, and makes gradients, of which ``gives`` are the positions. The forward pass takes memory for all of them
    where it is little, or else for those of parameters, which in its thread takes the host a third of what it takes in
    autograd's own.
    """

    __slots__ = ("_backward", "_forward", "_later", "_made", "_now", "_parts", "_parts_back", "_pick", "_skips")

    def __init__(
        self, forward: JoinedLaunches, backward: JoinedLaunches, gives: Sequence[int], itemsize: int, drops: int = 0
    ) -> None:
        self._forward, layouts, self._parts = forward.bind(itemsize)
        self._backward, made, self._parts_back = backward.bind(itemsize)
        first, of_x = backward.first - 1, gives[0]
        self._skips = 1 + drops
        self._made, self._pick = len(layouts), itemgetter(*[at and at - first for at in gives])
        for ahead in (len(made), of_x - first - 1 if of_x else len(backward.layouts), 0):
            if itemsize * sum(math.prod(shape) for shape, _ in made[:ahead]) <= MOST_READY:
                break
        self._now, self._later = layouts + made[:ahead], made[ahead:]

    def run(
        self, read: Sequence[torch.Tensor], others: Sequence[Maybe]
    ) -> tuple[torch.Tensor, list[int], Sequence[torch.Tensor], Ready]:
        """Return the result, the addresses of what the backward pass reads, what is saved, and memory of that pass."""
        memory, count = allocate_each(read[0], self._now), len(read)
        at, made, end = list(map(_address, (*read, *memory))), self._made, count + self._made
        table = [0, *at[:count], *[0 if each is None else each.data_ptr() for each in others], *at[count:end]]
        if self._parts:
            begin = at[end - 1]
            table += [begin + offset for offset in self._parts]
        self._forward(table)
        skips = self._skips
        return memory[0], [*at[:count], *at[count + skips : end]], memory[skips:made], (at[end:], memory[made:])

    def run_backward(self, read: Sequence[int], grad: torch.Tensor, ready: Ready | None = None) -> tuple[Maybe, ...]:
        """Return the gradients, in memory that the forward pass took, or in other one."""
        at, found = ready or ([], [])
        if ready is None or self._later:
            layouts = (*self._now[self._made :], *self._later) if ready is None else self._later
            found = [*found, *allocate_each(grad, layouts)]
            at = list(map(_address, found))
        table = [0, grad.data_ptr(), *read]
        if self._parts:
            begin = read[-1]
            table += [begin + offset for offset in self._parts]
        table += at
        if self._parts_back:
            begin = at[-1]
            table += [begin + offset for offset in self._parts_back]
        self._backward(table)
        return self._pick((None, *found))


def passes_of_step(forward: LaunchedForward, backward: LaunchedBackward, weights: int, itemsize: int) -> BothPasses:
    """Return both passes of a step, which read the weights and x, and the forward one a bias and what is added."""
    x, saves, own = 1 + weights, forward.saves, JoinedLaunches(weights + 3)
    *between, value = forward.layouts
    value_at, dropped = own.tensor(value), [own.tensor(layout) for layout in between[saves:]]
    saved = [own.tensor(layout) for layout in between[:saves]]
    own.forward(forward, x, range(1, x), x + 1, [*saved, *dropped, value_at], x + 2)
    back = JoinedLaunches(2 + weights + saves)
    gives = back.backward(backward, GRAD, range(2, 2 + weights), range(2 + weights, 3 + weights + saves))
    return BothPasses(own, back, gives, itemsize, len(dropped))
