"""Bound training steps of chains of Kronecker-sparse products through the matrix of the chain.

The matrix is made of the weights, and its gradient taken apart, by kernels where the factors compose, else by torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from ...config import current
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate_as, layouts_in_one_piece
from ...torch_ops.info import RunInfo
from ...torch_ops.joined_launches import GRAD
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.torch_private import is_capturing
from ..mode_product import execute
from ..mode_product.chain_plan import Pattern, composes, fused
from ..mode_product.cost import quickest_gradient
from ..mode_product.execute import DENSE, uncast
from ..mode_product.grouped_plan import DTYPES
from ..mode_product.torch_op import Maybe, Options
from ..mode_product.torch_products import BLAS_FARTHEST, entries, summed_product
from . import chain_execute
from .chain_launches import LaunchedBackward, LaunchedForward, Table
from .chain_products import (
    Backward,
    Gradients,
    Saved,
    Sum,
    Weights,
    bind_bias,
    bind_gradient,
    bind_matmul,
    canonical,
    grouped,
    in_one_piece,
    is_in_one_piece,
    join_side_stream,
    maybe_side_stream,
    memory_shape,
    splits_streams,
)

_MOST_SIDE_ROWS = 4096  # up to which the rows of a bias are summed beside the gradients of weights
# Multiplications of a product from which those that are summed run beside one of two, not one beside both (H200,
# decision 0049).
_LONG = 8e9


def makes_matrix(weights: Weights, dtype: torch.dtype) -> bool:
    """Return whether kernels make the matrix of these weights and take its gradient apart."""
    if not weights[0].is_cuda or NAMES.get(dtype) not in DTYPES or current().backend not in ("auto", "cuda"):
        return False
    return has_matrix(tuple([tuple(weight.shape) for weight in weights]))  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=1024)
def has_matrix(patterns: tuple[Pattern, ...]) -> bool:
    """Return whether the product of all factors is dense."""
    own = patterns[0]
    for pattern in patterns[1:]:
        if not composes(own, pattern):
            return False
        own = fused(own, pattern)
    return len(patterns) > 1 and own[0] == own[3] == 1


@dataclass(frozen=True, eq=False)
class _Products:
    """Weights of the products of the first two, the first three, ... factors, and the matrix of all of them."""

    launches: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    reads_weights: bool

    def __call__(self, weights: Weights, count: int) -> list[torch.Tensor]:
        """Return the first weights and the products of as many factors as ``count``, the matrix in two axes."""
        made = [weights[0]]
        for number in range(count - 1):
            out = allocate_as(weights[0], self.shapes[number])
            self.launches[number].run((weights[number + 1], made[-1], out, None))
            made.append(out)
        return made


def _bind_products(weights: Weights, dtype: torch.dtype) -> _Products:
    own, launches, shapes = in_one_piece(weights, dtype), list[Any](), list[tuple[int, ...]]()
    before = own[0]
    for weight in own[1:]:
        out = weight.new_empty(fused(tuple(before.shape), tuple(weight.shape)))  # pyright: ignore
        launches.append(factor_matrix().bind_matrix(before, weight, out) or grouped().bind_matrix(before, weight, out))
        shapes.append(tuple(out.shape))
        before = out
    return _Products(tuple(launches), (*shapes[:-1], shapes[-1][1:3]), is_in_one_piece(weights, dtype))


@dataclass(frozen=True, eq=False)
class MatrixStep:
    """A step through the matrix of the chain; ``products`` makes it by kernels, None where torch's operations do.

    ``launches`` make it of two factors and multiply x by it; None where torch's operation is one of them.
    """

    products: _Products | None
    options: Options
    of_x: bool
    launches: LaunchedForward | None = None
    route: str = DENSE
    saves_between: bool = False

    def make(self, weights: Weights, dtype: torch.dtype) -> torch.Tensor:
        """Return the matrix, of the type of x."""
        if self.products is None and len(weights) == 1 and execute.makes_dense(weights[0]):
            return execute.dense_matrix(weights[0].to(dtype))
        if self.products is None:
            return uncast(weights[0].device.type, chain_execute.matrix_of, weights, dtype, dtype)
        own = weights if self.products.reads_weights else in_one_piece(weights, dtype)
        return self.products(own, len(own))[-1]

    def forward(
        self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo, added: Maybe = None
    ) -> tuple[torch.Tensor, Saved]:
        """Return the product, to which ``added`` is added, and the matrix if the gradient of x reads it."""
        info.route = self.route
        if self.launches is not None and not is_capturing():
            matrix, value = self.launches.run(x, weights, bias, added)
            return value, [matrix if self.of_x else None]
        matrix = self.make(weights, x.dtype)
        value = uncast(x.device.type, execute.matrix_product, x, matrix, bias, "", self.options.batch_last)
        if added is not None:
            value = value + added
        return value if x.dim() == 2 else value.detach(), [matrix if self.of_x else None]

    @property
    def launched(self) -> LaunchedForward | None:
        """Return the launches of a pass that saves the matrix."""
        return self.launches if self.of_x else None

    @property
    def on_addresses(self) -> bool:
        """Return whether it reads tensors in one piece where they lie."""
        return self.launches is not None

    def bind_gradient(self, weights: Weights, needed: Sequence[bool], summed: Maybe = None) -> MatrixGradient:
        """Return what takes the gradient of the matrix apart; ``summed``: a gradient whose rows it sums beside."""
        levels = _bind_gradients(weights, needed, summed) if self.products is not None and any(needed) else ()
        return MatrixGradient(self.products, levels, tuple(needed))

    def _bind_launches(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> LaunchedBackward | None:
        """Return the gradients by launches on addresses; None where some of it is left to torch's operations.

        The gradient of the matrix is a product that sums the rows of a bias on its way.
        """
        of_x, of_bias, *of_weights = needed
        matrix, sums = saved[0], any(of_weights)
        if self.launches is None or x is None or not (sums or not of_bias):
            return None
        if not (x.is_contiguous() and grad.is_contiguous() and is_in_one_piece(weights, grad.dtype)):
            return None
        if self.products is None or not self.products.reads_weights:
            return None
        table, launches = Table(4), list[tuple[Launch, Pick]]()  # reads the factors, x and the matrix
        first_at, second_at, x_at, matrix_at = range(GRAD + 1, GRAD + 5)
        of_x_at = of_bias_at = 0
        of_weights_at = [0, 0]
        if sums:
            found = launch_of_matrix(table, x, x_at, grad, of_bias)
            if found is None:
                return None
            product, like_at, of_bias_at = found
            launches.append(product)
            of_weights_at = [
                table.add(tuple(weight.shape)) if needs else 0
                for weight, needs in zip(weights, of_weights, strict=True)
            ]
            (level,) = _bind_gradients(weights, of_weights, None)
            launch, operands = level.launch.on_addresses(first_at, second_at, like_at, *of_weights_at)
            launches.append((launch, itemgetter(*operands)))
        if of_x and matrix is not None:
            below = launch_of_x(table, x, matrix, matrix_at, grad)
            if below is None:
                return None
            launches.append(below[0])
            of_x_at = below[1]
        found = of_x_at, of_bias_at, *of_weights_at
        return table.bind(launches, found, True, False, DENSE, True)

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients: that of the matrix is taken apart."""
        of_x, of_bias, *of_weights = needed
        rows = grad.numel() // grad.shape[0 if self.options.batch_last else -1]
        summed = any(of_weights) and x is not None
        within = of_bias and summed and self.products is not None and rows <= _MOST_SIDE_ROWS
        moved = canonical(grad, self.options.batch_last)
        is_far = any(step > BLAS_FARTHEST for step in (*grad.stride(), *(() if x is None else x.stride())))
        return MatrixBackward(
            self.bind_gradient(weights, of_weights if summed else [False] * len(weights), moved if within else None),
            bind_bias(moved) if of_bias and not within else None, within, of_x and saved[0] is not None, summed,
            self.options.batch_last, self._bind_launches(x, weights, saved, grad, needed), is_far,
            of_bias and x is not None and float(grad.numel()) * (x.numel() / max(1, rows)) >= _LONG,
            None if x is None or not summed or is_far else self._bind_sums(x, moved, weights),
        )  # fmt: skip

    def _bind_sums(self, x: torch.Tensor, grad: torch.Tensor, weights: Weights) -> Sum | None:
        """Return the gradient of the weights of a single factor; None where that of the matrix should be quicker."""
        if len(weights) > 1:
            return None
        x, pattern = canonical(x, self.options.batch_last), tuple(weights[0].shape)
        algorithm, _ = quickest_gradient(pattern, *execute.described(x))  # pyright: ignore[reportArgumentType]
        return None if algorithm == "dense" else bind_gradient(x, grad, pattern, self.options)


