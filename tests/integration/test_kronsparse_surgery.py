"""Linear layers of models replaced, by part and by rule."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import kernmantle as km
from kernmantle import errors
from kernmantle.kronsparse import monarch, replace_linears
from kernmantle.structured.kronsparse.surgery import _belongs
from kernmantle.testing import assert_close


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v))


class Feedforward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn, self.mlp = Attention(width), Feedforward(width)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


PARTS = {
    "qkv": {"attn.qkv"}, "proj": {"attn.proj"}, "up": {"mlp.fc1"}, "down": {"mlp.fc2"},
    "attention": {"attn.qkv", "attn.proj"}, "ffn": {"mlp.fc1", "mlp.fc2"},
    "block": {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"},
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_surgery_by_part(part):
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(2, 5, 24)
    before = sum(value.numel() for value in model.parameters())
    report = replace_linears(model, lambda name, layer: monarch(layer.weight.shape, 4, 4, 2), part=part)
    assert {layer.name for layer in report.layers} == {f"blocks.{i}.{end}" for i in range(2) for end in PARTS[part]}
    assert report.before == before
    assert report.after == sum(value.numel() for value in model.parameters()) < before
    for layer in report.layers:
        new = model.get_submodule(layer.name)
        assert isinstance(new, km.KSLinear)
        assert layer.after == sum(weight.numel() for weight in new.weights)
        assert layer.before == layer.shape[0] * layer.shape[1]
        assert 0 < layer.error == new.projection_error < 1
        assert layer.name in str(report)
    assert model(x).isfinite().all()
    model(x).sum().backward()


def test_surgery_with_exact_patterns_changes_nothing():
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(2, 5, 24)
    wanted = model(x).detach()
    report = replace_linears(model, lambda name, layer: [(1, *layer.weight.shape, 1)])
    assert len(report.layers) == 9
    assert all(layer.error < 1e-6 for layer in report.layers)
    assert_close(model(x).detach(), wanted, depth=500)


def test_rules():
    model = Model()
    chain = monarch((96, 24), 4, 4)
    for rule, wanted in (
        (chain, {"blocks.0.mlp.fc1", "blocks.1.mlp.fc1"}),
        (
            {"blocks.0.*fc1": chain, "*qkv": monarch((72, 24), 4, 4)},
            {"blocks.0.mlp.fc1", "blocks.0.attn.qkv", "blocks.1.attn.qkv"},
        ),
        (lambda name, layer: chain if name == "blocks.1.mlp.fc1" else None, {"blocks.1.mlp.fc1"}),
        (lambda name, layer: nn.Identity() if name == "head" else None, {"head"}),
    ):  # fmt: skip
        report = replace_linears(copy.deepcopy(model), rule, project=False)
        assert {layer.name for layer in report.layers} == wanted
    share = replace_linears(copy.deepcopy(model), 0.5, part="ffn")
    assert len(share.layers) == 4
    assert all(layer.after <= 0.5 * layer.before for layer in share.layers)
    drawn = copy.deepcopy(model)
    assert all(layer.error is None for layer in replace_linears(drawn, chain, project=False).layers)
    with pytest.raises(errors.ParameterError, match="a rule is patterns, a number"):
        replace_linears(model, "monarch")
    with pytest.raises(errors.ParameterError, match="part must be"):
        replace_linears(model, chain, part="heads")
    with pytest.raises(errors.ShapeError, match="head: the matrix has shape"):
        replace_linears(model, {"head": chain})


class Conv1D(nn.Module):
    """As transformers': a linear layer with a transposed weight."""

    def __init__(self, rows, columns):
        super().__init__()
        self.nf = rows
        self.weight, self.bias = nn.Parameter(torch.randn(columns, rows)), nn.Parameter(torch.randn(rows))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_transposed_shared_and_unreachable_layers():
    torch.manual_seed(0)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc, self.twice = Conv1D(24, 12), nn.Linear(12, 12)
            self.again = self.twice
            self.embedding, self.lm_head = nn.Embedding(20, 12), nn.Linear(12, 20, bias=False)
            self.lm_head.weight = self.embedding.weight
            self.attention = nn.MultiheadAttention(12, 2)

    model = Odd()
    x = torch.randn(3, 12)
    wanted = model.c_fc(x).detach()
    report = replace_linears(model, lambda name, layer: [(1, 24, 12, 1)] if name == "c_fc" else monarch((12, 12), 2, 2))
    assert {layer.name for layer in report.layers} == {"c_fc", "twice"}
    assert model.twice is model.again
    assert dict(report.skipped).keys() == {"lm_head", "attention.out_proj"}
    assert model.lm_head.weight is model.embedding.weight
    assert_close(model.c_fc(x).detach(), wanted, depth=12)


