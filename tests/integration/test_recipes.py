"""CONTRIBUTING.md, followed with made-up entries: a row, and what is expected of it, reach tests, pages and benchmarks.

The rows are written into a copy of the library and of its tests. The same is done with wrong rows, which must fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ..copied import Copy, named_for


@dataclass(frozen=True)
class Recipe:
    """What is written where: (file, text before which it goes, the row, a wrong row), then where it must turn up.

    The last of the files of tests is the one that finds a wrong row.
    """

    edits: tuple[tuple[str, str, str, str], ...]
    entry: str
    files: tuple[str, ...]
    page: str
    case: str


def _expected(file: str, before: str, text: str) -> tuple[str, str, str, str]:
    return file, before, text, text


RECIPES = {
    "a metric": Recipe(
        (
            (
                "src/kernmantle/pairwise/metrics.py", "    Metric(\n        \"braycurtis\"",
                '    Metric("madeup", "Σ w |x − y|", forms.ABSOLUTE, scipy="cityblock"),\n',
                '    Metric("madeup", "Σ w |x − y|", forms.SQUARES, scipy="cityblock"),\n',
            ),
        ),
        "madeup", ("tests/unit/test_distances.py",), "import tests.pages as d; print(d.metrics())",
        "madeup",
    ),
    "a reduction": Recipe(
        (
            (
                "src/kernmantle/ir/reductions.py", '    _monoid("sum"',
                '    _monoid("longest", "max", -math.inf, "largest again", "where(ge(t,sub(a,1e-9)),1,0)",\n'
                '            torch=("amax", "maximum"), reproducible=True),\n',
                '    _monoid("longest", "min", -math.inf, "largest again", "where(ge(t,sub(a,1e-9)),2,0)",\n'
                '            torch=("amin", "minimum"), reproducible=True),\n',
            ),
            _expected(
                "tests/oracle.py", '    "logsumexp": lambda',
                '    "longest": lambda values, axis: np.max(values, axis=axis, initial=-np.inf),\n',
            ),
            _expected("tests/oracle.py", '    "argmin": None', '    "longest": -np.inf,\n'),
        ),
        "longest",
        ("tests/unit/test_semirings.py", "tests/unit/test_reduction_rows.py", "tests/unit/test_reference.py"),
        "import tests.pages as d; print(d.reductions())", "reduce longest",
    ),
    "an operation": Recipe(
        (
            (
                "src/kernmantle/ir/ops.py", '        Op("floor"',
                '        Op("rint", 1, lambda a: round(a) if a - a == 0 else a, ("",), None, "rint", ("round",)),\n',
                '        Op("rint", 1, lambda a: a, ("",), None, "rint", ("round",)),\n',
            ),
            (
                "src/kernmantle/backends/cpu/spelling.py", '    "floor": _intrinsic("floor")',
                '    "rint": _intrinsic("rint"),\n', '    "rint": _intrinsic("floor"),\n',
            ),
            _expected("src/kernmantle/backends/cuda/spelling.py", '"floor": "floor"', '"rint": "::rint({})", '),
            _expected(
                "tests/backend/test_llvm_functions.py", '    "floor": lambda',
                '    "rint": lambda a, _: round(a) if math.isfinite(a) else a,\n',
            ),
        ),
        "rint",
        (
            "tests/unit/test_expr.py", "tests/unit/test_trace.py", "tests/unit/test_differentiate.py",
            "tests/backend/test_llvm_functions.py",
        ),
        "import tests.pages as d; print(d.operations())", "operation rint",
    ),
    "an operation of no library": Recipe(
        (
            (
                "src/kernmantle/ir/ops.py", '        _function("expm1"',
                '        _function("decay", ieee.total(lambda a: math.exp(-a)), "neg(n)", torch=()),\n',
                '        _function("decay", ieee.total(lambda a: math.exp(-a)), "n", torch=()),\n',
            ),
            (
                "src/kernmantle/backends/cpu/libm.py", '    "exp2": _exp2',
                '    "decay": lambda m, x: m.call("exp", m.neg(x)),\n',
                '    "decay": lambda m, x: m.call("exp", x),\n',
            ),
            _expected("src/kernmantle/backends/cuda/spelling.py", '"exp": "exp"', '"decay": "km::exp(-{0})", '),
            _expected(
                "src/kernmantle/backends/reference/evaluate.py", '    "rsqrt": _rsqrt',
                '    "decay": lambda x: math.e ** -x,\n',
            ),
            _expected("tests/unit/test_expr.py", '    "rsqrt": lambda', '    "decay": lambda x: np.exp(-x),\n'),
            _expected(
                "tests/backend/test_llvm_functions.py", '    "exp": mpmath.exp',
                '    "decay": lambda x: mpmath.exp(-x),\n',
            ),
            _expected(
                "tests/backend/test_llvm_functions.py", '    "exp": {0: 1',
                '    "decay": {0: 1, INF: 0, -INF: INF},\n',
            ),
        ),
        "decay",
        (
            "tests/unit/test_expr.py", "tests/unit/test_trace.py", "tests/backend/test_llvm_functions.py",
            "tests/unit/test_differentiate.py",
        ),
        "import tests.pages as d; print(d.operations())", "operation decay",
    ),
    "a kernel": Recipe(
        (
            (
                "src/kernmantle/pairwise/kernels.py", '    Row(\n        "Laplace"',
                '    Row("Madeup", "exp(−‖x − y‖²)", lambda s: exp(-s), _square, summary="made up"),\n',
                '    Row("Madeup", "exp(−‖x − y‖²)", lambda s: exp(-2 * s), _square, summary="made up"),\n',
            ),
            _expected("src/kernmantle/__init__.py", '    "Cauchy"', '    "Madeup",\n'),
            _expected("src/kernmantle/__init__.py", "    Wendland = _con", "    Madeup = _constructor\n"),
            _expected(
                "tests/kernel_oracles.py", '    "Laplace": lambda x, y,',
                '    "Madeup": lambda x, y: np.exp(-(_distance(x, y) ** 2)),\n',
            ),
            _expected("tests/kernel_oracles.py", '    "Laplace": ({},', '    "Madeup": ({},),\n'),
        ),
        "Madeup", ("tests/unit/test_kernels.py", "tests/integration/test_kernels.py"),
        "import tests.pages as d; print(d.kernels())", "kernel Madeup",
    ),
}  # fmt: skip


MARK = "-- the next page --"


class Rows(Copy):
    """The copy with rows of all recipes, the wrong ones or the right ones."""

    def __init__(self, root: Path, right: bool) -> None:
        edits = [edit for recipe in RECIPES.values() for edit in recipe.edits]
        super().__init__(root, [(file, before, text if right else wrong) for file, before, text, wrong in edits])
        self.files = [file for recipe in RECIPES.values() for file in (recipe.files if right else recipe.files[-1:])]

    @cache  # noqa: B019
    def pages(self) -> list[str]:
        """What is printed of each recipe's table, and last which benchmarks there are."""
        programs = [recipe.page for recipe in RECIPES.values()]
        listed = "from benchmarks.__main__ import main; main(['list'])"
        return self.run("-c", f"\nprint({MARK!r})\n".join([*programs, listed])).split(MARK)

    @cache  # noqa: B019
    def outcomes(self) -> str:
        """What the tests of the new rows came to, a line each."""
        names = " or ".join(recipe.entry for recipe in RECIPES.values())
        return self.tests("-k", f"{names} or special_values", *self.files)

    def results(self, file: str, entry: str) -> set[str]:
        """Outcomes of the tests of a file that are of this entry or of the whole table."""
        whole = "special_values" if entry == "rint" else entry
        lines = re.findall(rf"^(PASSED|FAILED|ERROR) {re.escape(file)}::(\S+)", self.outcomes(), re.MULTILINE)
        return {result for result, name in lines if entry in name or whole in name}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(tmp_path_factory.mktemp("right"), True)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(tmp_path_factory.mktemp("wrong"), False)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_new_row_is_tested_and_right(right, name):
    recipe = RECIPES[name]
    for file in recipe.files:
        assert right.results(file, recipe.entry) == {"PASSED"}, right.outcomes()[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_wrong_row_is_found(wrong, name):
    recipe = RECIPES[name]
    assert "FAILED" in wrong.results(recipe.files[-1], recipe.entry)


@pytest.mark.parametrize("name", RECIPES)
def test_the_new_row_is_on_its_page(right, name):
    page = dict(zip(RECIPES, right.pages(), strict=False))[name]
    assert f"`{RECIPES[name].entry}`" in page, page[-2000:]


def test_the_new_rows_are_benchmarks(right):
    listed = right.pages()[-1]
    cases = {case.strip() for case in re.sub(r"\s+", " ", listed).replace("tables:", ",").split(",")}
    assert {recipe.case for recipe in RECIPES.values()} <= cases


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_of_recipes_names_every_file_that_is_touched(name):
    assert {file for file, *_ in RECIPES[name].edits} <= named_for("a scalar operation" if "oper" in name else name)
