"""Passes of launches alone, which take their operands from one table of addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.joined_launches import GRAD, BothPasses, JoinedLaunches
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.saved import addresses
from ..mode_product.torch_op import Maybe
from .chain_products import Gradients, Saved, Weights, canonical, in_one_piece

_address = torch.Tensor.data_ptr


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


class JoinedSteps(JoinedLaunches):
    """Launches of a pass of several steps."""

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


def passes_of_step(forward: LaunchedForward, backward: LaunchedBackward, weights: int, itemsize: int) -> BothPasses:
    """Return both passes of a step, which read the weights and x, and the forward one a bias and what is added."""
    x, saves, own = 1 + weights, forward.saves, JoinedSteps(weights + 3)
    *between, value = forward.layouts
    value_at, dropped = own.tensor(value), [own.tensor(layout) for layout in between[saves:]]
    saved = [own.tensor(layout) for layout in between[:saves]]
    own.forward(forward, x, range(1, x), x + 1, [*saved, *dropped, value_at], x + 2)
    back = JoinedSteps(2 + weights + saves)
    gives = back.backward(backward, GRAD, range(2, 2 + weights), range(2 + weights, 3 + weights + saves))
    return BothPasses(own, back, gives, itemsize, len(dropped))
