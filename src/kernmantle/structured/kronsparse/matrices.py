"""Matrices of several layers made together: one launch makes them, one takes their gradients apart.

A layer of two factors that trains through its matrix (``chain_matrix``) starts five launches a step, of which two make
the matrix and take its gradient apart. Layers that are called together share these two, and what remains of each is a
dense layer's step, which torch runs without Python.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from ...torch_ops.execute import PlainLayout, allocate_each, layouts_in_one_piece
from ...torch_ops.launch_sequence import Launch, LaunchSequence, Pick
from ...torch_ops.saved import addresses, lie
from ...torch_ops.torch_private import applied_directly, plain
from ..mode_product.chain_plan import fused
from ..mode_product.torch_op import Maybe, Options
from . import chain_execute
from .chain_matrix import MatrixGradient, MatrixStep, bind_matrix, factor_matrix
from .chain_products import Weights, grouped, splits_streams

_MOST_CHAINS = 6  # of a launch back, which has two products for each, and 12 fit into its arguments


class _Made(threading.local):
    """The matrices that calls of layers find, by layer."""

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
    lacks some, take each of ``steps``. ``stack`` is the layout of all matrices below one another where that is what is
    made.
    """

    steps: tuple[MatrixStep, ...]
    layouts: tuple[PlainLayout, ...]
    like_weights: tuple[PlainLayout, ...]
    forward: LaunchSequence
    backward: LaunchSequence
    stack: PlainLayout | None = None
    apart: dict[int, MatrixGradient] = field(default_factory=dict[int, MatrixGradient])

    def make(self, weights: Weights) -> list[torch.Tensor]:
        """Return the matrices (features out, features in), or the stack of them alone."""
        if self.stack is not None:
            found = allocate_each(weights[0], [self.stack])
            into = addresses(self._parts(found[0]))
        elif splits_streams(weights[0].device):
            return [step.make(own, own[0].dtype) for step, own in zip(self.steps, chains_of(weights), strict=True)]
        else:
            found = allocate_each(weights[0], self.layouts)
            into = addresses(found)
        self.forward([0, *addresses(weights), *into])
        return found

    def take_apart(self, weights: Weights, grads: Sequence[Maybe], are_same: bool) -> list[Maybe]:
        """Return the gradients of the weights from those of the matrices, of which some may be absent.

        ``are_same``: the weights lie in memory as they did when the matrices were made.
        """
        found = [None if grad is None else grad.contiguous() for grad in self.each(grads)]
        if are_same and _begin_at_vectors(found) and not splits_streams(weights[0].device):
            results: list[Maybe] = [*allocate_each(weights[0], self.like_weights)]
            self.backward([0, *addresses((*weights, *found, *results))])
            return results
        if not are_same:
            weights = [weight.clone(memory_format=torch.contiguous_format) for weight in weights]
        each = enumerate(zip(chains_of(weights), found, strict=True))
        return [of_weight for index, (own, grad) in each for of_weight in self._apart(index, own, grad)]

    def each(self, grads: Sequence[Maybe]) -> Sequence[Maybe]:
        """Return the gradients of each matrix."""
        if self.stack is None:
            return grads
        return [None] * len(self.layouts) if grads[0] is None else self._parts(grads[0])

    def _parts(self, stack: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the matrices of a stack."""
        return stack.split([shape[0] for shape, _ in self.layouts])

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
    rows, columns = sum(matrix.shape[1] for matrix in matrices), matrices[0].shape[2]
    stack = layouts_in_one_piece([(rows, columns)])[0] if stacked else None
    return BoundMatrices(
        tuple(steps), layouts_in_one_piece([matrix.shape[1:3] for matrix in matrices]),
        layouts_in_one_piece([weight.shape for weight in own]), LaunchSequence(forward, True),
        LaunchSequence(backward, True), stack,
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
    """Weights of chains of two factors to their matrices, for calls that nothing but autograd sees."""

    @staticmethod
    def forward(ctx: Any, own: BoundMatrices, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.made = own, addresses(weights)
        ctx.save_for_backward(*weights)
        return tuple(own.make(weights))

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> tuple[Maybe, ...]:
        (own, before), weights = ctx.made, ctx.saved_tensors
        present = [grad for grad in grads if grad is not None]
        if torch.is_grad_enabled() or not plain(present):
            return None, *_differentiably(weights, own.each(grads))
        return None, *own.take_apart(weights, grads, lie(before, weights))


apply_matrices: Any = super(torch.autograd.Function, _Matrices).apply  # pyright: ignore[reportAttributeAccessIssue]


def _differentiably(weights: Weights, grads: Sequence[Maybe]) -> list[Maybe]:
    """Return the same with whatever derivative of them is being recorded."""
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
    """Return the matrix that was made for this call of a layer, None if there is none that x can be multiplied with."""
    matrix = matrices.get(layer)
    if matrix is None or type(x) is not torch.Tensor:
        return None
    fits = x.dtype == matrix.dtype and x.shape[-1:] == matrix.shape[1:] and x.device == matrix.device
    return matrix if fits else None
