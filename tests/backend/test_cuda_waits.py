"""Passes of Kronecker products wait for the launch ahead of them before they read what it writes, or write at all."""

from __future__ import annotations

import re

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import compile_source

from ..golden.cuda_code import disassembly
from ..golden.cuda_kernels import KERNELS

CARD = "sm_90"
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_COPIES = ("LDGSTS", "UBLKCP", "UTMALDG")
_STORES = ("STG", "RED", "REDG", "ATOM", "ATOMG", "UTMASTG")


def opcodes(name: str) -> list[str]:
    """The instructions of a kernel in the order of its text."""
    binary = compile_source(KERNELS[name].make(CARD).source, CARD, headers(), name=name).binary
    return _INSTRUCTION.findall(disassembly(binary))


def first(code: list[str], *names: str) -> int:
    """Where the first of some instructions is, behind the last one if there is none."""
    return next((place for place, own in enumerate(code) if own in names), len(code))


def by_header() -> dict[str, str]:
    """A kernel of every header of passes, of one axis with loads of either kind."""
    found: dict[str, str] = {}
    for name, row in KERNELS.items():
        if name.startswith("kron ") and CARD in row.cards:
            source = row.make(CARD).source
            header = re.findall(r'#include "(\w+).cuh"', source)[-1]
            copies = re.search(r"COPIES = (\d+)", source)
            found.setdefault(header + " with copies" * bool(copies and int(copies[1])), name)
    return found


PASSES = by_header()
# Passes that read factors before they wait, if another one of the same product is launched ahead of them.
PREPARING = ("kron_mma", "kron_fma", "kron_axis", "kron_wgmma", "kron_wide", "kron_back_", "kron_chain")


def test_passes_of_every_kind_are_checked():
    kinds = {"mma", "fma", "axis", "wide", "wgmma", "two_axis", "cluster", "cube", "cluster_wgmma", "gram_split"}
    kinds |= {"separate", "back_axis", "back_wgmma", "back_registers", "chain"}
    assert not {f"kron_{kind}" for kind in kinds} - {kind.partition(" ")[0] for kind in PASSES}


@pytest.mark.parametrize("kind", PASSES)
def test_nothing_is_copied_or_written_before_the_wait(kind):
    code = opcodes(PASSES[kind])
    wait, trigger = first(code, "ACQBULK"), first(code, "PREEXIT")
    assert wait < len(code)
    assert wait < first(code, *_COPIES, *_STORES, *(() if kind.startswith(PREPARING) else ("LDG",)))
    assert wait < trigger < len(code)  # the next launch begins when all before this one is complete