NAMES = {
    "qkv": ("blocks.0.attn.qkv", "h.0.attn.c_attn", "layers.0.self_attn.k_proj", "encoder.layer.0.attention.self.value",
            "h.0.self_attention.query_key_value", "encoder.block.0.layer.0.SelfAttention.q", "layers.0.attn.Wqkv"),
    "proj": ("blocks.0.attn.proj", "h.0.attn.c_proj", "layers.0.self_attn.o_proj", "layers.0.attention.wo",
             "encoder.layer.0.attention.output.dense", "h.0.attention.dense", "block.0.layer.1.EncDecAttention.o",
             "h.0.self_attention.dense", "layers.0.self_attn.dense"),
    "up": ("blocks.0.mlp.fc1", "h.0.mlp.c_fc", "layers.0.mlp.gate_proj", "encoder.layer.0.intermediate.dense",
           "h.0.mlp.dense_h_to_4h", "encoder.block.0.layer.1.DenseReluDense.wi_0", "layers.0.feed_forward.w3",
           "h.0.mlp.fc_in"),
    "down": ("blocks.0.mlp.fc2", "h.0.mlp.c_proj", "layers.0.mlp.down_proj", "encoder.layer.0.output.dense",
             "h.0.mlp.dense_4h_to_h", "encoder.block.0.layer.1.DenseReluDense.wo", "layers.0.feed_forward.w2",
             "h.0.mlp.fc_out"),
}  # fmt: skip


@pytest.mark.parametrize("part", NAMES)
def test_names_that_libraries_give(part):
    others = {name for own, names in NAMES.items() if own != part for name in names}
    assert all(_belongs(name, part) for name in NAMES[part])
    assert not any(_belongs(name, part) for name in (*others, "head", "lm_head", "classifier.dense", "embed.proj"))


def same(name, layer):
    """A chain of one factor that is the layer itself."""
    return [(1, *(layer.weight.shape if isinstance(layer, nn.Linear) else reversed(layer.weight.shape)), 1)]


@pytest.mark.parametrize("padded", [False, True])
def test_encoders_call_their_new_layers_in_evaluation(padded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool() if padded else None
    kept = ~mask if padded else torch.ones(2, 5, dtype=torch.bool)
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=mask)[kept]
        report = replace_linears(model, same)
        assert_close(model(x, src_key_padding_mask=mask)[kept], wanted, depth=500)
        calls = []
        model.layers[1].linear1.register_forward_hook(lambda *_: calls.append(1))
        model(x, src_key_padding_mask=mask)
    assert {layer.name for layer in report.layers} == {f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)}
    assert calls == [1]


def test_models_are_as_they_were_where_a_rule_fails():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    before, chain = list(model), monarch((16, 16), 4, 4)

    def rule(name, layer):
        if name == "1":
            raise KeyError(name)
        return chain

    for bad, error in ((rule, KeyError), ({"0": chain, "1": [(1, 3, 3, 1)]}, errors.ShapeError)):
        with pytest.raises(error):
            replace_linears(model, bad)
        assert all(own is old for own, old in zip(model, before, strict=True))
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(errors.DeviceError, match="0: the matrix is on meta"):
        replace_linears(empty, chain)
    replace_linears(empty, chain, project=False)
    assert empty[0].weights[0].is_meta
    with pytest.raises(errors.ParameterError, match="from_linear"):
        replace_linears(nn.Linear(16, 16), chain)


