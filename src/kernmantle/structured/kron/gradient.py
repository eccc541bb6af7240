"""Gradients of Kronecker products: the steps of a plan, recorded by autograd or bound to kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch

from ...runtime.dispatch import bound
from ...torch_ops.autograd import constant
from ...torch_ops.call_key import program_key
from .bound_gradients import (
    UNBOUND,
    BoundGradients,
    Done,
    Found,
    Maybe,
    Operand,
    PassStep,
    ProductStep,
    Step,
    SumStep,
    Tensors,
    add,
    conjugate,
    gpu,
    present,
)
from .execute import Number, Sizes, backend_for, bind, factor_sizes, out_shape
from .factor_sums import arranged, axes_of, by_batches, by_matrices, in_rows, multiplied, outer, separated
from .gradient_steps import gradient_steps
from .modes import contracted, parse

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
            value = multiply(own, (scale, 0), present(values[source]), adjoints if is_adjoint else factors)
            values.append(value)
            through = value if is_last else through
        else:
            of_x, of_grad, group, left, size = step
            own = [factors[numbers[position] or 0] for position in group]
            shape = own[0].shape if len(own) == 1 else size
            joint = outer(present(values[of_x]), present(values[of_grad]), left, shape)
            for position, part in zip(group, [joint] if len(own) == 1 else separated(joint, own), strict=True):
                add(found, numbers[position] or 0, part if slope == 1 else part * slope)
        for number in released:
            values[number] = None
    return through, found


# Bytes of a gradient up to which sums run beside products in a graph: those of 134 MB gain 1 % (H200, decision 0134).
_FORKED_BYTES = 64 << 20
# Bytes that a sum by the vendor's products reads which may be among these: what the second-level cache has room for.
# Its blocks go to the few multiprocessors that a product beside it leaves, on which a longer one waits (5084 [37x165
# 160x7] of float16 160 us so and 140, 4802 [2x3 4x9 15x3 69x3] of float32 236 and 180; H200, decision 0144).
_FORKED_SUM_BYTES = 50 << 20


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
    price = gpu().price(steps.shapes, grad, options) if grad.is_cuda else None
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
        value, factors = present(self.values[source]), self.adjoints if is_adjoint else self.factors
        out = self.grad.new_empty(out_shape(text, value, factors, None))
        found = bind(text, self.options, value, factors, None, out)
        if not found.reads_addresses:
            return None
        self.values.append(out)
        self.has_launched |= found.launch.has_kernels
        return [ProductStep(found, tuple(out.shape), is_last, source, released)]

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
            kernel = gpu().bind_applying(u.of(self.values), v.of(self.values), own, self.transposed)
        if kernel is None:
            applied = self.product(released, of_grad, text, True, is_last)
            return None if applied is None else [*self.sum((), of_x, of_grad, group, left, size), *applied]
        out = self.grad.new_empty(out_shape(text, present(self.values[of_grad]), self.adjoints, None))
        self.values.append(out)
        u, v = (operand._replace(by_address=True) for operand in (u, v))
        found = SumStep(multiplied, u, v, together, released, separated, kernel, tuple(out.shape), is_last)
        self.has_launched = True
        return [self._separating(found)]

    def passing(self, released: tuple[int, ...], of_x: int, of_grad: int, *step: Any) -> list[Step] | None:
        """Return a pass that finds the gradients of a group and applies it."""
        *both, text = step
        modes, x, grad = parse(text, self.shapes), present(self.values[of_x]), present(self.values[of_grad])
        launch = None
        if grad.shape[:-2] == x.shape[:-2]:
            launch = gpu().bind(modes, self.factors, x, self.transposed, self.has_launched)
        if launch is None:
            return self.applying_sum(released, of_x, of_grad, *both)
        out = self.grad.new_empty((*grad.shape[:-2], math.prod(mode.columns for mode in modes), grad.shape[-1]))
        self.values.append(out)
        self.has_launched = True
        return [PassStep(launch, of_x, of_grad, tuple(out.shape), both[-1], released)]

    def _operands(self, of_x: int, of_grad: int, left: int, size: tuple[int, int]) -> tuple[Operand, Operand]:
        axes = axes_of(present(self.values[of_x]), present(self.values[of_grad]), size)
        u, v = (
            _operand(number, present(self.values[number]), partial(arranged, size=extent, left=left, axes=axes))
            for number, extent in ((of_x, size[1]), (of_grad, size[0]))
        )
        return u, v

    def _separating(self, found: SumStep) -> SumStep:
        if len(found.numbers) == 1 or not self.grad.is_cuda:
            return found
        own = [self.factors[number].mT if self.transposed else self.factors[number] for number in found.numbers]
        kernel = gpu().bind_separation(own)
        return found if kernel is None else found._replace(separate=kernel)


def _operand(number: int, tensor: torch.Tensor, arrange: Callable[[torch.Tensor], torch.Tensor]) -> Operand:
    found = arrange(tensor)
    same = found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return Operand(number, (tuple(found.shape), tuple(found.stride())) if same else None, arrange)


def _bind_sum(
    u: Operand, v: Operand, values: Sequence[Maybe], options: str, numbers: tuple[int, ...], released: tuple[int, ...]
) -> SumStep:
    """Return what sums v[l, q, r] u[l, p, r] over l and r: a kernel, or products by the vendor's, as views allow.

    The gradient that several factors share is in float32 where they are halves: theirs would feel its rounding.
    """
    one, other = u.of(values), v.of(values)
    is_wide = len(numbers) > 1 and one.is_cuda and one.dtype in (torch.float16, torch.bfloat16)
    method, kernel = "", None
    if one.is_cuda:
        method, kernel = gpu().sum_by(one, other, options, is_wide)
    elif one.is_cpu and one.dim() == 3:
        kernel = _cpu().bind(one, other)
    if kernel is not None or u.view is None or v.view is None or one.dim() != 3:
        u, v = (own._replace(by_address=kernel is not None) for own in (u, v))
        return SumStep(kernel or partial(multiplied, is_wide=is_wide), u, v, numbers, released)
    is_forked = one.element_size() * (one.numel() + other.numel()) <= _FORKED_SUM_BYTES
    (count, p, right), (_, q, _) = one.shape, other.shape
    (by_l, by_p, by_r), (of_l, of_q, of_r) = one.stride(), other.stride()
    if right == 1:
        first, second = ((count, p), (by_l, by_p)), ((q, count), (of_q, of_l))
    elif count == 1:
        first, second = ((right, p), (by_r, by_p)), ((q, right), (of_q, of_r))
    else:
        chosen = {"batched": by_batches, "rows": in_rows}.get(method, multiplied)
        return SumStep(partial(chosen, is_wide=is_wide), u, v, numbers, released, is_forked=is_forked)
    multiply = partial(by_matrices, is_wide=is_wide)
    u, v = u._replace(view=first), v._replace(view=second)
    return SumStep(multiply, u, v, numbers, released, is_forked=is_forked)


@lru_cache(maxsize=1)
def _cpu() -> Any:
    """Return the module of sums on CPUs, loaded with the first one."""
    return import_module(".cpu_sums", __package__)
