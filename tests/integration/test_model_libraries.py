"""Replaced models in transformers, PEFT and torch's counter of operations.

Where transformers and PEFT are not installed, stand-ins follow their documented protocols: quantizers registered by
name, and custom modules of LoRA configurations.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import kernmantle as km
from kernmantle import errors
from kernmantle.kronsparse import monarch
from kernmantle.testing import assert_close


def stand_in(monkeypatch, name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def integration(monkeypatch, name):
    monkeypatch.delitem(sys.modules, f"kernmantle.integrations.{name}", raising=False)
    return importlib.import_module(f"kernmantle.integrations.{name}")


class Config:
    def __init__(self, **values):
        vars(self).update(values)

    @classmethod
    def from_dict(cls, values):
        return cls(**values)


class Loader:
    def __init__(self, quantization_config):
        self.quantization_config = quantization_config


class Pretrained(nn.Module):
    """What from_pretrained and save_pretrained do for a model, with the registered loaders."""

    base_model_prefix = "body"
    loaders, configs = {}, {}

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace()
        self.body = nn.ModuleDict({"fc1": nn.Linear(24, 36), "fc2": nn.Linear(36, 24)})

    def forward(self, x):
        return self.body["fc2"](self.body["fc1"](x).relu())

    def save_pretrained(self, folder):
        (folder / "config.json").write_text(json.dumps(vars(self.config), default=vars))
        torch.save(self.state_dict(), folder / "model.bin")

    @classmethod
    def from_pretrained(cls, folder):
        with torch.device("meta"):
            model = cls()
        values = json.loads((folder / "config.json").read_text())["quantization_config"]
        config = cls.configs[values["quant_method"]].from_dict(values)
        loader = cls.loaders[config.quant_method](config)
        model.is_quantized = True
        loader._process_model_before_weight_loading(model)
        model.load_state_dict(torch.load(folder / "model.bin"), assign=True)
        model.config.quantization_config, model.hf_quantizer = config, loader
        loader._process_model_after_weight_loading(model)
        return model


def registered(table):
    return lambda name: lambda own: table.setdefault(name, own)


@pytest.fixture
def hugging(monkeypatch):
    stand_in(monkeypatch, "transformers")
    stand_in(monkeypatch, "transformers.quantizers")
    stand_in(monkeypatch, "transformers.utils")
    stand_in(
        monkeypatch, "transformers.quantizers.auto",
        register_quantizer=registered(Pretrained.loaders), register_quantization_config=registered(Pretrained.configs),
    )  # fmt: skip
    stand_in(monkeypatch, "transformers.quantizers.base", HfQuantizer=Loader)
    stand_in(monkeypatch, "transformers.utils.quantization_config", QuantizationConfigMixin=Config)
    return integration(monkeypatch, "transformers")


def test_pretrained_models_keep_their_patterns(hugging, tmp_path):
    torch.manual_seed(0)
    model, x = Pretrained(), torch.randn(5, 24)
    with pytest.raises(errors.ParameterError, match="call replace_linears first"):
        hugging.record_patterns(model)
    with pytest.raises(errors.ParameterError, match="must have a config"):
        hugging.record_patterns(nn.Linear(2, 2))
    km.replace_linears(model, {"body.fc1": monarch((36, 24), 4, 4), "body.fc2": monarch((24, 36), 3, 2, 2)})
    found = hugging.record_patterns(model)
    assert {*found} == {"body.fc1", "body.fc2"}
    model.save_pretrained(tmp_path)
    for _ in range(2):
        again = Pretrained.from_pretrained(tmp_path)
        assert torch.equal(again(x), model(x))
        assert again.body["fc1"].patterns == model.body["fc1"].patterns
        assert not again.is_quantized
        again.save_pretrained(tmp_path)
    model.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(errors.ParameterError, match="quantized by gptq"):
        hugging.record_patterns(model)


class Recorded:
    """A configuration as those of transformers: it is written as JSON."""

    quantization_config = None

    def to_json_string(self):
        return json.dumps(vars(self))


class Model(nn.Sequential):
    """A model that is saved with its configuration."""

    def __init__(self):
        super().__init__(nn.Linear(24, 36), nn.Linear(36, 24))
        self.config = Recorded()

    def save_pretrained(self, path):
        raise NotImplementedError


def test_replaced_layers_are_in_the_configuration_of_a_model():
    chain = [list(map(int, pattern)) for pattern in monarch((36, 24), 4, 4)]
    model = Model()
    km.replace_linears(model, {"1": None, "*": monarch((36, 24), 4, 4)})
    wanted = {"quant_method": "kernmantle", "patterns": {"0": chain}}
    assert json.loads(model.config.to_json_string())["quantization_config"] == wanted
    km.replace_linears(model, 0.5)
    assert {*model.config.quantization_config["patterns"]} == {"0", "1"}
    quantized = Model()
    quantized.config.quantization_config = {"quant_method": "gptq"}
    km.replace_linears(quantized, 0.5)
    assert quantized.config.quantization_config == {"quant_method": "gptq"}
    without = Model()
    km.replace_linears(without, lambda *_: None)
    assert without.config.quantization_config is None


def test_a_replaced_model_of_transformers_is_saved_and_loaded(monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    hugging = integration(monkeypatch, "transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    config = transformers.LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 50, (2, 7))
    km.replace_linears(model, {"lm_head": None, "*": 0.5})
    for _ in range(2):
        model.save_pretrained(tmp_path)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        assert torch.equal(again(ids).logits, model(ids).logits)
        km.replace_linears(model, 0.5, part="ffn")
    sparse = {name for name, layer in model.named_modules() if isinstance(layer, km.KSLinear)}
    assert {*hugging.record_patterns(model)} == sparse


class LoraLinear(nn.Module):
    """PEFT's layer, as its constructor and forward are documented."""

    def __init__(self, base_layer, adapter_name, config, r=0, **_):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class LoraConfig:
    def _register_custom_module(self, mapping):
        self.custom = mapping


