"""npucmp replay, from the dump to the exit status."""

import csv
import json
from pathlib import Path

import click
import numpy as np
import pytest

from npucmp import replay
from npucmp.cli import npucmp as group
from npucmp.errors import UsageError
from npucmp.model import ReplayVerdict
from npucmp.recompute.report import COLUMNS
from tests.recompute import kernels
from tests.recompute.craft import Dump

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent
SAMPLES = ROOT / "sample_dumps"
SHARED = ROOT.parent / "shared" / "data" / "msprobe"
F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def guilty(found):
    return [one.operators[row.order].name for one in found.replays for row in one.guilty]


def exp16(x):
    """In float16."""
    return np.exp(x.astype("f2")).astype(F32)


def softmaxes(folder, coarse):
    """Five calls, those of `coarse` with an exp in float16."""
    dump = Dump(folder)
    for at in range(5):
        x = normal(16, 48, seed=at)
        out = kernels.softmax(x, exp16 if at in coarse else kernels.exp)
        dump.add(f"Functional.softmax.{at}.forward", [x], [out], {"dim": -1})
    return dump.write()


@pytest.mark.parametrize("sample, wanted", [
    ("msprobe_softmax", ["Functional.softmax.1.forward"]),
    ("msprobe_clean", []),
    ("msprobe_bfloat16", []),
    ("msprobe_extra_operator", []),  # the network's own argument: the operator computes what it was told
])  # fmt: skip
def test_samples(sample, wanted):
    found = replay(SAMPLES / sample / "target")
    assert guilty(found) == wanted
    assert found.exit_status == bool(wanted)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared dumps are not beside this checkout")
@pytest.mark.parametrize("dump, wanted", [
    ("bert/A", None),
    ("bert/C", None),  # bfloat16 autocast
    ("bert/D", "Functional.layer_norm.2"),
    ("bert/E", "Functional.softmax.1"),
    ("vit/A", None),
    ("vit/B", "Functional.softmax.1"),
])  # fmt: skip
def test_shared_dumps(dump, wanted):
    """As their manifest tells; a call that is guilty forward may be so backward."""
    found = replay(SHARED / dump)
    assert {name.rpartition(".")[0] for name in guilty(found)} == ({wanted} if wanted else set())
    assert f"{wanted}.forward" in guilty(found) or wanted is None
    assert {row.status for row in found.rows} <= {"replayed", "another autograd node"}


def test_a_dump_without_calls_is_undecided():
    found = replay(SAMPLES / "npy_batch_norm" / "target")
    assert found.exit_status == 2 and {row.status for row in found.rows} == {"no data"}
    screen = str(found).splitlines()
    assert "No operator could be replayed" in screen and "No operator is guilty" not in screen
    assert screen[-1].startswith("UNDECIDED: no operator could be replayed")


def test_all_of_a_kind_are_explained_and_one_is_guilty(tmp_path):
    every = replay(softmaxes(tmp_path / "all", range(5)))
    assert every.exit_status == 1 and {row.verdict for row in every.rows} == {ReplayVerdict.AMPLIFIER}
    (words,) = every.replays[0].peers
    assert words.startswith("all 5 Functional.softmax.forward output:0 exceed their budget")
    assert every.replays[0].settings == (words,) and f"setting  {words}" in str(every)
    assert str(every).splitlines()[-1].startswith("SETTING: 1 setting of the device, no operator alone, 0 outputs")
    one = replay(softmaxes(tmp_path / "one", [3]))
    assert one.exit_status == 1 and guilty(one) == ["Functional.softmax.3.forward"]
    assert one.replays[0].peers == ()


def test_products_in_hf32_are_a_setting_whatever_their_size(tmp_path):
    """One of them with a lost tile besides is guilty."""
    dump = Dump(tmp_path)
    for at, terms in enumerate((8, 64, 256, 1024)):
        a, b = normal(24, terms, seed=at), normal(terms, 16, seed=at + 9)
        out = kernels.matmul(kernels.hf32(a), kernels.hf32(b), block=8)
        if at == 2:
            out[:8, :8] = 0
        dump.add(f"Torch.matmul.{at}.forward", [a, b], [out])
    found = replay(dump.write())
    assert guilty(found) == ["Torch.matmul.2.forward"]
    assert found.replays[0].peers[0].startswith("all 4 Torch.matmul.forward output:0 exceed their budget")


