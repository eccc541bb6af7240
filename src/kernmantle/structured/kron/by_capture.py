"""A product whose kernels under CUDA graph capture are others than those of eager calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...torch_ops.blas_handles import HANDLES
from .run import Dense, Numbers, Prepared, Stage


@dataclass(frozen=True)
class ByCapture:
    """Kernels for eager calls, with the least host time, and kernels for calls under CUDA graph capture."""

    eager: Prepared
    captured: Prepared

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of eager calls."""
        return self.eager.stages

    @property
    def has_kernels(self) -> bool:
        """Return whether calls of both kinds launch a kernel of ours."""
        return self.eager.has_kernels and self.captured.has_kernels

    @cached_property
    def _leaves_handle(self) -> bool:
        """Whether a captured call has a product of torch's, and eager ones have none."""
        eager, captured = (
            [isinstance(stage.start, Dense) for stage in own.stages] for own in (self.eager, self.captured)
        )
        return any(captured) and not any(eager)

    def __call__(
        self, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None, out: torch.Tensor,
        numbers: Numbers, saved: list[torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write the product to ``out``; ``saved`` receives the intermediate results."""
        self._now(x)(x, factors, y, out, numbers, saved)

    def new(self, x: torch.Tensor, factors: Sequence[torch.Tensor], alpha: float, shape: tuple[int, ...]) -> Any:
        """Return the product in new memory."""
        return self._now(x).new(x, factors, alpha, shape)

    def _now(self, x: torch.Tensor) -> Prepared:
        """Return the kernels for a call now; an eager one leaves what a captured product of torch's needs."""
        if torch.cuda.is_current_stream_capturing():
            return self.captured
        if self._leaves_handle and (index := x.get_device()) not in HANDLES.devices:
            HANDLES.take(index)
        return self.eager
