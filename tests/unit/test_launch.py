"""What a kernel hands to the driver, with a driver that only takes notes."""

from types import SimpleNamespace

import pytest

from kernmantle.backends.cuda import launch
from kernmantle.runtime.lru import LRUCache


class Driver:
    def __init__(self):
        self.launches = []
        self.ObjectCode = SimpleNamespace(
            from_cubin=lambda binary, name: SimpleNamespace(get_kernel=lambda entry: entry)
        )
        self.Stream = SimpleNamespace(from_handle=lambda handle: f"stream {handle}")

    def launch(self, stream, config, kernel, *arguments):
        self.launches.append((stream, config, kernel, arguments))


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    made.LaunchConfig = lambda grid, block, shmem_size: (grid, block, shmem_size)
    monkeypatch.setattr(launch, "core", lambda: made)
    monkeypatch.setattr(launch, "_STREAMS", LRUCache(8))
    monkeypatch.setattr(launch, "_LIBRARIES", {})
    return made


def test_every_launch_has_its_own_grid_stream_and_arguments(driver):
    kernel = launch.Kernel(b"code", "entry", 128, 64)
    calls = [(0, 7, 10), (0, 7, 10), (0, 7, 11), (0, 8, 11), (1, 8, 11), (1, 8, 11), (0, 7, 10), (0, 0, 0)]
    for place, (device, stream, blocks) in enumerate(calls):
        kernel(device, stream, blocks, (place,))
    assert driver.launches == [
        (f"stream {stream}", (blocks, 128, 64), "entry", (place,)) for place, (_, stream, blocks) in enumerate(calls)
    ]


def test_a_device_is_prepared_once(driver, monkeypatch):
    prepared = []
    kernel = launch.Kernel(b"code", "entry", 128)
    monkeypatch.setattr(kernel, "_prepare", lambda device: (prepared.append(device), kernel._ready.add(device)))
    for device in (0, 0, 1, 0, 1):
        kernel(device, 7, 10, ())
    assert prepared == [0, 1]
