"""The library is imported and computes where there is no CUDA and the system is another one: as far as that can be
played on one machine, in a process of its own whose system has another name and that cannot import what is not there.
"""

import os
import subprocess
import sys

import pytest

from ..source import PACKAGE

PROGRAM = """
import os, sys
import numpy, torch, llvmlite.binding, ctypes, multiprocessing, asyncio, tempfile, platform

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cuda", "nvmath", "cupy", "triton", "sklearn", "scipy", "matplotlib"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
sys.platform = SYSTEM
platform.system = lambda: {"win32": "Windows", "darwin": "Darwin"}[SYSTEM]
for name in ("sched_getaffinity", "fork", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)

import kernmantle as km

x, y = numpy.array([[0.0, 0.0], [3.0, 4.0]]), numpy.array([[3.0, 0.0]])
assert km.cdist(x, y, p=1).tolist() == [[3.0], [4.0]]
assert km.Laplace(2.0)(x).shape == (2, 2)
assert km.linalg.solve_cholesky(numpy.eye(2), x).x.tolist() == x.tolist()
assert km.kron_matmul(x, [numpy.eye(2)]).tolist() == x.tolist()
try:
    with km.config(backend="cuda"):
        km.contract("mk,nk->mn", lambda a, b: a * b - a, torch.from_numpy(x), torch.from_numpy(y))
except km.errors.KernmantleError as error:
    assert str(error)
else:
    raise AssertionError("cuda ran on the CPU")
from kernmantle.cli.info import backend_state, devices, versions
assert backend_state("llvm") == "works"
print(versions(), devices())
"""


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_it_runs_without_cuda_on_another_system(system, tmp_path):
    environment = {
        **os.environ, "PYTHONPATH": str(PACKAGE.parent), "KERNMANTLE_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM.replace("SYSTEM", repr(system))]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kernmantle" in done.stdout