def test_rules_may_give_shares():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    report = replace_linears(copy.deepcopy(model), {"0": 0.5, "1": None, "2": nn.Identity()})
    assert [(layer.name, layer.after <= 128) for layer in report.layers] == [("0", True), ("2", True)]
    report = replace_linears(copy.deepcopy(model), lambda name, layer: 0.5 if name == "1" else 1e-6)
    assert [layer.name for layer in report.layers] == ["1"]
    assert report.skipped[0] == ("0", "no chain has at most 1e-06 of its weights")


def test_a_model_is_made_again_from_its_report():
    torch.manual_seed(0)
    model = Model()
    report = replace_linears(model, 0.4, part="block")
    again = Model()
    replace_linears(again, {layer.name: layer.patterns for layer in report.layers}, project=False)
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, 24)
    assert torch.equal(again(x), model(x))


def test_adapters_keep_what_they_merge_into():
    class BaseTunerLayer:
        """As adapters of peft are made."""

    class Adapter(nn.Module, BaseTunerLayer):
        def __init__(self, base):
            super().__init__()
            self.base_layer = base
            self.lora_A = nn.ModuleDict({"default": nn.Linear(16, 4, bias=False)})

    model = nn.ModuleDict({"q_proj": Adapter(nn.Linear(16, 16)), "fc1": nn.Linear(16, 16)})
    before = dict(model.named_modules())
    for part, reached in (("qkv", {"q_proj.base_layer"}), ("model", {"q_proj.base_layer", "q_proj.lora_A.default"})):
        report = replace_linears(copy.deepcopy(model), 0.5, part=part)
        assert [layer.name for layer in report.layers] == ["fc1"] * (part == "model")
        assert dict(report.skipped) == dict.fromkeys(reached, "it belongs to an adapter of peft")
    replace_linears(model, 0.5)
    assert model["q_proj"].base_layer is before["q_proj.base_layer"]


@pytest.mark.parametrize("bad", [nn.Linear(3, 4), "block", None, 1j])
def test_what_is_no_rule(bad):
    with pytest.raises(errors.ParameterError, match=r"rule must be|a rule is patterns, a number"):
        replace_linears(nn.Sequential(nn.Linear(16, 16)), bad)
    with pytest.raises(errors.ParameterError, match="the model must be"):
        replace_linears(bad if not isinstance(bad, nn.Module) else 3, 0.5)


def test_numbers_and_names_that_cannot_be_meant():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8))
    for share in (25, 1.5, 0, -0.25, float("nan")):
        with pytest.raises(errors.ParameterError, match=r"0: a number in rule is the share .* not "):
            replace_linears(model, share)
    with pytest.raises(errors.ParameterError, match=r"no linear layer 'fc1', .*its linear layers are 0, 1"):
        replace_linears(model, {"fc1": 0.5})
    named = nn.ModuleDict({"fc1": nn.Linear(16, 16)})
    with pytest.raises(errors.ParameterError, match="did you mean 'fc1'"):
        replace_linears(named, {"fc": 0.5})
    assert [layer.name for layer in replace_linears(named, {"head": None, "fc*": 0.5}).layers] == ["fc1"]


def test_layers_of_other_kinds():
    class Own(nn.Linear):
        pass

    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 8))
    model = nn.ModuleList([km.LinearBatchLast(16, 8), normed, Own(16, 8), nn.LazyLinear(8)])
    x = torch.randn(16, 3, 2)
    wanted = model[0](x)
    report = replace_linears(model, same)
    assert model[0].batch_last
    assert_close(model[0](x).detach(), wanted.detach(), depth=16)
    assert [layer.name for layer in report.layers] == ["0"]
    reasons = dict(report.skipped)
    assert "parametrized" in reasons["1"]
    assert reasons["2"] == "Own is derived from Linear and may compute something else"
    assert "LazyLinear" in reasons["3"]


def monarch_of(model, **options):
    return km.replace_linears(model, lambda _, layer: km.kronsparse.monarch(layer, 4, 4), **options)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
def test_frozen_layers_stay_frozen(frozen, project):
    model = nn.Sequential(nn.Linear(32, 32))
    for name in frozen:
        getattr(model[0], name).requires_grad_(False)
    monarch_of(model, project=project)
    wanted = {name: name.removeprefix("0.").partition("s.")[0] not in frozen for name, _ in model.named_parameters()}
    assert len(wanted) == 3
    assert {name: own.requires_grad for name, own in model.named_parameters()} == wanted


