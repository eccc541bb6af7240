"""The types of stack programs under the module name that mm-kermac has."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .stack import PtxInstruction, Stack

__all__ = ["ArgType", "PtxInstruction", "Stack"]

_ABSENT = {
    "SpecialRegister": "programs are compiled for CPUs too, which have no special registers",
    "compiler": "programs are read as expressions, no PTX text is made of them",
}


class ArgType(Enum):
    """Types of the arguments of an instruction, each with the stack that it is on."""

    f32 = Stack.f32
    u32 = Stack.u32
    pred = Stack.pred


def __getattr__(name: str) -> Any:
    reason = f": {_ABSENT[name]}" if name in _ABSENT else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{reason}")
