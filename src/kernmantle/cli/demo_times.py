"""The clock of the demonstration: the same distances by the library, torch and scipy, checked and then timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np
import torch

from ..errors import KernmantleError
from ..pairwise import cdist
from ..testing import assert_close

ROUNDS = 7
SAMPLE, LONG = 1e-2, 3.0  # seconds: short calls are repeated for so long, longer ones are timed once
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
    if x.device.type == "cpu":
        distance = import_module("scipy.spatial.distance")
        left, right = x.numpy(), other.numpy()
        calls[SCIPY] = lambda: distance.cdist(left, right, "minkowski", p=p)
    return calls


def milliseconds(seconds: float) -> str:
    """Return a time with three digits."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{1e3 * seconds:.0f} ms"


def measure(x: torch.Tensor, p: float) -> dict[str, float]:
    """Return each contestant's median seconds for all pairs of rows under one power.

    Raises WrongError, before anything is timed, where the library's result is not what the formula says.
    """
    calls = contestants(x, p)
    try:
        assert_close(calls[OURS]()[:CHECKED, :CHECKED], _exact(x, p), dtype="float32", depth=x.shape[1])
    except AssertionError as error:
        raise WrongError(f"distances of power {p:g} are wrong on this machine: {error}") from error
    return medians(calls)


def medians(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median seconds of each call, over rounds in which every call is timed once."""
    first = {name: _seconds(call, 1) for name, call in calls.items()}
    repeats = {name: math.ceil(SAMPLE / seconds) for name, seconds in first.items() if seconds <= LONG}
    rounds = [{name: _seconds(calls[name], count) for name, count in repeats.items()} for _ in range(ROUNDS)]
    return {name: median(each[name] for each in rounds) if name in repeats else first[name] for name in calls}


def _seconds(call: Callable[[], Any], calls: int) -> float:
    """Return seconds a call by the wall clock, until the GPU is done where there is one."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - begin) / calls
