"""KSMM's layer on our products: the same arguments, storage formats and results, with gradients.

``import ksmm_py`` and ``ksmm_py.layer.kronecker_sparse.interface`` give this module after
``kernmantle.compat.install("ksmm_py")``. Unlike there, "kernel" runs on the CPU too, takes any batch and any pattern,
float16 is accumulated in float32, and every algorithm has gradients, "bsr" those of x and bias alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..checks import one_of
from ..errors import DtypeError, GradientError, ParameterError, ShapeError
from ..structured.kronsparse import KSPattern, LinearBatchLast, kron_sparse_matmul
from ..structured.kronsparse.matmul import STORED, dense_of
from ..structured.kronsparse.pattern import check_chain
from ..structured.mode_product.torch_products import quietly, sparse_rows

# What programs import, each of them this module.
SUBMODULES = (
    "layer",
    "layer.kronecker_sparse",
    "layer.kronecker_sparse.interface",
    "layer.get_linear_layer",
    "layer.bmm",
    "layer.bmm.forward_bmm",
    "benchmark",
    "benchmark.utils",
)
ALGORITHMS = ("sparse", "bsr", "dense", "einsum", "kernel", "bmm")


def generate_factor(
    a: int,
    b: int,
    c: int,
    d: int,
    algo: str,
    weights: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float16,
    device: Any = "cpu",
) -> torch.Tensor:
    """Return a factor as an algorithm stores it, from weights (a, b, c, d) or drawn from ±1/sqrt(c).

    "kernel" stores (a d c, b), "bmm" (a d, b, c), "einsum" (a, b, c, d), "dense" the matrix, "sparse" the matrix in
    compressed rows with an entry for every weight, "bsr" the permuted block-diagonal matrix in square blocks.

    Examples
    --------
    >>> from kernmantle.compat import ksmm
    >>> ksmm.generate_factor(2, 3, 4, 5, "bmm").shape
    torch.Size([10, 3, 4])
    """
    one_of(algo, "algo", ALGORITHMS)
    pattern = KSPattern(a, b, c, d)
    if weights is None:
        bound = 1 / math.sqrt(c)
        weights = torch.empty(pattern).uniform_(-bound, bound)
    elif tuple(weights.shape) != pattern:
        raise ShapeError(f"weights have shape {tuple(weights.shape)}, the pattern is {pattern}")
    own = weights.to(device=device, dtype=dtype)
    if algo == "kernel":
        return own.permute(0, 3, 2, 1).reshape(a * d * c, b)
    if algo == "bmm":
        return own.permute(0, 3, 1, 2).reshape(a * d, b, c)
    if algo == "einsum":
        return own
    if algo == "bsr":
        side = math.gcd(b, c)
        blocks = own.permute(0, 3, 1, 2).reshape(a * d, b, c, 1)
        with quietly():
            return KSPattern(*blocks.shape).to_dense(blocks).to_sparse_bsr((side, side))
    if algo == "sparse":
        return sparse_rows(own[None])[0]
    return pattern.to_dense(own)


def weights_of(factor: torch.Tensor, pattern: Any, algo: str) -> torch.Tensor:
    """Return the weights (a, b, c, d) of a factor as an algorithm stores it: the inverse of ``generate_factor``.

    Compressed rows with an entry for every weight are read where they lie.
    """
    one_of(algo, "algo", ALGORITHMS)
    own = KSPattern.of(pattern)
    a, b, c, d = own
    if algo == "kernel":
        return factor.reshape(a, d, c, b).permute(0, 3, 2, 1)
    if algo == "bmm":
        return factor.reshape(a, d, b, c).permute(0, 2, 3, 1)
    if algo == "einsum":
        return factor
    if algo == "sparse" and factor.layout is torch.sparse_csr and factor.values().numel() == own.nnz:
        return factor.values().view(a, b, d, c).transpose(2, 3)
    dense = factor if factor.layout is torch.strided else factor.to_dense()
    if algo == "bsr":
        return KSPattern(a * d, b, c, 1).from_dense(dense).reshape(a, d, b, c).permute(0, 2, 3, 1)
    return own.from_dense(dense)


def from_kernel_format_to_dense(factor: torch.Tensor, pattern: Any) -> torch.Tensor:
    """Return the matrix of a factor that "kernel" stores."""
    return KSPattern.of(pattern).to_dense(weights_of(factor, pattern, "kernel"))


def from_bmm_format_to_dense(factor: torch.Tensor, pattern: Any) -> torch.Tensor:
    """Return the matrix of a factor that "bmm" stores, of shape (a, d, b, c) or (a d, b, c)."""
    return KSPattern.of(pattern).to_dense(weights_of(factor, pattern, "bmm"))


def from_abcd_to_dense(factor: torch.Tensor) -> torch.Tensor:
    """Return the matrix of weights (a, b, c, d)."""
    return KSPattern(*factor.shape).to_dense(factor)


def get_in_size_out_size(patterns: Sequence[Any]) -> tuple[int, int]:
    """Return the sizes of what a chain takes and gives.

    Examples
    --------
    >>> from kernmantle.compat import ksmm
    >>> ksmm.get_in_size_out_size([(6, 64, 64, 1), (1, 768, 192, 2)])
    (384, 1536)
    """
    chain = check_chain(patterns)
    return chain[0].in_features, chain[-1].out_features


def pattern_is_dense(pattern: Any) -> bool:
    """Return whether the matrix has no zeros by its pattern."""
    own = KSPattern.of(pattern)
    return own.a == own.d == 1


class KSLinear(nn.Module):
    """``W = K_1 … K_L`` with ``patterns[0]`` that of ``K_L``, which is applied first.

    Parameters
    ----------
    patterns : list of (a, b, c, d)
    weights : list of tensors (a, b, c, d), optional
    bias : bool
        Shape (out) with the batch first, (out, 1) with the batch last.
    algo : {"kernel", "bmm", "bsr", "einsum", "dense", "sparse"}
        What computes the products and how the factors are stored.
    dtype : torch.dtype
        Of the parameters; those in float8 have no gradient, and are computed with in the type of the input.
    bs_last : bool
        Whether the batch is the last axis.
    vsize : int
        Length of vector loads there; without meaning here.
    device
        Of the parameters.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.compat import ksmm
    >>> layer = ksmm.KSLinear([(6, 64, 64, 1), (1, 768, 192, 2)], algo="kernel", dtype=torch.float32, bs_last=True)
    >>> layer(torch.randn(384, 10)).shape
    torch.Size([1536, 10])
    """

    def __init__(
        self,
        patterns: Sequence[Any],
        weights: Sequence[torch.Tensor | None] | None = None,
        bias: bool = True,
        algo: str = "dense",
        dtype: torch.dtype = torch.float16,
        bs_last: bool = False,
        vsize: int = 4,
        device: Any = "cpu",
    ) -> None:
        super().__init__()
        one_of(algo, "algo", ALGORITHMS)
        if not dtype.is_floating_point:
            raise DtypeError(f"dtype must be a floating-point type, not {dtype}")
        self.chain = check_chain(patterns)
        self.patterns, self.algo, self.dtype, self.bs_last = list(patterns), algo, dtype, bs_last
        self.vsize, self.device, self.num_mat = vsize, device, len(patterns)
        self.in_size, self.out_size = get_in_size_out_size(patterns)
        self.weights = initial = [None] * len(patterns) if weights is None else list(weights)
        if len(initial) != len(patterns):
            raise ShapeError(f"there are {len(patterns)} patterns but {len(initial)} weights")
        self.factors = nn.ParameterList(
            nn.Parameter(generate_factor(*pattern, algo, weight, dtype, device), dtype not in STORED)
            for pattern, weight in zip(self.chain, initial, strict=True)
        )
        self.bias: nn.Parameter | None = None
        if bias:
            bound = 1 / math.sqrt(self.in_size)
            shape = (self.out_size, 1) if bs_last else (self.out_size,)
            drawn = torch.empty(shape, device=device).uniform_(-bound, bound)
            self.bias = nn.Parameter(drawn.to(dtype), dtype not in STORED)

    def _weights(self) -> list[torch.Tensor]:
        pairs = zip(self.factors, self.chain, strict=True)
        found = [weights_of(factor, pattern, self.algo) for factor, pattern in pairs]
        for weight in found:
            if self.algo == "bsr" and weight.requires_grad:
                weight.register_hook(_refuse)
        return found

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (..., in_size), or (in_size, ...) with the batch last."""
        bias = None if self.bias is None else self.bias.flatten()
        if bias is not None and bias.dtype in STORED:
            bias = bias.to(tensor.dtype)
        weights = self._weights()
        return kron_sparse_matmul(tensor, weights, bias=bias, batch_last=self.bs_last, algorithm=self.algo)

    def get_dense_product(self) -> torch.Tensor:
        """Return the matrix (out_size, in_size)."""
        return dense_of(self._weights())

    def get_weights_size(self) -> int:
        """Return the number of weights, the bias not counted."""
        return sum(pattern.nnz for pattern in self.chain)


