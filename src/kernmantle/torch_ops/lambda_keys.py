"""Keys of lambdas: a lambda has a key only if its bytecode proves what its result depends on.

A key holds the code and every value that the code can reach: numbers, and functions that always compute the same
(those of the table by identity, helpers by their own keys). Code that could reach anything else (an import, an
attribute of an object, an item of a dictionary, an unknown instruction) has no key and is traced in every call.
"""

from __future__ import annotations

import builtins
import dis
import math
import sys
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from ..ir import functions
from ..ir.composites import SPELLINGS
from ..runtime.lru import LRUCache

_NUMBERS = (bool, int, float)
_DEEPEST_HELPER = 8  # nested functions that a key reads
# Names of CPython 3.10 to 3.14; an instruction of another name leaves a lambda without a key.
_SILENT = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "NOT_TAKEN")
_INSTRUCTIONS = frozenset(
    """
    RESUME COPY_FREE_VARS PUSH_NULL POP_TOP COPY SWAP DUP_TOP DUP_TOP_TWO ROT_TWO ROT_THREE ROT_FOUR ROT_N
    LOAD_CONST LOAD_SMALL_INT LOAD_CONST_IMMORTAL LOAD_CONST_MORTAL RETURN_CONST RETURN_VALUE
    LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_BORROW LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST DELETE_FAST
    LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST LOAD_GLOBAL LOAD_DEREF
    LOAD_ATTR LOAD_METHOD KW_NAMES CALL CALL_KW CALL_FUNCTION CALL_FUNCTION_KW CALL_METHOD
    UNARY_POSITIVE UNARY_NEGATIVE UNARY_INVERT UNARY_NOT TO_BOOL COMPARE_OP IS_OP CONTAINS_OP BINARY_OP
    BINARY_ADD BINARY_SUBTRACT BINARY_MULTIPLY BINARY_TRUE_DIVIDE BINARY_FLOOR_DIVIDE BINARY_MODULO BINARY_POWER
    BINARY_AND BINARY_OR BINARY_XOR BINARY_SUBSCR INPLACE_ADD INPLACE_SUBTRACT INPLACE_MULTIPLY INPLACE_TRUE_DIVIDE
    INPLACE_FLOOR_DIVIDE INPLACE_MODULO INPLACE_POWER INPLACE_AND INPLACE_OR INPLACE_XOR
    BUILD_TUPLE BUILD_LIST LIST_APPEND UNPACK_SEQUENCE GET_ITER FOR_ITER END_FOR POP_ITER
    JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_ABSOLUTE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP
    POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE
    POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE
    """.split()  # noqa: SIM905
)
_UNARY_PLUS = ("CALL_INTRINSIC_1", "INTRINSIC_UNARY_POSITIVE")
_BUILTINS = "abs pow min max sum round divmod float int bool range len tuple list zip enumerate reversed".split()  # noqa: SIM905


def _constant_functions() -> Iterator[Any]:
    """Yield the functions that compute the same for ever, as they were when this module was imported."""
    yield from functions.FUNCTIONS.values()
    for module in (torch, torch.special, torch.nn.functional, np):
        for name in SPELLINGS:
            value = getattr(module, name, None)
            if isinstance(value, (BuiltinFunctionType, np.ufunc)) or type(value).__name__ == "_ArrayFunctionDispatcher":
                yield value
    yield from (value for value in vars(math).values() if isinstance(value, BuiltinFunctionType))
    yield from (getattr(builtins, name) for name in _BUILTINS)


_PACKAGE = sys.modules[__name__.partition(".")[0]]
_MODULES = {
    id(module): vars(module)
    for module in (_PACKAGE, functions, torch, torch.special, torch.nn, torch.nn.functional, np, math)
}
_LAZY = {id(_PACKAGE), id(functions)}
_FUNCTIONS = {id(value): value for value in _constant_functions()}


class Read(NamedTuple):
    """A global (``cell`` is -1) or captured variable that code reads, and the attributes that it goes on to."""

    name: str
    cell: int
    attributes: tuple[str, ...]


class Unproven(NamedTuple):
    """The reason why a function has no key."""

    reason: str


_READS: LRUCache[int, tuple[CodeType, tuple[Read, ...] | Unproven]] = LRUCache(1024)


