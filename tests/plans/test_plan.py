"""`npucmp plan`: words, files, run.sh, sizes."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as group
from npucmp.errors import DumpError, UsageError
from tests.synthetic import chain, with_statistics, write_run

KB = 8 * 16 * 4 + 16 * 16 * 4 + 8 * 16 * 4  # what an operator of chain reads and writes, in float32


def called(*words: object) -> tuple[int, str, str]:
    got = CliRunner().invoke(group, ["plan", *map(str, words)])
    if isinstance(got.exception, UsageError):  # which cli.main turns into the status 2
        return 2, got.stdout, str(got.exception)
    return got.exit_code, got.stdout, ""


@pytest.mark.parametrize(
    "words, told",
    [
        (["cmpare", "--framework", "pytorch"], "no question 'cmpare'; nearest: compare"),
        (["compare", "--framework", "pytoch"], "no framework 'pytoch'; nearest: pytorch"),
        (["compare", "--framework", "pytorch", "--side", "gold"], "side is 'gold'; nearest: target, golden"),
        (["compare", "--framework", "pytorch", "--steps", "a"], "--steps a: needs numbers or ranges"),
        (["compare", "--framework", "pytorch", "--disk", "1GB"], "--disk needs --from DUMP"),
        (["replay", "--framework", "pytorch", "--md5"], "replay needs more than md5; nearest: --values"),
        (["compare", "--framework", "acl", "--md5"], "acl does not record md5; nearest: --values, --statistics"),
        (["compare", "--framework", "pytorch", "--ops", "a*b"], "the tool expects parts of names"),
        (["compare", "--framework", "acl", "--ops", "conv*"], "the tool expects full names"),
        (["compare", "--framework", "tensorflow", "--ops", "a b"], "the adapter separates names by blanks"),
        (["compare", "--framework", "mindie", "--ops", "a,b"], "ATB separates names by commas"),
        (["compare", "--framework", "pytorch", "--layout", "tp=x"], "--layout tp=x: tp=x is no size of tp, cp, ep"),
        (["compare", "--framework", "pytorch", "--layout", "tp=9999,pp=9999"], "99,980,001 ranks; at most 262,144"),
        (["compare", "--framework", "acl", "--layout", "tp=2"], "acl has no plan for --layout; nearest: pytorch"),
        (["compare", "--framework", "mindie", "--layout", "tp=2"], "mindie has no plan for --layout"),
        (["compare", "--framework", "pytorch", "--level", "L3"], "--level is 'L3'; nearest: L0, L1, mix"),
        (["compare", "--framework", "acl", "--level", "mix"], "acl has no levels"),
        (["compare", "--framework", "pytorch", "--layout", "tp=2", "--level", "L1"], "--layout needs --level mix"),
        (["overflow", "--framework", "pytorch", "--layout", "tp=2"], "overflow does not put ranks together"),
    ],
)
def test_words_that_are_off(words, told, tmp_path):
    status, _, because = called(*words, "-o", tmp_path / "out")
    assert status == 2 and told in because
    assert not (tmp_path / "out").exists()


CONFIGS = [
    ("pytorch", "compare", {"ops": "*softmax*"}, ["tensor", "list"], ["softmax"]),
    ("pytorch", "compare", {"step": "0,2-4", "rank": "8"}, ["step"], [0, "2-4"]),
    ("pytorch", "compare", {"step": "0,2-4", "rank": "8"}, ["rank"], [8]),
    ("pytorch", "compare", {}, ["risk_level"], "ALL"),
    ("pytorch", "replay", {"level": "mix"}, ["level"], "mix"),
    ("pytorch", "compare", {}, ["level"], "L1"),
    ("pytorch", "check", {}, ["level"], "mix"),
    ("pytorch", "check", {}, ["step"], ["0-2"]),
    ("pytorch", "rerun-diff", {}, ["statistics", "summary_mode"], "md5"),
    ("pytorch", "overflow", {}, ["statistics", "summary_mode"], "statistics"),
    ("pytorch", "overflow", {}, ["precision"], "low"),  # with high msprobe 26.2 records neither Mean nor Norm
    ("pytorch", "compare", {"kind": "statistics"}, ["precision"], "low"),
    ("vllm", "compare", {"kind": "statistics"}, ["precision"], "low"),
    ("sglang", "compare", {"kind": "statistics"}, ["precision"], "low"),
    ("mindspore", "compare", {"kind": "statistics"}, ["precision"], "low"),
    ("pytorch", "overflow", {"kind": "values"}, ["task"], "tensor"),
    ("vllm", "compare", {}, ["step"], ["0-2"]),
    ("mindspore-graph", "compare", {"ops": "Default/*Conv2D-op?"}, ["common_dump_settings", "kernels"],
     ["name-regex(^(.*/)?Default..*Conv2D-op.$)"]),
    ("mindspore-graph", "compare", {"ops": "a"}, ["common_dump_settings", "dump_mode"], 1),
    ("mindspore-graph", "compare", {"rank": "1-2"}, ["common_dump_settings", "support_device"], [1, 2]),
    ("mindspore-graph", "rerun-diff", {}, ["common_dump_settings", "statistic_category"],
     ["max", "min", "l2norm", "md5"]),
    ("acl", "compare", {"ops": ["conv1", "a b"], "model": "net"}, ["dump", "dump_list"],
     [{"model_name": "net", "layer": ["conv1", "a b"]}]),
    ("acl", "overflow", {}, ["dump"], {"dump_path": "here/dump", "dump_debug": "on"}),
    ("acl", "compare", {"kind": "statistics", "step": "0,3-5"}, ["dump", "dump_step"], "0|3-5"),
    ("mindie", "compare", {"ops": ["word*", "LmHead"], "step": "1,5"}, ["op_name"], "word,LmHead"),
    ("mindie", "compare", {"step": "1,5"}, ["exec_range"], "1,5"),
    ("mindie", "compare", {"rank": "0,3"}, ["device"], "0,3"),
]  # fmt: skip


@pytest.mark.parametrize("framework, question, options, keys, wanted", CONFIGS)
def test_options_become_settings(framework, question, options, keys, wanted):
    files = npucmp.plan(question, framework, "here", **options).files
    (found,) = (json.loads(text) for name, text in files.items() if name.endswith(".json"))
    for key in keys:
        found = found[key]
    assert found == wanted


@pytest.mark.parametrize(
    "layout, options, ranks, told",
    [
        ("tp=2,pp=2", {}, ["0-3"], ""),
        ("tp=2,pp=2,cp=2,ep=2", {}, ["0-15"], ""),
        ("tp=1", {}, [], ""),  # a single card must have no rank
        ("tp=2,dp=2,pp=2", {}, ["0-1", "4-5"], "1 of 2 data-parallel replicas"),
        ("order=tp-pp-dp,tp=2,dp=2,pp=2", {}, ["0-3"], "--ranks 0-7 records all"),
        ("order=dp-tp,dp=2,tp=2", {}, [0, 2], "1 of 2 data-parallel replicas"),
        ("tp=2,dp=3", {"rank": "2-5"}, ["2-5"], "2 of 3 data-parallel replicas"),
        ("tp=2,dp=2", {"rank": "0-3"}, ["0-3"], ""),
        ("tp=2,dp=2", {"rank": [1, 2]}, [1, 2], "--ranks 1,2: no whole data-parallel replicas of tp=2,dp=2"),
        ("tp=2,dp=2", {"rank": "0-99999999999"}, ["0-99999999999"], "no whole data-parallel replicas"),
        ("tp=2", {"side": "golden"}, [], ""),
        ("tp=2", {"side": "golden", "rank": "0-1"}, [], "all ranks of the golden are recorded"),
    ],
)
def test_a_layout_asks_for_the_ranks_of_one_replica(layout, options, ranks, told):
    found = npucmp.plan("compare", "pytorch", "here", layout=layout, **options)
    config = json.loads(found.files["config.json"])
    assert (config["rank"], config["level"], config["task"]) == (ranks, "mix", "tensor")
    of_ranks = [note for note in found.notes if "replicas" in note or "golden are" in note]
    assert (told in of_ranks[0] and len(of_ranks) == 1) if told else not of_ranks


def test_nothing_is_written_over(tmp_path):
    """Unless it is asked for; all of it or nothing."""
    (tmp_path / "config.json").write_text("mine")
    (tmp_path / "next_dump.json").write_text("mine too")
    status, _, because = called("compare", "--framework", "pytorch", "-o", tmp_path)
    assert status == 2 and "config.json: exists already" in because and "--force" in because
    assert sorted(os.listdir(tmp_path)) == ["config.json", "next_dump.json"]
    assert called("compare", "--framework", "pytorch", "-o", tmp_path, "--force")[0] == 0
    assert json.loads((tmp_path / "config.json").read_text())["task"] == "tensor"
    assert (tmp_path / "next_dump.json").read_text() == "mine too"
    (tmp_path / "x" / "run.sh").mkdir(parents=True)
    with pytest.raises(DumpError, match="was not written"):
        npucmp.write_plan(npucmp.plan("compare", "pytorch", tmp_path / "x"), force=True)
    assert os.listdir(tmp_path / "x") == ["run.sh"]


@pytest.fixture
def before(tmp_path):
    """Statistics of two steps of a chain of 6 operators."""
    for step in range(2):
        with_statistics(write_run(tmp_path / "before", chain(), step), alone=True)
    return tmp_path / "before"


def listed(found: npucmp.Planned) -> list[str]:
    return json.loads(found.files["config.json"])["tensor"]["list"]


def test_an_earlier_dump_tells_the_size(before):
    found = npucmp.plan("compare", "pytorch", "here", before=before, step="0-3", rank="0-7")
    known = found.size.known
    assert found.size == (known * KB, 4, 8, known * KB * 32, known, known) and known >= 6
    assert npucmp.plan("compare", "pytorch", "here", before=before, kind="statistics").size.total < KB * known
    some = npucmp.plan("compare", "pytorch", "here", before=before, ops="*.linear.[35].*")
    assert listed(some) == ["Functional.linear.3.forward", "Functional.linear.5.forward"]
    assert (some.size.operators, some.size.each) == (2, 2 * KB)


def test_a_disk_takes_fewer_steps_then_the_first_operators(before):
    def planned(disk: int, **more: object) -> npucmp.Planned:
        return npucmp.plan("compare", "pytorch", "here", before=before, step="1-3", disk=disk, **more)

    whole = planned(10**9).size.each
    assert (planned(10**9).warnings, listed(planned(10**9))) == ((), [])
    two = planned(2 * whole)
    assert two.request.steps == ((1, 2),) and two.warnings == ("2 of 3 steps fit",) and two.size.total == 2 * whole
    few = planned(3 * KB + 1)
    assert few.request.steps == ((1, 1),) and few.size.total == 3 * KB
    assert listed(few) == [f"Functional.linear.{n}.forward" for n in range(3)]
    assert few.warnings[1].startswith(f"the first 3 of {whole // KB} operators in execution order fit")
    none = planned(KB - 1)
    assert none.warnings[-1] == "not even the first operator fits" and none.size.total == whole
    assert listed(planned(KB, ops="*linear.4*")) == ["Functional.linear.4.forward"]


def test_what_an_earlier_dump_does_not_tell(before, tmp_path):
    for words, told in (
        (["--framework", "acl"], "msprobe, which acl does not write; its dumps are cann"),
        (["--framework", "pytorch", "--ops", "Functional.liner.3.forward"], "nearest: Functional.linear.3.forward"),
        (["--framework", "pytorch", "--disk", "much"], "as in --disk 20GB"),
    ):
        status, _, because = called("compare", *words, "--from", before, "-o", tmp_path / "out")
        assert status == 2 and told in because
    assert called("compare", "--framework", "pytorch", "--from", tmp_path / "no", "-o", tmp_path / "out")[0] != 0
