"""Times distances and their gradients on the present GPU, by tile and through the public function: a JSON row each."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import kernmantle as km
from kernmantle.backends.cuda.emit import ENTRY, emit, headers
from kernmantle.backends.cuda.gram_plan import Layout, plan, planned
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.tiles import TILES
from scripts.gpu_clock import milliseconds, write
from tests.cuda.harness import limits
from tests.cuda.nests import GAP, L1, PULLED, ROOT, Case, G, gram, op, powers_pulled_back, var

NESTS = {
    "signs": (gram(op("mul", G, op("sign", GAP)), **PULLED), ()),
    "linear": (gram(op("mul", op("mul", G, GAP), 2), **PULLED), ()),
    "pulled": (gram(powers_pulled_back(var("p")), **PULLED, numbers=("p",)), (1.3,)),
    "root": (gram(ROOT), ()),
    "threehalves": (gram(op("mul", L1, ROOT)), ()),
}
MACHINE = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda": torch.version.cuda}


class Kernels:
    """A nest on dense random arrays, in a tile."""

    def __init__(self, name: str, m: int, n: int, k: int, tile: str = "", **changes: int) -> None:
        nest, numbers = NESTS[name]
        case = Case("timed", nest, {"m": m, "n": n, "k": k}, numbers)
        ports = range(len(nest.ports))
        self.tensors = [torch.randn(case.count(i), device="cuda") for i in ports]
        strides = tuple(case.strides(i) for i in ports)
        facts = Layout(strides, (16,) * len(ports))
        rows = {row.name: row for row in TILES}
        chosen = rows[tile or plan(nest, case.extents(), limits(), facts).tile.name]
        self.plan = planned(nest, case.extents(), limits(), facts, replace(chosen, **changes))
        self.cubin = compile_source(emit(self.plan), self.plan.arch, headers(), name)
        self.kernel = Kernel(self.cubin.binary, ENTRY, self.plan.threads, self.plan.shared, name)
        integers = [*case.extents().values(), *(s for row in strides for s in row)]
        self.arguments = self.plan.arguments([t.data_ptr() for t in self.tensors], integers, numbers)
        self.blocks = self.plan.blocks(case.extents(), limits())

    def __call__(self) -> None:  # noqa: D102
        self.kernel(0, torch.cuda.current_stream().cuda_stream, self.blocks, self.arguments)


def by_tile(entry: str) -> dict[str, object]:
    """Row of ``nest:m,n,k[:tile[:field=number...]]``; the fields replace those of the tile."""
    name, shape, *tile = entry.split(":")
    m, n, k = map(int, shape.split(","))
    changes = {field: int(number) for field, number in (pair.split("=") for pair in tile[1:])}
    call = Kernels(name, m, n, k, *tile[:1], **changes)
    median, low, high = milliseconds(call, 0.1)
    taken = call.cubin.resources
    return {
        "map": name, "m": m, "n": n, "k": k, "tile": call.plan.tile.name, **changes,
        "ms": round(median, 5), "p20": round(low, 5), "p80": round(high, 5),
        "registers": taken.registers, "spills": taken.spill_stores, "resident": call.kernel.occupancy(0),
    }  # fmt: skip


def wrong(found: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error against the largest value."""
    return float(((found.double() - want).abs() / want.abs().max()).max())


def public(entry: str) -> list[dict[str, object]]:
    """Rows of ``p:m,n,k``: cdist, and with a product of sizes below 2^36 the backward pass for both operands."""
    name, shape = entry.split(":")
    p, (m, n, k) = float(name), map(int, shape.split(","))
    x, y = (torch.randn(rows, k, device="cuda", requires_grad=m * n * k < 1 << 36) for rows in (m, n))
    out = km.cdist(x, y, p=p)
    few = x[:4].detach().double().requires_grad_()
    want = ((few[:, None] - y.detach().double()).abs() ** p).sum(-1) ** (1 / p)
    row = {"m": m, "n": n, "k": k, "p": p}
    errors = {"error": wrong(out[:4].detach(), want.detach())}
    times = milliseconds(lambda: km.cdist(x.detach(), y.detach(), p=p), 0.3)
    rows = [{"public": "cdist", **row, "ms": round(times[0], 5), "p20": round(times[1], 5), **errors}]
    if x.requires_grad:
        cotangent = torch.randn(m, n, device="cuda")
        slopes = torch.autograd.grad(out, (x, y), cotangent, retain_graph=True)
        (exact,) = torch.autograd.grad(want, few, cotangent[:4].double())
        errors = {"error": wrong(slopes[0][:4], exact)}
        times = milliseconds(lambda: torch.autograd.grad(out, (x, y), cotangent, retain_graph=True), 0.3)
        rows.append({"public": "cdist backward", **row, "ms": round(times[0], 5), "p20": round(times[1], 5), **errors})
    return rows


def main(arguments: list[str]) -> None:
    """Time every entry, a nest's name or an exponent first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("entries", nargs="+")
    options = parser.parse_args(arguments)
    for entry in options.entries:
        rows = [by_tile(entry)] if entry.split(":")[0] in NESTS else public(entry)
        for row in rows:
            write(row | MACHINE, options.out)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
