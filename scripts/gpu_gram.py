"""Times the tiles of the gram schema on the present GPU: a JSON row per shape, map and tile, checked, then timed."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from kernmantle.backends.cuda.emit import ENTRY, emit, headers
from kernmantle.backends.cuda.gram_plan import Layout, candidates, planned
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.tiles import Tile
from kernmantle.compiler.nest import Nest
from scripts.gpu_clock import elapsed, milliseconds, write
from tests.cuda.harness import limits
from tests.cuda.nests import L1, PLUS, PRODUCT, SQUARE, Case, gram, op, var

POWER = gram(op("pow", L1, var("p")), numbers=("p",))
HALF = gram(op("pow", L1, 1.5))
LAPLACE = gram(L1, outputs=(op("exp", op("neg", var("s0"))),))
NESTS = {
    "l1": gram(L1),
    "square": gram(SQUARE),
    "product": gram(PRODUCT),
    "minplus": gram(PLUS, "min"),
    "power": POWER,
    "l1.5": HALF,
    "symmetric": gram(L1, symmetric=True),
    "laplace": LAPLACE,
    "f16": gram(L1, dtype="f16"),
    "half": replace(gram(L1, dtype="f16"), precision="half"),
    "root": gram(op("sqrt", L1)),
    "cube": gram(op("pow", L1, 3)),
}
KINDS = {"f16": torch.float16, "f32": torch.float32}


class Timed:
    """A nest on a shape, ready to launch on torch's current stream."""

    def __init__(self, nest: Nest, m: int, n: int, k: int, tile: Tile) -> None:
        self.case = Case("timed", nest, {"m": m, "n": n, "k": k}, (1.3,) * len(nest.numbers))
        generator = torch.Generator("cuda").manual_seed(m + k)
        kind = KINDS[nest.operands[0].dtype]
        self.x = torch.randn(m, k, device="cuda", generator=generator).to(kind)
        self.y = self.x if nest.symmetric else torch.randn(n, k, device="cuda", generator=generator).to(kind)
        self.out = torch.full((m, n), float("nan"), device="cuda")
        ports = range(len(nest.ports))
        strides = tuple(self.case.strides(i) for i in ports)
        self.plan = planned(nest, self.case.extents(), limits(), Layout(strides, (16,) * len(ports)), tile)
        self.cubin = compile_source(emit(self.plan), self.plan.arch, headers(), "gram")
        self.kernel = Kernel(self.cubin.binary, ENTRY, self.plan.threads, self.plan.shared, "gram")
        pointers = [t.data_ptr() for t in (self.x, self.y, self.out)]
        integers = [*self.case.extents().values(), *(s for row in strides for s in row)]
        self.arguments = self.plan.arguments(pointers, integers, self.case.numbers)
        self.blocks = self.plan.blocks(self.case.extents(), limits())

    def __call__(self) -> None:  # noqa: D102
        self.kernel(0, torch.cuda.current_stream().cuda_stream, self.blocks, self.arguments)

    def error(self, name: str) -> float:
        """Largest relative error over the last rows and columns, in float64."""
        self()
        x, y = self.x[-150:].double(), self.y[-200:].double()
        gap = x[:, None] - y[None]
        values = {
            "square": lambda: (gap**2).sum(-1), "product": lambda: (x[:, None] * y[None]).sum(-1),
            "minplus": lambda: (x[:, None] + y[None]).amin(-1), "power": lambda: (gap.abs() ** 1.3).sum(-1),
            "l1.5": lambda: (gap.abs() ** 1.5).sum(-1), "root": lambda: gap.abs().sqrt().sum(-1),
            "cube": lambda: (gap.abs() ** 3).sum(-1), "laplace": lambda: torch.exp(-gap.abs().sum(-1)),
        }  # fmt: skip
        want = values.get(name, lambda: gap.abs().sum(-1))()
        got = self.out[-150:, -200:].double()
        if not torch.isfinite(self.out).all():
            return float("inf")
        return float(((got - want).abs() / want.abs().clamp_min(want.abs().max() * 1e-3)).max())


def replayed(call: Timed, count: int = 20) -> float:
    """Milliseconds a call takes in a CUDA graph of ``count``."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    best = float("inf")
    for _ in range(5):
        best = min(best, elapsed(graph.replay) / count)
    return best


def main(arguments: list[str]) -> None:
    """Time ``map:m,n,k[:tile[:field=number...]]``; without a tile every candidate, ``best`` is the planner's choice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("entries", nargs="+")
    options = parser.parse_args(arguments)
    for entry in options.entries:
        name, shape, *tile = entry.split(":")
        m, n, k = map(int, shape.split(","))
        nest = NESTS[name]
        extents = Case("", nest, {"m": m, "n": n, "k": k}).extents()
        best = candidates(nest, extents, limits())
        chosen = best if not tile else [one for one in best if tile[0] in ("best", one.name)][:1]
        changes = {field: int(number) for field, number in (pair.split("=") for pair in tile[1:])}
        for each in chosen:
            call = Timed(nest, m, n, k, replace(each, **changes))
            error = call.error(name)
            median, low, high = milliseconds(call, 0.3)
            row = {
                "map": name, "m": m, "n": n, "k": k, "tile": each.name, **changes, "ms": round(median, 5),
                "p20": round(low, 5), "p80": round(high, 5), "error": error,
                "registers": call.cubin.resources.registers,
                "spills": call.cubin.resources.spill_stores, "resident": call.kernel.occupancy(0),
                "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
            }  # fmt: skip
            if m * n <= 1 << 24:
                row["graph_ms"] = round(replayed(call), 5)
            write(row, options.out)
            del call
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
