"""The reference: a page for each object that ``reference.md`` lists, and a table with links to them in its place."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from kernmantle.ir.functions import FUNCTIONS as SCALAR
from kernmantle.pairwise import CONSTRUCTORS

FOLDER = "api"
FUNCTIONS = "functions"
OPTIONAL = {"kernmantle.integrations.gpytorch": "gpytorch"}
_BLOCK = re.compile(r"```\{eval-rst\}\n(.*?)```", re.DOTALL)
_KERNELS = ".. autokernels::"
"""Directive that stands for the constructors of all kernels of the table."""
_ENTRY = re.compile(r"\.\. auto(function|class|module):: ([\w.]+)")


@dataclass
class Entry:
    """A directive of the list: what it documents and how."""

    kind: str
    module: str
    name: str
    options: list[str] = field(default_factory=list[str])

    @property
    def path(self) -> str:
        """Full name, and name of the page."""
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def title(self) -> str:
        """Name as users write it after ``km.``."""
        return self.path.removeprefix("kernmantle.")

    @property
    def summary(self) -> str:
        """First sentence of the docstring."""
        thing = import_module(self.module)
        thing = getattr(thing, self.name) if self.name else thing
        text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
        return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")

    @property
    def page(self) -> str:
        """Source of the page."""
        directive = f".. auto{self.kind}:: {self.name or self.module}"
        options = "".join(f"   {option}\n" for option in self.options)
        head = _headed(self.title)
        return f"{head}\n\n.. currentmodule:: {self.module}\n\n{directive}\n{options}"


def _headed(title: str) -> str:
    """Top of a page that ``reference.md`` links to and no table of contents lists.

    The theme copies the whole table of contents into every page, which took half of the time of a build.
    """
    return f":orphan:\n\n{title}\n{'=' * len(title)}\n\n:doc:`Reference </reference>`"


def entries(block: str) -> list[Entry]:
    """Return the directives of a block, without those of packages that are not installed."""
    found: list[Entry] = []
    for line in block.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            path = entry[2] if entry[2].startswith("kernmantle") else f"kernmantle.{entry[2]}"
            module, _, name = (path, "", "") if entry[1] == "module" else path.rpartition(".")
            found.append(Entry(entry[1], module, name))
        elif line.strip() == _KERNELS:
            found += [Entry("function", "kernmantle", name) for name in CONSTRUCTORS]
        elif found and line.startswith("   :"):
            found[-1].options.append(line.strip())
    return [each for each in found if each.module not in OPTIONAL or find_spec(OPTIONAL[each.module])]


def write(docs: Path) -> None:
    """Write the pages of all objects, and remove those of objects that are gone."""
    folder = docs / FOLDER
    folder.mkdir(exist_ok=True)
    source = (docs / "reference.md").read_text(encoding="utf-8")
    listed = [each for block in _BLOCK.findall(source) for each in entries(block)]
    pages = {f"{each.path}.rst": each.page for each in listed}
    pages[f"{FUNCTIONS}.rst"] = functions()
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")


def functions() -> str:
    """Source of the page of functions for lambdas."""
    own = sorted(name for name in SCALAR if not iskeyword(name))
    title = "Functions for maps and epilogues"
    text = (
        "Inside a lambda that is traced these functions take symbolic values and numbers. The functions of the same\n"
        "names from torch and NumPy work there too.\n"
    )
    listed = "\n".join(f".. autofunction:: {name}\n" for name in own)
    return f"{_headed(title)}\n\n{text}\n.. currentmodule:: kernmantle\n\n{listed}"


def tables(source: str) -> str:
    """``reference.md`` with a table in the place of each list."""

    def table(block: re.Match[str]) -> str:
        rows = "".join(
            f"| [`{each.title}`]({FOLDER}/{each.path}.rst) | {each.summary} |\n" for each in entries(block[1])
        )
        return f"| name | description |\n|---|---|\n{rows}"

    return _BLOCK.sub(table, source)
