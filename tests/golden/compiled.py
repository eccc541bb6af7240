"""What NVRTC said of kernels whose text has not changed since: most need not be compiled again to test what they take.

The text that the compiler reads, its settings and its version decide what it says, so a log is recorded under a digest
of the three. A kernel with another text is compiled, and so is one recorded kernel in twelve, whose log must be the
recorded one. ``python -m tests.golden.compiled`` runs the tests that compile kernels and records what they needed; it
compiles what is new. With arguments, which are those of pytest, it adds to the record; without any, it drops what no
test needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernmantle.backends.cuda import nvrtc
from kernmantle.backends.cuda.arch import arch
from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import Cubin, compiler_version, inlined, options, resources

COMMAND = "python -m tests.golden.compiled"
PATH = Path(__file__).parent / "cuda" / "compiled.json"
FILES = ("tests/backend", "tests/unit/test_row_vjp.py")
CHECKED = 12
"""One recorded kernel of so many is compiled all the same."""
MAGIC = b"\x7fELF"
"""How machine code begins: all that a recorded kernel has of it."""
_NEEDED = "TESTS_GOLDEN_COMPILED"
_SECONDS = re.compile(r"^.*Compile time = .*\n", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def compiler() -> str:
    """Return the version of NVRTC, of the package where it comes from one."""
    try:
        return f"nvrtc {version('nvidia-cuda-nvrtc')}"
    except PackageNotFoundError:
        return compiler_version()


@cache
def _headers() -> Mapping[str, str]:
    return {name: _COMMENT.sub("", text) for name, text in headers().items()}


def digest(source: str, card: str) -> str:
    """Return a digest of all text that the compiler reads, but for comments and white space."""
    text = inlined(_COMMENT.sub("", source), _headers())
    return hashlib.sha256(f"{arch(card).target} {' '.join(text.split())}".encode()).hexdigest()[:16]


@cache
def record() -> Mapping[str, str]:
    """Return the recorded logs by digest; none if they are of another compiler."""
    found = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return found["logs"] if found.get("compiler") == compiler() else {}


def key(source: str, card: str, fuse: bool = True) -> str:
    """Return the digest under which a log is recorded."""
    return hashlib.sha256(f"{digest(source, card)} {options(card, fuse)}".encode()).hexdigest()[:16]


def compile_source(source: str, card: str, texts: Mapping[str, str], name: str = "kernel", fuse: bool = True) -> Cubin:
    """Compile as NVRTC does, or return what it said of the same text, without the machine code."""
    own = key(source, card, fuse)
    log = record().get(own)
    if log is None or int(own, 16) % CHECKED == 0:
        found = nvrtc.compile_source(source, card, texts, name, fuse)
        found = replace(found, log=_SECONDS.sub("", found.log))
        assert log in (None, found.log), f"{own} is recorded with another log: remove {PATH.name} and run `{COMMAND}`"
    else:
        found = Cubin(MAGIC, card, log, resources(log))
    if _NEEDED in os.environ:
        with Path(os.environ[_NEEDED]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([own, found.log]) + "\n")
    return found


def main() -> None:
    """Record the logs of what the tests compile."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as needed:
        command = [sys.executable, "-m", "pytest", "-q", *FILES, "-k", "cuda or kronsparse or row_vjp", *sys.argv[1:]]
        subprocess.run(command, check=True, env={**os.environ, _NEEDED: needed.name})
        lines = Path(needed.name).read_text(encoding="utf-8").splitlines()
    logs = {**(record() if sys.argv[1:] else {}), **dict(json.loads(line) for line in lines)}
    text = json.dumps({"compiler": compiler(), "logs": logs}, indent=1, sort_keys=True)
    PATH.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
