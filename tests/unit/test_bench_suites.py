"""The suites of products and of feature learning: everybody's result is right on small cases, and a bad one is seen."""

from dataclasses import replace

import pytest

from benchmarks import apply, attention, problems, scores, unseen, xrfm
from benchmarks.case import Peer

from ..measured import check_scores, measured, statuses


def of_torch(wrong):
    """Feature learning by its definition in float32, with some more ridge."""

    def prepare(given):
        y = given["y"] * (1 + wrong)
        return lambda: xrfm.scores(xrfm._by_definition(given["x"], y, given["held"]), given["truth"])

    return prepare


def test_feature_learning_is_checked_by_its_definition():
    case = xrfm._case(300)
    found = measured(replace(case, peers=(Peer("right", of_torch(0.0)), Peer("wrong", of_torch(0.02)))))["results"]
    assert [found[name]["status"] for name in ("kernmantle", "right", "wrong")] == ["ok", "ok", "wrong"], found
    assert found["kernmantle"]["error"] < xrfm.SAME
    own = {"wrong": 0.02, "worse": 0.3}
    peers = tuple(Peer(name, of_torch(off), accuracy=0.08) for name, off in own.items())
    found = measured(replace(case, peers=peers))["results"]
    assert [found[name]["status"] for name in ("kernmantle", "wrong", "worse")] == ["ok", "ok", "wrong"], found
    assert xrfm.SAME < found["wrong"]["error"] < 0.08


@pytest.mark.parametrize("columns", [1, 16])
def test_products_are_those_of_the_matrix(columns):
    case = apply._case((300, 400, 3), columns, {apply.TORCH: apply.dense}, clock="wall")
    half = Peer("half", lambda given: lambda: apply.dense(given)() / 2)
    assert statuses(replace(case, peers=(*case.peers, half))) == {
        "kernmantle": "ok",
        apply.TORCH: "ok",
        "half": "wrong",
    }


def test_the_full_suite_adds_what_takes_minutes():
    few, all_ = ({row.name for row in apply.suite(full).rows} for full in (False, True))
    assert few < all_


SMALL = (
    scores.nearest(30, 40, 5, 3, "f32", 1.0),
    scores.nearest(30, 40, 5, 3, "bf16", 1.0),
    scores.nearest(20, 50, 3, 4, "f32", 1.0, p=1.0),
    scores.product(30, 40, 3, 2, 1.0),
    scores.gradients(30, 3, 2, 1.0),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_scores_are_those_written_out(case):
    check_scores(case)


@pytest.mark.parametrize("place", range(4))
def test_matrices_of_the_scores_are_those_written_out(place):
    case = scores._grams()[place]
    of = (scores._log_semiring, problems.least_sums, scores._positions, scores._cosines)[place]
    found = statuses(replace(case, problem=of(20, 30, 7), clock="wall"))
    assert set(found.values()) == {"ok"}, found


@pytest.mark.parametrize("case", unseen.suite(part=200).rows, ids=lambda case: case.name)
def test_unseen_calls_are_those_written_out(case):
    check_scores(replace(case, peers=()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: attention._tangent("f32", 1.0),
        lambda: attention._any_score("L1"),
        lambda: attention._any_score("tropical"),
        lambda: attention._sinkhorn("sqeuclidean", 1.0),
        lambda: attention._sinkhorn("cityblock", 1.0),
    ],
    ids=["tangent", "L1", "tropical", "squares", "cityblock"],
)
def test_attention_and_soft_minima_are_those_written_out(make, monkeypatch):
    small = {"ITEMS": 1, "HEADS": 2, "LENGTH": 64, "ROWS": 128, "_FEW_HEADS": 2, "_FEW_ROWS": 48, "POINTS": 70}
    for name, value in small.items():
        monkeypatch.setattr(attention, name, value)
    check_scores(make())
