"""Bodies with an accumulator, as a map and a reduction of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

from ...ir.node import Node, substitute, var, variables
from ...ir.reducers import Fold
from ...ir.traced import Traced, to_node
from ...torch_ops.contract import Contraction
from .stack import value_of

Body = Callable[..., Any]
_ACCUMULATOR = var("accumulator")
_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


def _hyper(names: Sequence[str]) -> dict[str, Any]:
    return {name: Traced(var(f"hyper{i}")) for i, name in enumerate(names)}


def _function(root: Node, positional: Sequence[str], names: Sequence[str]) -> Callable[..., Any]:
    """Return a lambda that computes an expression of named operands and of ``hyper0, hyper1, ...``."""
    hyper = [f"hyper{i}" for i in range(len(names))]

    def call(*operands: Any, **options: Any) -> Any:
        values = {**dict(zip(positional, operands, strict=True)), **options}
        return Traced(substitute([root], {name: to_node(value) for name, value in values.items()})[0])

    own = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in positional]
    own += [Parameter(name, Parameter.KEYWORD_ONLY) for name in hyper]
    call.__signature__ = Signature(own)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _split(root: Node) -> tuple[str, Node] | None:
    """Return the reduction and mapped term of ``accumulator <op> term``; None of any other form."""
    if root.op not in (*_REDUCTIONS, "sub"):
        return None
    first, second = root.args
    if second is _ACCUMULATOR and root.op != "sub":
        first, second = second, first
    if first is not _ACCUMULATOR or _ACCUMULATOR.name in variables([second]):
        return None
    return ("sum", (-Traced(second)).node) if root.op == "sub" else (_REDUCTIONS[root.op], second)


def contraction(
    equation: str, operands: Sequence[str], body: Body, epilogue: Body, names: Sequence[str]
) -> Contraction:
    """Contraction of ``body(accumulator, *operands, hyper)``; the i-th of ``names`` is its parameter ``hyper{i}``.

    A body ``accumulator + term`` is a sum, and with ``*``, ``min``, ``max`` a product, minimum, maximum with their
    identities. Any other is a fold that begins at 0.
    """
    values = [Traced(var(name)) for name in operands]
    root = to_node(value_of(body(Traced(_ACCUMULATOR), *values, _hyper(names))))
    result = to_node(value_of(epilogue(Traced(_ACCUMULATOR), _hyper(names))))
    finish = _function(result, [_ACCUMULATOR.name], names)
    found = _split(root)
    if found is None:
        step = _function(root, [_ACCUMULATOR.name, *operands], names)
        return Contraction(equation, None, reduce=Fold(step, 0.0), epilogue=finish)
    return Contraction(equation, _function(found[1], operands, names), reduce=found[0], epilogue=finish)
