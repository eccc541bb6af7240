"""Runs VJPs on a GPU with cuda.core alone, so that compute-sanitizer sees nothing but these kernels.

``python -m tests.cuda.vjp_harness [name ...]`` runs every case, or those whose name contains one of the words.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.vjp_emit import emit, entry_name, threads_of
from kernmantle.backends.cuda.vjp_plan import VjpPlan, fixed, schedule, workspace
from kernmantle.compiler.nest import SIZES
from kernmantle.testing.tolerances import tolerance

from .harness import POWER_ERROR, Machine, limits
from .report import report, selected, within
from .vjp_nests import Array, VjpCase, cases

HALVES_ERROR = 2.0**-20


_BINARIES: dict[VjpPlan, bytes] = {}


def compiled(plan: VjpPlan) -> bytes:
    """Machine code of a plan's kernels."""
    return _BINARIES.get(plan) or compile_source(emit(plan), plan.arch, headers(), str(plan)).binary


@cache
def kernels(plan: VjpPlan) -> dict[str, Kernel]:
    """The kernels of a plan by name."""
    binary, dynamic = compiled(plan), {"main": plan.tile.shared(plan.slope.kind)}
    return {
        name: Kernel(binary, entry_name(name), threads_of(plan, name), dynamic.get(name, 0), name)
        for name in plan.kernels
    }


def run(machine: Machine, case: VjpCase, plan: VjpPlan) -> Array:
    """The result as (a, l, m, n)."""
    sizes, chosen = case.sizes(), schedule(plan, case.sizes(), limits())
    where = workspace(plan, sizes, case.facts(), chosen)
    blank = np.full([sizes[role] for role in case.order("out0")], np.nan, np.float32)
    buffers = [machine.upload(np.ascontiguousarray(array)) for array in (*case.arrays().values(), blank)]
    memory = np.full(where.size, 255, np.uint8)
    memory[: where.zeroed] = 0
    scratch = machine.upload(memory)
    integers = [*(sizes[role] for role in SIZES), *(step for steps in case.strides() for step in steps)]
    arguments = (
        *(int(buffer.handle) for buffer in buffers), *fixed(plan, integers), *case.numbers,
        *plan.power_arguments(case.numbers), *(int(scratch.handle) + offset for offset in where.offsets),
        chosen.whole, chosen.splits, chosen.share,
    )  # fmt: skip
    ready, stream = kernels(plan), int(machine.stream.handle)
    for name in plan.passes:
        ready[name](0, stream, 3, arguments)
    ready["main"](0, stream, chosen.blocks, arguments)
    if chosen.splits > 1:
        ready["reduce_splits"](0, stream, chosen.tiles - chosen.whole, arguments)
    if plan.mends:
        ready["fix_non_finite"](0, stream, min(chosen.tiles, 3), arguments)
    order, found = case.order("out0"), machine.download(buffers[-1], blank)
    axes = [order.index(role) for role in ("almn" if "a" in order else "lmn")]
    return found.transpose(axes).reshape(case.a, case.l, case.m, case.n)


def disagreement(case: VjpCase, plan: VjpPlan, found: Array) -> float:
    """Largest error in units of what is promised; infinite where a NaN or an infinity differs."""
    want, sizes = case.expected()
    plain = np.isfinite(want)
    if not np.array_equal(np.isfinite(found), plain):
        return np.inf
    norm = np.sqrt(np.mean(np.square(sizes[plain]))) if plain.any() else 0.0
    each = tolerance("float32", case.k) + (POWER_ERROR if plan.slope.kind == "powers" else 0.0)
    each += HALVES_ERROR if plan.tile.engine != "scalar" else 0.0
    bound = each * np.maximum(sizes[plain], norm)
    return float((np.abs(found[plain] - want[plain]) / np.maximum(bound, 1e-300)).max(initial=0.0))


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    own = limits()
    plans = {case.name: plan for case in selected(cases(), words) if (plan := case.plan(own)) is not None}
    distinct = list(dict.fromkeys(plans.values()))
    with multiprocessing.get_context("fork").Pool() as pool:
        _BINARIES.update(zip(distinct, pool.map(compiled, distinct, chunksize=1), strict=True))
    machine = Machine()

    def verify(case: VjpCase) -> str:
        plan = plans[case.name]
        return within(disagreement(case, plan, run(machine, case, plan)))

    return report([case for case in cases() if case.name in plans], verify)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
