"""Dumps that others made, held against a walk of their files without npucmp; they run where the files are at hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

import npucmp
from npucmp import open_runs

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
RESNET = SHARED / "public" / "msprobe_resnet50_gpu"
PAIR = SHARED / "framework" / "msprobe_ms_vs_pt_ut"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not beside this checkout")


def leaves(tree):
    """(tensors, plain values) of a record, in order."""
    if isinstance(tree, dict) and "type" in tree and ({"shape", "value", "format"} & {*tree}):
        return ([tree], []) if "dtype" in tree and "shape" in tree else ([], [tree])
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    found = [leaves(one) for one in below]
    return [t for tensors, _ in found for t in tensors], [v for _, values in found for v in values]


def same(one, other):
    return one == other or (one != one and other != other)


ORDER = ("input_args", "input", "input_kwargs", "parameters", "output")


@pytest.mark.parametrize("folder", [RESNET / "step0", RESNET / "step1", PAIR / "pytorch_data", PAIR / "mindspore_data"])
def test_operators_tensors_arguments_and_parents_are_those_of_the_files(folder):
    (run,) = open_runs(folder)
    data = json.loads(Path(run.path).read_text())["data"]
    parents = json.loads(Path(run.path).with_name("construct.json").read_text())
    assert [one.name for one in run.operators] == [*data]
    for one in run.operators:
        record = data[one.name]
        trees = [record[key] for key in ORDER if key in record] if "parameters_grad" not in one.name else [record]
        tensors, values = leaves(trees)
        told = [(t.dtype, t.shape, t.statistics and t.statistics.max) for t in one.tensors]
        assert len(told) == len(tensors) and len(one.arguments) == len(values)
        for (dtype, shape, largest), leaf in zip(told, tensors):
            assert leaf["dtype"].lower().endswith(dtype) and [*shape] == leaf["shape"]
            assert largest is None if leaf["Max"] is None else same(largest, leaf["Max"])
        parent = parents.get(one.name)
        assert one.scope == ((parent[0] if isinstance(parent, list) else parent) or "")


def test_the_counts_of_the_resnet():
    """As real_files.md counts them by itself: 760 operators, 2,071 tensors, 643 arguments in either step."""
    for run in open_runs(RESNET):
        arguments = sum(len(one.arguments) for one in run.operators)
        assert (len(run.operators), run.tensors, arguments) == (760, 2071, 643)


def test_two_steps_of_the_resnet_differ_by_what_their_statistics_prove():
    report = npucmp.compare(RESNET / "step0", RESNET / "step1")
    decided = [one for one in report.findings if one.measurement.bound is not None]
    assert len(report.findings) == 2071
    for one in decided[::20]:
        x, y = one.pair.target, one.pair.golden
        n = math.prod(y.shape)
        a, b = x.statistics, y.statistics
        least = max(abs(a.norm - b.norm), abs(a.mean - b.mean) * math.sqrt(n), abs(a.max - b.max), abs(a.min - b.min))
        assert one.measurement.bound <= least / b.norm * (1 + 1e-12) + 1e-300
    image = next(one for one in decided if one.pair.operator.name == "Functional.conv2d.0.forward")
    a, b, n = image.pair.target.statistics, image.pair.golden.statistics, math.prod(image.pair.golden.shape)
    assert image.measurement.bound == pytest.approx(abs(a.mean - b.mean) * math.sqrt(n) / b.norm)
    assert image.measurement.bound == pytest.approx(1.84e-4, rel=5e-3)


def test_an_empty_tensor_among_statistics_proves_nothing():
    for report in (npucmp.compare(PAIR / "pytorch_data", PAIR / "pytorch_data"),
                   npucmp.rerun_diff([PAIR / "pytorch_data", PAIR / "pytorch_data"])):  # fmt: skip
        assert report.exit_status == 2


def test_a_table_of_mindspore(tmp_path):
    text = (SHARED / "cann" / "mindspore_statistic.csv").read_text()
    (tmp_path / "statistic.csv").write_text(text)
    (run,) = open_runs(tmp_path)
    rows = [*csv.reader(text.splitlines())][1:]
    assert {one.name for one in run.operators} == {row[1] for row in rows} and run.tensors == len(rows)
