"""Names of storage types, and the type that arithmetic on them uses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..contraction.program import Program
from ..errors import DtypeError
from ..expr.node import postorder
from ..expr.ops import OPS

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
    """Name of a storage type, or DtypeError."""
    if dtype not in NAMES:
        supported = ", ".join(str(known) for known in NAMES)
        raise DtypeError(f"{what} has dtype {dtype}; supported are {supported}")
    return NAMES[dtype]


def compute_type(dtypes: Sequence[str]) -> str:
    """Type of the arithmetic for operands stored so: the widest, halves and small integers widened."""
    wide = {_COMPUTE.get(dtype, dtype) for dtype in dtypes}
    return next((candidate for candidate in ("f64", "f32", "i64") if candidate in wide), "i32")


def stored_type(kind: str, operand: str) -> str:
    """Storage type of a result of that kind for operands stored as ``operand``; sums over bool are int64."""
    if kind == "value":
        return "i64" if operand == "bool" else operand
    return {"bool": "bool", "index": "i64"}[kind]


def check_integer(text: str, stored: Sequence[str]) -> str:
    """Type of the arithmetic; DtypeError if it is an integer one that cannot represent what the program computes."""
    program, compute = Program.parse(text), compute_type(stored)
    if compute not in _LARGEST:
        return compute
    steps = [node for red in program.reductions for node in red.step if red.is_fold]
    for node in postorder([*program.map, *program.outputs, *steps]):
        if node.op in OPS and not OPS[node.op].integer:
            raise DtypeError(f"{node.op} needs floating-point operands; convert them with .float() first")
    if any(red.floating for red in program.reductions):
        raise DtypeError("logsumexp needs floating-point operands; convert them with .float() first")
    check_numbers([init for red in program.reductions for init in red.init if not math.isinf(init)], compute)
    return compute


def check_numbers(numbers: Sequence[float], compute: str) -> None:
    """DtypeError if a number does not fit integer arithmetic."""
    if compute not in _LARGEST:
        return
    for number in numbers:
        if number % 1 != 0:
            raise DtypeError(f"the number {number} meets integer operands; convert them with .float() first")
        if abs(number) > _LARGEST[compute]:
            raise DtypeError(f"the number {number} is too large for integer operands; pass it as an int64 tensor")
