"""``kernmantle inspect "abs(a - b) ** p"``: how a map is compiled, down to the sources that run."""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from inspect import Parameter, Signature
from typing import Any

import torch
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax

from ..backends.cpu import emit as llvm
from ..backends.cpu import gram_plan as cpu_plan
from ..backends.cpu.jit import host
from ..backends.cuda import emit as cuda
from ..backends.cuda import gram_plan as cuda_plan
from ..backends.cuda.cards import PLANNED
from ..backends.cuda.tiles import DeviceLimits
from ..compiler.lower import lower
from ..compiler.nest import ROLES, SIZES, Layout, Nest
from ..errors import ParameterError
from ..ir import autodiff
from ..ir.definition import Definition, bind, define, symmetric
from ..ir.equation import parse
from ..ir.functions import FUNCTIONS
from ..ir.program import Program
from ..pairwise import CONSTRUCTORS
from ..pairwise.distance import distances
from ..pairwise.metrics import ALIASES, METRICS

_MODULES = {"km", "kernmantle", "np", "numpy", "torch"}
_NAMES: dict[str, Callable[..., Any]] = {**FUNCTIONS, "abs": abs}
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Tuple, ast.Load,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        "kernmantle inspect",
        description="Print how a map is compiled: expression, derivatives, plans, sources. The operands are called "
        "a, b, c, ... or x, y, z, ... in the order of the equation, or as a lambda names them. All other names are "
        "parameters. The names of metrics and kernels stand for theirs.",
    )
    parser.add_argument("map", help="for example 'abs(a - b) ** p', 'lambda x, y: km.exp(x - y)', canberra or Gaussian")
    parser.add_argument("--equation", default="mk,nk->mn", help="axes of the operands and of the result")
    parser.add_argument("--reduce", default="sum", help="name of the reduction")
    parser.add_argument("--epilogue", help="function of the sum s, for example 's ** (1 / p)'")
    parser.add_argument("--dtype", default="f32", choices=["f16", "bf16", "f32", "f64"], help="type of the operands")
    parser.add_argument("--size", type=_extent, default=2048, help="length of every axis, for the plans")
    parser.add_argument("--card", default="h100", choices=PLANNED, help="GPU, or its architecture")
    parser.add_argument("--source", default="both", choices=["both", "cuda", "llvm", "none"], help="sources to print")
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True)
    definition = _of_name(options.map)
    if definition is not None:
        own = [
            name for name in ("equation", "reduce", "epilogue") if getattr(options, name) != parser.get_default(name)
        ]
        if own:
            raise ParameterError(f"{options.map} has a map of its own: leave out --{own[0]}, or write the map")
    else:
        count = len(parse(options.equation).operands)
        mapped = function(options.map, *(names[:count] for names in ("abcdefgh", "xyzuvwts")))
        epilogue = None if options.epilogue is None else function(options.epilogue, "s")
        definition = define(options.equation, mapped, options.reduce, epilogue)
    program = bind(definition, frozenset(), (), symmetric(definition)).program
    for title, text in described(program):
        console.print(Rule(title, align="left"))
        console.print(text, highlight=False, markup=False)
    nest = nest_of(program, options.dtype, options.size)
    for title, text, language in sources(nest, options.size, PLANNED[options.card], options.source):
        console.print(Rule(title, align="left"))
        console.print(Syntax(text, language, theme="ansi_light", background_color="default"))
    return 0


def _of_name(text: str) -> Definition | None:
    """Return the definition of a metric or a kernel of the tables by its name, None of another text.

    A name that is close to one of theirs is an error that says which.
    """
    name = text.strip().lower()
    name = ALIASES.get(name, name) if len(name) > 1 else name
    kernels = {own.lower(): constructor for own, constructor in CONSTRUCTORS.items()}
    close = get_close_matches(name, [*METRICS, *kernels, *ALIASES], 1) if len(name) > 1 else []
    if name.isidentifier() and close and close[0] != name:
        raise ParameterError(f"{text!r} is the name of no metric and no kernel; {close[0]!r} is the closest that is")
    rows = torch.cat([torch.eye(2), torch.zeros(1, 2)])
    if name in METRICS:
        return distances(name, {}, rows, rows).contraction.definition
    return distances(kernels[name](), {}, rows, rows).contraction.definition if name in kernels else None


class _Plain(ast.NodeTransformer):
    """``km.exp`` as ``exp``."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Take the function's name where the rest is the name of a module."""
        if isinstance(node.value, ast.Name) and node.value.id in _MODULES and node.attr in _NAMES:
            return ast.copy_location(ast.Name(node.attr, ast.Load()), node)
        return node


