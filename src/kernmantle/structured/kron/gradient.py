"""Gradients of a Kronecker product: the steps of its plan, recorded by autograd or bound to kernels."""

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
from .gradient_steps import SAVED, gradient_steps, partial_text, seconds_of_steps
from .modes import contracted, parse
from .torch_products import batch_of

Tensors = Sequence[torch.Tensor]
Maybe = torch.Tensor | None
Found = tuple[Maybe, list[Maybe]]
Inputs = tuple[Maybe, Tensors, torch.Tensor, Tensors]
"""x, the factors, the gradient of the result, and what the product left between its passes."""
Done = tuple[tuple[int, ...], ...]
"""For each such value the positions whose factors are applied."""
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


def separated(joint: torch.Tensor, factors: Tensors) -> list[torch.Tensor]:
    """Return the gradients of matrices, in their type, from that of their Kronecker product in any type."""
    count, kind = len(factors), factors[0].dtype
    sides = [factor.shape[axis] for axis in (0, 1) for factor in factors]
    order = [axis for position in range(count) for axis in (position, count + position)]
    rest = joint.reshape(sides).permute(order).reshape(-1)
    entries = [factor.conj().reshape(-1).to(joint.dtype) for factor in factors]
    before = [entries[0]]  # entry [i] belongs to the factors up to i
    for other in entries[1:-1]:
        before.append((before[-1].unsqueeze(1) * other).reshape(-1))
    found: list[torch.Tensor] = []
    for position in range(count - 1, 0, -1):
        wide = rest.reshape(before[position - 1].shape[0], entries[position].shape[0])
        found.append((before[position - 1] @ wide).reshape(factors[position].shape).to(kind))
        rest = wide @ entries[position]
    return [rest.reshape(factors[0].shape).to(kind), *found[::-1]]


class _Axes(NamedTuple):
    """Batch axes of a product: their extents, those that a factor has itself, and those that its gradient sums."""

    batch: tuple[int, ...]
    own: tuple[int, ...]
    summed: tuple[int, ...]


def _axes(x: torch.Tensor, grad: torch.Tensor, shape: Sequence[int]) -> _Axes:
    rank = max(x.dim(), grad.dim()) - 2
    own = [axis for axis in range(rank) if axis >= rank + 2 - len(shape) and shape[axis - rank - 2] != 1]
    return _Axes(batch_of([x, grad]), tuple(own), tuple(axis for axis in range(rank) if axis not in own))


def _arranged(tensor: torch.Tensor, size: int, left: int, axes: _Axes) -> torch.Tensor:
    """Return a tensor (…, left * size * right, c) as (own axes, count, size, right * c)."""
    batch, own, summed = axes
    wide = tensor.expand(*batch, *tensor.shape[-2:]).permute(*own, *summed, len(batch), len(batch) + 1)
    count = left
    for axis in summed:
        count *= batch[axis]
    right = tensor.shape[-2] // (left * size) * tensor.shape[-1] if left * size else 0
    return wide.reshape(*(batch[axis] for axis in own), count, size, right)


# Positions of the longest sum of halves in one accumulator of a tensor core, which rounds towards zero: 480000 of them
# lose 1 % (H200).
_LONGEST = 1 << 15
# A block of the vendor's products of halves takes one part of a longer sum and a tile of the result: 101640 positions
# of 84 x 84 in four parts took 224 us, in 99 of them 35 (H200). There are parts for so many blocks, none shorter.
_SHORTEST, _BLOCKS, _TILE = 1 << 8, 264, 128


