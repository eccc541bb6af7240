"""Models changed as torchao changes them: by a configuration, and a function that applies it to layers of a filter.

Works with and without torchao. With it, ``torchao.quantization.quantize_`` takes the configuration, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import KernmantleWarning, ParameterError
from ..structured.kronsparse import replace_linears
from ..structured.kronsparse.dense import dense
from ..structured.kronsparse.pattern import check_chain

try:
    from torchao.core.config import AOBaseConfig as _Config
    from torchao.quantization.transform_module import register_quantize_module_handler as _registered
except ImportError:
    _Config: Any = object

    def _registered(_: Any) -> Callable[[Any], Any]:
        return lambda handler: handler


@dataclass(frozen=True)
class KroneckerSparseConfig(_Config):
    """The layers that linear layers are replaced by.

    Parameters
    ----------
    share : float
        The share of its weights that a layer may keep, in (0, 1); see :func:`kernmantle.choose_patterns`.
    patterns : sequence of patterns, optional
        A chain for every layer of its size, instead of ``share``; layers of other sizes stay as they are.
    project : bool
        Whether the new weights approximate the old ones, or are drawn anew, to train from scratch.
    algorithm : str
        See :class:`kernmantle.KSLinear`.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> from kernmantle.integrations.torchao import KroneckerSparseConfig, sparsify_
    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    >>> _ = sparsify_(model, KroneckerSparseConfig(share=0.25), lambda layer, name: name != "2")
    >>> [type(layer).__name__ for layer in model]
    ['KSLinear', 'ReLU', 'Linear']
    """

    share: float = 0.25
    patterns: Sequence[Any] | None = None
    project: bool = True
    algorithm: str = "auto"

    @property
    def rule(self) -> Any:
        """The rule that :func:`kernmantle.replace_linears` takes."""
        return self.share if self.patterns is None else list(self.patterns)


def sparsify_(
    model: nn.Module, config: KroneckerSparseConfig, filter_fn: Callable[[nn.Module, str], bool] | None = None
) -> nn.Module:
    """Replace linear layers of a model by Kronecker-sparse ones, in place.

    Parameters
    ----------
    model : Module
    config : KroneckerSparseConfig
    filter_fn : callable, optional
        Of a layer and its name: whether it is replaced. Every linear layer if omitted.

    Returns
    -------
    Module
        The same model.

    Raises
    ------
    ParameterError, ShapeError, DeviceError
        As :func:`kernmantle.replace_linears`, which this calls; it also returns a report, and takes other rules. The
        model is then as it was.

    Notes
    -----
    Saved models are loaded by :func:`kernmantle.load_structured`. It costs an approximation of each layer.

    Examples
    --------
    >>> import torch
    >>> from kernmantle.integrations.torchao import KroneckerSparseConfig, sparsify_
    >>> model = sparsify_(torch.nn.Sequential(torch.nn.Linear(32, 64)), KroneckerSparseConfig(share=0.3))
    >>> model[0].nnz <= 0.3 * 32 * 64
    True
    """
    if not isinstance(config, KroneckerSparseConfig):
        raise ParameterError(f"config must be a KroneckerSparseConfig, not {type(config).__name__}")

    def rule(name: str, layer: nn.Module) -> Any:
        if filter_fn is not None and not filter_fn(layer, name):
            return None
        if config.patterns is not None and not _fits(config.patterns, layer):
            return None
        return config.rule

    replace_linears(model, rule, project=config.project, algorithm=config.algorithm)
    return model


def _fits(patterns: Sequence[Any], layer: nn.Module) -> bool:
    chain = check_chain(patterns)
    return (chain[-1].out_features, chain[0].in_features) == tuple(dense(layer).weight.shape)


@_registered(KroneckerSparseConfig)
def _replaced(module: nn.Module, config: KroneckerSparseConfig) -> nn.Module:
    """Return what quantize_ puts in the place of a layer, of which it passes nothing but the layer."""
    dense(module)  # or an error that says what the filter took
    if config.patterns is not None and not _fits(config.patterns, module):
        return module
    holder = nn.ModuleDict({"layer": module})
    report = replace_linears(holder, config.rule, project=config.project, algorithm=config.algorithm)
    for _, reason in report.skipped:
        warnings.warn(f"{type(module).__name__} is left as it is: {reason}", KernmantleWarning, stacklevel=2)
    return holder["layer"]
