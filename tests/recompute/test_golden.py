"""replay --golden: two replays side by side."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from npucmp import replay, write_reports
from npucmp.cli import npucmp as group
from npucmp.errors import UsageError
from npucmp.model import ReplayVerdict
from tests.recompute import kernels
from tests.recompute.craft import Dump

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32
X = np.random.default_rng(1).normal(size=(8, 32)).astype(F32)
RIGHT = kernels.softmax(X)
WRONG = RIGHT * F32(1.01)
needs_torch = pytest.mark.usefixtures("torch_is_there")


@pytest.fixture
def torch_is_there():
    pytest.importorskip("torch")


def dumps(folder, targets, goldens):
    """Softmaxes of X whose outputs these are."""
    for side, outs in (("target", targets), ("golden", goldens)):
        dump = Dump(folder / side)
        for at, out in enumerate(outs):
            dump.add(f"Functional.softmax.{at}.forward", [X.astype(out.dtype)], [out], {"dim": -1})
        dump.write()
    return folder / "target", folder / "golden"


def local_errors(out):
    wide = np.exp(X.astype(float) - X.max(-1, keepdims=True))
    wide /= wide.sum(-1, keepdims=True)
    away = np.abs(out - wide)
    relative = away / (wide + 1e-7)
    return relative.max(), relative.mean(), math.sqrt((away**2).mean())


@needs_torch
def test_who_is_wrong_and_by_how_much(tmp_path):
    target, golden = dumps(tmp_path, [RIGHT, WRONG, RIGHT, WRONG], [RIGHT, RIGHT, WRONG, WRONG])
    found = replay(target, golden=golden)
    clean, guilty, other, both = found.rows
    assert [row.verdict for row in found.rows] == [
        ReplayVerdict.CLEAN,
        ReplayVerdict.GUILTY,
        ReplayVerdict.CLEAN,
        ReplayVerdict.GUILTY,
    ]
    assert (clean.golden_mare_ratio, clean.vendor_level, clean.explanation) == (1.0, "L2", "")
    wanted = [a / b for a, b in zip(local_errors(WRONG), local_errors(RIGHT))]
    ratios = [guilty.golden_mare_ratio, guilty.golden_mere_ratio, guilty.golden_rmse_ratio]
    np.testing.assert_allclose(ratios, wanted, rtol=1e-6)
    assert guilty.vendor_level == "none"
    assert guilty.explanation.startswith("scaled by 1.01 explains it within ")
    assert guilty.explanation.endswith(" u; the golden is clean here: the target is wrong")
    assert other.explanation == "the golden is guilty here: the golden is wrong, not the target"
    assert both.explanation.endswith("; the golden is guilty here too") and both.golden_rmse_ratio == 1.0
    assert found.replays[0].golden == ("1 guilty in the golden, not in the target: Functional.softmax.2.forward",
                                       "1 guilty in both: Functional.softmax.3.forward")  # fmt: skip
    text = str(found)
    assert "golden  1 guilty in the golden, not in the target" in text and "golden's own call (level of the" in text
    write_reports(found, tmp_path / "report")
    with open(tmp_path / "report" / "replay.csv", newline="") as stream:
        assert [row["vendor_level"] for row in csv.DictReader(stream)] == ["L2", "none", "L2", "L2"]
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["golden"]["path"] == str(golden) and summary["levels"] == {"L2": 3, "none": 1}


@needs_torch
def test_a_wrong_golden_is_no_alarm_of_the_target(tmp_path):
    target, golden = dumps(tmp_path, [RIGHT], [WRONG])
    assert replay(target, golden=golden).exit_status == 0
    assert replay(golden, golden=target).exit_status == 1


@needs_torch
def test_other_types_have_no_ratio_and_include_holds_for_both(tmp_path):
    half = RIGHT.astype(np.float16)
    target, golden = dumps(tmp_path, [half, half], [RIGHT, RIGHT])
    found = replay(target, golden=golden, include="*softmax.1*")
    (row,) = found.rows
    assert (row.golden_rmse_ratio, row.vendor_level) == (None, "") and row.verdict is ReplayVerdict.CLEAN
    assert found.bytes_read < 3 * X.size * 4 + 2 * half.nbytes


@needs_torch
def test_runs_that_do_not_belong_together(tmp_path):
    target, golden = dumps(tmp_path, [RIGHT], [RIGHT])
    (golden / "step0").rename(golden / "step3")
    again = Dump(golden).add("Functional.softmax.0.forward", [X], [RIGHT], {"dim": -1}).write()
    (again / "step0").rename(again / "step4")
    with pytest.raises(UsageError, match="no step and rank is in both"):
        replay(target, golden=golden)


@needs_torch
def test_the_command(capsys, monkeypatch):
    side = str(SAMPLES / "msprobe_softmax")
    words = ["replay", f"{side}/target", "--golden", f"{side}/golden", "--include", "*softmax.1.forward"]
    monkeypatch.setattr("sys.argv", ["npucmp", *words])
    with pytest.raises(SystemExit) as end:
        group.main(words)
    assert end.value.code == 1
    out = capsys.readouterr().out
    assert "the golden is clean here: the target is wrong" in out and out.splitlines()[1].startswith("golden  ")
