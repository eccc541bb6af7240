"""Which addresses, triangles and workspaces cuSOLVER is given, by a stand-in for it on host memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import kernmantle as km
from kernmantle.linalg import cholesky as cholesky_module
from kernmantle.linalg import cusolver, spectrum
from kernmantle.linalg import lu as lu_module
from kernmantle.testing import assert_close

from .cusolver_on_host import Bindings, Streams


@pytest.fixture
def bindings(monkeypatch):
    """cuSOLVER for CPU tensors, also for small matrices."""
    found, streams = Bindings(), Streams()
    found.widths = streams.widths
    library = cusolver.Library(found, streams)
    monkeypatch.setattr(cusolver, "library", lambda tensor: library)
    for module in (cholesky_module, lu_module, spectrum):
        monkeypatch.setattr(module, "SMALL", 0)
    return found


def spd(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (root @ root.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)).to(dtype)


def normal(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def other_triangle_spoilt(a, lower):
    junk = torch.full_like(a, float("nan"))
    return a.tril() + junk.triu(1) if lower else a.triu() + junk.tril(-1)


def layouts(a):
    """The same matrix row-major, column-major, with room between the rows or columns, and with steps."""
    n = a.shape[-1]
    yield a.clone()
    yield a.mT.contiguous().mT
    wide = a.new_zeros(*a.shape[:-1], n + 3)
    wide[..., :n] = a
    yield wide[..., :n]
    yield wide[..., :n].mT.contiguous().mT if n < 0 else torch.cat([a.mT, a.mT], -1)[..., :n].mT
    steps = a.new_zeros(*a.shape[:-1], 2 * n)
    steps[..., ::2] = a
    yield steps[..., ::2]


LAYOUTS = range(5)
IN_PLACE = {0, 1, 2, 3}


def layout(a, which):
    return list(layouts(a))[which]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("turned", [0, 100])
def test_cholesky_in_every_layout(bindings, monkeypatch, dtype, lower, which, overwrite, turned):
    monkeypatch.setattr(cholesky_module, "LARGE", turned)
    exact, b = spd(3, 6, 6), normal(3, 6, 2)
    a = layout(other_triangle_spoilt(exact, lower).to(dtype), which)
    before, place = a.clone(), a.data_ptr()
    found = km.linalg.solve_cholesky(a, b.to(dtype), lower=lower, overwrite_a=overwrite)
    assert_close(found.x, torch.linalg.solve(exact, b), dtype=dtype, depth=36)
    assert not found.info.any()
    assert found.ran == "cuSOLVER Xpotrf"
    if not overwrite:
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(before))
    elif which in IN_PLACE:
        low = which in (1, 3) if not turned else lower
        triangle = a.tril() if low else a.triu()
        product = triangle @ triangle.mT if low else triangle.mT @ triangle
        assert_close(product, exact, dtype=dtype, depth=36)
        assert a.data_ptr() == place


@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("turned", [0, 100])
def test_a_factor_has_zeros_beside_it(bindings, monkeypatch, which, turned):
    monkeypatch.setattr(cholesky_module, "LARGE", turned)
    exact = spd(5, 5)
    a = layout(exact, which)
    found = km.linalg.cholesky_factor(a, lower=False, overwrite_a=True)
    assert found.factor.data_ptr() == a.data_ptr()
    assert_close(found.factor, torch.linalg.cholesky(exact, upper=True), depth=25)
    assert_close(a, found.factor)


@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_lu_in_every_layout(bindings, which, overwrite, transpose):
    exact, b = normal(2, 6, 6, seed=3), normal(2, 6, 3)
    a = layout(exact, which)
    factor = km.linalg.lu_factor(a, overwrite_a=overwrite)
    found = km.linalg.lu_solve(factor, b, transpose=transpose)
    assert_close(found.x, torch.linalg.solve(exact.mT if transpose else exact, b), depth=1000)
    assert_close(km.linalg.solve_lu(layout(exact, which), b).x, torch.linalg.solve(exact, b), depth=1000)
    if not overwrite:
        assert torch.equal(a, exact)
    elif which in IN_PLACE:
        assert factor.factors.data_ptr() == a.data_ptr()
    assert factor.pivots.dtype == torch.int64


@pytest.mark.parametrize(
    "shapes", [((4, 4), (4,)), ((4, 4), (3, 4, 2)), ((3, 4, 4), (4, 2)), ((2, 1, 4, 4), (3, 4, 1))]
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_batches_broadcast(bindings, shapes, overwrite):
    a, b = spd(*shapes[0]), normal(*shapes[1])
    expected = torch.linalg.solve(a, b)
    for solve in (km.linalg.solve_cholesky, km.linalg.solve_lu):
        assert_close(solve(a.clone(), b.clone(), overwrite_a=overwrite).x, expected, depth=100)


def test_an_expanded_matrix_is_factored_once(bindings):
    a, b = spd(4, 4), normal(5, 4, 2)
    found = km.linalg.solve_cholesky(a.expand(5, 4, 4), b)
    assert [name for name, _ in bindings.calls].count("xpotrf") == 1
    assert found.info.shape == (5,)
    assert_close(found.x, torch.linalg.solve(a, b), depth=100)


def test_every_device_and_stream_has_a_handle_of_its_own(bindings):
    library = cusolver.Library(bindings, Streams())
    places = [(torch.device("cuda", device), stream) for device in range(2) for stream in (11, 12)]
    handles = [library._handle(*place) for place in places]
    assert len({id(handle) for handle in handles}) == 4
    assert [library._handle(*place) for place in places] == handles


def test_streams_beyond_a_number_take_the_handle_that_was_used_least_recently(bindings, monkeypatch):
    monkeypatch.setattr(cusolver, "HANDLES", 3)
    streams = Streams()
    library, device = cusolver.Library(bindings, streams), torch.device("cuda", 0)

    def use(stream):
        handle = library._handle(device, stream)
        library._release([handle])
        return handle

    first, second, _ = (use(stream) for stream in (11, 12, 13))
    assert use(11) is first
    assert use(14) is second
    assert use(11) is first
    busy = [library._handle(device, stream) for stream in (11, 13, 14)]
    assert library._handle(device, 15) not in busy
    assert streams.finished == 2
    for stream in range(20, 60):
        use(stream)
    assert bindings.handles == 5
    assert len(library._handles) == 5


def test_a_library_that_is_not_found_is_looked_for_again_and_a_missing_package_is_not(monkeypatch):
    now, fails, asked = [100.0], [RuntimeError("no libcusolver.so")], []

    def importing(name):
        asked.append(name)
        if fails:
            raise fails[0]
        return SimpleNamespace(get_property=lambda which: 0)

    monkeypatch.setattr(cusolver, "import_module", importing)
    monkeypatch.setattr(cusolver, "monotonic", lambda: now[0])
    loader = cusolver._Loader()
    assert "finds no cuSOLVER (RuntimeError: no libcusolver.so)" in loader.load()
    assert loader.load() == loader.load()
    assert len(asked) == 1
    now[0] += cusolver.RETRY
    fails.clear()
    found = loader.load()
    assert isinstance(found, cusolver.Library)
    assert loader.load() is found
    gone = cusolver._Loader()
    fails.append(ModuleNotFoundError("nvmath"))
    assert "not installed" in gone.load()
    now[0] += 1e9
    assert "not installed" in gone.load()
    fails[0] = KeyError("a fault of ours")
    with pytest.raises(KeyError):
        cusolver._Loader().load()


def test_items_go_round_on_eight_streams(bindings):
    km.linalg.solve_cholesky(spd(20, 3, 3), normal(20, 3, 1))
    handles = [handle for name, handle in bindings.calls if name == "xpotrf"]
    assert len(handles) == 20
    assert len(set(handles)) == cusolver.LANES
    assert bindings.handles == cusolver.LANES
    assert max(bindings.widths) == cusolver.LANES


@pytest.mark.parametrize("vector", [True, False])
def test_right_hand_sides_in_place(bindings, vector):
    a, b = spd(5, 5), normal(5) if vector else normal(3, 5).mT
    expected, place = torch.linalg.solve(a, b), b.data_ptr()
    found = km.linalg.solve_cholesky(a, b, overwrite_b=True)
    assert found.x.data_ptr() == place
    assert_close(b, expected, depth=100)
    rows = normal(5, 3)
    found = km.linalg.solve_lu(a, rows, overwrite_b=True)
    assert found.x.data_ptr() == rows.data_ptr()
    assert_close(rows, torch.linalg.solve(a, normal(5, 3)), depth=100)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("tile", [2, 100])
@pytest.mark.parametrize("which", LAYOUTS)
def test_jitter_is_tried_in_place_until_it_suffices(bindings, monkeypatch, lower, tile, which):
    monkeypatch.setattr("kernmantle.linalg.triangles.TILE", tile)
    good, eye = spd(5, 5), torch.eye(5, dtype=torch.float64)
    singular = torch.ones(5, 5, dtype=torch.float64)
    negative = singular - 0.01 * eye
    hopeless = -eye
    exact = torch.stack([good, singular, negative, hopeless])
    b = normal(4, 5, 2)
    a = layout(other_triangle_spoilt(exact, lower), which)
    found = km.linalg.solve_cholesky(a, b, lower=lower, jitter=(1e-3, 0.1), overwrite_a=True, check_errors=False)
    added = torch.tensor([0, 1e-3, 0.1 * 0.99, 0], dtype=torch.float64)
    assert_close(found.jitter, added)
    assert found.info.tolist() == [0, 0, 0, 1]
    assert found.x[3].isnan().all()
    raised = exact[:3] + added[:3, None, None] * eye
    for i, (matrix, side) in enumerate(zip(raised, b, strict=False)):
        assert_close(matrix @ found.x[i], side, magnitude=matrix.abs() @ found.x[i].abs(), depth=25)
    factor = km.linalg.cholesky_factor(exact.clone(), lower=lower, jitter=(1e-3, 0.1), check_errors=False).factor[:3]
    product = factor @ factor.mT if lower else factor.mT @ factor
    assert_close(product, raised, depth=25)


def test_infos_stay_and_spoil_their_items_alone(bindings):
    a = torch.stack([spd(3, 3), -spd(3, 3), torch.diag(torch.tensor([1.0, 1.0, -1.0]).double())])
    found = km.linalg.solve_cholesky(a, normal(3, 3, 2), check_errors=False)
    assert found.info.tolist() == [0, 1, 3]
    assert found.x.isnan().flatten(1).all(1).tolist() == [False, True, True]
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).double()
    found = km.linalg.solve_lu(singular, normal(2), check_errors=False)
    assert found.info.item() == 2
    assert found.x.isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match=r"U\[2, 2\].*info 2"):
        km.linalg.solve_lu(singular, normal(2), check_errors=True)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("small", [0, 100])
def test_pairs_in_every_layout(bindings, monkeypatch, lower, which, batch, small):
    monkeypatch.setattr(spectrum, "SMALL", small)
    exact = normal(*batch, 5, 5)
    exact = exact + exact.mT
    expected = torch.linalg.eigvalsh(exact)
    for overwrite in (True, False):
        a = layout(other_triangle_spoilt(exact, lower), which)
        w, v = found = km.linalg.eigh(a, lower=lower, overwrite_a=overwrite)
        assert_close(w, expected, depth=25)
        assert_close(exact @ v, v * w[..., None, :], depth=100)
        assert found.ran == ("cuSOLVER XsyevBatched" if small and batch else "cuSOLVER Xsyevd")
        assert_close(km.linalg.eigh(layout(exact, which), lower=lower, eigvals_only=True), expected, depth=25)


@pytest.mark.parametrize("which", LAYOUTS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_some_pairs_do_not_keep_the_matrix(bindings, which, batch):
    exact = normal(*batch, 7, 7)
    exact = exact + exact.mT
    a = layout(exact, which)
    w, v = found = km.linalg.eigh(a, subset_by_index=(2, 4), overwrite_a=True)
    assert found.ran == "cuSOLVER Xsyevdx"
    assert_close(w, torch.linalg.eigvalsh(exact)[..., 2:5], depth=49)
    assert_close(exact @ v, v * w[..., None, :], depth=100)
    assert v.untyped_storage().nbytes() == v.nbytes
    assert w.untyped_storage().nbytes() == w.nbytes


def test_a_graph_captures_what_does_not_wait(bindings, monkeypatch):
    monkeypatch.setattr(cusolver, "capturing", lambda tensor: True)
    monkeypatch.setattr(spectrum, "CAPTURED", 7)
    a = normal(7, 7)
    a = a + a.mT
    w, v = found = km.linalg.eigh(a)
    assert found.ran == "cuSOLVER XsyevBatched"
    assert_close(a @ v, v * w, depth=100)
    batch = normal(2, 3, 5, 5)
    batch = batch + batch.mT
    bindings.calls.clear()
    assert_close(km.linalg.eigh(batch, eigvals_only=True), torch.linalg.eigvalsh(batch), depth=25)
    assert [name for name, _ in bindings.calls] == ["xsyev_batched"] * 6
    part = km.linalg.eigh(a, subset_by_index=(2, 4))
    assert_close(part.w, w[2:5], depth=49)
    assert part.v.untyped_storage().nbytes() == part.v.nbytes
    large = normal(8, 8)
    for call in (
        lambda: km.linalg.eigh(large + large.mT),
        lambda: km.linalg.eigh(a, subset_by_value=(0.0, 1.0)),
        lambda: km.linalg.eigh(a, subset_by_index=(5, 6), method="iterative"),
    ):
        with pytest.raises(km.errors.BackendError, match="waits for the device"):
            call()


def test_pairs_by_value(bindings):
    a = torch.diag(torch.arange(6.0)).double()
    w, v = km.linalg.eigh(a, subset_by_value=(1.0, 4.0))
    assert_close(w, torch.tensor([2.0, 3.0, 4.0]).double())
    assert v.shape == (6, 3)
    with pytest.raises(km.errors.ShapeError, match="loop over it"):
        km.linalg.eigh(a.expand(2, 6, 6), subset_by_value=(1.0, 4.0))


def test_large_batches_run_in_chunks(bindings):
    a = normal(7, 4, 4)
    a = a + a.mT
    flat = a.clone()
    w, info = cusolver.library(a).syev_batched(flat, True, True, limit=3 * 16)
    assert [name for name, _ in bindings.calls] == ["xsyev_batched"] * 3
    assert_close(w, torch.linalg.eigvalsh(a), depth=16)
    assert info.tolist() == [0] * 7


def test_gradients_take_the_same_factors(bindings):
    root, b = normal(4, 4).requires_grad_(), normal(4, 2).requires_grad_()
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda r, b: km.linalg.solve_cholesky(r @ r.mT + eye, b).x, (root, b))
    assert torch.autograd.gradcheck(lambda r, b: km.linalg.solve_lu(r, b).x, (root, b))
    assert {name for name, _ in bindings.calls} == {"xpotrf", "xpotrs", "xgetrf", "xgetrs"}


def test_an_error_of_the_library_names_the_routine(bindings, monkeypatch):
    def fail(*_):
        raise RuntimeError("STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(bindings, "xpotrf", fail)
    with pytest.raises(km.errors.LaunchError, match=r"Xpotrf.*STATUS"):
        km.linalg.solve_cholesky(spd(3, 3), normal(3))
