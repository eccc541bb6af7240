"""Matrices of several layers made together: one launch makes them, one takes their gradients apart.

A layer of two factors that trains through its matrix (``chain_matrix``) starts five launches a step, of which two make
the matrix and take its gradient apart. Layers that are called together share these two, and what remains of each is a
dense layer's step, which torch runs without Python.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from typing import Any

import torch
from torch.nn import functional

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.joined_launches import MOST_READY
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.saved import Guard, addresses, bound_pass, lie
from ...torch_ops.torch_private import applied_directly, guard_of, is_capturing, plain
from ..mode_product.chain_plan import fused
from ..mode_product.torch_op import Maybe, Options
from . import chain_execute
from .chain_matrix import MatrixGradient, MatrixStep, bind_matrix, factor_matrix
from .chain_products import Weights, grouped, splits_streams

_MOST_CHAINS = 6  # of a launch back, which has two products for each, and 12 fit into its arguments


class _Made(threading.local):
    """The transposed matrices that calls of layers find, by layer."""

    def __init__(self) -> None:
        self.matrices: Mapping[Hashable, torch.Tensor] = {}


MADE = _Made()


class _Traced:
    """The matrices that layers find in a graph that is being compiled, and the number of that graph.

    torch.compile follows no attributes of what is local to a thread. Code that it breaks off while matrices are here,
    and which goes on in another graph, does not take them, as another thread may have put them here.
    """

    def __init__(self) -> None:
        self.matrices: Mapping[Hashable, torch.Tensor] = {}
        self.graph = -1


TRACED = _Traced()


@dataclass(frozen=True, eq=False)
class BoundMatrices:
    """Matrices of chains of two factors, and gradients of these, for weights of one layout: first, second, first, ...

    ``forward`` and ``backward`` are what eager calls launch, on tables of addresses: those of the weights and the
    matrices, and of weights, gradients of the matrices and gradients of weights. A graph, and a backward pass that
    lacks some, take each of ``steps``. ``transposes`` are the layouts of the transposed matrices, or of all matrices
    beside one another in one where ``is_stacked``: their ``offsets`` there are in bytes. ``passes`` has the backward
    pass of gradients that lie as they did before.
    """

    steps: tuple[MatrixStep, ...]
    layouts: tuple[PlainLayout, ...]
    transposes: tuple[PlainLayout, ...]
    offsets: tuple[int, ...]
    like_weights: tuple[PlainLayout, ...]
    forward: LaunchSequence
    backward: LaunchSequence
    is_stacked: bool
    is_ready: bool
    apart: dict[int, MatrixGradient] = field(default_factory=dict[int, MatrixGradient])
    passes: dict[tuple[()], tuple[LaunchSequence, Guard]] = field(default_factory=dict[Any, Any])

    def make(self, weights: Weights) -> list[torch.Tensor]:
        """Return the matrices (features out, features in)."""
        if splits_streams(weights[0].device):
            return [step.make(own, own[0].dtype) for step, own in zip(self.steps, chains_of(weights), strict=True)]
        found = allocate_each(weights[0], self.layouts)
        self.forward([0, *addresses(weights), *addresses(found)])
        return found

    def make_transposes(self, weights: Weights, read: Sequence[int]) -> list[torch.Tensor]:
        """Return the transposed matrices, or all of them in one; ``read`` are the addresses of the weights."""
        found = allocate_each(weights[0], self.transposes)
        self.forward([0, *read, *self._positions(found)])
        return found

    def _positions(self, matrices: Sequence[torch.Tensor]) -> list[int]:
        """Return the address of each matrix, or of its gradient."""
        if not self.is_stacked:
            return addresses(matrices)
        begin = matrices[0].data_ptr()
        return [begin + offset for offset in self.offsets]

    def take_memory(self, weights: Weights) -> list[torch.Tensor] | None:
        """Return memory for the gradients of the weights, where it is little and the backward pass is known."""
        return allocate_each(weights[0], self.like_weights) if self.passes and self.is_ready else None

    def run_backward(
        self, launch: LaunchSequence, read: Sequence[int], grads: Sequence[torch.Tensor], found: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the gradients of the weights, ``found``, from those of the transposed matrices."""
        launch([0, *read, *self._positions(grads), *addresses(found)])
        return found

    def take_apart(self, weights: Weights, grads: Sequence[Maybe], are_same: bool) -> list[Maybe]:
        """Return the gradients of the weights from those of the matrices, of which some may be absent.

        ``are_same``: the weights lie in memory as they did when the matrices were made.
        """
        found = [None if grad is None else grad.contiguous() for grad in grads]
        if are_same and _begin_at_vectors(found) and not splits_streams(weights[0].device):
            results: list[Maybe] = [*allocate_each(weights[0], self.like_weights)]
            self.backward([0, *addresses((*weights, *found, *results))])
            return results
        if not are_same:
            weights = [weight.clone(memory_format=torch.contiguous_format) for weight in weights]
        each = enumerate(zip(chains_of(weights), found, strict=True))
        return [of_weight for index, (own, grad) in each for of_weight in self._apart(index, own, grad)]

    def each(self, grads: Sequence[Maybe]) -> Sequence[Maybe]:
        """Return the gradients of each matrix from those of what was made."""
        if not self.is_stacked:
            return [None if grad is None else grad.t() for grad in grads]
        (grad,) = grads
        return [None] * len(self.layouts) if grad is None else grad.t().split([shape[0] for shape, _ in self.layouts])

    def keep(self, weights: Weights, grads: Sequence[Maybe]) -> None:
        """Store the backward pass for gradients like these of what was made, where it reads them as they lie."""
        if all(grad is not None and grad.t().is_contiguous() and grad.data_ptr() % 16 == 0 for grad in grads):
            guard = guard_of((*grads, *weights))  # pyright: ignore[reportArgumentType]: no gradient is absent
            if guard is not None:
                self.passes[()] = self.backward, guard

    def _apart(self, index: int, weights: Weights, grad: Maybe) -> list[Maybe]:
        if grad is None:
            return [None, None]
        launch = self.apart.get(index)
        if launch is None:
            launch = self.apart[index] = self.steps[index].bind_gradient(weights, (True, True))
        return launch(weights, grad)