def _analysed(code: CodeType) -> tuple[Read, ...] | Unproven:
    """Return every outside variable that code reads, or Unproven if its instructions do not show them all."""
    instructions = [entry for entry in dis.get_instructions(code) if entry.opname not in _SILENT]
    reads: list[Read] = []
    position = 0
    while position < len(instructions):
        entry = instructions[position]
        position += 1
        if entry.opname not in _INSTRUCTIONS and (entry.opname, entry.argrepr) != _UNARY_PLUS:
            return Unproven(f"runs the instruction {entry.opname}")
        if entry.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            attributes: list[str] = []
            while position < len(instructions) and instructions[position].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.append(instructions[position].argval)
                position += 1
            cell = code.co_freevars.index(entry.argval) if entry.opname == "LOAD_DEREF" else -1
            reads.append(Read(entry.argval, cell, tuple(attributes)))
        elif entry.opname in ("LOAD_ATTR", "LOAD_METHOD") and entry.argval not in SPELLINGS:
            return Unproven(f"reads the attribute {entry.argval!r} of a value")
    return tuple(dict.fromkeys(reads))


def reads(code: CodeType) -> tuple[Read, ...] | Unproven:
    """Return the analysis of code, made once: the cache holds the code, so that its id stays its own."""
    found = _READS.get(id(code))
    if found is not None and found[0] is code:
        return found[1]
    analysed = _analysed(code)
    _READS[id(code)] = code, analysed
    return analysed


def _value(function: FunctionType, read: Read) -> Any:
    """Return what a function reads there at this moment, or Unproven."""
    name, cell, attributes = read
    if cell < 0:
        scope = function.__globals__
        if name in scope:
            value = scope[name]
        else:
            outer = function.__builtins__  # pyright: ignore[reportAttributeAccessIssue]
            if name not in outer:
                return Unproven(f"reads {name!r}, which has no value yet")
            value = outer[name]
    else:
        try:
            value = function.__closure__[cell].cell_contents  # pyright: ignore[reportOptionalSubscript]
        except ValueError:
            return Unproven(f"reads {name!r}, which has no value yet")
    for attribute in attributes:
        names = _MODULES.get(id(value))
        if names is None:
            return Unproven(f"reads the attribute {attribute!r} of {name!r}")
        if attribute in names:
            value = names[attribute]
        elif id(value) in _LAZY and attribute in functions.FUNCTIONS:
            value = functions.FUNCTIONS[attribute]
        else:
            return Unproven(f"reads the attribute {attribute!r} of {name!r}")
    return value


def _part(value: Any, name: str, depth: int) -> Hashable | Unproven:
    """Return the part of a key that stands for a value, whose equal parts are interchangeable."""
    kind = type(value)
    if kind in _NUMBERS:
        return kind, repr(value)
    if id(value) in _FUNCTIONS:
        return value
    if kind is FunctionType and depth:
        return _key(value, depth - 1)
    if value is None or kind is str:
        return kind, value
    return Unproven(f"reads {name!r}, whose value can change")


def _key(function: FunctionType, depth: int) -> tuple[Hashable, ...] | Unproven:
    code = function.__code__
    found = reads(code)
    if isinstance(found, Unproven):
        return found
    key: list[Hashable] = [code]
    for read in found:
        value = _value(function, read)
        part = value if isinstance(value, Unproven) else _part(value, read.name, depth)
        if isinstance(part, Unproven):
            return part
        key.append(part)
    if function.__defaults__ or function.__kwdefaults__:
        for value in (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())):
            parts = [value] if type(value) is not tuple else [*value]
            for entry in parts:
                part = _part(entry, "a default", depth)
                if isinstance(part, Unproven):
                    return part
                key.append(part)
    return tuple(key)


def fingerprint(function: Callable[..., Any] | None) -> tuple[Hashable, ...] | None:
    """Return a key that two functions share only if they compute the same; None if the code does not prove that."""
    if function is None:
        return ()
    if type(function) is not FunctionType or function.__dict__:  # whose entries can change the signature
        return None
    key = _key(function, _DEEPEST_HELPER)
    return None if isinstance(key, Unproven) else key


def unseen(function: Callable[..., Any] | None) -> str:
    """Return what a function depends on that can change without the function, "" for nothing but captured numbers."""
    if function is None:
        return ""
    if type(function) is not FunctionType:
        return f"is an object of {type(function).__name__}"
    found = reads(function.__code__)
    if isinstance(found, Unproven):
        return found.reason
    for read in found:
        value = _value(function, read)
        if isinstance(value, Unproven):
            return value.reason
        if type(value) in _NUMBERS and (read.cell >= 0 or read.attributes):
            continue
        if id(value) not in _FUNCTIONS:
            kind = "number" if type(value) in _NUMBERS else "function" if callable(value) else "value"
            return f"reads the {'global' if read.cell < 0 else 'captured'} {kind} {read.name!r}"
    return ""
