"""The source files on which an emitter's text depends, found without loading them: itself and all that it imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(rb"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as \w+)?")


@lru_cache(maxsize=32)
def sources(emitter: str) -> dict[str, bytes]:
    """Return the contents of a module, such as "backends.cpu.emit", and of all that it imports, by their paths."""
    return import_closure(PACKAGE, f"{emitter.replace('.', '/')}.py")


def import_closure(package: Path, path: str) -> dict[str, bytes]:
    """Return the contents of a module and of every module that it imports by relative imports, at any distance."""
    found: dict[str, bytes] = {}
    waiting = [path]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = (package / name).read_bytes()
        waiting += _imported(package, name, found[name])
    return found


def _imported(package: Path, name: str, contents: bytes) -> Iterator[str]:
    """Yield the paths of the modules that a module imports."""
    for dots, module, names in _IMPORT.findall(contents):
        folder = Path(name).parents[len(dots) - 1]
        target = folder.joinpath(*module.decode().split(".")) if module else folder
        if (package / target.with_suffix(".py")).is_file():
            yield target.with_suffix(".py").as_posix()
            continue
        imported = re.sub(r"#[^\n]*", "", names.decode()).strip("()")
        files = [target / "__init__.py", *(target / f"{each}.py" for each in _NAME.findall(imported))]
        yield from (file.as_posix() for file in files if (package / file).is_file())
