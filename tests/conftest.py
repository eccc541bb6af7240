"""One temporary kernel cache per run, one torch thread per worker, and tests that must not be skipped."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest
import torch

REQUIREMENTS = {"cuda": "an NVIDIA GPU"}
CACHE_BYTES = 4 << 30  # the kernels of a whole run are a tenth of it

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        choices=sorted(REQUIREMENTS),
        help="fail, instead of skip, the tests with this marker that cannot run here",
    )


def _memory() -> Path | None:
    """Return a folder in memory that holds the kernels of a run, None where there is none or it is small.

    Every entry of the kernel cache is synced, which on a disk that is busy takes longer than to compile it.
    """
    folder = Path("/dev/shm")
    roomy = folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= CACHE_BYTES
    return folder if roomy else None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)
        return
    for variable in [name for name in os.environ if name.startswith("KERNMANTLE_")]:
        del os.environ[variable]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of some hundred processes compiles the library's files
    # Of workers and of what they start: threads that wait by spinning take each other's cores, up to 14 times as long.
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more start processes that each import torch
    directory = tempfile.mkdtemp(prefix="kernmantle-tests-", dir=_memory())
    os.environ["KERNMANTLE_CACHE_DIR"] = directory
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exhaustive" not in config.getoption("markexpr"):
        exhaustive = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=exhaustive)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # so that none begins when the others are done
    if not torch.cuda.is_available():
        _skip_of_each_one(config, items)


def _skip_of_each_one(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU, one set of parameters for all of a test: thousands of skips take as long as some tests."""
    left: dict[str, pytest.Item] = {}
    others: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason=f"needs {REQUIREMENTS['cuda']}"))
            if left.setdefault(item.nodeid.partition("[")[0], item) is not item:
                others.append(item)
    if "cuda" not in config.getoption("--require"):
        config.hook.pytest_deselected(items=others)
        dropped = set(others)
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and tests live as long as the process: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    wanted = [name for name in item.config.getoption("--require") if item.get_closest_marker(name)]
    if report.skipped and wanted and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"--require={wanted[0]} was given, but it is skipped: {str(reason).removeprefix('Skipped: ')}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    wanted = collector.config.getoption("--require")
    if report.skipped and any(f"mark.{name}" in collector.path.read_text(encoding="utf-8") for name in wanted):
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped as a whole, but --require={wanted[0]} was given"
    return report
