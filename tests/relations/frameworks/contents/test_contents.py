"""Runs of two frameworks without common names are aligned by the values that they compute."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.model import Cause
from tests.relations.frameworks.contents import networks
from tests.synthetic import write_run

PAIRS = {
    "transformer": (networks.tf_transformer, networks.torch_transformer),
    "cnn": (networks.tf_cnn, networks.torch_cnn),
}


def changed(name, function):
    """A fault: the output of one operator is another one."""
    return lambda operator, out: function(out) if operator == name else out


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """The clean dumps of both spellings of each network."""
    folder = tmp_path_factory.mktemp("contents")
    for name, both in PAIRS.items():
        for side, function in zip(("tf", "torch"), both):
            function(folder / name / side)
    return folder


def compared(target, golden, **options):
    return npucmp.compare(target, golden, precheck=False, jobs=1, **options)


def partners(report):
    """The golden operator of each output of the target that has one."""
    return {
        finding.pair.target_op.name: finding.pair.golden_op.name
        for finding in report.findings
        if finding.pair.target is not None and finding.pair.golden is not None and finding.pair.slot == "output:0"
    }


def test_a_corrected_mapping_is_read_back(dumps, tmp_path):
    networks.tf_transformer(tmp_path / "run", changed("block0__proj_k__BiasAdd", lambda out: out[..., ::-1]))
    golden = dumps / "transformer" / "torch"
    npucmp.write_reports(compared(tmp_path / "run", golden), tmp_path / "out")
    mapping = tmp_path / "out" / "mapping.yaml"
    line = '"block0__proj_k__BiasAdd": "layers_0_k_Linear"'
    assert line in mapping.read_text(encoding="utf-8")
    again = compared(tmp_path / "run", golden, mapping=mapping)
    assert again.roots[0].cause is Cause.BORN
    assert {one.pair.via for one in again.findings if one.pair.operator == again.roots[0].pair.operator} >= {"mapping"}
    wrong = mapping.read_text(encoding="utf-8").replace(line, '"block0__proj_k__BiasAdd": "layers_0_v_Linear"')
    mapping.write_text(wrong, encoding="utf-8")
    found = partners(compared(tmp_path / "run", golden, mapping=mapping))
    assert found["block0__proj_v__BiasAdd"] == "layers_0_v_Linear"  # values contradict the line


@pytest.mark.parametrize("nhwc", [True, False])
def test_groups_of_channels_in_another_arrangement_are_no_difference(tmp_path, nhwc):
    networks.grouped_cnn(tmp_path / "target", nhwc)
    networks.grouped_cnn(tmp_path / "golden", not nhwc)
    report = compared(tmp_path / "target", tmp_path / "golden")
    assert not report.roots and report.exit_status in (0, 2)
    assert "by value" in report.comparisons[0].aligned_by_content


@pytest.mark.parametrize("is_named", [False, True])
def test_numbered_names_that_the_values_contradict_are_not_trusted(tmp_path, is_named):
    """Both sides number the calls of each function, and compute two branches of each layer in another order. Where the
    user names partners, names count."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((4, 12)).astype(np.float32)
    weights = [rng.standard_normal((12, 12)).astype(np.float32) for _ in range(12)]
    for side, order in {"target": range(12), "golden": [at ^ 1 for at in range(12)]}.items():
        tanh, calls = {"target": "Torch", "golden": "Functional"}[side], {}
        for number, at in enumerate(order):
            z = x @ weights[at]
            calls[f"Torch.matmul.{number}.forward"] = {"in": [x, weights[at]], "out": [z]}
            calls[f"{tanh}.tanh.{number}.forward"] = {"in": [z], "out": [np.tanh(z)]}
        calls[f"{tanh}.relu.0.forward"] = {"in": [x], "out": [np.maximum(x, 0)]}
        write_run(tmp_path / side, calls)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text('"Torch.tanh.0.forward": "Functional.tanh.0.forward"')
    more = {"mapping": mapping} if is_named else {}
    report = compared(tmp_path / "target", tmp_path / "golden", **more)
    assert bool(report.roots) is is_named
    assert ("by value" in report.comparisons[0].aligned_by_content) is not is_named
    if is_named:
        assert partners(report)["Torch.matmul.0.forward"] == "Torch.matmul.0.forward"
