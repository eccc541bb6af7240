"""Launches of a pass on one table of addresses, and both passes of a Function whose launches are such."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter

import torch

from .execute import PlainLayout, allocate_each, layouts_in_one_piece
from .launch_sequence import Launch, LaunchSequence

Maybe = torch.Tensor | None
_address = torch.Tensor.data_ptr
MOST_READY = 1 << 24
"""Bytes that a forward pass takes for its backward pass; where it is more, the GPU takes longer."""
GRAD = 1
"""Where the address of the gradient is in the table of a backward pass, which begins with an absent one's."""


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

    @property
    def entries(self) -> int:
        """Return how many numbers all parts have."""
        return sum(math.prod(shape) for shape, _ in self._parts)

    def launch(self, launch: Launch, operands: Sequence[int]) -> None:
        """Add a launch on the addresses at some positions."""
        self._launches.append((launch, [*operands]))

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
Ready = tuple[list[int], Sequence[torch.Tensor], Sequence[Maybe]]
"""Addresses of memory that a forward pass took for the backward one, that memory, and the gradients, where they are in
it."""
Views = Callable[[Sequence[Maybe]], Sequence[Maybe]]
"""Function from what launches leave, that of x first, to the gradients, views of it."""


class BothPasses:
    """Passes of a Function that are launches alone, on tensors that all lie as they did when these were bound.

    The forward pass is given what both passes read and what it alone reads, and makes its result, ``drops`` tensors
    that are let go, and what is saved; the backward pass is given the gradient, what is read, what was saved and its
    parts, and makes gradients, of which ``gives`` are the positions, and ``views`` finds views in these. The forward
    pass takes memory for all of that where it is little, or else for gradients, or for those of parameters, which in
    its thread takes the host a third of what it takes in autograd's own.
    """

    __slots__ = (
        "_backward", "_forward", "_has_gradients", "_later", "_made", "_now", "_parts", "_parts_back", "_pick",
        "_skips", "_views",
    )  # fmt: skip

    def __init__(
        self, forward: JoinedLaunches, backward: JoinedLaunches, gives: Sequence[int], itemsize: int, drops: int = 0,
        views: Views | None = None,
    ) -> None:  # fmt: skip
        self._forward, layouts, self._parts = forward.bind(itemsize)
        self._backward, made, self._parts_back = backward.bind(itemsize)
        first, of_x = backward.first - 1, gives[0]
        self._skips, self._views = 1 + drops, views
        self._made, self._pick = len(layouts), itemgetter(*[at and at - first for at in gives])
        gradients = len(backward.layouts)
        for ahead in (len(made), gradients, gradients - bool(of_x), 0):
            if itemsize * sum(math.prod(shape) for shape, _ in made[:ahead]) <= MOST_READY:
                break
        self._now, self._later, self._has_gradients = layouts + made[:ahead], made[ahead:], ahead >= gradients

    def run(
        self, read: Sequence[torch.Tensor], others: Sequence[Maybe]
    ) -> tuple[torch.Tensor, list[int], Sequence[torch.Tensor], Ready]:
        """Return the result, the addresses of what the backward pass reads, what is saved, and what that pass gives."""
        memory, count = allocate_each(read[0], self._now), len(read)
        at, made, end = list(map(_address, (*read, *memory))), self._made, count + self._made
        table = [0, *at[:count], *[0 if each is None else each.data_ptr() for each in others], *at[count:end]]
        if self._parts:
            begin = at[end - 1]
            table += [begin + offset for offset in self._parts]
        self._forward(table)
        skips, own, back = self._skips, memory[made:], at[end:]
        if self._parts_back and not self._later:
            back += [back[-1] + offset for offset in self._parts_back]
        ready = back, own, self._gradients(own) if self._has_gradients else ()
        return memory[0], [*at[:count], *at[count + skips : end]], memory[skips:made], ready

    def run_backward(self, read: Sequence[int], grad: torch.Tensor, ready: Ready | None = None) -> Sequence[Maybe]:
        """Return the gradients, in memory that the forward pass took, or in other one."""
        at, memory, found = ready or ([], [], ())
        if ready is None or self._later:
            layouts = (*self._now[self._made :], *self._later) if ready is None else self._later
            more = allocate_each(grad, layouts)
            at += map(_address, more)
            at += [at[-1] + offset for offset in self._parts_back]
            memory = [*memory, *more]  # which is there until all is launched
            found = found or self._gradients(memory)
        table = [0, grad.data_ptr(), *read]
        if self._parts:
            begin = read[-1]
            table += [begin + offset for offset in self._parts]
        table += at
        self._backward(table)
        return found

    def _gradients(self, memory: Sequence[torch.Tensor]) -> Sequence[Maybe]:
        """Return the gradients in memory of a backward pass."""
        found = self._pick((None, *memory))
        return found if self._views is None else self._views(found)
