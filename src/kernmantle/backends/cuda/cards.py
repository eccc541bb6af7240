"""The GPUs for which times are predicted without having one: limits, memory and measured copy bandwidth."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import DeviceError
from .tiles import CARDS as ARCHITECTURES
from .tiles import DeviceLimits


@dataclass(frozen=True)
class Card:
    """One GPU: bytes of memory, and bytes a second that a large copy reads and writes."""

    name: str
    limits: DeviceLimits
    memory: int
    memory_rate: float


# Both are of the generation whose costs were measured.
_MEASURED = next(limits for limits in ARCHITECTURES.values() if limits.has(("measured",)))
# Bytes a second as measured on an H100 and an H200 by benchmarks/calibrate.py: the median of the rows in
# benchmarks/results/h100-*.jsonl and h200-*.jsonl.
_ROWS = (
    Card("h100", _MEASURED, 85017493504, 2.86e12),
    Card("h200", _MEASURED, 150109880320, 3.84e12),
)
PREDICTED = {card.name: card for card in _ROWS}
PLANNED = {**{name: card.limits for name, card in PREDICTED.items()}, **ARCHITECTURES}
"""Limits of cards, and of the architecture alone, for which plans are made on machines without them."""
_WORDS = re.compile(r"[a-z]+\d+[a-z]*|\d+[a-z]+|[a-z]+|\d+")


def card_of(name: str) -> Card:
    """Return the card of a name such as "h100", "h100-80gb-hbm3" or torch's "NVIDIA H100 80GB HBM3"."""
    words = _WORDS.findall(str(name).lower())
    found = [card for card in _ROWS if card.name in words]
    if len(found) != 1 or {"pcie", "nvl", "mig"} & set(words):
        raise DeviceError(
            f"no times were measured on a card named {name!r}, so none can be predicted; "
            f"known are {' and '.join(PREDICTED)} (SXM)"
        )
    return found[0]
