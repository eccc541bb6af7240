"""Kronecker products of checked arrays: bound once for arrays of equal specs, then launched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ...config import current
from ...errors import KernmantleWarning
from ...runtime.dispatch import bound
from ...torch_ops import targets
from ...torch_ops.blas_handles import HANDLES
from ...torch_ops.call_key import program_key
from ...torch_ops.execute import allocate, allocate_each, layouts_in_one_piece
from ...torch_ops.info import RunInfo
from .arrays import arranged
from .by_capture import ByCapture
from .modes import Mode, contracted, parse
from .passes import between
from .run import Numbers, prepare, run
from .torch_products import batch_of, product

Number = int | float | complex
Sizes = tuple[tuple[int, int], ...]
Tensors = Sequence[torch.Tensor]
Launch = Callable[[torch.Tensor, Tensors, torch.Tensor | None, torch.Tensor, Numbers], None]
_HALVES = (torch.float16, torch.bfloat16)
KERNELS = (*_HALVES, torch.float32, torch.float64)
_WARNED: set[str] = set()


def configured(options: str) -> str:
    """Return options with the precision in force if a traced call, which cannot read it, left it open."""
    precision, fuse = options.split(" ")
    return f"{current().precision or precision} {fuse}" if precision == "default" else options


def factor_sizes(factors: Tensors) -> Sizes:
    """Return rows and columns of every factor, as plain integers also of sizes that torch.compile traces."""
    if torch.compiler.is_compiling():  # a range guards on its length, where int() leaves it symbolic
        return tuple([(len(range(f.shape[-2])), len(range(f.shape[-1]))) for f in factors])
    return tuple((int(factor.shape[-2]), int(factor.shape[-1])) for factor in factors)


def rows_of(text: str, factors: Tensors) -> int:
    """Return the rows of the product, symbolic where sizes are."""
    total = 1
    for entry in text.split(" "):
        total = total * (int(entry[1:]) if entry.startswith("i") else factors[int(entry)].shape[-2])
    return total


def out_shape(text: str, x: torch.Tensor, factors: Tensors, y: torch.Tensor | None) -> tuple[int, ...]:
    """Return the shape of the result: batch axes, rows of the product, columns of x."""
    tensors = [x, *factors] if y is None else [x, *factors, y]
    return (*batch_of(tensors), rows_of(text, factors), x.shape[-1])


@dataclass(frozen=True, eq=False)
class BoundKron:
    """A product bound for arrays of equal specs, ready to be launched on their addresses.

    ``reads_addresses``: the launch reads only the addresses of its tensors, so any views with equal addresses will do.
    ``done`` has the positions whose factors are applied for each intermediate result with the layout of x, ``captured``
    the same under CUDA graph capture where other passes run then, and ``between`` the bytes of all of these.
    """

    route: str
    launch: Any
    reads_addresses: bool = False
    done: tuple[tuple[int, ...], ...] = ()
    between: int = 0
    captured: tuple[tuple[int, ...], ...] | None = None

    def done_now(self) -> tuple[tuple[int, ...], ...]:
        """Return the positions for each intermediate result of a call now."""
        return self.done if self.captured is None or not torch.cuda.is_current_stream_capturing() else self.captured

    def leave_handle(self, index: int) -> None:
        """Leave this thread the handle of cuBLAS that captured calls may need where eager ones have other passes."""
        if self.captured is not None and not torch.cuda.is_current_stream_capturing():
            HANDLES.take(index)

    def __call__(self, tensors: tuple[torch.Tensor, Tensors, torch.Tensor | None], numbers: Numbers, outs: Any) -> None:
        """Write the product of x and the factors, plus y, to ``outs``; ``numbers`` are alpha and beta."""
        self.launch(*tensors, outs, numbers)


def bind(
    text: str, options: str, x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor
) -> BoundKron:
    """Return the bound product of x (…, columns, c) and factors (…, q, p), plus y, into ``out``."""
    key = program_key(("kron", text), (options,), (x, *factors, y, out))
    return bound(key, partial(_bind, text, options, x, factors, y, out))


def _bind(
    text: str, options: str, x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor
) -> BoundKron:
    modes = parse(text, factor_sizes(factors))
    backend = backend_for(x, modes)
    if backend is None:
        return BoundKron(_torch_route(x), partial(_by_torch, modes))
    arrange = partial(backend.arranged, modes, options=options) if x.is_cpu else lambda own: own
    arrays = arrange(arranged(x, factors, y, out))
    plan, kernel = backend.planned(modes, arrays, options)
    eager = plan.eager or plan
    passes, route = eager.passes, f"{backend.NAME}: {eager}"
    prepared = prepare(passes, modes, arrays, kernel)
    if prepared is not None:
        lies_so = arrays.x.shape == x.shape and arrays.batch == tuple(x.shape[:-2])
        done, captured = between(passes) if lies_so else (), None
        size, launch = prepared.entries_between, prepared
        in_graph = prepare(plan.passes, modes, arrays, kernel) if plan.eager else None
        if in_graph is not None:
            launch, size = ByCapture(prepared, in_graph), max(size, in_graph.entries_between)
            captured = between(plan.passes) if lies_so else ()
        return BoundKron(route, launch, True, done, x.element_size() * size, captured=captured)

    def by_passes(x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor, own: Numbers) -> None:
        run(passes, modes, own, arrange(arranged(x, factors, y, out)), kernel)

    return BoundKron(route, by_passes)


def execute(
    text: str,
    options: str,
    numbers: tuple[Number, Number],
    x: torch.Tensor,
    factors: Tensors,
    y: torch.Tensor | None,
    out: torch.Tensor | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:
    """Return ``alpha`` times the product of x (…, columns, c), plus ``beta`` y; ``out`` is written when given.

    ``info`` takes the route.
    """
    info = RunInfo() if info is None else info
    if out is None:
        out = allocate(out_shape(text, x, factors, y), x.dtype, x.device)
    if not out.numel():
        info.route = "nothing: the result is empty"
        return out
    x, factors = x.resolve_neg(), [factor.resolve_neg() for factor in factors]
    y = None if y is None else y.resolve_neg()
    found = bind(text, options, x, factors, y, out)
    if x.is_floating_point():
        numbers = float(numbers[0].real), float(numbers[1].real)
    found((x, factors, y), numbers, out)  # pyright: ignore[reportArgumentType]
    info.route = found.route
    return out


def bind_operator(text: str, options: str, x: torch.Tensor, factors: Tensors, y: torch.Tensor | None) -> Any:
    """Return what gives products of the operator's arguments that are laid out like these."""
    shape, tensors = out_shape(text, x, factors, y), [x, *factors] if y is None else [x, *factors, y]
    out = allocate(shape, x.dtype, x.device)
    found = None
    if out.numel() and x.is_floating_point() and not any(tensor.is_neg() for tensor in tensors):
        found = bind(text, options, x, factors, y, out)
    layouts = layouts_in_one_piece([shape])

    def run(
        x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, alpha: Number, beta: Number, *_: str
    ) -> torch.Tensor:
        if found is None:
            return execute(text, options, (alpha, beta), x, factors, y)
        (out,) = allocate_each(x, layouts)
        found((x, factors, y), (float(alpha.real), float(beta.real)), out)
        return out

    return run


