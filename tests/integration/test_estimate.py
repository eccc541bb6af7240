"""``km.estimate``: predictions beside committed measurements, memory beside what is allocated, refusals."""

import math
import pickle
import threading
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

import kernmantle as km
from benchmarks import estimates
from kernmantle.backends.cuda.cards import PREDICTED, card_of
from kernmantle.errors import DeviceError, ParameterError
from kernmantle.torch_ops.card_target import PREDICTIONS

RESULTS = Path(estimates.__file__).parent / "results"
MEDIAN, MOST = 1.25, 2.0
"""How far the median of a file's ratios, and nine of ten rows, may be from 1."""


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture(scope="module")
def rows():
    return estimates.compared(RESULTS)


@pytest.mark.parametrize("file", estimates.FILES)
def test_predictions_are_near_what_was_measured(rows, file):
    ratios = [row.ratio for row in rows if row.file == file]
    assert len(ratios) >= 9
    assert 1 / MEDIAN <= median(ratios) <= MEDIAN
    near = [ratio for ratio in ratios if 1 / MOST <= ratio <= MOST]
    assert len(near) >= 0.9 * len(ratios)


def test_memory_is_near_what_was_measured(rows):
    measured = [row for row in rows if (row.measured_bytes or 0) > 2 << 20]
    assert len(measured) >= 30
    for row in measured:
        assert 0.8 <= row.predicted_bytes / row.measured_bytes <= 1.05, row


@pytest.mark.parametrize(
    ("call", "args"),
    [
        (km.cdist, (empty(4000, 300), empty(5000, 300))),
        (km.Gaussian(3.0).matmul, (empty(4000, 20), empty(5000, 20), empty(5000, 2))),
        (km.argkmin, (empty(4000, 30), empty(5000, 30), 5)),
        (km.argkmin, (empty(4000, 30), empty(5000, 30), 500)),  # by blocks of the matrix, as wide products are
        (km.Gaussian(3.0).matmul, (empty(4000, 20), empty(5000, 20), empty(5000, 3000))),
        (km.kron_matmul, (empty(1000, 64 * 32), [empty(64, 64), empty(32, 32)])),
        (km.kron_sparse_matmul, (empty(1000, 24), empty(2, 3, 4, 3))),
        (km.Contraction("mk,nk->mn", lambda x, y: x + y, reduce="min"), (empty(900, 40), empty(800, 40))),
        (lambda a, b: km.contract("mk,nk->mn", lambda x, y: x * y, a, b), (empty(900, 40), empty(800, 40))),
        (lambda a, b: km.contract("mk,nk->k", lambda x, y: abs(x - y), a, b), (empty(900, 40), empty(800, 40))),
        (km.Matern(2.0, nu=1.5), (empty(4000, 20), empty(5000, 20))),
        (lambda a: km.cdist(a) @ a, (empty(500, 20),)),
        (lambda a: torch.relu(a).sum(0), (empty(500, 20),)),
    ],
)  # fmt: skip
def test_times_grow_with_the_work(call, args):
    small = km.estimate(call, *args, card="h100")
    larger = [[each.repeat(8, *[1] * (each.dim() - 1)) for each in args[:1]], *args[1:]]
    large = km.estimate(call, *larger[0], *larger[1:], card="h100")
    assert 0 < small.seconds < large.seconds
    assert math.isclose(sum(seconds for _, seconds in small.launches), small.seconds)
    assert large.flops > small.flops or large.flops == small.flops == 0
    assert large.result_bytes >= small.result_bytes > 0
    assert small.bound in ("bytes", "arithmetic", "launch")


def test_what_bounds_a_call():
    assert km.estimate(km.cdist, empty(8, 3), empty(8, 3), card="h200").bound == "launch"
    assert km.estimate(km.cdist, empty(30000, 3), empty(30000, 3), p=1, card="h200").bound == "bytes"
    assert km.estimate(km.cdist, empty(30000, 1024), empty(30000, 1024), p=1, card="h200").bound == "arithmetic"
    slow, fast = (km.estimate(km.cdist, empty(30000, 3), empty(30000, 3), p=1, card=name) for name in ("h100", "h200"))
    assert slow.seconds > 1.2 * fast.seconds


def test_arrays_modules_and_lists_are_taken():
    of_meta = km.estimate(km.cdist, empty(40, 7), empty(50, 7), card="h100")
    given = np.zeros((40, 7), np.float32), torch.zeros(50, 7)
    assert km.estimate(km.cdist, *given, card="h100") == of_meta
    captured = empty(50, 7)
    assert km.estimate(lambda x: km.cdist(x, captured), given[0], card="h100") == of_meta
    same = torch.zeros(40, 7)
    assert "symmetric" in km.estimate(km.cdist, same.repeat(50, 20), card="h100").launches[0][0]
    layer = km.KSLinear(16, 16, patterns=[(4, 4, 4, 1), (1, 4, 4, 4)])
    of_layer = km.estimate(layer, torch.zeros(4096, 16), card="NVIDIA H100 80GB HBM3")
    assert len(of_layer.launches) == 2
    assert of_layer.flops == 2 * 4096 * layer.nnz
    assert of_layer.result_bytes == 4 * 4096 * 16
    assert of_layer.bytes >= of_layer.result_bytes  # what is between the factors
    assert all(parameter.device.type == "cpu" for parameter in layer.parameters())
    assert pickle.loads(pickle.dumps(of_layer)) == of_layer


