"""Arrays of any library in, the same kind out, on the same memory; everything else one clear error."""

import sys
import types
import warnings

import numpy as np
import pytest
import torch

from kernmantle.arrays import check_same_device, check_same_dtype, is_numpy_like, promoted, unwrap, unwrap_out
from kernmantle.errors import DeviceError, DtypeError, GradientError, OutputError

from ..arrays import Foreign


class ForeignStandard(Foreign):
    """The same, with the array API standard's way to its library."""

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=lambda x: ForeignStandard(np.from_dlpack(x)))


@pytest.fixture
def library(monkeypatch):
    """The library of Foreign, as CuPy is found: by the module of the class."""
    module = types.ModuleType("foreign")
    module.from_dlpack = lambda x: Foreign(np.from_dlpack(x))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foreign", module)
    monkeypatch.setattr(Foreign, "__module__", "foreign.core")
    return module


def test_tensors_pass_untouched():
    x, y = torch.randn(3, requires_grad=True), torch.nn.Parameter(torch.randn(3))
    tensors, wrap = unwrap(x, y)
    assert tensors[0] is x
    assert tensors[1] is y
    assert wrap(x) is x


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64"]
)
def test_numpy_shares_memory_both_ways_and_keeps_its_dtype(dtype):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    (tensor,), wrap = unwrap(x)
    tensor[0, 0] = 1
    assert x[0, 0] == 1
    back = wrap(tensor)
    assert type(back) is np.ndarray
    assert back.dtype == x.dtype
    assert np.shares_memory(back, x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2, 1:],
        lambda x: x.T,
        lambda x: x[:, :0],
        lambda x: x[0, 0, None],
        lambda x: np.broadcast_to(x[0], (5, 6)),
        lambda x: x[::-1, ::-2],
        lambda x: x.view([("a", "f8"), ("b", "f4"), ("c", "f4")])["b"],
    ],
    ids=["strided", "transposed", "empty", "single", "expanded", "negative", "field"],
)
def test_every_numpy_view(view):
    x = view(np.arange(24.0).reshape(4, 6))
    (tensor,), _ = unwrap(x)
    assert tuple(tensor.shape) == x.shape
    np.testing.assert_array_equal(tensor.numpy(), x)


def test_numpy_scalars_and_zero_dimensions():
    (a, b), wrap = unwrap(np.float32(2.5), np.array(3.0))
    assert (a.dtype, a.item(), b.item(), a.shape) == (torch.float32, 2.5, 3.0, ())
    assert wrap(torch.tensor(1.0)).shape == ()


def test_read_only_numpy_shares_memory_without_a_warning():
    x = np.arange(6.0).reshape(2, 3)
    x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tensor,), _ = unwrap(x)
    assert tensor.data_ptr() == x.ctypes.data
    assert not x.flags.writeable
    del x
    assert tensor.sum() == 15.0


def test_memory_map(tmp_path):
    np.arange(6.0).tofile(tmp_path / "x")
    (tensor,), wrap = unwrap(np.memmap(tmp_path / "x", "f8", "r"))
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
    assert type(wrap(tensor)) is np.ndarray


def test_wrap_goes_through_tuples_and_none():
    _, wrap = unwrap(np.zeros(2))
    values, nothing, [index] = wrap((torch.ones(2), None, [torch.tensor([1])]))
    assert (type(values), nothing, index.dtype) == (np.ndarray, None, np.dtype("int64"))


def test_the_first_input_decides():
    assert type(unwrap(np.zeros(2), torch.zeros(2))[1](torch.zeros(2))) is np.ndarray
    assert type(unwrap(torch.zeros(2), np.zeros(2))[1](torch.zeros(2))) is torch.Tensor


def test_a_gradient_is_not_lost_in_silence():
    with pytest.raises(GradientError, match=r"x is a ndarray.*lose the gradient of y"):
        unwrap(np.zeros(2), torch.zeros(2, requires_grad=True), names=["x", "y"])


def test_dlpack_through_the_library_of_the_class(library):
    x = np.arange(3.0)
    (tensor,), wrap = unwrap(Foreign(x))
    tensor[0] = 7
    assert x[0] == 7
    back = wrap(tensor)
    assert type(back) is Foreign
    assert np.shares_memory(back.array, x)


def test_dlpack_through_the_array_standard():
    (tensor,), wrap = unwrap(ForeignStandard(np.arange(3.0)))
    assert type(wrap(tensor * 2)) is ForeignStandard
    assert wrap(tensor * 2).array.tolist() == [0, 2, 4]


def test_dlpack_without_a_way_back():
    with pytest.raises(DtypeError, match=r"x is a .*Foreign, whose library cannot take a result back"):
        unwrap(Foreign(np.zeros(2)), names=["x"])
    assert unwrap(torch.zeros(2), Foreign(np.zeros(2)))[0][1].shape == (2,)


def test_dlpack_that_fails():
    class Broken(ForeignStandard):
        def __dlpack__(self, **options):
            raise BufferError("not today")

    with pytest.raises(DtypeError, match=r"b is a .*Broken that torch cannot share: not today"):
        unwrap(torch.zeros(2), Broken(np.zeros(2)), names=["a", "b"])


