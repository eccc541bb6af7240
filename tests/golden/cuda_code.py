"""What the compiler makes of the kernels, recorded for each GPU generation, and the rule by which it may change.

``python -m tests.golden.cuda_code`` records what changed; ``--all`` compiles every kernel anew; ``--show NAME`` prints
the text of a kernel.

A kernel passes if its text is the recorded one: the compiler is deterministic. If the text changed it is compiled, and
the result must be no worse: registers, stack, spilled bytes and static shared bytes not above the record, threads,
blocks and dynamic shared bytes equal, and of each class of instructions in ``WORK`` at most 2 % (or 2) more, of all
instructions at most 5 % (or 16) more. That depends on the compiler, so its version is part of the record, and with
another version only the text can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import Cubin, compile_source

from .compiled import compiler, digest
from .cuda_kernels import KERNELS, Planned

FOLDER = Path(__file__).parent / "cuda"
COMMAND = "python -m tests.golden.cuda_code"
Record = dict[str, Any]

# Class of SASS instructions: the opcodes that it counts. A name that ends in * stands for all that begin so.
CLASSES = {
    "tensor": ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "UTC*", "WARPGROUP*"),
    "fp32": ("FFMA*", "FADD*", "FMUL*"),
    "fp64": ("DFMA", "DADD", "DMUL", "DSETP", "DMNMX"),
    "fp16": ("HFMA2*", "HADD2*", "HMUL2*", "HMNMX2", "HSETP2", "HSET2"),
    "special": ("MUFU",),
    "compare": ("FMNMX*", "FSETP", "FSET", "FSEL", "FCHK", "FSWZADD"),
    "convert": ("F2F*", "F2I*", "I2F*", "F2FP*", "FRND*", "I2I*", "I2FP"),
    "global load": ("LDG", "LD"),
    "global store": ("STG", "ST"),
    "async copy": ("LDGSTS", "LDGDEPBAR", "UTMA*", "UBLKCP", "UBLKPF", "CCTL*"),
    "shared load": ("LDS", "LDSM"),
    "shared store": ("STS", "STSM"),
    "local": ("LDL", "STL"),
    "atomic": ("ATOM*", "RED*", "ATOMS*"),
    "shuffle": ("SHFL", "VOTE*", "MATCH", "REDUX", "CREDUX", "MOVM"),
    "barrier": ("BAR", "DEPBAR", "SYNCS*", "WARPSYNC*", "MEMBAR", "FENCE*", "ERRBAR", "ACQ*", "NANOSLEEP"),
    "branch": ("BRA*", "BRX*", "JMP*", "CALL*", "RET*", "EXIT", "BSSY*", "BSYNC*", "BREAK*", "YIELD"),
    "constant load": ("LDC*", "ULDC*"),
    "integer": (
        "IMAD*", "IADD*", "LEA*", "LOP*", "SHF*", "ISETP*", "IMNMX*", "VIMNMX*", "VIADD*", "IABS", "POPC", "FLO",
        "BMSK", "BREV", "SGXT", "PLOP3*", "UIADD*", "UIMAD*", "ULEA*", "ULOP*", "USHF*", "UISETP*", "UPLOP3*", "USGXT",
        "UBMSK", "UFLO", "UPOPC", "UIABS", "VIADDMNMX*", "UVIADD*",
    ),
    "move": (
        "MOV*", "SEL*", "PRMT*", "CS2R*", "S2R*", "S2UR*", "R2UR*", "R2P*", "P2R*", "UMOV*", "USEL*", "UPRMT*", "UP2UR",
        "UR2UP", "CS2UR", "R2B", "B2R", "UR2P",
    ),
}  # fmt: skip
WORK = (
    "tensor", "fp32", "fp64", "fp16", "special", "compare", "convert", "global load", "global store", "async copy",
    "shared load", "shared store", "local", "atomic", "shuffle", "barrier",
)  # fmt: skip
_EXACT = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes if not opcode.endswith("*")}
_BEGIN = sorted(
    ((opcode[:-1], name) for name, opcodes in CLASSES.items() for opcode in opcodes if opcode.endswith("*")),
    key=lambda pair: -len(pair[0]),
)
_SECTION = re.compile(r"^\s*\.section\s+\.text\.(\w+)", re.MULTILINE)
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
_ENTRY = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)


def disassembler() -> str | None:
    """Return the path of nvdisasm: of the package, else of an installed toolkit."""
    for package in ("nvidia.cu13", "nvidia.cuda_nvdisasm"):
        try:
            found = find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations or ()) if found else ():
            program = Path(folder) / "bin" / "nvdisasm"
            if program.exists():
                return str(program)
    return shutil.which("nvdisasm")


def class_of(opcode: str) -> str:
    """Return the class that counts an opcode, "other" if none does."""
    found = _EXACT.get(opcode)
    return found or next((name for begin, name in _BEGIN if opcode.startswith(begin)), "other")


def disassembly(binary: bytes) -> str:
    """Return the text of the instructions of a cubin."""
    program = disassembler()
    assert program is not None, "nvdisasm is missing: pip install nvidia-cuda-nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([program, "-c", "-ndf", file.name], check=True, capture_output=True, text=True).stdout


def disassembled(binary: bytes) -> dict[str, Counter[str]]:
    """Return how often each opcode occurs in each function of a cubin; padding is left out."""
    _, *parts = _SECTION.split(disassembly(binary))
    found = {name: Counter(_OPCODE.findall(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    for counts in found.values():
        counts.pop("NOP", None)
    return found


def entries(cubin: Cubin) -> dict[str, Record]:
    """Return registers, memory and instructions of each kernel in a module."""
    opcodes = disassembled(cubin.binary)
    found: dict[str, Record] = {}
    for name, stack, stores, loads, registers, rest in _ENTRY.findall(cubin.log):
        static = re.search(r"(\d+) bytes smem", rest)
        classes: Counter[str] = Counter()
        for opcode, count in opcodes[name].items():
            classes[class_of(opcode)] += count
        found[name] = {
            "registers": int(registers), "stack": int(stack), "spill_stores": int(stores), "spill_loads": int(loads),
            "static_shared": int(static.group(1)) if static else 0, "instructions": classes.total(),
            **{kind: classes[kind] for kind in (*CLASSES, "other") if classes[kind]},
        }  # fmt: skip
    assert found, cubin.log
    return dict(sorted(found.items()))


def launch(planned: Planned) -> Record:
    """Return what a plan promises the card."""
    return {
        "plan": planned.plan, "threads": planned.threads, "shared": planned.shared, "resident": planned.resident,
    }  # fmt: skip


def measured(name: str, card: str) -> Record:
    """Compile a kernel and return its row of the record."""
    planned = KERNELS[name].make(card)
    cubin = compile_source(planned.source, card, headers(), name)
    return {"text": digest(planned.source, card), **launch(planned), "entries": entries(cubin)}


def worse(want: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Return what is worse than in the record, in words; an empty list if nothing is."""
    found = [
        f"{key}: {got[key]}, recorded {want[key]}" for key in ("threads", "shared", "resident") if got[key] != want[key]
    ]
    if got["entries"].keys() != want["entries"].keys():
        return [*found, f"kernels: {sorted(got['entries'])}, recorded {sorted(want['entries'])}"]
    for entry, made in got["entries"].items():
        before = want["entries"][entry]
        sizes = ("registers", "stack", "spill_stores", "spill_loads", "static_shared")
        found += [f"{entry}: {key} {before[key]} -> {made[key]}" for key in sizes if made[key] > before[key]]
        for key in WORK:
            old, new = before.get(key, 0), made.get(key, 0)
            if new > old + max(2, old // 50):
                found.append(f"{entry}: {key} instructions {old} -> {new}")
        old, new = before["instructions"], made["instructions"]
        if new > old + max(16, old // 20):
            found.append(f"{entry}: instructions {old} -> {new}")
    return found


def path(card: str) -> Path:
    """Return the file of a card's record."""
    return FOLDER / f"code_{card}.json"


def read(card: str) -> Record:
    """Return the record of a card."""
    assert path(card).exists(), f"no machine code of {card} is recorded: `{COMMAND}` records it"
    return json.loads(path(card).read_text())


def written(compiled_with: str, kernels: Mapping[str, Record]) -> str:
    """Return a record as text, a line for each launch and each kernel."""
    rows = []
    for name, row in kernels.items():
        inside = [f"  {json.dumps(entry)}: {json.dumps(made)}" for entry, made in row["entries"].items()]
        head = json.dumps({key: value for key, value in row.items() if key != "entries"})[:-1]
        rows.append(f' {json.dumps(name)}: {head}, "entries": {{\n' + ",\n".join(inside) + "}}")
    return f'{{"compiler": {json.dumps(compiled_with)}, "kernels": {{\n' + ",\n".join(rows) + "}}\n"


def cards() -> list[str]:
    """Return the GPU generations that have a record."""
    return sorted({card for kernel in KERNELS.values() for card in kernel.cards}, key=lambda card: int(card[3:]))


def _update(card: str, everything: bool, pool: ProcessPoolExecutor) -> Iterable[str]:
    old: Record = {} if everything or not path(card).exists() else read(card)
    recorded: Record = old.get("kernels", {}) if old.get("compiler") == compiler() else {}
    futures = {}
    for name, kernel in KERNELS.items():
        if card in kernel.cards:
            planned = kernel.make(card)
            fresh = {"text": digest(planned.source, card), **launch(planned)}
            same = name in recorded and all(recorded[name][key] == value for key, value in fresh.items())
            futures[name] = recorded[name] if same else pool.submit(measured, name, card)
    rows = {name: each if isinstance(each, dict) else each.result() for name, each in futures.items()}
    path(card).write_text(written(compiler(), rows))
    for name, row in rows.items():
        if name in recorded and recorded[name] != row:
            change = worse(recorded[name], row)
            yield f"{card} {name}: " + ("; ".join(change) if change else "other text, nothing worse")
        elif name not in recorded:
            yield f"{card} {name}: recorded"


def main() -> None:
    """Write the records, or print a text."""
    parser = argparse.ArgumentParser(COMMAND, description=__doc__)
    parser.add_argument("--all", action="store_true", help="compile every kernel anew")
    parser.add_argument("--show", choices=KERNELS, metavar="NAME", help="print a kernel's text, and record nothing")
    asked = parser.parse_args()
    if asked.show is not None:
        sys.stdout.write(KERNELS[asked.show].make(KERNELS[asked.show].cards[-1]).source)
        return
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for card in cards():
            for line in _update(card, asked.all, pool):
                sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
