"""The library's own source files, for the tests that read them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kernmantle"
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))
}
MODULES = list(FILES)


@cache
def parsed(name: str) -> ast.Module:
    """Syntax tree of a module."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def holding(text: str) -> list[str]:
    """Modules in whose source a text stands: a quick choice of those that are worth parsing."""
    return [name for name, path in FILES.items() if text in path.read_text(encoding="utf-8")]