def _matmul(a: torch.Tensor, b: torch.Tensor, is_wide: bool) -> torch.Tensor:
    """Return the vendor's product of matrices, of halves on a GPU in float32 where it ``is_wide``.

    Long sums of halves are those of their parts.
    """
    is_half = a.is_cuda and a.dtype in (torch.float16, torch.bfloat16)
    if not is_half or (a.dim() > 2 and not is_wide):
        return a @ b
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    parts = _parts(a.shape[-1], a.shape[0], b.shape[-1]) if a.dim() == 2 else 1
    if parts > 1:
        whole = a.shape[1] // parts * parts
        left, right = a[:, :whole].unflatten(1, (parts, -1)).transpose(0, 1), b[:whole].unflatten(0, (parts, -1))
        total = torch.bmm(left, right, out_dtype=torch.float32).sum(0)  # pyright: ignore
        if whole < a.shape[1]:
            total += torch.mm(a[:, whole:], b[whole:], out_dtype=torch.float32)  # pyright: ignore
        return total if is_wide else total.to(a.dtype)
    return multiply(a, b, out_dtype=torch.float32) if is_wide else a @ b  # pyright: ignore


def _parts(positions: int, rows: int, columns: int) -> int:
    """Return the parts of a sum of halves over so many positions, for a result of so many rows and columns."""
    if positions <= _LONGEST:
        return 1
    tiles = -(-rows // _TILE) * -(-columns // _TILE)
    return max(-(-positions // _LONGEST), min(positions // _SHORTEST, _BLOCKS // tiles))


def _multiplied(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the sum of v[…, l, q, r] conj(u[…, l, p, r]) over l and r, by the vendor's products."""
    if u.shape[-1] == 1:
        return _matmul(v.squeeze(-1).mT, u.squeeze(-1).conj(), is_wide)
    return (_batched if u.shape[-1] >= max(u.shape[-2], v.shape[-2]) else _copied)(u, v, is_wide)


def _batched(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the same by a product for every l."""
    product = _matmul(v, u.mH, is_wide)
    return product.squeeze(-3) if u.shape[-3] == 1 else product.sum(-3)


def _in_rows(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the same of real numbers by one product of rows of entries, which copies bring together."""
    return _matmul(v.mT.reshape(-1, v.shape[-2]).mT, u.mT.reshape(-1, u.shape[-2]), is_wide)


def _copied(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the same by one product of copies in another order."""
    return _matmul(v.transpose(-3, -2).flatten(-2), u.transpose(-3, -2).flatten(-2).mH, is_wide)


def outer(x: torch.Tensor, grad: torch.Tensor, left: int, shape: Sequence[int]) -> torch.Tensor:
    """Return the sum of grad[…, l, q, r] conj(x[…, l, p, r]) over l, r and the batch axes that a factor lacks."""
    if not (x.numel() and grad.numel()):
        return x.new_zeros(shape)
    axes = _axes(x, grad, shape)
    u, v = _arranged(x, shape[-1], left, axes), _arranged(grad, shape[-2], left, axes)
    return _multiplied(u, v).reshape(shape)


class _Operand(NamedTuple):
    """A value that a sum reads: by its number, as a strided view or its address, or in order where it has no view."""

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


class _Sum(NamedTuple):
    """The gradient of the product of some factors: how it is summed, of what, and the factors by their numbers.

    ``separate`` finds the gradients of several factors from that of their product.
    """

    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    u: _Operand
    v: _Operand
    numbers: tuple[int, ...]
    released: tuple[int, ...]
    separate: Callable[[torch.Tensor, Tensors], Sequence[torch.Tensor]] = separated


@dataclass(frozen=True, eq=False)
class BoundGradients:
    """The gradients of a product with tensors of equal specs: partial products and sums without addresses.

    ``count``: how many values it takes that the product left between its passes; ``wanted``: which factors' gradients.
    """

    route: str
    steps: tuple[_Product | _Sum, ...]
    count: int = 0
    wanted: tuple[bool, ...] = ()

    @property
    def reads_saved(self) -> bool:
        """Return whether a step reads what the product left between its passes."""
        read: set[int] = set()
        for step in self.steps:
            read |= {step.source} if isinstance(step, _Product) else {step.u.number, step.v.number}
        return not read.isdisjoint(range(SAVED, SAVED + self.count))

    def gives(self, size: int) -> bool:
        """Return whether any views of x and the gradient will do that begin where they do, x of so many entries."""
        views = [operand.view for step in self.steps if isinstance(step, _Sum) for operand in (step.u, step.v)]
        last = {math.prod(step.shape) for step in self.steps if isinstance(step, _Product) and step.is_last}
        return bool(self.steps) and None not in views and last <= {size}

    def __call__(self, tensors: Inputs, numbers: Number, outs: tuple[int, ...] | None = None) -> Found:
        """Return the gradients of x and the factors; ``numbers`` is alpha, ``outs`` the shape of that of x."""
        x, factors, grad, saved = tensors
        values: list[Maybe] = [x, grad, *saved]
        found: list[Maybe] = [None] * len(factors)
        through: Maybe = None
        for step in self.steps:
            if isinstance(step, _Product):
                alpha = float(numbers) if step.is_last else 1.0  # pyright: ignore
                value = step.product.launch.new(_present(values[step.source]), factors, alpha, step.shape)
                values.append(value)
                through = value.view(outs or step.shape) if step.is_last else through
            else:
                joint = step.multiply(step.u.of(values), step.v.of(values))
                own = [factors[number] for number in step.numbers]
                parts = [joint] if len(own) == 1 else step.separate(joint, own)
                for number, part in zip(step.numbers, parts, strict=True):
                    if self.wanted[number]:
                        _add(found, number, part if numbers == 1 else part * numbers)
            for number in step.released:
                values[number] = None
        return through, found


UNBOUND = BoundGradients("one by one", ())


@dataclass(frozen=True, eq=False)
class BoundPasses:
    """All gradients of a product by kernels that apply and sum at once."""

    route: str
    passes: tuple[Any, ...]
    applied: tuple[Callable[..., torch.Tensor] | None, ...]

    def __call__(self, tensors: Inputs, numbers: Number, _outs: None = None) -> Found:
        """Return the gradients of x and the factors; ``numbers`` is alpha."""
        x, factors, grad, _ = tensors
        through, parts = _gpu().gradients(self.passes, self.applied, factors, x, grad, numbers)
        return through, [parts[number] if numbers == 1 else parts[number] * numbers for number in range(len(factors))]


def bind_gradients(
    text: str, options: str, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done = (), saved: Tensors = (),
) -> BoundGradients | BoundPasses:  # fmt: skip
    """Return what finds the gradients of x (…, columns, c) and of the factors, ``UNBOUND`` where kernels do not.

    ``transposed``: the factors are transposes of those of the text. ``saved`` are what lies between the passes of the
    product, with the factors at the positions ``done`` applied.
    """
    key = program_key(("kron gradients", text, needed, transposed, done), (options,), (x, *factors, grad, *saved))
    return bound(key, partial(_bind_gradients, text, options, x, factors, grad, needed, transposed, done, saved))


def _bind_gradients(
    text: str, options: str, x: Maybe, factors: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done, saved: Tensors,
) -> BoundGradients | BoundPasses:  # fmt: skip
    own = [factor.mT for factor in factors] if transposed else list(factors)
    modes = parse(text, factor_sizes(own))
    if any(factor.dim() > 2 for factor in own) or not grad.numel() or backend_for(grad, modes) is None:
        return UNBOUND
    if x is not None and any(needed[1:]) and grad.is_cuda and grad.shape[:-2] == x.shape[:-2]:
        passes = _bind_passes(text, options, x, own, needed, transposed, done)
        if passes is not None:
            return passes
    return _bind_steps(text, options, x, own, grad, needed, transposed, done, saved)


def _bind_passes(
    text: str, options: str, x: torch.Tensor, own: Tensors, needed: tuple[bool, ...], transposed: bool, done: Done
) -> BoundPasses | None:
    shapes = factor_sizes(own)
    price = None if options.startswith("ieee") else _gpu().price(shapes, x, options)
    if price is None:
        return None
    most = seconds_of_steps(text, shapes, needed[1:], needed[0], done, price)
    passes = _gpu().bind(parse(text, shapes), own, x, most, transposed)
    applied: list[Callable[..., torch.Tensor] | None] = []
    for each in passes:
        if not each.rest:
            applied.append(None)
            continue
        product = _bound_product(partial_text(text, shapes, each.rest, (), False), options, x, own)
        if product is None:
            return None
        applied.append(product)
    return BoundPasses("cuda: gradients in passes", passes, tuple(applied)) if passes else None


def _bound_product(
    text: str, options: str, x: torch.Tensor, factors: Tensors
) -> Callable[[torch.Tensor, Tensors], torch.Tensor] | None:
    shape = out_shape(text, x, factors, None)
    product = bind(text, options, x, factors, None, x.new_empty(shape))

    def apply(value: torch.Tensor, factors: Tensors) -> torch.Tensor:
        return product.launch.new(value, factors, 1.0, shape).view(shape)

    return apply if product.reads_addresses else None


def _bind_steps(
    text: str, options: str, x: Maybe, own: Tensors, grad: torch.Tensor, needed: tuple[bool, ...], transposed: bool,
    done: Done, saved: Tensors,
) -> BoundGradients:  # fmt: skip
    shapes, adjoints = factor_sizes(own), [factor.mT for factor in own]
    numbers, values = factor_numbers(text, shapes), [x, grad, *saved]
    steps: list[_Product | _Sum] = []
    price = _gpu().price(shapes, grad, options) if grad.is_cuda else None
    for kind, *step, released in gradient_steps(text, shapes, needed[1:], (False,) * len(own), needed[0], done, price):
        if kind == "product":
            source, partial_, is_adjoint, is_last = step
            value, multiplied = _present(values[source]), adjoints if is_adjoint else own
            out = grad.new_empty(out_shape(partial_, value, multiplied, None))
            product = bind(partial_, options, value, multiplied, None, out)
            if not product.reads_addresses:
                return UNBOUND
            values.append(out)
            steps.append(_Product(product, tuple(out.shape), is_last, source, released))
        else:
            of_x, of_grad, group, left, size = step
            sides = (of_x, size[1]), (of_grad, size[0])
            axes = _axes(_present(values[of_x]), _present(values[of_grad]), size)
            u, v = (
                _operand(number, _present(values[number]), partial(_arranged, size=own_size, left=left, axes=axes))
                for number, own_size in (sides[::-1] if transposed else sides)
            )
            together = tuple(numbers[position] or 0 for position in group)
            bound_sum = _bind_sum(u, v, values, options, together, released)
            if len(together) > 1 and grad.is_cuda:
                kernel = _gpu().bind_separation([own[n].mT if transposed else own[n] for n in together])
                bound_sum = bound_sum if kernel is None else bound_sum._replace(separate=kernel)
            steps.append(bound_sum)
    return BoundGradients("gradients by partial products", tuple(steps), len(saved), needed[1:])


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
    method, kernel = _gpu().sum_by(one, other, options, is_wide) if one.is_cuda else ("", None)
    if kernel is not None or u.view is None or v.view is None or one.dim() != 3:
        u, v = (own._replace(by_address=kernel is not None) for own in (u, v))
        return _Sum(kernel or partial(_multiplied, is_wide=is_wide), u, v, numbers, released)
    (count, p, right), (_, q, _) = one.shape, other.shape
    (by_l, by_p, by_r), (of_l, of_q, of_r) = one.stride(), other.stride()
    if right == 1:
        first, second = ((count, p), (by_l, by_p)), ((q, count), (of_q, of_l))
    elif count == 1:
        first, second = ((right, p), (by_r, by_p)), ((q, right), (of_q, of_r))
    else:
        chosen = {"batched": _batched, "rows": _in_rows}.get(method, _multiplied)
        return _Sum(partial(chosen, is_wide=is_wide), u, v, numbers, released)
    multiply = partial(_product, is_wide=is_wide)
    return _Sum(multiply, u._replace(view=first), v._replace(view=second), numbers, released)


def _product(u: torch.Tensor, v: torch.Tensor, is_wide: bool) -> torch.Tensor:
    return _matmul(v, u, is_wide)


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """Return what is loaded with the first gradient on a GPU."""
    return import_module(".gradient_cuda", __package__)
