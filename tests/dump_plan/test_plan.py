"""`npucmp plan`: words, files, run.sh, sizes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import click
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


def section(text: str, title: str) -> list[str]:
    """The indented lines below "2. Run:"."""
    below = text.split(f" {title}:\n")[1].splitlines()
    return [line.strip() for line in below[: next(n for n, line in enumerate(below) if not line.startswith("  "))]]


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


def test_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, text, _ = called("compare", "--framework", "pytorch", "-o", "npu", "--steps", "3")
    assert status == 0
    assert section(text, "Add to the script") == [
        "from msprobe.pytorch import PrecisionDebugger, seed_all  # npucmp: at the top, before the model is created",
        "seed_all(seed=1234, mode=True, rm_dropout=True)  # npucmp",
        "debugger = PrecisionDebugger(config_path='npu/config.json')  # npucmp",
        "debugger.start(model=model)  # npucmp: at the beginning of each step",
        "debugger.stop(); debugger.step()  # npucmp: at the end of each step, after the optimizer",
    ]
    assert section(text, "Run") == ["bash npu/run.sh python train.py"]
    assert section(text, "For the other side") == [
        "npucmp plan compare --framework pytorch --side golden -o npu-golden --steps 3"
    ]
    assert section(text, "Then") == ["npucmp compare npu/dump npu-golden/dump -o report"]
    assert text.endswith("npu/config.json  npu/run.sh  npu/plan.txt\n")
    assert text.startswith(Path("npu/plan.txt").read_text())


@pytest.mark.parametrize("framework", ["pytorch", "mindspore-graph", "tensorflow", "acl", "vllm", "mindie"])
def test_both_sides_name_each_other(framework, tmp_path, monkeypatch):
    """The command that is printed for the other side is understood, and ends in the same command for afterwards."""
    monkeypatch.chdir(tmp_path)
    _, first, _ = called("compare", "--framework", framework, "-o", "a b", "--statistics", "--ranks", "0-1")
    (other,) = section(first, "For the other side")
    status, second, _ = called(*shlex.split(other)[2:])
    assert status == 0 and Path("a b-golden/run.sh").is_file()
    assert section(second, "Then")[0].split(" -o ")[0].startswith(section(first, "Then")[0].split(" -o ")[0])
    assert shlex.split(section(second, "For the other side")[0])[2:] == [
        "compare", "--framework", framework, "--side", "target", "-o", "a b", "--statistics", "--ranks", "0-1"
    ]  # fmt: skip
    for text in (first, second):
        words = shlex.split(section(text, "Then")[0])
        command = group.get_command(click.Context(group), words[1])
        assert command.make_context(words[1], words[2:]).params["output"] == "report"


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


def test_a_layout_asks_for_the_optimizer_step_and_is_told_to_compare():
    for framework, trains in (("pytorch", True), ("mindspore", True), ("vllm", False), ("sglang", False)):
        found = npucmp.plan("compare", framework, "here", layout="tp=2, pp=2")
        assert any("stop after optimizer.step()" in note for note in found.notes) == trains
        assert found.then == ("npucmp compare here/dump here-golden/dump --layout 'tp=2, pp=2' -o report",)
        assert json.loads(found.files["config.json"])["level"] == "mix"
        golden = npucmp.plan("compare", framework, "here-golden", side="golden", layout="tp=2, pp=2")
        assert golden.then == found.then and shlex.split(found.other)[-2:] == ["--layout", "tp=2, pp=2"]
    assert not any("optimizer.step" in note for note in npucmp.plan("compare", "pytorch", "here").notes)


def test_a_layout_tells_the_size_of_all_its_ranks(before):
    assert npucmp.plan("compare", "pytorch", "here", before=before, layout="tp=2,pp=4").size.ranks == 8


def test_only_the_run_without_fusion_turns_it_off():
    for framework, switch in (
        ("tensorflow", "fusion_switch_file"),
        ("tensorflow2", "fusion_switch_file"),
        ("acl", "--fusion_switch_file="),
    ):
        for side, wanted in (("target", False), ("golden", True)):
            found = npucmp.plan("fusion-diff", framework, "here", side=side)
            told = "\n".join([*(line.code for line in found.script), *found.run])
            assert (switch in told, "fusion_switch.cfg" in found.files) == (wanted, wanted)
    for side, wanted in (("target", True), ("golden", False)):
        codes = [line.code for line in npucmp.plan("fusion-diff", "mindspore-graph", "here", side=side).script]
        assert f"mindspore.set_context(enable_graph_kernel={wanted})" in codes


def test_the_conversion_of_a_model_goes_with_its_dump():
    found = npucmp.plan("overflow", "acl", "here", model="it's").run
    assert shlex.split(found[0])[0] == "atc" and {"--output=it's", "--status_check=1"} <= {*shlex.split(found[0])}
    assert shlex.split(found[1])[1:] == ["--mode=1", "--om=it's.om", "--json=here/graph_model.json"]


def bash(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", *map(str, words)], capture_output=True, text=True, check=False, **more)


def test_run_sh_sets_the_environment_and_keeps_the_status(tmp_path):
    npucmp.write_plan(npucmp.plan("compare", "mindspore-graph", tmp_path / "a b"))
    got = bash(tmp_path / "a b" / "run.sh", "env")
    told = dict(line.split("=", 1) for line in got.stdout.splitlines() if "=" in line)
    assert told["MINDSPORE_DUMP_CONFIG"] == str(tmp_path / "a b" / "data_dump.json")
    assert told["MS_DIAGNOSTIC_DATA_PATH"] == str(tmp_path / "a b" / "dump")
    assert (told["PYTHONHASHSEED"], told["HCCL_DETERMINISTIC"]) == ("1234", "true")
    assert bash(tmp_path / "a b" / "run.sh", "sh", "-c", "exit 7").returncode == 7
    assert bash(tmp_path / "a b" / "run.sh").returncode == 2


def test_a_dump_in_the_way_is_told(tmp_path):
    npucmp.write_plan(npucmp.plan("compare", "pytorch", tmp_path))
    assert bash(tmp_path / "run.sh", "true").stderr == ""
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "step0").touch()
    got = bash(tmp_path / "run.sh", "true")
    assert "dump is not empty" in got.stderr and got.returncode == 0


def test_each_call_is_a_run_of_rerun_diff(tmp_path):
    """However it ends: a service is stopped by a signal."""
    found = npucmp.plan("rerun-diff", "pytorch", tmp_path)
    npucmp.write_plan(found)
    for ends in ("exit 0", "exit 3", "kill -INT $PPID; sleep 0.2"):
        bash(tmp_path / "run.sh", "sh", "-c", f"mkdir '{tmp_path}/dump'; {ends}")
    assert sorted(path.name for path in tmp_path.glob("run?")) == ["run1", "run2", "run3"]
    assert not (tmp_path / "dump").exists()
    assert found.run == (f"bash {tmp_path}/run.sh python train.py",) * 2
    assert found.then == (f"npucmp rerun-diff {tmp_path}/run1 {tmp_path}/run2 -o report",)


def test_results_of_fusion_go_with_the_dump(tmp_path):
    npucmp.write_plan(npucmp.plan("fusion-diff", "tensorflow", tmp_path / "on"))
    (tmp_path / "fusion_result.json").write_text("of an earlier run")
    bash(tmp_path / "on" / "run.sh", "sh", "-c", "echo new >> fusion_result.json", cwd=tmp_path)
    assert (tmp_path / "on" / "dump" / "fusion_result.json").read_text() == "new\n"
    assert [path.read_text() for path in tmp_path.glob("fusion_result.before.*.json")] == ["of an earlier run"]


def test_the_module_of_atb_is_loaded_around_the_command(tmp_path):
    npucmp.write_plan(npucmp.plan("compare", "mindie", tmp_path / "it's"))
    scripts = tmp_path / "home" / "msprobe" / "scripts" / "atb"
    scripts.mkdir(parents=True)
    (scripts / "load_atb_probe.sh").write_text('echo load "$@"\n')
    (scripts / "unload_atb_probe.sh").write_text("echo unload\n")
    surroundings = {**os.environ, "MSPROBE_HOME_PATH": str(tmp_path / "home")}
    got = bash(tmp_path / "it's" / "run.sh", "echo", "the command", env=surroundings)
    here = tmp_path / "it's"
    assert got.stdout == f"load --output={here}/dump --config={here}/config.json\nthe command\nunload\n"


HOSTILE = "it's $(touch pwned) `touch pwned` \"; touch pwned #\n\u202e\\"


def test_text_of_users_stays_text(tmp_path, monkeypatch):
    """In the shell, in Python, in JSON and on the screen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSPROBE_HOME_PATH", str(tmp_path))
    for framework in ("pytorch", "tensorflow", "mindspore-graph", "acl", "mindie"):
        found = npucmp.plan("fusion-diff" if framework == "acl" else "compare", framework, HOSTILE, model=HOSTILE)
        npucmp.write_plan(found, force=True)
        assert found.request.dump == f"{HOSTILE}/dump"
        bash(
            "-c",
            " ; ".join(found.run).replace("python train.py", "true").replace("atc", "true").replace("./main", "true"),
        )
        for line in found.script if framework in ("pytorch", "tensorflow") else ():
            compile(line.code, "line", "exec")
        for then in found.then:
            assert shlex.split(then)[2] == f"{HOSTILE}/dump"
    assert not [*tmp_path.rglob("pwned")]
    assert npucmp.plan("compare", "acl", "x", ops=[HOSTILE.replace("[", "")]).files["acl.json"].isascii()
    status, text, _ = called("compare", "--framework", "pytorch", "-o", HOSTILE, "--force")
    assert status == 0 and "\u202e" not in text


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


