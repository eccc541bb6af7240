"""Optimal transport between weighted points: the front of Sinkhorn's iteration."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..arrays import Wrap, check_same_device, common_shape, dtype_name
from ..checks import integer, positive
from ..errors import BackendError, GradientError, KernmantleWarning, LinearAlgebraError, ParameterError, ShapeError
from ..linalg.arguments import watched
from ..linalg.block_cg import Watch, read
from ..linalg.solution import Described
from ..pairwise.attend_inputs import checked_truth
from ..pairwise.inputs import check_rows
from ..pairwise.kernel import Kernel
from ..pairwise.scores import arrays_of, is_inner_product, scores_of
from ..runtime.progress import bar
from ..torch_ops.checks import is_number
from ..torch_ops.outside import outside
from ..torch_ops.torch_private import is_tracked
from .implicit import attached, value
from .plan import Plan
from .problem import Problem, balanced


@dataclass(frozen=True)
class Settings:
    """When the iteration ends: by the ``tolerance`` of the marginals, or at the ``limit``; eps falls by ``scaling``."""

    tolerance: float
    limit: int
    scaling: float


@dataclass(frozen=True)
class Found:
    """Potentials, the error of the marginals before the last step, (...), and the iterations that were run."""

    f: torch.Tensor
    g: torch.Tensor
    error: torch.Tensor
    iterations: int


def ladder(spread: float, eps: float, scaling: float) -> list[float]:
    """Return decreasing regularisations, from the largest difference of costs to above ``eps``."""
    if scaling >= 1 or not spread > eps:
        return []
    steps = math.ceil(math.log(spread / eps) / -math.log(scaling))
    return [spread * scaling**step for step in range(steps)]


@torch.no_grad()
def solve(problem: Problem, spread: float, settings: Settings, is_symmetric: bool) -> Found:
    """Return the potentials of a problem without derivatives, whose eps is a number.

    A problem between a set and itself has one potential, of which each step is the mean of the old and the new one:
    it converges in a small number of steps (Feydy et al., Interpolating between optimal transport and MMD, 2019).
    """
    step = _averaged if is_symmetric else _alternated
    f, g = torch.zeros_like(problem.a), torch.zeros_like(problem.b)
    watch, count = Watch(f.device, settings.limit, torch.float64), 0
    error = f.new_full(f.shape[:-1], math.inf)
    with bar(total=settings.limit) as shown:
        for eps in ladder(spread, problem.eps, settings.scaling)[: max(0, settings.limit - 1)]:
            f, g, _ = step(replace(problem, eps=eps), f, g)
            count += 1
            shown.update()
        if not is_symmetric:
            f = problem.potential(g)
        bound: Any = math.inf
        while count < settings.limit and bound > settings.tolerance:
            f, g, error = step(problem, f, g)
            count += 1
            bound = watch.worst(error)
            shown.set_postfix_str(f"marginals {bound:.2g}", refresh=False)
            shown.update()
    return Found(*balanced(problem, f, g), error, count)


def _alternated(problem: Problem, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = problem.transposed.potential(f)
    softmin = problem.softmin(g)
    return problem.damping * softmin, g, problem.error(f, softmin)


def _averaged(problem: Problem, f: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    softmin = problem.softmin(f)
    error = problem.error(f, softmin)
    f = (f + problem.damping * softmin) / 2
    return f, f, error


_OF_ALL_ROWS = {"seuclidean": "V", "mahalanobis": "VI"}


@dataclass(frozen=True, repr=False)
class Transport(Described):
    """The transport that :func:`sinkhorn` found.

    Attributes
    ----------
    value : array, shape (...)
        The regularised cost ``<p, c> + eps KL(p | a bᵀ)``, with rho also the price of the marginals; with ``debiased``
        the Sinkhorn divergence.
    f, g : array, shapes (..., m) and (..., n)
        Potentials. With fixed marginals only their sum is determined; here ``Σ a f = Σ b g``.
    iterations : int
        How many were run, two passes over all pairs of rows each.
    converged : array of bool, shape (...)
        Whether ``error`` is within the tolerance.
    error : array, shape (...)
        ``Σ_i |Σ_j p_ij - a_i| / Σ a`` before the last step; the other marginal is exact up to rounding.
    plan : Plan
        ``plan @ v``, ``plan.T @ v``, ``plan.marginals()`` and ``plan.cost()``, without storing it.
    """

    value: Any
    f: Any
    g: Any
    iterations: int
    converged: Any
    error: Any
    plan: Plan


@outside
def sinkhorn(
    x: Any,
    y: Any,
    a: Any = None,
    b: Any = None,
    *,
    eps: float | torch.Tensor,
    cost: Any = "sqeuclidean",
    rho: float | None = None,
    debiased: bool = False,
    scaling: float = 0.5,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    check_errors: bool = False,
    **options: Any,
) -> Transport:
    """Regularised optimal transport between weighted points, by any cost, without the matrix of costs.

    The plan p minimises ``Σ p_ij c(x_i, y_j) + eps KL(p | a bᵀ)`` with marginals a and b, or, with rho, plus
    ``rho KL(Σ_j p | a) + rho KL(Σ_i p | b)`` (unbalanced transport).

    Parameters
    ----------
    x, y : array, shapes (..., m, k) and (..., n, k)
        Points. Batch axes broadcast. Halves are computed, and returned, as float32.
    a, b : array, shapes (..., m) and (..., n), optional
        Weights, not negative; by default 1/m and 1/n. Without rho they have the same sum. A weight of 0 leaves a point
        out, as padding needs it.
    eps : number or tensor of one number
        Strength of the regularisation, positive, in units of the cost. The smaller, the sharper the plan and the more
        iterations. Below the rounding of the costs it is refused; far above them the value is only right to about eps
        times the unit of the type.
    cost : str, callable, Kernel or Contraction
        A metric of :func:`cdist` by name; a lambda of two numbers that is summed over the columns, as
        ``lambda a, b: abs(a - b) ** 1.5``; your own kernel, or a contraction to the matrix of costs.
    rho : number, optional
        Price of other marginals, in units of the cost.
    debiased : bool
        Whether ``value`` is the Sinkhorn divergence, which is 0 between equal sets: less half the value of each set
        with itself.
    scaling : number
        Factor by which eps falls from the largest difference of costs in the first iterations, at most 1.
    tolerance : number, optional
        Largest ``error`` to stop at; 3.5e-4 for float32, 1.5e-8 for float64, the roots of their units.
    max_iterations : int
        Iterations that may be spent.
    check_errors : bool
        Raise where the tolerance was not reached, instead of warning.
    **options
        ``p, w, V, VI, base`` of a metric by name.

    Returns
    -------
    Transport
        Its arrays are of the kind of x.

    Raises
    ------
    KernmantleError
        Before the first iteration: for shapes, types, weights and numbers that do not fit, costs that are not finite,
        an eps below the rounding of costs, and a cost without a gradient where one is recorded.
    LinearAlgebraError
        With ``check_errors``.

    Notes
    -----
    Soft minima are taken of logarithms, so that no eps underflows. Memory: inputs, a number of vectors, and 64 MB in a
    backward pass, 256 MB on GPUs.

    Gradients do not go through the iteration. The value has those of the first and second order by x, y, a, b, eps and
    hyperparameters of the cost: the first by the envelope theorem, in one more pass. The potentials and products with
    the plan have those of the first order, by a linear solve with the plan (implicit function theorem). They are those
    of the optimum, and as exact as ``error`` is small. Weights that are 0 have a gradient of the value, but none of
    potentials and plans, where it counts as 0. With fixed marginals, gradients by a and b are determined up to a
    constant.

    On CUDA the host waits once before the first iteration, for checks and the largest cost, and once at the end.

    Sources: Cuturi, Sinkhorn distances, 2013; Feydy et al., Interpolating between optimal transport and MMD, 2019;
    Séjourné et al., Sinkhorn divergences for unbalanced optimal transport, 2019.

    Cost: two passes over all pairs of rows for each iteration; ``debiased`` adds one for each set.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> x, y = np.array([[0.0], [1.0]]), np.array([[3.0], [2.0]])
    >>> found = km.ot.sinkhorn(x, y, eps=0.1)  # 0 goes to 2, and 1 to 3, with half of the mass each
    >>> (found.plan @ y).round(3)
    array([[1. ],
           [1.5]])
    """
    settings = _settings(tolerance, max_iterations, scaling)
    debiased = checked_truth("debiased", debiased, "it makes value the Sinkhorn divergence")
    check_errors = checked_truth("check_errors", check_errors, "it raises where the tolerance was not reached")
    named, wrap, problem = _problem(x, y, a, b, eps, rho, cost, options)
    if debiased and isinstance(cost, str) and cost in _OF_ALL_ROWS and options.get(_OF_ALL_ROWS[cost]) is None:
        raise ParameterError(f"debiased= compares several sets, pass {_OF_ALL_ROWS[cost]}=, which {cost} takes of both")
    problems = [(problem, False)]
    if debiased:
        for rows, weights in ((named["x"], problem.a), (named["y"], problem.b)):
            costs = scores_of(cost, rows, rows, options, "cost")
            own = replace(problem, costs=costs, a=weights, b=weights)
            problems.append((own, costs.contraction.is_symmetric))
    spreads = _checked_values([each for each, _ in problems])
    if tolerance is None:
        settings = replace(settings, tolerance=math.sqrt(torch.finfo(problem.a.dtype).eps))
    runs = [
        solve(_constant(each), spread, settings, is_symmetric)
        for (each, is_symmetric), spread in zip(problems, spreads, strict=True)
    ]
    return _transport([each for each, _ in problems], runs, settings, check_errors, wrap)


def _transport(
    problems: list[Problem], runs: list[Found], settings: Settings, check_errors: bool, wrap: Wrap
) -> Transport:
    """Return the result of a problem, and of those of each set with itself where there are any."""
    problem, found = problems[0], runs[0]
    f, g = found.f, found.g
    tracked = is_tracked(problem.tensors)
    values = [value(each, run.f, run.g) for each, run in zip(problems, runs, strict=True)]
    total = values[0]
    if len(values) > 1:
        total = total - (values[1] + values[2]) / 2
        if problem.rho is not None:
            total = total + problem.eps * (problem.a.sum(-1) - problem.b.sum(-1)).square() / 2
    if tracked:
        f, g = attached(problem, f, g)
    error = torch.stack([run.error for run in runs]).amax(0)
    iterations = max(run.iterations for run in runs)
    _judge(error, iterations, settings, check_errors)
    plan = Plan(problem, f, g, wrap)
    converged = error <= settings.tolerance
    return Transport(wrap(total), wrap(f), wrap(g), iterations, wrap(converged), wrap(error), plan)


def _settings(tolerance: Any, limit: Any, scaling: Any) -> Settings:
    if tolerance is not None:
        positive(tolerance, "tolerance")
    limit = integer(limit, "max_iterations")
    if not is_number(scaling) or not 0 < scaling <= 1:
        raise ParameterError(f"scaling must be above 0 and at most 1, not {scaling!r}")
    return Settings(0.0 if tolerance is None else float(tolerance), limit, float(scaling))


def _problem(
    x: Any, y: Any, a: Any, b: Any, eps: Any, rho: Any, cost: Any, options: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], Wrap, Problem]:
    """Return the tensors by name and the problem, once shapes, types and numbers are checked."""
    arrays = arrays_of({"x": x, "y": y, "a": a, "b": b}, optional="ab")
    named = arrays.wide
    for name, tensor in named.items():
        if watched(tensor):
            raise GradientError(
                f"{name} is under a transform of torch.func or forward-mode differentiation, which transport is not "
                "for: use backward() or torch.autograd.grad, and leading axes for batches"
            )
    check_rows(named["x"], named["y"])
    if isinstance(cost, Kernel) and cost.is_similarity:
        raise ParameterError(
            f"cost= is small where rows are close; {cost!r} is large there: pass a metric, or a lambda such as "
            "lambda a, b: abs(a - b)"
        )
    if is_inner_product(cost):
        raise ParameterError("cost= is small where rows are close, inner products are large: pass lambda a, b: -a * b")
    costs = scores_of(cost, named["x"], named["y"], options, "cost")
    sizes = named["x"].shape[-2], named["y"].shape[-2]
    if 0 in (*sizes, *named["x"].shape[:-2], *named["y"].shape[:-2]):
        raise ShapeError(f"there is nothing to transport: x has shape {tuple(named['x'].shape)}, y "
                         f"{tuple(named['y'].shape)}")  # fmt: skip
    weights = {}
    for name, size in zip("ab", sizes, strict=True):
        own = named.get(name)
        if own is None:
            own = named["x"].new_full((size,), 1 / size)
        if not own.dim() or own.shape[-1] != size:
            raise ShapeError(f"{name} must have a weight for each of {size} rows, it has shape {tuple(own.shape)}")
        weights[name] = own
    values = [t.shape for t in costs.parameters.values() if isinstance(t, torch.Tensor)]
    leading = [named["x"].shape[:-2], named["y"].shape[:-2], *(w.shape[:-1] for w in weights.values()), *values]
    try:
        batch = common_shape(*leading)
    except RuntimeError:
        listing = ", ".join(f"{name} has shape {tuple(tensor.shape)}" for name, tensor in named.items())
        raise ShapeError(f"batch axes do not broadcast: {listing}") from None
    first, second = (own.expand(*batch, own.shape[-1]) for own in weights.values())
    return named, arrays.wrap, Problem(costs, first, second, _checked_eps(eps, named["x"]), _checked_rho(rho))


def _checked_eps(eps: Any, x: torch.Tensor) -> Any:
    if isinstance(eps, torch.Tensor):
        if eps.dim() or not eps.is_floating_point():
            raise ParameterError(f"eps is one number, not a tensor of shape {tuple(eps.shape)}, {eps.dtype}")
        check_same_device([x, eps], ["x", "eps"])
        return eps.to(x.dtype) if eps.requires_grad else _checked_eps(eps.item(), x)
    return positive(eps, "eps")


def _checked_rho(rho: Any) -> float | None:
    if rho is None:
        return None
    if isinstance(rho, torch.Tensor) and rho.requires_grad:
        raise GradientError("there is no gradient by rho; pass a number")
    return positive(rho, "rho")


def _constant(problem: Problem) -> Problem:
    """Return a problem without derivatives, whose eps is a number."""
    eps = problem.eps
    return replace(problem.detached, eps=float(eps.detach()) if isinstance(eps, torch.Tensor) else eps)


@torch.no_grad()
def _checked_values(problems: list[Problem]) -> list[float]:
    """Return the largest difference of costs of every problem; reads values of all tensors once."""
    problem = problems[0]
    if problem.a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise BackendError("sinkhorn reads errors and cannot be captured in a CUDA graph; call it outside")
    a, b, eps = problem.a.detach(), problem.b.detach(), problem.eps
    sums = a.sum(-1), b.sum(-1)
    gap = ((sums[0] - sums[1]).abs() / sums[0]).amax()
    like = eps.detach() if isinstance(eps, torch.Tensor) else a.new_full((), eps)
    costs = [each.detached.extreme_costs() for each in problems]
    least, first, second, gap, strength, *extremes = read(
        torch.cat([torch.stack([torch.minimum(a.amin(), b.amin()), sums[0].amin(), sums[1].amin(), gap, like]), *costs])
    )
    if not strength > 0:
        raise ParameterError(f"eps must be a positive number, not {strength!r}")
    if not least >= 0 or not min(first, second) > 0 or not max(first, second) < math.inf:
        raise ParameterError("a and b must be finite weights, not negative and not all 0")
    if problem.rho is None and not gap <= math.sqrt(torch.finfo(a.dtype).eps):
        raise ParameterError(
            f"a and b have sums that differ by {gap:.3g} of one: divide each by its sum, or pass rho= for transport in "
            "which they may"
        )
    if not all(map(math.isfinite, extremes)):
        raise ParameterError("costs are not finite: x or y has NaN or infinities, or the cost has none of these rows")
    spreads = [high - low for low, high in zip(extremes[::2], extremes[1::2], strict=True)]
    largest = max(map(abs, extremes))
    rounding = torch.finfo(a.dtype).eps * largest
    if max(spreads) > 0 and strength < rounding:
        instead = "raise it, or use float64" if a.dtype == torch.float32 else "raise it"
        raise ParameterError(
            f"eps={strength:.3g} is less than what costs up to {largest:.3g} lose by rounding in "
            f"{dtype_name(a.dtype)}, {rounding:.2g}: {instead}"
        )
    return spreads


def _judge(error: torch.Tensor, iterations: int, settings: Settings, check_errors: bool) -> None:
    """Warn, or raise, unless all errors are within the tolerance."""
    (worst,) = read(error.amax().double())
    if worst <= settings.tolerance:
        return
    message = (
        f"Sinkhorn stopped after {iterations} iterations of {settings.limit} with marginals that differ by "
        f"{worst:.2g}, where {settings.tolerance:.2g} was asked; raise max_iterations, eps or the tolerance"
    ) + (", or use float64" if error.dtype == torch.float32 else "")
    if check_errors:
        raise LinearAlgebraError(message)
    warnings.warn(message, KernmantleWarning, stacklevel=5)