def _begin_at_vectors(grads: Sequence[Maybe]) -> bool:
    """Return whether all gradients are there and begin at vectors."""
    return all(grad is not None and grad.data_ptr() % 16 == 0 for grad in grads)


def chains_of(weights: Weights) -> list[Weights]:
    """Return the two weights of each chain."""
    return [weights[begin : begin + 2] for begin in range(0, len(weights), 2)]


def bind_matrices(weights: Weights, stacked: bool = False) -> BoundMatrices:
    """Return what makes the matrices of chains whose weights are contiguous, of one type and on one GPU.

    ``stacked``: they are made below one another, as one.
    """
    own, dtype = [weight.detach() for weight in weights], weights[0].dtype
    chains = chains_of(own)
    steps = [bind_matrix(chain, dtype, Options(False, "auto", ""), True) for chain in chains]
    matrices = [first.new_empty(fused(tuple(first.shape), tuple(second.shape))) for first, second in chains]  # pyright: ignore
    forward, backward, count = list[tuple[Launch, Pick]](), list[tuple[Launch, Pick]](), len(chains)
    for begin in range(0, count, _MOST_CHAINS):
        some = range(begin, min(count, begin + _MOST_CHAINS))
        own_chains = [(*chains[index], matrices[index]) for index in some]
        makes, gradients = _bind_products(own_chains)
        operands, of_weights = list[int](), list[int]()
        for index, make, gradient in zip(some, makes, gradients, strict=True):
            first, matrix, of_first = 1 + 2 * index, 1 + 2 * count + index, 1 + 3 * count + 2 * index
            operands += make.on_addresses(first, first + 1, matrix)
            of_weights += gradient.on_addresses(first, first + 1, matrix, of_first, of_first + 1)[1]
        forward.append((makes[0].launch, itemgetter(*operands)))
        backward.append((gradients[0].on_addresses(0, 0, 0, 0, 0)[0], itemgetter(*of_weights)))
    shapes = [(matrix.shape[1], matrix.shape[2]) for matrix in matrices]
    made = [(sum(rows for rows, _ in shapes), shapes[0][1])] if stacked else shapes
    transposes = tuple([((columns, rows), (1, columns)) for rows, columns in made])
    size = dtype.itemsize
    offsets = (0, *accumulate(size * rows * columns for rows, columns in shapes))[:-1] if stacked else ()
    is_ready = size * sum(map(math.prod, [weight.shape for weight in own])) <= MOST_READY
    return BoundMatrices(
        tuple(steps), layouts_in_one_piece(shapes), transposes, offsets,
        layouts_in_one_piece([weight.shape for weight in own]), LaunchSequence(forward, True),
        LaunchSequence(backward, True), stacked, is_ready,
    )  # fmt: skip


