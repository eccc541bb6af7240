"""Passes of launches alone, which take their operands from one table of addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.saved import addresses
from ..mode_product.torch_op import Maybe
from .chain_products import Gradients, Saved, Weights, canonical, in_one_piece

_address = torch.Tensor.data_ptr
_MOST_READY = 1 << 24  # bytes that a forward pass takes for its backward pass; where it is more, the GPU takes longer


@dataclass(frozen=True, eq=False)
class LaunchedForward:
    """A forward pass of launches; its table has no address first, then those of x, weights, a bias and its results.

    ``layouts`` are those of the results. Behind them is the address of what is added to the last one, where something
    is.
    """

    launches: LaunchSequence
    layouts: tuple[PlainLayout, ...]

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
        """Return the pass itself if a forward pass takes its memory, None where that is too much or copied."""
        return self if self.reads and self.written_bytes <= _MOST_READY else None

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        dtype, values = grad.dtype, (x, *saved)
        if not self.reads:
            grad, weights = canonical(grad, self.batch_last), in_one_piece(weights, dtype)
            values = [None if value is None else canonical(value, self.batch_last) for value in values]
        of_x, of_bias, *of_weights = ReadyBackward(self, addresses((*weights, *values)), grad).run(grad)
        return of_x, of_bias, of_weights


class ReadyBackward:
    """A backward pass, to be run once, whose memory is taken and whose table lacks the address of the gradient.

    ``read`` are the addresses of weights, x and what was saved; the gradient is like ``like``. In the thread of the
    forward pass this takes the host a third of what it takes in autograd's own.
    """

    __slots__ = ("_found", "_table", "own")

    def __init__(self, own: LaunchedBackward, read: Sequence[int], like: torch.Tensor) -> None:
        found = allocate_each(like, own.layouts)
        self.own, self._table, self._found = own, [0, 0, *read, *map(_address, found)], (None, *found)

    def run(self, grad: torch.Tensor) -> tuple[Maybe, ...]:
        """Return the gradients of x, the bias and the weights."""
        own, table = self.own, self._table
        table[GRAD] = grad.data_ptr()
        own.launches(table)
        return own.pick(self._found)
