"""Numbers that were fitted to measured times stand in tables that say on which machine, and in no function.

``python -m tests.unit.test_fitted`` counts them by room.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter

import pytest

from ..source import FILES, PACKAGE, parsed

ROOMS = ("backends", "compiler", "structured", "torch_ops")
MATHEMATICS = {  # coefficients of functions, powers, and the ends of what types hold: the same on every machine
    "libm", "polynomials", "pow", "pow_tables", "spelling", "trigonometry", "builder", "row_pull_emit",
}  # fmt: skip
CHOICES = {  # what a promise is, what is drawn or tried, and a picture: nobody measured these
    "MAX_RELATIVE_ERROR", "PROMISE", "SMALLEST", "_RESOLVED", "_LARGEST_EXPONENT", "_SLOWEST", "_HOPELESS", "_LEAST",
    "_MOST", "_SKETCHES", "_CANCELLATION", "_ROOTS", "_ROOT_POWER", "_SURE", "_SPLIT", "_BUSY", "ONE_SIGN",
    "ONE_SIGN_SHORT", "_DONE",
}  # fmt: skip
PLAIN = {0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 1e-3, 1e-6, 1e-9, 1e-12}  # counts, halves and units
MACHINE = re.compile(r"[HAB][12]00|EPYC|_H[12]00|[Dd]ecisions? 00\d\d")


def modules():
    """Modules in which kernels and plans are, by name."""
    own = {name: path for name, path in FILES.items() if path.relative_to(PACKAGE).parts[0] in ROOMS}
    return {name: path for name, path in own.items() if path.stem not in MATHEMATICS | {"picture"}}


def fitted(node):
    """Numbers of an expression that look measured."""
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [value for value in constants if isinstance(value, float) and value not in PLAIN]


def assigned(node):
    """Names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def tables(tree):
    """Statements of a module that assign numbers that look measured."""
    for node in tree.body:
        is_table = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and fitted(node.value)
        if is_table and not assigned(node) <= CHOICES:
            yield node


def in_functions(tree):
    """Names of functions with numbers that look measured, and the numbers."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    found = ((node.name, [value for part in node.body for value in fitted(part)]) for node in functions)
    return [(name, values) for name, values in found if values]


def counts():
    """Numbers that look measured in the tables of each room."""
    found = Counter()
    for name, path in modules().items():
        room = "/".join(path.relative_to(PACKAGE).parts[:-1])
        found[room] += sum(len(fitted(node.value)) for node in tables(parsed(name)))
    return +found


@pytest.mark.parametrize("name", sorted(modules()))
def test_what_is_fitted_names_its_machine(name):
    tree, text = parsed(name), modules()[name].read_text(encoding="utf-8")
    unnamed = [sorted(assigned(node)) for node in tables(tree)] if not MACHINE.search(text) else []
    assert not unnamed, f"{name} does not say on which card, or in which decision, {unnamed} were measured"


@pytest.mark.parametrize("name", sorted(modules()))
def test_functions_have_no_fitted_numbers(name):
    found = in_functions(parsed(name))
    assert not found, f"{name}: give these a name and their unit where the module's constants are: {found}"


def test_numbers_are_found():
    tree = ast.parse("RATE = 3.1e12\nSURE = 0.5\n\ndef cost(n):\n    return 2.0 * n / 3.1e12\n")
    assert [assigned(node) for node in tables(tree)] == [{"RATE"}]
    assert in_functions(tree) == [("cost", [3.1e12])]
    assert MACHINE.search("on one H200")
    assert MACHINE.search("decision 0043")
    assert not MACHINE.search("quick on every machine")


if __name__ == "__main__":
    for room, count in sorted(counts().items()):
        sys.stdout.write(f"{count:5} {room}\n")
