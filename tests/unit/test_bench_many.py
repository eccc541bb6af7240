"""The suite of several GPUs, by processes on the CPU: what is checked, what is timed, what is written."""

from dataclasses import replace

import pytest
import torch

from benchmarks import group, many, store
from benchmarks.case import Target
from benchmarks.group import Entrant, Shared
from benchmarks.timing import Plan
from kernmantle.errors import DeviceError, ParameterError, ShapeError
from kernmantle.testing import assert_close

from ..measured import STAMP

SIZES = many.Sizes(120, 120, 120, 60, 70, 80, ((4, 3, 3), (2, 4, 2)))
PLAN = Plan(budget=0.0, least=2, most=2, sample=1e-6, pause=0.0)


@pytest.fixture
def member(tmp_path):
    with group.joined(tmp_path, 0, 1, "cpu") as one:
        yield one


def shared(calls, check=lambda _: 0.0, targets=(), once=False):
    def call():
        calls.append(1)
        return torch.ones(3)

    return Shared(
        "one", "a case", lambda _: {"kernmantle": Entrant(call, check, once), "peer": Entrant(call, check)}, targets
    )


def test_every_case_is_right_by_one_process(member):
    rows = [group.measure(member, case, STAMP, PLAN) for case in many.cases(SIZES)]
    assert [row["results"]["kernmantle"].get("reason") for row in rows if row["status"] != "ok"] == []
    assert len({row["case"] for row in rows}) == len(rows) == 3 + 8 + 6 + 2 + 1
    for row in rows:
        for found in row["results"].values():
            assert found["samples"] >= 1
            assert 0 < found["minimum"] <= found["median"]
            assert found["error"] < 1e-3
    kron = next(row for row in rows if row["case"].startswith("kron 4*3^3 rows backward"))
    assert list(kron["results"]) == ["kernmantle", "kernmantle, 4 rows in all", many.ALONE]


@pytest.mark.parametrize("size", [1, 3])
def test_columns_written_in_place_are_those_of_the_matrix(member, size):
    n = 700
    whole, _, _ = many._near_unity(member, n, "f64", slice(0, n))
    thin = many._normal(member, n, 64, seed=1)
    for rank in range(size):
        here = many.columns_of(n, rank, size, 256)
        assert_close(many._columns(thin, here), whole[here], depth=64)


def test_what_is_wrong_or_fails_is_not_timed(member):
    def off(result):
        many._off(result, 1.1 * torch.ones(3), 1)

    def fails(_):
        raise ShapeError("no such shape")

    calls = []
    row = group.measure(member, shared(calls, off), STAMP, PLAN)
    assert (row["status"], len(calls)) == ("wrong", 1)
    row = group.measure(member, Shared("one", "a case", fails), STAMP, PLAN)
    assert row["status"] == "failed"
    assert "no such shape" in row["results"]["kernmantle"]["reason"]


def test_samples_and_targets(member):
    calls = []
    target = (Target("faster", 1e-9, "peer"), Target("seconds", 1e-12))
    row = group.measure(member, shared(calls, targets=target), STAMP, PLAN)
    assert [found["met"] for found in row["targets"]] == [True, False]
    assert [found["samples"] for found in row["results"].values()] == [2, 2]
    endless = replace(PLAN, endless=-1.0)
    row = group.measure(member, shared(calls, once=True), STAMP, endless)
    assert [found["samples"] for found in row["results"].values()] == [1, 1]


def test_a_run_begins_no_case_after_its_time(member, tmp_path):
    path = tmp_path / "rows.jsonl"
    group.work(member, [shared([])] * 2, path, STAMP, PLAN, deadline=0.0)
    assert store.read(path) == []
    group.work(member, [shared([])] * 2, path, STAMP, PLAN, deadline=1e12)
    assert [row["case"] for row in store.read(path)] == ["one, 1 processes"] * 2


def test_two_processes_write_rows_that_are_not_measured_again(tmp_path, monkeypatch):
    path, names = tmp_path / "rows.jsonl", ["ring gram n=120", "cholesky n=60 f64"]
    rows = many.run(path, names, PLAN, 1e9, False, SIZES, processes=2)
    assert [row["case"] for row in rows] == [f"{name}, 2 processes" for name in names]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    monkeypatch.setattr(group, "start", None)
    assert many.run(path, names, PLAN, 1e9, False, SIZES, processes=2) == rows
    with pytest.raises(ParameterError, match="no case 'ring chess'"):
        many.run(path, ["ring chess"], PLAN, 1e9, False, SIZES, processes=2)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are two GPUs")
def test_two_gpus_are_needed(tmp_path):
    with pytest.raises(DeviceError, match="two NVIDIA GPUs"):
        many.run(tmp_path / "rows.jsonl", [], PLAN, 1e9, False)
