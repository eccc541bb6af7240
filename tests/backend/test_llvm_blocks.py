"""Loops of several blocks: what is packed is packed anew wherever it changed, and nothing is met twice."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from kernmantle.backends.cpu import emit as text
from kernmantle.backends.cpu import gram_plan
from kernmantle.backends.cpu import jit as runtime
from kernmantle.compiler.nest import ROLES, Buffer, Nest
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS

from .llvm_nests import Kernel, outputs, run

EXTENTS = {"m": 37, "n": 150, "k": 21, "l": 5}


def small_blocks(nest: Nest) -> Kernel:
    """The nest with blocks that cut every axis of EXTENTS, tails included."""
    plan = gram_plan.plan(nest, 32, 16)
    plan = replace(plan, depth=8, row_block=3 * plan.item_rows, column_block=3 * plan.columns)
    return Kernel(plan, runtime.load(runtime.compile_ir(text.emit(plan), runtime.host())))


@pytest.mark.parametrize(
    "roles", ["mk,nk", "nk,kl", "mkl,nl", "mk,nl", "ml,nkl", "mk,nk,l", "nk,k,l", "mk,nkl,m,kl", "mnk,nl"]
)
@pytest.mark.parametrize("splits", [1, 3])
def test_sums_over_blocks_of_every_loop(roles, splits):
    parts = roles.split(",")
    buffers = tuple(Buffer(f"x{i}", part, "f64") for i, part in enumerate(parts))
    out = "".join(role for role in "mn" if role in roles)
    product = reduce(lambda one, other: Node("mul", (one, other)), (var(buffer.name) for buffer in buffers))
    outs, partial = (Buffer("out0", out, "f64"),), splits > 1
    nest = Nest(
        buffers, (), outs, (product,), (REDUCTIONS["sum"],), () if partial else (var("s0"),), "f64", False, partial
    )
    rng = np.random.default_rng(len(roles))
    arrays = [rng.integers(-3, 4, [EXTENTS[role] for role in part]).astype(np.float64) for part in parts]
    sizes = {role: EXTENTS[role] for role in ROLES if role in roles} | {"splits": splits}
    got = outputs(nest, sizes)
    for threads in (1, 2):
        got[0][...] = np.nan
        run(
            small_blocks(nest),
            nest,
            [*(array[None, None, None] for array in arrays), *got],
            sizes,
            threads=threads,
            grain=1,
        )
        summed = got[0].sum(0) if partial else got[0]
        np.testing.assert_array_equal(summed[0, 0, 0], np.einsum(f"{roles}->{out}", *arrays))
