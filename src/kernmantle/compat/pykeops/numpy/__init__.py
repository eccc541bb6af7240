"""``pykeops.numpy``: symbolic tensors and reductions of formulas on numpy arrays."""

from __future__ import annotations

from ..genred import NumpyGenred as Genred
from ..genred import NumpyKernelSolve as KernelSolve
from ..genred import generic
from ..lazy_tensor import NumpyLazyTensor as LazyTensor
from ..lazy_tensor import variables_of

__all__ = [
    "Genred", "KernelSolve", "LazyTensor", "Pm", "Vi", "Vj", "generic_argkmin", "generic_argmin", "generic_logsumexp",
    "generic_sum",
]  # fmt: skip

Var, Vi, Vj, Pm = variables_of(LazyTensor)
generic_sum = generic("Sum")(Genred)
generic_logsumexp = generic("LogSumExp")(Genred)
generic_argmin = generic("ArgMin")(Genred)
generic_argkmin = generic("ArgKMin", with_count=True)(Genred)
