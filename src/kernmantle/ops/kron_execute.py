"""Runs a Kronecker product on tensors: compiled kernels where there are some, else torch's operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ..config import current
from ..contraction.kron_modes import Mode, contracted, parse
from ..contraction.kron_passes import Pass
from ..errors import KernmantleWarning
from ..runtime.lru import LRUCache
from .execute import allocate
from .info import RunInfo
from .kron_layout import arranged
from .kron_run import Prepare, Prepared, prepare, run
from .kron_torch import batch_of, product
from .launcher import collecting
from .targets import target_for

Number = int | float | complex
Sizes = tuple[tuple[int, int], ...]
_HALVES = (torch.float16, torch.bfloat16)
KERNELS = (*_HALVES, torch.float32, torch.float64)
# Loaded when the first tensor of that device comes: neither compiler is needed on a machine without the other.
_DOORS = {"llvm": ".kron_cpu", "cuda": ".kron_gpu"}
_WARNED: set[str] = set()


def factor_sizes(factors: Sequence[torch.Tensor]) -> Sizes:
    """Return rows and columns of every factor, as plain integers also of sizes that torch.compile traces."""
    if torch.compiler.is_compiling():  # a range guards on its length, where int() leaves it symbolic
        return tuple([(len(range(f.shape[-2])), len(range(f.shape[-1]))) for f in factors])
    return tuple((int(factor.shape[-2]), int(factor.shape[-1])) for factor in factors)


def rows_of(text: str, factors: Sequence[torch.Tensor]) -> int:
    """Return the rows of the product, symbolic where sizes are."""
    total = 1
    for entry in text.split(" "):
        total = total * (int(entry[1:]) if entry.startswith("i") else factors[int(entry)].shape[-2])
    return total


def out_shape(text: str, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None) -> tuple[int, ...]:
    """Shape of the result: batch axes, rows of the product, columns of x."""
    tensors = [x, *factors] if y is None else [x, *factors, y]
    return (*batch_of(tensors), rows_of(text, factors), x.shape[-1])


def execute(
    text: str,
    options: str,
    numbers: tuple[Number, Number],
    x: torch.Tensor,
    factors: Sequence[torch.Tensor],
    y: torch.Tensor | None,
    out: torch.Tensor | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:
    """``alpha`` times the product of x (…, columns, c), plus ``beta`` y; ``out`` is written in place when given.

    ``info`` takes the route.
    """
    info = RunInfo() if info is None else info
    if out is None:
        out = allocate(out_shape(text, x, factors, y), x.dtype, x.device)
    if not out.numel():
        info.route = "nothing: the result is empty"
        return out
    modes = parse(text, factor_sizes(factors))
    backend = backend_for(x, modes)
    if backend is None:
        info.route = _by_torch(modes, numbers, x, factors, y, out)
        return out
    x, factors = x.resolve_neg(), [factor.resolve_neg() for factor in factors]
    y = None if y is None else y.resolve_neg()
    alpha, beta = float(numbers[0].real), float(numbers[1].real)
    chosen = prepared(text, options, x, factors, y, out)
    info.route = chosen.route
    if chosen.prepared is None:
        run(chosen.passes, modes, (alpha, beta), arranged(x, factors, y, out), chosen.kernel)
    else:
        start(chosen, x, factors, y, out, (alpha, beta))
    return out


@dataclass(frozen=True)
class Chosen:
    """What is known of calls with such arrays."""

    passes: tuple[Pass, ...]
    kernel: Prepare
    prepared: Prepared | None
    route: str


def start(
    chosen: Chosen, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None, out: torch.Tensor,
    numbers: tuple[float, float],
) -> None:  # fmt: skip
    """Start the prepared kernels of arrays that look like those they were chosen for."""
    assert chosen.prepared is not None
    chosen.prepared(x, factors, y, out, numbers)


_CHOSEN: LRUCache[tuple[object, ...], Chosen] = LRUCache(4096)
_KEEPERS: list[Callable[[], None]] = []


def on_forget(callback: Callable[[], None]) -> None:
    """Have something done when calls are to be planned anew."""
    _KEEPERS.append(callback)


def forget() -> None:
    """Plan every call anew."""
    _CHOSEN.clear()
    for callback in _KEEPERS:
        callback()


def prepared(
    text: str, options: str, x: torch.Tensor, factors: Sequence[torch.Tensor], y: torch.Tensor | None,
    out: torch.Tensor,
) -> Chosen:  # fmt: skip
    """Passes and kernels of a call, kept by shapes, strides and alignment."""
    given = [x, *factors, out] if y is None else [x, *factors, out, y]
    facts = tuple((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in given)
    key = (text, options, current().backend, y is None, facts)
    found = None if collecting() else _CHOSEN.get(key)
    if found is None:
        modes = parse(text, factor_sizes(factors))
        backend = backend_for(x, modes)
        assert backend is not None
        arrays = arranged(x, factors, y, out)
        plan, kernel = backend.planned(modes, arrays, options)
        ready = prepare(plan.passes, modes, arrays, kernel)
        found = Chosen(plan.passes, kernel, ready, f"{backend.NAME}: {plan}")
        if not collecting():
            _CHOSEN[key] = found
    return found


def backend_for(x: torch.Tensor, modes: Sequence[Mode]) -> Any:
    """The module that has kernels for a product of x; None where torch's operations are taken."""
    target = target_for(x.device)
    if target is None or not has_kernels(x.dtype, modes):
        return None
    return import_module(_DOORS[target.name], __package__)


def has_kernels(dtype: torch.dtype, modes: Sequence[Mode]) -> bool:
    """Whether there are kernels for such a product, on any device."""
    empty = any(0 in (mode.rows, mode.columns) for mode in modes)
    return dtype in KERNELS and bool(contracted(modes)) and not empty


def _by_torch(
    modes: Sequence[Mode],
    numbers: tuple[Number, Number],
    x: torch.Tensor,
    factors: Sequence[torch.Tensor],
    y: torch.Tensor | None,
    out: torch.Tensor,
) -> str:
    """Write the product by torch's operations and return the route."""
    alpha, beta = numbers
    route = "torch"
    if x.is_complex():
        _warn_once("complex", "complex Kronecker products are computed by matrix products, one factor at a time")
    elif x.is_cuda and not x.is_floating_point():
        route = "torch: integers, one multiplication for each column of a factor"
        _warn_once(
            "integers",
            "Kronecker products of integers on a GPU are computed by one elementwise operation for each column of a "
            "factor; convert x and the factors to float64 where their sums stay below 2**53",
        )
    wide = torch.float32 if x.dtype in _HALVES else x.dtype
    result = product(x.to(wide), [factor.to(wide) for factor in factors], modes)
    if alpha != 1:
        result = result * alpha
    if y is not None and beta != 0:
        result = result + y.to(wide) * beta
    out.copy_(result)
    return route


def _warn_once(kind: str, message: str) -> None:
    if kind not in _WARNED:
        _WARNED.add(kind)
        warnings.warn(message, KernmantleWarning, stacklevel=2)
