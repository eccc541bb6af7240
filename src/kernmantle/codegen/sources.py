"""The files that LLVM code follows from beside the plan, found without loading them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_ROOMS = ("codegen", "contraction", "expr")
_OF_OTHER_TARGETS = ("cuda", "reference")


@lru_cache(maxsize=1)
def sources() -> dict[str, bytes]:
    """Contents of every module that an emitter of LLVM code may import, by room and name."""
    package = Path(__file__).parents[1]
    paths = [path for room in _ROOMS for path in sorted((package / room).glob("*.py"))]
    paths = [path for path in paths if not path.name.startswith(_OF_OTHER_TARGETS)]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}
