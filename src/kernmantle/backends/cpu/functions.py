"""The functions that kernels may call, as definitions: one row each."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.ops import OPS
from . import libm, trigonometry
from . import pow as llvm_power
from .builder import Function, vector
from .libm import Maths, symbol

FUNCTIONS: dict[str, Callable[..., str]] = {**libm.FUNCTIONS, **trigonometry.ROWS, **llvm_power.ROWS}


def _definition(name: str, element: str, lanes: int, needed: set[tuple[str, str, int]]) -> str:
    kind = vector(element, lanes)
    names = [f"%x{index}" for index in range(llvm_power.ARITY if name in llvm_power.ROWS else 1)]
    parameters = ", ".join(f"{kind} {text}" for text in names)
    short = OPS[name].cost == "short" if name in OPS else name in llvm_power.INLINED
    inline = "alwaysinline" if short else "noinline"
    f = Function(f"internal {kind} @{symbol(name, element, lanes)}({parameters}) {inline}")
    f.emit_void(f"ret {kind} {FUNCTIONS[name](Maths(f, element, lanes, needed), *names)}")
    return f.text()


def definitions(needed: set[tuple[str, str, int]]) -> list[str]:
    """Return the definitions of the functions (name, element, lanes) and of those that they call."""
    written: dict[tuple[str, str, int], str] = {}
    wanted = set(needed)
    while wanted - written.keys():
        for key in sorted(wanted - written.keys()):
            written[key] = _definition(*key, wanted)
    library = sorted({name for name, _, _ in written} & set(trigonometry.ROWS))
    return [*(f"declare double @{name}(double)" for name in library), *(written[key] for key in sorted(written))]
