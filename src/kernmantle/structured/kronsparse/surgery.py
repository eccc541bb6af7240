"""Dense linear layers of any model replaced by Kronecker-sparse ones, with a report."""

from __future__ import annotations

import difflib
import fnmatch
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from ...checks import one_of
from ...errors import KernmantleError, KernmantleWarning, ParameterError, instead_of
from ...runtime.progress import bar
from .batch_last import LinearBatchLast
from .choose import choose_patterns
from .dense import carry_hooks, dense, is_linear
from .linear import KSLinear
from .pattern import KSPattern, check_chain

Patterns = Sequence[Any]
Wanted = Patterns | nn.Module | float | None
Rule = Callable[[str, nn.Module], Wanted] | Mapping[str, Wanted] | Patterns | float | PathLike[str]

# What a linear layer is for, by the end of its name: timm, transformers and torchvision.
_NAMES = {
    "qkv": (
        "qkv", "c_attn", "q_proj", "k_proj", "v_proj", "qkv_proj", "query", "key", "value", "query_key_value", "to_q",
        "to_k", "to_v", "to_qkv", "Wqkv", "wq", "wk", "wv", "q_lin", "k_lin", "v_lin", "SelfAttention.q",
        "SelfAttention.k", "SelfAttention.v", "EncDecAttention.q", "EncDecAttention.k", "EncDecAttention.v",
    ),
    "proj": (
        "attn.proj", "attn.c_proj", "attention.output.dense", "attention.dense", "self_attention.dense",
        "self_attn.dense", "o_proj", "out_proj", "to_out", "to_out.0", "attn.Wo", "attention.wo", "out_lin",
        "SelfAttention.o", "EncDecAttention.o",
    ),
    "up": (
        "fc1", "fc_in", "c_fc", "up_proj", "gate_proj", "gate_up_proj", "intermediate.dense", "linear1", "mlp.0",
        "lin1", "dense_h_to_4h", "Wi", "wi", "wi_0", "wi_1", "w1", "w3",
    ),
    "down": (
        "fc2", "fc_out", "mlp.c_proj", "down_proj", "output.dense", "linear2", "mlp.3", "lin2", "dense_4h_to_h", "Wo",
        "wo", "w2",
    ),
}  # fmt: skip
_GROUPS = {
    **{name: (name,) for name in _NAMES},
    "attention": ("qkv", "proj"),
    "ffn": ("up", "down"),
    "block": ("qkv", "proj", "up", "down"),
}
PARTS = (*_GROUPS, "model")
_ADAPTER = "BaseTunerLayer"  # of peft


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
    """The layers that :func:`replace_linears` replaced.

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

    def save(self, path: str | PathLike[str]) -> None:
        """Write the patterns of every layer, without its weights, to a file that is a rule for :func:`replace_linears`.

        It is JSON, names of layers with lists of patterns. The state_dict of the model holds both, see
        :func:`load_structured`.
        """
        chains = {layer.name: [list(map(int, pattern)) for pattern in layer.patterns] for layer in self.layers}
        foreign = [name for name, chain in chains.items() if not chain]
        if foreign:
            raise ParameterError(f"{foreign[0]} became another module, which has no patterns: save the model instead")
        Path(path).write_text(json.dumps({"kernmantle": "patterns of layers", "layers": chains}), encoding="utf-8")

    def __str__(self) -> str:
        text = [f"{len(self.layers)} layers replaced, {self.before} parameters -> {self.after}"]
        for layer in self.layers:
            chain = " -> ".join(map(str, layer.patterns)) or "another module"
            error = "" if layer.error is None else f", relative error {layer.error:.3g}"
            text.append(
                f"  {layer.name} {layer.shape}: {chain}, {layer.after / layer.before:.3g} of its weights{error}"
            )
        text += [f"  {name} left: {reason}" for name, reason in self.skipped]
        return "\n".join(text)


METHOD = "kernmantle"
"""Name of these layers in the configuration of a model of transformers."""
_LEFT = "a mapping leaves layers by their names, as {'lm_head': None, '*': 0.25}"
_SHARE = "the share of its weights that a layer may keep is a number, as replace_linears(model, 0.25)"


@instead_of(
    skip=_LEFT, exclude=_LEFT, exclude_modules=_LEFT, target_modules=_LEFT, modules_to_not_convert=_LEFT,
    filter_fn="a function of (name, layer) says what each becomes, None to leave it",
    density=_SHARE, ratio=_SHARE, sparsity=_SHARE,
)  # fmt: skip
def replace_linears(
    model: nn.Module, rule: Rule, *, part: str = "model", project: bool = True, algorithm: str = "auto"
) -> Report:
    """Replace linear layers of a model, in place.

    Parameters
    ----------
    model : Module
        Any model; torch.nn.Linear, :class:`LinearBatchLast` and transformers' Conv1D are found at any depth.
    rule : callable, mapping, patterns or float
        What replaces a layer: patterns; a module; a number, the share of its weights to keep, see
        :func:`choose_patterns`; or None to leave it. A callable returns one of these for ``(name, layer)``; a mapping
        has them by names, which may be shell patterns, of which the first that matches counts. Patterns alone apply to
        every layer of their size, a number alone to every layer. The path of a file written by ``report.save`` repeats
        its layers and patterns.
    part : {"model", "block", "attention", "ffn", "qkv", "proj", "up", "down"}
        Which layers to replace, by their names in timm, transformers and torchvision.
    project : bool
        Whether the new weights approximate the old ones; otherwise they are drawn at random.
    algorithm : str
        See :class:`KSLinear`.

    Returns
    -------
    Report
        ``layers`` has the ``name``, ``shape``, ``patterns``, number of weights ``before`` and ``after`` and relative
        ``error`` of each replaced layer; ``skipped`` has names and reasons; ``before`` and ``after`` count all
        parameters.

    Raises
    ------
    ParameterError, ShapeError, DeviceError
        For an invalid rule, patterns that do not fit their layer, or weights to approximate that are on meta or not
        finite. The model is unchanged then.

    Warns
    -----
    KernmantleWarning
        If the rule, other than a callable, and the part leave every layer as it is.

    Notes
    -----
    Some layers are not replaced, and the report says why: layers of torch.nn.MultiheadAttention, which reads their
    weights itself; layers within adapters of peft, which merge into their weights in place; layers that share their
    weight with another module; layers whose weight is made by a hook (``torch.nn.utils.prune``, ``spectral_norm``,
    ``weight_norm``) or whose state_dict has hooks; and subclasses of torch.nn.Linear, parametrized layers among them,
    which may compute something else. New layers call the forward and backward hooks of the layers that they replace.
    torch.nn.TransformerEncoderLayer does not use its fast path afterwards, which supports dense layers only.

    Cost: with ``project``, one :func:`kernmantle.kronsparse.project` a layer; a progress bar appears after one second.
    All new layers are made before the model changes. Their weights and biases require gradients if those of the dense
    layer do; modules that the rule returns are used as they are.

    The state_dict of the model holds the patterns, as the shapes of the weights: :func:`load_structured` rebuilds the
    layers of a model from it. Layers whose patterns were chosen by a number adopt those of a state that they load. The
    configuration of a model of transformers holds them too, so that ``save_pretrained`` stores them, and
    ``from_pretrained`` finds them if ``kernmantle.integrations.transformers`` is imported.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    >>> report = km.replace_linears(model, lambda name, layer: km.kronsparse.monarch(layer, 4, 4))
    >>> report.before, report.after
    (2128, 720)
    """
    one_of(part, "part", PARTS)
    if not isinstance(model, nn.Module):
        raise ParameterError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    if is_linear(model):
        raise ParameterError("the model is a linear layer itself; make one of it by KSLinear.from_linear")
    rule = _rule_for(model, rule)
    before, reasons = _count(model), obstacles(model)
    found = [index for index in _linears(model) if _belongs(index[0], part)]
    replacements: dict[int, tuple[nn.Module, Replaced] | str | None] = {}
    for name, _, _, layer in bar(found, desc="layers", unit="layer", leave=False):
        if id(layer) not in replacements:
            with _errors_of(name):
                replacements[id(layer)] = reasons[name] or _replacement(name, layer, rule, project, algorithm)
    records: dict[int, Replaced] = {}
    skipped: list[tuple[str, str]] = []
    for name, parent, key, layer in found:
        made = replacements[id(layer)]
        if isinstance(made, str):
            skipped.append((name, made))
        elif made is not None:
            setattr(parent, key, made[0])
            records[id(layer)] = made[1]
    if not records and not skipped and not callable(rule):
        why = "the rule leaves every one" if found else f"the model has none for part={part!r}"
        warnings.warn(f"no linear layer was replaced: {why}", KernmantleWarning, stacklevel=3)
    _leave_fast_path(model)
    record_patterns(model)
    return Report(tuple(records.values()), tuple(skipped), before, _count(model))


def record_patterns(model: nn.Module) -> dict[str, tuple[KSPattern, ...]]:
    """Write the patterns of a model of transformers to its configuration, and return them.

    The configuration stays as it is if it already names another quantization method, or if there is none.
    """
    found = {name: layer.patterns for name, layer in model.named_modules() if isinstance(layer, KSLinear)}
    config = getattr(model, "config", None)
    if not found or not hasattr(model, "save_pretrained") or not hasattr(config, "to_json_string"):
        return found
    present = getattr(config, "quantization_config", None)
    method = present.get("quant_method") if isinstance(present, Mapping) else getattr(present, "quant_method", METHOD)
    if present is None or method == METHOD:
        chains = {name: [list(map(int, pattern)) for pattern in chain] for name, chain in found.items()}
        setattr(config, "quantization_config", {"quant_method": METHOD, "patterns": chains})  # noqa: B010
    return found


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Name a layer in the errors that are raised of it."""
    try:
        yield
    except KernmantleError as error:
        raise type(error)(f"layer {name}: {error}") from error


