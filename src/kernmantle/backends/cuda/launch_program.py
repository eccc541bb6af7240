"""Launches that follow one another as one native call, which takes their operands from a table of addresses.

A launch from Python takes the host 2 to 3 us besides what the driver takes, and twice that in a training step, whose
other code has taken the caches. A program is a list of records in memory: which bytes of which arguments take which
address of the table, and the function to call. As calls write into these arguments, one thread at a time runs a
program: its first word is 1 meanwhile, for which others wait. With the interpreter's lock, which is held over the
call, there never is another one. The call is a built-in function of Python, made here, which reads a list of numbers:
packing them and a call by ctypes take the host 5 us in a step, this 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST = 1024
"""Addresses of a table, with that of a workspace, which a native call takes; longer tables are launched one by one."""
_TEMPLATE = """
define i64 @km(ptr %program, i64 %count, ptr %table) {
entry:
  br label %asking
waiting:
  %held = load atomic volatile i64, ptr %program monotonic, align 8
  %isheld = icmp ne i64 %held, 0
  br i1 %isheld, label %waiting, label %asking
asking:
  %taken = cmpxchg ptr %program, i64 0, i64 1 acquire monotonic, align 8
  %istaken = extractvalue { i64, i1 } %taken, 1
  br i1 %istaken, label %begin, label %waiting
begin:
  %body = getelementptr i64, ptr %program, i64 1
  br label %records
records:
  %number = phi i64 [ 0, %begin ], [ %next, %done ]
  %ends = icmp sge i64 %number, %count
  br i1 %ends, label %success, label %record
record:
  %first = mul i64 %number, {WORDS}
  %base = getelementptr i64, ptr %body, i64 %first
{FIELDS}
  br label %patching
patching:
  %p = phi i64 [ 0, %record ], [ %q, %patched ]
  %patchedall = icmp sge i64 %p, %patches
  br i1 %patchedall, label %setting, label %patched
patched:
  %two = mul i64 %p, 2
  %to = getelementptr i64, ptr %patch, i64 %two
  %target = load ptr, ptr %to
  %three = add i64 %two, 1
  %from = getelementptr i64, ptr %patch, i64 %three
  %index = load i64, ptr %from
  %source = getelementptr i64, ptr %table, i64 %index
  %value = load i64, ptr %source
  store i64 %value, ptr %target
  %q = add i64 %p, 1
  br label %patching
setting:
  %has = icmp ne ptr %setter, null
  br i1 %has, label %set, label %choose
set:
{SET}
  %set.status = call i32 %setter({SET_ARGS})
  %set.bad = icmp ne i32 %set.status, 0
  br i1 %set.bad, label %setfail, label %choose
choose:
  %isfew = icmp eq i64 %kind, 0
  br i1 %isfew, label %few, label %many
few:
{FEW}
  %few.status = call i32 %function({FEW_ARGS})
  br label %done
many:
{MANY}
  %many.status = call i32 %function({MANY_ARGS})
  br label %done
done:
  %status = phi i32 [ %few.status, %few ], [ %many.status, %many ]
  %next = add i64 %number, 1
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %fail, label %records
setfail:
  br label %end
fail:
  br label %end
success:
  br label %end
end:
  %first.bad = phi i32 [ %set.status, %setfail ], [ %status, %fail ], [ 0, %success ]
  store atomic i64 0, ptr %program release, align 8
  %wide = sext i32 %first.bad to i64
  ret i64 %wide
}
"""


_FIELDS = {
    "kind": "i64", "patches": "i64", "patch": "ptr", "function": "ptr", "arguments": "ptr", "setter": "ptr",
    "values": "ptr",
}  # fmt: skip
"""The words of a record: 0 for 4 arguments and 1 for 16, how many patches, and addresses."""


def _loaded(value: str, kind: str, source: str, at: int) -> str:
    """Return the text that loads a word."""
    return f"  %{value}.at = getelementptr i64, ptr %{source}, i64 {at}\n  %{value} = load {kind}, ptr %{value}.at"


def _code() -> str:
    """Return the text of the function."""
    fields = [_loaded(name, kind, "base", at) for at, (name, kind) in enumerate(_FIELDS.items())]
    text = _TEMPLATE.replace("{FIELDS}", "\n".join(fields)).replace("{WORDS}", str(len(_FIELDS)))
    for name, source, count in (("set", "values", 4), ("few", "arguments", 4), ("many", "arguments", 16)):
        words = [f"{name}.word{at}" for at in range(count)]
        loads = "\n".join([_loaded(word, "i64", source, at) for at, word in enumerate(words)])
        text = text.replace(f"{{{name.upper()}}}", loads)
        text = text.replace(f"{{{name.upper()}_ARGS}}", ", ".join([f"i64 %{word}" for word in words]))
    return text


CODE = _code()
"""LLVM's text of ``km(program, count, table)``: it calls the records of a program, and returns the first status that
is not 0."""
SYMBOLS = "PyErr_Occurred", "PyList_GetItem", "PyList_Size", "PyLong_AsLongLong", "PyLong_FromLongLong"
"""Functions of Python that the code of :data:`CALL` calls."""
CALL = f"""
declare ptr @PyErr_Occurred()
declare ptr @PyList_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
define ptr @km(ptr %self, ptr %list) {{
entry:
  %table = alloca i64, i64 {MOST}, align 8
  %header.at = call i64 @PyLong_AsLongLong(ptr %self)
  %header = inttoptr i64 %header.at to ptr
  %run = load ptr, ptr %header
  %program.at = getelementptr i64, ptr %header, i64 1
  %program = load ptr, ptr %program.at
  %count.at = getelementptr i64, ptr %header, i64 2
  %count = load i64, ptr %count.at
  %length = call i64 @PyList_Size(ptr %list)
  %long = icmp ugt i64 %length, {MOST}
  br i1 %long, label %fail, label %numbers
numbers:
  %number = phi i64 [ 0, %entry ], [ %next, %store ]
  %ends = icmp eq i64 %number, %length
  br i1 %ends, label %launch, label %read
read:
  %object = call ptr @PyList_GetItem(ptr %list, i64 %number)
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %value, -1
  br i1 %odd, label %asking, label %store
asking:
  %error = call ptr @PyErr_Occurred()
  %right = icmp eq ptr %error, null
  br i1 %right, label %store, label %fail
store:
  %to = getelementptr i64, ptr %table, i64 %number
  store i64 %value, ptr %to
  %next = add i64 %number, 1
  br label %numbers
launch:
  %status = call i64 %run(ptr %program, i64 %count, ptr %table)
  %found = call ptr @PyLong_FromLongLong(i64 %status)
  ret ptr %found
fail:
  ret ptr null
}}
"""
"""LLVM's text of a built-in function of one list of numbers, which runs a program on them. ``self`` is the address of
three words: the function of :data:`CODE`, a program and how many records it has."""
_ONE_ARGUMENT = 8  # METH_O


class Record(NamedTuple):
    """A call of a native function on 4 or 16 words, of which ``patches`` are taken from the table of addresses.

    ``patches`` are pairs of the address of a word and its position in the table. ``setter`` is called first, on
    ``values``; 0 for none. ``owned`` are objects whose memory the call reads.
    """

    function: int
    arguments: Sequence[int]
    patches: Sequence[tuple[int, int]]
    setter: int = 0
    values: Sequence[int] = ()
    owned: tuple[Any, ...] = ()


class _Method(ctypes.Structure):
    """PyMethodDef of Python."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("text", ctypes.c_char_p),
    )  # fmt: skip