def test_layers_are_arguments_and_snapshots_are_calls():
    up, down = (km.KSLinear(16, 16, patterns=[(4, 4, 4, 1), (1, 4, 4, 4)]) for _ in range(2))
    x = torch.ones(8, 16)
    alone = km.estimate(up, x, card="h200")
    assert km.estimate(up.pack(), x, card="h200").launches == alone.launches
    mlp = km.estimate(km.kronsparse.mlp, x, up, down, card="h200")
    assert mlp.launches[:2] == mlp.launches[-2:] == alone.launches
    assert len(mlp.launches) == 5
    assert up.weights[0].device.type == "cpu"
    up.lock = threading.Lock()  # which is not copied
    assert km.estimate(up, x, card="h200") == alone
    for call in (lambda own: up(own, "gelu"), up.forward):
        with pytest.raises(
            km.errors.DeviceError, match=r"weights\.0 is on cpu: km\.estimate was not given it; pass it"
        ):
            km.estimate(call, x, card="h200")


def test_memory_of_torch_operations_is_the_most_at_a_time():
    def call(x):
        first = x + 1
        second = first * 2
        del first
        return (second + x).sum()

    found = km.estimate(call, empty(1 << 20), card="h200")
    assert found.bytes == 2 * 4 << 20
    assert found.result_bytes == 4
    kept = km.estimate(lambda x: x + 1, empty(1 << 20), card="h200")
    assert (kept.bytes, kept.result_bytes) == (0, 4 << 20)
    assert km.estimate(lambda x: x[:5].T, empty(10, 10), card="h200").seconds == 0


def test_what_does_not_fit_into_the_memory_is_told():
    x = empty(160_000, 8)
    assert not km.estimate(km.cdist, x, empty(160_000, 8), card="h100").fits
    found = km.estimate(km.cdist, x, empty(160_000, 8), card="h200")
    assert found.fits
    assert "memory" not in repr(found)
    assert "does not fit" in repr(km.estimate(km.cdist, x, empty(300_000, 8), card="h200"))
    assert not km.estimate(lambda a: a + 1, empty(1 << 34), card="h100").fits
    assert km.estimate(lambda a: a.add(1), empty(1 << 33), card="h100").fits


def test_a_line_says_it_all():
    found = km.estimate(km.kron_matmul, empty(1024, 64**2), [empty(64, 64)] * 2, card="h200")
    assert repr(found).startswith("Estimate(")
    assert "\n" not in repr(found)
    assert "extra" in repr(found)
    assert found.card == "h200"


@pytest.mark.parametrize("name", ["a100", "h100 pcie", "h200 nvl", "", "h100 h200", "h1000", 5])
def test_other_cards_are_refused(name):
    with pytest.raises(DeviceError, match="known are h100 and h200"):
        km.estimate(km.cdist, empty(3, 3), card=name)


@pytest.mark.parametrize("name", ["h100", "H100", "h100-80gb-hbm3", "NVIDIA H100 80GB HBM3", "NVIDIA H100"])
def test_cards_have_several_names(name):
    assert card_of(name) is PREDICTED["h100"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_card_there_must_be_a_gpu():
    with pytest.raises(DeviceError, match="card='h100' or 'h200'"):
        km.estimate(km.cdist, empty(3, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (torch.linalg.cholesky, "no model of torch's operation aten::linalg_cholesky"),
        (lambda x: km.cdist(x.requires_grad_()).sum().backward(), "forward calls"),
        (lambda x: float(x.sum()), "reads values"),
        (lambda x: km.cdist(x) if x.sum() > 0 else x, "reads values"),
        (lambda x: x @ torch.ones(5, 5).to(x.device), "no model|reads a tensor"),
        (lambda x: km.kron_matmul(x.to(torch.complex64), [x.to(torch.complex64)]), "complex64"),
    ],
)
def test_what_cannot_be_predicted_is_refused(call, message):
    with pytest.raises(ParameterError, match=message):
        km.estimate(call, empty(5, 5), card="h100")


def test_a_result_is_no_call():
    with pytest.raises(ParameterError, match=r"call must be a function, as .*, not Tensor, its result"):
        km.estimate(torch.ones(3), card="h100")


def test_captured_arrays_with_memory_are_refused():
    real = torch.ones(5, 5)
    with pytest.raises(ParameterError, match="pass it as an argument"):
        km.estimate(lambda: torch.relu(real), card="h100")


def test_every_operator_of_a_forward_call_has_a_model():
    assert {"contract", "apply", "kron", "kron_sparse", "kron_sparse_weight"} <= set(PREDICTIONS)


def test_empty_results_take_nothing():
    assert km.estimate(km.cdist, empty(0, 3), empty(5, 3), card="h100").seconds == 0
    assert km.estimate(km.kron_matmul, empty(0, 4), [empty(2, 2)] * 2, card="h100").seconds == 0
    assert km.estimate(km.kron_sparse_matmul, empty(0, 4), empty(2, 2, 2, 1), card="h100").seconds == 0
