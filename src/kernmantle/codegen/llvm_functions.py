"""The functions that kernels may call, as definitions: one row each."""

from __future__ import annotations

from collections.abc import Callable

from . import llvm_math, llvm_power, llvm_trigonometry
from .llvm_math import Maths, symbol
from .llvm_text import Function, vector

_INLINED = {"exp", "exp2", "log", "log2", "pow_normal"}
_LIBRARY = ("sin", "cos", "tan")
FUNCTIONS: dict[str, Callable[..., str]] = {
    **llvm_math.FUNCTIONS,
    **llvm_trigonometry.ROWS,
    "pow": llvm_power.general,
    "pow_abs": llvm_power.not_negative,
    "pow_normal": llvm_power.quick,
}
_ARITY = {"pow": 2, "pow_abs": 2, "pow_normal": 2}


def _definition(name: str, element: str, lanes: int, needed: set[tuple[str, str, int]]) -> str:
    kind = vector(element, lanes)
    names = [f"%x{place}" for place in range(_ARITY.get(name, 1))]
    given = ", ".join(f"{kind} {text}" for text in names)
    inline = "alwaysinline" if name in _INLINED else "noinline"
    f = Function(f"internal {kind} @{symbol(name, element, lanes)}({given}) {inline}")
    f.say(f"ret {kind} {FUNCTIONS[name](Maths(f, element, lanes, needed), *names)}")
    return f.text()


def definitions(needed: set[tuple[str, str, int]]) -> list[str]:
    """Definitions of the functions (name, element, lanes) and of those that they call."""
    written: dict[tuple[str, str, int], str] = {}
    wanted = set(needed)
    while wanted - written.keys():
        for key in sorted(wanted - written.keys()):
            written[key] = _definition(*key, wanted)
    library = sorted({name for name, _, _ in written} & set(_LIBRARY))
    return [*(f"declare double @{name}(double)" for name in library), *(written[key] for key in sorted(written))]
