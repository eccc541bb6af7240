"""A team of worker processes that ends as a whole: by finishing, by the first failure, or with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from ..errors import WorkerError

GRACE = 5.0
"""Seconds that a worker has to end by itself before it is killed."""
_POLL = 0.02  # seconds
_SHOWN = 2000  # characters of a log


def end_with_owner() -> None:
    """End this process, a worker, as soon as its owner has, however that came about.

    The owner holds the other end of the standard input and never writes to it.
    """

    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Team:
    """Workers started together; leaving the ``with`` block leaves none behind."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._logs: list[IO[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            for command in commands:
                self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115
                self.workers.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=self._logs[-1], stderr=subprocess.STDOUT,
                        env=environment,
                    )
                )  # fmt: skip
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> None:
        """Return when all have finished; WorkerError at the first that failed, or after so many seconds."""
        begin = time.monotonic()
        while True:
            states = [worker.poll() for worker in self.workers]
            failed = next((i for i, state in enumerate(states) if state), None)
            if failed is not None:
                said = self._said(failed)
                self.stop()
                raise WorkerError(f"worker {failed} of {len(states)} {_ended(states[failed] or 0)}; it said:\n{said}")
            if all(state == 0 for state in states):
                return
            if timeout is not None and time.monotonic() - begin > timeout:
                running = [i for i, state in enumerate(states) if state is None]
                said = self._said(running[0])
                self.stop()
                raise WorkerError(
                    f"workers {running} did not finish within {timeout:g} s; worker {running[0]} said:\n{said}"
                )
            time.sleep(_POLL)

    def stop(self) -> None:
        """End those that still run, and wait until they are gone."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()
        for log in self._logs:
            log.close()

    def _said(self, rank: int) -> str:
        log = self._logs[rank]
        log.seek(0)
        return log.read().decode(errors="replace").strip()[-_SHOWN:] or "nothing"


def _ended(state: int) -> str:
    if state < 0:
        return f"was ended by {signal.Signals(-state).name}"
    return f"ended with status {state}"
