"""Semiring contractions of two matrices, from bodies; the ready ones are distances and the matrix product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...ir.functions import FUNCTIONS
from ...torch_ops.contract import Contraction
from ..batches import batch_of_pairs, deliver, hyper_sizes
from .body import contraction
from .stack import PtxInstruction, Stack

_P = PtxInstruction
Hyper = Mapping[str, Any] | None


def checked_hyper(hyper_dict: Hyper) -> dict[str, Any]:
    """Hyperparameters by name: numbers, 0-d tensors, or tensors of one value per batch."""
    if hyper_dict is not None and not isinstance(hyper_dict, Mapping):
        raise TypeError(f"hyper_dict must be a dict of tensors by name, not {type(hyper_dict).__name__}")
    values = dict(hyper_dict or {})
    for name, value in values.items():
        if not isinstance(value, (int, float, torch.Tensor)):
            raise TypeError(f"hyper_dict[{name!r}] must be a tensor or a number, not {type(value).__name__}")
    return values


class HyperSemiringKernel:
    """``out[m, n] = epilogue(... mma(a[m, k], b[n, k], accumulator) ...)`` for a body that sees the accumulator.

    Bodies are stack programs, or expressions: ``mma_lambda=lambda a, b, c, reg: c + reg["beta"] * (b - a)``. Bodies
    that add to, multiply, or take the minimum or maximum with the accumulator begin at the identity of that.

    Parameters
    ----------
    mma_lambda : callable
        ``mma_lambda(a, b, accumulator, hyperparameters by name)``.
    epilogue_lambda : callable
        ``epilogue_lambda(accumulator, hyperparameters by name)``.
    **_
        Limits of the compiler there, without effect.
    """

    def __init__(self, mma_lambda: Callable[..., Any], epilogue_lambda: Callable[..., Any], **_: int) -> None:
        self._body, self._epilogue = mma_lambda, epilogue_lambda
        self._made: dict[tuple[str, ...], Contraction] = {}

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, hyper_dict: Hyper = None, out: torch.Tensor | None = None,
        try_to_align: bool = False, debug: bool = False,  # noqa: ARG002
    ) -> torch.Tensor:  # fmt: skip
        """Result (L, M, N) of a (..., M, K) and b (..., N, K); ``try_to_align`` and ``debug`` have no effect."""
        hyper = checked_hyper(hyper_dict)
        batch = batch_of_pairs(a, b, {f"hyper_dict[{k!r}]": v for k, v in hyper_sizes(hyper).items()}, out)
        names = tuple(hyper)
        made = self._made.get(names)
        if made is None:
            made = contraction("mk,nk->mn", "ab", lambda c, a, b, reg: self._body(a, b, c, reg), self._epilogue, names)
            self._made[names] = made
        values = {f"hyper{i}": hyper[name] for i, name in enumerate(names)}
        return deliver(made, [a, b], 2, batch, out, values)


class _Ready:
    """A kernel with its bodies."""

    def __init__(self, mma: Callable[..., Any], epilogue: Callable[..., Any] = lambda e, _: [e]) -> None:
        self.hyper_semiring = HyperSemiringKernel(mma, epilogue)

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, out: torch.Tensor | None = None, try_to_align: bool = False,
        debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Return the result (L, M, N) of x (..., M, K) and z (..., N, K)."""
        return self.hyper_semiring(x, z, None, out, try_to_align, debug)


class Gemm(_Ready):
    """``Σ_k x[m, k] z[n, k]``."""

    def __init__(self) -> None:
        super().__init__(lambda a, b, c, _: [c, a, b, _P.fma_rn_ftz_f32])


class NormL1(_Ready):
    """``Σ_k |x[m, k] - z[n, k]|``."""

    def __init__(self) -> None:
        super().__init__(lambda a, b, c, _: [a, b, _P.sub_ftz_f32, _P.abs_ftz_f32, c, _P.add_ftz_f32])


class NormL2(_Ready):
    """``sqrt(Σ_k (x[m, k] - z[n, k])²)``."""

    def __init__(self) -> None:
        super().__init__(
            lambda a, b, c, _: [a, b, _P.sub_ftz_f32, Stack.f32.dup, _P.mul_ftz_f32, c, _P.add_ftz_f32],
            lambda e, _: [e, _P.sqrt_approx_ftz_f32],
        )


class NormLp:
    """``(Σ_k |x[m, k] - z[n, k]|^p_inner)^p_outer``, 0 where that is below epsilon."""

    def __init__(self, epsilon: float) -> None:
        def finish(e: Any, reg: Any) -> Any:
            root = e ** reg["p_outer"]
            return FUNCTIONS["where"](root < epsilon, 0.0, root)

        self.hyper_semiring = HyperSemiringKernel(lambda a, b, c, reg: c + abs(b - a) ** reg["p_inner"], finish)

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, p_inner: Any, p_outer: Any, out: torch.Tensor | None = None,
        try_to_align: bool = False, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Return the result (L, M, N) of x (..., M, K) and z (..., N, K)."""
        hyper = {"p_inner": p_inner, "p_outer": p_outer}
        return self.hyper_semiring(x, z, hyper, out, try_to_align, debug)
