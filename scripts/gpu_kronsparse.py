"""Times the tiles of the Kronecker-sparse kernel on the present GPU: a JSON row per pattern and tile, checked first.

The sources compile in as many processes as there are cores, before the GPU is touched.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.runtime.cache import current_cache
from kernmantle.structured.mode_product import cuda, cuda_emit
from kernmantle.structured.mode_product import plan as plans
from kernmantle.structured.mode_product import tiles as choice
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.structured.mode_product.tile_cost import tile_seconds
from kernmantle.torch_ops.cuda import job_for

H200 = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)
PATTERNS = (
    (6, 64, 64, 1), (1, 768, 192, 2), (1, 128, 128, 3), (1, 64, 64, 128), (1, 256, 256, 64), (16, 64, 64, 4),
    (1, 1024, 1024, 4), (3, 192, 192, 16),
)  # fmt: skip
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCH = 25088
BEYOND_CACHE = 3e8


def cases(count: int, dtypes: Sequence[str]) -> Iterator[tuple[plans.Problem, plans.Tile]]:
    """What is timed."""
    for pattern in PATTERNS:
        for dtype in dtypes:
            for first in (True, False):
                given = plans.contiguous(pattern, BATCH, dtype, first)
                yield from ((given, tile) for tile in choice.tiles_to_try(given, H200, count))


def compile_one(case: tuple[plans.Problem, plans.Tile]) -> None:
    """Compile into the cache."""
    chosen = choice._with(case[1], case[0], H200)
    job = job_for(cuda_emit.emit(chosen), chosen.arch, str(chosen))
    current_cache().fetch(job.key, job.build)


def microseconds(call: Callable[[int], object], sets: int) -> float:
    """Median time of one of many calls in a graph that walks over sets of arrays."""
    for i in range(min(sets, 2)):
        call(i)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(0)
    end.record()
    end.synchronize()
    rounds = max(4, min(40, int(6.0 / max(begin.elapsed_time(end), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(rounds):
            call(i % sets)
    times: list[float] = []
    for _ in range(4):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / rounds)
    return sorted(times[1:])[1]


class Arrays:
    """Operands of a problem, as many sets as exceed the second cache."""

    def __init__(self, given: plans.Problem) -> None:
        _, b, c, _ = given.pattern
        self.given, kind, n = given, DTYPES[given.dtype], given.batch
        wide = given.pattern[0] * given.pattern[3]
        self.sets = max(1, min(5, 1 + int(BEYOND_CACHE // (kind.itemsize * n * wide * (b + c)))))
        source = torch.Generator("cuda").manual_seed(1)

        def rows(features: int) -> torch.Tensor:
            shape = (1, n, features) if given.x_first else (1, features, n)
            made = torch.randn(shape, generator=source, device="cuda").to(kind)
            return made if given.x_first else made.mT

        self.x = [rows(wide * c) for _ in range(self.sets)]
        self.y = [rows(wide * b) for _ in range(self.sets)]
        self.weight = (torch.randn((1, *given.pattern), generator=source, device="cuda") / math.sqrt(c)).to(kind)

    def poison(self) -> None:
        """So that nothing of an earlier result is taken for the next."""
        for y in self.y:
            y.fill_(float("nan"))

    def error(self) -> float:
        """Largest error of some rows relative to the root mean square, in float64; infinite for NaN anywhere."""
        a, _, c, d = self.given.pattern
        n = self.given.batch
        rows = torch.cat([torch.arange(70), torch.arange(n - 70, n), torch.randint(n, (60,))]).cuda()
        x = self.x[0][0].index_select(0, rows).double().view(-1, a, c, d)
        want = torch.einsum("nikl,ijkl->nijl", x, self.weight[0].double()).reshape(len(rows), -1)
        got = self.y[0][0].index_select(0, rows).double()
        worst = float(((got - want).abs() / want.square().mean().sqrt()).max())
        return worst if bool(torch.isfinite(self.y[0]).all()) else math.inf


def measure(given: plans.Problem, tile: plans.Tile, arrays: Arrays) -> dict[str, Any]:
    """A row."""
    chosen = choice.plan(given, H200, tile)
    assert chosen is not None
    arrays.poison()
    weights, packed = arrays.weight.stride(), PackedWeights()
    strides = (*arrays.x[0].stride(), *arrays.y[0].stride(), *weights, 0)
    run = cuda._wide(chosen, given, 0, weights, strides, False)
    assert run is not None
    taken = microseconds(lambda i: run(arrays.x[i], arrays.weight, None, arrays.y[i], packed), arrays.sets)
    return {
        "pattern": given.pattern, "dtype": given.dtype, "layout": "first" if given.x_first else "last",
        "tile": vars(tile), "us": taken, "error": arrays.error(), "model": 1e6 * tile_seconds(chosen, given, H200),
    }  # fmt: skip


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5, help="tiles for each problem")
    parser.add_argument("--dtypes", nargs="+", default=["f32", "f16"])
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    options = parser.parse_args()
    entered = list(cases(options.count, options.dtypes))
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(compile_one, entered, chunksize=2)
    arrays: Arrays | None = None
    for given, tile in entered:
        if arrays is None or arrays.given != given:
            arrays = None
            arrays = Arrays(given)
        row = measure(given, tile, arrays)
        held = "" if tile.resident else " streamed"
        shape = f"l{tile.l} m{tile.m} nj{tile.columns} kc{tile.chunk} st{tile.stages} w{tile.warps}{held}"
        sys.stdout.write(
            f"{given.pattern} {given.dtype} {row['layout']} {shape}: {row['us']:.1f} us, model {row['model']:.0f}, "
            f"error {row['error']:.1e}\n"
        )
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