def launch_of_matrix(
    table: Table, x: torch.Tensor, x_at: int, grad: torch.Tensor, of_bias: bool
) -> tuple[tuple[Launch, Pick], int, int] | None:
    """Return the gradient of a matrix that multiplies x, with the rows of a bias summed on its way.

    With it the positions of both gradients in the table, that of the bias 0 where it is not asked for. None where
    torch's operation takes the product.
    """
    out, width = grad.shape[-1], x.shape[-1]
    bias = grad.new_empty(out) if of_bias else None
    product = bind_matmul(grad.view(-1, out).mT, x.view(-1, width), grad.new_empty((out, width)), sums=bias)
    if product is None:
        return None
    like_at, of_bias_at = table.add((out, width)), table.add((out,)) if of_bias else 0
    return (product, itemgetter(GRAD, x_at, like_at, of_bias_at)), like_at, of_bias_at


def launch_of_x(
    table: Table, x: torch.Tensor, matrix: torch.Tensor, matrix_at: int, grad: torch.Tensor
) -> tuple[tuple[Launch, Pick], int] | None:
    """Return the gradient of x, and its position in the table; None where torch's operation takes the product."""
    product = bind_matmul(grad.view(-1, grad.shape[-1]), matrix, torch.empty_like(x).view(-1, x.shape[-1]))
    if product is None:
        return None
    of_x_at = table.add(tuple(x.shape))
    return (product, itemgetter(GRAD, matrix_at, of_x_at, 0)), of_x_at


