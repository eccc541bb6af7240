"""Cases of the benchmark on small inputs: everybody's result is compared, and timed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import run
from benchmarks.case import Case, Peer, Suite
from benchmarks.timing import Plan

STAMP = {
    "machine": {"cpu": {"model": "Abacus 9", "architecture": "wood", "threads": 1}}, "versions": {"torch": "9.9"},
    "source": "abc", "commit": "def",
}  # fmt: skip
SETTINGS = run.Settings(Plan(budget=0.0, least=1, most=1, sample=1e-5, pause=0.0))


def measured(case: Case, suite: Suite | None = None) -> dict[str, Any]:
    """Return the row of a case."""
    return run.measure(case, suite or Suite("small", "cpu", (case,)), STAMP, SETTINGS)


def statuses(case: Case, suite: Suite | None = None) -> dict[str, str]:
    """Return by their names whether results are right."""
    return {name: found["status"] for name, found in measured(case, suite)["results"].items()}


def check_scores(case: Case) -> None:
    """Check that what torch and we give is right, and that a result a tenth too large is not."""
    peers = tuple(peer for peer in case.peers if peer.package == "torch")
    wrong = Peer("wrong", lambda given: lambda: 1.1 * case.ours(given)())
    found = statuses(replace(case, peers=(*peers, wrong), clock="wall"))
    assert found.pop("wrong") == "wrong"
    assert set(found.values()) == {"ok"}, found
