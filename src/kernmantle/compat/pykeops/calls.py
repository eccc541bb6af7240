"""Reductions as KeOps names them, with the shapes that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

from ...errors import OutputError, ParameterError, ShapeError
from .expression import Expression, Leaf, Map, leaves, substituted
from .reductions import Route, reduce_formula
from .replay import Parts, reduced_again
from .sparsity import reduce_blocks


@dataclass(frozen=True)
class Reduction:
    """``how`` reduces; ``values`` and ``positions`` are what is returned, as one entry a row or, if ``many``, K."""

    how: str
    values: bool = True
    positions: bool = False
    many: bool = False
    weighted: bool = False

    def of(self, found: Any, out: Any = None) -> Any:
        """Return what is asked for of values and positions."""
        if self.values and self.positions:
            return found
        return _delivered(found[0 if self.values else 1], out)


REDUCTIONS = {
    "Sum": Reduction("sum"),
    "LogSumExp": Reduction("logsumexp"),
    "LogSumExpWeight": Reduction("logsumexp", weighted=True),
    "SumSoftMaxWeight": Reduction("softmax", weighted=True),
    "SoftMax": Reduction("softmax", weighted=True),
    "Min": Reduction("min"),
    "Max": Reduction("max"),
    "ArgMin": Reduction("smallest", values=False, positions=True),
    "ArgMax": Reduction("largest", values=False, positions=True),
    "Min_ArgMin": Reduction("smallest", positions=True),
    "MinArgMin": Reduction("smallest", positions=True),
    "Max_ArgMax": Reduction("largest", positions=True),
    "MaxArgMax": Reduction("largest", positions=True),
    "KMin": Reduction("smallest", many=True),
    "ArgKMin": Reduction("smallest", values=False, positions=True, many=True),
    "KMin_ArgKMin": Reduction("smallest", positions=True, many=True),
    "KMinArgKMin": Reduction("smallest", positions=True, many=True),
}
"""The reductions of formulas by their names."""

_SCHEMES = ("auto", "direct_sum", "block_sum", "kahan_scheme")
_BACKENDS = ("auto", "CPU", "GPU", "GPU_1D", "GPU_2D", "GPU_1D_device", "GPU_1D_host", "GPU_2D_device", "GPU_2D_host")


@dataclass(frozen=True)
class Options:
    """Options of a call of KeOps, besides the formula; ``wide`` computes float32 in float64."""

    ranges: Any = None
    out: Any = None
    wide: bool = False

    @staticmethod
    def of(options: Mapping[str, Any], ranges: Any = None) -> Options:
        """Return the options of a call. Where and how it runs is decided by the tensors: backend is checked only."""
        names = {
            "backend", "device_id", "ranges", "out", "dtype_acc", "use_double_acc", "sum_scheme", "enable_chunks",
            "use_fast_math", "optional_flags", "rec_multVar_highdim", "dtype", "cuda_type",
        }  # fmt: skip
        unknown = [name for name in options if name not in names]
        if unknown:
            raise ParameterError(
                f"{unknown[0]!r} is not an option of a reduction; options are {', '.join(sorted(names))}"
            )
        backend, scheme = options.get("backend") or "auto", options.get("sum_scheme") or "auto"
        if backend not in _BACKENDS:
            raise ParameterError(f"backend={backend!r} is none of {', '.join(_BACKENDS)}")
        if scheme not in _SCHEMES:
            raise ParameterError(f"sum_scheme={scheme!r} is none of {', '.join(_SCHEMES)}")
        accumulator = options.get("dtype_acc") or "auto"
        if accumulator not in ("auto", "float16", "float32", "float64"):
            raise ParameterError(f"dtype_acc={accumulator!r} is none of auto, float16, float32, float64")
        wide = bool(options.get("use_double_acc")) or accumulator == "float64" or scheme == "kahan_scheme"
        passed = options.get("ranges")
        return Options(ranges if passed is None else passed, options.get("out"), wide)


def reduced(
    e: Expression, name: str, axis: int, options: Options, *, weights: Expression | None = None, count: Any = None,
    route: Route, others: Sequence[Leaf] = (),
) -> Any:  # fmt: skip
    """Return the tensor of a reduction over axis 0 or 1, or the two of values and positions.

    ``others`` are variables besides those of the formula: it is reduced over their axes too.
    """
    if name not in REDUCTIONS:
        raise ParameterError(f"{name!r} is not a reduction; reductions are {', '.join(REDUCTIONS)}")
    row, letter = REDUCTIONS[name], "ij"[axis]
    if row.weighted and weights is None:
        raise ParameterError(f"{name} takes weights: give a second formula")
    if weights is not None and e.dim != 1:
        raise ShapeError(f"{name} with weights takes a scalar formula; this one has dimension {e.dim}")
    e = over_all_axes(e, [e, *others, *([] if weights is None else [weights])])
    number = (_count(count, name) if row.many else 1) if row.how in ("smallest", "largest") else 0

    def reduction(parts: Parts, notes: list[Any]) -> Any:
        return _evaluated(parts, row, letter, number, options, Route(notes))

    if options.ranges is not None:
        found = reduction((e, weights), route.steps)
    else:
        again = reduced_again((e, weights), (row, letter, number, options.wide), reduction)
        found, route.steps, route.again = again.result, again.notes, again
    return row.of(found, options.out)


def over_all_axes(e: Expression, variables: Sequence[Expression]) -> Expression:
    """Return a formula with zeros added over the axes that other variables have, and it has not."""
    if len(e.axes) == 2:
        return e
    for leaf in (leaf for part in variables for leaf in leaves(part)):
        for axis in leaf.axes - e.axes:
            e = Map("add", e, Leaf(leaf.tensor.new_zeros(leaf.extents[axis], 1), axis))
    return e


def _evaluated(parts: Parts, row: Reduction, axis: str, count: int, options: Options, route: Route) -> Any:
    """Return the results of a reduction, as KeOps shapes them."""
    e, weights = parts
    assert e is not None
    dtype = _narrow(e) if options.wide else None
    if dtype is not None:
        e, weights = _widened(e), None if weights is None else _widened(weights)
    if options.ranges is not None:
        found = reduce_blocks(e, row.how, axis, options.ranges, weights=weights, count=count, route=route)
    else:
        found = reduce_formula(e, row.how, axis, weights=weights, count=count, route=route)
    if dtype is not None:
        found = found[0].to(dtype), *found[1:]
    if row.many:
        return tuple(part.squeeze(-1) if part.shape[-1] == 1 else part for part in found)
    return tuple(part.squeeze(-2) for part in found) if count else found


def _count(passed: Any, name: str) -> int:
    try:
        return index(passed)
    except TypeError:
        raise ParameterError(f"{name} takes an integer K; got {passed!r}") from None


def _narrow(e: Expression) -> torch.dtype | None:
    """Return the dtype of the variables if it is float32."""
    dtypes = {leaf.tensor.dtype for leaf in leaves(e) if not leaf.weak}
    return torch.float32 if dtypes == {torch.float32} else None


def _widened(e: Expression) -> Expression:
    def replace(part: Expression) -> Expression | None:
        return Leaf(part.tensor.double(), "".join(sorted(part.axes)), part.weak) if isinstance(part, Leaf) else None

    return substituted(e, replace)


def _delivered(result: torch.Tensor, out: Any) -> torch.Tensor:
    if out is None:
        return result
    target = out if isinstance(out, torch.Tensor) else torch.from_numpy(out)
    if target.shape != result.shape or target.dtype != result.dtype or target.device != result.device:
        raise OutputError(
            f"out has shape {tuple(target.shape)} and {target.dtype} on {target.device}; the result has "
            f"{tuple(result.shape)}, {result.dtype} and {result.device}"
        )
    if result.requires_grad:
        raise OutputError("out= cannot be combined with a gradient; drop out= or detach the variables")
    return target.copy_(result)