class _GradientLevel(NamedTuple):
    """The launch that takes the gradient of a product of two factors apart, and what it writes."""

    position: int
    launch: Any
    below: tuple[int, ...] | None
    of_this: bool


def _bind_gradients(weights: Weights, needed: Sequence[bool], summed: Maybe) -> tuple[_GradientLevel, ...]:
    dtype, levels = weights[0].dtype if summed is None else summed.dtype, list[_GradientLevel]()
    own = in_one_piece(weights, dtype)
    shapes = [tuple(own[0].shape)]
    for weight in own[1:]:
        shapes.append(fused(shapes[-1], tuple(weight.shape)))  # pyright: ignore
    before = [own[0], *(own[0].new_empty(shape) for shape in shapes[1:-1])]
    grad = own[0].new_empty(shapes[-1])
    for index in range(len(own) - 1, 0, -1):
        deeper = any(needed[:index])
        of_this = torch.empty_like(own[index]) if needed[index] else None
        below = torch.empty_like(before[index - 1]) if deeper else None
        if of_this is not None or below is not None:
            operands = before[index - 1], own[index], grad, below, of_this, summed
            launch = factor_matrix().bind_matrix_gradient(*operands) or grouped().bind_matrix_gradient(*operands)
            levels.append(_GradientLevel(index, launch, shapes[index - 1] if deeper else None, needed[index]))
            summed = None
        if below is None:
            break
        grad = below
    return tuple(levels)