def _bind_products(chains: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the launch that makes the matrices of chains and that of the gradients, once for each of them.

    A single chain has kernels of its own where it is made of whole tiles.
    """
    tiles, (first, second, matrix) = factor_matrix(), chains[0]
    make = tiles.bind_matrix(first, second, matrix) if len(chains) == 1 else None
    gradient = None if make is None else tiles.bind_matrix_gradient(first, second, matrix, first, second, None)
    if gradient is not None:
        return [make], [gradient]
    return [grouped().bind_matrices(chains)] * len(chains), grouped().bind_matrix_gradients(chains)


@applied_directly
class _Matrices(torch.autograd.Function):
    """Weights of chains of two factors to their transposed matrices, for calls that nothing but autograd sees."""

    @staticmethod
    def forward(ctx: Any, own: BoundMatrices, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        read = addresses(weights)
        ctx.made = own, read
        ctx.save_for_backward(*weights)
        found = own.make_transposes(weights, read)
        ctx.ready = own.take_memory(weights)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> tuple[Maybe, ...]:
        (own, read), weights = ctx.made, ctx.saved_tensors
        launch = bound_pass(own.passes, (), read, weights, grads)
        ready = ctx.__dict__.pop("ready", None)  # of threads that go back at once, one has it
        if launch is not None and not is_capturing():
            found = allocate_each(weights[0], own.like_weights) if ready is None else ready
            return None, *own.run_backward(launch, read, grads, found)
        present = [grad for grad in grads if grad is not None]
        each = own.each(grads)
        if torch.is_grad_enabled() or not plain(present):
            return None, *_differentiably(weights, each)
        are_same = lie(read, weights)
        if are_same:
            own.keep(weights, grads)
        return None, *own.take_apart(weights, each, are_same)


apply_matrices: Any = super(torch.autograd.Function, _Matrices).apply  # pyright: ignore[reportAttributeAccessIssue]


def _differentiably(weights: Weights, grads: Sequence[Maybe]) -> list[Maybe]:
    """Return the gradients of the weights with whatever derivative of them is being recorded."""
    found = dict[int, torch.Tensor]()
    with torch.enable_grad():
        for index, (own, grad) in enumerate(zip(chains_of(weights), grads, strict=True)):
            asked = [2 * index + number for number, weight in enumerate(own) if weight.requires_grad]
            if grad is not None and asked:
                matrix = chain_execute.matrix_of(own, own[0].dtype)
                of_weights = torch.autograd.grad(matrix, [weights[at] for at in asked], grad, create_graph=True)
                found |= zip(asked, of_weights, strict=True)
    return [found.get(index) for index in range(len(weights))]


def made_for(layer: Hashable, x: Any, matrices: Mapping[Hashable, torch.Tensor]) -> Maybe:
    """Return the matrix of a graph for this call of a layer, None if there is none that x can be multiplied with."""
    matrix = matrices.get(layer)
    if matrix is None or type(x) is not torch.Tensor:
        return None
    fits = x.dtype == matrix.dtype and x.shape[-1:] == matrix.shape[1:] and x.device == matrix.device
    return matrix if fits else None


def product_by_made(layer: Hashable, x: Any, bias: Maybe, matrices: Mapping[Hashable, torch.Tensor]) -> Maybe:
    """Return x times the transposed matrix that was made for this call of a layer, plus the bias; None without one."""
    matrix = matrices.get(layer)
    if matrix is None or type(x) is not torch.Tensor or x.dtype is not matrix.dtype or x.device != matrix.device:
        return None
    shape = x.shape
    return product_by(matrix, x, bias) if shape and shape[-1] == matrix.shape[0] else None


def product_by(matrix: torch.Tensor, x: torch.Tensor, bias: Maybe) -> torch.Tensor:
    """Return ``x @ matrix + bias``: the product of torch's linear layer, without the transpose that it records."""
    if bias is not None:
        if x.dim() == 2:
            return torch.addmm(bias, x, matrix)
        if x.dim() == 3 and x.is_contiguous():
            one, other, width = x.shape
            return torch.addmm(bias, x.view(one * other, width), matrix).view(one, other, matrix.shape[1])
    return functional.linear(x, matrix.t(), bias)
