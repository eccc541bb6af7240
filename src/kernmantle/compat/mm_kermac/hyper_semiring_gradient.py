"""Gradient contractions with an output axis, from bodies in three stages; the ready ones are those of distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...ir.functions import FUNCTIONS
from ...torch_ops.contract import Contraction
from ..batches import batch_size, check_tensors, deliver, hyper_sizes
from .body import contraction
from .hyper_semiring import Hyper, checked_hyper
from .stack import PtxInstruction, value_of

_P = PtxInstruction


class HyperSemiringGradientKernel:
    """``out[o, n, m] = epilogue(... accumulate(c[o, k], multiply(d[n, m], b[n, k], a[k, m]), accumulator) ...)``.

    Bodies are stack programs, or expressions as in :class:`HyperSemiringKernel`.

    Parameters
    ----------
    multiply_lambda : callable
        ``multiply_lambda(d, b, a, hyperparameters by name)``.
    accumulate_lambda : callable
        ``accumulate_lambda(c, product, accumulator, hyperparameters by name)``.
    epilogue_lambda : callable
        ``epilogue_lambda(accumulator, hyperparameters by name)``.
    **_
        Limits of the compiler there, without effect.
    """

    def __init__(
        self, multiply_lambda: Callable[..., Any], accumulate_lambda: Callable[..., Any],
        epilogue_lambda: Callable[..., Any], **_: int,
    ) -> None:  # fmt: skip
        self._multiply, self._accumulate, self._epilogue = multiply_lambda, accumulate_lambda, epilogue_lambda
        self._made: dict[tuple[str, ...], Contraction] = {}

    def _body(self, e: Any, a: Any, b: Any, c: Any, d: Any, reg: Any) -> Any:
        return self._accumulate(c, value_of(self._multiply(d, b, a, reg)), e, reg)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, hyper_dict: Hyper = None,
        out: torch.Tensor | None = None, debug: bool = False,  # noqa: ARG002
    ) -> torch.Tensor:  # fmt: skip
        """Return the result (L, O, N, M) of a (..., K, M), b (..., N, K), c (..., O, K) and d (..., N, M)."""
        check_tensors({"a": a, "b": b, "c": c, "d": d}, out)
        hyper = checked_hyper(hyper_dict)
        sizes = {"a": (a, 2), "b": (b, 2), "c": (c, 2), "d": (d, 2), **({} if out is None else {"out": (out, 3)})}
        batch = batch_size(sizes | {f"hyper_dict[{k!r}]": v for k, v in hyper_sizes(hyper).items()})
        (k, m), (n, o) = a.shape[-2:], (b.shape[-2], c.shape[-2])
        for name, tensor, shape in (("b", b, (n, k)), ("c", c, (o, k)), ("d", d, (n, m)), ("out", out, (o, n, m))):
            if tensor is not None and tuple(tensor.shape[-len(shape) :]) != shape:
                raise ValueError(f"Expected shape {shape} for {name}, got {tuple(tensor.shape)}")
        if out is not None and out.dim() == 3 and batch > 1:
            raise ValueError(f"out must have batch dimension (L={batch}), got {tuple(out.shape)}")
        names = tuple(hyper)
        made = self._made.get(names)
        if made is None:
            made = self._made[names] = contraction("km,nk,ok,nm->onm", "abcd", self._body, self._epilogue, names)
        values = {f"hyper{i}": hyper[name] for i, name in enumerate(names)}
        return deliver(made, [a, b, c, d], 3, batch, out, values)


def _weighed(c: Any, product: Any, e: Any, _: Any) -> Any:
    return [c, product, _P.mul_ftz_f32, e, _P.add_ftz_f32]


class _Ready:
    """A kernel with its bodies."""

    def __init__(self, multiply: Callable[..., Any]) -> None:
        self.hyper_semiring_gradient = HyperSemiringGradientKernel(multiply, _weighed, lambda e, _: [e])

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor, grad_kernel_matrix: torch.Tensor,
        out: torch.Tensor | None = None, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Result (L, O, N, M) of x (..., N, K), z (..., N, M), coefs (..., O, K), grad_kernel_matrix (..., K, M)."""
        return self.hyper_semiring_gradient(grad_kernel_matrix, x, coefs, z, None, out, debug)


class NormL1(_Ready):
    """``Σ_k c[o, k] a[k, m] sgn(d[n, m] - b[n, k])``, where the sign of 0 is 0."""

    def __init__(self) -> None:
        super().__init__(lambda d, b, a, _: a * FUNCTIONS["sign"](d - b))


class NormL2(_Ready):
    """``Σ_k c[o, k] a[k, m] (d[n, m] - b[n, k])``."""

    def __init__(self) -> None:
        super().__init__(lambda d, b, a, _: [b, d, _P.sub_ftz_f32, a, _P.mul_ftz_f32])


class NormLp:
    """``Σ_k c[o, k] a[k, m] sgn(g) max(|g|, epsilon)^p_power_grad`` with ``g = d[n, m] - b[n, k]``."""

    def __init__(self, epsilon: float) -> None:
        def multiply(d: Any, b: Any, a: Any, reg: Any) -> Any:
            gap = d - b
            size = FUNCTIONS["maximum"](abs(gap), epsilon)
            return a * FUNCTIONS["sign"](gap) * size ** reg["p_power_grad"]

        self.hyper_semiring_gradient = HyperSemiringGradientKernel(multiply, _weighed, lambda e, _: [e])

    def __call__(
        self, x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor, grad_kernel_matrix: torch.Tensor,
        p_power_grad: Any, out: torch.Tensor | None = None, debug: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Return the result (L, O, N, M), as of the others here."""
        hyper = {"p_power_grad": p_power_grad}
        return self.hyper_semiring_gradient(grad_kernel_matrix, x, coefs, z, hyper, out, debug)