def _refuse(_: torch.Tensor) -> None:
    raise GradientError("torch keeps no gradients in block-sparse rows: use another algo, or requires_grad_(False)")


class LinearBsl(LinearBatchLast):
    """Dense linear layer on (in_features, ...), its bias of shape (out_features, 1)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        version: str = "torch_matmul",
        weights: Any = None,
    ) -> None:
        if version != "torch_matmul":
            raise ParameterError(f"version must be 'torch_matmul', not {version!r}")
        super().__init__(in_features, out_features, bias, device, dtype)
        _fill(self, weights)
        if bias:
            self.bias = nn.Parameter(self.bias.detach()[:, None])


class UnfusedLinear(nn.Linear):
    """Dense linear layer that adds its bias in a step of its own."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        weights: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        _fill(self, weights)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        product = functional.linear(input, self.weight)
        return product if self.bias is None else product + self.bias


def _fill(layer: nn.Linear, weights: Any) -> None:
    """Weights (out, in) or (1, out, in, 1), or a list of the one."""
    if weights is None:
        return
    own = weights[0] if isinstance(weights, (list, tuple)) else weights
    if own.numel() != layer.weight.numel() or own.shape[-1] not in (1, layer.in_features):
        raise ShapeError(f"weights have shape {tuple(own.shape)}, the layer {tuple(layer.weight.shape)}")
    layer.weight.data.copy_(own.reshape(layer.weight.shape))


