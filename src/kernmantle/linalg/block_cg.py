"""The recursion of block conjugate gradients, and how the host follows it without making a GPU wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..runtime.progress import bar

Columns = Callable[[torch.Tensor], torch.Tensor]
AHEAD = 4
"""Iterations that the host may be ahead of a GPU, and that may so be run after convergence."""
INDEFINITE, NOT_FINITE = 3, 4
"""Infos: why a recursion broke down."""
REPLACED = 0.1
"""Fall of a recursion's residual after which it is replaced by a measured one."""
DIVERGED = 1e6
"""Multiple of the smallest residual at which a recursion is given up."""


class Watch:
    """Reads the residuals of a few iterations ago, so that the device always has work."""

    def __init__(self, device: torch.device, limit: int, dtype: torch.dtype) -> None:
        self._cuda = device.type == "cuda"
        self._blind = self._cuda and torch.cuda.is_current_stream_capturing()
        self._records = torch.empty(limit + 1, dtype=dtype, pin_memory=self._cuda and not self._blind)
        self._events: list[torch.cuda.Event] = []
        self._count = 0

    @property
    def delay(self) -> int:
        """Iterations between what has been read and what has been asked for."""
        return AHEAD if self._cuda else 0

    def worst(self, residual: torch.Tensor) -> float:
        """Return the largest residual of ``delay`` calls ago, infinite before there is one."""
        if self._blind:
            return float("inf")
        top = residual.amax() if residual.numel() else residual.new_zeros(())
        self._records[self._count].copy_(top, non_blocking=True)
        self._count += 1
        if self._cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(residual.device))
            self._events.append(event)
        return self._read(self._count - 1 - self.delay)

    def last(self) -> float:
        """Return the residual of the newest call; waits for it."""
        return float("nan") if self._blind else self._read(self._count - 1)

    def _read(self, index: int) -> float:
        if index < 0:
            return float("inf")
        if self._cuda:
            self._events[index].synchronize()
        return float(self._records[index])


def _gram(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the products of columns in float64, since small systems of them have the square of the condition."""
    return left.double().mT @ right.double()


def _factor(gram: torch.Tensor, unit: float) -> torch.Tensor:
    """Lower Cholesky factor of a Gram matrix that may be singular, to the digits of each of its columns.

    One that rounding has made indefinite counts as a bound of it on the diagonal: short steps, none of them wrong. That
    of a single column, and systems with it, are numbers, for which a GPU would wait for its solvers.
    """
    if gram.shape[-1] == 1:
        length = torch.where(gram > 0, gram.sqrt(), 1.0)
        even = gram / length / length + 11 * unit
        return length * torch.where(even > 0, even.sqrt(), 1.0)
    lengths = gram.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    even = gram / lengths / lengths[:, None]
    even.diagonal().add_(unit * (10 + gram.shape[-1]))
    found, failed = torch.linalg.cholesky_ex(even)
    apart = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device) * gram.shape[0] ** 0.5
    return lengths[:, None] * torch.where(failed == 0, found, apart)


def _solved(factor: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    if factor.shape[-1] == 1:
        return columns / factor / factor
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


def _over(columns: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    small = factor.to(columns.dtype)
    if small.shape[-1] == 1:
        return columns / small
    return torch.linalg.solve_triangular(small.mT, columns, upper=True, left=False)


def _normal(
    residual: torch.Tensor, preconditioned: torch.Tensor, total: Columns
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A block, and what the preconditioner makes of it, orthonormal in its inner product; and what they were times.

    Twice, since products of columns know only half the digits of how these depend on each other.
    """
    weights = torch.eye(residual.shape[1], dtype=torch.float64, device=residual.device)
    for _ in range(2):
        factor = _factor(total(_gram(residual, preconditioned)), torch.finfo(residual.dtype).eps)
        residual, preconditioned, weights = _over(residual, factor), _over(preconditioned, factor), factor.mT @ weights
    return residual, preconditioned, weights


@dataclass
class _State:
    """Block conjugate gradients with orthonormalised residuals (Dubrulle 2001): ``b - a x = unit @ weights``.

    The residual blocks are orthonormal in the inner product of the preconditioner, which keeps the small systems
    well posed where columns converge at different times. Where columns depend on each other they cannot be quite
    so: steps and directions are therefore made of the products that say how far x can go and what is conjugate, and
    not of what these would be for orthonormal blocks.
    """

    multiply: Columns
    precondition: Columns
    total: Columns
    x: torch.Tensor
    unit: torch.Tensor
    weights: torch.Tensor
    direction: torch.Tensor
    least: torch.Tensor
    """Smallest pᵀ a p of the directions p of the last step: negative, or NaN, where the recursion breaks down."""

    @staticmethod
    def start(
        multiply: Columns, precondition: Columns, total: Columns, b: torch.Tensor, lengths: torch.Tensor
    ) -> _State:
        """Return the state at x = 0."""
        safe = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        residual = b / safe
        unit, preconditioned, weights = _normal(residual, precondition(residual), total)
        return _State(
            multiply, precondition, total, torch.zeros_like(b), unit, weights * safe, preconditioned,
            weights.new_zeros(()),
        )  # fmt: skip

    def step(self, gap: Columns | None = None) -> None:
        """One iteration: one product.

        With ``gap``, which is ``b - a x`` of the x here by a product of its own, the residual of the recursion is
        replaced by it; directions stay conjugate to the last ones (van der Vorst and Ye, Residual replacement, 2000).
        """
        product = self.multiply(self.direction)
        dtype = product.dtype
        sums = [_gram(self.direction, product), _gram(self.direction, self.unit)]
        curvature, slope = self.total(torch.stack(sums)).unbind()
        self.least = curvature.diagonal().amin()
        small = _factor(curvature, torch.finfo(dtype).eps)
        length = _solved(small, slope)
        self.x = self.x + self.direction @ (length @ self.weights).to(dtype)
        if gap is None:
            residual = self.unit - product @ length.to(dtype)
        else:
            residual = gap(self.x).to(dtype)
            sizes = self.total(residual.double().square().sum(0)).sqrt()
            self.weights = torch.diag(torch.where(sizes > 0, sizes, torch.ones_like(sizes)))
            residual = residual / self.weights.diagonal().to(dtype)
        self.unit, preconditioned, weights = _normal(residual, self.precondition(residual), self.total)
        back = _solved(small, self.total(_gram(product, preconditioned)))
        self.direction = preconditioned - self.direction @ back.to(dtype)
        self.weights = weights @ self.weights

    def lengths(self) -> torch.Tensor:
        """Return the norms of the columns of ``b - a x``."""
        return self.total((self.unit @ self.weights.to(self.unit.dtype)).square().sum(0)).sqrt()


def read(values: torch.Tensor) -> list[float]:
    """Return numbers of a small tensor; waits for them, but in a CUDA graph, where they are NaN."""
    if not values.is_cuda:
        return values.reshape(-1).tolist()
    if torch.cuda.is_current_stream_capturing():
        return [float("nan")] * values.numel()
    here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    here.copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(values.device))
    event.synchronize()
    return here.reshape(-1).tolist()


