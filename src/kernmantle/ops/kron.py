"""Kronecker products in torch: one autograd.Function whose derivatives are Kronecker products again."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from importlib import import_module
from typing import Any

import torch
from torch.autograd import forward_ad

from ..contraction.kron_modes import Mode, columns, contracted, grouped, parse, rows, text_of
from ..errors import BackendError, GradientError
from .autograd import constant
from .info import RunInfo
from .kron_execute import Number, Sizes, execute, factor_sizes
from .kron_operator import LIBRARY, kron
from .kron_torch import batch_of
from .targets import target_for
from .torch_private import check_untransformed, is_batched, is_untracked, plain, register_derivative

Tensors = Sequence[torch.Tensor]
# Neighbouring factors up to this size together share one gradient.
JOINT = 64
# The last factors up to this size together are the second step of a product that keeps what lies between its steps.
TOGETHER = 4096
_HEAD = 6  # arguments of the Function before its tensors


@constant
def _modes(text: str, shapes: Sizes) -> tuple[tuple[int, int, int | None], ...]:
    return tuple((mode.columns, mode.rows, mode.factor) for mode in parse(text, shapes))


@constant
def _partial(text: str, shapes: Sizes, run: tuple[int, ...], done: tuple[int, ...], adjoint: bool) -> str:
    """Text of the product at the positions ``run`` alone, on a tensor to which ``done`` are already applied."""
    entries: list[int | str] = []
    for place, mode in enumerate(parse(text, shapes)):
        if place in run and mode.factor is not None:
            entries.append(mode.factor)
        else:
            entries.append(f"i{mode.rows if (place in done) != adjoint else mode.columns}")
    return text_of(entries)


@constant
def _contracted(text: str, shapes: Sizes) -> tuple[int, ...]:
    return contracted(parse(text, shapes))


@constant
def _groups(text: str, shapes: Sizes, alone: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Positions with a factor, small neighbours together except those ``alone``."""
    modes = parse(text, shapes)
    together = [place for place in contracted(modes) if place not in alone]
    return tuple(sorted((*grouped(modes, together, JOINT), *((place,) for place in alone))))


