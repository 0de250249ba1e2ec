"""next_dump.json: which operators it asks for, under which names, and how large that is."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import npucmp
from npucmp import Options
from npucmp.localise.next_dump import OpenRoots
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.plans import next_dump
from npucmp.report import answer_of
from npucmp.report.producers import producers_read
from npucmp.workflows.compare import compare_runs
from npucmp.workflows.select_runs import Sides
from tests.synthetic import chain, with_statistics, write_run

KB = 8 * 16 * 4 + 16 * 16 * 4 + 8 * 16 * 4  # what an operator of chain reads and writes, in float32


@pytest.fixture
def dumps(tmp_path):
    """Statistics of two chains that differ from the third operator on."""

    def made(name, faults, **more):
        return with_statistics(write_run(tmp_path / name, chain(faults), **more), alone=True)

    return made("t", {3: 1.02}), made("g", {})


def next_of(report):
    wishes = [OpenRoots.of(one, partial(producers_read, one)) for one in report.comparisons]
    return next_dump.next_dump(report, [*map(next_dump.RequestedOperators.of, report.comparisons, wishes)])


def asked(report):
    """(what is wanted, the configuration of the target)."""
    found = next_of(report)
    return found, json.loads(found.files["next_dump.json"])


def test_a_disk_that_holds_nothing(dumps, tmp_path):
    report = npucmp.compare(*dumps, disk="1KB")
    assert next_of(report).files == {}
    (line,) = answer_of(report).remarks("out")
    assert line == "next: none of 3 requested operators fits into 1 KB; the smallest needs 2.05 KB"


def test_where_the_golden_run_has_values_only_the_target_is_dumped(tmp_path):
    target = with_statistics(write_run(tmp_path / "t", chain({3: 1.02})), alone=True)
    golden = with_statistics(write_run(tmp_path / "g", chain()))
    assert asked(npucmp.compare(target, golden))[0].sides == ("target",)


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
