"""A forked process works whatever the threads of its parent were doing."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os, signal, threading
import numpy as np
from kernmantle.ir import node
from kernmantle.backends.cpu import jit as llvm
from kernmantle.runtime.cache import Built, Cache, Key

SOURCE = '''define void @km(ptr %p, ptr %i, ptr %n, i64 %b, i64 %e, ptr %s) {
  %into = load ptr, ptr %p, align 8
  %place = getelementptr i64, ptr %into, i64 %b
  store i64 1, ptr %place, align 8
  ret void
}'''
cache, key = Cache(os.environ["KERNMANTLE_CACHE_DIR"]), Key("here", "none", "text")
kernel = llvm.load(llvm.compile_ir(SOURCE, llvm.host()))
finished, ready, kept = threading.Event(), threading.Barrier(3), []

def compiles():
    ready.wait()
    while not finished.is_set():
        kept.append(llvm.load(llvm.compile_ir(SOURCE, llvm.host())))
        [node.var(f"v{len(kept)}.{i}") for i in range(100)]

def builds():
    def build():
        ready.wait()
        finished.wait()
        return Built(b"parent")
    cache.fetch(key, build)

def used():
    counts = np.zeros(2, np.int64)
    fresh = llvm.load(llvm.compile_ir(SOURCE, llvm.host()))
    for one in (kernel, fresh):
        llvm.run(one, 2, 64, [counts.ctypes.data], np.zeros(1, np.int64), [], 2)
    return counts[0] == 1 and node.Node("neg", (node.var("fresh"),)) is not None and cache.fetch(
        key, lambda: Built(b"child")) == b"child"

threads = [threading.Thread(target=work) for work in (compiles, builds)]
for thread in threads:
    thread.start()
ready.wait()
codes = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if used() else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    cache.clear()
finished.set()
for thread in threads:
    thread.join()
print(codes)
"""


def test_a_child_of_a_busy_process(tmp_path):
    given = {**os.environ, "KERNMANTLE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=given, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[0, 0, 0]\n", "")
