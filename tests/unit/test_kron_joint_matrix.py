"""Factors that a pass multiplies out and hands to the vendor's product as one matrix; the same calls run on GPUs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.cost import goes_by_rows, matmul_seconds, takes_copy
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass
from kernmantle.structured.kron.run import Dense, prepare
from kernmantle.structured.kron.tensor_plan import Tensor
from kernmantle.structured.kron.torch_products import multiplied_out
from kernmantle.testing import assert_close
from tests.backend.test_cuda_compile import CARDS


def _no_kernel(*_: Any) -> Any:
    pytest.fail("no kernel of our own is in the pass")


@pytest.mark.parametrize("is_transposed", [False, True])
def test_factors_multiplied_out_lie_row_by_row(is_transposed: bool) -> None:
    """Products of transposed matrices would lie transposed, and are read by their rows."""
    drawn = [torch.randn(3, 2, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]
    factors = [factor.mT.contiguous().mT for factor in drawn] if is_transposed else drawn
    found = multiplied_out(factors)
    assert found.is_contiguous()
    assert_close(found, torch.kron(*drawn), depth=1)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("right", [1, 7])
def test_a_joint_matrix_multiplies(right: int, is_transposed: bool) -> None:
    sizes = [(6, 5), (4, 7), (3, 3)]
    modes = tuple(Mode(columns, rows, place) for place, (rows, columns) in enumerate(sizes))
    joint = Pass("matmul", 0, 3, (Mode(5 * 7 * 3, 6 * 4 * 3, 0),), ((0, 1, 2),))
    factors = [torch.randn(rows, columns, dtype=torch.float64) for rows, columns in sizes]
    if is_transposed:
        factors = [factor.mT.contiguous().mT for factor in factors]
    x = torch.randn(9, 5 * 7 * 3, right, dtype=torch.float64)
    out = torch.empty(9, 6 * 4 * 3, right, dtype=torch.float64)
    ready = prepare([joint], modes, arranged(x, factors, None, out), _no_kernel)
    assert ready is not None
    ready(x, factors, None, out, (1.0, 0.0))
    matrix = torch.kron(torch.kron(factors[0], factors[1]), factors[2])
    assert_close(out, matrix @ x, depth=5 * 7 * 3, magnitude=matrix.abs() @ x.abs())
    # A bound call hands over what its caller holds, which may be the transpose at the same address.
    out.zero_()
    ready(x, [factor.mT for factor in factors], None, out, (1.0, 0.0))
    assert_close(out, matrix @ x, depth=5 * 7 * 3, magnitude=matrix.abs() @ x.abs())


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "strides"), [([(3, 4), (5, 2)], (8, 1)), ([(4, 3), (2, 5)], (1, 8)), ([(3, 3), (5, 5)], None)]
)
def test_a_joint_matrix_lies_in_whole_vectors(sizes, strides, is_transposed):
    """Rows of 8 columns follow each other, or columns of 8 rows; where neither is whole, as those of the factors do."""
    modes = tuple(Mode(columns, rows, place) for place, (rows, columns) in enumerate(sizes))
    whole = Mode(math.prod(columns for _, columns in sizes), math.prod(rows for rows, _ in sizes), 0)
    factors = [torch.randn(rows, columns, dtype=torch.float64) for rows, columns in sizes]
    if is_transposed:
        factors = [factor.mT.contiguous().mT for factor in factors]
    x, out = (torch.empty(9, side, 2, dtype=torch.float64) for side in (whole.columns, whole.rows))
    arrays = arranged(x, factors, None, out)
    ready = prepare([Pass("matmul", 0, 2, (whole,), ((0, 1),))], modes, arrays, _no_kernel)
    assert ready is not None
    (stage,) = ready.stages
    assert isinstance(stage.start, Dense)
    expected = strides or ((1, whole.rows) if is_transposed else (whole.columns, 1))
    assert stage.start.factor[1][-2:] == expected
    x.normal_()
    ready(x, factors, None, out, (1.0, 0.0))
    matrix = torch.kron(*factors)
    assert_close(out, matrix @ x, depth=whole.columns, magnitude=matrix.abs() @ x.abs())


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("right", [2, 3, 7])
def test_matrices_with_a_few_columns_multiply_by_rows(right: int, is_transposed: bool) -> None:
    factor = torch.randn(7, 5, dtype=torch.float64)
    factor = factor.mT.contiguous().mT if is_transposed else factor
    x, out = torch.randn(9, 5, right, dtype=torch.float64), torch.full((9, 7, right), torch.nan, dtype=torch.float64)
    layouts = [(tuple(own.shape), own.stride()) for own in (x, factor.expand(9, 7, 5), out)]
    Dense(*layouts, torch.float64, by_rows=True)(x, factor, None, out, (1.0, 0.0))
    assert_close(out, factor @ x, depth=5, magnitude=factor.abs() @ x.abs())


@pytest.mark.parametrize("y", [None, torch.randn(9, 7, dtype=torch.float64)], ids=["", "added"])
def test_a_copied_factor_multiplies(y: torch.Tensor | None) -> None:
    factor, x = torch.randn(7, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    out = torch.full((9, 7), torch.nan, dtype=torch.float64)
    launch = Dense(*((tuple(own.shape), own.stride()) for own in (x, factor.mT, out)), torch.float64, copied=True)
    exact, terms = x @ factor.mT, x.abs() @ factor.mT.abs()
    if y is None:
        assert_close(launch.product(x, factor), exact, depth=5, magnitude=terms)
    launch(x, factor, y, out, (1.0, 0.5))
    assert_close(out, exact if y is None else exact + 0.5 * y, depth=6, magnitude=terms + (0 if y is None else y.abs()))


def test_transposed_factors_of_few_rows_of_float32_are_copied() -> None:
    for side, count in ((169, 56), (143, 28), (129, 40)):
        assert takes_copy(Mode(side, side, 0), count, "f32")
        assert not takes_copy(Mode(side, side, 0), count, "f16")
    for side, count in ((100, 27), (201, 56), (169, 200), (169, 8)):
        assert not takes_copy(Mode(side, side, 0), count, "f32")


def test_few_columns_behind_large_factors_go_by_rows() -> None:
    for mode, count, right, stored in ((173, 96600, 8, "f32"), (239, 280302, 2, "bf16"), (216, 9000, 7, "f16")):
        assert goes_by_rows(Mode(mode, mode, 0), count, right, stored)
    for mode, count, right, stored in ((173, 96600, 1, "f32"), (173, 600, 1384, "f32"), (20, 4, 6, "f32")):
        assert not goes_by_rows(Mode(mode, mode, 0), count, right, stored)


def test_halves_beside_two_columns_take_no_more_than_their_copies() -> None:
    """As they were read, 137 x 93 x 22 matrices of 239 rows and 2 columns took 59 ms on an H100."""
    limits = CARDS["sm_90"]
    seconds = matmul_seconds(Mode(239, 239, 0), 137 * 93 * 22, 2, "bf16", limits)
    moved = 2 * 2.0 * 137 * 93 * 22 * 239 * 2
    assert moved / limits.generation.memory_rate < seconds < 2e-3


def test_halves_that_are_copied_one_by_one_cost_what_they_take() -> None:
    """On an H200 109 x 63 in float16 takes 349 us, 56 x 42 with wider copies of 0.63 times as many halves 149."""

    def seconds(extent: int, stored: str) -> float:
        modes, tensor = (Mode(extent, extent, 0), Mode(extent, extent, 1)), Tensor("f16", 3 if stored == "f32" else 1)
        return plan(modes, 1, stored, CARDS["sm_90"], True, tensor, 4096, ("mma",)).seconds

    assert 1.05 * seconds(64, "f16") < seconds(63, "f16") < 1.8 * seconds(64, "f16")
    assert seconds(62, "f16") < 1.8 * seconds(64, "f16")
    assert seconds(63, "f32") < 2.2 * seconds(64, "f32")


def test_a_wide_matrix_of_few_entries_is_multiplied_out() -> None:
    """4 x 237 beside 2 x 5 and 2 x 3 takes the vendor's product of the first 227 us, torch.kron and one product 146."""
    modes = tuple(Mode(p, q, place) for place, (p, q) in enumerate([(4, 237), (2, 5), (2, 3)]))
    found = plan(modes, 1, "f32", CARDS["sm_90"], True, Tensor("f16", 3, has_wgmma=True), 18346)
    assert [str(own) for own in found.passes] == ["matmul 3555x16"]
