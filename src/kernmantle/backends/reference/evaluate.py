"""The living definition: evaluates any program with any array namespace, in bounded memory.

Every backend is tested against this evaluator in float64, and ``config(backend="reference")`` uses it.
A mapped value is lifted into the reduction's registers and neighbours are joined in a binary tree, which
keeps their order and lets rounding grow with the logarithm of the depth; folds run one position at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...errors import BackendError
from ...ir.equation import broadcast
from ...ir.node import Node, postorder
from ...ir.ops import OPS, Op
from ...ir.program import Program
from ...ir.reductions import Reduction

Array = Any
Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Namespace:
    """How to compute with one kind of array; kinds of number are "value", "bool" and "index"."""

    function: Callable[[str], Callable[..., Array]]
    full: Callable[[tuple[int, ...], Any, str], Array]
    cast: Callable[[Array, str], Array]
    is_bool: Callable[[Array], bool]
    concatenate: Callable[[Sequence[Array], int], Array]
    arange: Callable[[int, int], Array]
    permute: Callable[[Array, Sequence[int]], Array]
    broadcast: Callable[[Array, tuple[int, ...]], Array]


def lookup(row: Op, modules: Sequence[Any], names: Sequence[str]) -> Callable[..., Array]:
    """Return the function of an operation: the first of ``names`` that a module has, else composed from others."""
    for module in modules:
        for name in names:
            if name and hasattr(module, name):
                return getattr(module, name)
    if row.name not in _COMPOSED:
        raise BackendError(
            f"{modules[-1].__name__} has no function for operation {row.name!r}: name one in its row "
            "of ir/ops.py, or write its definition into _COMPOSED of backends/reference/evaluate.py"
        )
    return _COMPOSED[row.name]


def _rsqrt(x: Array) -> Array:
    return 1 / x**0.5


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + math.e ** (-x))


_COMPOSED: dict[str, Callable[..., Array]] = {
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
}


@lru_cache(maxsize=512)
def _order(roots: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes of expressions in the order of their evaluation, which a run asks for once a block and level."""
    return tuple(postorder(roots))


def evaluate(roots: Sequence[Node], env: Mapping[str, Array], ns: Namespace) -> list[Array]:
    """Return the values of expressions, the variables taken from ``env``."""
    values: dict[Node, Array] = {}
    for node in _order(tuple(roots)):
        if node.op == "var":
            values[node] = env[node.name]
        elif node.args:
            conditions = OPS[node.op].conditions
            args = [_coerced(values[arg], number in conditions, ns) for number, arg in enumerate(node.args)]
            values[node] = ns.function(node.op)(*args)
        else:
            values[node] = ns.full((), node.number, "bool" if isinstance(node.number, bool) else "value")
    return [values[root] for root in roots]


def _coerced(array: Array, condition: bool, ns: Namespace) -> Array:
    if ns.is_bool(array) == condition:
        return array
    return ns.cast(array, "bool" if condition else "value")


def merge(reduction: Reduction, left: Sequence[Array], right: Sequence[Array], ns: Namespace) -> list[Array]:
    """Return the registers of a range joined with those of the range after it."""
    assert reduction.merge is not None
    env = {f"s{i}": value for i, value in enumerate(left)} | {f"r{i}": value for i, value in enumerate(right)}
    return evaluate(reduction.merge, env, ns)


def _at(array: Array, axis: int, piece: slice) -> Array:
    return array[(..., piece, *[slice(None)] * (-1 - axis))]


def merge_axis(reduction: Reduction, registers: Sequence[Array], axis: int, ns: Namespace) -> list[Array]:
    """Join the registers along an axis (counted from the right) down to length 1; none give the identity."""
    state = list(registers)
    shape = list(state[0].shape)
    count = shape[axis]
    if count == 0:
        shape[axis] = 1
        return initial(reduction, tuple(shape), ns)
    while count > 1:
        even = count - count % 2
        left = [_at(register, axis, slice(0, even, 2)) for register in state]
        right = [_at(register, axis, slice(1, even, 2)) for register in state]
        joined = merge(reduction, left, right, ns)
        if count % 2:
            last = [_at(register, axis, slice(even, None)) for register in state]
            joined = [ns.concatenate(parts, axis) for parts in zip(joined, last, strict=True)]
        state, count = joined, count - count // 2
    return state


