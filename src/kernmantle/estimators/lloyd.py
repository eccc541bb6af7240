"""Lloyd's iteration: rows go to their nearest centres, centres to the means of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import torch

from ..pairwise import argkmin

PART = 4096
"""Rows that are summed in their own type before the sums are added in float64; more for more clusters than that."""
BLOCK = 1 << 25
"""Products of rows and centres that a GPU stores at a time: 128 MiB of float32."""


@dataclass(frozen=True)
class Run:
    """Labels, the sum of weighted squared distances, centres, and how many steps there were."""

    labels: torch.Tensor
    inertia: float
    centres: torch.Tensor
    steps: int
    converged: bool


def assigned(rows: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared distance of every row from the nearest centre, and which that is."""
    squares, labels = argkmin(rows, centres, 1, metric="sqeuclidean", return_values=True)
    return squares[:, 0], labels[:, 0]


def _label(rows: torch.Tensor, centres: torch.Tensor, labels: torch.Tensor, products: torch.Tensor | None) -> None:
    """Write the nearest centre of every row; on a GPU rows are centred, so that products keep their digits."""
    if products is None:
        labels.copy_(argkmin(rows, centres, 1, metric="sqeuclidean")[:, 0])
        return
    squares = centres.square().sum(1)
    for part, own in zip(*(each.split(len(products)) for each in (rows, labels)), strict=True):
        torch.argmin(torch.addmm(squares, part, centres.mT, alpha=-2, out=products[: len(part)]), 1, out=own)


