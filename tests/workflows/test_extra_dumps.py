"""--also: statistics of everything and values of a few, judged by the best that both sides have."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.measure.pairs import measure
from npucmp.model import Pair, Statistics, TensorRef
from npucmp.report import answer_of
from tests.synthetic import chain, with_statistics, write_run

FAULT, FEW = {3: 1.02}, (2, 3, 4)
SAMPLE = Path(__file__).parent.parent.parent / "sample_dumps" / "msprobe_softmax"


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


def test_values_on_one_side_alone_leave_the_statistics_of_both(dumps):
    report = npucmp.compare(dumps["t"], dumps["g"], also=f"target={dumps['t_values']}")
    one = next(f for f in report.findings if (f.pair.operator.name, f.pair.slot) == (
        "Functional.linear.3.forward", "output:0"))  # fmt: skip
    assert one.measurement.moments is None
    assert one.measurement.statistics == (one.pair.target.statistics, one.pair.golden.statistics)
    (line,) = answer_of(report).remarks("out")
    assert "of the golden run with out/next_dump.json" in line
    assert line.endswith(f"--also target={dumps['t_values']} --also golden=DUMP")


def test_the_command_takes_them(dumps, tmp_path):
    words = ["compare", *(str(dumps[name]) for name in ("t", "g")), "--also", f"target={dumps['t_values']}"]
    words += ["--also", f"golden={dumps['g_values']}", "-o", str(tmp_path / "out")]
    got = CliRunner().invoke(group, words)
    assert got.exit_code == 1, got.output
    assert "BORN        Functional.linear.3.forward" in got.stdout
    assert "L1 statistics + L1 tensor" in got.stdout
    assert "3 operators are in both dumps, 9 tensors receive values" in got.stdout
    assert not (tmp_path / "out" / "next_dump.json").exists()


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


def test_the_framework_tells_the_side(dumps):
    for file in dumps["t"].rglob("dump.json"):
        file.write_text(
            file.read_text().replace('"mindspore"', '"pytorch"').replace("mindspore.Tensor", "torch.Tensor")
        )
    report = npucmp.compare(dumps["t"], dumps["g"], also=dumps["g_values"])
    assert report.comparisons[0].golden.detail == "mindspore · L1 statistics + L1 tensor"


def test_another_step_is_a_run_of_its_own(dumps):
    report = npucmp.compare(dumps["t"], dumps["g"], also=f"golden={dumps['of_step_7']}")
    assert [(side, run.step) for side, run in report.unpaired] == [("golden", 7)]


def test_a_dump_that_may_belong_to_several_runs(dumps, tmp_path):
    several = tmp_path / "several"
    for rank in range(2):
        with_statistics(write_run(several, chain(), rank=rank), alone=True)
    with pytest.raises(npucmp.NpucmpError, match="may belong to any of the target's step 0 rank 0, step 0 rank 1"):
        npucmp.compare(several, dumps["g"], also=f"target={dumps['t_values']}")


def test_a_broken_file_of_values_is_unreadable(dumps):
    file = next(dumps["t_values"].rglob("Functional.linear.3.forward.output.0.npy"))
    file.write_bytes(file.read_bytes()[:-8])
    also = [f"target={dumps['t_values']}", f"golden={dumps['g_values']}"]
    report = npucmp.compare(dumps["t"], dumps["g"], also=also)
    verdicts = {(f.pair.operator.name, f.pair.slot): f.verdict.value for f in report.findings}
    assert verdicts["Functional.linear.3.forward", "output:0"] == "unreadable"
    assert report.exit_status in (1, 2)


def test_a_real_dump_with_most_of_its_values_taken_away(tmp_path):
    """Statistics of all, values of the operators around the fault: the same root as with all values."""
    sides = {}
    for side in ("target", "golden"):
        for age in ("old", "new"):
            file = next((SAMPLE / side).rglob("dump.json"))
            dump = json.loads(file.read_text())
            place = tmp_path / f"{side}_{age}" / "step0" / "rank"
            place.mkdir(parents=True)
            if age == "old":
                text = json.dumps({**dump, "task": "statistics"}).replace('"data_name"', '"was"')
            else:
                few = {name: record for name, record in dump["data"].items() if ".softmax." in name}
                text = json.dumps({**dump, "data": few})
                shutil.copytree(file.parent / "dump_tensor_data", place / "dump_tensor_data")
            (place / "dump.json").write_text(text)
            sides[side, age] = tmp_path / f"{side}_{age}"
    whole = npucmp.compare(SAMPLE / "target", SAMPLE / "golden").roots[0]
    old = [sides[side, "old"] for side in ("target", "golden")]
    also = [f"{side}={sides[side, 'new']}" for side in ("target", "golden")]
    got = npucmp.compare(*old, also=also).roots[0]
    assert (got.pair.operator.name, got.cause) == (whole.pair.operator.name, whole.cause)
    assert got.output_error == whole.output_error


@pytest.mark.parametrize("lacks, computed", [({}, False), ({"mean": None}, True)])
def test_statistics_of_values_are_computed_where_the_record_lacks_some(tmp_path, lacks, computed):
    """Else both sides are rounded as the tool rounds."""
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0], np.float32))
    recorded = Statistics(2.0, 1.0, 1.5, 2.2360679)
    target = TensorRef("output:0", "float32", (2,), str(tmp_path / "x.npy"), "npy", recorded._replace(**lacks))
    golden = TensorRef("output:0", "float32", (2,), statistics=recorded)
    got = measure(Pair(0, "output:0", None, None, target, golden))
    exact = Statistics(2.0, 1.0, 1.5, float(np.sqrt(np.float64(5.0))))
    assert got.statistics[0] == (exact if computed else recorded)
