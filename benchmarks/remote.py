"""The other side of ``serve.py``: a peer that cannot share our interpreter, asked over a pipe."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kernmantle.errors import KernmantleError

from .case import Arrays, Picks

SCRIPT = Path(__file__).with_name("serve.py")


class PeerError(KernmantleError, RuntimeError):
    """A peer's process that ended or answered with an error."""


class Remote:
    """A process that computes for a peer."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernmantle-peer-")
        self._log = Path(self._folder.name, "log").open("w+", encoding="utf-8")  # noqa: SIM115
        self._loaded: Arrays = {}
        self._process = subprocess.Popen(
            [*command, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request and its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PeerError("the peer's process has no pipe")
        try:
            stdin.write(json.dumps({"do": do, **request}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            raise PeerError(f"the peer's process ended: {self._log.read().strip()[-500:] or 'without a word'}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise PeerError(answer["error"])
        return answer

    def load(self, arrays: Arrays, device: str) -> None:
        """Hand over the inputs, unless it has these very arrays."""
        if arrays.keys() == self._loaded.keys() and all(arrays[name] is self._loaded[name] for name in arrays):
            return
        self._loaded = {}
        paths: dict[str, str] = {}
        for name, value in arrays.items():
            paths[name] = str(Path(self._folder.name, f"{name}.npy"))
            np.save(paths[name], value.detach().cpu().numpy())
        self.ask("load", arrays=paths, device=device)
        self._loaded = dict(arrays)

    def prepare(self, call: str, options: Mapping[str, Any]) -> str:
        """Choose what to time; returns the version of the peer."""
        return str(self.ask("prepare", call=call, options=dict(options))["version"])

    def check(self, picks: Picks) -> tuple[np.ndarray[Any, Any], float, dict[str, int]]:
        """Block of the result at some picks, how long it took, on a GPU the bytes it took."""
        path = str(Path(self._folder.name, "block.npy"))
        answer = self.ask("check", rows=picks.rows, columns=picks.columns, to=path)
        return np.load(path), float(answer["seconds"]), {name: answer[name] for name in ("bytes",) if name in answer}

    def time(self, calls: int, clock: str, warm: bool) -> float:
        """Seconds a call."""
        return float(self.ask("time", calls=calls, clock=clock, warm=warm)["seconds"])


class Remotes:
    """The processes of all peers, each started when a case first asks for it and kept for those that follow."""

    def __init__(self, interpreters: Mapping[str, Sequence[str]] | None = None) -> None:
        self._interpreters = dict(interpreters or {})
        self._open: dict[str, Remote] = {}

    def __enter__(self) -> Remotes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._open):
            self.end(name)

    def of(self, name: str, package: str) -> Remote:
        """Process of the contestant of that name; LookupError without an interpreter for its package."""
        if package not in self._interpreters:
            raise LookupError(f"no interpreter was given for {package}: --peer {package}=PYTHON")
        if name not in self._open:
            self._open[name] = Remote(self._interpreters[package])
        return self._open[name]

    def end(self, name: str) -> None:
        """End a process, after a failure: the next case starts another."""
        if name in self._open:
            self._open.pop(name).close()
