"""The page of features names tests that are there, and no page names a call that is not."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from ..source import ROOT

PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@cache
def functions(path):
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_test_of_the_page_is_there(path):
    missing = [name for own, name in NAMED if own == path and name not in functions(path)]
    assert not missing


def test_every_row_has_a_test():
    rows = [
        line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| feature", "| what"))
    ]
    assert len(rows) > 50
    assert all(re.search(r"`[\w/]+\.py::\w+` \|$", line) for line in rows)


def test_a_name_that_is_not_there_is_found():
    assert "test_no_such_thing" not in functions("unit/test_parity.py")
    assert "test_every_row_has_a_test" in functions("unit/test_parity.py")
