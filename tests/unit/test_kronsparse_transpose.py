"""Products over turned rows, and batched products written where their results lie, against sums in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import execute, torch_products, transpose
from kernmantle.structured.mode_product.cost import gradient_seconds, seconds, transposed_seconds
from kernmantle.structured.mode_product.operands import Operands
from kernmantle.structured.mode_product.pack import PackedWeights
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.tiles import as_multiplied, expected_seconds, tiled_seconds
from kernmantle.structured.mode_product.transpose_plan import inner, padded, transpose_plan
from kernmantle.structured.mode_product.vendor_cost import sums_strided
from kernmantle.testing import assert_close
from kernmantle.torch_ops.info import RunInfo
from tests.backend.test_cuda_compile import CARDS

BATCH = 25088
PATTERNS = ((1, 4, 8, 16), (3, 8, 4, 12), (2, 5, 7, 3))


def made(pattern, batch, groups=1, shared=True, last=False):
    a, b, c, d = pattern
    source = torch.Generator().manual_seed(sum(pattern))
    x = torch.randn((groups, batch, a * c * d), generator=source, dtype=torch.float64)
    x = x.mT.contiguous().mT if last else x
    weight = torch.randn((1 if shared else groups, *pattern), generator=source, dtype=torch.float64)
    bias = torch.randn((weight.shape[0], a * b * d), generator=source, dtype=torch.float64)
    return x, weight, bias


def exact(x, weight):
    groups, batch, _ = x.shape
    _, a, b, c, d = weight.shape
    blocks = weight.expand(groups, a, b, c, d)
    value = torch.einsum("gnikl,gijkl->gnijl", x.reshape(groups, batch, a, c, d), blocks)
    return value.reshape(groups, batch, a * b * d)


def transposed_by_torch(source, target, a, high, wide, pads) -> None:
    if pads:
        blocks = source.unflatten(1, (a, high, wide)).mT
        pitch = padded(high, source.element_size())
        target.copy_(torch.nn.functional.pad(blocks, (0, pitch - high)).flatten(1))
    else:
        target.copy_(source.unflatten(1, (a, wide, -1))[..., :high].mT.flatten(1))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_products_over_turned_rows(monkeypatch, pattern) -> None:
    a, b, c, d = pattern
    monkeypatch.setattr(transpose, "transpose_rows", transposed_by_torch)
    monkeypatch.setattr(transpose, "choose_algorithm", lambda *_: "kernel")
    for rows, packed in ((7, None), (3, PackedWeights())):
        monkeypatch.setattr(transpose, "_MOST_BYTES", rows * 8 * a * d * max(b, c))
        x, weight, bias = made(pattern, 7)
        out = torch.full((1, 7, a * b * d), math.nan, dtype=torch.float64)
        info = RunInfo()
        execute.product_by("transposed", Operands(x, weight, bias, "relu", packed=packed), out, info)
        torch.testing.assert_close(out, torch.relu(exact(x, weight) + bias), rtol=1e-12, atol=1e-12)
        assert info.route.startswith("transposed rows: ")
        execute.product_by("transposed", Operands(x, weight, packed=packed), out)
        torch.testing.assert_close(out, exact(x, weight), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_gradients_over_turned_rows(monkeypatch, pattern, dtype) -> None:
    a, b, c, d = pattern
    monkeypatch.setattr(transpose, "transpose_rows", transposed_by_torch)
    source = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(1, 7, a * extent * d, generator=source).to(dtype) for extent in (c, b))
    sides = grad[0].double().view(7, a, b, d), x[0].double().view(7, a, c, d)
    wanted, terms = (torch.einsum("nijl,nikl->ijkl", *own) for own in (sides, [side.abs() for side in sides]))
    for rows in (7, 3):
        size = x.element_size()
        monkeypatch.setattr(transpose, "_MOST_BYTES", rows * size * a * d * (padded(b, size) + padded(c, size)))
        found = transpose.gradient(x, grad.expand_as(grad), pattern, "", execute.gradient)
        assert found.shape == (1, *pattern)
        assert found.is_contiguous()
        assert_close(found[0], wanted, depth=7, magnitude=terms * (7 / rows))
    assert "transposed" in gradient_seconds((1, 128, 128, 32), 4096, "bf16", "cuda")
    assert "transposed" not in gradient_seconds((1, 128, 128, 32), 4096, "bf16", "cuda", True)
    assert "transposed" not in gradient_seconds((32, 128, 128, 1), 4096, "bf16", "cuda")


@pytest.mark.parametrize("pattern", [*PATTERNS, (2, 3, 5, 1)], ids=str)
def test_blocks_of_weights_and_their_gradients_by_the_pass_of_rows(monkeypatch, pattern) -> None:
    a, b, c, d = pattern
    monkeypatch.setattr(transpose, "transpose_rows", transposed_by_torch)
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(2, *pattern, generator=source)
    for own in (weight, weight.mT.contiguous().mT, weight.transpose(2, 3).contiguous().transpose(2, 3)):
        torch.testing.assert_close(transpose.block_matrices(own), torch_products.block_matrices(own), rtol=0, atol=0)
    assert transpose.is_arranged(weight) == transpose.arranges(pattern, 4)
    assert not transpose.is_arranged(weight.movedim(1, 3).contiguous().movedim(3, 1))
    x, grad = (torch.randn(2, 7, a * extent * d, generator=source) for extent in (c, b))
    sides = grad.double().view(2, 7, a, b, d), x.double().view(2, 7, a, c, d)
    wanted, terms = (torch.einsum("gnijl,gnikl->gijkl", *own) for own in (sides, [side.abs() for side in sides]))
    for last in (False, True):
        layouts = [side.mT.contiguous().mT if last else side for side in (x, grad)]
        found = transpose.gradient_by_bmm(*layouts, *pattern)
        assert found.is_contiguous()
        assert_close(found, wanted, depth=7, magnitude=terms)


@pytest.mark.parametrize("pattern", [(2, 5, 7, 3), (3, 4, 6, 2), (1, 3, 4, 5), (4, 2, 3, 4)], ids=str)
def test_gradients_of_weights_are_summed_where_the_batch_is_last(pattern) -> None:
    a, b, c, d = pattern
    source = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(1, a * n * d, 7, generator=source, dtype=torch.float64).mT for n in (c, b))
    out = torch.full((1, a, d, b * c + 3), math.nan, dtype=torch.float64)
    torch_products.add_strided(x, grad, out[..., : b * c].unflatten(3, (b, c)))
    wanted = torch.einsum("gnijl,gnikl->giljk", grad.reshape(1, 7, a, b, d), x.reshape(1, 7, a, c, d))
    torch.testing.assert_close(out[..., : b * c], wanted.flatten(3), rtol=1e-12, atol=1e-12)
    assert out[..., b * c :].isnan().all()
    assert not torch_products.adds_strided(x, grad, pattern)


def test_few_sums_of_many_rows_are_in_place() -> None:
    assert sums_strided((5, 68, 375, 20), 374, 2)
    assert not sums_strided((5, 68, 375, 20), 3, 2)
    assert not sums_strided((1, 68, 375, 20), 374, 2)
    assert not sums_strided((26, 48, 41, 56), 374, 2)
    taken, copies = (
        gradient_seconds(own, 374, "f16", "cuda", True)["bmm"] for own in ((5, 68, 375, 20), (20, 68, 375, 5))
    )
    assert taken == copies


def test_many_weights_are_arranged_by_the_pass_of_rows() -> None:
    assert transpose.arranges((1, 512, 512, 2), 4)
    assert not transpose.arranges((2, 512, 512, 1), 4)
    assert not transpose.arranges((1, 512, 512, 2), 8)
    assert not transpose.arranges((1, 8, 8, 2), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_both_gradients_over_the_same_transposed_rows(monkeypatch, pattern, dtype) -> None:
    a, b, c, d = pattern
    monkeypatch.setattr(transpose, "transpose_rows", transposed_by_torch)
    monkeypatch.setattr(transpose, "choose_algorithm", lambda *_: "kernel")
    source = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(1, 7, a * extent * d, generator=source).to(dtype) for extent in (c, b))
    weight = torch.randn(1, *pattern, generator=source).to(dtype)
    sides = grad[0].double().view(7, a, b, d), x[0].double().view(7, a, c, d), weight[0].double()
    for rows in (7, 3):
        size = x.element_size()
        monkeypatch.setattr(transpose, "_MOST_BYTES", rows * size * a * d * (padded(b, size) + padded(c, size)))
        out = torch.full_like(x, math.nan)
        found = execute.gradients(x, grad, weight, "", out)
        assert found.shape == (1, *pattern)
        assert found.is_contiguous()
        for equation, result, factors, depth in (
            ("nijl,nikl->ijkl", found[0], (0, 1), 7), ("nijl,ijkl->nikl", out.view(7, a, c, d), (0, 2), b),
        ):  # fmt: skip
            own = [sides[place] for place in factors]
            wanted, terms = (torch.einsum(equation, *each) for each in (own, [side.abs() for side in own]))
            assert_close(result, wanted, depth=depth, magnitude=terms * (7 / rows))


@pytest.mark.parametrize("pattern", [(1, 4, 5, 3), (3, 4, 5, 1), (3, 4, 2, 5), (6, 3, 3, 2), (2, 1, 3, 2)], ids=str)
def test_batched_products_where_they_lie(pattern) -> None:
    a, b, _, d = pattern
    for groups, shared, batch, last, given in itertools.product(
        (1, 2), *[(True, False)] * 1, (1, 7), *[(True, False)] * 2
    ):
        if not last and d > 1:
            continue
        x, weight, _ = made(pattern, batch, groups, shared, last)
        blocks = torch_products.block_matrices(weight).expand(groups, a, d, b, -1)
        shape = (groups, a * b * d, batch) if last else (groups, batch, a * b * d)
        out = torch.full(shape, math.nan, dtype=torch.float64)
        out = out.mT if last else out
        found = torch_products._where_they_lie(x, blocks, last, out if given else None)
        torch.testing.assert_close(found, exact(x, weight), rtol=1e-12, atol=1e-12)
        assert not given or found is out


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_blocks_of_transposed_weights_are_transposes_of_what_is_copied(last) -> None:
    x, weight, _ = made((2, 3, 4, 5), 6, last=last)
    transposed = weight.transpose(2, 3).contiguous().transpose(2, 3)
    blocks = torch_products.block_matrices(transposed)
    assert blocks.mT.is_contiguous()
    torch.testing.assert_close(blocks, torch_products.block_matrices(weight), rtol=0, atol=0)
    torch.testing.assert_close(torch_products.by_bmm(x, transposed), exact(x, weight), rtol=1e-12, atol=1e-12)
    where = torch_products._where_they_lie(x, blocks, True, None) if last else torch_products.by_copies(x, blocks)
    torch.testing.assert_close(where, exact(x, weight), rtol=1e-12, atol=1e-12)


def test_what_is_written_there_is_not_copied(monkeypatch) -> None:
    x, weight, bias = made((2, 3, 4, 5), 6, last=True)
    out = torch.empty(1, 30, 6, dtype=torch.float64).mT

    def there(given, factors, last, target):
        return target.copy_(exact(given, weight))

    def by_bmm(given, factors, made_before, target):
        assert made_before is not None
        return there(given, factors, True, target)

    monkeypatch.setattr(execute, "by_bmm", by_bmm)
    found = execute.product_by("bmm", Operands(x, weight, bias, batch_last=True, packed=PackedWeights()), out)
    assert found is out
    torch.testing.assert_close(out, exact(x, weight) + bias, rtol=1e-12, atol=1e-12)


def test_blocks_of_transposed_rows_are_whole_vectors_and_longer_ones_whole_sectors() -> None:
    given = contiguous((2, 64, 32, 16), 100, "f32", True)
    own = inner(given)
    assert own is not None
    assert (own.pattern, own.groups) == ((16, 64, 32, 1), 2)
    for pattern, dtype, wanted in (
        ((2, 63, 30, 17), "f32", (17, 64, 32, 1)), ((2, 64, 36, 16), "f16", (16, 64, 48, 1)),
        ((1, 5, 7, 3), "bf16", (3, 8, 8, 1)),
    ):  # fmt: skip
        own = inner(contiguous(pattern, 100, dtype, True))
        assert own is not None
        assert (own.pattern, own.x_bytes, own.y_run * (4 if dtype == "f32" else 2)) == (wanted, 16, 16)
    assert inner(contiguous((2, 64, 32, 16), 100, "f32", False)) is None
    assert inner(contiguous((2, 64, 32, 1), 100, "f32", True)) is None
    assert inner(contiguous((2, 64, 32, 16), 100, "f64", True)) is None
    assert inner(replace(given, groups=2)) is None
    assert transposed_seconds(contiguous((2, 64, 32, 16), 100, "f32", False), CARDS["sm_90"]) == math.inf


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("a", "high", "l"), [(3, 80, 5), (2, 33, 9), (1, 300, 70), (4, 7, 3), (1, 5, 128), (2, 12, 2)])
def test_every_number_has_a_place_in_the_tiles_of_a_pass(size, a, high, l) -> None:
    """As the kernel walks: vectors of the padded side and words of the other, each once."""
    pitch, vector = padded(high, size), 16 // size
    for pads, in_one_piece in ((True, True), (False, False)):
        plan = transpose_plan("sm_90", size, high, l, pads, in_one_piece)
        assert plan.tile_k % vector == 0
        assert plan.units == 1 or (plan.high == high <= plan.tile_k and plan.tile_l == l)
        assert 4 * plan.shared <= CARDS["sm_90"].shared_per_sm
        down, across = -(-(pitch if pads else high) // plan.tile_k), -(-l // plan.tile_l)
        assert plan.tiles(5 * a, high, pitch) == -(-5 * a // plan.units) * down * across
        assert plan.tile_k * down >= (pitch if pads else high)
        assert plan.tile_l * across >= l


def test_wide_blocks_are_turned_and_narrow_ones_are_not() -> None:
    limits = CARDS["sm_90"]
    for dtype in ("f32", "bf16"):
        wide, narrow = (contiguous(own, BATCH, dtype, True) for own in ((1, 256, 256, 64), (1, 64, 64, 128)))
        assert transposed_seconds(wide, limits, True) < expected_seconds(wide, limits, True)
        assert transposed_seconds(narrow, limits, True) > expected_seconds(narrow, limits, True)


def test_batched_products_of_a_gpu_cost_no_copies_where_they_are_written_in_place() -> None:
    assert 1e6 * seconds((1, 256, 256, 64), BATCH, "bf16", "cuda", True, True)["bmm"] < 700
    many = seconds((32, 256, 256, 32), BATCH, "bf16", "cuda", True, True)["bmm"]
    few = seconds((16, 256, 256, 64), BATCH, "bf16", "cuda", True, True)["bmm"]
    assert many > 1.5 * few


@pytest.mark.parametrize("pattern", [(1, 5, 16, 3), (2, 3, 4, 5), (2, 4, 6, 3)], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_of_one_entry_are_compressed_rows(monkeypatch, pattern, packed) -> None:
    block_sparse = torch.sparse_bsr_tensor

    def as_on_a_gpu(counts, places, values, *rest, **options):
        assert values.shape[-1] > 1, "CUDA multiplies by no blocks of one entry"
        return block_sparse(counts, places, values, *rest, **options)

    monkeypatch.setattr(torch, "sparse_bsr_tensor", as_on_a_gpu)
    x, weight, bias = made(pattern, 7, 1 if packed else 2)
    for _ in range(2):
        found = execute.product_by("bsr", Operands(x, weight, bias, packed=PackedWeights() if packed else None))
        torch.testing.assert_close(found, exact(x, weight) + bias[:, None], rtol=1e-12, atol=1e-12)


def test_odd_batches_of_halves_are_copied_where_many_columns_read_them_again() -> None:
    limits = CARDS["sm_90"]
    for pattern, batch, dtype, copies in (
        ((55, 587, 113, 1), 615, "bf16", True),  # 57 against 68 us
        ((1, 832, 259, 42), 301, "f16", True),  # 60 against 69
        ((8, 59, 19, 23), 10149, "bf16", False), ((1, 832, 259, 42), 304, "f16", False),
        ((1, 832, 259, 42), 301, "f32", False),
    ):  # fmt: skip
        given = contiguous(pattern, batch, dtype, False)
        over, taken = as_multiplied(given, limits, True)
        assert (over.x_bytes > given.x_bytes) == copies
        assert replace(over, x_bytes=given.x_bytes) == given
        assert taken == tiled_seconds(given, limits, True)
    first = contiguous((55, 587, 113, 1), 615, "bf16", True)
    assert as_multiplied(first, limits, True)[0] == first
