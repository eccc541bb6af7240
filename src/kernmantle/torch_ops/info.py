"""The record of how a call ran: the caller creates it, and the products write to it."""

from __future__ import annotations

import torch


class RunInfo:
    """The route of one call, which the called object shows in its ``info`` and repr."""

    __slots__ = ("route",)

    def __init__(self) -> None:
        self.route = ""

    @property
    def suffix(self) -> str:
        """Its text in a repr, "" before the first call."""
        return f", ran as {self.route}" if self.route else ""


class RunInfos:
    """The routes of an object's matrix and of its matrix-free products and reductions, by name."""

    __slots__ = ("_of", "matrix")

    def __init__(self) -> None:
        self.matrix = RunInfo()
        self._of: dict[str, RunInfo] = {}

    def of(self, name: str) -> RunInfo:
        """Return the record of a name; while torch.compile traces, a record that is discarded."""
        if torch.compiler.is_compiling():
            return RunInfo()
        found = self._of.get(name)
        return self._of.setdefault(name, RunInfo()) if found is None else found

    def described(self) -> list[str]:
        """Return a line for each name that ran, but for the matrix."""
        return [f"{name} ran as {info.route}" for name, info in self._of.items() if info.route]
