"""Lists of factors: matrices, batches of matrices, and integers for identities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch

from ...arrays import dtype_name, has_strides, to_tensor, unwrap
from ...errors import DtypeError, LinearAlgebraError, ParameterError, ShapeError
from ...torch_ops.checks import autocasts

Factor = torch.Tensor | int
DECOMPOSED = (torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Types of factors that have inverses and decompositions."""
UNFIT = "has no decomposition: see whether its entries are finite"
T = TypeVar("T")


def listed(factors: Any) -> list[Any]:
    """Return the factors as a list, identities as Python integers; raise the error that says what is wrong with one."""
    if not isinstance(factors, (list, tuple, torch.nn.ParameterList)):
        hint = "list(factors)" if getattr(factors, "ndim", 3) == 3 else "[factor] for one"
        raise ShapeError(f"factors must be a list of matrices, not {type(factors).__name__}; write {hint}")
    entries = cast("Sequence[Any]", factors)
    found = [int(f) if isinstance(f, (int, np.integer)) and not isinstance(f, bool) else f for f in entries]
    if not found:
        raise ShapeError("factors is empty; a product needs at least one factor")
    for index, factor in enumerate(found):
        if isinstance(factor, bool):
            raise DtypeError(f"factors[{index}] is {factor}; a factor is a matrix, or an integer for an identity")
        if isinstance(factor, int) and factor < 0:
            raise ShapeError(f"factors[{index}] is the identity of size {factor}; sizes are not negative")
        if isinstance(factor, torch.Tensor) and not has_strides(factor):
            unwrap(factor, names=(f"factors[{index}]",))  # says so
        if isinstance(factor, (list, tuple)):
            found[index] = factor = unwrap(factor, names=(f"factors[{index}]",))[0][0].numpy()
        if not isinstance(factor, int) and not hasattr(factor, "shape"):
            found[index] = factor = to_tensor(factor, f"factors[{index}]")
        if not isinstance(factor, int) and len(factor.shape) < 2:
            raise ShapeError(
                f"factors[{index}] has shape {tuple(factor.shape)}; a factor is a matrix or a batch of matrices"
            )
    return found


def described(factors: Sequence[Any]) -> str:
    """Return the sizes as text, such as "2x3 ⊗ 4", an identity by its size."""
    return " ⊗ ".join(str(f) if isinstance(f, int) else "x".join(map(str, f.shape[-2:])) for f in factors)


def sizes(factors: Sequence[Factor]) -> list[tuple[int, int]]:
    """Return the rows and columns of every factor."""
    return [(f, f) if isinstance(f, int) else (int(f.shape[-2]), int(f.shape[-1])) for f in factors]


def spread(scale: Any, axes: int = 2) -> Any:
    """Return a scale in a shape that multiplies arrays with so many axes after the batch axes."""
    return scale[(..., *(None,) * axes)] if isinstance(scale, torch.Tensor) else scale


def scaled(total: torch.Tensor, scale: Any, axes: int = 2) -> torch.Tensor:
    """Return an array times a scale, with so many axes after the batch axes."""
    return total if is_one(scale) else spread(scale, axes) * total


def is_one(scale: Any) -> bool:
    """Return whether a scale is the number 1."""
    return not isinstance(scale, torch.Tensor) and scale == 1


def times(a: Any, b: Any) -> Any:
    """Return the product of two scales."""
    if isinstance(b, torch.Tensor) and b.dim() and isinstance(a, torch.Tensor) and a.dim() and a.shape != b.shape:
        raise ParameterError(f"scales of shapes {tuple(a.shape)} and {tuple(b.shape)} meet; make them equal first")
    return b if is_one(a) else a if is_one(b) else a * b


def outer(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the Kronecker product as a matrix of its own; batch axes broadcast."""
    total = matrices[0] if len(matrices) > 1 else matrices[0].clone()
    for matrix in matrices[1:]:
        wide = total[..., :, None, :, None] * matrix[..., None, :, None, :]
        total = wide.flatten(-4, -3).flatten(-2)
    return total


def repartitioned(factors: Sequence[Factor], wanted: Sequence[int]) -> list[Factor] | None:
    """Return the factors as square ones of the wanted sizes, by splitting and merging identities; None if it fails."""
    found: list[Factor] = []
    rest = list(factors)
    for size in wanted:
        first = rest.pop(0) if rest else 1
        if isinstance(first, torch.Tensor):
            if first.shape[-1] != size:
                return None
            found.append(first)
            continue
        while isinstance(first, int) and first < size:
            following = rest.pop(0) if rest else None
            if not isinstance(following, int):
                return None
            first *= following
        if first % max(size, 1):
            return None
        found.append(size)
        if first // max(size, 1) != 1:
            rest.insert(0, first // max(size, 1))
    return found if all(isinstance(own, int) and own == 1 for own in rest) else None


def decomposed(function: Callable[[torch.Tensor], T], factor: torch.Tensor, meaning: str = UNFIT) -> T:
    """Return a decomposition of a factor; raise LinearAlgebraError if torch finds none."""
    if factor.dtype not in DECOMPOSED:
        kind = dtype_name(factor.dtype)
        raise DtypeError(f"a factor is {kind}; float32, float64 and complex ones have decompositions: use .float()")
    try:
        return function(factor)
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise LinearAlgebraError(f"a factor of shape {tuple(factor.shape)} {meaning} ({error})") from error


def check_right_side(b: Any, operator: Any) -> torch.Tensor:
    """Return the right side of a system as a tensor; raise the error that says why it does not fit the operator."""
    (own,), _ = unwrap(b, names=("b",))
    rows = operator.shape[-2]
    if own.dim() == 0 or own.shape[-1 if own.dim() == 1 else -2] != rows:
        raise ShapeError(f"b has shape {tuple(own.shape)}, the operator {rows} rows: pass ({rows},) or (…, {rows}, m)")
    if own.dtype != operator.dtype and not autocasts(own.device):
        kinds = dtype_name(own.dtype), dtype_name(operator.dtype)
        raise DtypeError(f"b is {kinds[0]} but the operator is {kinds[1]}; convert one of them")
    return own
