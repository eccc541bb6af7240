"""Passes that another pass of the same product is launched ahead of, so that they need not wait for their factors."""

import pytest
import torch

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import cuda, run
from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.axis_plan import AxisPlan, axis
from kernmantle.structured.kron.by_capture import ByCapture
from kernmantle.structured.kron.cuda_entry import LATER, parameters
from kernmantle.structured.kron.fma_plan import FmaLayout, FmaPlan, fma_candidates
from kernmantle.structured.kron.modes import parse
from kernmantle.structured.kron.passes import plain_pass
from kernmantle.structured.kron.run import prepare
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor
from kernmantle.torch_ops.blas_handles import HANDLES

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)
SIZES = ((4, 4), (3, 3), (5, 5))


def launched(kinds, right=1):
    """The launches of passes of these kinds over one factor each, the last one first."""
    modes, launches = parse("0 1 2", SIZES), []
    x, factors = torch.randn(6, 60, right), [torch.randn(size) for size in SIZES]
    passes = [plain_pass(kind, modes, place, place + 1) for kind, place in zip(kinds, (2, 1, 0), strict=False)]
    arrays = arranged(x, factors, None, torch.empty(6, 60, right))
    ready = prepare(passes, modes, arrays, lambda launch: launches.append(launch) or (lambda *_: None))
    return ready, launches


@pytest.mark.parametrize(
    ("kinds", "later"),
    [
        (("mma", "fma", "axis"), [False, True, True]), (("matmul", "mma", "fma"), [False, True]),
        (("fma", "matmul", "mma"), [False, True]), (("matmul", "matmul", "mma"), [False]),
    ],
)  # fmt: skip
def test_a_pass_behind_one_of_ours_is_a_later_one(kinds, later):
    ready, launches = launched(kinds)
    assert [launch.is_later for launch in launches] == later
    assert ready.has_kernels
    assert not launched(("matmul",) * 3)[0].has_kernels


class Loaded:
    """A kernel."""

    def __init__(self, overlapped):
        self.overlapped = overlapped


@pytest.mark.parametrize("overlapped", [False, True])
def test_kernels_that_begin_early_are_told_so(monkeypatch, overlapped):
    _, (first, second, _) = launched(("fma", "fma", "fma"))
    monkeypatch.setattr(cuda, "_kernel", lambda _, is_early: Loaded(overlapped and is_early))
    monkeypatch.setattr(cuda, "resident", lambda *_: 1)
    monkeypatch.setattr(cuda, "limits", lambda _: HOPPER)
    monkeypatch.setattr(cuda, "numbered", lambda index, blocks, described, signed: described((1.0, 0.0))[1])
    names = [*parameters(1, False, False), "alpha", "beta"]
    for launch, is_later in ((first, False), (second, overlapped)):
        (chosen, *_) = fma_candidates(launch.run, "f32", "f32", FmaLayout(1, 1, False, False), 6, 1, HOPPER)
        assert dict(zip(names, cuda._starting(launch, 0, chosen), strict=True))[LATER] == is_later


@pytest.mark.parametrize(
    ("stored", "rows", "early"),
    [
        ("f16", 1000, (True, True)), ("f16", 20000, (False, True)), ("f16", 30000, (False, False)),
        ("f32", 10000, (True, True)), ("f32", 15000, (False, False)),
    ],
)  # fmt: skip
def test_long_passes_begin_when_all_is_complete(monkeypatch, stored, rows, early):
    """Of 12, 246 and 369 MB, those of halves over an axis already where others do not."""
    loaded = []
    monkeypatch.setattr(cuda, "_kernel", lambda plan, is_early: loaded.append((type(plan), is_early)))
    kind = {"f16": torch.float16, "f32": torch.float32}[stored]
    tensor, sizes = Tensor("f16", 1 if stored == "f16" else 3), ((48, 48),)
    modes = parse("0 i64", sizes)
    x, factor = (torch.empty(*size, dtype=kind, device="meta") for size in ((rows, 48 * 64, 1), (48, 48)))
    over = plain_pass("axis", modes, 0, 1)
    chosen = axis(over, sizes, stored, tensor, MmaLayout(16, 16 // x.element_size(), False), 64, HOPPER)
    by_fma, layout = plain_pass("fma", modes, 0, 1), FmaLayout(1, 1, False, False)
    (another, *_) = fma_candidates(by_fma, stored, "f32", layout, rows, 64, HOPPER)
    both = (chosen, another)
    prepare(
        [over], modes, arranged(x, [factor], None, x), lambda launch: [cuda._starting(launch, 0, own) for own in both]
    )
    assert loaded == list(zip((AxisPlan, FmaPlan), early, strict=True))


def test_a_product_in_a_graph_and_outside_launches_kernels_of_ours_if_both_do():
    ours, vendor = launched(("fma",) * 3)[0], launched(("matmul",) * 3)[0]
    kinds = [ByCapture(*own).has_kernels for own in ((ours, ours), (ours, vendor), (vendor, ours))]
    assert kinds == [True, False, False]


@pytest.mark.parametrize(
    ("eager", "captured", "handles"), [("fma", "matmul", 1), ("fma", "fma", 0), ("matmul", "matmul", 0)]
)
def test_eager_calls_leave_a_thread_the_handle_that_a_captured_product_needs(eager, captured, handles, monkeypatch):
    """Torch would make it with the first product of the thread, which a stream that is captured does not allow."""
    taken, ran = [], []
    both = ByCapture(launched((eager,) * 3)[0], launched((captured,) * 3)[0])
    monkeypatch.setattr(run.Prepared, "__call__", lambda own, *_: ran.append(own))
    monkeypatch.setattr(HANDLES, "take", taken.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    both(torch.zeros(2, 8), [], None, torch.zeros(2, 8), (1.0, 0.0))
    assert (ran, len(taken)) == ([both.eager], handles)
