"""Retired words enter no new identifier: how often each stands in src may only go down. See docs/glossary.md.

``python -m tests.unit.test_words`` records today's counts.
"""

import ast
import json
import re
from collections import Counter

import pytest

from ..source import FILES, PACKAGE, ROOT, parsed

GOLDEN = ROOT / "tests" / "golden" / "words.json"
COMMAND = "python -m tests.unit.test_words"
# Word: its forms. Words that are retired in one meaning only are counted where they have it.
RETIRED = {
    "recall": ("recall", "recalled", "recalls"), "known": ("known",), "look": ("look", "looks"), "learn": ("learn",),
    "turn": ("turn", "turns", "turned", "turning"), "way": ("way", "ways"), "place": ("place", "places"),
    "kept": ("kept",), "told": ("told",), "dealt": ("dealt",), "given": ("given",), "met": ("met",), "desk": ("desk",),
    "few": ("few",), "held": ("held",), "tame": ("tame",), "near": ("near",), "facts": ("facts",),
    "people": ("people",), "room": ("room", "rooms"), "aside": ("aside",), "beside": ("beside",),
    "behind": ("behind",), "meeting": ("meeting", "meetings", "meets"), "port": ("port", "ports"),
    "pull": ("pull", "pulled", "pulls", "pulling", "pullback", "pullbacks"),
}  # fmt: skip
IN_ENGINE = {"pair": ("pair", "pairs"), "lines": ("line", "lines"), "rings": ("ring", "rings")}
ENGINE = ("compiler", "backends", "torch_ops", "structured")
FRAGMENTS = ("As", "Of", "That", "Those", "What")
"""First words of texts that leave their subject to the line above them."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def parts(identifier):
    """Words of an identifier in lower case: of ``KronLines`` and ``kron_lines`` alike."""
    return [part.lower() for part in _PART.findall(identifier)]


def identifiers(tree):
    """Names that a module defines: functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def device_identifiers(text):
    """Names in a CUDA header, without its comments and strings."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', "", text, flags=re.DOTALL)))


def texts(tree):
    """Docstrings of a module, its classes, functions, attributes and constants."""
    for node in ast.walk(tree):
        for child in getattr(node, "body", ()) if not isinstance(node, (ast.Lambda, ast.IfExp)) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield child.value.value


def fragments(tree):
    """First lines of texts without a subject."""
    return [text.partition("\n")[0] for text in texts(tree) if text.split(maxsplit=1)[0] in FRAGMENTS]


def counts():
    """Number of identifiers with each retired word; one in several modules counts in each."""
    found = Counter()
    names = [(name.split(".")[1], set(identifiers(parsed(name))) | {FILES[name].stem}) for name in FILES]
    headers = sorted(PACKAGE.rglob("*.cuh"))
    names += [("backends", device_identifiers(path.read_text(encoding="utf-8")) | {path.stem}) for path in headers]
    for folder, own in names:
        for words in (RETIRED, IN_ENGINE if folder in ENGINE else {}):
            for word, forms in words.items():
                found[word] += sum(any(form in parts(name) for form in forms) for name in own)
    return dict(sorted(found.items()))


@pytest.fixture(scope="module")
def now():
    return counts()


@pytest.mark.parametrize("word", sorted(RETIRED | IN_ENGINE))
def test_a_retired_word_is_in_no_new_identifier(now, word):
    before = json.loads(GOLDEN.read_text())[word]
    assert now[word] <= before, (
        f"{now[word]} identifiers of src/ have the retired word {word!r}, {before} had: take the word of the field, "
        f"docs/glossary.md has it"
    )


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in FILES if "." in name}))
def test_a_docstring_has_a_subject_or_a_verb(room):
    found = {name: fragments(parsed(name)) for name in FILES if name.split(".")[1:2] == [room]}
    assert {name: lines for name, lines in found.items() if lines} == {}, (
        'begin with a noun, or with a verb as "Return"'
    )


def test_docstrings_of_every_kind_are_read():
    module = '"""As a module."""\nX = 1\n"""Of X."""\n'
    inside = 'class A:\n    """That one."""\n    def f(self):\n        """What f is.\n\n        More."""\n'
    assert fragments(ast.parse(module + inside)) == ["As a module.", "Of X.", "That one.", "What f is."]
    assert fragments(ast.parse('"""Return it."""\nfor x in "As":\n    print("Of")\n')) == []


def test_the_record_has_every_word():
    assert json.loads(GOLDEN.read_text()).keys() == (RETIRED | IN_ENGINE).keys()


def test_the_glossary_has_every_word():
    retired = (ROOT / "docs" / "glossary.md").read_text().partition("## Retired words")[2]
    for word in RETIRED | IN_ENGINE:
        assert re.search(rf"\b{word}\b", retired), word


def test_words_are_found_in_names_of_every_kind():
    source = (
        "class KnownThing:\n    def look_up(self, kept):\n        self.told = place = 1\nreturns = [0 for few in ()]\n"
    )
    found = [part for name in identifiers(ast.parse(source)) for part in parts(name)]
    assert {"known", "look", "kept", "told", "place", "few"} <= set(found)
    assert "turned" not in found
    assert parts("SM90KronLines_x") == ["sm", "kron", "lines", "x"]
    assert device_identifiers('int desk; // held\n/* room */ f("met");') == {"int", "desk", "f"}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(counts(), indent=1) + "\n")
