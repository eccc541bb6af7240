"""A peer in an interpreter of its own: reads requests as JSON lines and answers likewise.

Run by path, ``python serve.py``; it imports nothing of the library, only numpy and what a call asks for.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


def _torch() -> Any:
    return importlib.import_module("torch")


def torch_cdist(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """torch.cdist."""
    torch = _torch()
    return lambda: torch.cdist(arrays["x"], arrays["y"], p=options["p"])


def kermac_cdist(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """kermac.cdist into a result made once."""
    torch, kermac = _torch(), importlib.import_module("kermac")
    x, y = arrays["x"], arrays["y"]
    out = torch.empty(len(x), len(y), device=x.device)

    def call() -> Any:
        kermac.cdist(x, y, out=out, p=float(options["p"]))
        return out

    return call


def kermac_cdist_grad(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """kermac.cdist_grad, which takes features first, copied to an output below the other."""
    torch, kermac = _torch(), importlib.import_module("kermac")
    a, b, c, d = (arrays[name].T.contiguous() for name in ("w", "x", "c", "z"))
    out = torch.empty(len(c), *d.shape, device=d.device)

    def call() -> Any:
        kermac.cdist_grad(a, b, c, d, out=out, p=float(options["p"]))
        return out.transpose(1, 2).flatten(0, 1)

    return call


def mm_kermac_norm(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """One of mm_kermac's ready norms into a result made once."""
    torch, zoo = _torch(), importlib.import_module("mm_kermac.hyper_semiring")
    x, y, p = arrays["x"], arrays["y"], float(options["p"])
    out = torch.empty(len(x), len(y), device=x.device)
    if p in (1.0, 2.0):
        norm = zoo.NormL1() if p == 1.0 else zoo.NormL2()
        extra = {}
    else:
        norm = zoo.NormLp(epsilon=0.0)
        extra = {"p_inner": torch.tensor(p, device=x.device), "p_outer": torch.tensor(1 / p, device=x.device)}

    def call() -> Any:
        norm(x=x, z=y, out=out, **extra)
        return out

    return call


def xrfm_scores(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """Mean squared error and share of right classes of xrfm on one of its kernels, all points in every round."""
    torch = _torch()
    model, kernels = importlib.import_module("xrfm"), importlib.import_module("xrfm.rfm_src.kernels")
    x, y, held, truth = (arrays[name] for name in ("x", "y", "held", "truth"))

    def call() -> Any:
        kernel = getattr(kernels, options["kernel"])(bandwidth=options["bandwidth"], exponent=1.0)
        rfm = model.RFM(kernel, iters=options["rounds"], device=str(x.device), diag=False, tuning_metric="mse")
        rfm.fit(
            (x, y), (held, truth), reg=options["ridge"], total_points_to_sample=len(x), return_best_params=False,
            early_stop_rfm=False,
        )  # fmt: skip
        found = rfm.predict(held)
        right = ((found > 0) == (truth > 0)).double().mean()
        return torch.stack([(found - truth).double().square().mean(), right])[None]

    return call


def scipy_cdist(arrays: Arrays, options: dict[str, Any]) -> Callable[[], Any]:
    """The cdist of scipy."""
    distance = importlib.import_module("scipy.spatial.distance")
    return lambda: distance.cdist(arrays["x"], arrays["y"], options["metric"])


CALLS = {
    "torch.cdist": ("torch", "torch", torch_cdist),
    "kermac.cdist": ("kermac", "torch", kermac_cdist),
    "kermac.cdist_grad": ("kermac", "torch", kermac_cdist_grad),
    "mm_kermac.norm": ("mm-kermac", "torch", mm_kermac_norm),
    "xrfm.scores": ("xrfm", "torch", xrfm_scores),
    "scipy.cdist": ("scipy", "numpy", scipy_cdist),
}


class Server:
    """One peer's inputs and call."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self.call: Callable[[], Any] = lambda: None
        self.device = "cpu"

    def wait(self) -> None:
        """Until the GPU has done what was asked of it."""
        if self.device == "cuda":
            _torch().cuda.synchronize()

    def load(self, arrays: dict[str, str], device: str) -> dict[str, Any]:
        """Read inputs from files."""
        self.device = device
        self.arrays = {name: np.load(path) for name, path in arrays.items()}
        return {}

    def prepare(self, call: str, options: dict[str, Any]) -> dict[str, Any]:
        """Choose what to time."""
        package, kind, make = CALLS[call]
        arrays = self.arrays
        if kind == "torch":
            arrays = {name: _torch().from_numpy(value).to(self.device) for name, value in arrays.items()}
        self.call = make(arrays, options)
        return {"version": metadata.version(package)}

    def check(self, rows: list[int], columns: list[int], to: str) -> dict[str, Any]:
        """Run twice, write the block of the result at some rows and columns, say what the second run took."""
        self.call()
        self.wait()
        cuda = _torch().cuda if self.device == "cuda" else None
        before = 0
        if cuda:
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
        begin = time.perf_counter()
        result = self.call()
        self.wait()
        answer = {"seconds": time.perf_counter() - begin}
        if cuda:
            answer["bytes"] = cuda.max_memory_allocated() - before
        block = result[rows][:, columns]
        np.save(to, block if isinstance(block, np.ndarray) else block.cpu().numpy())
        return answer

    def time(self, calls: int, clock: str, warm: bool) -> dict[str, Any]:
        """Seconds a call, after one that does not count where it should be warm."""
        if warm:
            self.call()
        self.wait()
        if clock == "events":
            cuda = _torch().cuda
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            first.record()
            for _ in range(calls):
                self.call()
            last.record()
            self.wait()
            return {"seconds": first.elapsed_time(last) * 1e-3 / calls}
        begin = time.perf_counter()
        for _ in range(calls):
            self.call()
        self.wait()
        return {"seconds": (time.perf_counter() - begin) / calls}


def main() -> None:
    """Answer until the requests end; whatever goes wrong is an answer too.

    The folder of this file leaves the path, lest a peer's package be taken for a module beside it of that name.
    """
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    replies, sys.stdout = sys.stdout, sys.stderr
    server = Server()
    actions = {"load": server.load, "prepare": server.prepare, "check": server.check, "time": server.time}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": True, **actions[request.pop("do")](**request)}
        except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
