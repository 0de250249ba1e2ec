"""The causes of operators that are not bit-equal: producers by content, earlier steps, operators left over."""

import numpy as np
import pytest

from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Comparison, Finding, Measurement, Operator, Pair, Run, Verdict
from npucmp.reruns.causes import with_causes
from tests.localise.weight_craft import drawn
from tests.relations.weights.craft import Files

X, Y, Z, W = (drawn(4, 8, seed=at).astype(np.float32) for at in (1, 2, 3, 4))


def off(values, at=0):
    """Values of which one element differs."""
    found = np.array(values)
    found.reshape(-1)[at] += 0.5
    return found


class Runs:
    """The comparison of two runs, of which each tensor is (golden) or (target, golden), in files."""

    def __init__(self, folder):
        self._files, self._known = Files(folder), {}
        self.findings, self.order = [], 0

    def op(self, kind, phase="forward", known=True, source="", name="", measured=True, **tensors):
        """An operator with its tensors by slot: `i0`, `o1`, `param_weight`. Equal bytes are `known`, or not."""
        name, refs = name or f"{kind}.{self.order}", []
        slots = {one: one.replace("i", "input:").replace("o", "output:") if len(one) == 2 else one.replace("_", ":")
                 for one in tensors}  # fmt: skip
        for key, values in tensors.items():
            pair = values if isinstance(values, tuple) else (values, values)
            refs.append([self._file(one)._replace(slot=slots[key]) for one in pair])
        ops = [Operator(name, kind, kind, phase, self.order, tuple(each), call=name) for each in zip(*refs)]
        for (key, values), (target, golden) in zip(tensors.items(), refs):
            golden = golden._replace(source=source if key == "i0" else "")
            pair = Pair(self.order, slots[key], *ops, target, golden, "name", 1.0)
            is_equal = not isinstance(values, tuple)
            moments = None if is_equal or not measured else self._moments(*values)
            error = 0.0 if is_equal else 0.1 if measured else float("nan")
            made = Measurement(pair, moments, same=known if is_equal else None if measured else False)
            verdict = Verdict.MATCH if is_equal else Verdict.DIVERGED
            self.findings.append(Finding(made, verdict, "it differs", error, row=len(self.findings)))
        self.order += 1
        return self

    def _file(self, values):
        key = values.tobytes(), values.shape, values.dtype.name
        if key not in self._known:
            self._known[key] = self._files(values, values.dtype)
        return self._known[key]

    def _moments(self, target, golden):
        x, y = (np.asarray(one, np.float64).reshape(-1) for one in (target, golden))
        return measure_block(x, y, bars_for("float64", "float64", 0.0, 0.0))

    def comparison(self, step=0):
        runs = [Run("run", "npy", (), step, 0)] * 2
        return Comparison(*runs, tuple(self.findings), (), {})


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


def source_of(runs, slot="input:0"):
    """The producer of the input of the last operator."""
    (found,) = with_causes([runs.comparison()])
    (last,) = [one for one in found.findings if (one.pair.order, one.pair.slot) == (runs.order - 1, slot)]
    return last.pair.golden.source


CHANGED = off(Y), Y


@pytest.mark.parametrize(
    "change, expected",
    [({"problem": "lost"}, ""), ({"file": ""}, ""), ({"offset": 40}, "relu.0:0")],
)
def test_the_place_of_an_output_in_its_file(runs, tmp_path, change, expected):
    """It may be lost, or not kept, or lie behind another tensor."""
    runs.op("relu", o0=Y).op("tanh", i0=CHANGED)
    (tmp_path / "joint").write_bytes(bytes(40) + Y.tobytes())
    first = runs.findings[0]
    golden = first.pair.golden
    if "offset" in change:
        payload = golden.payload._replace(path=str(tmp_path / "joint"), **change)
        golden = golden._replace(payload=payload)
    else:
        golden = golden._replace(payload=None, **change)
    pair = first.pair._replace(golden=golden)
    runs.findings[0] = first._replace(measurement=first.measurement._replace(pair=pair))
    assert source_of(runs) == expected
