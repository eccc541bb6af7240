"""Selections of many columns from those of parts: where they are planned, the best of the parts, what is launched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.row_reduce_emit import emit_rows
from kernmantle.backends.cuda.row_reduce_plan import is_worth_it
from kernmantle.backends.cuda.select_plan import part_count
from kernmantle.torch_ops.cuda_row_reduce_parts import best_of_parts

from ..cuda.row_nests import LAPLACE, SQUARES, RowCase
from ..golden.compiled import compile_source
from .row_launches import planned
from .test_cuda_compile import CARDS

CASE = RowCase("nearest", SQUARES, "smallest", 20000, 100000, 64, 100)


def cut(values: torch.Tensor, parts: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is selected of every part: its smallest, by value, then by position, NaN last."""
    found = [np.lexsort((np.arange(len(row)), row)) for part in range(parts) for row in values[:, part::parts].numpy()]
    where = torch.as_tensor(np.stack([each[:most] for each in found])).view(parts, len(values), most).transpose(0, 1)
    taken = [values[:, part::parts].gather(-1, where[:, part]) for part in range(parts)]
    return torch.stack(taken, 1), where.contiguous()


@pytest.mark.parametrize("kind", ["normal", "ties", "NaN", "infinite", "zeros"])
@pytest.mark.parametrize("largest", [False, True])
def test_the_best_of_parts_are_the_best_of_all(kind: str, largest: bool) -> None:
    random = torch.Generator().manual_seed(1)
    values = torch.randn(40, 900, generator=random)
    if kind == "ties":
        values = (2 * values).round()
    elif kind == "zeros":
        values = torch.where(values > 0, 0.0, -0.0)
    elif kind in ("NaN", "infinite"):
        values[:, 50:] = torch.where(values[:, 50:] > -1, math.nan if kind == "NaN" else math.inf, values[:, 50:])
    found, where = cut(values, 9, 32)
    best, positions, incomplete = best_of_parts(-found if largest else found, where, 64, largest=largest)
    order = np.stack([np.lexsort((np.arange(900), row)) for row in values.numpy()])[:, :64]
    assert torch.equal(positions, torch.as_tensor(order)) or bool(incomplete)
    wanted = values.gather(-1, torch.as_tensor(order))
    if not incomplete:
        assert torch.equal((-best if largest else best).nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert not (incomplete and kind == "normal")


def test_parts_that_may_have_more_are_seen() -> None:
    values = torch.randn(20, 900, generator=torch.Generator().manual_seed(2)) + 10
    assert not best_of_parts(*cut(values, 9, 32), 64, largest=False)[2]
    values[7, 3::9] -= 20
    assert best_of_parts(*cut(values, 9, 32), 64, largest=False)[2]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, 15), ({"l": 32}, 0), ({"l": 33}, 7), ({"l": 64}, 9), ({"l": 256}, 33), ({"l": 257}, 0), ({"k": 129}, 15),
        ({"n": 20000}, 0), ({"n": 15 * 2048}, 15), ({"m": 15}, 0), ({"k": 1}, 0), ({"k": 4097}, 0),
    ],
)  # fmt: skip
def test_sizes_that_are_taken(changes: dict[str, int], parts: int) -> None:
    sizes = CASE.sizes() | changes
    assert part_count(CASE.rows, sizes, CARDS["sm_90"]) == parts
    assert parts * 8 >= sizes["l"] or not parts
    if parts:
        assert is_worth_it(CASE.rows, sizes, CARDS["sm_90"])


def test_others_are_not_taken() -> None:
    assert not part_count(CASE.rows, CASE.sizes(), CARDS["sm_80"])
    assert not part_count(RowCase("l1", LAPLACE, "smallest", 20000, 100000, 64, 100).rows, CASE.sizes(), CARDS["sm_90"])
    assert not part_count(RowCase("max", SQUARES, "max", 20000, 100000, 64).rows, CASE.sizes(), CARDS["sm_90"])


def test_what_stands_in_compiles_with_its_gate() -> None:
    plan = replace(planned(CASE), gated=True)
    assert plan.form in ("tile", "thin")
    text = emit_rows(plan)
    assert "selects_by_differences" in text
    assert compile_source(text, "sm_90", headers(), "gated").binary[:4] == b"\x7fELF"