class Runner:
    """Functions of :data:`CODE` and of :data:`CALL`, by their addresses, which run programs."""

    def __init__(self, run: int, call: int, owned: Any = None) -> None:
        self.address, self._owned = run, owned
        self._method = _Method(b"launch", call, _ONE_ARGUMENT, None)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        self._make = make

    def function(self, words: Any, owned: list[Any]) -> Callable[[list[int]], int]:
        """Return the built-in function of three words, with which what is ``owned`` lives: these words, and this."""
        return self._make(ctypes.addressof(self._method), ctypes.addressof(words), owned)


class LaunchProgram:
    """Records that are called one after the other on a list of addresses, by ``launch``.

    That returns the status of the first that failed, 0 if none did.
    """

    def __init__(self, runner: Runner, records: Sequence[Record]) -> None:
        self._owned, words = list[Any](), [0]
        for own in records:
            arguments = own.arguments if isinstance(own.arguments, ctypes.Array) else self._array(own.arguments)
            self._owned.append(arguments)
            patches = self._array([word for patch in own.patches for word in patch])
            values = self._array(own.values)
            words += [
                0 if len(own.arguments) == 4 else 1, len(own.patches), ctypes.addressof(patches), own.function,
                ctypes.addressof(arguments), own.setter, ctypes.addressof(values),
            ]  # fmt: skip
            self._owned.append(own.owned)
        self.address = ctypes.addressof(self._array(words))
        self._owned.append(runner)
        self.launch = runner.function(self._array((runner.address, self.address, len(records))), self._owned)

    def _array(self, words: Sequence[int]) -> Any:
        made = (ctypes.c_int64 * max(1, len(words)))(*words)
        self._owned.append(made)
        return made
