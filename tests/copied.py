"""A copy of the library and of its tests into which made-up rows are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .source import PACKAGE, ROOT


def named_for(what: str) -> set[str]:
    """Return the files that CONTRIBUTING.md names in its row of what is added, from the root of the checkout."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(what)}[^|]*\|(.*)\|$", page, re.MULTILINE)
    return {name if name.startswith("tests/") else f"src/kernmantle/{name}" for name in re.findall(r"`([^`]+)`", row)}


class Copy:
    """The library and its tests in a folder, with edits: (file, text before which one goes, the text)."""

    def __init__(
        self, root: Path, edits: Iterable[tuple[str, str, str]], files: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        without = shutil.ignore_patterns("results")  # bytecode goes along: it is that of files with the same times
        shutil.copytree(PACKAGE, root / "src" / "kernmantle", ignore=without)
        for folder in ("tests", "benchmarks"):
            shutil.copytree(ROOT / folder, root / folder, ignore=without)
        shutil.copy(ROOT / "pyproject.toml", root)
        for file, before, text in edits:
            content = (root / file).read_text(encoding="utf-8")
            assert content.count(before) == 1, f"{file} has {before!r} {content.count(before)} times"
            (root / file).write_text(content.replace(before, text + before), encoding="utf-8")
        for file, text in (files or {}).items():
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> str:
        """Return what Python prints there."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, cwd=self.root, env=environment, check=False,
            encoding="utf-8", timeout=600,
        )  # fmt: skip
        return done.stdout + done.stderr

    def tests(self, *arguments: str) -> str:
        """Return what the tests came to, a line each."""
        return self.run("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-n0", "-m", "not cuda", *arguments)
