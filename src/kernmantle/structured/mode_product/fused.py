"""Two Kronecker-sparse products in one kernel on NVIDIA GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...runtime.dispatch import bound
from ...torch_ops.call_key import program_key
from ...torch_ops.cuda import Entry, index_of, limits, load_kernels, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from . import cuda_emit
from .chain_plan import composes
from .cuda import PREPARES
from .fused_plan import DTYPES, FusedPlan, FusedProblem, contiguous, fused_seconds, plan_fused, run_of
from .pack import PackedWeights

Maybe = torch.Tensor | None


def problem_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> FusedProblem | None:
    """Return the problem of two products with weights (a, b, c, d); None if the kernel does not take it."""
    first, second = ((a, b, c, d) for a, b, c, d in (weight.shape for weight in weights))
    name = NAMES[x.dtype]
    if x.shape[0] != 1 or name not in DTYPES or precision == "ieee" or not composes(first, second):
        return None
    size = x.element_size()
    access = [math.gcd(16, own.data_ptr(), size * own.stride(1) if own.shape[1] > 1 else 0) for own in (x, out)]
    vector = x.stride(2) == 1 and first[3] == 1 and first[2] % 4 == 0 and access[0] >= 4 * size
    return FusedProblem(
        first, second, x.shape[1], name, x.stride(2) == 1, out.stride(2) == 1, vector,
        run_of(second, size, access[1]), 1 if precision == "tf32" else 3, bias is not None, activation,
    )  # fmt: skip


def expected(
    patterns: tuple[tuple[int, int, int, int], tuple[int, int, int, int]], batch: int, dtype: str, first: bool,
    device: torch.device,
) -> float:  # fmt: skip
    """Return the predicted seconds of two products as one, with packed weights; infinite if that is not faster."""
    if dtype not in DTYPES or not composes(*patterns):
        return math.inf
    return fused_seconds(contiguous(*patterns, batch, dtype, first), limits(index_of(device)))


def product(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, precision: str, out: torch.Tensor,
    packed: PackedWeights | None = None, chosen: FusedPlan | None = None,
) -> str | None:  # fmt: skip
    """Write the product with both weights to ``out``; return the route, None if the kernel does not take it."""
    first, second = weights
    key = program_key(("kron_sparse fused", chosen), (activation, precision), (x, first, second, bias, out))

    def make() -> _Bound:
        problem = problem_of(x, weights, bias, activation, precision, out)
        return (None if problem is None else _bound(problem, x, out, chosen)) or _Bound(None, "")

    found = bound(key, make)  # pyright: ignore[reportArgumentType]
    if not found.route:
        return None
    if found.run is not None:
        whole = first.contiguous(), second.contiguous()
        found.run(x, whole, None if bias is None else bias.contiguous(), out, packed)
    return found.route


class _Bound(NamedTuple):
    """Bound kernel of products with one key, and its arguments; nothing if only noted.

    ``route`` is "" where the kernel does not take them.
    """

    run: Callable[..., None] | None
    route: str


def _bound(problem: FusedProblem, x: torch.Tensor, out: torch.Tensor, chosen: FusedPlan | None) -> _Bound | None:
    """Return the bound kernel of two products, without their addresses."""
    index = index_of(x.device)
    chosen = chosen or plan_fused(problem, limits(index))
    if chosen is None:
        return None
    main = Entry(cuda_emit.ENTRY, chosen.threads, chosen.shared(problem), waits=True)
    kernels = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit_fused(chosen), PREPARES, main)
    if kernels is None:
        return _Bound(None, str(chosen))
    prepare, kernel = kernels
    views, blocks = chosen.views(problem), chosen.blocks(problem)
    rest = (problem.batch, *chosen.sizes(problem), *x.stride()[1:], *out.stride()[1:])

    def prepared(weight: torch.Tensor, view: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights in the order in which the kernel reads them, and the inverse scales of their columns."""
        size, scales, units = chosen.image(view)
        image = allocate((size,), torch.uint8, weight.device)
        scale = allocate((scales,), torch.float32, weight.device)
        arguments = (weight.data_ptr(), image.data_ptr(), scale.data_ptr(), *view)
        start(prepare, index, units, arguments)
        return image, scale

    def run(
        x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, out: torch.Tensor, packed: PackedWeights | None
    ) -> None:
        def made() -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [prepared(weight, view) for weight, view in zip(weights, views, strict=True)]

        one, two = made() if packed is None else packed.get_or_pack((chosen.dtype, chosen.across), made, x.device)
        pointers = (x, *weights, one[0], two[0], bias, one[1], two[1], out)
        at = (0 if tensor is None else tensor.data_ptr() for tensor in pointers)
        start(kernel, index, blocks, (*at, *rest))

    return _Bound(run, str(chosen))