@dataclass
class Run:
    """Solution of one recursion, the residuals of its iterations, and 0 or why it broke down."""

    x: torch.Tensor
    history: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    info: int = 0


def iterate(
    multiply: Columns, precondition: Columns, total: Columns, right: torch.Tensor, whole: torch.Tensor,
    tolerance: float, limit: int, gap: Columns | None = None, report: Callable[[torch.Tensor], None] | None = None,
) -> Run:  # fmt: skip
    """Solve for a right-hand side, with residuals relative to the norms ``whole``, from 0.

    A recursion that breaks down, diverges or does not get to the tolerance gives its best iterate. With ``gap``, the
    residual by a better product, that of the recursion is replaced wherever it has fallen by ``REPLACED``. ``report``
    is called with every iterate.
    """
    lengths = total(right.square().sum(0)).sqrt()
    state = _State.start(multiply, precondition, total, right, lengths)
    watch = Watch(right.device, limit, torch.float64)
    run = Run(state.x, [lengths / whole])
    recent = deque([state.x], maxlen=watch.delay + 1)
    verified = best = watch.worst(run.history[0])
    level = float("inf")
    with bar(total=limit) as shown:
        while len(run.history) <= limit and not verified <= tolerance:
            replaces = gap is not None and verified <= REPLACED * level
            state.step(gap if replaces else None)
            level = verified if replaces or level == float("inf") else level
            recent.append(state.x)
            if report is not None:
                report(state.x)
            run.history.append(state.lengths() / whole)
            # A negative one, or NaN, says that the recursion has broken down.
            verified = watch.worst(torch.where(state.least >= 0, run.history[-1], state.least))
            if not verified >= 0:
                run.info = INDEFINITE if verified < 0 else NOT_FINITE
            if run.info or verified > DIVERGED * best:
                return run
            if verified < best:
                best, run.x = verified, recent[0]
            shown.set_postfix_str(f"residual {verified:.2g}", refresh=False)
            shown.update()
    if verified <= tolerance or not watch.last() > best:
        run.x = state.x
    return run
