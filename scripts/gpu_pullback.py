"""Times the tiles of pullbacks on this GPU: a JSON row per entry ``p:outputs:tile[:layout]``, checked, then timed.

The sources compile in as many processes as there are cores, before the GPU is touched. Layout "ours" has weights with
rows first in memory, "theirs" everything the other way round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.gram_plan import Layout
from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.nvrtc import compile_source
from kernmantle.backends.cuda.vjp_emit import emit, entry_name, threads_of
from kernmantle.backends.cuda.vjp_plan import PullPlan, fixed, pull_plan, schedule, workspace
from kernmantle.backends.cuda.vjp_tiles import PULL_TILES
from kernmantle.compiler.nest import ROLES, Nest, Port
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS
from scripts.gpu_clock import milliseconds, write
from tests.cuda.harness import limits

GAP = Node("sub", (var("x0"), var("x1")))
SIGN, SIZE = Node("sign", (GAP,)), Node("abs", (GAP,))
POWER = Node("mul", (SIGN, Node("pow", (SIZE, var("q")))))
FADED = Node("mul", (SIGN, Node("exp", (Node("neg", (SIZE,)),))))
SLOPES = {"1": (SIGN, ()), "1.3": (POWER, (0.3,)), "faded": (FADED, ())}
LAYOUTS = {
    "ours": {"x0": "mn", "x1": "kn", "w": "mk", "c": "kl", "out0": "lmn"},
    "theirs": {"x0": "nm", "x1": "nk", "w": "km", "c": "lk", "out0": "lnm"},
}


def nest_of(slope: Node, numbers: int) -> Nest:
    """A pullback by this slope."""
    ports = (("x0", "mn"), ("x1", "nk"), ("w", "mk"), ("c", "kl"))
    mapped = Node("mul", (var("c"), Node("mul", (var("w"), slope))))
    return Nest(
        tuple(Port(name, roles, "f32") for name, roles in ports), ("q",) * numbers, (Port("out0", "mnl", "f32"),),
        (mapped,), (REDUCTIONS["sum"],), (var("s0"),), "f32", precision="default", pulled=True,
    )  # fmt: skip


class Timed:
    """A pullback of one shape in one tile."""

    def __init__(self, entry: str, m: int, n: int, k: int) -> None:
        p, outputs, tile, *layout = entry.split(":")
        self.p, self.sizes = p, dict.fromkeys("abc", 1) | {"m": m, "n": n, "k": k, "l": int(outputs), "splits": 1}
        slope, self.numbers = SLOPES[p]
        self.order = LAYOUTS[layout[0] if layout else "ours"]
        self.nest = nest_of(slope, len(self.numbers))
        self.strides = tuple(self._strides(port.name) for port in self.nest.ports)
        self.facts = Layout(self.strides, (16,) * 5)
        self.row: dict[str, Any] = {
            "p": p,
            "outputs": int(outputs),
            "m": m,
            "n": n,
            "k": k,
            "layout": (layout or ["ours"])[0],
        }
        self.tile = tile

    def _strides(self, name: str) -> tuple[int, ...]:
        step, found = 1, {}
        for role in reversed(self.order[name]):
            found[role] = step
            step *= self.sizes[role]
        return tuple(found.get(role, 0) for role in ROLES)

    def planned(self, own: Any) -> PullPlan:
        """The plan in the tile asked for."""
        chosen = pull_plan(self.nest, self.sizes, own, self.facts, tile="" if self.tile == "best" else self.tile)
        assert chosen is not None, self.tile
        return chosen

    def load(self, plan: PullPlan, cubin: Any) -> None:
        """Kernels, arrays and memory."""
        self.plan = plan
        self.schedule = schedule(plan, self.sizes, limits())
        where = workspace(plan, self.sizes, self.facts, self.schedule)
        self.kernels = {
            name: Kernel(cubin.binary, entry_name(name), threads_of(plan, name),
                         plan.tile.shared(plan.slope.kind) if name == "main" else 0, name)
            for name in plan.kernels
        }  # fmt: skip
        generator = torch.Generator("cuda").manual_seed(0)
        self.arrays = {
            name: torch.randn([self.sizes[r] for r in order], device="cuda", generator=generator)
            for name, order in self.order.items()
        }
        self.arrays["w"].uniform_(0, 1)
        self.view("x1", "kn")[:8] = self.view("x0", "mn")[:8]
        self.arrays["out0"].fill_(float("nan"))
        self.memory = torch.zeros(where.size, dtype=torch.uint8, device="cuda")
        self.zeroed = self.memory[: where.zeroed]
        base = self.memory.data_ptr()
        integers = [*self.sizes.values(), *(stride for row in self.strides for stride in row)]
        self.arguments = (
            *(self.arrays[port.name].data_ptr() for port in self.nest.ports), *fixed(plan, integers), *self.numbers,
            *plan.power_arguments(self.numbers), *(base + offset for offset in where.offsets),
            self.schedule.whole, self.schedule.splits, self.schedule.share,
        )  # fmt: skip
        self.row |= {
            "tile": plan.tile.name,
            "engine": plan.tile.engine,
            "scratch": where.size,
            "splits": self.schedule.splits,
        }

    def view(self, name: str, order: str) -> torch.Tensor:
        """An array with its axes in an order."""
        return self.arrays[name].permute([self.order[name].index(role) for role in order])

    def start(self, name: str) -> None:
        """Launch one of the kernels."""
        around = 8 * limits().sm_count
        blocks = {"main": self.schedule.blocks, "finish": self.schedule.tiles - self.schedule.whole}.get(name, around)
        self.kernels[name](0, torch.cuda.current_stream().cuda_stream, blocks, self.arguments)

    def __call__(self) -> None:  # noqa: D102
        self.zeroed.zero_()
        for name in self.steps():
            self.start(name)

    def steps(self) -> list[str]:
        """Kernels in their order."""
        return [*self.plan.passes, "main", *["finish"] * (self.schedule.splits > 1), *["mend"] * self.plan.mends]

    def error(self) -> float:
        """Largest error at some points and columns, in units of the sum of magnitudes, and of the norm."""
        self()
        points = torch.tensor([0, 1, 5, self.sizes["m"] // 2, self.sizes["m"] - 1], device="cuda")
        columns = torch.tensor(
            [0, 3, self.sizes["n"] // 2 + 1, self.sizes["n"] - 2, self.sizes["n"] - 1], device="cuda"
        )
        z, x = self.view("x0", "mn")[points][:, columns].double(), self.view("x1", "kn")[:, columns].double()
        w, c = self.view("w", "mk")[points].double(), self.view("c", "kl").double()
        d = z[:, None] - x[None]
        phi = {"1": d.sign(), "1.3": d.sign() * d.abs() ** 0.3, "faded": d.sign() * (-d.abs()).exp()}[self.p]
        want = torch.einsum("kl,mk,mkn->lmn", c, w, phi)
        got = self.view("out0", "lmn")[:, points][:, :, columns].double()
        if not torch.isfinite(self.arrays["out0"]).all():
            return float("inf")
        return float((got - want).norm() / want.norm())


def compiled(job: tuple[str, str, str]) -> Any:
    """A cubin of a source."""
    source, arch, name = job
    return compile_source(source, arch, headers(), name)


def main(arguments: list[str]) -> None:
    """Check and time entries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shape", default="10000,768,10000")
    parser.add_argument("entries", nargs="+")
    options = parser.parse_args(arguments)
    m, n, k = map(int, options.shape.split(","))
    known = {tile.name for tile in PULL_TILES} | {"best"}
    calls = [Timed(entry, m, n, k) for entry in options.entries if entry.split(":")[2] in known]
    own = limits()
    plans = [call.planned(own) for call in calls]
    jobs = list(dict.fromkeys((emit(plan), plan.arch, str(plan)) for plan in plans))
    with multiprocessing.get_context("fork").Pool() as pool:
        cubins = dict(zip(jobs, pool.map(compiled, jobs, chunksize=1), strict=True))
    for call, plan in zip(calls, plans, strict=True):
        cubin = cubins[emit(plan), plan.arch, str(plan)]
        call.load(plan, cubin)
        row = call.row | {"error": call.error()}
        row["ms"] = round(milliseconds(call, 0.0)[0], 4)
        row["steps"] = {
            name: round(milliseconds(lambda name=name, call=call: call.start(name), 0.0, least=1)[0], 4)
            for name in call.steps()
        }
        write(row, options.out)
        call.arrays.clear()
        del call.memory, call.zeroed
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