def test_new_layers_call_the_hooks_of_those_they_replace():
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(32, 32)), []
    model[0].register_forward_pre_hook(lambda module, args: seen.append("before") or (2 * args[0],))
    handle = model[0].register_forward_hook(lambda module, args, kwargs, result: result + 1, with_kwargs=True)
    model[0].register_forward_hook(lambda *_: seen.append("always"), always_call=True)
    model[0].register_full_backward_hook(lambda module, inner, outer: (3 * inner[0],))
    model[0].register_full_backward_pre_hook(lambda module, outer: seen.append("backward"))
    monarch_of(model)
    x = torch.randn(5, 32, requires_grad=True)
    layer = model[0]
    with torch.no_grad():
        plain_result = 2 * x @ layer.to_dense().T + layer.bias
    found = model(x)
    torch.testing.assert_close(found, plain_result + 1)
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope, (6 * layer.to_dense().sum(0)).expand(5, 32))
    assert seen == ["before", "always", "backward"]
    packed = layer.pack()
    torch.testing.assert_close(packed(x), plain_result + 1)
    handle.remove()
    torch.testing.assert_close(model(x), plain_result)
    torch.testing.assert_close(packed(x), plain_result + 1)


def test_modules_that_the_rule_gives_call_hooks_once():
    seen, old, wrapped = [], nn.Linear(8, 8), nn.Linear(8, 8)
    for layer in (old, wrapped):
        layer.register_forward_hook(lambda *_: seen.append(1))
    model = nn.Sequential(old, wrapped)
    km.replace_linears(model, {"0": nn.Identity(), "1": nn.Sequential(wrapped)})
    model(torch.ones(2, 8))
    assert len(seen) == 2


def test_weights_that_hooks_make_are_left():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    prune.l1_unstructured(model[0], "weight", 0.5)
    model[1].register_state_dict_post_hook(lambda *_: None)
    report = monarch_of(model)
    assert [layer.name for layer in report.layers] == ["2"]
    assert [reason.split(";")[0] for _, reason in report.skipped] == [
        "its weight is made by a hook", "its state_dict has hooks, which know the names of a dense layer",
    ]  # fmt: skip


def test_saved_patterns_are_a_rule(tmp_path):
    def fresh():
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10), nn.Linear(10, 3))

    model, path = fresh(), tmp_path / "patterns"  # of any name
    report = km.replace_linears(model, {"0": 0.25, "2": 0.5})
    report.save(path)
    for rule in (path, str(path)):
        other = fresh()
        again = km.replace_linears(other, rule, project=False)
        assert [layer.patterns for layer in again.layers] == [layer.patterns for layer in report.layers]
        assert other.load_state_dict(model.state_dict()).missing_keys == []
    with pytest.raises(errors.ParameterError, match="no linear layer '0'"):
        km.replace_linears(nn.Sequential(nn.ReLU(), nn.Linear(32, 64)), path)
    for name in ("nothing.json", "quarter"):
        with pytest.raises(errors.ParameterError, match=r"cannot be read.*a rule is patterns, .* report\.save"):
            km.replace_linears(fresh(), str(tmp_path / name))
    path.write_text("[1]")
    with pytest.raises(errors.ParameterError, match=r"was not written by report\.save"):
        km.replace_linears(fresh(), path)
    module = km.replace_linears(fresh(), lambda name, layer: nn.Identity() if name == "3" else None)
    with pytest.raises(errors.ParameterError, match="3 became another module"):
        module.save(path)


@pytest.mark.parametrize(
    ("rule", "part", "why"),
    [(0.5, "qkv", "the model has none for part='qkv'"), (monarch((32, 32), 4, 4), "model", "the rule leaves every one"),
     ({"0": None}, "model", "the rule leaves every one")],
)  # fmt: skip
def test_a_rule_that_replaces_nothing_warns(rule, part, why):
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.warns(errors.KernmantleWarning, match=f"no linear layer was replaced: {why}"):
        report = km.replace_linears(model, rule, part=part)
    assert not report.layers
    assert not km.replace_linears(model, lambda *_: None).layers  # a function that leaves all of them means it