def test_adapters_of_kronecker_sparse_layers(monkeypatch):
    for name in ("peft", "peft.tuners", "peft.tuners.lora"):
        stand_in(monkeypatch, name)
    stand_in(monkeypatch, "peft.tuners.lora.layer", Linear=LoraLinear)
    ours = integration(monkeypatch, "peft")
    config = LoraConfig()
    assert ours.register_lora(config) is config
    layer, x = km.KSLinear(24, 36, monarch((36, 24), 4, 4)), torch.randn(5, 24)
    adapter = config.custom[km.KSLinear](layer, "default", config=config, r=3)
    matrix = layer.to_dense() + adapter.lora_B.weight @ adapter.lora_A.weight
    assert_close(adapter(x).detach(), (x @ matrix.T + layer.bias).detach(), depth=64)
    with pytest.raises(errors.ParameterError, match="cannot be merged into a Kronecker-sparse layer"):
        adapter.merge()
    layer.batch_last = True
    with pytest.raises(errors.ParameterError, match="batch_last=True"):
        ours.LoraKSLinear(layer, "default", config=config, r=3)
    with pytest.raises(errors.ParameterError, match=r"must be a peft\.LoraConfig"):
        ours.register_lora(3)


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 36), nn.ReLU(), nn.Linear(36, 24), nn.Linear(24, 24))


def check_sparsify(ours, apply):
    """Layers that the filter takes are those that replace_linears makes, others are left."""
    x, config = torch.randn(5, 24), ours.KroneckerSparseConfig(share=0.5)
    found, wanted, before = three_layers(), three_layers(), three_layers()
    apply(found, config, lambda layer, name: isinstance(layer, nn.Linear) and name != "2")
    km.replace_linears(wanted, {"0": 0.5, "3": 0.5})
    assert [type(layer) for layer in found] == [km.KSLinear, nn.ReLU, nn.Linear, km.KSLinear]
    assert torch.equal(found(x), wanted(x))
    assert not torch.equal(found(x), before(x))
    chain = monarch((36, 24), 4, 4)
    again = three_layers()
    apply(again, ours.KroneckerSparseConfig(patterns=chain), None)
    assert [type(layer) for layer in again] == [km.KSLinear, nn.ReLU, nn.Linear, nn.Linear]
    assert again[0].patterns == tuple(map(km.KSPattern.of, chain))


def test_layers_are_replaced_as_torchao_does(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    ours = integration(monkeypatch, "torchao")
    check_sparsify(ours, ours.sparsify_)
    assert ours.sparsify_(model := three_layers(), ours.KroneckerSparseConfig()) is model
    with pytest.raises(errors.ParameterError, match="config must be a KroneckerSparseConfig, not float"):
        ours.sparsify_(three_layers(), 0.25)
    with pytest.raises(errors.ParameterError, match="share of the weights to keep, above 0 and up to 1, not"):
        ours.sparsify_(three_layers(), ours.KroneckerSparseConfig(share=-1.0))


class BaseConfig:
    handlers: ClassVar = {}


def quantize_(model, config, filter_fn=None, device=None):
    """What torchao's function does with a registered configuration."""
    filter_fn = filter_fn or (lambda layer, name: isinstance(layer, nn.Linear))
    for name, layer in list(model.named_children()):
        if filter_fn(layer, name):
            setattr(model, name, BaseConfig.handlers[type(config)](layer, config))


@pytest.mark.parametrize("real", [False, True])
def test_quantize_takes_our_configuration(monkeypatch, real):
    apply = quantize_
    if real:
        apply = pytest.importorskip("torchao.quantization").quantize_
    else:
        for name in ("torchao", "torchao.core", "torchao.quantization"):
            stand_in(monkeypatch, name)
        stand_in(monkeypatch, "torchao.core.config", AOBaseConfig=BaseConfig)
        stand_in(
            monkeypatch, "torchao.quantization.transform_module",
            register_quantize_module_handler=lambda config: lambda own: BaseConfig.handlers.setdefault(config, own),
        )  # fmt: skip
    ours = integration(monkeypatch, "torchao")
    check_sparsify(ours, apply)
    parametrized = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(24, 24)))
    with pytest.warns(errors.KernmantleWarning, match="left as it is: it is parametrized"):
        apply(parametrized, ours.KroneckerSparseConfig(), lambda layer, name: name == "0")
    with pytest.raises(errors.ParameterError, match="a linear layer with a weight"):
        apply(three_layers(), ours.KroneckerSparseConfig(), lambda layer, name: name == "1")


@pytest.mark.parametrize("batch_last", [False, True])
def test_torch_counts_operations(batch_last):
    layer = km.KSLinear(24, 36, monarch((36, 24), 4, 4), batch_last=batch_last, algorithm="kernel")
    x = torch.randn(*((24, 7) if batch_last else (7, 24)), requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        result = layer(x)
    assert counter.get_total_flops() == 2 * 7 * layer.nnz
    with FlopCounterMode(display=False) as counter:
        result.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 7 * layer.nnz
