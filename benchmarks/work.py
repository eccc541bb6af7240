"""How long an operation must take: the work that no implementation can avoid over what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """Bytes that must move once, and how often each resource is used.

    A resource is a mix of instructions (CPU) or a kind of instruction (GPU), see ``calibrate``. Those in
    ``compute`` follow one another when ``serial``, otherwise they overlap.
    """

    bytes: float = 0.0
    compute: Mapping[str, float] = field(default_factory=dict[str, float])
    serial: bool = True


@dataclass(frozen=True)
class Floor:
    """Least seconds, and what sets them."""

    seconds: float
    bound: str


def floor(work: Work, rates: Mapping[str, float]) -> Floor | None:
    """Least time of some work at given rates per second; None where a rate is unknown."""
    if (work.bytes and "bytes" not in rates) or any(name not in rates for name in work.compute):
        return None
    parts = {name: amount / rates[name] for name, amount in work.compute.items()}
    if work.serial and parts:
        parts = {max(parts, key=lambda name: parts[name]): sum(parts.values())}
    if work.bytes:
        parts["bytes"] = work.bytes / rates["bytes"]
    if not parts:
        return None
    bound = max(parts, key=lambda name: parts[name])
    return Floor(parts[bound], bound)
