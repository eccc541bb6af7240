"""The benchmark: statistics, turns, floors, rows, and that nothing wrong is ever timed."""

import html
import io
import json
import math
import os
import random
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import __main__ as command
from benchmarks import (
    contraction,
    machine,
    pages,
    problems,
    readme,
    report,
    roofline,
    run,
    store,
    structured_random,
    tables,
)
from benchmarks.case import Case, Peer, Picks, Probe, Suite, Target
from benchmarks.remote import Remotes
from benchmarks.timing import Plan, quantile, summarise, take_turns, wall
from benchmarks.work import Work, floor
from kernmantle.errors import DeviceError, ParameterError
from kernmantle.ir.ops import OPS
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.pairwise import KERNELS, METRICS
from kernmantle.torch_ops.contract import contract

from ..measured import STAMP
from ..source import ROOT

SHAPE = (20, 30, 5)
PLAN = Plan(budget=0.0, least=3, most=3, sample=1e-5, pause=0.0)


def ours(given):
    return lambda: contract("mk,nk->mn", lambda a, b: abs(a - b), given["x"], given["y"])


def torch_l1(given):
    return lambda: torch.cdist(given["x"], given["y"], p=1)


PEERS = (Peer("torch.cdist", torch_l1),)


def case(name="l1", call=ours, peers=PEERS, **more):
    return Case(name, f"case {name}", problems.distances(*SHAPE, 1.0), call, peers, Work(4e3, {"steps": 3e3}), **more)


def suite(*rows):
    return Suite("tiny", "cpu", rows or (case(),))


