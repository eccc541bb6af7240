"""Many threads, many processes on a cold cache, fork after use, Ctrl-C in a long kernel, a full disk."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import kernmantle as km
from kernmantle.errors import CacheWarning
from kernmantle.testing import assert_close

START = "import sys, torch, kernmantle as km, numpy as np\n"
COUNTS = """
from kernmantle.backends.cpu import jit as llvm
plain, made = llvm.compile_ir, []
llvm.compile_ir = lambda *a: (made.append(1), plain(*a))[1]
"""


def environment(cache) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KERNMANTLE_CACHE_DIR": str(cache)}


def started(code: str, cache) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(cache),
    )  # fmt: skip


def test_eight_threads_have_right_results(tmp_path):
    draw = np.random.default_rng(0)
    cases = [(draw.normal(size=(20 + i, 7)), draw.normal(size=(13, 7)), 1 + i / 4) for i in range(8)]
    wrong, barrier = [], threading.Barrier(8)

    def work(own):
        barrier.wait()
        for turn in range(12):
            x, y, p = cases[(own + turn) % 8]
            with km.config(threads=2):
                found = km.cdist(torch.from_numpy(x), torch.from_numpy(y), p=p)
            if not np.allclose(found.numpy(), cdist(x, y, "minkowski", p=p), rtol=1e-12):
                wrong.append((own, turn))

    with km.config(cache_dir=tmp_path):
        threads = [threading.Thread(target=work, args=(own,)) for own in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_eight_processes_on_a_cold_cache_compile_a_kernel_once(tmp_path):
    code = COUNTS + (
        "import os\n"
        "children, x = [], torch.arange(12.0).reshape(4, 3)\n"
        "for _ in range(8):\n"
        "    children.append(os.fork())\n"
        "    if not children[-1]:\n"
        "        found = km.contract('mk,nk->mn', lambda a, b: abs(a - b) * 3 + a, x, x)\n"
        "        os.write(1, f'{len(made)} {found.sum().item()}\\n'.encode())\n"
        "        os._exit(0)\n"
        "assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8"
    )
    running = started(code, tmp_path)
    said, errors = running.communicate(timeout=300)
    assert errors == ""
    x = np.arange(12.0).reshape(4, 3)
    expected = (3 * abs(x[:, None] - x[None]) + x[:, None]).sum()
    counts, sums = zip(*(map(float, line.split()) for line in said.splitlines()), strict=True)
    assert_close(torch.tensor(sums), torch.full((8,), float(expected)), dtype=torch.float32, depth=100)
    assert sum(counts) == 1


def test_a_holder_of_the_lock_that_dies_holds_nobody_up(tmp_path):
    holds = (
        "import os, time\n"
        "from kernmantle.runtime.cache import Built, Cache, Key\n"
        "def build():\n    print('holds', flush=True); time.sleep(300)\n"
        "Cache(os.environ['KERNMANTLE_CACHE_DIR']).fetch(Key('a', 'b', 'c'), build)\n"
    )
    holder = started(holds, tmp_path)
    assert holder.stdout.readline() == "holds\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    begin = time.monotonic()
    from_other = "import os\nfrom kernmantle.runtime.cache import Built, Cache, Key\n" + (
        "print(Cache(os.environ['KERNMANTLE_CACHE_DIR']).fetch(Key('a', 'b', 'c'), lambda: Built(b'made')))"
    )
    out, error = started(from_other, tmp_path).communicate(timeout=120)
    holder.communicate()
    assert (out, error) == ("b'made'\n", "")
    assert time.monotonic() - begin < 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_right_results(tmp_path):
    """Torch keeps to one thread: its own OpenMP threads do not survive a fork, and its next large call would wait."""
    code = """
import os, signal, warnings
torch.set_num_threads(1)
warnings.simplefilter("ignore", DeprecationWarning)  # Python from 3.12 on, about any fork beside threads
x, y = torch.randn(700, 40), torch.randn(600, 40)
def right():
    with km.config(threads=2):
        found = km.cdist(x, y, p=1).double() + km.contract("mk,nk->mn", lambda a, b: abs(a - b) * 2, x, y)
    direct = 3 * (x.double()[:, None] - y.double()[None]).abs().sum(-1)
    return bool(torch.allclose(found, direct, rtol=1e-5))
first = right()
child = os.fork()
if child == 0:
    signal.alarm(120)
    os._exit(0 if right() and right() else 1)
print(first, os.waitpid(child, 0)[1], right())
"""
    out, error = started(code, tmp_path).communicate(timeout=200)
    assert (out, error) == ("True 0 True\n", "")


LONG = {
    "pairs": "km.cdist(x, y, p=1.3)",
    "few items": "km.contract('mk,nk->m', lambda a, b: abs(a - b) ** 1.3, x, y)",
    "few rows": "km.cdist(x[:24], wide, p=1.3)",
}


ENDS = {
    "workers": "km.cdist(torch.randn(900, 40), torch.randn(800, 40), p=1.3)",
    "LLVM": """
from kernmantle.backends.cpu import jit
sums = "".join(f"  %v{i} = fadd double %v{i - 1}, {float(i)}\\n" for i in range(1, 4000))
text = f"define void @km(ptr %p, ptr %i, ptr %n, i64 %b, i64 %e, ptr %s) {{\\n  %v0 = load double, ptr %p\\n{sums}" + (
    "  store double %v3999, ptr %p\\n  ret void\\n}")
