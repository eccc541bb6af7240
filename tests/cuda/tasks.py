"""Row reductions of contractions as kernels call them, with their route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kernmantle.torch_ops.contract import Contraction
from kernmantle.torch_ops.info import RunInfo
from kernmantle.torch_ops.row_reduce import task_of


def apply(
    contraction: Contraction, how: str, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any],
    v: torch.Tensor | None = None, count: int = 0, info: RunInfo | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Results, without derivatives."""
    task, tensors = task_of(contraction, how, operands, parameters, v, count, info=info)
    return task.evaluate(tensors)
