"""Dense linear layers of any model replaced by Kronecker-sparse ones, with a report."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

from ..errors import ParameterError
from .choose import choose_patterns
from .linear import KSLinear
from .pattern import KSPattern

Patterns = Sequence[Any]
Rule = Callable[[str, nn.Module], "Patterns | nn.Module | None"] | Mapping[str, Patterns] | Patterns | float

# What a linear layer is for, by the end of its name: timm, transformers and torchvision.
_NAMES = {
    "qkv": ("qkv", "c_attn", "q_proj", "k_proj", "v_proj", "query", "key", "value", "to_q", "to_k", "to_v", "to_qkv"),
    "proj": ("attn.proj", "attn.c_proj", "attention.output.dense", "o_proj", "out_proj", "to_out", "to_out.0"),
    "up": ("fc1", "c_fc", "up_proj", "gate_proj", "intermediate.dense", "linear1", "mlp.0"),
    "down": ("fc2", "mlp.c_proj", "down_proj", "output.dense", "linear2", "mlp.3"),
}
_GROUPS = {
    **{name: (name,) for name in _NAMES},
    "attention": ("qkv", "proj"),
    "ffn": ("up", "down"),
    "block": ("qkv", "proj", "up", "down"),
}
PARTS = (*_GROUPS, "model")


@dataclass(frozen=True)
class Replaced:
    """One layer that was replaced.

    Attributes
    ----------
    name : str
    shape : (out_features, in_features)
    patterns : tuple of KSPattern
        Empty where it became another module.
    before, after : int
        Weights, biases not counted.
    error : float or None
        Relative error of its matrix in the Frobenius norm, where the old one was approximated.
    """

    name: str
    shape: tuple[int, int]
    patterns: tuple[KSPattern, ...]
    before: int
    after: int
    error: float | None


@dataclass(frozen=True)
class Report:
    """What :func:`replace_linears` did.

    Attributes
    ----------
    layers : tuple of Replaced
    skipped : tuple of (name, reason)
        Layers that were left as they were.
    before, after : int
        All parameters of the model.
    """

    layers: tuple[Replaced, ...]
    skipped: tuple[tuple[str, str], ...]
    before: int
    after: int

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers replaced, {self.before} parameters -> {self.after}"]
        for layer in self.layers:
            chain = " -> ".join(map(str, layer.patterns)) or "another module"
            error = "" if layer.error is None else f", relative error {layer.error:.3g}"
            lines.append(
                f"  {layer.name} {layer.shape}: {chain}, {layer.after / layer.before:.3g} of its weights{error}"
            )
        lines += [f"  {name} left: {reason}" for name, reason in self.skipped]
        return "\n".join(lines)


def replace_linears(
    model: nn.Module, rule: Rule, *, part: str = "model", project: bool = True, algorithm: str = "auto"
) -> Report:
    """Replace linear layers of a model, in place.

    Parameters
    ----------
    model : Module
        Any; torch.nn.Linear and transformers' Conv1D are found wherever they are.
    rule : callable, mapping, patterns or float
        What a layer becomes. ``rule(name, layer)`` returns patterns, a module, or None to leave it; a mapping goes by
        the first of its patterns of names (as in a shell) that fits; patterns are used for every layer that has their
        size; a number is the share of its weights that a layer may keep, see :func:`choose_patterns`.
    part : {"model", "block", "attention", "ffn", "qkv", "proj", "up", "down"}
        Which layers, by the names that timm, transformers and torchvision give them.
    project : bool
        Whether the new weights approximate the old ones, or are drawn anew.
    algorithm : str
        See :class:`KSLinear`.

    Returns
    -------
    Report

    Raises
    ------
    ParameterError, ShapeError
        For a rule that makes no sense, or patterns that do not fit a layer they are meant for.

    Notes
    -----
    Left as they are: layers of torch.nn.MultiheadAttention, which reads their weights itself, and layers that share
    their weight with another module.

    Cost: one :func:`kernmantle.kronsparse.project` a layer with ``project``. The new layers train as the old ones
    did: their weights are parameters with gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    >>> report = km.replace_linears(model, lambda name, layer: km.kronsparse.monarch(layer.weight.shape, 4, 4))
    >>> report.before, report.after
    (2128, 720)
    """
    if part not in PARTS:
        raise ParameterError(f"part must be one of {', '.join(map(repr, PARTS))}, not {part!r}")
    before = _count(model)
    shared = _shared(model)
    layers: dict[int, tuple[nn.Module, Replaced]] = {}
    skipped: list[tuple[str, str]] = []
    for name, parent, key, layer in list(_linears(model)):
        if not _belongs(name, part):
            continue
        reason = _obstacle(parent, layer, shared)
        if reason:
            skipped.append((name, reason))
            continue
        if id(layer) not in layers:
            found = _replacement(name, layer, rule, project, algorithm)
            if found is None:
                continue
            layers[id(layer)] = found
        setattr(parent, key, layers[id(layer)][0])
    return Report(tuple(record for _, record in layers.values()), tuple(skipped), before, _count(model))


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a dense linear layer, torch's or transformers' transposed one."""
    return type(module) is nn.Linear or type(module).__name__ in ("Conv1D", "NonDynamicallyQuantizableLinear")


