"""The text of CPU kernels of every family is the recorded one; ``python -m tests.golden.llvm_texts`` records it."""

from __future__ import annotations

import json

import pytest

from ..golden.llvm_texts import COMMAND, FILE, MACHINES, TEXTS, change, row

RECORD = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_as_recorded(name: str) -> None:
    got = row(TEXTS[name]())
    words = f"the text changed: {change(RECORD[name], got)}. `{COMMAND} {name}` prints it, `{COMMAND}` records all"
    assert got["text"] == RECORD[name]["text"], words


def test_every_text_is_recorded_and_no_other() -> None:
    assert list(RECORD) == list(TEXTS)
    assert len({each["text"] for each in RECORD.values()}) == len(RECORD)
    assert all(each["lines"] > 5 for each in RECORD.values())


def test_families_are_what_they_are_called() -> None:
    for name, emit in TEXTS.items():
        first = emit().partition("\n")[0]
        assert (" across " in first) == name.startswith("horizontal "), name
        assert (" vjp " in first) == name.startswith("vjp "), name
    for machine in MACHINES:
        assert any(machine in name for name in TEXTS)


def test_a_changed_text_is_said_in_words() -> None:
    source = "; title\ndefine void @km() {\n  %a = fadd float 1.0, 2.0\n  ret void\n}\n"
    other = source.replace("fadd", "fmul")
    assert row(source)["fadd"] == 1
    assert row(source)["text"] != row(other)["text"]
    assert change(row(source), row(other)) == "fadd 1 -> 0, fmul 0 -> 1"
    assert change(row(source), row(source.replace("title", "name"))) == "as many of every instruction"