def function(text: str, *namings: Sequence[str]) -> Callable[..., Any]:
    """Return the lambda of an expression: arithmetic, comparisons, and calls of the library's functions alone.

    ``namings`` are the names that operands may have; the first of which any is used are taken.
    """
    try:
        tree = _Plain().visit(ast.parse(text.strip(), mode="eval"))
    except SyntaxError as error:
        raise ParameterError(f"{text!r} is not an expression: {error.msg}") from None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = list(next((names for names in namings if used & set(names)), namings[0]))
    parameters: list[str] = []
    if isinstance(tree.body, ast.Lambda):
        tree, own, parameters = _opened(text, tree.body, len(own))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ParameterError(f"{text!r}: {_refused(node)}")
        if isinstance(node, ast.Name):
            if id(node) in called and node.id not in _NAMES:
                raise ParameterError(f"{text!r} calls {node.id!r}; available are {', '.join(sorted(_NAMES))}")
            if id(node) not in called:
                names.append(node.id)
    if names and not set(names) & set(own):
        raise ParameterError(
            f"{text!r} uses none of the operands {', '.join(own)}, and other names are parameters; "
            f"name the operands by a lambda: {_suggested(text, names, len(own))!r}"
        )
    parameters += [name for name in dict.fromkeys(names) if name not in (*own, *parameters)]
    code = compile(tree, "<map>", "eval")

    def call(*values: Any, **further: Any) -> Any:
        return eval(code, {"__builtins__": {}, **_NAMES}, {**dict(zip(own, values, strict=True)), **further})

    kinds = [(name, Parameter.POSITIONAL_ONLY) for name in own]
    kinds += [(name, Parameter.KEYWORD_ONLY) for name in parameters]
    call.__signature__ = Signature([Parameter(name, kind) for name, kind in kinds])  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _refused(node: ast.AST) -> str:
    if isinstance(node, ast.IfExp):
        return "conditional expressions are not supported; use where(condition, a, b)"
    return f"{type(node).__name__} is not supported; write arithmetic, comparisons and calls of functions"


def _suggested(text: str, names: Iterable[str], count: int) -> str:
    own = [*dict.fromkeys(names), *"abcdefgh"][:count]
    return f"lambda {', '.join(own)}: {text}"


def _opened(text: str, node: ast.Lambda, count: int) -> tuple[ast.Expression, list[str], list[str]]:
    """Return the expression inside a lambda, the names of its operands, and those of its parameters."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    if len(names) < count or node.args.vararg or node.args.kwarg:
        raise ParameterError(f"{text!r} must take {count} operands, then parameters by name")
    further = [argument.arg for argument in node.args.kwonlyargs]
    return ast.Expression(node.body), names[:count], [*names[count:], *further]


def described(program: Program) -> list[tuple[str, str]]:
    """Return the program, and the derivatives of it that a backward pass runs."""
    found = [("program", str(program))]
    reduction = autodiff.undifferentiable(program)
    if reduction is not None:
        return [*found, ("derivative", f"{reduction.name} has none")]
    present = (True,) * len(program.outputs)
    names = [operand.name for operand in program.operands if operand.axes]
    for accumulator in range(len(program.reductions)):
        rule = autodiff.cotangent(program, accumulator, present)
        found.append((f"cotangent of s{accumulator}", str(rule)))
    through = (True,) * len(program.reductions)
    return found + [(f"gradient by {name}", str(autodiff.vjp(program, name, through))) for name in names]


def _extent(text: str) -> int:
    number = int(text) if text.strip().isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"invalid length {text!r}; write a positive integer")
    return number


def nest_of(program: Program, dtype: str, size: int) -> Nest:
    """Return the loops of a program over arrays of one type, all axes equally long."""
    axes = {axis for operand in program.operands for axis in operand.axes}
    stored = [dtype] * sum(not operand.number for operand in program.operands)
    compute = "f64" if dtype == "f64" else "f32"
    return lower(program, dict.fromkeys(axes, size), stored, [dtype] * len(program.outputs), compute, 132).nest


def sources(nest: Nest, size: int, card: DeviceLimits, wanted: str) -> list[tuple[str, str, str]]:
    """Return the plans, and their sources where wanted: title, text, language."""
    used = {role for buffer in nest.buffers for role in buffer.roles}
    sizes = {role: size if role in used else 1 for role in SIZES}
    layout = Layout(tuple(_strides(buffer.roles, size) for buffer in nest.buffers), (16,) * len(nest.buffers))
    gpu = cuda_plan.plan(nest, sizes, card, layout)
    own = host()
    cpu = cpu_plan.plan(nest, own.vector_bytes, own.vector_registers, sizes)
    found = [("plan for " + card.arch, str(gpu), "text"), ("plan for this CPU", str(cpu), "text")]
    if wanted in ("both", "cuda"):
        found.append(("CUDA", cuda.emit(gpu), "cuda"))
    if wanted in ("both", "llvm"):
        found.append(("LLVM", llvm.emit(cpu), "llvm"))
    return found


def _strides(roles: str, size: int) -> tuple[int, ...]:
    order = sorted(roles, key="mnkl".index)
    return tuple(math.prod([size] * (len(order) - 1 - order.index(r))) if r in order else 0 for r in ROLES)