def test_a_clean_run_tells_what_is_due(tmp_path):
    coarse, worse = softmaxes(tmp_path / "clean", [0, 1]), softmaxes(tmp_path / "dump", [0, 1, 2])
    assert len(guilty(replay(worse))) == 3
    assert guilty(replay(worse, budget_from=coarse)) == []
    assert guilty(replay(worse, budget=1e4)) == []


def test_choice_of_operators_and_files(tmp_path):
    from npucmp import write_reports

    found = replay(SAMPLES / "msprobe_softmax" / "target", include="*softmax*forward")
    assert len(found.rows) == 2 and found.exit_status == 1
    write_reports(found, tmp_path)
    with open(tmp_path / "replay.csv", newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == COLUMNS and len(rows) == 2
    cells = dict(zip(header, rows[1]))
    assert (cells["op"], cells["verdict"], cells["status"]) == ("Functional.softmax.1.forward", "GUILTY", "replayed")
    assert float(cells["rms_ratio"]) > 1e4 and cells["budget"] == "noise" and cells["stack"].startswith("make.py:67")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdicts"] == {"CLEAN": 1, "GUILTY": 1} and summary["exit_status"] == 1
    assert summary["guilty"][0]["op"] == "Functional.softmax.1.forward"
    assert "Functional.softmax.1.forward" in (tmp_path / "report.html").read_text()


def test_the_screen_tells_who_and_how_much():
    text = str(replay(SAMPLES / "msprobe_softmax" / "target"))
    assert "GUILTY      Functional.softmax.1.forward  output:0" in text
    assert "replayed 61 of 62 outputs · 1 not replayed: another autograd node" in text
    assert text.splitlines()[-1].startswith("GUILTY: 1 operator does not match float64 of its own inputs, 60 outputs")


def test_bad_usage():
    with pytest.raises(UsageError, match="no engine 'jax'"):
        replay(SAMPLES / "msprobe_softmax" / "target", engine="jax")
    with pytest.raises(UsageError, match=r"no operator fits include='softmax'; nearest: \*softmax\*"):
        replay(SAMPLES / "msprobe_softmax" / "target", include="softmax")
    with pytest.raises(UsageError, match="nothing to replay"):
        replay(SAMPLES / "msprobe_softmax" / "target", include="*softmax*", exclude="*softmax*")


def test_the_command_has_the_fields_of_the_workflow(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["npucmp", "replay"])
    command = group.get_command(click.Context(group), "replay")
    target = str(SAMPLES / "msprobe_softmax" / "target")
    words = [target, "--engine", "torch", "--budget", "2", "--limit-memory", "4096", "-q", "--include", "*softmax*"]
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 1


def test_jobs_do_not_change_a_row():
    one, two = (replay(SAMPLES / "msprobe_bfloat16" / "target", jobs=jobs).rows for jobs in (1, 2))
    assert [row._replace(seconds=None) for row in one] == [row._replace(seconds=None) for row in two]


def test_strict_needs_every_output(tmp_path):
    dump = Dump(tmp_path).add("Torch.abs.0.forward", [normal(4)], [np.abs(normal(4))])
    dump.add("Torch.unheard_of.0.forward", [normal(4)], [normal(4)])
    found = replay(dump.write())
    assert (found.exit_status, found.rows[1].status) == (0, "not in table")
    assert replay(tmp_path, strict=True).exit_status == 2


def test_the_second_opinion_is_of_the_type_that_autocast_computes_in(tmp_path):
    """A loss in float32 of logits in float16: a CPU that computed in float16 would be as far off."""
    logits, labels = normal(40, 30).astype(np.float16), np.arange(40) % 30
    wide = logits.astype(float)
    right = np.mean(np.log(np.exp(wide).sum(-1)) - wide[np.arange(40), labels])
    for name, loss, wanted in (("right", right, ReplayVerdict.CLEAN), ("wrong", right * 1.0003, ReplayVerdict.GUILTY)):
        dump = Dump(tmp_path / name)
        row = dump.add("Functional.cross_entropy.0.forward", [logits, labels], [np.array(loss, F32)]).row()
        assert row.verdict is wanted and "scaled" not in row.explanation  # of one number any factor is right
