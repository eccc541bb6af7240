"""Whether two checkouts choose the same plans of Kronecker-sparse products, their gradients and Kronecker products.

``python scripts/compare_choices.py BASE [COUNT [SEED]]`` from the root of a checkout, on any machine; BASE is another
one. Random patterns, rows, types, orders and GPUs; the first choices that differ are printed. These are figures of
decision 0103.
"""

# ruff: noqa: T201
from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron import cuda as kron_cuda
from kernmantle.structured.kron.modes import parse
from kernmantle.structured.kron.run import arranged
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import (
    block_sum_plan,
    column_sum_plan,
    cuda,
    fma_sum_plan,
    row_sum_plan,
    stream_mma_plan,
    stream_plan,
    tiles,
)
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.torch_op import Options

SHOWN, CLOSE, DEVICE = 5, 1e-12, torch.device("cuda:0")


def logarithmic(rng: random.Random, most: int) -> int:
    """Return a number up to ``most``, of any magnitude."""
    return round(math.exp(rng.uniform(0, math.log(most))))


def sparse(rng: random.Random) -> dict[str, Any]:
    """Return the choices for a random pattern."""
    pattern = logarithmic(rng, 130), rng.randint(1, 600), rng.randint(1, 600), logarithmic(rng, 300)
    while math.prod(pattern) > 3e7:
        a, b, c, d = pattern
        pattern = a, -(-b // 2), -(-c // 2), -(-d // 2)
    rows, dtype = rng.choice([rng.randint(1, 256), logarithmic(rng, 40000)]), rng.choice(("f32", "f16", "bf16"))
    first, own, access = (
        rng.random() < 0.65,
        CARDS[rng.choice(("sm_90", "sm_90", "sm_80", "sm_100"))],
        rng.choice((16, 4)),
    )
    given, sizes = contiguous(pattern, rows, dtype, first), (pattern, rows, dtype)
    with mock.patch.object(cuda, "limits", return_value=own):
        kinds = [
            chain_training.kind_for((pattern,), rows, dtype, not first, Options(False, "auto", ""), DEVICE, captured)
            for captured in (False, True)
        ]
        expected = chain_training.expected((pattern,), rows, dtype, not first, DEVICE)
        chain_training.expected.cache_clear()
        chain_training._host_of.cache_clear()
    return {
        "given": (*sizes, first, own.arch, access),
        "tile": repr(tiles.plan(given, own)),
        "stream": repr(stream_plan.stream_plan(given, first, own, access)),
        "stream by mma": repr(stream_mma_plan.stream_mma_plan(given, first, own, access)),
        "row sums": repr(row_sum_plan.row_sum_plan(*sizes, access, 16, 3, own)),
        "column sums": repr(column_sum_plan.column_sum_plan(*sizes, access, 16, 3, own)),
        "block sums": repr(block_sum_plan.block_sum_plan(*sizes, own)),
        "fma sums": repr(fma_sum_plan.fma_sum_plan(*sizes, first, access, own)),
        "kinds": kinds, "seconds": expected,
    }  # fmt: skip


def kronecker(rng: random.Random) -> dict[str, Any]:
    """Return the choice for random factors."""
    count = rng.randint(1, 6)
    most = round(2000 ** (1 / count)) + 2
    shapes = tuple((rng.randint(1, most), rng.randint(1, most)) for _ in range(count))
    dtype, rows = rng.choice((torch.float32, torch.bfloat16, torch.float16, torch.float64)), logarithmic(rng, 40000)
    options = "default fuse" if rng.random() < 0.7 else f"default saving {'1' * (count + 1)} fuse"
    sides = [math.prod(each[side] for each in shapes) for side in (1, 0)]
    columns = rng.choice((1, 1, 4))
    x, out = (torch.empty(rows, side, columns, dtype=dtype, device="meta") for side in sides)
    factors = [torch.empty(each, dtype=dtype, device="meta") for each in shapes]
    modes = parse(" ".join(map(str, range(count))), shapes)
    own = CARDS[rng.choice(("sm_90", "sm_90", "sm_80", "sm_100"))]
    plan = kron_cuda.planned_for(own, modes, arranged(x, factors, None, out), options)[0]
    return {
        "given": (shapes, str(dtype), rows, options, own.arch),
        "passes": repr(plan.passes),
        "seconds": plan.seconds,
    }


def choices(count: int, seed: int) -> list[dict[str, Any]]:
    """Return the choices of this checkout."""
    rng = random.Random(seed)
    return [sparse(rng) if number % 5 else kronecker(rng) for number in range(count)]


def alike(one: Any, other: Any) -> bool:
    """Return whether choices are equal, and their seconds close."""
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return one == other


def of_checkout(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the choices of a checkout, made by a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    command = [sys.executable, __file__, "--choices", str(count), str(seed)]
    return pickle.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def compare(base: Path, count: int = 500, seed: int = 0) -> int:
    """Print how many choices differ, and the first of them; return 1 if any does."""
    pairs = zip(of_checkout(base, count, seed), of_checkout(Path.cwd(), count, seed), strict=True)
    differing = [
        (one, key, one[key], other[key]) for one, other in pairs for key in one if not alike(one[key], other[key])
    ]
    for one, key, before, now in differing[:SHOWN]:
        print(f"{one['given']}: {key}\n  {before}\n  {now}")
    print(f"{len(differing)} choices differ of {count} patterns and products")
    return int(bool(differing))


if __name__ == "__main__":
    if sys.argv[1] == "--choices":
        sys.stdout.buffer.write(pickle.dumps(choices(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        sys.exit(compare(Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:])))
