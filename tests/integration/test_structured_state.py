"""Models with replaced layers saved and loaded, by states, files and mismatches."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
import torch
from torch import nn

import kernmantle as km
from kernmantle import errors
from kernmantle.kronsparse import low_rank_like, monarch
from kernmantle.testing import assert_close


def fresh(seed=1, middle=None):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(24, 36), middle or nn.GELU(), nn.ModuleDict({"head": nn.Linear(36, 12)})["head"])


CHAINS = {"0": low_rank_like((36, 24), 5), "2": monarch((12, 36), 3, 2, 2)}


def saved(chains=None):
    """A model that was replaced by any chains and trained, what it gives, and its state."""
    model = fresh(0)
    km.replace_linears(model, chains or CHAINS)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(7, 24)
    model(x).square().sum().backward()
    optimizer.step()
    return model, x, model(x).detach()


def test_states_load_into_dense_models_and_others_and_again():
    model, x, wanted = saved()
    dense, other, itself = fresh(), fresh(), fresh()
    km.replace_linears(other, {"0": monarch((36, 24), 4, 4), "2": [(12, 1, 3, 1)]}, project=False)
    km.replace_linears(itself, CHAINS, project=False)
    for into in (dense, other, itself):
        for _ in range(2):
            found = km.load_structured(into, model.state_dict())
            assert found == ([], [])
            assert torch.equal(into(x), wanted)
        assert [into[place].patterns for place in (0, 2)] == [model[place].patterns for place in (0, 2)]
        into(x).sum().backward()
        assert all(own.grad.shape == own.shape for own in into.parameters())


def test_shares_take_the_patterns_of_the_state_they_load():
    exact = fresh(0)
    for place, chain in ((0, monarch((36, 24), 3, 2, 2)), (2, monarch((12, 36), 6, 2, 1))):
        exact[place].weight.data = (
            km.KSLinear(chain[0].in_features, chain[-1].out_features, chain).to_dense().detach()
        )  # of which a share chooses other patterns than of random weights
    report = km.replace_linears(exact, 0.4)
    again = fresh()
    drawn = km.replace_linears(again, 0.4, project=False)
    assert [layer.patterns for layer in drawn.layers] != [layer.patterns for layer in report.layers]
    optimizer = torch.optim.Adam(again.parameters())
    x = torch.randn(7, 24)
    before = again(x).detach()
    parameters = set(map(id, again.parameters()))
    for _ in range(2):
        again.load_state_dict(exact.state_dict())
        assert torch.equal(again(x), exact(x))
    assert [layer.patterns for layer in report.layers] == [again[0].patterns, again[2].patterns]
    assert before.shape == again(x).shape
    assert set(map(id, again.parameters())) == parameters  # two factors each: those that the optimizer has
    again(x).sum().backward()
    optimizer.step()
    single = fresh()
    km.replace_linears(single, CHAINS | {"0": [(12, 3, 2, 1)]}, project=False)
    for _ in range(2):
        single[0]._chosen = again[0]._chosen = True
        again.load_state_dict(single.state_dict() | {f"2.{name}": own for name, own in again[2].state_dict().items()})
        assert again[0].patterns == ((12, 3, 2, 1),)
        assert torch.equal(again[0](x), single[0](x))
        km.load_structured(again, exact.state_dict())


def test_other_patterns_are_said():
    model, _, _ = saved()
    other = fresh()
    km.replace_linears(other, {"0": monarch((36, 24), 4, 4)}, project=False)
    said_there = (
        r"0: the state has the patterns \(1, 5, 24, 1\) -> .*, the layer \(4, 4, 6, 1\) -> .*; km.load_structured"
    )
    with pytest.raises(RuntimeError, match=said_there):
        other.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="0: the state has a dense weight; load it before replace_linears"):
        other.load_state_dict(fresh().state_dict())
    other.load_state_dict({"2.bias": torch.zeros(12)}, strict=False)


class Named(nn.Linear):
    pass


def test_what_does_not_fit_leaves_the_model_as_it_was():
    model, _, _ = saved()
    shared = fresh()
    shared.append(nn.Linear(36, 12))
    shared[3].weight = shared[2].weight
    named = fresh()
    named[0] = Named(24, 36)
    deeper = nn.Sequential(nn.Linear(24, 36), nn.ReLU())
    wider = nn.Sequential(nn.Linear(24, 36), nn.ReLU(), nn.Linear(40, 12))
    other = nn.Sequential(nn.Linear(24, 36), nn.ReLU(), nn.Conv1d(1, 1, 1))
    for into, message in (
        (deeper, "2 is Kronecker-sparse in the state, .* no module of this name"),
        (wider, r"2 is .* shape \(12, 36\); in the model it is of shape \(12, 40\)"),
        (named, "0 is .* cannot become so: Named is derived from Linear"),
        (shared, "2 is .* cannot become so: its weight is shared"),
        (other, "2 is .* cannot become so: it is a Conv1d"),
    ):
        before = [*into.modules()], {name: own.clone() for name, own in into.state_dict().items()}
        with pytest.raises(errors.ParameterError, match=message):
            km.load_structured(into, model.state_dict())
        assert [*into.modules()] == before[0]
        assert all(torch.equal(own, before[1][name]) for name, own in into.state_dict().items())
    with pytest.raises(errors.ParameterError, match="no Kronecker-sparse layer"):
        km.load_structured(fresh(), fresh().state_dict())
    with pytest.raises(errors.ParameterError, match="must be a state_dict or the path"):
        km.load_structured(fresh(), 3)
    with pytest.raises(errors.ParameterError, match=r"must be a torch\.nn\.Module"):
        km.load_structured(3, model.state_dict())
    with pytest.raises(errors.ParameterError, match="the model is Kronecker-sparse in the state"):
        km.load_structured(nn.Linear(24, 36), model[0].state_dict())


def test_layers_alone_meta_and_the_batch_last():
    model, x, wanted = saved()
    layer = km.KSLinear(24, 36, monarch((36, 24), 4, 4))
    km.load_structured(layer, model[0].state_dict())
    assert torch.equal(layer(x), model[0](x))
    with torch.device("meta"):
        empty = fresh()
    km.load_structured(empty, model.state_dict(), assign=True)
    assert torch.equal(empty(x), wanted)
    last = nn.Sequential(km.LinearBatchLast(24, 36))
    km.load_structured(last, {f"0.{name}": own for name, own in model[0].state_dict().items()})
    assert_close(last(x.T).detach(), model[0](x).T.detach(), depth=24)


def written(state):
    """Bytes of the format of safetensors, by its specification."""
    header, parts, end = {}, [], 0
    for name, own in state.items():
        data = own.numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": [*own.shape], "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def read(path):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    values, found = torch.frombuffer(bytearray(data[end:]), dtype=torch.float32), {}
    for name, own in json.loads(data[8:end]).items():
        first, last = own["data_offsets"]
        found[name] = values[first // 4 : last // 4].reshape(own["shape"])
    return found


def test_files(tmp_path, monkeypatch):
    model, x, wanted = saved()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = dict(model.state_dict())
    halves = [dict(list(state.items())[:3]), dict(list(state.items())[3:])]
    for name, part in (("whole/a", state), ("parts/a-1", halves[0]), ("parts/a-2", halves[1])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.safetensors").write_bytes(written(part))
    try:
        import safetensors.torch as _  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install safetensors"):
            km.load_structured(fresh(), tmp_path / "parts")
        package, module = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
        package.torch, module.load_file = module, read
        monkeypatch.setitem(sys.modules, "safetensors", package)
        monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    for place in ("model.pt", "whole/a.safetensors", "parts"):
        again = fresh()
        km.load_structured(again, str(tmp_path / place))
        assert torch.equal(again(x), wanted)
    (tmp_path / "none").mkdir()
    with pytest.raises(errors.ParameterError, match="no files of safetensors"):
        km.load_structured(fresh(), tmp_path / "none")


def test_layers_that_took_patterns_are_copied_and_pickled():
    model, x, wanted = saved()
    again = fresh()
    km.replace_linears(again, 0.3, project=False)
    again.load_state_dict(model.state_dict())
    buffer = io.BytesIO()
    torch.save(again, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), wanted)
    assert_close(again[0].pack()(x), again[0](x).detach(), depth=24)
