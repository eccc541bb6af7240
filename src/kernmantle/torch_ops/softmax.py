"""Softmax-weighted sums of rows in one pass over scores that are not stored, their gradients or tangents in one more.

If a machine has no kernels for a call, the caller composes it of two row reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from ..backend import Backend, backend_of
from ..compiler.row_reduce import COLUMNS, Apply, RowNest
from ..compiler.softmax import DUALS, GRADIENTS, TANGENTS, WRITTEN, Weighting, can_weigh, lower_softmax
from ..config import current
from ..ir.equation import broadcast
from ..ir.reductions import PRODUCT, SOFTMAX
from ..runtime.dispatch import bound
from ..runtime.launcher import Launcher
from .autograd import constant
from .call_key import program_key
from .dtypes import DTYPES, NAMES
from .execute import Types, allocate
from .info import RunInfo
from .layout import Geometry, geometry
from .row_reduce import Defined, task_of
from .row_reduce_execute import RowLaunch, bind_rows
from .targets import backend_for

Tensors = Sequence[torch.Tensor]


class SoftmaxTarget(Protocol):
    """A machine with kernels for softmax-weighted sums in one pass."""

    def prepare(
        self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device
    ) -> Launcher | None:
        """Compile the kernels of sums, gradients or tangents, or find them; None where two passes are right."""
        ...


@lru_cache(maxsize=8)
def _target(backend: Backend) -> SoftmaxTarget:
    return backend.module(backend.softmax).TARGET()


def has_kernels(device: torch.device) -> bool:
    """Return whether machines of this kind may have kernels for softmax-weighted sums in one pass."""
    backend = backend_of(device.type, current().backend)
    return backend is not None and backend.softmax != ""


@constant
def _weighting(text: str, causal: bool) -> str:
    """Return the text of a weighting by the entries of the apply of a text."""
    return Weighting(Apply.parse(text).inner, causal).text


@dataclass(frozen=True, eq=False)
class BoundSoftmax:
    """The bound call of a weighting, its gradients or tangent; without ``launch`` the machine has no kernels for it."""

    launch: RowLaunch | None
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    route: str = ""

    def allocated(self, device: torch.device) -> list[torch.Tensor]:
        """Return new tensors for the results."""
        return [allocate(shape, dtype, device) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]

    def __call__(self, tensors: Tensors, numbers: Sequence[float], outs: Tensors = ()) -> list[torch.Tensor]:
        """Launch, and return the results in new tensors; ``outs`` stand before these among the kernel's outputs."""
        assert self.launch is not None
        own = self.allocated(tensors[0].device)
        self.launch(tensors, numbers, (*outs, *own))
        return own


@dataclass(frozen=True)
class SoftmaxTask:
    """A weighting as a text, with its numbers; its tensors are operands, parameters, then v."""

    text: str
    numbers: Sequence[float]
    info: RunInfo = field(default_factory=RunInfo, compare=False)

    def evaluates(self, tensors: Tensors, how: str = SOFTMAX) -> bool:
        """Return whether the machine has a kernel for such tensors."""
        return _bound(self.text, how, tensors).launch is not None

    def evaluate(self, tensors: Tensors, wide: bool = False) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the sums and the logarithms of the rows' weights, without derivatives; None without a kernel.

        With ``wide`` sums of halves are float32, as tangents read them.
        """
        found = _bound(self.text, SOFTMAX, tensors, wide)
        if found.launch is None:
            return None
        self.info.route = found.route
        result, statistic = found(tensors, self.numbers)
        return result, statistic

    def gradients(
        self, tensors: Tensors, result: torch.Tensor, statistic: torch.Tensor, cotangent: torch.Tensor
    ) -> list[torch.Tensor] | None:
        """Return the gradients by the first two operands and v, over all batch axes; None where there is no kernel."""
        found = _bound(self.text, GRADIENTS, tensors)
        if found.launch is None:
            return None
        return found(tensors, self.numbers, (result, statistic, cotangent.contiguous()))

    def tangent(
        self, tensors: Tensors, result: torch.Tensor, statistic: torch.Tensor, moves: Tensors
    ) -> torch.Tensor | None:
        """Return the tangent of the sums for those of the first two operands and v; None where there is no kernel.

        ``result`` is float32.
        """
        found = _bound(self.text, TANGENTS, tensors, True)
        if found.launch is None:
            return None
        (tangent,) = found(tensors, self.numbers, (result, statistic, *(move.contiguous() for move in moves)))
        return tangent

    def allocated(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return new tensors for what ``duals`` writes: the sums, the logarithms of the rows' weights, the tangent."""
        return _bound(self.text, DUALS, tensors).allocated(tensors[0].device)

    def duals(self, tensors: Tensors, moves: Tensors, outs: Tensors) -> None:
        """Write the sums, their logarithms and the tangent for those of the first two operands and v into ``outs``."""
        found = _bound(self.text, DUALS, tensors)
        assert found.launch is not None
        self.info.route = found.route
        found.launch(tensors, self.numbers, (*(move.contiguous() for move in moves), *outs))


