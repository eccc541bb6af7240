"""Row reductions on a Hopper GPU that is not here: plans, what kernels spill, what would be launched and with what."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_rows
from kernmantle.backends.cuda.score_plan import ScoreMemory
from kernmantle.compiler.nest import ROLES, SIZES, Layout
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.torch_ops import cuda, cuda_row_reduce

from ..cuda.row_nests import RowCase
from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

Launched = list[tuple[Any, int, tuple[Any, ...]]]


def planned(case: RowCase, card: str = "sm_90", **changes: int) -> CudaRowPlan:
    """Return the plan of a case, some of its sizes changed, whose first array lies in one piece."""
    sizes = case.sizes() | changes
    strides = []
    for buffer in case.rows.buffers:
        steps = {
            role: sizes[buffer.roles[1]] if i == 0 and len(buffer.roles) == 2 else 1
            for i, role in enumerate(buffer.roles)
        }
        strides.append(tuple(steps.get(role, 0) for role in ROLES))
    return plan_rows(case.rows, sizes, CARDS[card], Layout(tuple(strides), (16,) * len(strides)))


def check_memory(layout: ScoreMemory, wanted: list[int]) -> None:
    """Check that pieces of a work space are aligned and hold so many bytes."""
    ends = [*layout.offsets[1:], layout.size]
    for first, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert first % 128 == 0
        assert end - first >= size


def spills(source: str, name: str) -> dict[str, int]:
    """Bytes that every kernel of a source spills; products on tensor cores must not wait for each other (C75)."""
    log = compile_source(source, "sm_90", headers(), name).log
    assert "C75" not in log
    found = re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores", log, re.DOTALL)
    return {kernel: int(count) for kernel, count in found}


def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Kernel, blocks and arguments of every launch, of bound ones too, which start nothing."""
    made: Launched = []

    def bind_launch(kernel: Any, arguments: Any, positions: Any, index: int, blocks: int) -> Any:
        def launch(addresses: Any) -> None:
            own = list(arguments)
            for position, address in zip(positions, addresses, strict=True):
                own[position] = address
            made.append((kernel, blocks, tuple(own)))

        return launch

    monkeypatch.setattr(cuda, "start", lambda kernel, index, blocks, given: made.append((kernel, blocks, given)))
    monkeypatch.setattr(cuda, "bind_launch", bind_launch)
    return made


def noted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, kernels: tuple[str, ...]) -> Launched:
    """Replace the kernels of a module, and "main" and "join" of its fallback, by names; what was launched of them."""
    made = launched(monkeypatch)
    empty = torch.empty
    monkeypatch.setattr(cuda_row_reduce, "index_of", lambda device: 0)
    monkeypatch.setattr(cuda_row_reduce, "limits", lambda index: CARDS["sm_90"])
    monkeypatch.setattr(cuda_row_reduce, "_load", lambda chosen: ("main", "join"))
    monkeypatch.setattr(module, "_load", lambda chosen: kernels)
    monkeypatch.setattr(cuda_row_reduce, "allocate", lambda shape, dtype, device: empty(shape, dtype=dtype))
    monkeypatch.setattr(module.torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(module, "start", cuda.start)
    return made


def run(case: RowCase, numbers: tuple[float, ...] = (), batch: int = 1) -> None:
    """Launch a case, with arrays in one piece at multiples of 2^40."""
    m, k, l = case.m, case.k, case.width
    rows = (m * l, 0, 0, l, 0, 0, 1)
    ends = [(0, 0, 0, 0, l, 0, 1), rows] if case.how == PRODUCT else [rows, rows]
    steps = [(m * k, 0, 0, k, 0, 1, 0), (0, 0, 0, 0, k, 1, 0), (0,) * 7, *ends]
    sizes = case.sizes() | {"a": batch}
    integers = np.array([*(sizes[role] for role in SIZES), *sum(steps, ())], np.int64)
    launcher = cuda_row_reduce.TARGET().prepare(case.rows, integers, [16] * 5, torch.device("cuda"))
    launcher.run([1 << 40, 2 << 40, 0, 3 << 40, 4 << 40], numbers)
