"""The check of pages in a browser finds what is too wide; the site itself is checked where it is built."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import browser_check

pytestmark = pytest.mark.skipif(browser_check.browser() is None, reason="no chromium is installed")
PAGE = "<!doctype html><html><body style='margin:0'>{}</body></html>"


def test_what_is_wider_than_the_window_is_found(tmp_path):
    (tmp_path / "wide.html").write_text(PAGE.format("<div class='table' style='width:1200px'>x</div>"))
    found = browser_check.faults(tmp_path, ("wide.html", "absent.html"))
    assert [line.split(":")[0] for line in found] == ["wide.html at 390", "wide.html at 1024"]
    assert "'div', 'table', 1200" in found[0]


def test_what_scrolls_by_itself_is_not(tmp_path):
    inner = "<div style='overflow-x:auto'><div style='width:1200px'>x</div></div>"
    (tmp_path / "own.html").write_text(PAGE.format(inner))
    assert browser_check.faults(tmp_path, ("own.html",)) == []
