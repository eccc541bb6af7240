"""Sizes and names that keep the source readable."""

import ast
import re
from pathlib import Path
from statistics import median

import pytest

from ..source import FILES, MODULES, PACKAGE, ROOT, parsed

MODULE_LINES, MEDIAN_LINES, FUNCTION_LINES = 450, 160, 80
VAGUE = {"utils", "util", "misc", "common", "helpers", "helper", "tools", "stuff"}
PROMISE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
MACHINE_PATH = re.compile(r"(?<![\w.~])/(home|root|work|tmp|usr|opt|mnt|Users)/")
SOURCES = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in {".py", ".cuh", ".cu", ".h"}]
SOURCES += sorted((ROOT / "benchmarks").glob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, whose length follows from how much there is to say."""
    first = function.body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    text = (first.end_lineno or 0) - first.lineno + 1 if said else 0
    return (function.end_lineno or 0) - function.lineno + 1 - text


def long_functions(tree: ast.AST) -> list[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    sizes = ((node.name, code_lines(node)) for node in functions)
    return [f"{name}: {size} lines" for name, size in sizes if size > FUNCTION_LINES]


def unwanted(text: str) -> list[str]:
    return [match.group() for pattern in (PROMISE, MACHINE_PATH) for match in pattern.finditer(text)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file(path):
    assert lines(path) <= MODULE_LINES
    assert path.stem not in VAGUE
    assert path.parent.name not in VAGUE
    assert unwanted(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", MODULES)
def test_functions_fit_a_screen(name):
    assert long_functions(parsed(name)) == []


def test_median_module():
    assert median(size for size in map(lines, FILES.values()) if size > 1) <= MEDIAN_LINES


def test_these_checks_can_fail():
    assert long_functions(ast.parse("def f():\n" + "    x = 1\n" * FUNCTION_LINES)) == ["f: 81 lines"]
    assert long_functions(ast.parse("def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1))) == []
    assert (
        long_functions(ast.parse('def f():\n    """Say\n\n    more."""\n' + "    x = 1\n" * (FUNCTION_LINES - 1))) == []
    )
    assert unwanted("# TO" + "DO later, see /ho" + "me/me/x") == ["TO" + "DO", "/ho" + "me/"]
    assert unwanted("a ratio / home / x, ~/home/x and out/tmp/y") == []
