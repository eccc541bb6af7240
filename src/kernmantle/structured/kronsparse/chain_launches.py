"""Passes of launches alone, which take their operands from one table of addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.info import RunInfo
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


def moved(launches: LaunchSequence, to: Sequence[int]) -> list[tuple[Launch, Pick]]:
    """Return launches on a table in which the addresses of their own one are at positions ``to``."""
    return [(launch, itemgetter(*[to[at] for at in pick(range(len(to)))])) for launch, pick in launches.launches]


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
        self, launches: Sequence[tuple[Launch, Pick]], found: Sequence[int], reads: bool, batch_last: bool, size: int,
        route: str = "grouped", is_eager: bool = False,
    ) -> LaunchedBackward:  # fmt: skip
        """Return the pass that gives the results at positions ``found``, none at 0; ``size``: bytes of a number."""
        pick = itemgetter(*[at and at - self.first + 1 for at in found])
        written = size * sum(map(math.prod, self.shapes))
        layouts = layouts_in_one_piece(self.shapes)
        own = LaunchSequence(launches)
        return LaunchedBackward(own, layouts, pick, reads, batch_last, written, route, is_eager)


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
    written_bytes: int
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


class BothPasses:
    """A step whose passes are launches alone, on tensors that all lie as they did when these were bound.

    ``ready``: the forward pass takes the memory of both, which in its thread takes the host a third of what it takes in
    autograd's own.
    """

    __slots__ = ("_backward", "_forward", "_layouts", "_ready", "_route")

    def __init__(self, forward: LaunchedForward, backward: LaunchedBackward, route: str) -> None:
        self._forward, self._backward, self._route = forward, backward, route
        self._ready = backward.written_bytes <= MOST_READY
        self._layouts = forward.layouts + backward.layouts if self._ready else forward.layouts

    def run(self, ctx: Any, info: RunInfo, x: torch.Tensor, bias: Maybe, weights: Weights) -> torch.Tensor:
        """Return the product; ``ctx`` takes the addresses of what is saved, and memory of the backward pass."""
        forward, inputs, memory = self._forward, len(weights) + 1, allocate_each(x, self._layouts)
        saves, end = forward.saves, inputs + len(forward.layouts)
        at = list(map(_address, (*weights, x, *memory)))
        forward.launches([
            0, at[inputs - 1], *at[: inputs - 1], 0 if bias is None else bias.data_ptr(), *at[inputs:end]
        ])  # fmt: skip
        info.route = self._route
        ctx.read, ctx.ready = at[: inputs + saves], (self, at[end:], memory[end - inputs :])
        ctx.to_save = (*weights, x, *memory[:saves])
        return memory[end - inputs - 1]

    def run_backward(
        self, read: Sequence[int], grad: torch.Tensor, at: Sequence[int], found: Sequence[torch.Tensor]
    ) -> tuple[Maybe, ...]:
        """Return the gradients of x, the bias and the weights, in memory at addresses ``at`` if that was taken."""
        own = self._backward
        if not self._ready:
            found = allocate_each(grad, own.layouts)
            at = list(map(_address, found))
        own.launches([0, grad.data_ptr(), *read, *at])
        return own.pick((None, *found))
