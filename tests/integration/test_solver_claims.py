"""What solvers say of their results is so: converged, residuals, errors and infos against float64 oracles."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import kernmantle as km
from kernmantle.testing import assert_close


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_spectrum(values, seed=0):
    basis = torch.linalg.qr(normal(len(values), len(values), seed=seed)).Q
    return (basis * torch.as_tensor(values, dtype=torch.float64)) @ basis.mT


@pytest.mark.parametrize("n", [40, 100, 300])
@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("vectors", [True, False])
def test_as_many_pairs_of_clustered_matrices_as_were_asked_for(n, count, vectors):
    q = torch.linalg.qr(normal(n, n)).Q
    a = (q @ q.mT).float()
    for index in ((n - count, n - 1), (0, count - 1)):
        expected = scipy.linalg.eigh(a.double().numpy(), eigvals_only=True)[index[0] : index[1] + 1]
        found = km.linalg.eigh(a, subset_by_index=index, eigvals_only=not vectors)
        w = found.w if vectors else found
        assert_close(w, expected, dtype=torch.float32, depth=n)
        if vectors:
            assert found.info == 0
            assert_close(found.v.double().mT @ found.v.double(), torch.eye(count), dtype=torch.float32, depth=n**2)
            assert_close(a.double() @ found.v.double(), found.v * w, dtype=torch.float32, depth=n**2, magnitude=1)


def test_batches_of_clustered_and_other_matrices():
    q = torch.linalg.qr(normal(200, 200)).Q
    a = torch.stack([(q @ q.mT).float(), torch.diag(normal(200)).float(), ((q * normal(200)) @ q.mT).float()])
    found = km.linalg.eigh(a, subset_by_index=(195, 199))
    assert found.info.tolist() == [0, 0, 0]
    expected = np.stack([scipy.linalg.eigh(item.double().numpy(), eigvals_only=True)[195:] for item in a])
    assert_close(found.w, expected, dtype=torch.float32, depth=200**2)


def test_what_does_not_converge_in_lapack_is_told_by_item(monkeypatch):
    """Of a batch the others are what they are alone."""
    a = torch.stack([with_spectrum(range(5)), 1e3 * with_spectrum(range(5))])
    plain = torch.linalg.eigh

    def failing(matrix, *rest):
        if matrix.abs().max() > 100:
            raise torch.linalg.LinAlgError("did not converge")
        return plain(matrix, *rest)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    found = km.linalg.eigh(a, check_errors=False)
    assert found.info.tolist() == [0, 1]
    assert_close(found.w[0], torch.arange(5.0), depth=25, magnitude=4)
    assert found.v[1].isnan().all()
    with pytest.raises(km.errors.LinearAlgebraError, match="item 1"):
        km.linalg.eigh(a, check_errors=True)


@pytest.mark.parametrize(
    ("dtype", "exponents"), [(torch.float32, (-60, -80, -100, 60, 100)), (torch.float64, (-400, -530, -900, 600, 900))]
)
@pytest.mark.parametrize("largest", [True, False])
def test_iterations_for_spectra_at_any_scale(dtype, exponents, largest):
    """A power of two changes no digit of what is found."""
    n, count = 300, 5
    a = with_spectrum(torch.cat([torch.linspace(-3, -2, 8), torch.linspace(0, 1, n - 16), torch.linspace(2, 3, 8)]))
    index = (n - count, n - 1) if largest else (0, count - 1)
    expected = torch.linalg.eigvalsh(a)[index[0] : index[1] + 1]
    plain = km.linalg.eigh(a.to(dtype), subset_by_index=index, method="iterative", tolerance=1e-5)
    assert "Krylov" in plain.ran
    assert_close(plain.w, expected, dtype=dtype, depth=n**2, magnitude=3) if dtype == torch.float32 else None
    for e in exponents:
        scaled = a.to(dtype) * 2.0**e
        found = km.linalg.eigh(scaled, subset_by_index=index, method="iterative", tolerance=1e-5)
        assert torch.equal(found.w.double(), plain.w.double() * 2.0**e)
        assert torch.equal(found.residual, plain.residual)
