"""Models with Kronecker-sparse layers made again from a state_dict, in which shapes of weights are patterns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import ParameterError
from .dense import dense, is_linear
from .linear import KSLinear, saved_patterns, take_patterns
from .pattern import KSPattern
from .surgery import obstacles, replace_linears

_FIRST = "weights.0"  # of a layer, in its state_dict
_SAFE = ".safetensors"
State = Mapping[str, Any]


def load_structured(model: nn.Module, state: Any, *, strict: bool = True, assign: bool = False) -> Any:
    """Load the state of a model with replaced layers into a model that is dense or has other patterns.

    Each layer that is Kronecker-sparse in the state becomes Kronecker-sparse in the model, with the patterns that are
    the shapes of its weights; then ``model.load_state_dict`` loads the state.

    Parameters
    ----------
    model : Module
        As it was before :func:`replace_linears`, or after, with any patterns.
    state : mapping, or path
        A state_dict; a file of ``torch.save``; a file of safetensors, or a directory of these.
    strict, assign : bool
        See ``torch.nn.Module.load_state_dict``.

    Returns
    -------
    named tuple
        ``missing_keys`` and ``unexpected_keys``, as ``load_state_dict`` returns them.

    Raises
    ------
    ParameterError
        For a state without Kronecker-sparse layers, or layers that the model does not have, cannot replace, or has with
        other features; the model is as it was then.
    RuntimeError
        By ``load_state_dict``, for other keys or shapes that do not fit.
    ImportError
        For files of safetensors without that package.

    Notes
    -----
    Files are read on the CPU, those of ``torch.save`` with ``weights_only=True``. Layers have ``algorithm="auto"``; the
    batch is last where the layer of the model is a :class:`LinearBatchLast`. Make optimizers afterwards: weights of
    layers that are replaced are new parameters. It costs the time of reading.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> model, fresh = (torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU()) for _ in range(2))
    >>> report = km.replace_linears(model, 0.25)
    >>> km.load_structured(fresh, model.state_dict())
    <All keys matched successfully>
    >>> fresh[0].patterns == model[0].patterns
    True
    """
    if not isinstance(model, nn.Module):
        raise ParameterError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    found = state if isinstance(state, Mapping) else _read(state)
    chains = _chains(found)
    if not chains:
        raise ParameterError(
            "the state has no Kronecker-sparse layer: no entry of it is called weights.0 and has four axes. Load a "
            "dense state with model.load_state_dict, before replace_linears"
        )
    modules, reasons = dict(model.named_modules(remove_duplicate=False)), obstacles(model)
    for name, chain in chains.items():
        _check(name, modules.get(name), chain, reasons.get(name, ""))
    present = {name: layer for name in chains if isinstance(layer := modules[name], KSLinear)}
    if len(present) < len(chains):
        replace_linears(model, lambda name, _: chains.get(name), project=False)
    for name, layer in present.items():
        take_patterns(layer, chains[name])
    return model.load_state_dict(found, strict=strict, assign=assign)


def _chains(state: State) -> dict[str, tuple[KSPattern, ...]]:
    """Return the names of the Kronecker-sparse layers of a state, and their patterns."""
    found: dict[str, tuple[KSPattern, ...]] = {}
    for key in state:
        prefix = key.removesuffix(_FIRST)
        chain = saved_patterns(state, prefix) if key != prefix and (not prefix or prefix[-1] == ".") else None
        if chain is not None:
            found[prefix.removesuffix(".")] = chain
    return found


def _check(name: str, module: nn.Module | None, chain: tuple[KSPattern, ...], reason: str) -> None:
    """Raise ParameterError unless the patterns of a state fit a layer of the model, which they may replace."""
    said = f"{name or 'the model'} is Kronecker-sparse in the state, with the patterns {' -> '.join(map(str, chain))}"
    if module is None:
        raise ParameterError(f"{said}; the model has no module of this name: load it into the model that was saved")
    if isinstance(module, KSLinear):
        shape = module.out_features, module.in_features
    elif reason or not name or not is_linear(module):
        reason = reason or f"it is a {type(module).__name__}"
        raise ParameterError(f"{said}; in the model it cannot become so: {reason}")
    else:
        rows, columns = dense(module).weight.shape
        shape = rows, columns
    saved = chain[-1].out_features, chain[0].in_features
    if saved != shape:
        raise ParameterError(
            f"{said}, which are of shape {saved}; in the model it is of shape {shape}: load it into a model of the "
            "sizes of the one that was saved"
        )


def _read(path: Any) -> State:
    """Return the tensors of a file of torch.save or of safetensors, or of all files of safetensors in a directory."""
    if not isinstance(path, (str, os.PathLike)):
        raise ParameterError(f"the state must be a state_dict or the path of a file, not {type(path).__name__}")
    location = Path(path)
    files = sorted(location.glob(f"*{_SAFE}")) if location.is_dir() else [location]
    if not files:
        raise ParameterError(f"the directory {location} has no files of safetensors")
    if files[0].suffix != _SAFE:
        found: State = torch.load(location, map_location="cpu", weights_only=True)
        return found
    try:
        from safetensors.torch import load_file  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f"{files[0]} is read by the package safetensors: pip install safetensors") from error
    return {name: value for file in files for name, value in load_file(file).items()}
