"""What kron_matmul refuses, and how it says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernmantle as km

X, F, G = torch.ones(3, 6), torch.ones(2, 4), torch.ones(3, 3)


@pytest.mark.parametrize(
    ("error", "match", "arguments", "options"),
    [
        ("ShapeError", r"6 columns, but 2x4 ⊗ 2x4 has 2 \* 2 = 4 rows", (X, [F, F]), {}),
        ("ShapeError", r"3 rows, but 3x3 ⊗ 4 has 3 \* 4 = 12 columns", (X, [G, 4]), {"side": "left"}),
        ("ShapeError", r"factors\[1\] has shape \(3,\)", (X, [F, torch.ones(3)]), {}),
        ("ShapeError", "factors is empty", (X, []), {}),
        ("ShapeError", "list of matrices", (X, F), {}),
        ("ShapeError", "not negative", (X, [F, -3]), {}),
        ("ShapeError", "x is a number", (torch.tensor(1.0), [F]), {}),
        (
            "ShapeError", r"batch axes of x \(2, 3, 6\) and the factors \(5, 2, 4\), \(3, 3\) do not broadcast",
            (torch.ones(2, 3, 6), [torch.ones(5, 2, 4), G]), {},
        ),
        *(
            ("ShapeError", rf"y of shape {result[0]} does not broadcast to the result {result[1]}", arguments, options)
            for result, arguments, options in (
                ((r"\(3, 5\)", r"\(3, 12\)"), (X, [F, G]), {"beta": 1, "y": torch.ones(3, 5)}),
                ((r"\(2, 12\)", r"\(3, 12\)"), (X, [F, G]), {"y": torch.ones(2, 12)}),
                ((r"\(5,\)", r"\(12,\)"), (X[0], [F, G]), {"y": torch.ones(5)}),
                ((r"\(6, 2\)", r"\(6, 1\)"), (torch.ones(12, 1), [F, G]), {"side": "left", "y": torch.ones(6, 2)}),
            )
        ),
        ("ShapeError", r"2\*\*63", (torch.ones(1).expand(1 << 32, 1), [torch.ones(1, 1).expand(1, 1 << 32)]), {}),
        ("DtypeError", r"factors\[0\] is float64", (X, [F.double(), G]), {}),
        ("DtypeError", r"y is float64", (X, [F, G]), {"beta": 1, "y": torch.ones(3, 12).double()}),
        ("DtypeError", "bool", (X.bool(), [F.bool(), G.bool()]), {}),
        ("DtypeError", r"factors\[1\]", (X, [F, "G"]), {}),
        ("DtypeError", r"factors\[0\] is True", (X, [True, F, G]), {}),
        ("ParameterError", "fuse must be True or False", (X, [F, G]), {"fuse": "no"}),
        ("DtypeError", "complex", (X, [F, G]), {"alpha": 1j}),
        ("DtypeError", "alpha is 0.5", (X.long(), [F.long(), G.long()]), {"alpha": 0.5}),
        ("DeviceError", r"factors\[1\] is on meta", (X, [F, G.to("meta")]), {}),
        ("ParameterError", "no y", (X, [F, G]), {"beta": 2}),
        ("ParameterError", "side", (X, [F, G]), {"side": "both"}),
        ("ParameterError", "precision", (X, [F, G]), {"precision": "half"}),
        ("ParameterError", "alpha", (X, [F, G]), {"alpha": "2"}),
        ("OutputError", r"shape \(3, 6\), the result has \(3, 12\)", (X, [F, G]), {"out": torch.empty(3, 6)}),
        ("OutputError", "dtype", (X, [F, G]), {"out": torch.empty(3, 12).double()}),
        ("OutputError", "overlaps x", (X, [G.mT, 2]), {"out": X}),
        ("OutputError", "overlaps x or a factor", (X, [G, 2]), {"out": G.repeat(2, 2)[:3].as_strided((3, 6), (6, 1))}),
        ("OutputError", "share memory", (X, [G, 2]), {"out": torch.empty(1, 6).expand(3, 6)}),
    ],
)  # fmt: skip
def test_refused(error, match, arguments, options):
    if "overlaps x or a factor" in match:
        memory = torch.ones(18)
        arguments, options = (X, [memory[:9].reshape(3, 3), 2]), {"out": memory.reshape(3, 6)}
    with pytest.raises(getattr(km.errors, error), match=match):
        km.kron_matmul(*arguments, **options)


def test_nested_lists_are_factors():
    x, factor = np.arange(12.0).reshape(2, 6), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    expected = x @ np.kron(factor, np.eye(3))
    for found in (km.kron_matmul(x.tolist(), [factor, 3]), km.kron_matmul(x, [np.array(factor), np.eye(3).tolist()])):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.eye(6) @ km.KroneckerProduct([factor, 3]), np.kron(factor, np.eye(3)))


def test_out_beside_y_is_refused():
    memory = torch.ones(48)
    with pytest.raises(km.errors.OutputError, match="overlaps y"):
        km.kron_matmul(X, [F, G], beta=1, y=memory[:36].reshape(3, 12), out=memory[12:].reshape(3, 12))


def test_gradients_are_not_lost_to_numpy():
    with pytest.raises(km.errors.GradientError, match=r"factors\[0\]"):
        km.kron_matmul(np.ones((3, 2)), [torch.ones(2, 2, dtype=torch.float64, requires_grad=True)])


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        ("ShapeError", r"w2 is a pair of shapes \(3, 2\) and \(3, 3\)", {"w2": (torch.ones(3, 2), torch.ones(3, 3))}),
        ("DtypeError", "w2 is a pair of float32", {"w2": (torch.ones(3, 2), torch.ones(2, 3).double())}),
        ("ParameterError", "base must be a layer, .* not ndarray", {"base": np.ones((3, 6))}),
        ("ParameterError", "base gives NoneType", {"base": lambda _: None}),
        ("DtypeError", "base gives float64, but x is float32", {"base": torch.ones(3, 6).double()}),
        ("ParameterError", "scale must be a number", {"scale": None}),
        ("DtypeError", "but w1 is float64", {"w1": torch.ones(2, 2).double()}),
        ("DeviceError", "but w2 is on meta", {"w2": torch.ones(3, 3, device="meta")}),
        (
            "DeviceError",
            r"w1\[0\] is on cpu but w1\[1\] is on meta",
            {"w1": (torch.ones(2, 1), torch.ones(1, 2, device="meta"))},
        ),
        ("DeviceError", "but base is on meta", {"base": torch.ones(3, 6, device="meta")}),
        ("DtypeError", "scale is the complex number", {"scale": 1j}),
        ("ShapeError", r"pass w1\.mT and w2\.mT", {"w1": torch.ones(3, 2), "w2": torch.ones(2, 1)}),
    ],
)
def test_mistaken_arguments_of_linear_are_named(error, match, options):
    with pytest.raises(getattr(km.errors, error), match=match):
        km.kron_linear(X, **{"w1": torch.ones(2, 2), "w2": torch.ones(3, 3), **options})


def test_factors_may_offer_dlpack_alone():
    class Offered:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**{name: value for name, value in options.items() if value is not None})

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    assert torch.equal(km.kron_matmul(X, [Offered(F), G]), km.kron_matmul(X, [F, G]))


def test_workspaces_of_more_than_all_memory_are_refused():
    with pytest.raises(km.errors.ShapeError, match=r"2\*\*63"):
        km.kron_workspace((1 << 50, 1 << 20), [(1 << 10, 1 << 10)] * 2)
    with pytest.raises(km.errors.DtypeError, match=r"factors\[0\] is True"):
        km.kron_workspace((4, 6), [True, (6, 6)])
