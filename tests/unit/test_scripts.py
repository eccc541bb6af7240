"""Scripts of the checkout find what they import from any folder, and tell forms of structured products apart."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from benchmarks import random_structured

ROOT = Path(__file__).parents[2]
FIND = """
import importlib.util, json, sys
print(json.dumps([name for name in json.loads(sys.argv[1]) if importlib.util.find_spec(name) is None]))
"""


def imported(path: Path) -> set[str]:
    """Modules of the checkout that a script names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        found |= {name for name in names if name.split(".")[0] in ("benchmarks", "kernmantle", "scripts", "tests")}
    return found


def test_modules_that_scripts_import_are_found_from_another_folder(tmp_path):
    names = set().union(*(imported(path) for path in (ROOT / "scripts").glob("*.py")))
    assert {"benchmarks", "kernmantle"} <= {name.split(".")[0] for name in names}
    ran = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", FIND, json.dumps(sorted(names))],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(ran.stdout) == []


def test_products_take_longer_without_the_form_of_their_gradients():
    case = random_structured.KronCase(((64, 64), (64, 64)), 4096, "f32", (True,) * 3)
    found = import_module("scripts.forms").kron_gradients(case)
    assert found["back_wgmma"] > 1.05 * found[""] == 1.05 * found["chain"]
