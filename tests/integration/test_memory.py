"""Memory that a process takes: of backward passes, of many kernels, and after ``clear_cache``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")

BACKWARD = """
import resource, sys, torch, kernmantle as km
torch.set_num_threads(1)
m, n = int(sys.argv[1]), 60_000
k = km.Gaussian(3.0)
def once(how, rows, others):
    a = x[:rows].clone().requires_grad_()
    found = k.matmul(a, x[:others], v[:others]) if how == "matmul" else getattr(k, how)(a, x[:others])
    found.sum().backward()
    return a.grad
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
x, v = torch.randn(n, 20), torch.randn(n, 2)
for how in sys.argv[2:]:
    once(how, 100, 1000)
before = peak()
for how in sys.argv[2:]:
    once(how, m, n)
    print(peak() - before)
"""
KERNELS = """
import gc, torch, kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.runtime.kernel_store import KERNELS
from kernmantle.runtime.lru import LRUCache
KERNELS.capacity = PLANS.capacity = 4
torch.set_num_threads(1)
ops = [abs, km.sqrt, lambda t: t * t, lambda t: -t, lambda t: t + 1]
def make(i):
    def f(a, b):
        t = a - b
        for j in range(4): t = ops[i // 5**j % 5](t) + a
        return t
    return f
def run(first, last):
    for i in range(first, last):
        km.Contraction("mk,nk->mn", make(i))(x, y)
    gc.collect()
maps = lambda: sum(1 for _ in open("/proc/self/maps"))
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
x, y = torch.randn(5, 3), torch.randn(4, 3)
begin = maps()
run(0, 8)
full, bytes_full = maps(), rss()
run(8, 26)
print(full - begin, maps() - full, (rss() - bytes_full) / 18)
km.clear_cache()
gc.collect()
print(maps() - begin)
"""


def run(code, tmp_path, *arguments):
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KERNMANTLE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=given)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_a_backward_pass_has_blocks_and_not_the_matrix(tmp_path):
    rows, hows = 2400, ("matmul", "logsumexp", "max")
    matrix, promised = rows * 60_000 * 4, 64 << 20
    peaks = run(BACKWARD, tmp_path, rows, *hows)  # so far, after each
    for how, peak in zip(hows, peaks, strict=True):
        assert peak < 2 * promised < matrix / 4, how  # blocks, vectors and what the heap does not use again


def test_kernels_that_nobody_uses_are_unloaded(tmp_path):
    loaded, more, each, left = run(KERNELS, tmp_path)
    assert loaded <= 3 * 4 + 20
    assert abs(more) <= 20
    assert each < 100e3
    assert left <= 20