def _as_linear(layer: Any) -> Any:
    """Weight (out, in) and bias of a layer."""
    if type(layer).__name__ == "Conv1D":
        return SimpleNamespace(weight=layer.weight.T, bias=layer.bias)
    return layer


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Every place of a linear layer: name, parent, name there, layer."""
    for prefix, parent in model.named_modules():
        for key, child in parent._modules.items():  # named_children leaves out what a second name has
            if child is not None and is_linear(child):
                yield f"{prefix}.{key}" if prefix else key, parent, key, child


def _shared(model: nn.Module) -> set[int]:
    """Parameters that more than one module holds."""
    holders = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    return {parameter for parameter, count in holders.items() if count > 1}


def _belongs(name: str, part: str) -> bool:
    if part == "model":
        return True
    kinds = [kind for kind, ends in _NAMES.items() if any(f".{name}".endswith(f".{end}") for end in ends)]
    # "attention.output.dense" also ends as "output.dense" does.
    return bool(kinds) and kinds[0] in _GROUPS[part]


def _obstacle(parent: nn.Module, layer: nn.Module, shared: set[int]) -> str:
    if isinstance(parent, nn.MultiheadAttention):
        return "torch.nn.MultiheadAttention reads its weight itself"
    if any(id(parameter) in shared for parameter in layer.parameters(recurse=False)):
        return "its weight is shared with another module"
    return ""


def _replacement(name: str, layer: Any, rule: Rule, project: bool, algorithm: str) -> tuple[nn.Module, Replaced] | None:
    linear = _as_linear(layer)
    rows, columns = (int(size) for size in linear.weight.shape)
    wanted = _wanted(name, layer, linear, rule)
    if wanted is None:
        return None
    if isinstance(wanted, nn.Module):
        new = wanted
    elif project:
        new = KSLinear.from_linear(linear, wanted, algorithm=algorithm)
    else:
        new = KSLinear(
            columns, rows, wanted, linear.bias is not None, algorithm=algorithm, device=linear.weight.device,
            dtype=linear.weight.dtype,
        )  # fmt: skip
    new.train(layer.training)
    known = isinstance(new, KSLinear)
    patterns = new.patterns if known else ()
    after = new.nnz if known else _count(new)
    return new, Replaced(
        name, (rows, columns), patterns, rows * columns, after, new.projection_error if known else None
    )


def _wanted(name: str, layer: nn.Module, linear: Any, rule: Rule) -> Patterns | nn.Module | None:
    if callable(rule):
        return rule(name, layer)
    if isinstance(rule, Mapping):
        return next((found for glob, found in rule.items() if fnmatch.fnmatchcase(name, glob)), None)
    if isinstance(rule, (int, float)) and not isinstance(rule, bool):
        found = choose_patterns(linear, budget=rule, count=1)
        return found[0].patterns if found else None
    if isinstance(rule, Sequence) and not isinstance(rule, str) and rule:
        chain = tuple(map(KSPattern.of, rule))
        fits = (chain[-1].out_features, chain[0].in_features) == tuple(linear.weight.shape)
        return chain if fits else None
    raise ParameterError(f"rule must be a callable, a mapping, patterns or a number, not {rule!r}")
