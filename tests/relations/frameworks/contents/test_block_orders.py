"""Weights whose blocks stand in another order in the other framework, as the gates of a recurrent layer do."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.model import Cause
from tests.synthetic import write_run

WIDTH, STEPS = 16, 4
GATES = {"target": (1, 0, 2), "golden": (0, 1, 2)}


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


def recurrent(folder, order, struck=None):
    """A layer with three gates, of which the second input of its last one is a product. `order` is that of the blocks
    of its weights. `struck`: an operator whose output is another one."""
    weight, bias = (np.concatenate([np.split(one, 3)[k] for k in order]) for one in (drawn(1, 48, 16), drawn(2, 48)))
    calls, h = {}, drawn(3, 2, WIDTH)

    def call(kind, name, inputs, outputs):
        name = f"{kind}.{name}.{sum(one.startswith(f'{kind}.{name}.') for one in calls)}.forward"
        outputs = [one * 1.5 if name == struck else one for one in outputs]
        calls[name] = {"in": inputs, "out": outputs}
        return outputs if len(outputs) > 1 else outputs[0]

    for step in range(STEPS):
        x = drawn(10 + step, 2, WIDTH)
        whole = call("Functional", "linear", [h + x, weight, bias], [(h + x) @ weight.T + bias])
        parts = call("Torch", "chunk", [whole], np.split(whole, 3, 1))
        r, z, n = (parts[order.index(k)] for k in range(3))
        n = call("Torch", "tanh", [n], [np.tanh(n)])
        rn = call("Torch", "mul", [r, n], [r * n])
        h = call("Torch", "add", [rn, z], [rn + z])
    return write_run(folder, calls, framework="pytorch")


def compared(folder, struck=None):
    both = recurrent(folder / "target", GATES["target"], struck), recurrent(folder / "golden", GATES["golden"])
    return npucmp.compare(*both, align="content", precheck=False, jobs=1)


def test_weights_and_what_is_computed_with_them_are_compared_block_by_block(tmp_path):
    report = compared(tmp_path)
    assert not report.roots and report.exit_status == 0
    found = {
        (one.pair.operator.name.split(".")[1], one.pair.slot): one.pair.target.relation.words
        for one in report.findings
        if one.pair.golden is not None and one.pair.target is not None and one.pair.target.relation is not None
    }
    assert found["linear", "input:1"] == found["linear", "input:2"] == "slice(axis 0, 16-31,0-15,32-47)"
    assert found["linear", "output:0"] == "slice(axis 1, 16-31,0-15,32-47)"
    assert found["chunk", "input:0"] == found["linear", "output:0"]


@pytest.mark.parametrize(("step", "shown"), [(0, False), (2, True), (3, True)])
def test_a_faulty_product_is_compared_block_by_block(tmp_path, step, shown):
    """Behind a fault in the first step nothing agrees that would show the order of the blocks."""
    struck = f"Functional.linear.{step}.forward"
    root = compared(tmp_path, struck).roots[0]
    assert root.pair.operator.name == struck and root.cause in (Cause.BORN, Cause.SUSPECT)
    assert ("rel_l2 5.00e-01" in root.because) is shown


def test_exchanged_blocks_of_a_weight_are_a_difference(tmp_path):
    """The target reads the gates in the order of the golden, but its weight has them in another one."""
    recurrent(tmp_path / "golden", GATES["golden"])
    recurrent(tmp_path / "target", GATES["golden"])
    for file in tmp_path.glob("target/**/*linear.*input.1.npy"):
        weight = np.load(file)
        np.save(file, np.concatenate([np.split(weight, 3)[k] for k in GATES["target"]]))
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", align="content", precheck=False, jobs=1)
    assert report.exit_status == 1


def test_the_words_of_the_blocks_are_read_back(tmp_path):
    weight = drawn(1, 48, 16)
    blocks = np.split(weight, 3)
    for side, order in {"target": (2, 0, 1), "golden": (0, 1, 2)}.items():
        write_run(tmp_path / side, {"Functional.relu.0.forward": {"out": [np.concatenate([blocks[k] for k in order])]}})
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text('relations:\n  "Functional.relu.* output:0": slice(axis 0, 16-31,32-47,0-15)\n')
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", mapping=mapping, precheck=False, jobs=1)
    assert not report.roots and report.exit_status == 0
