"""--also: statistics of everything and values of a few, judged by the best that both sides have."""

from __future__ import annotations

import math

import pytest

import npucmp
from npucmp.report import answer_of
from tests.synthetic import chain, with_statistics, write_run

FAULT, FEW = {3: 1.02}, (2, 3, 4)


@pytest.fixture
def dumps(tmp_path):
    """Statistics of both sides, and the values of the operators around the third."""

    def made(name, faults, few=None, **more):
        operators = chain(faults)
        if few is None:
            return with_statistics(write_run(tmp_path / name, operators, **more), alone=True)
        return write_run(tmp_path / name, {f"Functional.linear.{i}.forward": _of(operators, i) for i in few}, **more)

    return {
        "t": made("t", FAULT),
        "g": made("g", {}),
        "t_values": made("t_values", FAULT, FEW),
        "g_values": made("g_values", {}, FEW),
        "of_step_7": made("of_step_7", {}, FEW, step=7),
    }


def _of(operators, number):
    return operators[f"Functional.linear.{number}.forward"]


def test_values_of_a_few_prove_what_statistics_leave_open(dumps):
    before = npucmp.compare(dumps["t"], dumps["g"])
    first = before.roots[0]
    found = first.pair.operator.name, first.cause.value, first.output_error
    assert found == ("Functional.linear.3.forward", "BORN", math.inf)  # an error of unknown size
    assert "the statistics of the inputs agree; they do not show the order of elements" in first.because
    assert "by the statistics, rel_l2 is at least 2.00e-02" in first.because
    after = npucmp.compare(dumps["t"], dumps["g"], also=[f"target={dumps['t_values']}", f"golden={dumps['g_values']}"])
    root = after.roots[0]
    assert (root.cause.value, root.pair.operator.name) == ("BORN", "Functional.linear.3.forward")
    assert root.output_error == pytest.approx(0.02, rel=1e-3)
    measured = {f.pair.operator.name for f in after.findings if f.measurement.moments is not None}
    assert measured == {f"Functional.linear.{i}.forward" for i in FEW}
    assert len(after.findings) == len(before.findings)
    assert [*answer_of(after).texts()] == []


def test_recorded_figures_tell_the_side(dumps):
    """Both dumps are of one tool and one network: what was recorded of the new values is that of one side."""
    also = [with_statistics(dumps["g_values"]), with_statistics(dumps["t_values"])]
    report = npucmp.compare(dumps["t"], dumps["g"], also=also)
    assert report.roots[0].cause.value == "BORN"
    assert any("g_values" in note and "of 9 tensors" not in note for note in report.comparisons[0].golden.notes)


def test_the_folder_tells_the_side(dumps, tmp_path):
    """Where nothing else does: these have no figures."""
    for side in "tg":
        (tmp_path / f"of_{side}").mkdir()
        dumps[side].rename(tmp_path / f"of_{side}" / "old")
        dumps[f"{side}_values"].rename(tmp_path / f"of_{side}" / "new")
    old, new = ([tmp_path / f"of_{side}" / age for side in "tg"] for age in ("old", "new"))
    assert npucmp.compare(*old, also=new[::-1]).roots[0].cause.value == "BORN"


def test_what_fits_both_sides_is_asked_for(dumps):
    with pytest.raises(npucmp.NpucmpError, match=r"matches both sides; use also= ?target=.*t_values or also= ?golden="):
        npucmp.compare(dumps["t"], dumps["g"], also=dumps["t_values"])


@pytest.mark.parametrize("words", ["", "target="])
def test_a_dump_has_to_be_named(dumps, words):
    with pytest.raises(npucmp.NpucmpError, match=r"needs a dump, as in also= ?target=DUMP"):
        npucmp.compare(dumps["t"], dumps["g"], also=[words])


def test_another_step_is_a_run_of_its_own(dumps):
    report = npucmp.compare(dumps["t"], dumps["g"], also=f"golden={dumps['of_step_7']}")
    assert [(side, run.step) for side, run in report.unpaired] == [("golden", 7)]


def test_a_dump_that_may_belong_to_several_runs(dumps, tmp_path):
    several = tmp_path / "several"
    for rank in range(2):
        with_statistics(write_run(several, chain(), rank=rank), alone=True)
    with pytest.raises(npucmp.NpucmpError, match="may belong to any of the target's step 0 rank 0, step 0 rank 1"):
        npucmp.compare(several, dumps["g"], also=f"target={dumps['t_values']}")
