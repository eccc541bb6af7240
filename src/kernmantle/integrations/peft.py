"""LoRA adapters of PEFT on Kronecker-sparse layers."""

from __future__ import annotations

from typing import Any, TypeVar

from peft.tuners.lora.layer import Linear

from ..errors import ParameterError
from ..structured.kronsparse import KSLinear

Config = TypeVar("Config")


class LoraKSLinear(Linear):
    """A low-rank adapter on a :class:`kernmantle.KSLinear`; arguments as of PEFT's ``lora.Linear``."""

    def __init__(self, base_layer: Any, *arguments: Any, **options: Any) -> None:
        if base_layer.batch_last:
            raise ParameterError("adapters of PEFT take the batch in front; the layer has batch_last=True")
        super().__init__(base_layer, *arguments, **options)

    def merge(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuse: the sum of a Kronecker-sparse and a low-rank matrix is not Kronecker-sparse."""
        raise ParameterError(
            "an adapter cannot be merged into a Kronecker-sparse layer, whose matrix would not be Kronecker-sparse any "
            "more; keep the adapter, or merge it into the dense model before replace_linears"
        )


def register_lora(config: Config) -> Config:
    """Let LoRA adapters be added to Kronecker-sparse layers.

    Parameters
    ----------
    config : peft.LoraConfig
        ``target_modules`` names the layers; "all-linear" finds layers of torch only.

    Returns
    -------
    LoraConfig
        The same object.

    Raises
    ------
    ParameterError
        If ``config`` is not a LoRA configuration; by PEFT's calls, for layers with the batch behind the features, and
        for merging.

    Notes
    -----
    The output is ``layer(x) + scaling * (x A) B``, with the gradients of its parts. PEFT does not save the
    registration: pass the registered configuration again, as in ``PeftModel.from_pretrained(model, path,
    config=register_lora(LoraConfig.from_pretrained(path)))``. It uses PEFT's dynamic dispatch of custom modules [1]_.

    References
    ----------
    .. [1] https://huggingface.co/docs/peft/developer_guides/custom_models

    Examples
    --------
    >>> from peft import LoraConfig, get_peft_model                                             # doctest: +SKIP
    >>> from kernmantle.integrations.peft import register_lora                                  # doctest: +SKIP
    >>> config = register_lora(LoraConfig(r=8, target_modules=["up_proj", "down_proj"]))        # doctest: +SKIP
    >>> model = get_peft_model(model, config)                                                   # doctest: +SKIP
    """
    register = getattr(config, "_register_custom_module", None)
    if register is None:
        raise ParameterError(f"config must be a peft.LoraConfig, not {type(config).__name__}")
    register({KSLinear: LoraKSLinear})
    return config