@dataclass(frozen=True, eq=False)
class MatrixGradient:
    """Gradients of the weights ``needed`` from that of their chain's matrix, a launch for each product of two."""

    products: _Products | None
    levels: tuple[_GradientLevel, ...]
    needed: tuple[bool, ...]
    route: str = DENSE

    def __call__(self, weights: Weights, of_matrix: torch.Tensor, summed: Any = None) -> list[Maybe]:
        """Return them; ``summed``: a gradient (1, N, features), and where sums over its rows are written beside."""
        if self.products is None:
            return _gradients_by_torch(weights, of_matrix, self.needed)
        # A hook may bring saved weights back in another layout than that of the forward pass.
        own = weights if is_in_one_piece(weights, of_matrix.dtype) else in_one_piece(weights, of_matrix.dtype)
        before, grad = self.products(own, len(own) - 1), of_matrix
        found: list[Maybe] = [None] * len(weights)
        for index, launch, shape, sums_this in self.levels:
            of_this = found[index] = allocate_as(grad, own[index].shape) if sums_this else None
            below = None if shape is None else allocate_as(grad, shape)
            launch(before[index - 1], own[index], grad, below, of_this, summed)
            summed = None
            if below is not None:
                grad = below
        if self.needed[0]:
            found[0] = grad
        return found


@dataclass(frozen=True, eq=False)
class MatrixBackward:
    """The backward pass of :class:`MatrixStep`.

    ``launches`` are what an eager call takes where all is launched on addresses, one after the other; the rest is for
    others. ``bias`` sums rows in a launch of its own, ``within`` says that they are summed beside the gradients of
    weights; ``is_far`` that entries lie further apart than BLAS can say; ``is_long`` that products are so long, and a
    bias is summed, that the gradient of x waits for that of the matrix, and what is taken apart and summed runs beside
    it. ``direct`` sums the gradient of the weights of a single factor without that of the matrix.
    """

    apart: MatrixGradient
    bias: Callable[[torch.Tensor], torch.Tensor] | None
    within: bool
    of_x: bool
    sums: bool
    batch_last: bool
    launches: LaunchedBackward | None
    is_far: bool
    is_long: bool
    direct: Sum | None = None
    route: str = DENSE

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        if self.launches is not None and not splits_streams(grad.device):
            return self.launches(x, weights, saved, grad)
        kind = grad.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self(x, weights, saved, grad)
        last = self.batch_last
        if self.is_far:
            grad, x = grad.contiguous(), None if x is None else x.contiguous()
        flat = grad if grad.dim() == 2 else grad.reshape(len(grad), -1) if last else grad.reshape(-1, grad.shape[-1])
        below = None
        apart = self.of_x and (self.sums or self.bias is not None) and splits_streams(grad.device)
        side = maybe_side_stream(grad.device, apart)
        with side():
            of_bias = None if self.bias is None else self.bias(canonical(grad, last))
            if self.direct is not None and x is not None:
                taken = None, list[Maybe]([self.direct(canonical(x, last), canonical(grad, last))[0]])
            else:
                taken = None if self.is_long else self._gradients(weights, self._of_matrix(x, flat), grad, flat)
        if taken is None:
            of_matrix = self._of_matrix(x, flat)  # it outlives what reads it on the other stream
            with side():
                taken = self._gradients(weights, of_matrix, grad, flat)
        within, found = taken
        if self.of_x and (matrix := saved[0]) is not None:
            below = torch.mm(matrix.mT, flat) if last else torch.mm(flat, matrix)
            if grad.dim() != 2:
                below = below.view(memory_shape(matrix.shape[1], grad, last))
        if apart:
            join_side_stream(grad.device)
        return below, within if self.within else of_bias, found

    @property
    def launched(self) -> LaunchedBackward | None:
        """Return the pass where it is launches alone."""
        return None if self.launches is None else self.launches.launched

    def _of_matrix(self, x: Maybe, flat: torch.Tensor) -> Maybe:
        """Return the gradient of the matrix where gradients of weights are wanted."""
        if x is None or not self.sums:
            return None
        last = self.batch_last
        rows = x if x.dim() == 2 else x.reshape(len(x), -1) if last else x.reshape(-1, x.shape[-1])
        return summed_product(flat, rows.mT) if last else summed_product(flat.mT, rows)

    def _gradients(
        self, weights: Weights, of_matrix: Maybe, grad: torch.Tensor, flat: torch.Tensor
    ) -> tuple[Maybe, list[Maybe]]:
        """Return gradients of the bias, if it is summed within, and of weights from that of their chain's matrix."""
        if of_matrix is None:
            return None, [None] * len(weights)
        of_bias = allocate_as(grad, (flat.shape[0 if self.batch_last else 1],)) if self.within else None
        return of_bias, self.apart(weights, of_matrix, (grad, of_bias) if self.within else None)


