"""Gradients of Kronecker products that are bound: their steps, and these as launches on a table of addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.joined_launches import BothPasses, JoinedLaunches, Ready
from ...torch_ops.saved import addresses, are_ready
from ...torch_ops.torch_private import is_capturing, reinterpret
from .execute import BoundKron, Number
from .factor_sums import View, separated
from .gradient_steps import SAVED
from .run import Numbers, Stage

Tensors = Sequence[torch.Tensor]
Maybe = torch.Tensor | None
Found = tuple[Maybe, list[Maybe]]
Inputs = tuple[Maybe, Tensors, torch.Tensor, Tensors]
"""x, the factors, the gradient of the result, and what the product left between its passes."""
Done = tuple[tuple[int, ...], ...]
"""For each such value the positions whose factors are applied."""
Finish = Callable[[], Tensors]
"""Launches what is left of a step that finds gradients of factors, and returns these."""
# Bytes of what lies between steps that are launched at once, all of which is there until the last one (decision 0140).
_MOST_BETWEEN = 64 << 20


def conjugate(number: Number) -> Number:
    """Return the conjugate of a number."""
    return number.conjugate() if isinstance(number, complex) else number


def present(value: Maybe) -> torch.Tensor:
    """Return a value that there is."""
    assert value is not None
    return value


def add(found: list[Maybe], number: int, part: torch.Tensor) -> None:
    """Add to the gradient of a factor."""
    other = found[number]
    found[number] = part if other is None else other + part


def between_of(stages: Sequence[Stage]) -> tuple[PlainLayout, ...]:
    """Return the layouts of what lies between the passes of a product, and of what these save."""
    return layouts_in_one_piece([shape for stage in stages for shape in stage.left])


def _join_product(
    stages: Sequence[Stage], table: JoinedLaunches, x: int, factors: Sequence[int], y: int, out: int,
    between: Sequence[int], numbers: Numbers,
) -> bool:  # fmt: skip
    """Add the passes of a product to a table; return False where one is none of our launches, or more than one.

    Positions are those of x, the factors, y, 0 without it, the result and what lies between the passes.
    """
    source, alpha, rest = x, numbers[0], iter((*between, out))
    for stage in stages:
        bound: Any = getattr(stage.start, "bound", None)
        if bound is None or len(stage.offsets) != 1:
            return False
        is_last = stage.shape is None
        second = next(rest) if stage.inner else y if is_last else 0
        into = next(rest)
        operands = source, second or into, into, *[factors[number] for number in stage.numbers]
        table.launch(bound((alpha, numbers[1] if is_last else 0.0), len(operands)), operands)
        source, alpha = into, 1.0
    return True


class Operand(NamedTuple):
    """A value that a sum reads: its number, and a strided view or its address; a copy if it has no view."""

    number: int
    view: tuple[tuple[int, ...], tuple[int, ...]] | None
    arrange: Callable[[torch.Tensor], torch.Tensor]
    by_address: bool = False

    def of(self, values: Sequence[Maybe]) -> torch.Tensor:
        """Return what the sum reads."""
        value = values[self.number]
        assert value is not None
        if self.view is None:
            return self.arrange(value)
        return value if self.by_address else value.as_strided(*self.view)


class _Joining(NamedTuple):
    """A table of launches to which steps add theirs, where the factors are in it, and the bytes of a number."""

    table: JoinedLaunches
    factors: Sequence[int]
    itemsize: int


class ProductStep(NamedTuple):
    """A partial product, the shape of its result, and whether that is the gradient of x."""

    product: BoundKron
    shape: tuple[int, ...]
    is_last: bool
    source: int
    released: tuple[int, ...]

    @property
    def reads(self) -> set[int]:
        """Values that it reads."""
        return {self.source}

    def join(self, own: _Joining, at: Sequence[int], to: int, _: int, slope: float) -> bool:
        """Add the launches that make the value at ``to`` of those ``at`` their positions, if they are launches."""
        stages, table = self.product.launch.stages, own.table
        between = [table.part(layout) for layout in between_of(stages)]
        return _join_product(stages, table, at[self.source], own.factors, 0, to, between, (slope, 0.0))


class SumStep(NamedTuple):
    """The gradient of the product of some factors: how it is summed, of what, and the factors by their numbers.

    ``separate`` finds the gradients of several factors from that of their product. Where ``applying`` is given it finds
    the sum and v with the adjoint factors applied, a value of so much ``shape``, the gradient of x if it ``is_last``.
    One that ``is_forked`` may run beside what follows.
    """

    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    u: Operand
    v: Operand
    numbers: tuple[int, ...]
    released: tuple[int, ...]
    separate: Callable[[torch.Tensor, Tensors], Sequence[torch.Tensor]] = separated
    applying: Any = None  # a kernel of sums, which also applies factors
    shape: tuple[int, ...] = ()
    is_last: bool = False
    is_forked: bool = True

    @property
    def reads(self) -> set[int]:
        """Values that it reads."""
        return {self.u.number, self.v.number}

    @property
    def gives(self) -> tuple[int, ...]:
        """Shape of what the gradients lie in, one behind the other, empty where no kernel leaves them so."""
        launched: Any = (self.applying or self.multiply) if len(self.numbers) == 1 else self.separate
        return getattr(launched, "shape", ())

    @property
    def views(self) -> Sequence[View | None]:
        """The view that each gradient is of all that lie one behind the other, None for all of it."""
        separate: Any = self.separate
        return [None] if len(self.numbers) == 1 else separate.views

    def join(self, own: _Joining, at: Sequence[int], to: int, gives: int, slope: float) -> bool:
        """Add the launches that leave the gradients, and v with factors applied where it makes that value."""
        kernel: Any = self.applying or self.multiply
        separate: Any = self.separate
        if not (hasattr(kernel, "join") and self.u.by_address and self.v.by_address):
            return False
        factors = [own.factors[number] for number in self.numbers]
        both, is_one = (at[self.v.number], at[self.u.number]), len(factors) == 1
        joint = gives if is_one else own.table.part(kernel.layout(own.itemsize))
        if not kernel.join(own.table, both, (to, joint), factors, slope, own.itemsize):
            return False
        return is_one or separate.join(own.table, joint, gives, factors)

    def started(self, values: Sequence[Maybe], factors: Tensors, alpha: float) -> tuple[Maybe, Finish]:
        """Launch what leaves v with the adjoint factors applied, and return that and what finds the gradients."""
        own, value = [factors[number] for number in self.numbers], None
        summed = partial(self.multiply, self.u.of(values), self.v.of(values))
        if self.applying is not None:
            summed, value = self.applying.started(*summed.args, own, alpha)
        elif not self.is_forked:
            joint = summed()
            summed = partial(present, joint)

        def finish() -> Tensors:
            joint = summed()
            return [joint] if len(own) == 1 else self.separate(joint, own)

        return value, finish


class PassStep(NamedTuple):
    """A pass that finds the gradient of each of its factors and applies them to the gradient: of which values."""

    launch: Any
    x: int
    grad: int
    shape: tuple[int, ...]
    is_last: bool
    released: tuple[int, ...]

    @property
    def reads(self) -> set[int]:
        """Values that it reads."""
        return {self.x, self.grad}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The factors by their numbers."""
        return self.launch.numbers

    @property
    def gives(self) -> tuple[int, ...]:
        """Shape of what the gradients lie in, one behind the other."""
        return (self.launch.count,)

    @property
    def views(self) -> Sequence[View | None]:
        """The view that each gradient is of all that lie one behind the other."""
        return self.launch.views

    def join(self, own: _Joining, at: Sequence[int], to: int, gives: int, slope: float) -> bool:
        """Add the launches that make the value at ``to`` and leave the gradients."""
        both = at[self.grad], at[self.x]
        return self.launch.join(own.table, both, (to, gives), own.factors, slope, own.itemsize)

    def started(self, values: Sequence[Maybe], factors: Tensors, alpha: float) -> tuple[Maybe, Finish]:
        """Launch the pass, and return what leaves it and what finds the gradients."""
        return self.launch(present(values[self.grad]), present(values[self.x]), factors, alpha)


