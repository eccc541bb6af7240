"""The command line: every row of its table, and what the commands print."""

import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch

from kernmantle import __version__
from kernmantle.cli import COMMANDS, cache, check, info, main
from kernmantle.errors import BackendError
from kernmantle.pairwise import CONSTRUCTORS
from kernmantle.pairwise.metrics import METRICS
from kernmantle.runtime.cache import Built, Cache, Key

from ..source import ROOT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "usage: " in capsys.readouterr().out


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert all(name in said and text in said for name, (_, text) in COMMANDS.items())


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(name in out and text in out for name, (_, text) in COMMANDS.items())


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"], ["cache", "nonsense"], ["cache", "prune", "much"], ["inspect", "a * b", "--size", "0"],
        ["inspect", "a * b", "--size=-3"], ["inspect", "a * b", "--size", "much"],
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: kernmantle" in capsys.readouterr().err


def test_the_benchmarks_are_those_of_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "list"]) == 1
    said = capsys.readouterr().err
    assert "kernmantle bench: " in said
    assert "clone of the repository" in said
    assert len(said.splitlines()) == 1
    monkeypatch.chdir(ROOT)
    assert main(["bench", "list"]) == 0
    assert "tables:" in capsys.readouterr().out


def test_the_demonstration_and_info_need_no_benchmarks():
    code = "import sys, kernmantle.cli.demo, kernmantle.cli.info; print('benchmarks' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "False"


def test_as_a_module():
    command = [sys.executable, "-m", "kernmantle", "--version"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == ["kernmantle", __version__]


def test_cache_lists_prunes_and_clears(tmp_path, capsys):
    kept = Cache(tmp_path)
    for source in ("one", "two"):
        kept.fetch(Key("cpu:avx2", "compiler 1", source, name=f"gram {source}"), lambda: Built(bytes(3000)))
    at = ["cache", "--directory", str(tmp_path)]
    assert main(at) == main([*at, "list"]) == 0
    out = capsys.readouterr().out
    assert out.count("gram") == 4
    assert out.count("2 kernels, ") == 2
    assert main([*at, "prune", "4k"]) == 0
    assert "removed 1 kernel, freed 3.3 kB" in capsys.readouterr().out
    assert main([*at, "clear"]) == 0
    assert "freed 3.3 kB" in capsys.readouterr().out
    assert main(at) == 0
    assert "0 kernels, 0 bytes" in capsys.readouterr().out


def test_the_table_of_the_cache_fits_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    kept = Cache(tmp_path)
    for number in range(cache.SHOWN + 3):
        key = Key("x86_64-unknown-linux-gnu", "compiler 1", str(number), name=f"gram {number} tile 4x32 " + "x" * 90)
        kept.fetch(key, lambda: Built(bytes(3000)))
    assert main(["cache", "--directory", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("gram" in line for line in lines) == cache.SHOWN
    assert all(len(line) <= 80 for line in lines[:-1])
    assert "and 3 more" in lines[-2]
    assert main(["cache", "--directory", str(tmp_path), "list", "--all"]) == 0
    assert capsys.readouterr().out.count("gram") == cache.SHOWN + 3


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("12", 12), ("500k", 500_000), ("1.5GB", 1_500_000_000)])
def test_sizes(text, size):
    assert cache._bytes(text) == size


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d")]
)
def test_ages(seconds, text):
    assert cache._age(seconds) == text


