"""The GPU suite of softmax-weighted sums and soft minima: attention and its gradients, Sinkhorn's iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernmantle.ir.functions import FUNCTIONS
from kernmantle.ot.problem import TERMS
from kernmantle.pairwise.attend import attention
from kernmantle.pairwise.scores import scores_of
from kernmantle.torch_ops.contract import Contraction

from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .problems import normal
from .work import Work

ITEMS, HEADS, LENGTH, WIDTH = 2, 16, 8192, 64
ROWS = ITEMS * HEADS * LENGTH
PAIRS = float(ROWS) * LENGTH
SCALE, CAP = 1 / math.sqrt(WIDTH), 20.0
POINTS, FEATURES, EPS, STEPS = 50_000, 64, 6.4, 20
PICKED = 8
_tanh = FUNCTIONS["tanh"]
PRODUCT = Contraction("mk,nk->mn", lambda a, b: a * b)
CAPPED = Contraction("mk,nk->mn", lambda a, b: a * b, epilogue=lambda s: CAP * _tanh(s * (SCALE / CAP)))
SCORES: dict[str, Any] = {"product": PRODUCT, "capped": CAPPED, "product causal": PRODUCT, "distances": "sqeuclidean"}
SCALES = {"capped": 1.0, "distances": SCALE / 2}
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _inputs(dtype: str) -> Callable[[str], Arrays]:
    def inputs(device: str) -> Arrays:
        return {
            name: normal(ROWS, WIDTH, dtype, device, seed).view(ITEMS, HEADS, LENGTH, WIDTH)
            for seed, name in enumerate("qkvg")
        }

    return inputs


def _heads(given: Arrays, picks: Picks) -> Arrays:
    """The heads of the picked rows."""
    heads = sorted({row // LENGTH for row in picks.rows})
    return {name: value.flatten(0, 1)[heads] for name, value in given.items()}


def _dense(q: torch.Tensor, k: torch.Tensor, kind: str) -> torch.Tensor:
    scores = SCALE * (q @ k.mT)
    if kind == "distances":
        scores = scores - SCALE / 2 * ((q * q).sum(-1, keepdim=True) + (k * k).sum(-1).unsqueeze(-2))
    if kind == "capped":
        scores = CAP * torch.tanh(scores / CAP)
    if kind == "product causal":
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    return scores


def _row_by_row(given: Exact, picks: Picks, of: Callable[..., torch.Tensor]) -> np.ndarray[Any, Any]:
    """Rows of the result: ``of`` the number of a row within its head, and that head's q, k, v and g."""
    heads = sorted({row // LENGTH for row in picks.rows})
    found = []
    for row in picks.rows:
        tensors = (torch.from_numpy(given[name][heads.index(row // LENGTH)]) for name in "qkvg")
        found.append(of(row % LENGTH, *tensors)[picks.columns].detach())
    return torch.stack(found).numpy()


def _exact(kind: str, backward: bool) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    """Rows of the result, or of the gradient by q."""

    def row(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        own = q[i : i + 1].requires_grad_()
        scores = _dense(own, k, kind.removesuffix(" causal"))
        if kind == "product causal":
            scores = scores.masked_fill(torch.arange(LENGTH) > i, -math.inf)
        out = torch.softmax(scores, -1) @ v
        return torch.autograd.grad(out, own, g[i : i + 1])[0][0] if backward else out[0]

    return lambda given, picks: _row_by_row(given, picks, row)


def _ours(kind: str) -> Attend:
    score, scale, causal = SCORES[kind], SCALES.get(kind, SCALE), kind == "product causal"
    return lambda q, k, v: attention(q, k, v, score=score, scale=scale, causal=causal)


def _vendors(kind: str) -> Attend:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=kind == "product causal")


@cache
def _flex() -> Callable[..., torch.Tensor]:
    return torch.compile(import_module("torch.nn.attention.flex_attention").flex_attention)


def _capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return CAP * torch.tanh(score / CAP)


def _distances(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Weights by distances: of both squares that of the row is the same for all of its scores."""
    squares = SCALE / 2 * k.float().square().sum(-1)

    def score(product: torch.Tensor, item: Any, head: Any, _: Any, column: Any) -> torch.Tensor:
        return product - squares[item, head, column]

    return _flex()(q, k, v, score_mod=score)


def _flexible(kind: str) -> Attend:
    if kind == "distances":
        return _distances
    options = {"score_mod": _capped} if kind == "capped" else {}
    return lambda q, k, v: _flex()(q, k, v, **options)


def _by_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Sums by blocks of the matrix."""
    parts = zip(*(t.flatten(0, 1) for t in (q, k, v)), strict=True)
    return torch.stack([torch.softmax(-SCALE / 2 * torch.cdist(x, y) ** 2, -1) @ z for x, y, z in parts])


def _forward(attend: Attend) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        q, k, v = (given[name] for name in "qkv")

        def call() -> torch.Tensor:
            with torch.no_grad():
                return attend(q, k, v).reshape(ROWS, WIDTH)

        call()  # what compiles at first does so here
        return call

    return prepare


def _backward(attend: Attend) -> Prepare:
    """All gradients, that by q returned."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        leaves = [given[name].detach().requires_grad_() for name in "qkv"]
        out = attend(*leaves)

        def call() -> torch.Tensor:
            return torch.autograd.grad(out, leaves, given["g"], retain_graph=True)[0].reshape(ROWS, WIDTH)

        call()
        return call

    return prepare


def _peers(kind: str, dtype: str, prepare: Callable[[Attend], Prepare]) -> tuple[Peer, ...]:
    found = [Peer("SDPA", prepare(_vendors(kind)))] if kind.startswith("product") else []
    if kind == "distances" and dtype == "f32" and prepare is _forward:
        found.append(Peer("torch", prepare(_by_torch)))
    if kind != "product causal" and dtype != "f32":
        found.append(Peer("FlexAttention", prepare(_flexible(kind))))
    return tuple(found)


def _attention(kind: str, dtype: str, seconds: tuple[float, float]) -> list[Case]:
    """Forward and backward of a score."""
    pairs = PAIRS / (2 if kind == "product causal" else 1)
    products = 3.0 if dtype == "f32" else 1.0
    cases = []
    for backward in (False, True):
        prepare = _backward if backward else _forward
        name = f"{dtype} {kind}{' backward' if backward else ''}"
        problem = Problem(
            _inputs(dtype), _exact(kind, backward), (ROWS, WIDTH), LENGTH, dtype, part=_heads, picked=PICKED
        )
        work = Work(0.0, {"fp16": products * pairs * WIDTH * (5 if backward else 2)}, serial=False)
        cases.append(
            Case(
                name, f"attention {ITEMS} x {HEADS} x {LENGTH} x {WIDTH}, {name}", problem, prepare(_ours(kind)),
                _peers(kind, dtype, prepare), work, (Target("seconds", seconds[backward]),), "events", pairs * WIDTH,
                roundings=64,
            )
        )  # fmt: skip
    return cases


def _forward_mode(attend: Attend) -> Prepare:
    """The result and its tangent by all inputs, which is returned."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        inputs, tangents = (tuple(given[name] for name in names) for names in ("qkv", "gqk"))

        def call() -> torch.Tensor:
            return torch.func.jvp(attend, inputs, tangents)[1].reshape(ROWS, WIDTH)

        return call

    return prepare


def _exact_tangent(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    def row(i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(SCALE * (k @ q[i]), 0)
        slope = SCALE * (k @ g[i] + q @ q[i])
        return (weights * (slope - weights @ slope)) @ v + weights @ k

    return _row_by_row(given, picks, row)


def _tangent(dtype: str, seconds: float) -> Case:
    products = 3.0 if dtype == "f32" else 1.0
    return Case(
        f"{dtype} product forward and jvp",
        f"attention {ITEMS} x {HEADS} x {LENGTH} x {WIDTH} and its tangent, {dtype} product",
        Problem(_inputs(dtype), _exact_tangent, (ROWS, WIDTH), LENGTH, dtype, part=_heads, picked=PICKED),
        _forward_mode(_ours("product")), (), Work(0.0, {"fp16": products * 7 * PAIRS * WIDTH}, serial=False),
        (Target("seconds", seconds),), "events", PAIRS * WIDTH, roundings=64,
    )  # fmt: skip


_FEW_HEADS, _FEW_ROWS = 8, 2048
_BLOCK = 128
_OF_ENTRIES: dict[str, tuple[Callable[..., Any], str]] = {
    "L1": (lambda a, b: -abs(a - b), "sum"),
    "tropical": (lambda a, b: a + b, "max"),
}


def _reduced(kind: str, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The scores of rows of q, by torch's broadcasting."""
    map_of, how = _OF_ENTRIES[kind]
    entries = map_of(q[..., :, None, :], k[..., None, :, :])
    return entries.sum(-1) if how == "sum" else entries.amax(-1)


def _few_inputs(device: str) -> Arrays:
    shape = (1, _FEW_HEADS, _FEW_ROWS, WIDTH)
    return {name: normal(_FEW_HEADS * _FEW_ROWS, WIDTH, "f32", device, i).view(shape) for i, name in enumerate("qkv")}


def _any_score(kind: str) -> Case:
    """A score without products in float32, against torch's broadcasting by blocks of rows."""
    map_of, how = _OF_ENTRIES[kind]
    score, count = Contraction("mk,nk->mn", map_of, reduce=how), _FEW_HEADS * _FEW_ROWS
    pairs = float(count) * _FEW_ROWS * WIDTH

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        rows = []
        for row in picks.rows:
            q, k, v = (torch.from_numpy(given[name][0, row // _FEW_ROWS]) for name in "qkv")
            weights = torch.softmax(_reduced(kind, q[row % _FEW_ROWS][None], k)[0], -1)
            rows.append((weights @ v)[picks.columns])
        return torch.stack(rows).numpy()

    def ours(given: Arrays) -> Callable[[], torch.Tensor]:
        return lambda: attention(*(given[name] for name in "qkv"), score=score).reshape(count, WIDTH)

    def by_torch(given: Arrays) -> Callable[[], torch.Tensor]:
        q, k, v = (given[name] for name in "qkv")
        return lambda: torch.cat(
            [torch.softmax(_reduced(kind, part, k), -1) @ v for part in q.split(_BLOCK, -2)], -2
        ).reshape(count, WIDTH)

    return Case(
        f"f32 {kind}", f"attention 1 x {_FEW_HEADS} x {_FEW_ROWS} x {WIDTH}, f32 {kind}",
        Problem(_few_inputs, exact, (count, WIDTH), _FEW_ROWS, "f32", picked=PICKED), ours,
        (Peer("torch", by_torch),), Work(0.0, {"fp32": 2 * pairs}, serial=False),
        (Target("faster", 10, "torch"),), "events", pairs, roundings=16,
    )  # fmt: skip


def _points(device: str) -> Arrays:
    return {"x": normal(POINTS, FEATURES, "f32", device, 1), "y": normal(POINTS, FEATURES, "f32", device, 2)}


Soft = Callable[[torch.Tensor], torch.Tensor]


def _steps(of_x: Soft, of_y: Soft, f: torch.Tensor) -> torch.Tensor:
    """Potentials of x, at first f, after so many soft minima in turn: those of y over x, then those of x over y."""
    for _ in range(STEPS // 2):
        g = -EPS * (of_y(f / EPS) - math.log(POINTS))
        f = -EPS * (of_x(g / EPS) - math.log(POINTS))
    return f.view(1, -1)


def _softly(cost: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        x, y = given["x"], given["y"]

        def soft(rows: torch.Tensor, columns: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
            return scores_of(cost, rows, columns, {}, "cost").reduced("logsumexp", TERMS, 1 / EPS, terms)

        return lambda: _steps(partial(soft, x, y), partial(soft, y, x), x.new_zeros(POINTS))

    return prepare


def _costs(cost: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if cost == "cityblock":
        return torch.cdist(x, y, p=1)
    return (x * x).sum(-1, keepdim=True) + (y * y).sum(-1) - 2 * x @ y.mT


def _soft_exactly(costs: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """Logarithms of sums of exponentials of the terms of columns less the rows' costs."""
    return torch.cat([torch.logsumexp(terms - part / EPS, -1) for part in costs.split(5000)])


def _exact_potentials(cost: str, given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    """By the matrix of all costs, made once: sums of absolute differences take torch longer than all that follows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.from_numpy(given[name]).to(device) for name in "xy")
    costs = torch.cat([_costs(cost, part, y) for part in x.split(5000)])
    found = _steps(partial(_soft_exactly, costs), partial(_soft_exactly, costs.mT), x.new_zeros(POINTS))
    return found[:, picks.columns].cpu().numpy()


def _flash(tf32: bool) -> Prepare:
    """As many half steps, in turns, which begin with the first set: that is y here."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        loss = import_module("flash_sinkhorn").SamplesLoss(
            loss="sinkhorn", backend="alternating", eps=EPS, n_iters=STEPS // 2, use_epsilon_scaling=False,
            allow_tf32=tf32, potentials=True,
        )  # fmt: skip
        return lambda: loss(given["y"], given["x"])[1].view(1, -1)

    return prepare


# The peer's error stands in the row, whatever it is.
_FLASH = (
    Peer("flash-sinkhorn tf32", _flash(True), package="flash-sinkhorn", accuracy=math.inf, compiles=True),
    Peer("flash-sinkhorn", _flash(False), package="flash-sinkhorn", accuracy=math.inf, compiles=True),
)


def _sinkhorn(cost: str, seconds: float) -> Case:
    """Soft minima of a cost, those of squared distances beside a library that has no other."""
    square, pairs = cost == "sqeuclidean", float(POINTS) ** 2 * STEPS
    name, title = ("", "squared distances") if square else (f" {cost}", "sums of absolute differences")
    compute = {"fp16": 3 * pairs * FEATURES} if square else {"fp32": 2 * pairs * FEATURES}
    return Case(
        f"sinkhorn{name} {STEPS} half steps", f"{STEPS} soft minima of {title}, {POINTS} x {POINTS} x {FEATURES}",
        Problem(_points, partial(_exact_potentials, cost), (1, POINTS), POINTS, "f32"),
        _softly(cost), _FLASH if square else (),
        Work(0.0, compute, serial=False), (Target("seconds", seconds),), "events", pairs, roundings=4,
    )  # fmt: skip


SUITE = Suite(
    "attention", "cuda",
    (
        *_attention("product", "bf16", (2e-3, 6e-3)),
        *_attention("product causal", "bf16", (1.2e-3, 3.6e-3)),
        *_attention("capped", "bf16", (4e-3, 12e-3)),
        *_attention("product", "f32", (6e-3, 18e-3)),
        *_attention("product causal", "f32", (4e-3, 12e-3)),
        *_attention("capped", "f32", (8e-3, 24e-3)),
        *_attention("distances", "bf16", (4e-3, 12e-3)),
        *_attention("distances", "f32", (8e-3, 24e-3)),
        _tangent("bf16", 5e-3),
        _tangent("f32", 15e-3),
        *map(_any_score, _OF_ENTRIES),
        _sinkhorn("sqeuclidean", 40e-3),
        _sinkhorn("cityblock", 230e-3),
    ),
)  # fmt: skip
