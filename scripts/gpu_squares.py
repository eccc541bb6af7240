"""Times sums of squared differences by products on the present GPU: a JSON row per data, shape and tile, checked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from kernmantle.backends.cuda.emit import ENTRY, emit
from kernmantle.backends.cuda.gram_plan import CudaPlan, Layout, plan
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.squares_plan import squares_plan
from kernmantle.compiler.nest import Nest
from kernmantle.ir.node import var
from scripts.gpu_clock import milliseconds, write
from tests.cuda.harness import compiled, limits
from tests.cuda.nests import SQUARE, Case, gram, op

ROOT = (op("sqrt", var("s0")),)
SQUARES = replace(gram(SQUARE, outputs=ROOT), precision="default")
NESTS: dict[str, Nest] = {
    "symmetric": replace(gram(SQUARE, outputs=ROOT, symmetric=True), precision="default"),
    "f16": replace(gram(SQUARE, outputs=ROOT, dtype="f16", out="f16"), precision="default"),
    "bf16": replace(gram(SQUARE, outputs=ROOT, dtype="bf16", out="bf16"), precision="default"),
    "tf32": replace(SQUARES, precision="tf32"),
    "ieee": replace(SQUARES, precision="ieee"),
}
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
CLUSTERS = {"clusters": 7, "sorted": 20, "sparse": 40}


def operands(kind: str, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Data of a kind: normal numbers, pairs of graded distance, or clusters of near-duplicates."""
    generator = torch.Generator("cuda").manual_seed(m + k)
    x, y = (torch.randn(rows, k, device="cuda", generator=generator) for rows in (m, n))
    count = min(m, n)
    if kind == "near":
        share = torch.logspace(-14, 0, count, device="cuda")[:, None]
        y[:count] = x[:count] + share.sqrt() * y[:count]
    if kind in CLUSTERS:
        centres = 10 * torch.randn(CLUSTERS[kind], k, device="cuda", generator=generator)
        for each in (x, y):
            place = torch.arange(len(each), device="cuda")
            of = place * len(centres) // len(each) if kind == "sorted" else place % len(centres)
            each.mul_(1e-4).add_(centres[of])
    return x.to(dtype), y.to(dtype)


class Timed:
    """A nest on data, its kernels ready to launch on torch's current stream."""

    def __init__(self, kind: str, shape: tuple[int, int, int], tile: str | None, options: str) -> None:
        nest = NESTS.get(kind, SQUARES)
        self.case = Case("timed", nest, dict(zip("mnk", shape, strict=True)))
        self.x, self.y = operands(kind, *shape, TYPES[nest.operands[0].dtype])
        self.y = self.x if nest.symmetric else self.y
        self.out = torch.full(shape[:2], float("nan"), device="cuda", dtype=TYPES[nest.outs[0].dtype])
        ports, extents, own = range(len(nest.ports)), self.case.extents(), limits()
        strides = tuple(self.case.strides(i) for i in ports)
        facts = Layout(strides, (16,) * len(ports))
        self.options = options
        pointers = [t.data_ptr() for t in (self.x, self.y, self.out)]
        integers = [*extents.values(), *(step for row in strides for step in row)]
        if kind == "ieee":
            chosen = plan(nest, extents, own, facts, tile)
            self.steps = [self._step("direct", chosen, chosen.blocks(extents, own), (), integers, pointers)]
            self.plan = chosen
            return
        squares = squares_plan(nest, extents, own, facts, tile)
        assert squares is not None
        self.scratch = torch.empty(squares.scratch.size, dtype=torch.uint8, device="cuda")
        handed = tuple(self.scratch.data_ptr() + offset for offset in squares.scratch.offsets)
        self.steps = [
            self._step("split", squares.split, squares.split_blocks, handed, integers, pointers),
            self._step("main", squares.main, squares.main.blocks(extents, own), handed, integers, pointers),
            self._step("direct", squares.direct, squares.direct.blocks(extents, own), handed[:1], integers, pointers),
        ]
        self.plan = squares.main

    def _step(
        self, name: str, chosen: CudaPlan, blocks: int, handed: tuple[int, ...], integers: list[int], where: list[int]
    ) -> Callable[[], None]:
        source = emit(chosen)
        if self.options and name == "main":
            source = source.replace("> Tile;", f", {self.options}> Tile;")
        kernel = Kernel(compiled(source, chosen.arch).binary, ENTRY, chosen.threads, chosen.shared, name)
        arguments = (*handed, *chosen.arguments(where, integers, ()))
        return lambda: kernel(0, torch.cuda.current_stream().cuda_stream, blocks, arguments)

    def __call__(self) -> None:  # noqa: D102
        self.first(len(self.steps))

    def first(self, count: int) -> None:
        """Launch the first kernels."""
        for step in self.steps[:count]:
            step()

    def error(self) -> float:
        """Largest relative error over the last rows and columns and pairs along the diagonal, in float64."""
        self()
        tail = torch.cdist(self.x[-150:].double(), self.y[-200:].double(), compute_mode="donot_use_mm_for_euclid_dist")
        count = min(self.out.shape)
        pairs = (self.x[:count].double() - self.y[:count].double()).square().sum(-1).sqrt()
        worst = 0.0
        for got, want in ((self.out[-150:, -200:], tail), (self.out.diagonal(), pairs)):
            off = torch.where(got.double() == want, 0.0, (got.double() - want).abs() / want)
            worst = max(worst, float(torch.nan_to_num(off, nan=torch.inf).max()))
        return worst if bool(torch.isfinite(self.out).all()) else float("inf")


def main(arguments: list[str]) -> None:
    """Time ``data:m,n,k[:tile[:template arguments]]`` entries; data as in NESTS, CLUSTERS, "plain" or "near"."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("entries", nargs="+")
    options = parser.parse_args(arguments)
    for entry in options.entries:
        kind, shape, tile, more = [*entry.split(":"), "", ""][:4]
        m, n, k = map(int, shape.split(","))
        call = Timed(kind, (m, n, k), tile.replace("_", " ") or None, more)
        error = call.error()
        median, low, high = milliseconds(call, options.seconds)
        row = {
            "squares": kind, "m": m, "n": n, "k": k, "tile": call.plan.tile.name, "options": more,
            "ms": round(median, 5), "p20": round(low, 5), "p80": round(high, 5), "error": error,
            "until": [
                round(milliseconds(partial(call.first, count), options.seconds / 4)[0], 5)
                for count in range(1, len(call.steps))
            ],
            "gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
        }  # fmt: skip
        write(row, options.out)
        del call
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