Step = ProductStep | SumStep | PassStep


@dataclass(frozen=True, eq=False)
class BoundGradients:
    """The gradients of a product with tensors of equal specs: partial products and sums without addresses.

    ``count``: the intermediate results of the product that it takes; ``wanted``: the factors whose gradients it gives.
    ``forks``: in a graph, what nothing waits for runs beside the steps that lead to the gradient of x. ``joined``: the
    steps as launches alone, for the first alpha.
    """

    route: str
    steps: tuple[Step, ...]
    count: int = 0
    wanted: tuple[bool, ...] = ()
    forks: bool = False
    joined: dict[float, _Launched | None] = field(default_factory=dict[float, Any])

    @property
    def reads_saved(self) -> bool:
        """Return whether a step reads intermediate results of the product."""
        read: set[int] = set()
        for step in self.steps:
            read |= step.reads
        return not read.isdisjoint(range(SAVED, SAVED + self.count))

    def gives(self, size: int) -> bool:
        """Return whether any views of x and the gradient will do that begin where they do, x of so many entries."""
        views = [operand.view for step in self.steps if isinstance(step, SumStep) for operand in (step.u, step.v)]
        last = {math.prod(step.shape) for step in self.steps if step.is_last}
        return bool(self.steps) and None not in views and last <= {size}

    def __call__(self, tensors: Inputs, numbers: Number, outs: tuple[int, ...] | None = None) -> Found:
        """Return the gradients of x and the factors; ``numbers`` is alpha, ``outs`` the shape of that of x."""
        x, factors, grad, saved = tensors
        launched = self._launched(tensors, float(numbers)) if grad.is_cuda and not is_capturing() else None  # pyright: ignore
        if launched is not None:
            through, *left = launched(tensors)
            through = through if through is None or outs is None else through.view(outs)
            return through, self.of_factors(left, numbers)
        values: list[Maybe] = [x, grad, *saved]
        found: list[Maybe] = [None] * len(factors)
        through: Maybe = None
        side = gpu().side_stream(grad) if self.forks else None
        of_factors: list[tuple[tuple[int, ...], Tensors]] = []
        for step in self.steps:
            alpha = float(numbers) if step.is_last else 1.0  # pyright: ignore
            value: Maybe = None
            if isinstance(step, ProductStep):
                value = step.product.launch.new(present(values[step.source]), factors, alpha, step.shape)
            else:
                value, finish = step.started(values, factors, alpha)
                of_factors.append((step.numbers, finish() if side is None else side(finish)))
            if value is not None:
                values.append(value.view(step.shape))
                through = value.view(outs or step.shape) if step.is_last else through
            for number in step.released if side is None else ():  # sums beside what follows still read them
                values[number] = None
        if side is not None:
            side.join()
        for own, parts in of_factors:
            for number, part in zip(own, parts, strict=True):
                if self.wanted[number]:
                    add(found, number, part if numbers == 1 else part * numbers)
        return through, found

    def _launched(self, tensors: Inputs, alpha: float) -> _Launched | None:
        """Return the steps as launches alone, None where they are not; bound for the first alpha."""
        x, factors, grad, saved = tensors
        if not self.joined:
            is_ready = are_ready([each for each in (x, grad, *saved) if each is not None])
            found = self.join(len(factors), alpha, grad.element_size()) if is_ready else None
            self.joined[alpha] = None if found is None else _Launched(*found, grad.element_size())
        return self.joined.get(alpha)

    def join(
        self, factors: int, alpha: float, itemsize: int, shape: tuple[int, ...] | None = None
    ) -> tuple[JoinedLaunches, list[int]] | None:
        """Return a table of launches, and where in it is the gradient of x, 0 for none, and what each step leaves.

        What is read is the gradient, x, the factors and the ``count`` values, the gradient of x has a ``shape`` or that
        of the steps. None where a step is more than launches of kernels, or what lies between takes much memory.
        """
        table, first = JoinedLaunches(2 + factors + self.count), 3 + factors
        left = [step.gives for step in self.steps if not isinstance(step, ProductStep)]
        if not all(left):
            return None
        gives, of_x = [table.tensor(layout) for layout in layouts_in_one_piece(left)], 0
        own, at = _Joining(table, range(3, first), itemsize), [2, 1, *range(first, first + self.count)]
        rest = iter(gives)
        for made in [step.shape for step in self.steps if step.is_last]:
            of_x = table.tensor(layouts_in_one_piece([shape or made])[0])
        for step in self.steps:
            to = 0
            if step.shape:
                to = of_x if step.is_last else table.part(layouts_in_one_piece([step.shape])[0])
            where = 0 if isinstance(step, ProductStep) else next(rest)
            if not step.join(own, at, to, where, alpha if step.is_last else 1.0):
                return None
            at += [to] if step.shape else []
        return (table, [of_x, *gives]) if gives and table.entries * itemsize <= _MOST_BETWEEN else None

    @cached_property
    def _views(self) -> list[tuple[int, int, View | None]]:
        """The number of each factor whose gradient is wanted, what launches leave it in, and its view there."""
        steps = [step for step in self.steps if not isinstance(step, ProductStep)]
        each = [
            (number, at, view)
            for at, own in enumerate(steps)
            for number, view in zip(own.numbers, own.views, strict=True)
        ]
        return [own for own in each if self.wanted[own[0]]]

    def of_factors(self, left: Sequence[torch.Tensor], numbers: Number = 1) -> list[Maybe]:
        """Return the gradients of factors from what launches left of each step, without alpha."""
        if numbers != 1:
            left = [own * numbers for own in left]
        found: list[Maybe] = [None] * len(self.wanted)
        for number, at, view in self._views:
            part = left[at] if view is None else reinterpret(left[at], *view)
            before = found[number]
            found[number] = part if before is None else before + part
        return found

    def with_views(self, found: Sequence[Maybe]) -> tuple[Maybe, ...]:
        """Return the gradients of x and the factors from that of x and what each step leaves, where alpha is 1."""
        return found[0], *self.of_factors(found[1:])  # pyright: ignore[reportArgumentType]


