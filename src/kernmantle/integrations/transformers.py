"""Hugging Face models with Kronecker-sparse layers: ``save_pretrained`` and ``from_pretrained`` keep the patterns.

``config.json`` lists the patterns under ``quantization_config``, where ``transformers`` describes layers that differ
from those of the architecture. Import this module before ``from_pretrained``: it registers what reads the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..errors import ParameterError
from ..structured.kronsparse import KSLinear, KSPattern, replace_linears
from ..structured.kronsparse.surgery import METHOD

_FIELD = "quantization_config"


@register_quantization_config(METHOD)
class KronSparseConfig(QuantizationConfigMixin):
    """Patterns of the Kronecker-sparse layers of a model, as ``config.json`` stores them.

    Parameters
    ----------
    patterns : mapping
        Names of layers to chains of four numbers, the first applied first.
    """

    def __init__(self, patterns: Mapping[str, Any], **_: Any) -> None:
        self.quant_method: Any = METHOD
        self.patterns = {name: [list(map(int, pattern)) for pattern in chain] for name, chain in patterns.items()}


@register_quantizer(METHOD)
class KronSparseLoader(HfQuantizer):
    """Replaces the layers of a model, which is dense and without values yet, before ``from_pretrained`` loads them."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        chains = dict(self.quantization_config.patterns)
        base = f"{model.base_model_prefix}."
        own = [name for name, _ in model.named_modules()]
        names = {base + name: name for name in own}  # saved with a head, loaded without
        names |= {name.removeprefix(base): name for name in own} | dict(zip(own, own, strict=True))
        found = {names[name]: list(map(KSPattern.of, chain)) for name, chain in chains.items() if name in names}
        report = replace_linears(model, lambda name, _: found.get(name), project=False)
        for name, reason in report.skipped:
            if name in found:
                raise ParameterError(f"{name} is Kronecker-sparse in the configuration and cannot become so: {reason}")
        return model

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        """Leave an ordinary model, which trains and moves like any other, and its patterns in the configuration."""
        del model.hf_quantizer
        model.is_quantized = False
        return model

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        """Return whether the model may be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Return whether the model may be trained."""
        return True


def record_patterns(model: nn.Module) -> dict[str, tuple[KSPattern, ...]]:
    """Write the patterns of a model's Kronecker-sparse layers to its configuration, for ``save_pretrained``.

    :func:`kernmantle.replace_linears` does so for the model that it is given; record them where layers were put into it
    otherwise.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    dict
        Names and patterns, as ``model.config.quantization_config`` holds them.

    Raises
    ------
    ParameterError
        For a module without a ``config``, one that is quantized, or one without Kronecker-sparse layers.

    Notes
    -----
    ``from_pretrained`` makes the layers in each process that has imported this module; the loaded model is an ordinary
    one, whose patterns are recorded already. ``km.load_structured(model, directory)`` needs neither. Record again after
    layers change. It costs nothing.

    Examples
    --------
    >>> import kernmantle as km
    >>> from kernmantle.integrations.transformers import record_patterns                        # doctest: +SKIP
    >>> model.lm_head = km.KSLinear.from_linear(model.lm_head, patterns)                        # doctest: +SKIP
    >>> _ = record_patterns(model)                                                              # doctest: +SKIP
    >>> model.save_pretrained("sparse")                                                         # doctest: +SKIP
    >>> again = type(model).from_pretrained("sparse")                                           # doctest: +SKIP
    """
    config = getattr(model, "config", None)
    if config is None:
        raise ParameterError(
            f"the model must have a config, as those of transformers do; {type(model).__name__} has none"
        )
    present = getattr(config, _FIELD, None)
    method = present.get("quant_method") if isinstance(present, Mapping) else getattr(present, "quant_method", METHOD)
    if present is not None and method != METHOD:
        raise ParameterError(
            f"the model is quantized by {method}, which its configuration has to say; dequantize it first"
        )
    found = {name: layer.patterns for name, layer in model.named_modules() if isinstance(layer, KSLinear)}
    if not found:
        raise ParameterError("the model has no Kronecker-sparse layer; call replace_linears first")
    setattr(config, _FIELD, KronSparseConfig(found))
    return found
