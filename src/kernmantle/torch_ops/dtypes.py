"""Names of storage types, and the type that arithmetic on them uses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..errors import DtypeError
from ..ir.node import Node, postorder
from ..ir.ops import OPS
from ..ir.program import Program
from ..ir.reductions import REDUCTIONS
from ..ir.rules import is_boolean
from ..ir.show import pretty

NAMES: dict[torch.dtype, str] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
_LARGEST = {"i32": 2**31 - 1, "i64": 2**53}
_COMPUTE = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "i16": "i32", "bool": "i32"}


def name_of(dtype: torch.dtype, what: str) -> str:
    """Return the name of a storage type, or DtypeError."""
    if dtype not in NAMES:
        supported = ", ".join(str(each) for each in NAMES)
        raise DtypeError(f"{what} has dtype {dtype}; supported are {supported}")
    return NAMES[dtype]


def compute_type(dtypes: Sequence[str]) -> str:
    """Return the compute type for these storage types: the widest of them, halves and small integers widened."""
    wide = {_COMPUTE.get(dtype, dtype) for dtype in dtypes}
    return next((candidate for candidate in ("f64", "f32", "i64") if candidate in wide), "i32")


def stored_type(kind: str, operand: str) -> str:
    """Return the storage type of a result of that kind for operands stored as ``operand``; sums over bool are int64."""
    if kind == "value":
        return "i64" if operand == "bool" else operand
    return {"bool": "bool", "index": "i64"}[kind]


_SPELLED = {"div": "division (/ or //)", "floor": "floor (or //)", "fmod": "the remainder (fmod or %)"}
"""Spellings in a lambda of operations that have another name in the table."""


def check_integer(text: str, stored: Sequence[str]) -> str:
    """Return the compute type; raise DtypeError if it is an integer type and the program computes fractions."""
    program, compute = Program.parse(text), compute_type(stored)
    if compute not in _LARGEST:
        return compute
    steps = [node for red in program.reductions for node in red.step if red.is_fold]
    for node in postorder([*program.map, *program.outputs, *steps]):
        if node.op in OPS and not OPS[node.op].integer:
            name = _SPELLED.get(node.op, node.op)
            raise DtypeError(f"{name} needs floating-point operands; convert them with .float() first")
    if any(red.floating for red in program.reductions):
        raise DtypeError("logsumexp needs floating-point operands; convert them with .float() first")
    check_numbers([init for red in program.reductions for init in red.init if not math.isinf(init)], compute)
    return compute


def check_truths(text: str, stored: Sequence[str]) -> None:
    """Raise DtypeError if &, |, ~ or ^ is applied to numbers: here they combine truth values, not bits."""
    program = Program.parse(text)
    truths = {op.name for op, dtype in zip(program.tensors, stored, strict=True) if dtype == "bool"}
    if program.symmetric and "x0" in truths:
        truths.add("x1")
    _require_truths(program.map, truths)
    for value, reduction in zip(program.map, program.reductions, strict=True):
        if reduction.name not in REDUCTIONS:
            _require_truths(reduction.step, truths | ({"s0", "t"} if _is_truth(value, truths) else set()))
    results = {f"s{i}" for i, reduction in enumerate(program.reductions) if reduction.result == "bool"}
    _require_truths(program.outputs, truths | results)


def _is_truth(node: Node, truths: set[str]) -> bool:
    if node.op == "where":
        return all(_is_truth(arg, truths) for arg in node.args[1:])
    return is_boolean(node) or (node.op == "var" and node.name in truths)


def _require_truths(roots: Sequence[Node], truths: set[str]) -> None:
    for node in postorder(roots):
        if node.op in ("and", "or", "not") and not all(_is_truth(arg, truths) for arg in node.args):
            raise DtypeError(
                f"{pretty(node)}: &, |, ~ and ^ join what is true or false, not the bits of numbers; "
                "compare first, as in (a != 0) & (b != 0), or use km.logical_and, logical_or, logical_not, "
                "logical_xor; a power is **"
            )


def check_numbers(numbers: Sequence[float], compute: str) -> None:
    """Raise DtypeError if a number does not fit integer arithmetic."""
    if compute not in _LARGEST:
        return
    for number in numbers:
        if number % 1 != 0:
            raise DtypeError(f"the number {number} meets integer operands; convert them with .float() first")
        if abs(number) > _LARGEST[compute]:
            raise DtypeError(f"the number {number} is too large for integer operands; pass it as an int64 tensor")