class Frame:
    """A table of a library that converts to numpy, as those of pandas and polars do."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.array(self.values)


@pytest.mark.parametrize("value", [[[1.0, 2.0], [3.0, 4.0]], ((1.0, 2.0), (3.0, 4.0)), Frame([[1.0, 2.0], [3.0, 4.0]])])
def test_lists_and_frames_are_numpy_arrays(value):
    (tensor, other), wrap = unwrap(value, torch.zeros(1))
    assert tensor.dtype == torch.float64
    assert tensor.tolist() == [[1, 2], [3, 4]]
    assert isinstance(wrap(tensor), np.ndarray)
    assert is_numpy_like(value)
    assert not is_numpy_like(other)


def test_promotion_is_to_the_widest():
    mixed = {"a": torch.zeros(1, dtype=torch.float16), "b": torch.zeros(1), "c": torch.zeros(1, dtype=torch.float64)}
    assert {tensor.dtype for tensor in promoted(mixed).values()} == {torch.float64}
    same = {"a": torch.zeros(1), "b": torch.zeros(1)}
    assert promoted(same)["a"] is same["a"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, [2.0]], "y is a list that cannot be converted to an array"),
        ([torch.zeros(2), torch.zeros(2)], "y is a list of tensors; join them with torch.stack"),
        ("text", "y must be a torch tensor.*not str"),
        (None, "y must be a torch tensor.*not NoneType"),
        (3.0, "y must be a torch tensor.*not float"),
        (Frame(["a"]), "y is a numpy array of <U1"),
        (np.array(["a"]), "y is a numpy array of <U1"),
        (np.array([None]), "y is a numpy array of object"),
        (np.array(["2020-01-01"], "M8[D]"), "y is a numpy array of datetime64"),
        (np.arange(3.0).astype(">f8"), r"y is a numpy array in foreign byte order \(>f8\).*newbyteorder"),
        (np.zeros(2, np.longdouble), "y is a numpy array of .*, which torch does not have"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "y is a masked array"),
        (torch.eye(2).to_sparse(), r"y has layout torch.sparse_coo.*to_dense"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array_is_named(value, message):
    with pytest.raises(DtypeError, match=message):
        unwrap(torch.zeros(2), value, names=["x", "y"])


def test_arguments_without_names_are_counted():
    with pytest.raises(DtypeError, match="argument 2 must be"):
        unwrap(np.zeros(2), "text")


def test_foreign_byte_order_advice_works():
    x = np.arange(3.0).astype(">f8")
    (tensor,), _ = unwrap(x.astype(x.dtype.newbyteorder("=")))
    assert tensor.tolist() == [0, 1, 2]


def test_out_is_written_in_place(library):
    tensor, array, view = torch.zeros(3), np.zeros(3, "f4"), np.zeros((3, 2))[:, 0]
    assert unwrap_out(tensor) is tensor
    unwrap_out(array)[:] = 5
    unwrap_out(view)[:] = 5
    assert array.tolist() == view.tolist() == [5, 5, 5]


def test_out_on_a_device_of_another_library():
    class OnDevice(Foreign):
        __cuda_array_interface__ = {"data": (0, False)}  # noqa: RUF012

    array = np.zeros(3)
    unwrap_out(OnDevice(array))[:] = 5
    assert array.tolist() == [5, 5, 5]
    OnDevice.__cuda_array_interface__ = {"data": (0, True)}
    with pytest.raises(OutputError, match="out must be a writable"):
        unwrap_out(OnDevice(array))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.broadcast_to(np.zeros(1), (3,)), "result is a read-only numpy array"),
        (np.zeros(3)[::-1], r"result is a numpy view with strides \(-8,\)"),
        ([0.0], "result must be a writable torch tensor, numpy array or CUDA array, not list"),
        (Foreign(np.zeros(3)), "result must be a writable .*Foreign"),
    ],
    ids=["read-only", "negative", "list", "foreign"],
)
def test_out_that_cannot_be_written(out, message):
    with pytest.raises(OutputError, match=message):
        unwrap_out(out, "result")


def test_arrays_of_an_immutable_library_are_no_out(monkeypatch):
    monkeypatch.setattr(Foreign, "__module__", "jaxlib._jax")
    with pytest.raises(OutputError, match="cannot be written to"):
        unwrap_out(Foreign(np.zeros(3)))


def test_mixed_devices_and_dtypes_name_both():
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    names = ["x", "w", "y"]
    assert check_same_device([here, here], names[:2]) == torch.device("cpu")
    with pytest.raises(DeviceError, match="x is on cpu but y is on meta"):
        check_same_device([here, here, there], names)
    assert check_same_dtype([here, here], names[:2]) is torch.float32
    with pytest.raises(DtypeError, match="x is float32 but y is float64"):
        check_same_dtype([here, here, here.double()], names)


@pytest.mark.cuda
def test_cuda_arrays_of_other_libraries():
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(3.0)
    (tensor,), wrap = unwrap(x)
    assert tensor.device.type == "cuda"
    tensor[0] = 7
    assert float(x[0]) == 7
    assert type(wrap(tensor)) is cupy.ndarray
    unwrap_out(x)[:] = 5
    assert x.tolist() == [5, 5, 5]
