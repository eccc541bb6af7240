"""Passes of kernels for some layouts and extents: by wgmma, by clusters of blocks, over any one axis, over two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from . import cluster_plan, wgmma_plan
from .axis_plan import axis_pass
from .cluster_plan import ClusterPlan, cluster
from .cost import SIZES, axis_seconds, cluster_seconds, two_axis_seconds, wgmma_seconds, wide_seconds
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor
from .two_axis_plan import TwoAxisPlan, plan_of, two_axis_passes
from .wgmma_plan import WgmmaPlan, wgmma
from .wide_plan import wide_plans

AlignedPlan = WgmmaPlan | ClusterPlan
# Kinds of kernels: clusters of blocks on whole products, and those that take the last axes of one too.
CLUSTERS, WIDE_CLUSTERS = "clusters", "wide clusters"
# Columns that other axes have at least beside such a pass over halves: beside 2 and 4 it takes 1.16 and 1.19 times as
# long as another order, beside 35 and 37 0.84 and 0.88 times (H200).
_LEAST_OTHERS = 24
# Times its price by which a pass over a wide factor is compared with others, by bytes of a number: of halves that is
# 15 % off, and of plans that should take as long that is chosen which is underestimated (decision 0143).
_WIDE_SHARE = {4: 1.0, 2: 1.1}


def of_part(kinds: Sequence[str], others: int, size: int) -> tuple[str, ...]:
    """Return the kinds of kernels that take some axes of a product, with so many columns along its other axes."""
    allowed = size > 2 or others >= _LEAST_OTHERS
    return tuple(WIDE_CLUSTERS if kind == CLUSTERS else kind for kind in kinds if kind != CLUSTERS or allowed)


def aligned_passes(
    plain: Pass, sides: tuple[int, int], stored: str, tensor: Tensor, limits: DeviceLimits,
    clusters: Mapping[int, float],
) -> list[tuple[float, Pass]]:  # fmt: skip
    """Return the seconds and the passes of the kernels that take a range of axes of ``sides`` tensors and columns.

    By clusters of blocks with factors of so many rows as ``clusters`` has, times what it says.
    """
    found: list[tuple[float, Pass]] = []
    joint = wgmma_plan.joined_pass(plain) if tensor.is_aligned else None
    if joint and wgmma_plan.suits(joint, *sides, tensor, limits):
        found.append((wgmma_seconds(joint, _moved(joint, sides, stored), stored, limits), joint))
    joint = cluster_plan.joined_pass(plain, tensor)
    if joint and joint.modes[0].columns in clusters and cluster_plan.suits(joint, *sides, stored, tensor, limits):
        times = clusters[joint.modes[0].columns]
        found.append((times * cluster_seconds(joint, _moved(joint, sides, stored), stored, limits), joint))
    if tensor.has_wgmma and (alone := axis_pass(plain, *sides, stored, limits)):
        found.append((axis_seconds(alone, *sides, stored, limits), alone))
    if tensor.has_wgmma:
        every_wide = wide_plans(plain, sides[1], stored, tensor, limits)
        share = _WIDE_SHARE[SIZES[stored]]
        found += [(share * wide_seconds(own, sides[0], limits), own.run) for own in every_wide]
    if tensor.has_wgmma and sides[1] == 1:
        every = _two_axes(plain, sides[0], stored, tensor, limits)
        found += [(two_axis_seconds(own, sides[0], limits), own.run) for own in every]
    return found


@lru_cache(maxsize=4096)
def _two_axes(plain: Pass, entries: int, stored: str, tensor: Tensor, limits: DeviceLimits) -> tuple[TwoAxisPlan, ...]:
    """Return the plans of passes over two axes, into which others are brought together."""
    every = (plan_of(two, entries, stored, tensor, limits) for two in two_axis_passes(plain, stored))
    return tuple(own for own in every if own is not None)


@lru_cache(maxsize=4096)
def saving_seconds(run: Pass, entries: int, stored: str, limits: DeviceLimits, tensor: Tensor | None) -> float:
    """Return the seconds of a pass over two axes that saves what comes between its products."""
    found = None if tensor is None else plan_of(run, entries, stored, tensor, limits)
    return math.inf if found is None else two_axis_seconds(found, entries, limits)


def _moved(run: Pass, sides: tuple[int, int], stored: str) -> float:
    """Return the bytes that a pass reads and writes."""
    return 2 * SIZES[stored] * float(sides[0]) * sides[1] * run.columns


def aligned_plans(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout,
    sides: tuple[int, int], limits: DeviceLimits,
) -> tuple[AlignedPlan, ...]:  # fmt: skip
    """Return the plan of a pass over ``sides`` tensors and columns, if there is one."""
    if wgmma_plan.suits(run, *sides, tensor, limits):
        return (wgmma(run, shapes, stored, tensor, layout, limits),)
    if cluster_plan.suits(run, *sides, stored, tensor, limits):
        return (cluster(run, shapes, stored, tensor, layout, limits),)
    return ()
