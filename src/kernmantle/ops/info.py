"""What a call ran as: a record that the caller makes and the products write."""

from __future__ import annotations


class RunInfo:
    """The route of one call, as the object that was called shows it in its ``info`` and repr."""

    __slots__ = ("route",)

    def __init__(self) -> None:
        self.route = ""
