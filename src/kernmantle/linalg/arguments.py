"""Matrices and right-hand sides, checked and placed on tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from ..arrays import Wrap, check_same_device, check_same_dtype, common_shape, dtype_name, unwrap
from ..errors import DtypeError, GradientError, OutOfMemoryError, OutputError, ParameterError, ShapeError
from ..torch_ops.checks import shares_memory
from ..torch_ops.torch_private import is_out_of_memory, is_wrapped, no_transform

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class System:
    """A matrix (..., n, n) and right-hand sides as columns (..., n, r), whose batch axes broadcast."""

    a: torch.Tensor
    b: torch.Tensor
    vector: bool
    wrap: Wrap
    shape: tuple[int, ...]
    """Shape of the solution, with the columns."""

    def finished(self, x: torch.Tensor) -> Any:
        """Return the solution as the caller gave the right-hand side."""
        return self.wrap(x.squeeze(-1) if self.vector else x)


def check_dtype(tensor: torch.Tensor, name: str) -> None:
    """Raise DtypeError for what has no solver."""
    if tensor.dtype not in DTYPES:
        instead = "torch.linalg solves complex systems" if tensor.is_complex() else "use .float() or .double()"
        raise DtypeError(f"{name} is {dtype_name(tensor.dtype)}; solvers take float32 and float64: {instead}")


def watched(*tensors: torch.Tensor) -> bool:
    """Return whether torch.func or forward-mode differentiation has wrapped one of these."""
    if torch.compiler.is_compiling() or no_transform():
        return False
    return any(is_wrapped(t) or forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def raises(check_errors: bool | None, tensor: torch.Tensor) -> bool:
    """Return whether infos raise errors: as asked, by default on the CPU, where nothing is waited for."""
    if check_errors is None:
        return tensor.device.type == "cpu" and not (torch.compiler.is_compiling() or watched(tensor))
    return check_errors


def random_source(generator: Any, device: torch.device, seed: int) -> torch.Generator:
    """Return the generator of a call; by default one with a fixed seed, so that equal calls have equal results."""
    if generator is None:
        return torch.Generator(device).manual_seed(seed)
    if not isinstance(generator, torch.Generator):
        raise ParameterError(f"generator must be a torch.Generator or None, not {generator!r}")
    return generator


def check_reverse(tensor: torch.Tensor, name: str) -> None:
    """GradientError for what torch.func or forward-mode differentiation has wrapped, where a method is not for that."""
    if watched(tensor):
        raise GradientError(
            f"{name} is under a transform of torch.func or forward-mode differentiation, which this does not take: "
            "use backward() or torch.autograd.grad, and leading axes for batches; solve_cholesky, solve_lu, "
            "inverse_spd, logdet_spd and eigh take them"
        )


def check_square(tensor: torch.Tensor, name: str = "a") -> None:
    """Raise ShapeError unless the last two axes are equally long."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise ShapeError(f"{name} must be square, (..., n, n), it has shape {tuple(tensor.shape)}")
    check_dtype(tensor, name)


def check_constant(a: torch.Tensor) -> None:
    """Raise GradientError for a matrix whose factors would be recorded, which have no derivative."""
    check_reverse(a, "a")
    if a.requires_grad and torch.is_grad_enabled():
        raise GradientError(
            "a requires a gradient, which factors have none of: use solve_cholesky, solve_lu, inverse_spd or "
            "logdet_spd, or pass a.detach()"
        )


def matrix(a: Any, name: str = "a") -> tuple[torch.Tensor, Wrap]:
    """Return a square matrix as a tensor, and what turns results into the kind of array it was."""
    (tensor,), wrap = unwrap(a, names=[name])
    check_square(tensor, name)
    return tensor.resolve_neg(), wrap


def system(a: Any, b: Any) -> System:
    """Return a linear system; b is a vector, or vectors, where torch.linalg.solve says so."""
    (matrix_, rhs), wrap = unwrap(a, b, names=["a", "b"])
    check_square(matrix_)
    return paired(matrix_, rhs, wrap)