def _gradients_by_torch(weights: Weights, of_matrix: torch.Tensor, needed: Sequence[bool]) -> list[Maybe]:
    kind, dtype = of_matrix.device.type, of_matrix.dtype
    if len(weights) == 1:
        return [entries(of_matrix.contiguous(), *weights[0].shape).contiguous()]
    with torch.enable_grad():
        own = [weight.detach().to(dtype).requires_grad_() for weight in weights]
        matrix = uncast(kind, chain_execute.matrix_of, own, dtype, dtype)
        asked = [weight for weight, each in zip(own, needed, strict=True) if each]
        made = torch.autograd.grad(matrix, asked, of_matrix)
    taken = iter([each.contiguous().view(-1).view(each.shape) for each in made])  # strides as of the weights
    return [next(taken) if each else None for each in needed]


def bind_matrix(
    weights: Weights, dtype: torch.dtype, options: Options, of_x: bool, x: Maybe = None, bias: Maybe = None,
    added: Maybe = None,
) -> MatrixStep:  # fmt: skip
    """Return the step for rows of a type; ``of_x``: whether the gradient of x is recorded.

    Rows that are like ``x``, in one piece, are multiplied on addresses, and what is like ``added`` is added to them.
    """
    by_kernels = makes_matrix(weights, dtype) and options.precision != "ieee"  # kernels multiply float32 in halves
    products = _bind_products(weights, dtype) if by_kernels else None
    launches = None if products is None or x is None else _bind_forward(products, x, bias, options, added)
    return MatrixStep(products, options, of_x, launches)


def _bind_forward(
    products: _Products, x: torch.Tensor, bias: Maybe, options: Options, added: Maybe
) -> LaunchedForward | None:
    """Return the launches of a step of two factors; None where torch's operation takes the product with the matrix."""
    if options.batch_last or x.dim() < 2 or not (products.reads_weights and x.is_contiguous()):
        return None
    if len(products.launches) != 1 or (bias is not None and not bias.is_contiguous()):
        return None
    shape = products.shapes[-1]
    rows, flat = x.view(-1, x.shape[-1]), None if added is None else added.view(-1, shape[0])
    through = bind_matmul(rows, x.new_empty(shape).mT, x.new_empty((len(rows), shape[0])), bias, added=flat)
    if through is None:
        return None
    x_at, first_at, second_at, bias_at, matrix_at, value_at, added_at = range(1, 8)
    (make,) = products.launches
    makes = itemgetter(*make.on_addresses(first_at, second_at, matrix_at))
    offset_at = 0 if bias is None else bias_at
    operands = x_at, matrix_at, value_at, offset_at, *(() if added is None else (added_at,))
    both = (make.launch, makes), (through, itemgetter(*operands))
    return LaunchedForward(LaunchSequence(both, True), layouts_in_one_piece([shape, (*x.shape[:-1], shape[0])]), 1)


@lru_cache(maxsize=1)
def factor_matrix() -> Any:
    """Return the module of matrices of two factors, loaded with the first one on a GPU."""
    return import_module("..mode_product.factor_matrix", __package__)
