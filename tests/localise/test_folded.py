"""A fused operator whose weights were folded: nothing in the golden run is like them, all else that it reads agrees."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import Tolerances
from npucmp.align import align, pairs
from npucmp.localise.rules import Rulebook
from npucmp.localise.search import RootSearch
from npucmp.localise.thresholds import make_findings
from npucmp.measure.pairs import Closeness, measure_pairs
from npucmp.model import Operator, TensorRef
from tests.align.craft import a_run

draw = np.random.RandomState(1)
X, W, Y = (draw.standard_normal((8, 8)).astype(np.float32) for _ in range(3))


class Written:
    """Files of tensors."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def tensor(self, slot, values, **more) -> TensorRef:
        self.count += 1
        file = self.folder / f"{self.count}.npy"
        np.save(file, values)
        return TensorRef(slot, "float32", values.shape, str(file), "npy", **more)


def roots(folder, kind="Conv2D", stored=True, factor=1.5, data=1.0):
    """conv + bn as one operator, against a golden run whose dump holds outputs only."""
    file = Written(folder).tensor
    first = [file("output:0", data * X, origin="x:0")]
    weight = "weight_folded:0"
    fused = [
        file("input:0", data * X, source="x:0", origin="x:0"),
        file("input:1", W, source=weight, origin=weight, stored=stored),
        file("output:0", factor * Y, origin="bn:0"),
    ]
    target = [
        Operator("x", "Relu", "x", "", 0, tuple(first), originals=("x",)),
        Operator("convbn", kind, "convbn", "", 1, tuple(fused), originals=("conv", "bn"), passes=("Fusion",)),
    ]
    outputs = {"x": X, "conv": X @ W, "bn": Y}
    golden = [
        Operator(name, name, name, "", order, (file("output:0", values),), reads_recorded=False)
        for order, (name, values) in enumerate(outputs.items())
    ]
    one, other = a_run(target), a_run(golden)
    measured = measure_pairs(list(pairs(one, other, align(one, other))), Closeness(), 1)
    walk = RootSearch(make_findings(list(measured), Tolerances(), Rulebook()))
    for node in walk.nodes:
        walk.visit(node)
    _, found = walk.results()
    return [(root.pair.operator.name, root.cause.value, root.because) for root in found]


@pytest.mark.parametrize("kind", ["Conv2D", "MatMulV2", "Pooling"])
def test_all_else_agrees_so_that_it_is_born_here(tmp_path, kind):
    ((name, cause, because),) = roots(tmp_path, kind)
    assert (name, cause) == ("convbn", "BORN")
    assert "the error is in this operator or in its folded weights (input:1)" in because


def test_an_input_that_is_no_weight_and_was_not_compared_leaves_the_cause_unknown(tmp_path):
    ((name, cause, because),) = roots(tmp_path, "MatMulV2", stored=False)
    assert (name, cause) == ("convbn", "UNKNOWN") and "folded weights" not in because


def test_equal_outputs_are_silent(tmp_path):
    assert roots(tmp_path, factor=1.0) == []


def test_data_that_differs_is_not_born_here(tmp_path):
    causes = [cause for _, cause, _ in roots(tmp_path, data=1.5)]
    assert "BORN" not in causes[1:]