def paired(a: torch.Tensor, rhs: torch.Tensor, wrap: Wrap, name: str = "a") -> System:
    """Return a checked matrix, or factor, with its right-hand sides."""
    check_same_device([a, rhs], [name, "b"])
    check_same_dtype([a, rhs], [name, "b"])
    vector = rhs.dim() == 1 or (rhs.dim() == a.dim() - 1 and rhs.shape == a.shape[:-1])
    a, rhs = a.resolve_neg(), rhs.resolve_neg()
    b = rhs.unsqueeze(-1) if vector else rhs
    if rhs.dim() == 0 or b.shape[-2] != a.shape[-1]:
        raise ShapeError(
            f"b must have {a.shape[-1]} rows as {name} has, {tuple(a.shape)}; it has shape {tuple(rhs.shape)}"
        )
    try:
        batch = common_shape(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ShapeError(
            f"batch axes do not broadcast: {name} has shape {tuple(a.shape)}, b {tuple(rhs.shape)}"
        ) from None
    return System(a, b, vector, wrap, (*batch, *b.shape[-2:]))


def check_values(a: torch.Tensor, symmetric: bool, name: str = "a") -> None:
    """Raise ParameterError for NaN, infinities or, where asked, an asymmetric matrix; reads the values back."""
    if not bool(torch.isfinite(a).all()):
        raise ParameterError(f"{name} has entries that are NaN or infinite")
    if symmetric and a.numel():
        gap, top = float((a - a.mT).abs().max()), float(a.abs().max())
        if gap > 100 * torch.finfo(a.dtype).eps * top:
            raise ParameterError(
                f"{name} is not symmetric: entries differ by up to {gap:.3g} from those of the transpose; "
                f"pass (a + a.mT) / 2"
            )


def check_overwrite(tensor: torch.Tensor, name: str) -> None:
    """Raise GradientError or OutputError for a tensor that cannot be written in place."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise GradientError(f"overwrite_{name} cannot be combined with a gradient by {name}; drop it")
    if shares_memory(tensor):
        raise OutputError(f"overwrite_{name} needs entries at addresses of their own; {name} is an expanded view")


def compact(a: torch.Tensor) -> torch.Tensor:
    """Return the same with batch axes that repeat one item cut to that item."""
    for axis in range(a.dim() - 2):
        if a.stride(axis) == 0 and a.shape[axis] > 1:
            a = a.narrow(axis, 0, 1)
    return a


def columns_of(a: torch.Tensor) -> tuple[torch.Tensor, bool] | None:
    """Column-major view of a matrix or its transpose, and whether it is the transpose; None for other strides."""
    n = a.shape[-1]
    rows, columns = a.stride()[-2:]
    if columns == 1 and rows >= max(1, n):
        return a.mT, True
    if rows == 1 and columns >= max(1, n):
        return a, False
    return None


@dataclass(frozen=True)
class Work:
    """A matrix that is written in place: ``memory`` is column-major, ``flipped`` where it holds the transpose.

    ``matrix`` is the same memory as the caller sees it; ``target`` is to receive a copy at the end, if not None.
    """

    matrix: torch.Tensor
    memory: torch.Tensor
    flipped: bool
    target: torch.Tensor | None

    @staticmethod
    def on(a: torch.Tensor, overwrite: bool, by_columns: bool = False) -> Work:
        """Return work on the matrix itself if allowed and its strides can be used, else on a copy, row-major."""
        stored = columns_of(a) if overwrite else None
        if stored is not None:
            return Work(a, *stored, None)
        if by_columns:
            memory = a.mT.clone(memory_format=torch.contiguous_format).mT
            return Work(memory, memory, False, a if overwrite else None)
        copy = a.clone(memory_format=torch.contiguous_format)
        return Work(copy, copy.mT, True, a if overwrite else None)

    def finish(self) -> torch.Tensor:
        """Return the caller's view, written back where needed."""
        return self.matrix if self.target is None else self.target.copy_(self.matrix)


def placed_columns(b: torch.Tensor, shape: Sequence[int], overwrite: bool) -> torch.Tensor:
    """Right-hand sides of a shape, column-major: b itself where it may be overwritten and is so, else a copy."""
    if overwrite and b.shape == tuple(shape) and b.stride(-2) == 1 and b.stride(-1) >= max(1, b.shape[-2]):
        return b
    flat = b.new_empty((*shape[:-2], shape[-1], shape[-2]))
    flat.copy_(b.mT.expand(flat.shape))
    return flat.mT


_BEYOND = "as much again unless they may be overwritten (overwrite_a=True)"
_TAKEN = "The matrices take"
"""In the error of a call within, which has said what is needed."""


@contextmanager
def enough_memory(routine: str, a: torch.Tensor, beyond: str = _BEYOND, devices: int = 1) -> Iterator[None]:
    """Say what is needed where memory runs out; ``beyond`` tells what is taken besides a."""
    try:
        yield
    except (RuntimeError, OutOfMemoryError) as error:
        said = str(error)
        if _TAKEN in said or not is_out_of_memory(error):
            raise
        each = f" on each of {devices} GPUs" * (devices > 1)
        asked = f"{routine!r}, {a.shape[-1]}, dtype={a.dtype}" + f", devices={devices}" * (devices > 1)
        raise OutOfMemoryError(
            f"{routine} of {tuple(a.shape)}: {said.splitlines()[0]}. {_TAKEN} {a.nbytes // devices} "
            f"bytes{each}, {beyond}; km.linalg.workspace({asked}) tells what else is taken"
        ) from error


def items(batch: Sequence[int]) -> int:
    """Return how many items a batch has."""
    return math.prod(batch)