def softmax_task(
    score: Defined, operands: Tensors, parameters: Mapping[str, Any], v: torch.Tensor, causal: bool,
    precision: str | None = None,
) -> tuple[SoftmaxTask, list[torch.Tensor]] | None:  # fmt: skip
    """Return the task of a weighting and its tensors; None where its arithmetic has no kernel anywhere.

    Arguments are those of ``row_reduce.task_of``; ``causal``: row i sees the columns 0 to i alone.
    """
    if not has_kernels(operands[0].device):
        return None
    task, tensors = task_of(score, PRODUCT, operands, parameters, v, precision=precision)
    types = Types.parse(task.types).configured(current().precision)
    if types.compute != "f32" or types.precision != "default":
        return None
    return SoftmaxTask(_weighting(task.text, causal), task.numbers), tensors


def _bound(text: str, how: str, tensors: Tensors, wide: bool = False) -> BoundSoftmax:
    key = program_key((SOFTMAX, text), (how, wide), tensors)
    return bound(key, lambda: _bind(Weighting.parse(text), how, tensors, wide))


def _bind(weighting: Weighting, how: str, tensors: Tensors, wide: bool) -> BoundSoftmax:
    inner, device = weighting.inner, tensors[0].device
    own = geometry(inner, [tuple(t.shape) for t in tensors[:-1]])
    batch = broadcast([own.batch, tuple(tensors[-1].shape[:-2])])
    assert batch is not None
    geo = Geometry({**own.sizes, COLUMNS: tensors[-1].shape[-1]}, batch)
    backend = backend_for(device)
    if 0 in (*geo.sizes.values(), *batch) or backend is None or not backend.softmax or not can_weigh(weighting):
        return BoundSoftmax(None)
    stored = [NAMES[t.dtype] for t in tensors]
    lowering = lower_softmax(weighting, stored[:-1], stored[-1], how, "f32" if wide else None)
    rows = lowering.rows
    axis_of = {role: axis for axis, role in lowering.matrix.roles.items()}
    out_axes = ["".join(axis_of[role] for role in buffer.roles) for buffer in rows.outs]
    shapes = [geo.out_shape(each) for each in out_axes]
    if how in (TANGENTS, DUALS):  # those of operands have their batch axes
        first = 2 if how == TANGENTS else 0
        shapes[first : first + 3] = [tuple(tensors[index].shape) for index in (0, 1, -1)]
    outs = list(zip(out_axes, shapes, strict=True))
    found = bind_rows(
        _target(backend).prepare, rows, lowering.matrix, inner, geo, tensors, axis_of["n"] + COLUMNS, outs
    )
    if found is None:
        return BoundSoftmax(None)
    first = len(outs) - WRITTEN[how]
    dtypes = tuple([DTYPES[buffer.dtype] for buffer in rows.outs[first:]])
    return BoundSoftmax(found[0], tuple(shapes[first:]), dtypes, found[1])
