"""Numbers that were fitted to measured times stand in tables that say their unit and machine, and in no function.

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
    "libm", "polynomials", "pow", "pow_tables", "spelling", "trigonometry", "builder", "row_vjp_emit",
}  # fmt: skip
CHOICES = {  # what a promise is, what is drawn or tried, and a picture: nobody measured these
    "MAX_RELATIVE_ERROR", "PROMISE", "SMALLEST", "_RESOLVED", "_LARGEST_EXPONENT", "_SLOWEST", "_HOPELESS", "_LEAST",
    "_MOST", "_SKETCHES", "_CANCELLATION", "_ROOTS", "_ROOT_POWER", "_SURE", "_SPLIT", "_BUSY", "ONE_SIGN",
    "ONE_SIGN_SHORT", "_DONE",
}  # fmt: skip
PLAIN = {0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 1e-3, 1e-6, 1e-9, 1e-12}  # counts, halves and units
MACHINE = re.compile(r"[HAB][12]00|EPYC|_H[12]00|[Dd]ecisions? 0\d\d\d")
UNIT = re.compile(
    r"second|\bus\b|byte|cycle|clock|slots|times|share|operations|multiplications|products of", re.IGNORECASE
)


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


def beside(tree, text, node):
    """What is written beside a table: in the comments above and in it, in the text behind it and in its names."""
    lines = text.splitlines()
    first = node.lineno - 1
    while first and lines[first - 1].strip():
        first -= 1
    behind = tree.body[tree.body.index(node) + 1 :][:1]
    is_text = behind and isinstance(behind[0], ast.Expr) and isinstance(behind[0].value, ast.Constant)
    return "\n".join(
        [*lines[first : (behind[0] if is_text else node).end_lineno], *(each.lower() for each in assigned(node))]
    )


def explained(trees, node):
    """What the classes say whose objects a table has."""
    called = {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    classes = (own for tree in trees for own in tree.body if isinstance(own, ast.ClassDef) and own.name in called)
    return "\n".join(ast.get_docstring(own) or "" for own in classes)


def unexplained(name, tree, text):
    """Tables without a machine or decision, or without a unit, by the names of what they assign."""
    room = [parsed(other) for other in modules() if other.rpartition(".")[0] == name.rpartition(".")[0]]
    found = []
    for node in tables(tree):
        said = f"{beside(tree, text, node)}\n{explained([tree, *room], node)}"
        if not MACHINE.search(f"{said}\n{ast.get_docstring(tree)}") or not UNIT.search(said):
            found.append(sorted(assigned(node)))
    return found


@pytest.mark.parametrize("name", sorted(modules()))
def test_what_is_fitted_says_its_unit_and_where_it_was_measured(name):
    found = unexplained(name, parsed(name), modules()[name].read_text(encoding="utf-8"))
    assert not found, f"{name} does not say in which unit, or on which card or in which decision, {found} were measured"


@pytest.mark.parametrize("name", sorted(modules()))
def test_functions_have_no_fitted_numbers(name):
    found = in_functions(parsed(name))
    assert not found, f"{name}: give these a name and their unit where the module's constants are: {found}"


def test_numbers_are_found():
    tree = ast.parse("RATE = 3.1e12\nSURE = 0.5\n\ndef cost(n):\n    return 2.0 * n / 3.1e12\n")
    assert [assigned(node) for node in tables(tree)] == [{"RATE"}]
    assert in_functions(tree) == [("cost", [3.1e12])]
    text = (
        '# Seconds, on one H200.\nSTART = 3.1e-6\n\nRATE = 3.1e12\n\n\nLATE = 2.1e-6\n"""Seconds (decision 0043)."""\n'
    )
    assert unexplained("kernmantle.a", ast.parse(text), text) == [["RATE"]]
    assert MACHINE.search("on one H200")
    assert MACHINE.search("decision 0043")
    assert not MACHINE.search("quick on every machine")


if __name__ == "__main__":
    for room, count in sorted(counts().items()):
        sys.stdout.write(f"{count:5} {room}\n")
