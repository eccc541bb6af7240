"""Numbers of a card from which the time of passes of a Kronecker product is estimated."""

from __future__ import annotations

from ...backends.cuda.tiles import DeviceLimits

# Seconds of a kernel beside what it does.
LAUNCH = 4.5e-6


def memory_of(limits: DeviceLimits) -> float:
    """Bytes a second."""
    return limits.generation.memory_rate
