"""VJPs to run on a GPU, with their arrays, and what they must give: numpy in float64, written out plainly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernmantle.backends.cuda.gram_plan import DeviceLimits
from kernmantle.backends.cuda.vjp_plan import VjpPlan, plan_vjp
from kernmantle.backends.cuda.vjp_tiles import VJP_TILES
from kernmantle.compiler.nest import ROLES, SIZES, Buffer, Layout, Nest
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS

GAP = Node("sub", (var("x0"), var("x1")))
SIGN, SIZE = Node("sign", (GAP,)), Node("abs", (GAP,))
SLOPES: dict[str, tuple[Node, tuple[str, ...]]] = {
    "signs": (SIGN, ()),
    "powers": (Node("mul", (SIGN, Node("pow", (SIZE, var("q"))))), ("q",)),
    "plain": (Node("mul", (SIGN, Node("exp", (Node("neg", (SIZE,)),)))), ()),
}
EXPONENT = 0.3
OURS = {"x0": "mn", "x1": "kn", "w": "mk", "c": "kl", "out0": "lmn"}
THEIRS = {"x0": "nm", "x1": "nk", "w": "km", "c": "lk", "out0": "lnm"}
Array = np.ndarray[Any, Any]


def nest_of(kind: str) -> Nest:
    """Σ_k c[k, l] w[m, k] slope(x0[m, n], x1[k, n])."""
    slope, numbers = SLOPES[kind]
    buffers = (("x0", "mn"), ("x1", "nk"), ("w", "mk"), ("c", "kl"))
    mapped = Node("mul", (var("c"), Node("mul", (var("w"), slope))))
    operands = tuple(Buffer(name, roles, "f32") for name, roles in buffers)
    return Nest(
        operands, numbers, (Buffer("out0", "mnl", "f32"),), (mapped,), (REDUCTIONS["sum"],), (var("s0"),), "f32",
        precision="default", vjp=True,
    )  # fmt: skip


@dataclass(frozen=True)
class VjpCase:
    """A VJP of some extents in a tile; ``batched`` are the buffers that have the batch axis of length ``a``."""

    name: str
    kind: str
    tile: str
    m: int
    n: int
    k: int
    l: int
    a: int = 1
    batched: str = ""
    layout: dict[str, str] = field(default_factory=lambda: OURS)
    poison: float | None = None
    scale: float = 1.0

    @property
    def nest(self) -> Nest:
        """The loop nest."""
        return nest_of(self.kind)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Values of the nest's numbers."""
        return (EXPONENT,) * len(self.nest.numbers)

    def sizes(self) -> dict[str, int]:
        """Extent of every role."""
        own = {"a": self.a, "m": self.m, "n": self.n, "k": self.k, "l": self.l}
        return {role: own.get(role, 1) for role in SIZES}

    def order(self, buffer: str) -> str:
        """Roles of a buffer in memory order."""
        batch = "a" if self.a > 1 and (buffer == "out0" or buffer in self.batched.split()) else ""
        return batch + self.layout[buffer]

    def strides(self) -> list[tuple[int, ...]]:
        """Strides of every buffer, in elements."""
        found = []
        for buffer in self.nest.buffers:
            step, steps = 1, dict.fromkeys(ROLES, 0)
            for role in reversed(self.order(buffer.name)):
                steps[role] = step
                step *= self.sizes()[role]
            found.append(tuple(steps[role] for role in ROLES))
        return found

    def arrays(self) -> dict[str, Array]:
        """Operands in memory order; some rows are some points, so that differences are 0."""
        random = np.random.default_rng(sum(map(ord, self.name)))
        made = {}
        for buffer in self.nest.operands:
            shape = [self.sizes()[role] for role in self.order(buffer.name)]
            made[buffer.name] = (random.standard_normal(shape) * self.scale).astype(np.float32)
        equal = min(self.m, self.k, 3)
        if "a" not in self.order("x0") + self.order("x1"):
            points, rows = _view(made["x0"], self.order("x0"), "mn"), _view(made["x1"], self.order("x1"), "kn")
            rows[:equal] = points[:equal]
            if self.poison is not None:
                rows[self.k // 2, self.n // 2] = self.poison
        return made

    def plan(self, limits: DeviceLimits) -> VjpPlan | None:
        """How the GPU runs it; None where it does not have the tile."""
        return plan_vjp(self.nest, self.sizes(), limits, self.facts(), tile=self.tile)

    def facts(self) -> Layout:
        """Strides of arrays that are all well aligned."""
        strides = tuple(self.strides())
        return Layout(strides, (16,) * len(strides))

    def expected(self) -> tuple[Array, Array]:
        """The result as (a, l, m, n), and the sum of the magnitudes of its terms."""
        arrays = {
            name: _view(array, self.order(name), ("a" if "a" in self.order(name) else "") + roles).astype(np.float64)
            for (name, array), roles in zip(self.arrays().items(), ("mn", "kn", "mk", "kl"), strict=True)
        }
        z, x, w, c = (array if array.ndim == 3 else array[None] for array in arrays.values())
        gap = z[:, :, None] - x[:, None]
        with np.errstate(all="ignore"):
            sizes = {"signs": np.ones_like(gap), "powers": np.abs(gap) ** EXPONENT, "plain": np.exp(-np.abs(gap))}
            slope = np.sign(gap) * sizes[self.kind]
            weights = w[:, None] * c.swapaxes(1, 2)[:, :, None]
            weights = np.broadcast_to(weights, (self.a, *weights.shape[1:]))
            slope = np.broadcast_to(slope, (self.a, *slope.shape[1:]))
            result = np.einsum("almk,amkn->almn", weights, slope)
            return result, np.einsum("almk,amkn->almn", np.abs(weights), np.abs(slope))


def _view(array: Array, order: str, wanted: str) -> Array:
    return array.transpose([order.index(role) for role in wanted])


def cases() -> list[VjpCase]:
    """Every tile with every slope at edges of the tile, then layouts, batches, outliers."""
    made = []
    for tile, kind in itertools.product(VJP_TILES, SLOPES):
        if kind not in tile.cycles:
            continue
        extents = (
            (tile.points + 1, tile.columns - 1, tile.depth + 1, max(1, tile.outputs - 1)),
            (tile.points, tile.columns, 4 * tile.depth, tile.outputs),
            (1, 3, 1, 1),
        )
        made += [VjpCase(f"{tile.name}_{kind}_{i}", kind, tile.name, *each) for i, each in enumerate(extents)]
    for tile, kind in (("one_lean", "powers"), ("two", "signs"), ("eight", "plain"), ("sixteen_async", "powers")):
        small = (37, 41, 70, 3)
        made += [
            VjpCase(f"{tile}_theirs", kind, tile, *small, layout=THEIRS),
            VjpCase(f"{tile}_batch", kind, tile, *small, a=3, batched="x0 w"),
            VjpCase(f"{tile}_batch_rows", kind, tile, *small, a=2, batched="x1 c"),
            VjpCase(f"{tile}_nan", kind, tile, *small, poison=np.nan),
            VjpCase(f"{tile}_inf", kind, tile, *small, poison=np.inf),
            VjpCase(f"{tile}_huge", kind, tile, *small, scale=1e9),
            VjpCase(f"{tile}_tiny", kind, tile, *small, scale=1e-9),
            VjpCase(f"{tile}_split", kind, tile, 40, 50, 2500, 2),
        ]
    return made