SETTINGS = run.Settings(PLAN, rates={"steps": 1e9, "bytes": 1e9})


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The command with one small case in place of a suite; counts how often our call is asked for."""
    counted = []

    def call(given):
        counted.append(1)
        return ours(given)

    monkeypatch.setattr(command, "SUITES", {"cpu": lambda: suite(case("one", call), case("two", call))})
    monkeypatch.setattr(command.calibrate, "cpu_rates", lambda resources, threads: {"steps": 1e9, "bytes": 1e9})
    path = tmp_path / "rows.jsonl"
    return ["cpu", "--quick", "--output", str(path)], path, counted


@pytest.mark.parametrize(
    ("samples", "share", "value"),
    [([5.0], 0.2, 5.0), ([1.0, 2.0], 0.5, 1.5), ([1.0, 2.0, 3.0, 4.0, 6.0], 0.8, 4.4), ([1.0, 3.0], 1.0, 3.0)],
)
def test_quantiles(samples, share, value):
    assert quantile(samples, share) == pytest.approx(value)
    if len(samples) > 1:
        assert quantile(samples, share) == pytest.approx(np.quantile(samples, share))


def test_summary_of_unordered_samples():
    found = summarise([3.0, 1.0, 2.0, 10.0, 4.0])
    assert (found.median, found.minimum, found.samples) == (3.0, 1.0, 5)
    assert (found.p20, found.p80) == (pytest.approx(1.8), pytest.approx(5.2))


def test_a_plan_gives_long_calls_fewer_samples_and_short_ones_more_calls():
    plan = Plan(budget=3.0, least=5, most=25, sample=2e-3, endless=8.0)
    assert [plan.samples(seconds) for seconds in (1e-6, 0.2, 2.0, 9.0)] == [25, 15, 5, 1]
    assert [plan.calls(seconds) for seconds in (1e-5, 1.5e-3, 1.0)] == [200, 2, 1]


def test_turns_are_interleaved_and_shuffled():
    seen = []

    def sampler(name):
        return lambda: seen.append(name) or 1.0

    taken = take_turns({n: sampler(n) for n in "abc"}, {"a": 6, "b": 6, "c": 2}, 0.0, random.Random(1))
    assert {name: len(found) for name, found in taken.items()} == {"a": 6, "b": 6, "c": 2}
    pairs = [[name for name in seen if name in "ab"][2 * i : 2 * i + 2] for i in range(6)]
    assert all(sorted(pair) == ["a", "b"] for pair in pairs)
    assert {tuple(pair) for pair in pairs} == {("a", "b"), ("b", "a")}
    assert seen.index("c") < len(seen) - 3


def test_the_clock_warms_up_and_counts():
    calls = []
    seconds = wall(lambda: calls.append(1), 10)
    assert len(calls) == 11
    assert 0 <= seconds < 1
    wall(lambda: calls.append(1), 2, False)
    assert len(calls) == 13


def test_the_floor_is_the_narrowest_resource():
    rates = {"bytes": 10.0, "a": 2.0, "b": 4.0}
    assert floor(Work(100.0, {"a": 4.0}), rates) == floor(Work(100.0), rates)
    assert floor(Work(1.0, {"a": 4.0, "b": 4.0}), rates).seconds == 3.0
    assert floor(Work(1.0, {"a": 4.0, "b": 4.0}, serial=False), rates).seconds == 2.0
    assert floor(Work(1.0, {"a": 4.0}), rates).bound == "a"
    assert floor(Work(1.0, {"unknown": 4.0}), rates) is None
    assert floor(Work(), rates) is None


def test_picks_include_the_edges():
    picks = Picks.of(100, 3)
    assert {0, 99} <= set(picks.rows)
    assert picks.columns == [0, 1, 2]
    assert len(picks.rows) < 100


def test_a_row_has_everything():
    target = (Target("faster", 1e-9, "torch.cdist"), Target("rate", 1.0), Target("seconds", 1e9), Target("floor", 2.0))
    row = run.measure(case(targets=target, elements=3e3), suite(), STAMP, SETTINGS)
    assert row["status"] == "ok"
    assert list(row["results"]) == ["kernmantle", "torch.cdist"]
    for found in row["results"].values():
        assert 0 < found["minimum"] <= found["p20"] <= found["median"] <= found["p80"]
        assert found["samples"] == 3
    assert row["floor"] == {"seconds": 4e-6, "bound": "bytes"}
    assert [found["met"] for found in row["targets"]] == [True, True, True, False]
    ours, theirs = (row["results"][name]["median"] for name in row["results"])
    assert row["targets"][0]["found"] == theirs / ours
    assert row["targets"][1]["found"] == 3e3 / ours
    assert json.loads(json.dumps(row)) == row


def test_an_endless_call_is_timed_once():
    called = []

    def call(given):
        return lambda: called.append(1) or torch_l1(given)()

    plan = Plan(budget=0.0, least=3, most=3, sample=0.0, pause=0.0, endless=0.0)
    found = run.measure(case(peers=(Peer("slow", call),)), suite(), STAMP, run.Settings(plan))["results"]["slow"]
    assert (found["samples"], len(called)) == (1, 1)


def test_a_first_call_that_compiles_says_nothing_of_the_next():
    called = []

    def call(given):
        def own():
            called.append(1)
            time.sleep(0.2 if len(called) == 1 else 0.0)
            return torch_l1(given)()

        return own

    plan = Plan(budget=0.0, least=3, most=3, sample=0.0, pause=0.0, endless=0.2)
    peers = (Peer("compiled", call, compiles=True),)
    found = run.measure(case(peers=peers), suite(), STAMP, run.Settings(plan))["results"]["compiled"]
    assert found["samples"] == 3
    assert found["median"] < 0.2


def test_a_target_of_another_machine_says_nothing():
    row = run.measure(case(targets=(Target("seconds", 1.0, machine="H200"),)), suite(), STAMP, SETTINGS)
    assert row["targets"][0]["met"] is None


def off_by(amount, rows=slice(None)):
    def prepare(given):
        def call():
            result = torch_l1(given)()
            result[rows] += amount
            return result

        return call

    return prepare


@pytest.mark.parametrize("call", [off_by(1e-2), off_by(1e-2, slice(-1, None)), off_by(float("nan"), slice(0, 1))])
def test_a_wrong_result_of_ours_is_never_timed(call, monkeypatch):
    monkeypatch.setattr(run, "timed", lambda *arguments: pytest.fail("timed"))
    row = run.measure(case(call=call), suite(), STAMP, SETTINGS)
    assert row["status"] == "wrong"
    assert "tolerance" in row["results"]["kernmantle"]["reason"]
    assert "targets" in row
    assert store.done([row]) == set()


def test_a_wrong_result_of_the_wrong_shape_is_refused():
    row = run.measure(case(call=lambda given: lambda: torch_l1(given)().T), suite(), STAMP, SETTINGS)
    assert row["status"] in ("wrong", "failed")


def test_a_wrong_peer_is_left_out_and_named():
    peers = (Peer("wrong", off_by(1.0)), Peer("torch.cdist", torch_l1))
    row = run.measure(case(peers=peers), suite(), STAMP, SETTINGS)
    assert row["status"] == "ok"
    assert row["results"]["wrong"]["status"] == "wrong"
    assert "median" not in row["results"]["wrong"]
    assert "median" in row["results"]["torch.cdist"]


def test_peers_that_are_not_here_are_named():
    peers = (Peer("a", torch_l1, package="no-such-package"), Peer("b", package="kermac", remote="kermac.cdist"))
    results = run.measure(case(peers=peers), suite(), STAMP, SETTINGS)["results"]
    assert "not installed" in results["a"]["reason"]
    assert "--peer kermac=PYTHON" in results["b"]["reason"]


def failing(given):
    return lambda: torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_failing_call_is_a_row_that_is_tried_again():
    row = run.measure(case(call=failing), suite(), STAMP, SETTINGS)
    assert row["status"] == "failed"
    assert store.done([row]) == set()


@pytest.mark.parametrize("problem", [
    problems.distances(6, 7, 5, 1.3), problems.own_distances(6, 5, 0.5), problems.laplace(6, 7, 5, 2.0),
    problems.least_sums(6, 7, 5), problems.row_sums(6, 7, 5),
])  # fmt: skip
def test_oracles_have_the_shape_of_the_picks(problem):
    given = {name: value.double().numpy() for name, value in problem.inputs("cpu").items()}
    picks = Picks([0, 4, 5], [0] if problem.shape[1] == 1 else [1, 2])
    assert problem.exact(given, picks).shape == (3, len(picks.columns))


def test_rows_survive_an_interrupted_run(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    store.append(path, {"case": "a"})
    with path.open("a") as file:
        file.write('{"case": "b", "resu')
    store.append(path, {"case": "c"})
    assert store.read(path) == [{"case": "a"}, {"case": "c"}]
    assert store.read(tmp_path / "absent") == []


@pytest.mark.parametrize("change", ["machine", "versions", "source"])
def test_a_row_of_another_state_is_not_the_same(change):
    row = {"case": "a", "definition": "d", "stamp": STAMP, "status": "ok", "results": {}}
    other = {**row, "stamp": {**STAMP, change: "other"}}
    assert store.identity(row) != store.identity(other)
    assert store.identity(row) == store.identity({**row, "date": "later", "stamp": {**STAMP, "commit": "next"}})
    assert store.identity(row) != store.identity({**row, "definition": "e"})


def test_a_resumed_run_skips_what_is_done(tiny, capsys):
    arguments, path, counted = tiny
    assert command.main([*arguments, "--case", "one"]) == 0
    assert (len(store.read(path)), len(counted)) == (1, 1)
    assert command.main(arguments) == 0
    assert [row["case"] for row in store.read(path)] == ["one", "two"]
    assert len(counted) == 2
    assert "1 of 2 cases were measured" in capsys.readouterr().out
    assert command.main([*arguments, "--again"]) == 0
    assert len(counted) == 4


def test_rows_are_written_one_by_one(tiny, monkeypatch):
    arguments, path, _ = tiny
    original = command.measure

    def measure(row, *rest):
        if row.name == "two":
            assert len(store.read(path)) == 1
            raise KeyboardInterrupt
        return original(row, *rest)

    monkeypatch.setattr(command, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert [row["case"] for row in store.read(path)] == ["one"]


def test_a_budget_leaves_the_rest_for_later(tiny, capsys):
    arguments, path, _ = tiny
    assert command.main([*arguments, "--budget", "-1"]) == 0
    assert store.read(path) == []
    assert "2 cases did not fit" in capsys.readouterr().out


def test_parts_are_all_of_what_is_due(tiny):
    arguments, path, _ = tiny
    for part in ("2/2", "1/2"):
        assert command.main([*arguments, "--part", part, "--output", str(path.with_name(part[0]))]) == 0
    assert [store.read(path.with_name(own))[0]["case"] for own in "12"] == ["one", "two"]
    assert command.main([*arguments, "--part", "4/4"]) == 0
    assert command.main([*arguments, "--part", "1/1"]) == 0
    assert [row["case"] for row in store.read(path)] == ["two", "one"]
    for text in ("0/2", "3/2", "1", "a/b"):
        with pytest.raises(SystemExit, match="2"):
            command.main([*arguments, "--part", text])


def test_a_wrong_case_is_the_exit_status(tiny, monkeypatch):
    arguments, _, _ = tiny
    monkeypatch.setattr(command, "SUITES", {"cpu": lambda: suite(case(call=off_by(1.0)))})
    assert command.main(arguments) == 1


def test_arguments_that_do_not_fit(tiny):
    arguments, _, _ = tiny
    with pytest.raises(ParameterError, match="it has one, two"):
        command.main([*arguments, "--case", "three"])
    with pytest.raises(ParameterError, match="PACKAGE=PYTHON"):
        command.main([*arguments, "--peer", "kermac"])
    with pytest.raises(SystemExit, match="2"):
        command.main([])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_gpu_suite_needs_a_gpu():
    with pytest.raises(DeviceError, match="needs an NVIDIA GPU"):
        command.main(["contraction"])


def test_suites_are_listed(capsys):
    assert command.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "min-plus" in out
    assert "p=1.3" in out
    for made in command.SUITES.values():
        rows = made().rows
        assert len({row.name for row in rows}) == len(rows)


def rows(seconds, name="l1"):
    """A row with a given median, spread of a tenth."""
    spread = {"median": seconds, "p20": 0.9 * seconds, "p80": 1.1 * seconds, "minimum": 0.8 * seconds, "samples": 9}
    peer = {"status": "ok", **{k: v * 20 for k, v in spread.items()}}
    return [
        {
            "case": name, "title": "L1 distances", "definition": "2048x2048, depth 256, f32, wall", "status": "ok",
            "suite": "cpu", "stamp": STAMP, "date": "2026-01-02T03:04:05+00:00", "targets": [],
            "floor": {"seconds": 0.01, "bound": "steps"},
            "results": {"kernmantle": {"status": "ok", **spread}, "torch.cdist": peer},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(("after", "word"), [(0.04, "slower"), (0.01, "faster"), (0.021, ""), (0.0225, "")])
def test_a_change_counts_beyond_the_noise(after, word):
    first, second = (made[0]["results"]["kernmantle"] for made in (rows(0.02), rows(after)))
    assert report.verdict(first, second) == word


def test_two_files_are_compared(tmp_path, capsys):
    for name, seconds in (("before", 0.02), ("after", 0.01)):
        for row in rows(seconds):
            store.append(tmp_path / name, row)
    store.append(tmp_path / "before", rows(1.0, "gone")[0])
    assert command.main(["--compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    out = capsys.readouterr().out
    assert "0.500" in out
    assert "faster" in out
    assert "gone" not in out


def test_the_table_of_the_readme_follows_from_the_rows(tmp_path, monkeypatch):
    page, kept = tmp_path / "README.md", tmp_path / "rows.jsonl"
    page.write_text("before\n<!-- begin generated: cpu -->\nold\n<!-- end generated: cpu -->\nafter\n")
    older = {**rows(0.7, "old")[0], "date": "2025-01-02T03:04:05+00:00", "stamp": {**STAMP, "source": "older"}}
    for row in (older, *rows(0.5), *rows(0.02)):
        store.append(kept, row)
    asked = ["readme", "--readme", str(page), "--output", str(kept)]
    assert command.main([*asked, "--check"]) == 1
    assert command.main(asked) == 0
    text = page.read_text()
    assert "| L1 distances | 20 ms | 400 ms |  | 20 x | 50% |" in text
    assert "2048 x 2048 points with 256 columns" in text
    assert "Abacus 9 (wood), 1 thread; torch 9.9; commit def; 2026-01-02." in text
    assert "old" not in text
    assert text.count("L1 distances") == 1
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert command.main([*asked, "--check"]) == 0


def test_a_suite_has_its_own_table_and_peers(tmp_path):
    page, kept = tmp_path / "README.md", tmp_path / "rows.jsonl"
    ends = [f"<!-- begin generated: {name} -->\nold {name}\n<!-- end generated: {name} -->" for name in readme.PEERS]
    page.write_text("\n".join(ends))
    for row in rows(0.02):
        row["results"]["kermac"] = {**row["results"]["torch.cdist"], "median": 0.08}
        store.append(kept, {**row, "suite": "contraction"})
    assert command.main(["readme", "--readme", str(page), "--output", str(kept)]) == 0
    text = page.read_text()
    assert "| L1 distances | 20 ms | 400 ms | 80 ms |  | 20 x | 50% |" in text
    assert "old cpu" in text
    assert "old contraction" not in text


def test_the_readme_and_its_plot_are_those_of_the_committed_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command.main(["readme", "--check"]) == 0
    other = tmp_path / "speed.svg"
    other.write_text((ROOT / readme.PLOT).read_text().replace("L1 distances: kernmantle", "L1 distances: kernmantle 1"))
    assert command.main(["readme", "--check", "--plot", str(other)]) == 1


def test_the_plot_of_the_readme_shows_every_suite(tmp_path):
    pytest.importorskip("matplotlib")
    kept = [row for path in sorted((ROOT / command.RESULTS).glob("*.jsonl")) for row in store.read(path)]
    shown = readme.plotted(kept)
    assert {suite: len(own) for suite, own in shown.items()} == {s: len(cases) for s, cases in readme.PLOTTED.items()}
    readme.draw(shown, tmp_path / "folder" / "speed.svg")
    text = (tmp_path / "folder" / "speed.svg").read_text()
    assert "H200" in text
    assert html.escape(readme.caption(shown), quote=False) in text


def test_markers_must_be_there():
    with pytest.raises(ParameterError, match="begin generated"):
        readme.insert("no markers", "cpu", "block")
    with pytest.raises(ParameterError, match="no rows"):
        readme.markdown([])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2345, "1.23 s"), (0.02, "20 ms"), (0.9996, "1000 ms"), (3.21e-5, "32.1 µs"), (2e-9, "0.002 µs")],
)
def test_durations(seconds, text):
    assert report.duration(seconds) == text


def test_the_terminal_names_contestants_and_reasons():
    row = run.measure(case(peers=(Peer("absent one", torch_l1, package="no-such-package"),)), suite(), STAMP, SETTINGS)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.terminal([row]))
    text = console.export_text()
    assert "case l1" in text
    assert "no-such-package is not installed" in text
    assert "target" not in text
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.terminal([{**row, "title": "distances of power 1.3, one set"}]))
    lines = console.export_text().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("distances of power" in line and "kernmantle" in line for line in lines)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.terminal([row], targets=True))
    assert "met" in console.export_text()


def test_a_page_has_every_contestant_and_says_how_much_faster(tmp_path, capsys):
    kept, out = tmp_path / "rows.jsonl", tmp_path / "page.html"
    for row in (*rows(0.5), *rows(0.02)):
        store.append(kept, row)
    with kept.open("a") as file:
        file.write('{"peer": "a row of another form", "ms": 1.0}\n{"suite": "tiles", "case": "another"}\n')
    assert command.main(["report", "--output", str(kept), "--html", str(out)]) == 0
    assert "Abacus 9" in capsys.readouterr().out
    text = out.read_text()
    assert "<td>L1 distances</td><td>20 ms</td><td>400 ms</td>" in text
    assert "<td>20 x</td><td>50%</td>" in text
    assert "Abacus 9 (wood), 1 thread; torch 9.9; commit def; 2026-01-02" in text
    assert "another form" not in text
    (group,) = pages.groups([kept])
    assert "| L1 distances | 20 ms | 400 ms |" in pages.markdown(group)
    assert ("<svg" in text) == ("<svg" in pages.page([kept])) == bool(pages.figure(group))


def test_a_report_of_nothing_says_so(tmp_path):
    with pytest.raises(ParameterError, match="no rows of a suite"):
        command.main(["report", "--output", str(tmp_path / "none")])
    assert "There are no rows" in pages.html([])


def test_titles_are_those_of_suites():
    assert set(pages.TITLES) <= set(command.SUITES) | {"many", structured_random.SUITE}


def test_a_second_call_is_no_rival(tmp_path):
    path = tmp_path / "rows.jsonl"
    for definition in ("warm", "another"):
        row = {
            "case": definition, "title": definition, "definition": definition, "status": "ok", "suite": "cpu",
            "stamp": STAMP, "date": "2026-01-02", "results": {"kernmantle": {"median": 2.0}, "later": {"median": 1.0}},
        }  # fmt: skip
        store.append(path, row)
    (group,) = pages.groups([path])
    assert group.peers == ["later"]
    assert "Distances and contractions: Abacus 9" in pages.page([path])
    assert "| warm | 2 s |  |  |  |" in pages.markdown(group)
    assert "| another | 2 s | 1 s | 0.5 x |  |" in pages.markdown(group)


def test_a_case_of_two_suites_is_shown_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    for suite, date in (("layers", "2026-01-03"), ("kron", "2026-01-02")):
        for case in ("shared", suite):
            row = {
                "case": case, "title": case, "definition": "", "status": "ok", "suite": suite, "stamp": STAMP,
                "date": date, "results": {"kernmantle": {"median": 2.0}},
            }  # fmt: skip
            store.append(path, row)
    assert {group.suite: [row["case"] for row in group.rows] for group in pages.groups([path])} == {
        "kron": ["kron"], "layers": ["shared", "layers"],
    }  # fmt: skip


def test_our_own_variants_are_no_rivals(tmp_path):
    path = tmp_path / "rows.jsonl"
    times = {"kernmantle": 2.0, "gradient of x alone": 1.0, "weights as given": 1.5, "shuffle": 6.0}
    row = {
        "case": "any", "title": "any", "definition": "", "status": "ok", "suite": "kron", "stamp": STAMP,
        "date": "2026-01-02", "results": {name: {"median": seconds} for name, seconds in times.items()},
    }  # fmt: skip
    store.append(path, row)
    (group,) = pages.groups([path])
    assert "| any | 2 s | 6 s | 1 s | 1.5 s | 3 x |  |" in pages.markdown(group)


def test_the_picture_is_an_image(tmp_path):
    pytest.importorskip("matplotlib")
    report.picture(rows(0.02), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes()[:4] == b"\x89PNG"


def test_the_roofline_is_of_what_bounds_each_case(tmp_path):
    pytest.importorskip("matplotlib")
    kept = [
        row | {"rates": {"steps": 1e6, "bytes": 1e6}, "results": {"kernmantle": {"status": "ok", "median": 0.02}}}
        for row in rows(0.02)
    ]
    ((name, resource, intensity, rate),) = roofline.points([*kept, *rows(0.02, "gone")], suite())
    assert (name, resource) == ("l1", "steps")
    assert (intensity, rate) == (pytest.approx(3e3 / 4e3), pytest.approx(3e3 / 0.02))
    roofline.draw(kept, suite(), tmp_path / "roofs.png")
    assert (tmp_path / "roofs.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ParameterError, match="no rows of tiny"):
        roofline.draw([], suite(), tmp_path / "roofs.png")


def test_the_stamp_names_the_machine_and_the_source(monkeypatch):
    found = machine.stamp("cpu")
    assert found["machine"]["cpu"]["cores"] >= 1
    assert found["versions"]["torch"] == torch.__version__
    assert len(found["source"]) == 12
    assert machine.short_name(found["machine"]).startswith(found["machine"]["cpu"]["architecture"])
    assert machine.version_of("no-such-package") == ""


def test_rates_of_instructions_are_measured():
    from benchmarks import calibrate

    adds, products = (calibrate.instruction_rate(mix, "f32", 1) for mix in ("sub-abs-add", "fma"))
    assert 1e8 < adds < 1e12
    assert products > 0.7 * adds


def test_a_probe_measures_new_processes():
    probe = Probe("import", "import", "import", (Target("seconds", 60.0),))
    row = run.measure(probe, suite(), machine.stamp("cpu"), run.Settings(Plan(least=1)))
    assert row["status"] == "ok"
    assert row["results"]["kernmantle"]["samples"] == 1
    assert row["targets"][0]["met"] is True


@pytest.mark.parametrize(("question", "processes"), [("cold f64", 1), ("hit", 3)])
def test_a_first_call_is_slower_than_the_second(question, processes):
    row = run.measure(Probe("p", "p", question), suite(), STAMP, run.Settings(Plan(least=processes)))
    assert row["results"]["second call"]["median"] < row["results"]["kernmantle"]["median"]


def interpreter():
    return {"torch": [sys.executable], "scipy": [sys.executable]}


def test_a_peer_in_another_interpreter():
    peers = (
        Peer("remote torch", package="torch", remote="torch.cdist", options={"p": 1.0}),
        Peer("remote scipy", package="scipy", remote="scipy.cdist", options={"metric": "cityblock"}),
        Peer("wrong metric", package="scipy", remote="scipy.cdist", options={"metric": "euclidean"}),
        Peer("unknown metric", package="scipy", remote="scipy.cdist", options={"metric": "nonsense"}),
        Peer("unknown call", package="scipy", remote="scipy.nonsense"),
    )
    with Remotes(interpreter()) as remotes:
        settings = run.Settings(PLAN, remotes, SETTINGS.rates)
        results = run.measure(case(peers=peers), suite(), STAMP, settings)["results"]
    assert results["remote torch"]["version"].startswith(torch.__version__.split("+")[0])
    assert results["remote torch"]["samples"] == results["remote scipy"]["samples"] == 3
    assert results["wrong metric"]["status"] == "wrong"
    assert "nonsense" in results["unknown metric"]["reason"]
    assert results["unknown call"]["status"] == "failed"


LEARNER = """
class RFM:
    def __init__(self, kernel, **how):
        self.kernel = kernel

    def fit(self, known, held, **how):
        self.slope = known[1].mean() * self.kernel.bandwidth

    def predict(self, held):
        return held[:, :1] * self.slope
