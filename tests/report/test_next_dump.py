"""next_dump.json: which operators it asks for, under which names, and how large that is."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp import Options, write_reports
from npucmp.cli import npucmp as group
from npucmp.dump_plan.dump_config import MsprobeOperators
from npucmp.localise.next_dump import OpenRoots
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.report import answer_of, next_dump, tensor_rows
from npucmp.workflows.compare import Sides, compare_runs
from tests.synthetic import chain, with_statistics, write_run

KB = 8 * 16 * 4 + 16 * 16 * 4 + 8 * 16 * 4  # what an operator of chain reads and writes, in float32


@pytest.fixture
def dumps(tmp_path):
    """Statistics of two chains that differ from the third operator on."""

    def made(name, faults, **more):
        return with_statistics(write_run(tmp_path / name, chain(faults), **more), alone=True)

    return made("t", {3: 1.02}), made("g", {})


def next_of(report):
    wishes = [OpenRoots.of(one, partial(tensor_rows.producers_read, one)) for one in report.comparisons]
    return next_dump.next_dump(report, [*map(next_dump.RequestedOperators.of, report.comparisons, wishes)])


def asked(report):
    """(what is wanted, the configuration of the target)."""
    found = next_of(report)
    return found, json.loads(found.files["next_dump.json"])


def test_it_asks_for_the_root_its_producer_and_its_reader(dumps):
    found, config = asked(npucmp.compare(*dumps))
    assert config == {
        "task": "tensor",
        "dump_path": "./next_dump",
        "rank": [],
        "step": [0],
        "level": "L1",
        "risk_level": "ALL",
        "tensor": {"scope": [], "list": [f"Functional.linear.{i}.forward" for i in (3, 2, 4)], "data_mode": ["all"]},
    }
    assert [*found.files] == ["next_dump.json"]  # one file does for both sides
    assert (found.operators, found.wanted, found.bytes, found.sides) == (3, 3, 3 * KB, ("target", "golden"))


def test_the_terminal_names_the_command(dumps, tmp_path):
    target, golden = map(str, dumps)
    got = CliRunner().invoke(group, ["compare", target, golden, "-o", str(tmp_path / "out")])
    line = next(line for line in got.stdout.splitlines() if line.startswith("next:"))
    assert line == (
        f"next: dump the values of 3 operators (6.14 KB) of both runs with {tmp_path}/out/next_dump.json, "
        f"then npucmp compare {target} {golden} --also target=DUMP --also golden=DUMP"
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["next_dump"]
    assert summary["operators"] == 3 and summary["files"] == ["next_dump.json"]
    assert "next: dump the values" in (tmp_path / "out" / "report.html").read_text()


def test_a_disk_holds_the_nearest_to_the_first_root(dumps):
    found, config = asked(npucmp.compare(*dumps, disk=2 * KB))
    assert config["tensor"]["list"] == ["Functional.linear.3.forward", "Functional.linear.2.forward"]
    assert (found.operators, found.wanted, found.complete, found.bytes) == (2, 3, False, 2 * KB)


def test_a_disk_that_holds_nothing(dumps, tmp_path):
    report = npucmp.compare(*dumps, disk="1KB")
    assert next_of(report).files == {}
    (line,) = answer_of(report).remarks("out")
    assert line == "next: none of 3 requested operators fits into 1 KB; the smallest needs 2.05 KB"


@pytest.mark.parametrize(
    "words, size", [("20GB", 20 * 10**9), ("1.5 T", 1_500_000_000_000), ("2GiB", 2 << 30), ("700", 700), ("3kb", 3000)]
)
def test_sizes_of_disks(words, size):
    assert Options(disk=words).bytes_on_disk() == size


@pytest.mark.parametrize("words", ["", "0", "much", "-3GB", "20XB"])
def test_what_is_no_size(words):
    with pytest.raises(npucmp.NpucmpError, match="as in --disk 20GB"):
        Options(disk=words).bytes_on_disk()


def test_values_need_no_other_dump(tmp_path):
    """Nor does a report without them keep the configuration of an earlier one."""
    target, golden = write_run(tmp_path / "t", chain({3: 1.02})), write_run(tmp_path / "g", chain())
    report = npucmp.compare(target, golden)
    assert [root.cause.value for root in report.roots][:1] == ["BORN"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "next_dump.json").write_text("{}")
    write_reports(report, tmp_path / "out")
    assert next_of(report) is None
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html", "roots.csv", "summary.json", "tensors.csv", "worst.csv"
    ]  # fmt: skip


def test_where_the_golden_run_has_values_only_the_target_is_dumped(tmp_path):
    target = with_statistics(write_run(tmp_path / "t", chain({3: 1.02})), alone=True)
    golden = with_statistics(write_run(tmp_path / "g", chain()))
    assert asked(npucmp.compare(target, golden))[0].sides == ("target",)


def test_steps_and_ranks_of_the_places(tmp_path):
    for step in range(3):
        for rank in range(2):
            faults = {3: 1.02} if step == 1 else {}
            with_statistics(write_run(tmp_path / "t" / str(rank), chain(faults), step, rank), alone=True)
            with_statistics(write_run(tmp_path / "g" / str(rank), chain(), step, rank), alone=True)
    for side in "tg":
        for rank in range(2):
            for step in (tmp_path / side / str(rank)).iterdir():
                place = tmp_path / side / "all" / step.name / f"rank{rank}"
                place.parent.mkdir(parents=True, exist_ok=True)
                (step / f"rank{rank}").rename(place)
    found, config = asked(npucmp.compare(tmp_path / "t" / "all", tmp_path / "g" / "all"))
    assert (config["step"], config["rank"], found.bytes) == ([1], [0, 1], 2 * 3 * KB)


def records(*names, level="L1", **scopes):
    """A run of msprobe, its operators of 1 KB each."""
    tensor = TensorRef("output:0", "float32", (16, 16))
    operators = []
    for order, name in enumerate(names):
        phase = next((word for word in ("forward", "backward") if f".{word}" in name), "")
        phase = "backward" if "parameters_grad" in name else phase
        path = name.rpartition(f".{phase}")[0].rpartition(".")[0] if name.startswith("Module") else ""
        call = name.replace(f".{phase}", "").replace(".parameters_grad", "")
        operators.append(
            Operator(name, "x", name, phase, order, (tensor,), scopes.get(f"of_{order}", ""), path, call=call)
        )
    return Run("dump", "msprobe", tuple(operators), detail=f"pytorch · {level} statistics")


def given(run, number):
    recorded = MsprobeOperators(run)
    name = recorded.selecting_name(run.operators[number])
    return name, [run.operators[order].name for order in recorded.selected(name)]


def test_msprobe_dumps_all_whose_names_hold_the_name():
    run = records("Module.a.Linear.forward.1", "Module.a.Linear.forward.10", "Module.a.Linear.forward.2", level="L0")
    assert given(run, 0) == ("Module.a.Linear.forward.1", ["Module.a.Linear.forward.1", "Module.a.Linear.forward.10"])
    assert given(run, 2)[1] == ["Module.a.Linear.forward.2"]


def test_msprobe_dumps_gradients_of_parameters_with_the_backward_of_their_module():
    run = records("Module.a.Linear.backward.0", "Module.b.Linear.backward.0", "Module.a.Linear.parameters_grad")
    names = ["Module.a.Linear.backward.0", "Module.a.Linear.parameters_grad"]
    assert given(run, 2) == ("Module.a.Linear.backward", names)
    assert given(run, 0) == ("Module.a.Linear.backward.0", names)


@pytest.mark.parametrize("level, more", [("mix", ["Torch.add.0.forward"]), ("L1", [])])
def test_msprobe_dumps_the_inside_of_a_module_at_level_mix(level, more):
    names = "Torch.add.0.forward", "Module.a.Linear.forward.0", "Torch.add.1.forward"
    run = records(*names, level=level, of_0="Module.a.Linear.forward.0")
    assert sorted(given(run, 1)[1]) == sorted(["Module.a.Linear.forward.0", *more])


def figures(values):
    return Statistics(*map(float, (values.max(), values.min(), values.mean(), np.linalg.norm(values))))


def runs_of(format, names, **more):
    """Two runs of statistics, a chain whose second operator is wrong."""
    random = np.random.default_rng(3)
    steps = [random.standard_normal((16, 16)) for _ in range(len(names) + 1)]
    found = []
    for fault in (1.1, 1.0):
        values = [one * (fault if at > 1 else 1.0) for at, one in enumerate(steps)]
        operators = tuple(
            Operator(
                name, "MatMul", name, "", order,
                (TensorRef("input:0", "float32", (16, 16), statistics=figures(values[order])),
                 TensorRef("output:0", "float32", (16, 16), statistics=figures(values[order + 1]))),
            )
            for order, name in enumerate(names)
        )  # fmt: skip
        found.append(Run("dump", format, operators, **more))
    return compare_runs(Sides("t", found[:1], "g", found[1:]), Options())


def test_cann(tmp_path):
    report = runs_of("cann", ["net/a", "net/b", "net/c", "net/d"], step=3, rank=0, detail="resnet")
    found, config = asked(report)
    assert config["dump"] == {
        "dump_list": [{"model_name": "resnet", "layer": ["net/b", "net/a", "net/c"]}],
        "dump_path": "next_dump",
        "dump_mode": "all",
        "dump_op_switch": "off",
        "dump_data": "tensor",
        "dump_step": "3",
    }
    assert found.bytes == 3 * 2 * 1024


def test_mindspore_names_kernels_whose_files_lost_their_slashes():
    names = [f"Default_net-Net_f{i}-Dense_MatMul-op{i}" for i in range(12)]
    _, config = asked(runs_of("mindspore", names, step=2, rank=1))
    common = config["common_dump_settings"]
    assert (common["iteration"], common["support_device"], common["saved_data"]) == ("2", [1], "tensor")
    (pattern,) = re.findall(r"name-regex\((.*)\)$", common["kernels"][0])
    assert re.fullmatch(pattern, "Default/net-Net/f1-Dense/MatMul-op1")
    assert not re.search(pattern, "Default/net-Net/f1-Dense/MatMul-op11")


def test_a_format_whose_configuration_nobody_knows_gets_none():
    assert next_of(runs_of("npy", ["a", "b", "c"])) is None


def test_names_of_a_dump_stand_in_it_as_data():
    evil = 'x"\n\u202e], "task": "statistics'
    found, config = asked(runs_of("cann", [evil, "b", "c", "d"]))
    assert evil in config["dump"]["dump_list"][0]["layer"]
    assert found.files["next_dump.json"].isascii()


def test_a_disk_too_small_for_all_ranks_holds_the_first(tmp_path):
    for side, faults in (("t", {3: 1.02}), ("g", {})):
        for rank in range(3):
            with_statistics(write_run(tmp_path / f"{side}{rank}", chain(faults), rank=rank), alone=True)
            (tmp_path / side / "step0").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{side}{rank}" / "step0" / f"rank{rank}").rename(tmp_path / side / "step0" / f"rank{rank}")
    report = npucmp.compare(tmp_path / "t", tmp_path / "g", disk=5 * KB)
    found, config = asked(report)
    assert (config["rank"], len(config["tensor"]["list"]), found.bytes, found.complete) == ([0], 3, 3 * KB, False)
    (line,) = answer_of(report).remarks("out")
    some = "6.14 KB; 3 were requested in more steps or ranks, the rest does not fit"
    assert line.startswith(f"next: dump the values of 3 operators ({some})")
