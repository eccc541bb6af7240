"""The GPU suite of softmax-weighted sums and soft minima: attention and its gradients, Sinkhorn's iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
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
SCORES = {"product": PRODUCT, "capped": CAPPED, "product causal": PRODUCT}
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
    if kind == "capped":
        scores = CAP * torch.tanh(scores / CAP)
    if kind == "product causal":
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    return scores


def _exact(kind: str, backward: bool) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    """Rows of the result, or of the gradient by q, head by head."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        heads = sorted({row // LENGTH for row in picks.rows})
        rows = []
        for row in picks.rows:
            head, i = heads.index(row // LENGTH), row % LENGTH
            q, k, v, g = (torch.from_numpy(given[name][head]) for name in "qkvg")
            own = q[i : i + 1].requires_grad_()
            scores = _dense(own, k, "capped" if kind == "capped" else "product")
            if kind == "product causal":
                scores = scores.masked_fill(torch.arange(LENGTH) > i, -math.inf)
            out = torch.softmax(scores, -1) @ v
            if backward:
                (out,) = torch.autograd.grad(out, own, g[i : i + 1])
            rows.append(out[0, picks.columns].detach())
        return torch.stack(rows).numpy()

    return exact


def _ours(kind: str) -> Attend:
    score, causal = SCORES[kind], kind == "product causal"
    scale = 1.0 if kind == "capped" else SCALE
    return lambda q, k, v: attention(q, k, v, score=score, scale=scale, causal=causal)


def _vendors(kind: str) -> Attend:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=kind == "product causal")


@cache
def _flex() -> Callable[..., torch.Tensor]:
    return torch.compile(import_module("torch.nn.attention.flex_attention").flex_attention)


def _capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return CAP * torch.tanh(score / CAP)


def _flexible(kind: str) -> Attend:
    options = {"score_mod": _capped} if kind == "capped" else {}
    return lambda q, k, v: _flex()(q, k, v, **options)


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
    found = [] if kind == "capped" else [Peer("SDPA", prepare(_vendors(kind)))]
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


def _points(device: str) -> Arrays:
    return {"x": normal(POINTS, FEATURES, "f32", device, 1), "y": normal(POINTS, FEATURES, "f32", device, 2)}


def _steps(soft: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor], given: Arrays) -> torch.Tensor:
    """Potentials of x after so many soft minima in turn; each is over the other set, ``soft(x, y, terms)``."""
    x, y = given["x"], given["y"]
    f, g = x.new_zeros(POINTS), y.new_zeros(POINTS)
    for _ in range(STEPS // 2):
        g = -EPS * (soft(y, x, f / EPS) - math.log(POINTS))
        f = -EPS * (soft(x, y, g / EPS) - math.log(POINTS))
    return f.view(1, -1)


def _soft(x: torch.Tensor, y: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    return scores_of("sqeuclidean", x, y, {}, "cost").reduced("logsumexp", TERMS, 1 / EPS, terms)


def _soft_exactly(x: torch.Tensor, y: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    squares = (y * y).sum(-1)
    parts = [
        torch.logsumexp(terms - ((part * part).sum(-1, keepdim=True) + squares - 2 * part @ y.mT) / EPS, -1)
        for part in x.split(5000)
    ]
    return torch.cat(parts)


def _exact_potentials(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = {name: torch.from_numpy(value).to(device) for name, value in given.items()}
    return _steps(_soft_exactly, tensors)[:, picks.columns].cpu().numpy()


def _flash(tf32: bool) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        loss = import_module("flash_sinkhorn").SamplesLoss(
            loss="sinkhorn", eps=EPS, n_iters=STEPS // 2, use_epsilon_scaling=False, allow_tf32=tf32, potentials=True
        )
        return lambda: loss(given["x"], given["y"])[0].view(1, -1)

    return prepare


# The peer's potentials are others, by a constant and by its updates of both at once: its error is not looked at.
_SINKHORN = Case(
    f"sinkhorn {STEPS} half steps", f"{STEPS} soft minima of squared distances, {POINTS} x {POINTS} x {FEATURES}",
    Problem(_points, _exact_potentials, (1, POINTS), POINTS, "f32"),
    lambda given: lambda: _steps(_soft, given),
    (
        Peer("flash-sinkhorn tf32", _flash(True), package="flash-sinkhorn", accuracy=math.inf),
        Peer("flash-sinkhorn", _flash(False), package="flash-sinkhorn", accuracy=math.inf),
    ),
    Work(0.0, {"fp16": 3.0 * STEPS * float(POINTS) ** 2 * FEATURES}, serial=False),
    (Target("seconds", 40e-3),), "events", float(POINTS) ** 2 * STEPS, roundings=4,
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
        _SINKHORN,
    ),
)  # fmt: skip
