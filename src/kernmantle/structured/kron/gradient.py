"""Gradients of Kronecker products: the steps of a plan, recorded by autograd or bound to kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch

from ...runtime.dispatch import bound
from ...torch_ops.autograd import constant
from ...torch_ops.call_key import program_key
from .execute import BoundKron, Number, Sizes, backend_for, bind, factor_sizes, out_shape
from .factor_sums import arranged, axes_of, by_batches, in_rows, matmul, multiplied, outer, separated
from .gradient_steps import SAVED, gradient_steps
from .modes import contracted, parse

Tensors = Sequence[torch.Tensor]
Maybe = torch.Tensor | None
Found = tuple[Maybe, list[Maybe]]
Inputs = tuple[Maybe, Tensors, torch.Tensor, Tensors]
"""x, the factors, the gradient of the result, and what the product left between its passes."""
Done = tuple[tuple[int, ...], ...]
"""For each such value the positions whose factors are applied."""
Finish = Callable[[], Tensors]
"""Launches what is left of a step that finds gradients of factors, and returns these."""
Multiply = Callable[[str, tuple[Number, Number], torch.Tensor, Tensors], torch.Tensor]
"""The product of a text, alpha and beta, x and factors."""


@constant
def positions_of(text: str, shapes: Sizes) -> tuple[int, ...]:
    """Return the positions that have a factor."""
    return contracted(parse(text, shapes))


@constant
def factor_numbers(text: str, shapes: Sizes) -> tuple[int | None, ...]:
    """Return the number of the factor at every position, None for identities."""
    return tuple(mode.factor for mode in parse(text, shapes))


def conjugate(number: Number) -> Number:
    """Return the conjugate of a number."""
    return number.conjugate() if isinstance(number, complex) else number


def adjoint(factor: torch.Tensor) -> torch.Tensor:
    """Return the adjoint of a matrix, the transpose of a real one."""
    return factor.mH if factor.is_complex() else factor.mT


def gradients(
    text: str, alpha: Number, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: Sequence[bool], multiply: Multiply
) -> Found:  # fmt: skip
    """Return the gradients of x and of the factors, those ``needed``, by ``multiply``, which may record them."""
    shapes, slope = factor_sizes(factors), conjugate(alpha)
    batched = tuple([factor.dim() > 2 for factor in factors])
    steps = gradient_steps(text, shapes, tuple(needed[1:]), batched, bool(needed[0]))
    adjoints, numbers = [adjoint(factor) for factor in factors], factor_numbers(text, shapes)
    values: list[Maybe] = [x, grad]
    found: list[Maybe] = [None] * len(factors)
    through: Maybe = None
    for kind, *step, released in steps:
        if kind == "product":
            source, own, is_adjoint, is_last = step
            scale = slope if is_last else 1
            value = multiply(own, (scale, 0), _present(values[source]), adjoints if is_adjoint else factors)
            values.append(value)
            through = value if is_last else through
        else:
            of_x, of_grad, group, left, size = step
            own = [factors[numbers[position] or 0] for position in group]
            shape = own[0].shape if len(own) == 1 else size
            joint = outer(_present(values[of_x]), _present(values[of_grad]), left, shape)
            for position, part in zip(group, [joint] if len(own) == 1 else separated(joint, own), strict=True):
                _add(found, numbers[position] or 0, part if slope == 1 else part * slope)
        for number in released:
            values[number] = None
    return through, found


def _present(value: Maybe) -> torch.Tensor:
    assert value is not None
    return value


def _add(found: list[Maybe], number: int, part: torch.Tensor) -> None:
    other = found[number]
    found[number] = part if other is None else other + part


class _Operand(NamedTuple):
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


class _Product(NamedTuple):
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


class _Sum(NamedTuple):
    """The gradient of the product of some factors: how it is summed, of what, and the factors by their numbers.

    ``separate`` finds the gradients of several factors from that of their product. Where ``applying`` is given it finds
    the sum and v with the adjoint factors applied, a value of so much ``shape``, the gradient of x if it ``is_last``.
    """

    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    u: _Operand
    v: _Operand
    numbers: tuple[int, ...]
    released: tuple[int, ...]
    separate: Callable[[torch.Tensor, Tensors], Sequence[torch.Tensor]] = separated
    applying: Callable[..., tuple[Callable[[], torch.Tensor], torch.Tensor]] | None = None
    shape: tuple[int, ...] = ()
    is_last: bool = False

    @property
    def reads(self) -> set[int]:
        """Values that it reads."""
        return {self.u.number, self.v.number}

    def started(self, values: Sequence[Maybe], factors: Tensors, alpha: float) -> tuple[Maybe, Finish]:
        """Launch what leaves v with the adjoint factors applied, and return that and what finds the gradients."""
        own, value = [factors[number] for number in self.numbers], None
        summed = partial(self.multiply, self.u.of(values), self.v.of(values))
        if self.applying is not None:
            summed, value = self.applying(*summed.args, own, alpha)

        def finish() -> Tensors:
            joint = summed()
            return [joint] if len(own) == 1 else self.separate(joint, own)

        return value, finish


class _Pass(NamedTuple):
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

    def started(self, values: Sequence[Maybe], factors: Tensors, alpha: float) -> tuple[Maybe, Finish]:
        """Launch the pass, and return what leaves it and what finds the gradients."""
        return self.launch(_present(values[self.grad]), _present(values[self.x]), factors, alpha)


Step = _Product | _Sum | _Pass


@dataclass(frozen=True, eq=False)
class BoundGradients:
    """The gradients of a product with tensors of equal specs: partial products and sums without addresses.

    ``count``: the intermediate results of the product that it takes; ``wanted``: the factors whose gradients it gives.
    ``forks``: in a graph, what nothing waits for runs beside the steps that lead to the gradient of x.
    """

    route: str
    steps: tuple[Step, ...]
    count: int = 0
    wanted: tuple[bool, ...] = ()
    forks: bool = False

    @property
    def reads_saved(self) -> bool:
        """Return whether a step reads intermediate results of the product."""
        read: set[int] = set()
        for step in self.steps:
            read |= step.reads
        return not read.isdisjoint(range(SAVED, SAVED + self.count))

    def gives(self, size: int) -> bool:
        """Return whether any views of x and the gradient will do that begin where they do, x of so many entries."""
        views = [operand.view for step in self.steps if isinstance(step, _Sum) for operand in (step.u, step.v)]
        last = {math.prod(step.shape) for step in self.steps if step.is_last}
        return bool(self.steps) and None not in views and last <= {size}

    def __call__(self, tensors: Inputs, numbers: Number, outs: tuple[int, ...] | None = None) -> Found:
        """Return the gradients of x and the factors; ``numbers`` is alpha, ``outs`` the shape of that of x."""
        x, factors, grad, saved = tensors
        values: list[Maybe] = [x, grad, *saved]
        found: list[Maybe] = [None] * len(factors)
        through: Maybe = None
        side = _gpu().side_stream(grad) if self.forks else None
        of_factors: list[tuple[tuple[int, ...], Tensors]] = []
        for step in self.steps:
            alpha = float(numbers) if step.is_last else 1.0  # pyright: ignore
            value: Maybe = None
            if isinstance(step, _Product):
                value = step.product.launch.new(_present(values[step.source]), factors, alpha, step.shape)
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
                    _add(found, number, part if numbers == 1 else part * numbers)
        return through, found


UNBOUND = BoundGradients("one by one", ())
# Bytes of a gradient up to which sums run beside products in a graph: those of 134 MB gain 1 % (H200, decision 0134).
_FORKED_BYTES = 64 << 20


def bind_gradients(
    text: str, options: str, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done = (), saved: Tensors = (),
) -> BoundGradients:  # fmt: skip
    """Return what finds the gradients of x (…, columns, c) and of the factors, ``UNBOUND`` where kernels do not.

    ``transposed``: the factors are transposes of those of the text. ``saved`` are what lies between the passes of the
    product, with the factors at the positions ``done`` applied.
    """
    key = program_key(("kron gradients", text, needed, transposed, done), (options,), (x, *factors, grad, *saved))
    return bound(key, partial(_bind_gradients, text, options, x, factors, grad, needed, transposed, done, saved))


def _bind_gradients(
    text: str, options: str, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done, saved: Tensors,
) -> BoundGradients:  # fmt: skip
    own = [factor.mT for factor in factors] if transposed else list(factors)
    modes = parse(text, factor_sizes(own))
    if any(factor.dim() > 2 for factor in own) or not grad.numel() or backend_for(grad, modes) is None:
        return UNBOUND
    return _bind_steps(text, options, x, own, grad, needed, transposed, done, saved)


def _bind_steps(
    text: str, options: str, x: Maybe, own: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done, saved: Tensors,
) -> BoundGradients:  # fmt: skip
    steps, found = _Binding(text, options, own, [x, grad, *saved], transposed, grad), list[Step]()
    price = _gpu().price(steps.shapes, grad, options) if grad.is_cuda else None
    batched = (False,) * len(own)
    for kind, *step, released in gradient_steps(text, steps.shapes, needed[1:], batched, needed[0], done, price):
        if kind == "product":
            bound_steps = steps.product(released, *step)
        elif kind == "sum":
            bound_steps = steps.sum(released, *step)
        elif kind == "pass":
            bound_steps = steps.passing(released, *step)
        else:
            bound_steps = steps.applying_sum(released, *step)
        if bound_steps is None:
            return UNBOUND
        found += bound_steps
    forks = grad.is_cuda and grad.numel() * grad.element_size() <= _FORKED_BYTES and len(found) > 1
    return BoundGradients("gradients by partial products", tuple(found), len(saved), needed[1:], forks)


@dataclass
class _Binding:
    """Steps of gradients as they are bound: ``values`` are arrays like those that the steps before will have left.

    ``has_launched``: one of them launches a kernel of ours in every call.
    """

    text: str
    options: str
    factors: Tensors
    values: list[Maybe]
    transposed: bool
    grad: torch.Tensor
    has_launched: bool = False

    def __post_init__(self) -> None:
        self.shapes = factor_sizes(self.factors)
        self.adjoints, self.numbers = [factor.mT for factor in self.factors], factor_numbers(self.text, self.shapes)

    def product(
        self, released: tuple[int, ...], source: int, text: str, is_adjoint: bool, is_last: bool
    ) -> list[Step] | None:
        """Return a partial product; None where it does not read addresses."""
        value, factors = _present(self.values[source]), self.adjoints if is_adjoint else self.factors
        out = self.grad.new_empty(out_shape(text, value, factors, None))
        found = bind(text, self.options, value, factors, None, out)
        if not found.reads_addresses:
            return None
        self.values.append(out)
        self.has_launched |= found.launch.has_kernels
        return [_Product(found, tuple(out.shape), is_last, source, released)]

    def sum(
        self, released: tuple[int, ...], of_x: int, of_grad: int, group: tuple[int, ...], left: int,
        size: tuple[int, int],
    ) -> list[Step]:  # fmt: skip
        """Return the gradients of a group."""
        sides = self._operands(of_x, of_grad, left, size)
        together = tuple(self.numbers[position] or 0 for position in group)
        u, v = sides[::-1] if self.transposed else sides
        return [self._separating(_bind_sum(u, v, self.values, self.options, together, released))]

    def applying_sum(
        self, released: tuple[int, ...], of_x: int, of_grad: int, group: tuple[int, ...], left: int,
        size: tuple[int, int], text: str, is_last: bool,
    ) -> list[Step] | None:  # fmt: skip
        """Return both at once, or one after the other where there is no kernel for arrays that lie as these do."""
        u, v = self._operands(of_x, of_grad, left, size)
        together = tuple(self.numbers[position] or 0 for position in group)
        kernel = None
        if u.view is not None and v.view is not None:
            own = [self.factors[number] for number in together]
            kernel = _gpu().bind_applying(u.of(self.values), v.of(self.values), own, self.transposed)
        if kernel is None:
            applied = self.product(released, of_grad, text, True, is_last)
            return None if applied is None else [*self.sum((), of_x, of_grad, group, left, size), *applied]
        out = self.grad.new_empty(out_shape(text, _present(self.values[of_grad]), self.adjoints, None))
        self.values.append(out)
        u, v = (operand._replace(by_address=True) for operand in (u, v))
        found = _Sum(multiplied, u, v, together, released, separated, kernel, tuple(out.shape), is_last)
        self.has_launched = True
        return [self._separating(found)]

    def passing(self, released: tuple[int, ...], of_x: int, of_grad: int, *step: Any) -> list[Step] | None:
        """Return a pass that finds the gradients of a group and applies it."""
        *both, text = step
        modes, x, grad = parse(text, self.shapes), _present(self.values[of_x]), _present(self.values[of_grad])
        launch = None
        if grad.shape[:-2] == x.shape[:-2]:
            launch = _gpu().bind(modes, self.factors, x, self.transposed, self.has_launched)
        if launch is None:
            return self.applying_sum(released, of_x, of_grad, *both)
        out = self.grad.new_empty((*grad.shape[:-2], math.prod(mode.columns for mode in modes), grad.shape[-1]))
        self.values.append(out)
        self.has_launched = True
        return [_Pass(launch, of_x, of_grad, tuple(out.shape), both[-1], released)]

    def _operands(self, of_x: int, of_grad: int, left: int, size: tuple[int, int]) -> tuple[_Operand, _Operand]:
        axes = axes_of(_present(self.values[of_x]), _present(self.values[of_grad]), size)
        u, v = (
            _operand(number, _present(self.values[number]), partial(arranged, size=extent, left=left, axes=axes))
            for number, extent in ((of_x, size[1]), (of_grad, size[0]))
        )
        return u, v

    def _separating(self, found: _Sum) -> _Sum:
        if len(found.numbers) == 1 or not self.grad.is_cuda:
            return found
        own = [self.factors[number].mT if self.transposed else self.factors[number] for number in found.numbers]
        kernel = _gpu().bind_separation(own)
        return found if kernel is None else found._replace(separate=kernel)


def _operand(number: int, tensor: torch.Tensor, arrange: Callable[[torch.Tensor], torch.Tensor]) -> _Operand:
    found = arrange(tensor)
    same = found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return _Operand(number, (tuple(found.shape), tuple(found.stride())) if same else None, arrange)


def _bind_sum(
    u: _Operand, v: _Operand, values: Sequence[Maybe], options: str, numbers: tuple[int, ...], released: tuple[int, ...]
) -> _Sum:
    """Return what sums v[l, q, r] u[l, p, r] over l and r: a kernel, or products by the vendor's, as views allow.

    The gradient that several factors share is in float32 where they are halves: theirs would feel its rounding.
    """
    one, other = u.of(values), v.of(values)
    is_wide = len(numbers) > 1 and one.is_cuda and one.dtype in (torch.float16, torch.bfloat16)
    method, kernel = "", None
    if one.is_cuda:
        method, kernel = _gpu().sum_by(one, other, options, is_wide)
    elif one.is_cpu and one.dim() == 3:
        kernel = _cpu().bind(one, other)
    if kernel is not None or u.view is None or v.view is None or one.dim() != 3:
        u, v = (own._replace(by_address=kernel is not None) for own in (u, v))
        return _Sum(kernel or partial(multiplied, is_wide=is_wide), u, v, numbers, released)
    (count, p, right), (_, q, _) = one.shape, other.shape
    (by_l, by_p, by_r), (of_l, of_q, of_r) = one.stride(), other.stride()
    if right == 1:
        first, second = ((count, p), (by_l, by_p)), ((q, count), (of_q, of_l))
    elif count == 1:
        first, second = ((right, p), (by_r, by_p)), ((q, right), (of_q, of_r))
    else:
        chosen = {"batched": by_batches, "rows": in_rows}.get(method, multiplied)
        return _Sum(partial(chosen, is_wide=is_wide), u, v, numbers, released)
    multiply = partial(_product, is_wide=is_wide)
    return _Sum(multiply, u._replace(view=first), v._replace(view=second), numbers, released)


def _product(u: torch.Tensor, v: torch.Tensor, is_wide: bool) -> torch.Tensor:
    return matmul(v, u, is_wide)


@lru_cache(maxsize=1)
def _cpu() -> Any:
    """Return the module of sums on CPUs, loaded with the first one."""
    return import_module(".cpu_sums", __package__)


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """Return the module of gradients on GPUs, loaded with the first one."""
    return import_module(".gradient_cuda", __package__)