"""
KERNELS_OF_LEARNER = """
class ProductLaplaceKernel:
    def __init__(self, bandwidth, exponent):
        self.bandwidth = bandwidth
"""


def test_a_peer_named_like_a_module_of_the_benchmark_is_the_package(tmp_path, monkeypatch):
    inner = tmp_path / "xrfm" / "rfm_src"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text(LEARNER)
    (inner / "__init__.py").write_text("")
    (inner / "kernels.py").write_text(KERNELS_OF_LEARNER)
    (tmp_path / "xrfm-7.0.dist-info").mkdir()
    (tmp_path / "xrfm-7.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: xrfm\nVersion: 7.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    draw = torch.Generator().manual_seed(0)
    shapes = {"x": (4, 3), "y": (4, 1), "held": (6, 3), "truth": (6, 1)}
    given = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    with Remotes({"xrfm": [sys.executable]}) as remotes:
        remote = remotes.of("xrfm", "xrfm")
        remote.load(given, "cpu")
        options = {"kernel": "ProductLaplaceKernel", "bandwidth": 2.0, "rounds": 1, "ridge": 1.0}
        assert remote.prepare("xrfm.scores", options) == "7.0"
        block = remote.check(Picks([0], [0, 1]))[0]
    found = 2.0 * given["y"].mean() * given["held"][:, :1]
    squares = (found - given["truth"]).double().square().mean()
    np.testing.assert_allclose(block[0, 0], squares.numpy())
    assert block[0, 1] == ((found > 0) == (given["truth"] > 0)).double().mean()


def test_a_peer_whose_process_ends_is_a_failure():
    peers = (Peer("dead", package="dead", remote="torch.cdist"),)
    with Remotes({"dead": [sys.executable, "-c", "raise SystemExit('no such module')"]}) as remotes:
        settings = run.Settings(PLAN, remotes, SETTINGS.rates)
        found = run.measure(case(peers=peers), suite(), STAMP, settings)["results"]["dead"]
    assert found["status"] == "failed"
    assert "no such module" in found["reason"]


H200 = {"fp32": 33.4e12, "mufu": 4.18e12, "fp16": 790e12 / 2, "bytes": 4.3e12}


@pytest.mark.parametrize(
    ("name", "milliseconds"), [("p=1", 55), ("p=1 own", 28), ("p=1.3", 220), ("p=1.5", 143), ("p=3", 83), ("p=2", 7)]
)
def test_floors_of_the_large_cases(name, milliseconds):
    found = floor(next(row for row in contraction.SUITE.rows if row.name == name).work, H200)
    assert round(1e3 * found.seconds) == milliseconds


def test_few_columns_are_bound_by_bytes():
    found = floor(next(row for row in contraction.SUITE.rows if row.name == "K=3").work, H200)
    assert found.bound == "bytes"
    assert found.seconds == pytest.approx(4 * (30000**2 + 2 * 90000) / 4.3e12)


def few(row):
    """A case of a table, small enough for a test."""
    return run.measure(row, suite(), STAMP, run.Settings(Plan(budget=0.0, least=1, most=1, pause=0.0)))


@pytest.mark.parametrize("name", ["sum", "logsumexp", "argmin", "any"])
def test_reductions_of_the_table_are_cases(name):
    row = few(tables.reduction_case(name))
    assert row["status"] == "ok", row["results"]


@pytest.mark.parametrize("name", ["exp", "pow", "where", "and", "not", "lt", "rcp"])
def test_operations_of_the_table_are_cases(name):
    row = few(tables.operation_case(OPS[name]))
    assert row["status"] == "ok", row["results"]


@pytest.mark.parametrize("name", ["Laplace", "Wendland", "NTK"])
def test_kernels_of_the_table_are_cases(name):
    row = few(tables.kernel_case(KERNELS[name]))
    assert row["status"] == "ok", row["results"]


def test_an_operation_with_another_value_is_wrong():
    row = few(tables.operation_case(replace(OPS["exp"], value=lambda a: math.exp(a) + 0.01)))
    assert row["results"]["kernmantle"]["status"] == "wrong"


def test_every_row_of_the_tables_is_a_case(monkeypatch):
    def names():
        return {row.name for row in tables.suite().rows}

    tables_of = {"reduce": REDUCTIONS, "operation": OPS, "kernel": KERNELS}
    wanted = {f"{kind} {name}" for kind, rows in tables_of.items() for name in rows}
    assert wanted | set(METRICS) == names()
    monkeypatch.setitem(REDUCTIONS, "total", replace(REDUCTIONS["sum"], name="total"))
    monkeypatch.setitem(OPS, "minus", replace(OPS["sub"], name="minus"))
    monkeypatch.setitem(METRICS, "mine", replace(METRICS["cityblock"], name="mine"))
    monkeypatch.setitem(KERNELS, "Own", replace(KERNELS["Laplace"], name="Own"))
    assert {"reduce total", "operation minus", "mine", "kernel Own"} <= names()