def get_linear_layer(
    patterns: Sequence[Any],
    algo: str,
    dtype: torch.dtype = torch.float16,
    bs_last: bool = False,
    vsize: int = 4,
    bias: bool = False,
    weights: Any = None,
    device: Any = "cpu",
) -> nn.Module:
    """Return a layer by algorithm: those of :class:`KSLinear`, or a dense "nn_linear" or "unfused_linear"."""
    if algo not in ("nn_linear", "unfused_linear"):
        return KSLinear(patterns, weights, bias, algo, dtype, bs_last, vsize, device)
    if len(patterns) != 1 or not pattern_is_dense(patterns[0]):
        raise ParameterError(f"{algo} takes one dense pattern (1, b, c, 1), got {list(patterns)}")
    columns, rows = get_in_size_out_size(patterns)
    options: dict[str, Any] = {"bias": bias, "dtype": dtype, "device": device}
    if algo == "unfused_linear":
        return (LinearBsl if bs_last else UnfusedLinear)(columns, rows, weights=weights, **options)
    if bs_last:
        raise ParameterError("nn_linear has the batch first; use unfused_linear")
    layer = nn.Linear(columns, rows, **options)
    _fill(layer, weights)
    return layer


def bmm_bs_first(x: torch.Tensor, w_kron: torch.Tensor, pattern: Any) -> torch.Tensor:
    """Return the product with a factor as "bmm" stores it, (a d, b, c), the batch first."""
    return kron_sparse_matmul(x, weights_of(w_kron, pattern, "bmm"), algorithm="bmm")


def bmm_bs_last(x: torch.Tensor, w_kron: torch.Tensor, pattern: Any) -> torch.Tensor:
    """Return the same with the batch last."""
    return kron_sparse_matmul(x, weights_of(w_kron, pattern, "bmm"), batch_last=True, algorithm="bmm")


def forward_bmm_bs_first(w_kron: torch.Tensor, x: torch.Tensor, pattern: Any) -> torch.Tensor:
    """``bmm_bs_first`` with its first two arguments in the other order."""
    return bmm_bs_first(x, w_kron, pattern)


def forward_bmm_bs_last(w_kron: torch.Tensor, x: torch.Tensor, pattern: Any) -> torch.Tensor:
    """``bmm_bs_last`` with its first two arguments in the other order."""
    return bmm_bs_last(x, w_kron, pattern)