def initial(reduction: Reduction, shape: tuple[int, ...], ns: Namespace) -> list[Array]:
    """Return the registers of an empty range."""
    return [ns.full(shape, init, kind) for init, kind in zip(reduction.init, reduction.kinds, strict=True)]


class _Evaluation:
    """One program on arrays whose axes lie in the program's order, missing ones with length 1."""

    def __init__(self, program: Program, arrays: Mapping[str, Array], ns: Namespace, limit: int):
        self.program, self.ns, self.limit = program, ns, limit
        self.axes = program.axes
        self.arrays = {operand.name: self._aligned(arrays[operand.name], operand.axes) for operand in program.operands}
        self.present = {operand.name: operand.axes for operand in program.operands}
        leading = [tuple(a.shape[: len(a.shape) - len(self.axes)]) for a in self.arrays.values()]
        self.batch = math.prod(broadcast(leading) or ())

    def _aligned(self, array: Array, axes: str) -> Array:
        batch = len(array.shape) - len(axes)
        order = sorted(range(len(axes)), key=lambda axis: self.axes.index(axes[axis]))
        array = self.ns.permute(array, [*range(batch), *(batch + axis for axis in order)])
        lengths = iter(array.shape[batch:])
        return array.reshape((*array.shape[:batch], *(next(lengths) if axis in axes else 1 for axis in self.axes)))

    def operands(self, roots: Sequence[Node], ranges: Ranges) -> dict[str, Array]:
        """Return the part of every operand that the expressions read."""
        names = [node.name for node in _order(tuple(roots)) if node.op == "var" and node.name in self.arrays]
        whole = slice(None)
        return {
            name: self.arrays[name][
                (..., *(slice(*ranges[a]) if a in self.present[name] else whole for a in self.axes))
            ]
            for name in names
        }

    def elements(self, ranges: Ranges, axes: str) -> int:
        return self.batch * math.prod(ranges[axis][1] - ranges[axis][0] for axis in axes)

    def registers(self, reduction: Reduction, value: Node, ranges: Ranges) -> list[Array]:
        """Return the registers of one reduction, reduced axes with length 1; long ranges are halved."""
        if reduction.is_fold:
            return self._folded(reduction, ranges)
        lengths = {axis: ranges[axis][1] - ranges[axis][0] for axis in self.program.reduced}
        longest = max(lengths, key=lambda axis: lengths[axis], default="")
        if longest and lengths[longest] > 1 and self.elements(ranges, self.axes) > self.limit:
            start, stop = ranges[longest]
            middle = (start + stop) // 2
            left = self.registers(reduction, value, {**ranges, longest: (start, middle)})
            return merge(
                reduction, left, self.registers(reduction, value, {**ranges, longest: (middle, stop)}), self.ns
            )
        state = self._lifted(reduction, value, ranges)
        for axis in self.program.reduced:
            state = merge_axis(reduction, state, self.axes.index(axis) - len(self.axes), self.ns)
        return state

    def _lifted(self, reduction: Reduction, value: Node, ranges: Ranges) -> list[Array]:
        ns = self.ns
        (mapped,) = evaluate([value], self.operands([value], ranges), ns)
        lengths = tuple(ranges[axis][1] - ranges[axis][0] for axis in self.axes)
        shape = broadcast([tuple(mapped.shape), lengths]) or ()
        index = ns.full((), 0, "index")
        if self.program.reduced:
            axis = self.program.reduced[-1]
            index = ns.arange(*ranges[axis]).reshape([-1 if other == axis else 1 for other in self.axes])
        start = {f"s{i}": register for i, register in enumerate(initial(reduction, (), ns))}
        registers = evaluate(reduction.step, {**start, "t": ns.broadcast(mapped, shape), "index": index}, ns)
        return [ns.broadcast(ns.cast(r, kind), shape) for r, kind in zip(registers, reduction.kinds, strict=True)]

    def _folded(self, reduction: Reduction, ranges: Ranges) -> list[Array]:
        (axis,) = self.program.reduced
        state = initial(reduction, (1,) * len(self.axes), self.ns)
        for position in range(*ranges[axis]):
            env = self.operands(reduction.step, {**ranges, axis: (position, position + 1)})
            registers = {f"s{i}": register for i, register in enumerate(state)}
            state = evaluate(
                reduction.step, {**env, **registers, "index": self.ns.full((), position, "index")}, self.ns
            )
        return state

    def block(self, ranges: Ranges) -> list[Array]:
        """Return the outputs of a range of the output axes, all reduced axes whole."""
        program, ns = self.program, self.ns
        finished: dict[str, Array] = {}
        for i, (reduction, value) in enumerate(zip(program.reductions, program.map, strict=True)):
            registers = self.registers(reduction, value, ranges)
            env = {f"s{j}": register for j, register in enumerate(registers)}
            (finished[f"s{i}"],) = evaluate([reduction.finish], env, ns)
        values = evaluate(program.outputs, {**self.operands(program.outputs, ranges), **finished}, ns)
        lengths = tuple(ranges[axis][1] - ranges[axis][0] if axis in program.out else 1 for axis in self.axes)
        shapes = [broadcast([tuple(value.shape), lengths]) or () for value in values]
        outer = lengths[: len(program.out)]
        return [
            ns.broadcast(value, shape).reshape((*shape[: len(shape) - len(lengths)], *outer))
            for value, shape in zip(values, shapes, strict=True)
        ]


