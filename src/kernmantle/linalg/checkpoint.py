"""States of long fits in files that are whole or not there: written beside, flushed, and renamed."""

from __future__ import annotations

import os
import tempfile
import time
from glob import escape
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..torch_ops.torch_private import is_out_of_memory

_PART = ".part"  # of files that are being written


class Checkpoint:
    """A file that a long fit writes every so many seconds and goes on from.

    ``problem`` says what is being solved; a file of another problem is refused.
    """

    def __init__(self, path: Any, problem: dict[str, Any], every: float) -> None:
        self.path = Path(path)
        self._problem, self._every, self._last = problem, every, time.monotonic()
        if not self.path.parent.is_dir():
            raise CheckpointError(f"checkpoint {self.path} lies in no directory: make {self.path.parent}")

    def load(self) -> dict[str, Any] | None:
        """Return the state in the file, None where there is none; CheckpointError where it is of another problem.

        What processes that ended while they wrote have left is removed.
        """
        for left in self.path.parent.glob(f".{escape(self.path.name)}.*{_PART}"):
            if "." not in left.name[len(self.path.name) + 2 : -len(_PART)]:  # else it is of a file with a longer name
                left.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        try:
            found: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            own, state = found["problem"], found["state"]
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from error
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(f"{self.path} is not a checkpoint ({error}): remove it to begin anew") from error
        different = [name for name in self._problem if own.get(name) != self._problem[name]]
        if different:
            shown = "; ".join(f"{name} was {own.get(name)!r}, is {self._problem[name]!r}" for name in different)
            raise CheckpointError(f"{self.path} is of another problem: {shown}. Remove it, or name another file")
        return state

    def due(self) -> bool:
        """Return whether so many seconds have passed since the last time."""
        return time.monotonic() - self._last >= self._every

    def save(self, state: dict[str, Any]) -> None:
        """Replace the file by one with this state; a process that ends meanwhile leaves the old one."""
        handle, name = tempfile.mkstemp(_PART, f".{self.path.name}.", self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save({"problem": self._problem, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        if os.name == "posix":
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._last = time.monotonic()
