"""Operators of graphs, from the dump to the verdict: TensorFlow's, GE's and MindSpore's."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from npucmp import replay
from npucmp.model import ReplayVerdict
from tests.recompute.graphs import GraphDump

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def found(sample, **options):
    """Guilty operators, and the statuses of all rows."""
    result = replay(SAMPLES / sample, jobs=1, **options)
    names = [one.operators[row.order].name for one in result.replays for row in one.guilty]
    return result, names, {row.status for row in result.rows}


def test_torch_alone_says_that_it_knows_no_graphs():
    pytest.importorskip("torch")
    result, _, statuses = found("cann_fusion_pass/target", engine="torch")
    assert statuses == {"not in table"} and result.exit_status == 2
    assert {row.explanation for row in result.rows} == {"torch replays recorded calls, not operators of graphs"}


_spec = importlib.util.spec_from_file_location("make_cann", SAMPLES / "make_cann.py")
make_cann = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_cann)


HOSTILE = {
    "shape": ("AddV2", [normal(4), normal(4)], normal(5), {}),
    "shapes": ("AddV2", [normal(4), normal(3)], normal(4), {}),
    "pads": ("Conv2D", [normal(1, 4, 4, 1), normal(3, 3, 1, 1)], normal(1, 4, 4, 1), {"strides": [1, 10**12, 1, 1]}),
    "window": ("MaxPool", [normal(1, 4, 4, 1)], normal(1, 4, 4, 1), {"ksize": [1, 4000, 4000, 1], "padding": "SAME"}),
    "paddings": ("PadV2", [normal(4), (0, 10**9)], normal(4), {}),
    "times": ("Tile", [normal(4), (10**9,)], normal(4), {}),
    "index": ("GatherV2", [normal(4), np.array([7]), 0], normal(1), {}),
    "axes": ("Mean", [normal(4, 4), (7,)], normal(4), {}),
    "labels": ("SparseSoftmaxCrossEntropyWithLogits", [normal(2, 3), np.array([0, 9])], normal(2), {}),
    "truths": ("Sub", [np.ones(4, dtype=bool), np.ones(4, dtype=bool)], normal(4), {}),
    "text": ("LeakyRelu", [normal(4)], normal(4), {"alpha": "much"}),
    "missing": ("MatMul", [normal(4, 4)], normal(4, 4), {}),
    "unheard": ("NoSuchThing", [normal(4)], normal(4), {}),
    "random": ("RandomStandardNormal", [np.array([4])], normal(4), {}),
}


def test_each_hostile_operator_costs_itself(tmp_path):
    dump = GraphDump(tmp_path).add("right", "Abs", [normal(4)], [np.abs(normal(4))])
    for name, (op, inputs, output, told) in HOSTILE.items():
        dump.add(name, op, inputs, [output], **told)
    rows = dump.rows(limit_memory=64 << 20)
    assert rows.pop("right").verdict is ReplayVerdict.CLEAN
    assert {row.verdict for row in rows.values()} == {ReplayVerdict.UNKNOWN} and len(rows) == len(HOSTILE)
    statuses = {name: row.status for name, row in rows.items()}
    named = {"missing": "no data", "unheard": "not in table", "random": "random"}
    assert statuses == {name: named.get(name, "shape") for name in HOSTILE}
    assert all(row.explanation for row in rows.values())
