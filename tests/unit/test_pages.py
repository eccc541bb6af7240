"""The tables of the documentation are those of the library, row by row."""

from __future__ import annotations

import re

import pytest

from ..pages import TABLES, page, with_table

ROWS = [(name, line) for name, table in TABLES.items() for line in table().splitlines()[2:]]


def _entry(row: tuple[str, str]) -> str:
    (entry,) = re.findall(r"^\| `([^`]+)`", row[1])
    return f"{row[0]}-{entry}"


@pytest.mark.parametrize("row", ROWS, ids=_entry)
def test_a_row_is_on_its_page(row):
    name, line = row
    lines = page(name).read_text(encoding="utf-8").splitlines()
    assert line in lines, f"`python -m tests.pages` writes the table of docs/{name}.md"


@pytest.mark.parametrize("name", TABLES)
def test_a_page_has_no_other_rows(name):
    text, table = page(name).read_text(encoding="utf-8"), TABLES[name]()
    assert with_table(text, table) == text, f"`python -m tests.pages` writes the table of docs/{name}.md"


def test_only_the_table_is_written():
    text = "before\n| a | b |\n|---|---|\n| old | row |\n\nafter\n"
    assert with_table(text, "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |") == text.replace(
        "| old | row |", "| 1 | 2 |\n| 3 | 4 |"
    )
    with pytest.raises(ValueError, match="begins with"):
        with_table(text, "| c |\n|---|")
