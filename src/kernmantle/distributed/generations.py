"""Checkpoints of several processes: whenever one of them ends, all have a state in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ParameterError
from ..linalg.checkpoint import Checkpoint
from .exchange import gathered
from .rows import Rows

_FILES = 2


class Generations:
    """The two newest states of each process, in files of its own, which are written in turn.

    A process writes state g + 1 only after a message that all sent after they wrote state g, as every iteration of a
    solver has. So all have g, or all have g - 1, and the newest that is common to all is no older than that.
    """

    def __init__(self, path: Any, problem: dict[str, Any], every: int, rows: Rows) -> None:
        self._rows, self._every, self._calls, self._next = rows, every, 0, 0
        self._path, self._problem = Path(path), problem
        self._files: list[Checkpoint] = []

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that all processes have; None where none has one.

        CheckpointError on every process where one of them refuses its files or has lost them, ParameterError on every
        one where they do not agree on when to write: they would have no state in common.
        """
        states: dict[int, dict[str, Any]] = {}
        refused: CheckpointError | None = None
        try:
            for number in range(_FILES):
                name = f"{self._path.name}.{self._rows.rank}.{number}"
                self._files.append(Checkpoint(self._path.with_name(name), self._problem, 0.0))
                state = self._files[-1].load()
                if state is not None:
                    states[state["generation"]] = state
        except CheckpointError as error:
            refused = error
        valid = isinstance(self._every, int) and not isinstance(self._every, bool) and self._every >= 1
        numbers = [self._every if valid else 0, int(refused is not None), *sorted(states)]
        numbers += [-1] * (2 + _FILES - len(numbers))
        each, *found = zip(*gathered(numbers, self._rows.local.device, self._rows.group), strict=True)
        if not valid:
            raise ParameterError(f"every must be a positive number of iterations, not {self._every!r}")
        if len(set(each)) > 1:
            shown = ", ".join(f"{value or 'none'} on {rank}" for rank, value in enumerate(each))
            raise ParameterError(f"every must be the same number of iterations on every process; it is {shown}")
        found = list(zip(*found, strict=True))
        if refused is not None:
            raise refused
        for rank, (failed, *_) in enumerate(found):
            if failed:
                raise CheckpointError(f"checkpoint {self._path} is refused by process {rank}: see the error it raised")
        common = set.intersection(*({g for g in own if g >= 0} for _, *own in found))
        if not common and any(max(own) > 0 for _, *own in found):
            lost = [rank for rank, (_, *own) in enumerate(found) if max(own) < 0]
            raise CheckpointError(
                f"the files of checkpoint {self._path} have no state in common; processes {lost} have none: restore "
                f"their files, or remove all to begin anew"
            )
        self._next = max(common) + 1 if common else 0
        return states[max(common)] if common else None

    def offer(self, state: dict[str, Any]) -> None:
        """Write a state if it is due: every so many calls."""
        self._calls += 1
        if self._calls % self._every == 0:
            self.save(state)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the older file."""
        self._files[self._next % _FILES].save({**state, "generation": self._next})
        self._next += 1