def backend_for(x: torch.Tensor, modes: Sequence[Mode]) -> Any:
    """Return the module with kernels for a product of x; None if torch's operations run."""
    backend = targets.backend_for(x.device)
    if backend is None or not backend.kron or not has_kernels(x.dtype, modes):
        return None
    return backend.module(backend.kron)


def has_kernels(dtype: torch.dtype, modes: Sequence[Mode]) -> bool:
    """Return whether there are kernels for such a product, on any device."""
    empty = any(0 in (mode.rows, mode.columns) for mode in modes)
    return dtype in KERNELS and bool(contracted(modes)) and not empty


def _torch_route(x: torch.Tensor) -> str:
    if x.is_cuda and not (x.is_floating_point() or x.is_complex()):
        return "torch: integers, one multiplication for each column of a factor"
    return "torch"


def _by_torch(
    modes: Sequence[Mode], x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor,
    numbers: tuple[Number, Number],
) -> None:  # fmt: skip
    """Write the product by torch's operations."""
    alpha, beta = numbers
    if x.is_complex():
        _warn_once("complex", "complex Kronecker products are computed by matrix products, one factor at a time")
    elif x.is_cuda and not x.is_floating_point():
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


def _warn_once(kind: str, message: str) -> None:
    if kind not in _WARNED:
        _WARNED.add(kind)
        warnings.warn(message, KernmantleWarning, stacklevel=2)
