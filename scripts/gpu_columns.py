"""Times Gaussian products with several columns of v in every form that is possible on the present GPU, checked.

``python scripts/gpu_columns.py --output rows.jsonl`` writes a row for each number of features, of columns and form.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch

import kernmantle as km
from kernmantle.backends.cuda import columns_plan, row_reduce_plan
from kernmantle.runtime.cache import current_cache
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.kernel_store import collected
from kernmantle.torch_ops.cuda import limits
from scripts.gpu_clock import elapsed
from tests.cuda.row_nests import SQUARES, RowCase

Form = tuple[str, Callable[..., Any], Callable[..., Any]]
Shape = tuple[int, int, int, int]
POINTS, COLUMNS = (16, 32, 64, 100, 128), (8, 16, 32, 64, 128)
SCORE, TILES = row_reduce_plan.score_tile, row_reduce_plan.columns_tiles


def none(*_: object) -> None:
    """No tile."""


def forms(shape: Shape, direct: bool, every: bool) -> list[Form]:
    """Names of the forms, and what chooses tiles of columns and score tiles for each."""
    m, n, k, width = shape
    case = RowCase("timed", SQUARES, "product", m, n, k, width)
    found: list[Form] = []
    for tile, columns in columns_plan.columns_tiles(case.rows, case.sizes(), limits(0)):
        if every or columns == columns_plan.columns_of(width):
            name = f"{tile.name} by {columns}"
            found.append((name, lambda *_, tile=tile, columns=columns: (tile, columns), none))
    if width <= 8 and k <= 128:
        found.append(("score", none, SCORE))
    if direct:
        found.append(("before", none, none))
    return found


def data(shape: Shape, clusters: int = 0) -> tuple[torch.Tensor, ...]:
    """Points, normal or in clusters, and columns of v."""
    m, n, k, width = shape
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    x, y, v = (torch.randn(*each, device="cuda", generator=generator) for each in ((m, k), (n, k), (n, width)))
    if clusters:
        centres = torch.randn(clusters, k, device="cuda", generator=generator)
        x, y = (0.01 * each + centres[torch.arange(len(each), device="cuda") % clusters] for each in (x, y))
    return x, y, v


def drawn(count: int) -> list[Shape]:
    """Random shapes of 2^19 to 2^30 pairs, up to 1024 numbers a point and 256 columns of v."""
    random, found = Random(1), list[Shape]()
    for _ in range(count):
        pairs, share = random.uniform(19, 30), random.uniform(-4, 4)
        k = random.randint(16, 128) if random.random() < 0.75 else random.randint(129, 1024)
        extents = (max(192, round(2 ** (pairs / 2 + sign * share))) for sign in (1, -1))
        m, n = extents
        found.append((m, n, k, round(2 ** random.uniform(0, 8))))
    return found


def choose(form: Form) -> None:
    """Take a form from now on."""
    PLANS.clear()
    row_reduce_plan.columns_tile, row_reduce_plan.score_tile = form[1:]
    row_reduce_plan.columns_tiles = (lambda *_: []) if form[1] is none else TILES


def compile_all(shape: Shape, found: list[Form], pool: ThreadPoolExecutor) -> None:
    """Compile what the forms of a shape need, side by side."""
    jobs = {}
    for form in found:
        choose(form)
        with collected() as missing:
            km.Gaussian(math.sqrt(shape[2])).matmul(*data(shape))
        jobs |= missing
    list(pool.map(lambda job: current_cache().fetch(job.key, job.build), jobs.values()))


def timed(shape: Shape, form: Form, clusters: int = 0) -> dict[str, Any]:
    """Time of a call and its error on some rows, as a share of the sum of absolute products and norm-wise."""
    choose(form)
    m, n, k, width = shape
    x, y, v = data(shape, clusters)
    kernel = km.Gaussian(math.sqrt(k))
    found = kernel.matmul(x, y, v)
    rows = torch.arange(0, m, max(1, m // 64), device="cuda")
    entries = (
        -(torch.cdist(x[rows].double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2) / (2 * k)
    ).exp()
    wanted = entries @ v.double()
    off = found[rows].double() - wanted
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 60 and len(times) < 9):
        times.append(elapsed(lambda: kernel.matmul(x, y, v)))
    return {
        "what": "columns of v", "m": m, "n": n, "k": k, "columns": width, "form": form[0],
        "ms": round(statistics.median(times), 4), "route": kernel.info,
        "share": float((off.abs() / (entries @ v.double().abs())).max()), "norm": float(off.norm() / wanted.norm()),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip


def main() -> None:
    """Write a row per task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--n", type=int, default=100000)
    parser.add_argument("--points", type=int, nargs="+", default=POINTS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--direct", action="store_true", help="also what ran before there were such tiles")
    parser.add_argument("--deepest", type=int, default=columns_plan._DEEPEST, help="most numbers a point")
    parser.add_argument("--random", type=int, default=0, help="how many random shapes instead")
    parser.add_argument("--clusters", type=int, default=0, help="near-duplicates of so many points")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no shape after that")
    parser.add_argument("--every", action="store_true", help="also tiles that take several passes")
    given = parser.parse_args()
    columns_plan._DEEPEST = given.deepest
    columns_plan._LEAST_WIDTH = 1
    shapes = drawn(given.random) or [(given.n, given.n, k, c) for k in given.points for c in given.columns]
    if given.random:
        columns_plan._LEAST_ENTRIES = 1
    begin = time.perf_counter()
    with given.output.open("a") as file, ThreadPoolExecutor(14) as pool:
        for shape in shapes:
            if time.perf_counter() - begin > given.seconds:
                break
            found = forms(shape, given.direct, given.every)
            compile_all(shape, found, pool)
            for form in found:
                row = timed(shape, form, given.clusters) | ({"clusters": given.clusters} if given.clusters else {})
                file.write(json.dumps(row) + "\n")
                file.flush()
                errors = f"{row['share']:.1e} {row['norm']:.1e}"
                head = f"{row['m']:6d} {row['n']:6d} {row['k']:4d} {row['columns']:3d}"
                sys.stdout.write(f"{head} {row['form']:34s} {row['ms']:9.3f} {errors}\n")


if __name__ == "__main__":
    main()
