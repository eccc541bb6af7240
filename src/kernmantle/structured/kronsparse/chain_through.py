"""The step of one matrix that is made already: a product, and two products back, launched on addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...torch_ops.execute import allocate_as
from ...torch_ops.info import RunInfo
from ...torch_ops.launch_sequence import Launch, Pick
from ..mode_product.execute import DENSE, uncast
from ..mode_product.torch_op import Maybe
from ..mode_product.torch_products import summed_product
from .chain_launches import GRAD, LaunchedBackward, Table
from .chain_matrix import launch_of_matrix, launch_of_x, launch_through
from .chain_products import Backward, Gradients, Saved, Weights, splits_streams


@dataclass(frozen=True, eq=False)
class ThroughStep:
    """The product of x (..., features) with the only one of the weights, a matrix (features out, features).

    ``adds`` says that the launch adds what is like its result.
    """

    through: Launch
    adds: bool
    route: str = DENSE
    saves_between: bool = False
    on_addresses: bool = True

    def forward(
        self, x: torch.Tensor, weights: Weights, bias: Maybe, info: RunInfo, added: Maybe = None
    ) -> tuple[torch.Tensor, Saved]:
        """Return the product, to which ``added`` is added."""
        info.route, (matrix,) = self.route, weights
        value = allocate_as(x, (*x.shape[:-1], matrix.shape[0]))
        operands = x.data_ptr(), matrix.data_ptr(), value.data_ptr(), 0 if bias is None else bias.data_ptr()
        if self.adds and added is not None:
            operands = *operands, added.data_ptr()
        self.through(operands)
        return (value if self.adds or added is None else value.add_(added)), []

    def bind_backward(
        self,
        x: Maybe,
        weights: Weights,
        saved: Saved,
        grad: torch.Tensor,
        needed: Sequence[bool],
    ) -> Backward:
        """Return the gradients ``needed``, of x, the bias and the matrix."""
        return ThroughBackward(tuple(needed), None if x is None else _bind_launches(x, weights[0], grad, needed))


def bind_through(x: torch.Tensor, matrix: torch.Tensor, bias: Maybe, added: Maybe = None) -> ThroughStep | None:
    """Return the step for tensors like these; None where torch's operation takes the product.

    What is ``added`` is so by the launch where it lies in one piece.
    """
    if x.dim() < 2 or not all(each is None or each.is_contiguous() for each in (x, matrix, bias)):
        return None
    adds = added is not None and added.is_contiguous()
    through = launch_through(x, matrix, bias, added if adds else None)
    return None if through is None else ThroughStep(through, adds)


def _bind_launches(
    x: torch.Tensor, matrix: torch.Tensor, grad: torch.Tensor, needed: Sequence[bool]
) -> LaunchedBackward | None:
    """Return the gradients by launches on addresses; None where torch's operations take some of it."""
    of_x, of_bias, of_matrix = needed
    if (of_bias and not of_matrix) or not (x.is_contiguous() and grad.is_contiguous() and matrix.is_contiguous()):
        return None
    table, launches = Table(2), list[tuple[Launch, Pick]]()  # reads the matrix and x
    matrix_at, x_at = GRAD + 1, GRAD + 2
    of_x_at = of_bias_at = of_matrix_at = 0
    if of_matrix:
        found = launch_of_matrix(table, x, x_at, grad, of_bias)
        if found is None:
            return None
        product, of_matrix_at, of_bias_at = found
        launches.append(product)
    if of_x:
        below = launch_of_x(table, x, matrix, matrix_at, grad)
        if below is None:
            return None
        product, of_x_at = below
        launches.append(product)
    return table.bind(launches, (of_x_at, of_bias_at, of_matrix_at), True, False, grad.element_size(), DENSE)


@dataclass(frozen=True, eq=False)
class ThroughBackward:
    """The backward pass of :class:`ThroughStep`; by torch's operations where ``launches`` do not take it."""

    needed: tuple[bool, ...]
    launches: LaunchedBackward | None
    route: str = DENSE

    def __call__(self, x: Maybe, weights: Weights, saved: Saved, grad: torch.Tensor) -> Gradients:
        """Return the gradients."""
        if self.launches is not None and not splits_streams(grad.device):
            return self.launches(x, weights, saved, grad)
        (of_x, of_bias, of_matrix), (matrix,) = self.needed, weights
        flat, kind, own, below = grad.reshape(-1, grad.shape[-1]), grad.device.type, None, None
        if of_matrix and x is not None:
            own = uncast(kind, summed_product, flat.mT, x.reshape(-1, x.shape[-1]))
        if of_x:
            below = uncast(kind, torch.mm, flat, matrix).view(*grad.shape[:-1], matrix.shape[1])
        return below, flat.sum(0) if of_bias else None, [own]
