"""xrfm, unmodified, on kermac's names: the same model as with its own kernels."""

import pytest
import torch

from kernmantle.compat import install

install("kermac")
xrfm = pytest.importorskip("xrfm", reason="xrfm needs Python 3.11")
kernels = pytest.importorskip("xrfm.rfm_src.kernels")

PAIRS = {
    "product": lambda form: getattr(kernels, f"{form}ProductLaplaceKernel")(bandwidth=4.0, exponent=1.2),
    "lpq": lambda form: getattr(kernels, f"{form}LpqLaplaceKernel")(bandwidth=4.0, p=1.5, q=0.9),
    "sum of powers": lambda form: getattr(kernels, f"{form}SumPowerLaplaceKernel")(
        bandwidth=2.0, exponent=1.1, const_mix=0.1
    ),
}


def table(rows, device):
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(0))
    return x.to(device), (torch.sin(2 * x[:, :1]) + x[:, 1:2].abs()).to(device)


@pytest.mark.parametrize("name", PAIRS)
def test_predictions_are_those_of_its_own_kernels(name, device):
    (x, y), held = table(160, device), table(200, device)[0][160:]
    predicted = []
    for form in ("", "Kermac"):
        model = xrfm.RFM(PAIRS[name](form), iters=2, device=str(x.device), verbose=False, tuning_metric="mse")
        model.fit((x[:120], y[:120]), (x[120:], y[120:]), reg=1e-2)
        predicted.append(torch.as_tensor(model.predict(held)))
    torch.testing.assert_close(predicted[1], predicted[0], rtol=1e-3, atol=1e-3)
    assert predicted[0].std() > 0.1


def test_a_gpu_takes_the_kernels_of_kermac(device):
    model = xrfm.RFM("l1", iters=1, device=str(device), verbose=False)
    assert isinstance(model.kernel_obj, kernels.KermacProductLaplaceKernel) == (str(device) != "cpu")