def _rule_for(model: nn.Module, rule: Rule) -> Rule:
    """Return a rule, that of a file for its path, after a check of the names in it."""
    if isinstance(rule, (str, PathLike)):
        return _saved_rule(rule, model)
    if isinstance(rule, Mapping):
        _check_names(rule, model)
    return rule


def _saved_rule(path: str | PathLike[str], model: nn.Module) -> Rule:
    """Return the rule of a file of ``Report.save``."""
    try:
        chains = json.loads(Path(path).read_text(encoding="utf-8"))["layers"]
        chains = {name: [tuple(pattern) for pattern in chain] for name, chain in chains.items()}
    except OSError as error:
        said = "a rule is patterns, a number, a mapping, a callable or the path of a file that report.save wrote"
        raise ParameterError(f"rule {str(path)!r} cannot be read: {error}; {said}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParameterError(f"rule {str(path)!r} was not written by report.save") from error
    missing = sorted(set(chains) - {name for name, *_ in _linears(model)})
    if missing:
        raise ParameterError(f"the model has no linear layer {missing[0]!r}, which {str(path)!r} names")
    return lambda name, _: chains.get(name)


def _check_names(rule: Mapping[str, Any], model: nn.Module) -> None:
    """Raise ParameterError if no linear layer has a name that the rule replaces; names to leave may be absent."""
    names = [name for name, *_ in _linears(model)]
    for glob, wanted in rule.items():
        if wanted is not None and not any(fnmatch.fnmatchcase(name, glob) for name in names):
            close = difflib.get_close_matches(str(glob), names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"its linear layers are {', '.join(names[:8]) or 'none'}"
            raise ParameterError(f"the model has no linear layer {glob!r}, which the rule names; {hint}")


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))


