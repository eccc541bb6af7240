"""What a new process pays: importing, compiling a kernel, finding one that was compiled before.

Each question is asked of fresh interpreters, ``python -m benchmarks.startup``, which check what they
computed and print seconds. They find the library as bytecode, as every process does after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

from kernmantle.config import config
from kernmantle.errors import BackendError
from kernmantle.torch_ops.contract import Contraction

MODULE, COMPILE, CUDA = "benchmarks.startup", "benchmarks.compiling", "cuda "
QUESTIONS = {
    "import": "import kernmantle once torch is there",
    "cold f32": "first call of a float32 kernel, nothing in the cache",
    "cold f64": "first call of a float64 kernel, nothing in the cache",
    "warm": "first call of a kernel that another process compiled",
    "hit": "first call of one more kernel that another process compiled",
}
_IMPORT = "import time, torch; t = time.perf_counter(); import kernmantle; print([time.perf_counter() - t, 0])"


def answer(question: str, processes: int) -> dict[str, list[float]]:
    """Seconds from several processes: of the first call, and of the second for comparison."""
    taken: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="kernmantle-cache-") as kept:
        # The first of them writes the bytecode, and what the others find in the cache.
        for _ in range(processes + 1):
            if question == "import" or question.startswith(CUDA):
                taken.append(_ask(["-c", _IMPORT] if question == "import" else [COMPILE, question.removeprefix(CUDA)]))
                continue
            with tempfile.TemporaryDirectory(prefix="kernmantle-cache-") as fresh:
                cache = kept if question in ("warm", "hit") else fresh
                taken.append(_ask([MODULE, question, "--cache", cache]))
    first = {"kernmantle": [first for first, _ in taken[1:]]}
    return first if question == "import" else first | {"second call": [second for _, second in taken[1:]]}


def _ask(arguments: list[str]) -> tuple[float, float]:
    command = [sys.executable, *(arguments if arguments[0] == "-c" else ["-m", *arguments])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        raise BackendError(f"a new process failed: {done.stderr.strip()[-500:]}")
    first, second = json.loads(done.stdout.strip().splitlines()[-1])
    return float(first), float(second)


def _time_calls(dtype: torch.dtype, other: bool) -> tuple[float, float]:
    """Seconds of the first and the second call of one kernel, or of another one."""
    x = torch.linspace(-1, 1, 64 * 16, dtype=dtype).reshape(64, 16)
    if other:
        call = Contraction("mk,nk->mn", lambda a, b: abs(a + b), reduce="max")
        wanted = (x[:, None] + x[None]).abs().amax(-1)
    else:
        call = Contraction("mk,nk->mn", lambda a, b: abs(a - b))
        wanted = (x[:, None] - x[None]).abs().sum(-1)
    taken: list[float] = []
    result = x
    for _ in range(2):
        begin = time.perf_counter()
        result = call(x, x.clone())
        taken.append(time.perf_counter() - begin)
    torch.testing.assert_close(result, wanted)
    return taken[0], taken[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer one question in this process."""
    parser = argparse.ArgumentParser("benchmarks.startup", description=__doc__)
    parser.add_argument("question", choices=[name for name in QUESTIONS if name != "import"])
    parser.add_argument("--cache", required=True)
    options = parser.parse_args(arguments)
    dtype = torch.float64 if options.question == "cold f64" else torch.float32
    with config(cache_dir=options.cache):
        taken = _time_calls(dtype, False)
        if options.question == "hit":
            taken = _time_calls(dtype, True)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
