"""Energy that a GPU takes for a call, where the driver counts it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch


@lru_cache(maxsize=1)
def _counter() -> Callable[[], int] | None:
    """Gives the millijoules that the current GPU took since its driver was loaded."""
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def joules(sample: Callable[[int], float], estimate: float, seconds: float) -> float | None:
    """Joules a call, over about so many seconds of calls; None where they are not counted.

    ``sample(calls)`` makes calls and waits for them. The counter moves ten times a second, so ask for half a second.
    """
    count = _counter()
    if count is None:
        return None
    calls = max(1, math.ceil(seconds / max(estimate, 1e-7)))
    begin = count()
    sample(calls)
    return 1e-3 * (count() - begin) / calls
