"""What a kernel hands to the driver, with a driver that only takes notes."""

import ctypes
import struct
import threading
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from kernmantle.backends.cuda import launch
from kernmantle.errors import LaunchError

driver = pytest.importorskip("cuda.bindings.driver")


class Driver:
    """Reads what it is given as the driver does: a configuration, a kernel, and arguments in one piece."""

    def __init__(self):
        self.launches, self.status = [], driver.CUresult.CUDA_SUCCESS
        self.mode, self.loaded_in = "global", []
        self.ObjectCode = SimpleNamespace(from_cubin=lambda binary, name: SimpleNamespace(get_kernel=self.get_kernel))

    def get_kernel(self, entry):
        self.loaded_in.append(self.mode)
        return SimpleNamespace(handle=77)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.mode = self.mode, mode
        return driver.CUresult.CUDA_SUCCESS, before

    def cuLaunchKernelEx(self, config, kernel, parameters, extra):
        begin, values, then, size, end = (ctypes.c_void_p * 5).from_address(extra)
        assert (int(kernel), parameters, begin, then, end) == (77, 0, 1, 2, None)
        data = ctypes.string_at(values, ctypes.c_size_t.from_address(size).value)
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        overlapped = [(own.id.name, own.value.programmaticStreamSerializationAllowed) for own in config.attrs]
        assert len(overlapped) == config.numAttrs
        self.launches.append((int(config.hStream), grid, block, config.sharedMemBytes, overlapped, data))
        return (self.status,)

    def __getattr__(self, name):
        return getattr(driver, name)


@pytest.fixture
def notes(monkeypatch):
    made = Driver()
    monkeypatch.setattr(launch, "core", lambda: made)
    monkeypatch.setattr(launch, "_driver", lambda: made)
    monkeypatch.setattr(launch, "_LIBRARIES", {})
    return made


def test_every_launch_has_its_own_grid_stream_and_arguments(notes):
    kernel = launch.Kernel(b"code", "entry", 128, 64)
    calls = [(0, 7, 10), (0, 7, 10), (0, 7, 11), (0, 8, 11), (1, 8, 11), (1, 8, 11), (0, 7, 10), (0, 9, 1)]
    for place, (device, stream, blocks) in enumerate(calls):
        kernel(device, stream, blocks, (place, 2**47 + place, -place, place / 3))
    assert notes.launches == [
        (stream, (blocks, 1, 1), (128, 1, 1), 64, [], struct.pack("=qqqd", place, 2**47 + place, -place, place / 3))
        for place, (_, stream, blocks) in enumerate(calls)
    ]


def test_the_default_stream_and_no_arguments(notes):
    launch.Kernel(b"code", "entry", 32)(0, 0, 5, ())
    assert notes.launches == [(0, (5, 1, 1), (32, 1, 1), 0, [], b"")]


def test_kernels_are_loaded_as_a_graph_that_is_captured_allows(notes):
    launch.Kernel(b"code", "entry", 32)
    assert [mode.name for mode in notes.loaded_in] == ["CU_STREAM_CAPTURE_MODE_RELAXED"]
    assert notes.mode == "global"


def test_a_kernel_may_start_early(notes):
    launch.Kernel(b"code", "entry", 32, overlapped=True)(0, 3, 5, (1,))
    assert notes.launches[0][4] == [("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", 1)]


def test_a_refused_launch_names_the_kernel(notes):
    kernel = launch.Kernel(b"code", "entry", 32, title="rows of 8")
    notes.status = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(
        LaunchError, match="'rows of 8' did not start with 5 blocks of 32 threads: CUDA_ERROR_LAUNCH_OUT"
    ):
        kernel(0, 3, 5, (1,))


def test_more_arguments_than_a_launch_takes_are_refused(notes):
    with pytest.raises(LaunchError, match="4104 bytes of arguments; a launch takes 4096"):
        launch.Kernel(b"code", "entry", 32)(0, 3, 5, (1,) * 513)
    assert not notes.launches


def test_threads_do_not_write_each_others_arguments(notes):
    """Every thread waits inside the driver until all are there: each finds its own arguments."""
    kernel, barrier, found = launch.Kernel(b"code", "entry", 32), threading.Barrier(4), []

    def waiting(config, handle, parameters, extra):
        barrier.wait(timeout=20)
        _, values, _, size, _ = (ctypes.c_void_p * 5).from_address(extra)
        found.append(struct.unpack("=q", ctypes.string_at(values, ctypes.c_size_t.from_address(size).value)))
        return (driver.CUresult.CUDA_SUCCESS,)

    kernel.launch = waiting
    threads = [threading.Thread(target=kernel, args=(0, 7, 1, (place,))) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(0,), (1,), (2,), (3,)]


class Host:
    """Devices and streams as torch has them: one device is current, each has its current stream."""

    def __init__(self):
        self.device, self.streams, self.entered = 0, {0: 7, 1: 8}, []
        self.queue = launch.Queue(lambda: self.device, lambda device: self.streams[device], self.on, self.enter)

    @contextmanager
    def on(self, device):
        before, self.device = self.device, device
        yield
        self.device = before

    def enter(self):
        self.entered.append(threading.get_ident())


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(launch, "THREADS", launch._Threads())
    return Host()