def _linears(model: nn.Module) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """Return every occurrence of a linear layer: its name, parent, name in the parent, and the layer."""
    return [
        (f"{prefix}.{key}" if prefix else key, parent, key, child)
        for prefix, parent in model.named_modules()
        for key, child in parent._modules.items()  # named_children leaves out what a second name has
        if child is not None and (is_linear(child) or isinstance(child, nn.Linear))
    ]


def _shared(model: nn.Module) -> set[int]:
    """Return the parameters that more than one module holds."""
    holders = Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))
    return {parameter for parameter, count in holders.items() if count > 1}


def _adapted(model: nn.Module) -> set[int]:
    """Return modules within adapters of peft."""
    adapters = [each for each in model.modules() if any(own.__name__ == _ADAPTER for own in type(each).__mro__)]
    return {id(module) for adapter in adapters for module in adapter.modules()}


def _leave_fast_path(model: nn.Module) -> None:
    """Let torch's encoder layers call what they hold; in evaluation they read the weights of dense layers."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not _all_dense(module):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and not all(map(_all_dense, module.layers)):
            module.use_nested_tensor = False


def _all_dense(layer: nn.Module) -> bool:
    return all(isinstance(getattr(layer, name, None), nn.Linear) for name in ("linear1", "linear2"))


def _belongs(name: str, part: str) -> bool:
    if part == "model":
        return True
    whole = f".{name}".removesuffix(".base_layer")  # within an adapter of peft
    kinds = [kind for kind, ends in _NAMES.items() if any(whole.endswith(f".{end}") for end in ends)]
    # "attention.output.dense" also ends as "output.dense" does, and "attention.wo" as "wo".
    return bool(kinds) and kinds[0] in _GROUPS[part]


def obstacles(model: nn.Module) -> dict[str, str]:
    """Return the names of all linear layers of a model, and why each cannot be replaced; empty where it can."""
    shared, adapted = _shared(model), _adapted(model)
    return {
        name: "it belongs to an adapter of peft" if id(layer) in adapted else _obstacle(parent, layer, shared)
        for name, parent, _, layer in _linears(model)
    }


def _obstacle(parent: nn.Module, layer: nn.Module, shared: set[int]) -> str:
    if isinstance(parent, nn.MultiheadAttention):
        return "torch.nn.MultiheadAttention reads its weight itself"
    if is_parametrized(layer):
        return "it is parametrized; call torch.nn.utils.parametrize.remove_parametrizations first"
    if not is_linear(layer):
        return f"{type(layer).__name__} is derived from Linear and may compute something else"
    if "weight" not in layer._parameters:
        return "its weight is made by a hook; remove the pruning or the norm of torch.nn.utils first"
    if layer._state_dict_hooks or layer._state_dict_pre_hooks or layer._load_state_dict_pre_hooks:
        return "its state_dict has hooks, which know the names of a dense layer; remove them first"
    if any(id(parameter) in shared for parameter in layer.parameters(recurse=False)):
        return "its weight is shared with another module"
    return ""


def _replacement(
    name: str, layer: Any, rule: Rule, project: bool, algorithm: str
) -> tuple[nn.Module, Replaced] | str | None:
    """Return the new layer and its record, or the reason why there is none; None if the rule leaves the layer."""
    weight, bias = dense(layer)
    rows, columns = weight.shape
    found = _found(name, layer, rule)
    wanted = _wanted(found, layer, rule)
    if wanted is None or isinstance(wanted, str):
        return wanted
    last = isinstance(layer, LinearBatchLast)
    if isinstance(wanted, nn.Module):
        new = wanted
    elif project:
        new = KSLinear.from_linear(layer, wanted, last, algorithm)
    else:
        new = KSLinear(
            columns, rows, wanted, bias is not None, None, last, algorithm, device=weight.device, dtype=weight.dtype
        )
    if not isinstance(wanted, nn.Module):
        _freeze(new, layer)
        new._chosen = _is_share(found)  # pyright: ignore[reportArgumentType]
    if not any(layer is module for module in new.modules()):
        carry_hooks(layer, new, share=not isinstance(wanted, nn.Module))
    new.train(layer.training)
    is_layer = isinstance(new, KSLinear)
    patterns = new.patterns if is_layer else ()
    after = new.nnz if is_layer else _count(new)
    return new, Replaced(
        name, (rows, columns), patterns, rows * columns, after, new.projection_error if is_layer else None
    )


def _freeze(new: nn.Module, layer: nn.Module) -> None:
    """Let the parameters of a new layer require gradients where those of the dense one do."""
    for name, own in new.named_parameters():
        source = getattr(layer, "bias" if name == "bias" else "weight")
        own.requires_grad_(own.requires_grad and source.requires_grad)


def _found(name: str, layer: nn.Module, rule: Rule) -> Any:
    """Return the entry of a rule for a layer."""
    if callable(rule) and not isinstance(rule, nn.Module):
        return rule(name, layer)
    if isinstance(rule, Mapping):
        return next((value for glob, value in rule.items() if fnmatch.fnmatchcase(name, glob)), None)
    return rule


def _is_share(found: Any) -> bool:
    return isinstance(found, Real) and not isinstance(found, bool)


def _wanted(found: Any, layer: nn.Module, rule: Rule) -> Patterns | nn.Module | str | None:
    """Return the patterns or the module for a layer, None to leave it, or the reason why it has to be left."""
    if _is_share(found):
        if not 0 < found <= 1:
            raise ParameterError(
                f"a number in rule is the share of the weights to keep, above 0 and up to 1, not {found}"
            )
        choices = choose_patterns(layer, budget=float(found), count=1)
        return choices[0].patterns if choices else f"no chain has at most {float(found):g} of its weights"
    if isinstance(found, Sequence) and not isinstance(found, str) and found:
        chain = check_chain(found)
        fits = (chain[-1].out_features, chain[0].in_features) == tuple(dense(layer).weight.shape)
        return chain if fits or found is not rule else None
    if found is not rule and (found is None or isinstance(found, nn.Module)):
        return found
    raise ParameterError(
        f"rule must be patterns, a number, or a callable or a mapping that gives these, a module or None, not {found!r}"
    )