def test_info_prints_every_section(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for word in ("versions", torch.__version__, "devices", "backends", "extras", "cache", "self-check"):
        assert word in out
    assert out.count("agrees") == len(check.CHECKS) * len(check.devices())


@pytest.mark.parametrize("name", [each.name for each in check.CHECKS])
def test_a_self_check_finds_what_is_wrong(name):
    one = next(each for each in check.CHECKS if each.name == name)
    assert check.outcome(one, "cpu") == "agrees"
    wrong = replace(one, exact=lambda given: one.exact(given) + 1)
    assert check.outcome(wrong, "cpu").startswith("wrong: ")

    def failing(given):
        raise BackendError("there is no compiler\nand more")

    assert check.outcome(replace(one, call=failing), "cpu") == "no: there is no compiler"


def test_a_failed_self_check_is_the_exit_status(monkeypatch, capsys):
    wrong = replace(check.CHECKS[0], exact=lambda given: np.zeros((37, 53)))
    monkeypatch.setattr(info.check, "results", lambda: [(wrong.name, [check.outcome(wrong, "cpu")])])
    assert main(["info"]) == 1
    assert main(["info", "--no-check"]) == 0


def test_brackets_of_extras_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(info, "_requirements", lambda: ["no-such-thing>=1; extra == 'cuda13'"])
    assert main(["info", "--no-check"]) == 0
    assert "'.[cuda13]'" in "".join(capsys.readouterr().out.split())


def test_backends_are_tried():
    assert info.backend_state("llvm") == "works"
    assert info.backend_state("reference") == "works"
    assert (info.backend_state("cuda") == "works") == torch.cuda.is_available()


def test_a_backend_that_errs_is_reported(monkeypatch):
    monkeypatch.setattr(info, "contract", lambda *arguments: torch.zeros(2, 2))
    assert info.backend_state("llvm") == "no: its results are wrong on this machine"


def test_extras_are_read_from_the_package():
    rows = dict(info.extras(['torch>=2; extra == "a"', "no-such-thing>=1 ; (linux) and extra == 'b'", "numpy"]))
    assert rows == {"a": "installed", "b": "missing no-such-thing; in a checkout: pip install '.[b]'"}
    assert info.extras([])[0][0] == "unknown"


def test_an_uninstalled_package_has_no_requirements(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(info.metadata, "requires", missing)
    assert info._requirements() == []


def test_inspect_prints_expression_derivative_plans_and_sources(capsys):
    assert main(["inspect", "abs(a - b)**p", "--epilogue", "s ** (1 / p)", "--size", "512"]) == 0
    out = capsys.readouterr().out
    assert "mk,nk->mn: sum abs(x0 - x1) ** p0 -> s0 ** rcp(p0)" in out
    assert "gradient by x0" in out
    assert "sign(x0 - x1)" in out
    assert "plan for sm_90" in out
    assert '#include "gram.cuh"' in out
    assert "define" in out


def test_the_page_shows_what_inspect_prints(capsys):
    page = (ROOT / "docs" / "command_line.md").read_text().partition("```c++")[2].partition("```")[0]
    assert main(["inspect", "abs(a - b) ** p", "--source", "cuda"]) == 0
    out = capsys.readouterr().out
    shown = [part for line in page.splitlines() for part in line.split("...")[0].split("s.r0 = s.r0")]
    assert len(shown) > 4
    assert [part for part in shown if part.strip(" ;") not in out] == []


def test_inspect_takes_a_lambda_as_it_is_written_in_a_program(capsys):
    texts = []
    for text in ("abs(a - b) ** p", "lambda x, y, p: abs(x - y) ** p", "lambda x, y, *, p: abs(x - y) ** p"):
        assert main(["inspect", text, "--source", "none"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("name", [*METRICS, *CONSTRUCTORS, "gaussian"])
def test_inspect_takes_names_of_metrics_and_kernels(name, capsys):
    assert main(["inspect", name, "--source", "none"]) == 0
    out = capsys.readouterr().out
    assert "mn: " in out.splitlines()[1]
    assert "plan for this CPU" in out
    texts = {"canberra": "abs(x0 - x1) / (abs(x0) + abs(x1))", "gaussian": "-> exp(-(s0 / (p0 * p0 * 2)))"}
    assert texts.get(name, "plan") in out
    assert main(["inspect", name, "--reduce", "max"]) == 1
    assert "leave out --reduce" in capsys.readouterr().err


def test_inspect_says_which_name_is_close(capsys):
    assert main(["inspect", "canbera"]) == 1
    assert "'canbera' is the name of no metric and no kernel; 'canberra' is the closest" in capsys.readouterr().err
    assert main(["inspect", "l1", "--source", "none"]) == 0
    assert "abs(x0 - x1)" in capsys.readouterr().out


def test_inspect_takes_operands_by_their_usual_names_and_functions_of_modules(capsys):
    texts = []
    for text in ("exp(a - b) * p", "exp(x - y) * p", "lambda u, v, p: km.exp(u - v) * p", "np.exp(x - y) * p"):
        assert main(["inspect", text, "--source", "none"]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1


def test_the_demonstration_on_a_device_that_is_not_there_is_one_line(capsys):
    for device, message in (
        (f"cuda:{torch.cuda.device_count()}", "CUDA devices; use"),
        ("tpu", "invalid device 'tpu'"),
    ):
        assert main(["demo", "--device", device]) == 1
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


def test_inspect_of_what_has_no_derivative(capsys):
    assert main(["inspect", "a + b", "--reduce", "argmin", "--source", "none", "--card", "sm_120"]) == 0
    out = capsys.readouterr().out
    assert "argmin has none" in out
    assert "plan for sm_120" in out
    assert "#include" not in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a +", "not an expression"),
        ("q - k", "lambda q, k: q - k"),
        ("a if a > b else b", "use where(condition, a, b)"),
        ("lambda a: a", "must take 2 operands"),
        ("a.real + b", "Attribute"),
        ("open(a)", "calls 'open'"),
        ("[a for a in b]", "ListComp"),
    ],
)
def test_inspect_takes_expressions_only(text, message, capsys):
    assert main(["inspect", text]) == 1
    assert message in capsys.readouterr().err