background(lambda: jit.load(jit.compile_ir(text, jit.host())))
""",
    "NVRTC": """
from kernmantle.backends.cuda.nvrtc import compile_source
lines = "".join(f"x = x * x + {i}.f * __sinf(x);" for i in range(900))
text = f'extern "C" __global__ void km(float* p) {{ float x = *p; {lines} *p = x; }}'
background(lambda: compile_source(text, "sm_90", {}, "km"))
""",
}


@pytest.mark.parametrize("work", ENDS)
def test_a_process_ends_whatever_its_threads_do(work, tmp_path):
    """They ask for the interpreter while its modules are cleared, which takes a second here."""
    if work == "NVRTC":
        pytest.importorskip("cuda.core")
    code = f"""
import threading, time, types
begun = threading.Event()
def background(build):
    def builds():
        begun.set()
        while True:
            build()
    threading.Thread(target=builds, daemon=True).start()
    begun.wait()
    time.sleep(0.3)
with km.config(threads=2):
    exec({ENDS[work]!r})
class Slow:
    sleep = time.sleep
    def __del__(self):
        print("cleared", flush=True)
        Slow.sleep(1)
sys.modules["slow"] = types.ModuleType("slow")
sys.modules["slow"].one = Slow()
"""
    running = started(code, tmp_path)
    out, error = running.communicate(timeout=60)
    assert (running.returncode, out, error) == (0, "cleared\n", "")


def test_an_interrupt_leaves_kernels_that_wait(tmp_path):
    code = """
import os, signal, threading, time, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)
from kernmantle.runtime import precompile
from kernmantle.runtime.cache import Key
from kernmantle.runtime.kernel_store import Job
begun = os.path.join(os.environ["KERNMANTLE_CACHE_DIR"], "begun")
def interrupts():
    while not os.path.exists(begun):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
class Bar:
    def update(self): pass
if __name__ == "__main__":
    command = ["sh", "-c", f"echo one >> {begun}; sleep 1"]
    jobs = [Job(Key("a", "b", str(i)), subprocess.check_call, (command,)) for i in range(40)]
    threading.Thread(target=interrupts).start()
    try:
        precompile._in_processes(jobs, 2, Bar())
    except KeyboardInterrupt:
        print("heard")
"""
    out, error = started(code, tmp_path).communicate(timeout=120)
    assert (out, error) == ("heard\n", "")
    assert len((tmp_path / "begun").read_text().split()) < 10  # those that run, and those that the pool has handed out


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_kernel_hears_an_interrupt(threads, tmp_path):
    """Its seconds are those of the processor, which other processes do not lengthen."""
    code = f"""
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may have been told to ignore it
torch.set_num_threads({threads})
x, y = torch.randn(9000, 200), torch.randn(9000, 200)
wide = y.repeat(60, 1)
km.cdist(x[:600], y[:500], p=1.3)
for call in {list(LONG.values())!r}:
    sent = []
    try:
        threading.Timer(0.5, lambda: (sent.append(time.process_time()), os.kill(os.getpid(), signal.SIGINT))).start()
        exec(call)
        print("ran-to-its-end")
    except KeyboardInterrupt:
        print(time.process_time() - sent[0])
    a = torch.randn(9, 4)
    print(torch.allclose(km.cdist(a, a, p=1), torch.cdist(a, a, p=1), atol=1e-5))
"""
    out, error = started(code, tmp_path).communicate(timeout=300)
    found = out.split()
    assert (len(found), error) == (2 * len(LONG), "")
    for what, seconds, works in zip(LONG, found[::2], found[1::2], strict=True):
        assert works == "True", what
        assert seconds != "ran-to-its-end", what
        assert float(seconds) < 5 * threads, what


def test_a_full_disk_leaves_right_results_and_one_warning(tmp_path):
    resource = pytest.importorskip("resource")
    code = """
import resource, signal, warnings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
x = torch.randn(5, 3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    one = km.contract("mk,nk->mn", lambda a, b: abs(a - b) * 3, x, x)
    two = km.contract("mk,nk->mn", lambda a, b: abs(a - b) * 4 + a, x, x)
distance = (x[:, None] - x[None]).abs().sum(-1)
right = torch.allclose(one, 3 * distance, atol=1e-5)
print(right, [one.category.__name__ for one in caught])
"""
    assert resource is not None
    out, error = started(code, tmp_path).communicate(timeout=200)
    assert (out, error) == ("True ['CacheWarning']\n", "")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_a_cache_that_cannot_be_written_warns_once(tmp_path):
    (tmp_path / "file").write_text("")
    x = torch.ones(2, 3)
    with km.config(cache_dir=tmp_path / "file"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in (31.0, 32.0):
            found = km.Contraction("mk,nk->mn", lambda a, b: km.sin(a) * km.tanh(b) + a)(x, factor * x)
    assert len([one for one in caught if one.category is CacheWarning]) <= 1
    assert_close(found, torch.full((2, 2), 3 * float(np.sin(1.0) + 1)), dtype=torch.float32, depth=10)