def test_the_size_is_shown(before, tmp_path):
    _, text, _ = called("compare", "--framework", "pytorch", "--from", before, "--disk", "3KB", "-o", tmp_path / "out")
    lines = text.splitlines()
    assert lines[0] == "compare · pytorch · target: values of 1 name, step 0, all ranks"
    assert lines[1].startswith("size: 2.05 KB per step and rank, 2.05 KB for 1 step × 1 rank, 1 of ")
    assert lines[2].startswith("warning: the first 1 of ")
    assert f"--from {before} --disk 3KB" in section(text, "For the other side")[0]


def test_names_of_a_dump_stay_text(tmp_path):
    """Names that an untrusted dump has: they reach the configuration, as they are, and no script."""
    name = "Functional.a'b\"$(touch pwned)\n\u202e.0.forward"
    folder = write_run(tmp_path / "before", chain())
    record = next(folder.rglob("dump.json")) if folder.is_dir() else folder
    told = json.loads(record.read_text())
    told["data"] = {name: next(iter(told["data"].values()))}
    record.write_text(json.dumps(told))
    found = npucmp.plan("compare", "pytorch", "here", before=folder, ops="Functional.a*")
    assert listed(found) == [name] and found.files["config.json"].isascii()
    written = [found.files["run.sh"], *found.run, *found.then, found.other, *(line.code for line in found.script)]
    assert not [text for text in written if "pwned" in text or "\u202e" in text]