def test_a_bound_launch_writes_its_addresses_and_nothing_else(notes, host):
    kernel = launch.Kernel(b"code", "entry", 128, 64)
    bound = launch.BoundLaunch(kernel, (0, 0, -5, 0.25, 0, 0, 2**50), (0, 1, 4, 5), 0, 10, host.queue)
    kernel(0, 7, 9, (1, 2, 3, 4, 5, 6, 7, 8, 9))
    for addresses in ((10, 11, 12, 13), (2**47, 0, 3, 4)):
        bound(addresses)
        first, second, third, fourth = addresses
        data = struct.pack("=qqqdqqq", first, second, -5, 0.25, third, fourth, 2**50)
        assert notes.launches[-1] == (7, (10, 1, 1), (128, 1, 1), 64, [], data)


def test_a_launch_is_bound_to_the_numbers_of_the_first_call():
    made, once = [], []

    def bind(addresses, numbers):
        made.append((addresses, numbers))
        return lambda addresses: once.append((addresses, "bound"))

    start = launch.NumberedLaunch(bind, lambda addresses, numbers: once.append((addresses, numbers)), signed=False)
    for addresses, numbers in (([1], (1.0, 0.0)), ([2], (1.0, 0.0)), ([3], (2.0, 0.0)), ([4], (1.0, 0.0))):
        start(addresses, numbers)
    assert made == [([1], (1.0, 0.0))]
    assert once == [([1], (1.0, 0.0)), ([2], "bound"), ([3], (2.0, 0.0)), ([4], "bound")]


def test_a_launch_is_not_bound_to_a_zero_whose_sign_counts():
    made, once = [], []

    def bind(addresses, numbers):
        made.append(numbers)
        return lambda addresses: once.append("bound")

    start = launch.NumberedLaunch(bind, lambda addresses, numbers: once.append(str(numbers)), signed=True)
    for numbers in ((0.0,), (-0.0,), (2.0,), (2.0,), (-0.0,)):
        start([1], numbers)
    assert made == [(2.0,)]
    assert once == ["(0.0,)", "(-0.0,)", "(2.0,)", "bound", "(-0.0,)"]


def test_a_bound_launch_goes_to_the_current_stream_of_its_device(notes, host, monkeypatch):
    prepared = []
    kernel = launch.Kernel(b"code", "entry", 128)
    monkeypatch.setattr(
        kernel, "_prepare", lambda device: (prepared.append((device, host.device)), kernel._ready.add(device))
    )
    bounds = [launch.BoundLaunch(kernel, (0, 3), (0,), device, 10, host.queue) for device in (0, 1)]
    for stream in (7, 7, 9, 7):
        host.streams[0] = stream
        bounds[0]((5,))
        assert notes.launches[-1][:2] == (stream, (10, 1, 1))
    bounds[1]((5,))
    assert notes.launches[-1][:2] == (8, (10, 1, 1))
    assert prepared == [(0, 0), (1, 1)]  # each with its device current
    assert host.device == 0


def test_a_bound_launch_has_an_argument_of_its_stream(notes, host):
    kernel, asked = launch.Kernel(b"code", "entry", 128), []

    def of_stream(device, stream):
        asked.append((device, stream))
        return 1000 + stream

    bound = launch.BoundLaunch(kernel, (0, 3, 0), (0,), 0, 10, host.queue, of_stream)
    for stream in (7, 7, 9, 7):
        host.streams[0] = stream
        bound((5,))
        assert notes.launches[-1] == (stream, (10, 1, 1), (128, 1, 1), 0, [], struct.pack("=qqq", 5, 3, 1000 + stream))
    assert asked == [(0, 7), (0, 9), (0, 7)]


def test_a_counter_is_zero_on_its_stream(notes):
    """Taken while other threads may capture graphs, which forbid taking memory."""
    asked = []

    def take(size):
        asked.append((notes.mode, size))
        return driver.CUresult.CUDA_SUCCESS, driver.CUdeviceptr(4096)

    def write(at, value, count, stream):
        asked.append((int(at), value, count, int(stream)))
        return (notes.status,)

    notes.cuMemAlloc, notes.cuMemsetD32Async, notes.CUstream = take, write, driver.CUstream
    assert launch.zeroed_counter(9) == 4096
    assert asked == [(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, 4), (4096, 0, 1, 9)]
    notes.status = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(LaunchError, match="no memory for a counter of blocks: CUDA_ERROR_OUT_OF_MEMORY"):
        launch.zeroed_counter(9)


def test_a_thread_gets_the_context_of_its_device_once(notes, host):
    bound = launch.BoundLaunch(launch.Kernel(b"code", "entry", 128), (0,), (0,), 0, 10, host.queue)
    call = partial(bound, (5,))
    for target in (lambda: (call(), call()), call):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    call()
    assert len(notes.launches) == 4
    assert len(host.entered) == 3


def test_a_bound_launch_that_is_refused_names_the_kernel(notes, host):
    kernel = launch.Kernel(b"code", "entry", 32, title="rows of 8")
    notes.status = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(LaunchError, match="'rows of 8' did not start with 5 blocks of 32 threads"):
        launch.BoundLaunch(kernel, (0, 3), (0,), 0, 5, host.queue)((1,))
    with pytest.raises(LaunchError, match="4104 bytes of arguments"):
        launch.BoundLaunch(kernel, (1,) * 513, (0,), 0, 5, host.queue)


def test_a_device_is_prepared_once(notes, monkeypatch):
    prepared = []
    kernel = launch.Kernel(b"code", "entry", 128)
    monkeypatch.setattr(kernel, "_prepare", lambda device: (prepared.append(device), kernel._ready.add(device)))
    for device in (0, 0, 1, 0, 1):
        kernel(device, 7, 10, ())
    assert prepared == [0, 1]
