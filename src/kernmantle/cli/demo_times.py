"""The clock of the demonstration: the same distances by the library, torch and scipy, checked and then timed."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from ..bench.timing import Plan, Sampler, Summary, summarise, take_turns, wall
from ..distances import cdist
from ..errors import KernmantleError
from ..testing import assert_close

PLAN = Plan(budget=0.6, least=3, most=7, pause=0.02, endless=3.0)
POWERS = (1.0, 1.3, 2.0)
OURS, TORCH, SCIPY = "kernmantle", "torch.cdist", "scipy"
CHECKED = 40


class WrongError(KernmantleError, ArithmeticError):
    """A result that is not what the formula says."""


def _exact(x: torch.Tensor, p: float) -> np.ndarray[Any, Any]:
    rows = x[:CHECKED].double().cpu().numpy()
    return (np.abs(rows[:, None] - rows[None]) ** p).sum(-1) ** (1 / p)


def contestants(x: torch.Tensor, p: float) -> dict[str, Callable[[], Any]]:
    """Everybody who is here, for all pairs of rows."""
    other = x.clone()
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: cdist(x, other, p=p),
        TORCH: lambda: torch.cdist(x, other, p=p),
    }
    if x.device.type == "cpu" and find_spec("scipy") is not None:
        distance = import_module("scipy.spatial.distance")
        left, right = x.numpy(), other.numpy()
        calls[SCIPY] = lambda: distance.cdist(left, right, "minkowski", p=p)
    return calls


def measure(x: torch.Tensor, p: float) -> dict[str, Summary]:
    """Times for all pairs of rows under one power; a wrong result of ours is an error."""
    calls = contestants(x, p)
    try:
        assert_close(calls[OURS]()[:CHECKED, :CHECKED], _exact(x, p), dtype="float32", depth=x.shape[1])
    except AssertionError as error:
        raise WrongError(f"distances of power {p:g} are wrong on this machine: {error}") from error
    first = {name: wall(call, 1, False) for name, call in calls.items()}

    def sampler(call: Callable[[], Any], seconds: float) -> Sampler:
        return lambda: wall(call, PLAN.calls(seconds), seconds < PLAN.long)

    samplers = {name: sampler(call, first[name]) for name, call in calls.items() if first[name] <= PLAN.endless}
    counts = {name: PLAN.samples(first[name]) for name in samplers}
    taken = take_turns(samplers, counts, PLAN.pause, random.Random(0))
    return {name: summarise(taken.get(name) or [first[name]]) for name in calls}
