"""What a case is: a problem with an oracle, our call, the peers' calls, the work, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .work import Work

Arrays = dict[str, torch.Tensor]
Exact = dict[str, Any]
Prepare = Callable[[Arrays], Callable[[], Any]]
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
PICKED = 48


@dataclass(frozen=True)
class Picks:
    """Rows and columns of a result that are compared with the oracle."""

    rows: list[int]
    columns: list[int]

    @staticmethod
    def of(rows: int, columns: int, seed: int = 0, most: int = PICKED) -> Picks:
        """First, last and random ones between, of rows at most so many."""
        random = np.random.default_rng(seed)

        def pick(extent: int, most: int) -> list[int]:
            inner = random.choice(extent, min(most, extent), replace=False)
            return sorted({0, extent - 1, *map(int, inner)})

        return Picks(pick(rows, most), pick(columns, PICKED))


def _whole(given: Arrays, picks: Picks) -> Arrays:  # noqa: ARG001
    return given


@dataclass(frozen=True)
class Problem:
    """What is computed.

    ``inputs`` makes the arrays on a device. ``exact`` gives the block of the result at some picks from the
    inputs as float64 numpy arrays, by a formula written out and not by any of the contestants. ``shape`` is the
    result's, ``depth`` how many terms it reduces. ``part`` leaves of the inputs what ``exact`` reads, where they are
    too large to be copied whole; ``picked`` rows between the first and the last are compared.
    """

    inputs: Callable[[str], Arrays]
    exact: Callable[[Exact, Picks], np.ndarray[Any, Any]]
    shape: tuple[int, int]
    depth: int
    dtype: str
    part: Callable[[Arrays, Picks], Arrays] = _whole
    picked: int = PICKED


@dataclass(frozen=True)
class Peer:
    """Somebody else's way to the same result.

    Either ``prepare`` in this process, if ``package`` can be imported, or ``remote``, a name in the table of
    ``serve.py`` that runs in an interpreter given for ``package``. ``accuracy`` is the relative error known of one that
    computes something else; it stands in the row. If its first call ``compiles``, that call says nothing of the next.
    """

    name: str
    prepare: Prepare | None = None
    package: str = "torch"
    remote: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    accuracy: float | None = None
    compiles: bool = False


@dataclass(frozen=True)
class Target:
    """What a row should reach.

    ``kind`` is "seconds" (at most), "faster" (than the peer, at least so many times), "rate" (elements of all
    axes a second, at least), "floor" (share of it, at least) or "bytes" (beyond inputs and result, at most).
    """

    kind: str
    value: float
    peer: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Case:
    """A row of a suite.

    ``accuracy`` is a documented relative error to hold in place of that of the type, ``roundings`` how often values
    are rounded to the type on the way to the result.
    """

    name: str
    title: str
    problem: Problem
    ours: Prepare
    peers: tuple[Peer, ...]
    work: Work
    targets: tuple[Target, ...] = ()
    clock: str = "wall"
    elements: float = 0.0
    accuracy: float | None = None
    roundings: int = 0


@dataclass(frozen=True)
class Probe:
    """A row measured by starting new processes.

    ``question`` is one of ``startup.QUESTIONS``, or "cuda " and one of ``compiling.FORMS``.
    """

    name: str
    title: str
    question: str
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A table of cases on one kind of device.

    ``picture`` draws its rows where bars would not do, ``note`` says what they come to.
    """

    name: str
    device: str
    rows: tuple[Case | Probe, ...]
    picture: Callable[[Sequence[Any], Path], None] | None = None
    note: Callable[[Sequence[Any]], str] | None = None