@constant
def _joint(text: str, shapes: Sizes, group: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of the product of these factors."""
    own = [parse(text, shapes)[place] for place in group]
    return rows(own), columns(own)


def _conjugate(number: Number) -> Number:
    return number.conjugate() if isinstance(number, complex) else number


def _adjoint(factor: torch.Tensor) -> torch.Tensor:
    return factor.mH if factor.is_complex() else factor.mT


class _Gradients:
    """Gradients of every factor from x and the gradient of the product, by halving the range of factors.

    For one factor all others must be on either side: those of the other half go onto one side at once, so there are
    as many partial products as with all intermediate results kept, and never more than log2 of them in memory. Small
    neighbours share the gradient of their product, from which theirs follow. What the last factors need is one step
    from the gradient of x: ``through``, times ``slope``, where that was reached and ``whole`` asks for it.
    """

    def __init__(
        self, text: str, options: str, factors: Tensors, wanted: Sequence[bool], slope: Number, whole: bool
    ) -> None:
        self.text, self.options, self.factors, self.wanted = text, options, factors, wanted
        self.shapes = factor_sizes(factors)
        self.modes = [Mode(*mode) for mode in _modes(text, self.shapes)]
        self.adjoints = [_adjoint(factor) for factor in factors]
        self.slope, self.whole = slope, whole
        self.found: list[torch.Tensor | None] = [None] * len(factors)
        self.through: torch.Tensor | None = None

    def run(self, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradients by factor, None where not wanted."""
        places = _contracted(self.text, self.shapes)
        alone = tuple([place for place in places if not self._is_wanted([place]) or self._factor(place).dim() > 2])
        if places:
            self._halve(_groups(self.text, self.shapes, alone), (x, ()), (grad, ()))
        return self.found

    def _factor(self, place: int) -> torch.Tensor:
        return self.factors[self.modes[place].factor or 0]

    def _is_wanted(self, places: Sequence[int]) -> bool:
        return any(self.wanted[self.modes[place].factor or 0] for place in places)

    def _halve(
        self, groups: tuple[tuple[int, ...], ...], x: tuple[torch.Tensor, tuple[int, ...]],
        grad: tuple[torch.Tensor, tuple[int, ...]],
    ) -> None:  # fmt: skip
        if len(groups) == 1:
            if self._is_wanted(groups[0]):
                self._add(groups[0], x[0], grad)
                if self.whole and len(groups[0]) + len(grad[1]) == len(_contracted(self.text, self.shapes)):
                    text = _partial(self.text, self.shapes, groups[0], grad[1], True)
                    self.through = product(text, self.options, (self.slope, 0), grad[0], self.adjoints)
            return
        half = len(groups) // 2
        left, right = sum(groups[:half], ()), sum(groups[half:], ())
        if self._is_wanted(left):
            text = _partial(self.text, self.shapes, right, x[1], False)
            self._halve(groups[:half], (product(text, self.options, (1, 0), x[0], self.factors), x[1] + right), grad)
        if self._is_wanted(right):
            text = _partial(self.text, self.shapes, left, grad[1], True)
            done = product(text, self.options, (1, 0), grad[0], self.adjoints), grad[1] + left
            self._halve(groups[half:], x, done)

    def _add(self, group: tuple[int, ...], x: torch.Tensor, grad: tuple[torch.Tensor, tuple[int, ...]]) -> None:
        left = 1
        for earlier, mode in enumerate(self.modes[: group[0]]):
            left *= mode.columns if earlier in grad[1] else mode.rows
        shape = self._factor(group[0]).shape if len(group) == 1 else _joint(self.text, self.shapes, group)
        joint = outer(x, grad[0], left, shape, self.options)
        parts = [joint] if len(group) == 1 else _parted(joint, [self._factor(place) for place in group])
        for place, part in zip(group, parts, strict=True):
            number = self.modes[place].factor
            assert number is not None
            known = self.found[number]
            self.found[number] = part if known is None else known + part


def _parted(joint: torch.Tensor, factors: Tensors) -> list[torch.Tensor]:
    """Gradients of matrices from that of their Kronecker product."""
    count = len(factors)
    sides = [factor.shape[0] for factor in factors] + [factor.shape[1] for factor in factors]
    order = [place for axis in range(count) for place in (axis, count + axis)]
    others = [factor.conj().reshape(-1) for factor in factors]
    rest = joint.reshape(sides).permute(order).reshape(-1)
    before = [rest.new_ones(1)]
    for other in others[:-1]:
        before.append((before[-1].unsqueeze(1) * other).reshape(-1))
    found: list[torch.Tensor] = []
    for place in reversed(range(count)):
        wide = rest.reshape(before[place].shape[0], others[place].shape[0])
        found.append((before[place] @ wide).reshape(factors[place].shape))
        rest = wide @ others[place]
    return found[::-1]


def outer(x: torch.Tensor, grad: torch.Tensor, left: int, shape: Sequence[int], options: str) -> torch.Tensor:
    """Sum of grad[…, l, q, r] conj(x[…, l, p, r]) over l, r and the batch axes that a factor (…, q, p) lacks."""
    if not (x.numel() and grad.numel()):
        return x.new_zeros(shape)
    rank = max(x.dim(), grad.dim()) - 2
    kept = [place for place in range(rank) if place >= rank + 2 - len(shape) and shape[place - rank - 2] != 1]
    summed = [place for place in range(rank) if place not in kept]
    batch = batch_of([x, grad])

    def arranged(tensor: torch.Tensor, size: int) -> torch.Tensor:
        wide = tensor.expand(*batch, *tensor.shape[-2:]).permute(*kept, *summed, rank, rank + 1)
        count = left
        for place in summed:
            count *= batch[place]
        right = tensor.shape[-2] // (left * size) * tensor.shape[-1] if left * size else 0
        return wide.reshape(*(batch[place] for place in kept), count, size, right)

    q, p = shape[-2:]
    u, v = arranged(x, p), arranged(grad, q)
    total = None if kept or options.startswith("ieee") else _by_kernel(u, v)
    if total is not None:
        return total
    if u.shape[-1] == 1:
        total = v.squeeze(-1).mT @ u.squeeze(-1).conj()
    elif u.shape[-1] >= max(p, q):
        total = (v @ u.mH).sum(-3)
    else:
        total = v.transpose(-3, -2).flatten(-2) @ u.transpose(-3, -2).flatten(-2).mH
    return total.reshape(shape)


def _by_kernel(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
    """The gradient of one factor by a kernel; None where there is none or a derivative of it may be asked for."""
    if not u.is_cuda or torch.compiler.is_compiling() or not is_untracked((u, v)):
        return None
    target = target_for(u.device)
    return None if target is None else import_module(".kron_gram", __package__).summed(u, v)


def _at_once(
    text: str, options: str, factors: Tensors, slope: Number, x: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor | None]] | None:
    """Gradients of x and of every factor by kernels that apply and sum at once; None where there are none."""
    if not x.is_cuda or torch.compiler.is_compiling() or not is_untracked((x, grad, *factors)):
        return None
    if grad.shape != x.shape or isinstance(slope, complex) or options.startswith("ieee"):
        return None
    if target_for(x.device) is None:
        return None
    shapes = factor_sizes(factors)
    modes, door = parse(text, shapes), import_module(".kron_back", __package__)
    chosen = door.plans(modes, factors, x)
    if not chosen:
        return None

    def apply(value: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        return product(_partial(text, shapes, tuple(places), (), False), options, (1, 0), value, factors)

    through, found = door.gradients(chosen, modes, factors, x, grad, slope, apply)
    return through, [found.get(number) for number in range(len(factors))]


class Kron(torch.autograd.Function):
    """``alpha`` times the product, plus ``beta`` y; values are x, the factors, and y where it is added."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        text: str, options: str, alpha: Number, beta: Number, added: bool, info: RunInfo | None, *values: Any
    ) -> torch.Tensor:
        last = values[-1] if added else None
        return kron(values[0], list(values[1 : len(values) - added]), last, alpha, beta, text, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.text, ctx.options, ctx.alpha, ctx.beta, ctx.added, _, *values = inputs
        ctx.save_for_backward(*values[: len(values) - ctx.added])
        ctx.y_shape = values[-1].shape if ctx.added else None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        x, *factors = ctx.saved_tensors
        needed = ctx.needs_input_grad[_HEAD:]
        slope = _conjugate(ctx.alpha)
        results: list[torch.Tensor | None] = [None]
        wanted = needed[1 : 1 + len(factors)]
        parts: list[torch.Tensor | None] = [None] * len(factors)
        through = None
        at_once = _at_once(ctx.text, ctx.options, factors, slope, x, grad) if factors and all(wanted) else None
        if at_once is not None:
            through, parts = at_once
        elif any(wanted):
            gradients = _Gradients(ctx.text, ctx.options, factors, wanted, slope, needed[0])
            parts = gradients.run(x, grad)
            through = gradients.through
        if needed[0]:
            if through is None:
                adjoints = [_adjoint(factor) for factor in factors]
                through = product(ctx.text, ctx.options, (slope, 0), grad, adjoints)
            results[0] = through.sum_to_size(x.shape)
        results += [part if part is None or slope == 1 else part * slope for part in parts]
        if ctx.added:
            results.append((grad * _conjugate(ctx.beta)).sum_to_size(ctx.y_shape) if needed[-1] else None)
        return (None,) * _HEAD + tuple(results)


class KronWithJvp(Kron):
    """With forward mode, which torch.compile does not accept in a Function."""

    @staticmethod
    def forward(
        text: str, options: str, alpha: Number, beta: Number, added: bool, info: RunInfo | None, *values: Any
    ) -> torch.Tensor:
        if not plain(values):
            return Kron.forward(text, options, alpha, beta, added, info, *values)
        last = values[-1] if added else None
        return execute(text, options, (alpha, beta), values[0], values[1 : len(values) - added], last, None, info)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        Kron.setup_context(ctx, inputs, output)
        if forward_ad._current_level >= 0:  # not otherwise: it would hold on to tensors that nothing asks for
            ctx.save_for_forward(*inputs[_HEAD : len(inputs) - inputs[4]])
        ctx.shape = output.shape
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(Kron.backward, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor | None:
        x, *factors = ctx.saved_tensors
        moves = tangents[_HEAD:]
        terms: list[torch.Tensor] = []
        if moves[0] is not None:
            terms.append(product(ctx.text, ctx.options, (ctx.alpha, 0), moves[0], factors))
        for place, (_, _, number) in enumerate(_modes(ctx.text, factor_sizes(factors))):
            if number is not None and moves[1 + number] is not None:
                entries = ctx.text.split(" ")
                entries[place] = str(len(factors))
                terms.append(product(text_of(entries), ctx.options, (ctx.alpha, 0), x, [*factors, moves[1 + number]]))
        if ctx.added and moves[-1] is not None:
            terms.append(moves[-1] * ctx.beta)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.expand(ctx.shape)


def product(
    text: str,
    options: str,
    numbers: tuple[Number, Number],
    x: torch.Tensor,
    factors: Tensors,
    y: torch.Tensor | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:
    """The product with whatever derivative is being recorded; ``info`` takes the route."""
    values = [x, *factors] if y is None else [x, *factors, y]
    compiling = torch.compiler.is_compiling()
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in values)
    if not tracked and not compiling and plain(values):
        return execute(text, options, numbers, x, factors, y, None, info)
    if info is not None:
        info.route = "under a transform"  # unless it turns out that nobody watches
    if not (x.is_floating_point() or x.is_complex()) or (compiling and not tracked):
        return kron(x, list(factors), y, *numbers, text, options)
    if not compiling and torch._C._get_tracing_state() is not None:
        raise BackendError("torch.jit.trace cannot record a Kronecker product; use torch.compile or torch.export")
    if not compiling and any(map(is_batched, values)):
        raise GradientError("is_grads_batched and vectorize=True are not supported; use torch.func.vmap or jacrev")
    function = Kron if compiling else KronWithJvp
    return function.apply(text, options, *numbers, y is not None, info, *values)


def _record(
    x: torch.Tensor, factors: list[torch.Tensor], y: torch.Tensor | None,
    alpha: Number, beta: Number, modes: str, options: str,
) -> torch.Tensor:  # fmt: skip
    """Record the derivatives of an operator in a graph that torch.export wrote, whose factors are trained."""
    check_untransformed("kron")
    return product(modes, options, (alpha, beta), x, factors, y)


register_derivative(
    LIBRARY, "kron", lambda x, factors, y, *_: [x, *factors] if y is None else [x, *factors, y], _record
)


def in_two(
    text: str,
    options: str,
    numbers: tuple[Number, Number],
    x: torch.Tensor,
    factors: Tensors,
    y: torch.Tensor | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:
    """The same in two steps where there is more than a pass of factors: what lies between is kept for the gradients."""
    shapes = factor_sizes(factors)
    places, last = _contracted(text, shapes), _last(text, shapes)
    if len(last) < len(places) and torch.is_grad_enabled() and any(own.requires_grad for own in (x, *factors)):
        first = tuple([place for place in places if place not in last])
        x = product(_partial(text, shapes, last, (), False), options, (1, 0), x, factors)
        text = _partial(text, shapes, first, last, False)
    return product(text, options, numbers, x, factors, y, info)


@constant
def _last(text: str, shapes: Sizes) -> tuple[int, ...]:
    """The last factors, as many as one pass takes."""
    modes = parse(text, shapes)
    found: list[int] = []
    size = 1
    for place in reversed(contracted(modes)):
        size *= max(modes[place].columns, modes[place].rows)
        if found and size > TOGETHER:
            break
        found.append(place)
    return tuple(reversed(found))
