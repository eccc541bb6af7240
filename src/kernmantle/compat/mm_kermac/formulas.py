"""The formulas that mm-kermac's examples compare with, in plain torch, and the comparison."""

from __future__ import annotations

import sys

import torch


def compare_tensors(tensor_a: torch.Tensor, tensor_b: torch.Tensor) -> None:
    """Print the root mean square, the largest and the mean of the absolute differences."""
    error = (tensor_a - tensor_b).abs()
    for name, value in (
        ("Root Mean Squared Error", error.square().mean().sqrt()),
        ("Max Absolute Error", error.max()),
        ("Mean Absolute Error", error.mean()),
    ):
        label = f"{name}:"
        sys.stdout.write(f"\t{label:<29}{float(value):.6e}\n")


def torch_einsum_L2_norm(
    x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor, grad_kernel_matrix: torch.Tensor
) -> torch.Tensor:
    """Return ``out[b, l, d, j] = Σ_i coefs[b, l, i] grad_kernel_matrix[b, i, j] (z[b, d, j] - x[b, d, i])``.

    ``x`` has shape (b, d, i), ``z`` (b, d, j).
    """
    weights = coefs @ grad_kernel_matrix
    return weights[:, :, None] * z[:, None] - torch.einsum("bli,bij,bdi->bldj", coefs, grad_kernel_matrix, x)


def torch_inefficient_p_norm(
    x: torch.Tensor, z: torch.Tensor, coefs: torch.Tensor, grad_kernel_matrix: torch.Tensor, p: float, eps: float = 0.0
) -> torch.Tensor:
    """Return the sums of ``torch_einsum_L2_norm`` of ``sign(u) max(|u|, eps)^(p - 1)`` in place of differences u.

    All differences are stored: b d i j numbers.
    """
    difference = z[..., :, None] - x[..., None, :]
    slope = difference.sign() * difference.abs().clamp_min(eps) ** (p - 1)
    return torch.einsum("bli,bij,bdji->bldj", coefs, grad_kernel_matrix, slope)
