"""Training steps of one Kronecker-sparse factor by batched products whose blocks the backward pass reads again.

The blocks (a, d, b, c) of the weights (a, b, c, d) are brought together once, for the product and for the gradient of
x, which is a product by their transposes. They are saved, as many numbers as the weights have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...torch_ops.info import RunInfo
from ..mode_product import execute
from ..mode_product.cost import quickest_gradient, step_of_blocks
from ..mode_product.execute import uncast
from ..mode_product.torch_op import Maybe, Options
from ..mode_product.torch_products import by_bmm, by_copies
from .chain_products import (
    Backward,
    FactorBackward,
    FactorLevel,
    Saved,
    Weights,
    bind_bias,
    bind_gradient,
    canonical,
    shaped,
)

Pattern = tuple[int, int, int, int]


def blocks_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> float:
    """Return what a step should take on a GPU."""
    return step_of_blocks(pattern, batch, dtype, last)[0] + quickest_gradient(pattern, batch, dtype, "cuda", last)[1]


def _multiply(x: torch.Tensor, blocks: torch.Tensor, copies: bool) -> torch.Tensor:
    """Return the product of x (1, N, features) by blocks, between copies or where x and the result lie."""
    x = execute.within_blas_strides(x)
    return by_copies(x, blocks) if copies else by_bmm(x, blocks.movedim(-3, -1), blocks)


@dataclass(frozen=True, eq=False)
class _TransposedProduct:
    """The product by the transposes of the blocks that were saved."""

    copies: bool

    def __call__(self, x: torch.Tensor, blocks: torch.Tensor, *_: object) -> torch.Tensor:
        return uncast(x.device.type, _multiply, x, blocks.mT, self.copies)


@dataclass(frozen=True, eq=False)
class BlocksStep:
    """Forward: the blocks, and a batched product; ``copies``: of the product, and of the gradient of x."""

    options: Options
    copies: tuple[bool, bool]
    of_x: bool
    route: str = "torch bmm"
    saves_between: bool = False
    on_addresses: bool = False

    def forward(self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo) -> tuple[torch.Tensor, Saved]:
        """Return the product, and the blocks if the gradient of x reads them."""
        info.route = self.route
        blocks = execute.block_matrices(weights[0].to(x.dtype)[None])
        value = uncast(x.device.type, _multiply, canonical(x, self.options.batch_last), blocks, self.copies[0])
        if bias is not None:
            value = value.add_(bias)
        return shaped(value, x, self.options.batch_last).detach(), [blocks if self.of_x else None]

    def bind_backward(
        self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor, needed: Sequence[bool]
    ) -> Backward:
        """Return the gradients: a batched product, and a sum over the rows."""
        of_x, of_bias, of_weight = needed
        moved, sums = canonical(grad, self.options.batch_last), None
        if of_weight and x is not None:
            sums = bind_gradient(canonical(x, self.options.batch_last), moved, weights[0].shape, self.options)
        bias, of_x = bind_bias(moved) if of_bias else None, of_x and saved[0] is not None
        multiply = _TransposedProduct(self.copies[1]) if of_x else None
        level = FactorLevel(0, multiply, False, sums, None, True)
        return FactorBackward((level,), bias, of_x, of_x, self.options.batch_last, route=self.route)


def bind_blocks(x: torch.Tensor, weights: Weights, options: Options, of_x: bool) -> BlocksStep:
    """Return the step for rows like x (1, N, features); ``of_x``: whether the gradient of x is recorded."""
    batch, dtype, _, last = execute.described(x)
    _, *copies = step_of_blocks(tuple(weights[0].shape), batch, dtype, last)  # pyright: ignore[reportArgumentType]
    return BlocksStep(options, (copies[0], copies[1]), of_x)