def _squares(rows: torch.Tensor, centres: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of every row from its centre."""
    parts = zip(*(each.split(max(1, BLOCK // rows.shape[1])) for each in (rows, labels)), strict=True)
    return torch.cat([(part - centres[own]).square().sum(1) for part, own in parts])


def _sums(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, count: int, offsets: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums of the rows of every cluster, and sums of their weights, in float64."""
    if offsets is not None:
        return _sums_at_once(rows, weights, labels + offsets, count)
    size = max(PART, count)
    sums = rows.new_zeros(count, rows.shape[1], dtype=torch.float64)
    mass = rows.new_zeros(count, dtype=torch.float64)
    for start in range(0, rows.shape[0], size):
        own = slice(start, start + size)
        part = rows[own] if weights is None else rows[own] * weights[own, None]
        sums += rows.new_zeros(count, rows.shape[1]).index_add_(0, labels[own], part)
        ones = mass.new_ones(part.shape[0]) if weights is None else weights[own].double()
        mass.index_add_(0, labels[own], ones)
    return sums, mass


def _offsets(rows: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return, for a GPU, the first cluster of the part of every row, where every part has clusters of its own."""
    if not rows.is_cuda:
        return None
    numbers = torch.arange(rows.shape[0], device=rows.device)
    return numbers.div_(max(PART, count), rounding_mode="floor").mul_(count)


def _sums_at_once(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums where a launch takes longer than its work: those of all parts, then over the parts."""
    parts = -(-rows.shape[0] // max(PART, count))
    sums, mass = rows.new_zeros(parts * count, rows.shape[1]), rows.new_zeros(parts * count)
    sums.index_add_(0, labels, rows if weights is None else rows * weights[:, None])
    mass.index_add_(0, labels, rows.new_ones(()).expand(rows.shape[0]) if weights is None else weights)
    return (
        sums.unflatten(0, (parts, count)).sum(0, dtype=torch.float64),
        mass.unflatten(0, (parts, count)).sum(0, dtype=torch.float64),
    )


def _means(sums: torch.Tensor, mass: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the means of the clusters; those without rows have the heaviest cluster's."""
    return torch.where(mass[:, None] > 0, sums / mass[:, None], sums[mass.argmax()] / mass.max()).to(dtype)


def _filled(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, squares: torch.Tensor, mass: torch.Tensor
) -> torch.Tensor:
    """Return the means after clusters without rows took the rows that are farthest from their centres."""
    empty = (mass == 0).nonzero()[:, 0]
    gaps = squares if weights is None else torch.where(weights > 0, squares, 0)
    if float(gaps.max()) > 0:
        labels = labels.index_copy(0, gaps.topk(empty.numel()).indices, empty)
    return _means(*_sums(rows, weights, labels, mass.numel(), _offsets(rows, mass.numel())), rows.dtype)


def _length(values: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(values, dtype=torch.float64)


_RECORDING = Lock()
"""Held by the thread that records."""


@cache
def _recorder(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which steps are recorded: one a device, as cuBLAS has a workspace for each stream."""
    return torch.cuda.Stream(device)


class _Steps:
    """Steps of Lloyd's algorithm, which keep what they find at the same addresses.

    On a GPU the first one is launched operation by operation, the second is recorded, and the graph of it launched from
    then on: a step is some thirty short kernels, which take less time than it takes to launch them.
    """

    def __init__(self, rows: torch.Tensor, weights: torch.Tensor | None, centres: torch.Tensor) -> None:
        self._rows, self._weights, self._offsets = rows, weights, _offsets(rows, len(centres))
        size = min(len(rows), max(1, BLOCK // len(centres)))
        self._products = rows.new_empty(size, len(centres)) if rows.is_cuda else None
        self.labels = torch.full((len(rows),), -1, device=rows.device)
        self.centres, self.means = torch.empty_like(centres), centres.clone()
        self._before = torch.empty_like(self.labels)
        self._count, self._graph = 0, None

    def next(self) -> tuple[float, float, float]:
        """Go on from the means, and return how many labels changed, the least mass and how far the centres moved.

        ``centres`` are those that rows were assigned to, ``means`` those of the ``labels`` that came of it.
        """
        self._count += 1
        if self._rows.is_cuda and self._count == 2 and not torch.are_deterministic_algorithms_enabled():
            self._record()  # sums in one order are sorted first, which waits for the GPU
        if self._graph is None:
            self._launch()
        else:
            self._graph.replay()
        changed, least, moved = self._found.tolist()
        return changed, least, moved

    def assign(self) -> None:
        """Write the labels of the means."""
        _label(self._rows, self.means, self.labels, self._products)

    def fill(self) -> float:
        """Let clusters without rows take some, and return how far the centres moved then."""
        squares = _squares(self._rows, self.centres, self.labels)
        self.means.copy_(_filled(self._rows, self._weights, self.labels, squares, self._mass))
        return float(_length(self.means - self.centres))

    def _launch(self) -> None:
        self._before.copy_(self.labels)
        self.centres.copy_(self.means)
        self.assign()
        sums, self._mass = _sums(self._rows, self._weights, self.labels, len(self.centres), self._offsets)
        self.means.copy_(sums / self._mass[:, None])
        changes = (self.labels != self._before).sum(dtype=torch.float64)
        self._found = torch.stack([changes, self._mass.min(), _length(self.means - self.centres)])

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with _RECORDING, torch.cuda.stream(_recorder(self._rows.device)):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._launch()
            finally:
                graph.capture_end()
        self._graph = graph


def lloyd(
    rows: torch.Tensor, weights: torch.Tensor | None, centres: torch.Tensor, max_iter: int, limit: float, bar: Any
) -> Run:
    """Assign rows to centres and move these to the means, until no label changes or they move by less than a limit.

    A step waits for a GPU once: for whether labels changed, whether a cluster is empty and how far centres moved.
    """
    steps = _Steps(rows, weights, centres)

    def ended(centres: torch.Tensor, step: int, converged: bool) -> Run:
        squares = _squares(rows, centres, steps.labels)
        inertia = float((squares if weights is None else squares * weights).sum(dtype=torch.float64))
        return Run(steps.labels, inertia, centres, step, converged)

    converged, step = False, 0
    for step in range(1, max_iter + 1):
        changed, least, moved = steps.next()
        bar.update()
        if not changed:
            return ended(steps.centres, step, True)
        if least == 0:
            moved = steps.fill()
        if moved**2 <= limit:
            converged = True
            break
    steps.assign()
    return ended(steps.means, step, converged)