def _halves(ranges: Ranges, out: str, evaluation: _Evaluation) -> Iterator[Ranges]:
    """Yield the output cut in two, along its longest axis, until each piece is small enough."""
    longest = max(out, key=lambda axis: ranges[axis][1] - ranges[axis][0], default="")
    start, stop = ranges[longest] if longest else (0, 1)
    if stop - start < 2 or evaluation.elements(ranges, out) <= evaluation.limit:
        yield ranges
        return
    middle = (start + stop) // 2
    yield from _halves({**ranges, longest: (start, middle)}, out, evaluation)
    yield from _halves({**ranges, longest: (middle, stop)}, out, evaluation)


def run(
    program: Program, arrays: Mapping[str, Array], sizes: Mapping[str, int], ns: Namespace, limit: int = 1 << 22
) -> Iterator[tuple[tuple[slice, ...], list[Array]]]:
    """Yield the outputs of a program, block by block: where each block lies on the output axes, and its values.

    ``arrays`` holds every operand by name (numbers as 0-d arrays), batch axes on the left. A temporary has about
    ``limit`` elements, whatever the extents of the named axes; batch axes are never cut.
    """
    inner = {op.name: _whole(op.inner, arrays, sizes, ns, limit) for op in program.operands if op.inner is not None}
    evaluation = _Evaluation(program, {**arrays, **inner}, ns, limit)
    for ranges in _halves({axis: (0, sizes[axis]) for axis in program.axes}, program.out, evaluation):
        yield tuple(slice(*ranges[axis]) for axis in program.out), evaluation.block(ranges)


def _whole(program: Program, arrays: Mapping[str, Array], sizes: Mapping[str, int], ns: Namespace, limit: int) -> Array:
    """Return the one output of an inner program."""
    result: Array = None
    for at, (value,) in run(program, arrays, sizes, ns, limit):
        if result is None:
            lead = tuple(value.shape[: len(value.shape) - len(program.out)])
            result = ns.full((*lead, *(sizes[axis] for axis in program.out)), 0, "value")
        result[(..., *at)] = value
    return result