class _Launched:
    """Gradients that are launches alone: what lies between is one tensor, made last."""

    def __init__(self, table: JoinedLaunches, gives: Sequence[int], itemsize: int) -> None:
        self._launches, self._layouts, self._offsets = table.bind(itemsize)
        self._gives = [at and at - table.first + 1 for at in gives]

    def __call__(self, tensors: Inputs) -> list[Any]:
        """Return the gradient of x, None without it, and what each step leaves."""
        x, factors, grad, saved = tensors
        found = allocate_each(grad, self._layouts)
        at = addresses((grad, x, *factors, *saved, *found))
        self._launches([0, *at, *[at[-1] + offset for offset in self._offsets]])
        made = None, *found
        return [made[number] for number in self._gives]


UNBOUND = BoundGradients("one by one", ())


class LaunchedStep(NamedTuple):
    """Both passes of a call with these numbers, where all of them are launches; ``done`` says what is saved."""

    passes: BothPasses
    gradients: BoundGradients
    numbers: tuple[Number, Number]
    done: Done

    def backward(self, read: Sequence[int], grad: torch.Tensor, ready: Ready) -> Sequence[Maybe]:
        """Return the gradients of x and of the factors, from the addresses of what is read."""
        found: Any = self.passes.run_backward(read, grad, ready)
        alpha = self.numbers[0]
        return found if alpha == 1 else (found[0], *self.gradients.of_factors(found[1:], alpha))


def launched_step(
    call: Any, numbers: tuple[Number, Number], gradients: BoundGradients, done: Done, x: torch.Tensor, count: int
) -> LaunchedStep | None:  # fmt: skip
    """Return both passes of a call with so many factors as launches alone; None where they are not."""
    stages, itemsize = call.product.launch.stages, x.element_size()
    own, y = JoinedLaunches(2 + count), 2 + count  # what is read is x, the factors and y
    out = own.tensor(call.layout)
    between = [own.tensor(layout) for layout in between_of(stages)]
    shares = float(numbers[0]), float(numbers[1])  # pyright: ignore
    if not _join_product(stages, own, 1, range(2, y), y if call.added else 0, out, between, shares):
        return None
    found = gradients.join(count, shares[0], itemsize, tuple(x.shape))
    if found is None:
        return None
    drops, views = 0 if done else len(between), gradients.with_views if shares[0] == 1 else None
    return LaunchedStep(BothPasses(own, *found, itemsize, drops, views), gradients, numbers, done)


@lru_cache(maxsize=1)
def gpu() -> Any:
    """Return the module of gradients on GPUs, loaded with the first one."""
    return import_module(".gradient_cuda", __package__)
