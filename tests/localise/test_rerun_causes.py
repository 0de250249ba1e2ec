"""The causes of operators that are not bit-equal: producers by content, earlier steps, operators left over."""

import numpy as np
import pytest

from npucmp.localise.rerun.causes import with_causes
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Cause, Comparison, Finding, Measurement, Operator, Pair, Run, Verdict
from tests.align.weights.craft import Files
from tests.localise.weight_craft import drawn

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


def test_an_input_that_was_changed_has_the_producer_of_its_content(runs):
    runs.op("relu", i0=X, o0=Y).op("tanh", i0=CHANGED, o0=(off(Z), Z))
    assert source_of(runs) == "relu.0:0"
    (found,) = with_causes([runs.comparison()])
    (root,) = found.roots
    assert (root.cause, root.pair.operator.name, root.slot) == (Cause.GAP, "tanh.1", "input:0")


def test_the_latest_output_with_the_content_is_the_producer(runs):
    runs.op("relu", o0=Y).op("relu", o0=X, o1=Y).op("relu", o0=Z).op("relu", i0=Y).op("tanh", i0=CHANGED)
    assert source_of(runs) == "relu.1:1"


def test_outputs_are_found_for_each_of_several_inputs(runs):
    runs.op("relu", o0=Y).op("relu", o0=X).op("tanh", i0=CHANGED).op("relu", o0=Z)
    runs.op("tanh", i0=(off(X), X))
    assert source_of(runs) == "relu.1:0"
    runs.op("tanh", i0=(off(Z), Z))
    assert source_of(runs) == "relu.3:0"
    runs.op("tanh", i0=CHANGED)
    assert source_of(runs) == "relu.0:0"


TAIL = off(Y, -1)  # the same first bytes
ONES, FEW = np.ones((4, 8), np.float32), np.array([1, 2, 3], np.float32)


@pytest.mark.parametrize(
    "wrote, read",
    [
        ({"o0": Z}, CHANGED),
        ({"o0": TAIL}, CHANGED),
        ({"o0": Y.reshape(8, 4)}, CHANGED),
        ({"o0": Y.view(np.int32)}, CHANGED),
        ({"i1": Y}, CHANGED),
        ({"o0": (off(Y, 5), Y)}, CHANGED),  # the difference descends from it
        ({"o0": ONES}, (off(ONES), ONES)),
        ({"o0": FEW}, (off(FEW), FEW)),
        ({"o0": Y, "known": False}, CHANGED),
    ],
)
def test_other_tensors_are_no_producer(runs, wrote, read):
    assert source_of(runs.op("relu", **wrote).op("tanh", i0=read)) == ""


@pytest.mark.parametrize(
    "reader, slot, expected",
    [
        ({"i0": CHANGED, "source": "known.7:0"}, "input:0", "known.7:0"),
        ({"i0": Y}, "input:0", ""),
        ({"i0": CHANGED, "measured": False}, "input:0", ""),
        ({"param_weight": CHANGED}, "param:weight", ""),
        ({"i1": CHANGED}, "input:1", "relu.0:0"),
    ],
)
def test_only_inputs_whose_values_differ_have_a_producer_by_content(runs, reader, slot, expected):
    assert source_of(runs.op("relu", o0=Y).op("tanh", **reader), slot) == expected


def test_a_tail_of_other_bytes_hides_no_producer(runs):
    runs.op("relu", o0=Y).op("relu", o0=TAIL).op("tanh", i0=CHANGED)
    assert source_of(runs) == "relu.0:0"


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


# Causes


def causes(*comparisons):
    return [[(root.pair.operator.name, root.cause.value) for root in one.roots] for one in with_causes(comparisons)]


def test_no_limit_exists_once_an_input_differs(runs):
    """However much larger the error of the output is."""
    runs.op("relu", i0=X, o0=CHANGED)
    runs.op("relu", i0=CHANGED, o0=(Z + np.float32(100), Z))
    for at in (2, 3):
        runs.findings[at] = runs.findings[at]._replace(error=0.1 if at == 2 else 99.0)
    assert causes(runs.comparison()) == [[("relu.0", "BORN"), ("relu.1", "PROPAGATED")]]


def test_equal_outputs_are_no_difference(runs):
    runs.op("relu", i0=X, o0=CHANGED).op("relu", i0=CHANGED, o0=Z).op("add_", i0=CHANGED, i1=W, o0=Z)
    assert causes(runs.comparison()) == [[("relu.0", "BORN")]]


def test_an_operator_that_overwrites_an_input_is_left_over(runs):
    """Its output differs, and nothing shows what it read."""
    overwritten = Y + W + 1, Y + W
    runs.op("tanh", i0=X, o0=(Y + 1, Y)).op("add_", i0=overwritten, i1=W, o0=overwritten)
    (found,) = with_causes([runs.comparison()])
    first, root = found.roots
    assert (first.pair.operator.name, first.cause) == ("tanh.0", Cause.BORN)
    assert (root.pair.operator.name, root.cause, root.slot) == ("add_.1", Cause.PROPAGATED, "output:0")
    assert [one.sentence() for one in root.evidence] == [
        "an input differs, or is overwritten in place", "output:0: it differs"
    ]  # fmt: skip
    assert root.place == 0
    assert (root.value, root.limit, root.input_error, root.output_error) == (None, 0.0, None, 0.1)


def test_runs_without_a_difference_have_no_roots(runs):
    assert causes(runs.op("relu", i0=X, o0=Y).comparison()) == [[]]
    assert with_causes([]) == []


def weights(folder, steps, wrong, kind="param_weight"):
    """Comparisons of steps in which a parameter, or another input, differs from step `wrong` on."""
    found = []
    for step in steps:
        values = (off(W), W) if wrong is not None and step is not None and step >= wrong else W
        found.append(Runs(folder).op("linear", i1=Y, **{kind: values}).comparison(step))
    return found


@pytest.mark.parametrize(
    "steps, wrong, expected",
    [
        ((0, 1, 2), 0, ["GAP", "PROPAGATED", "PROPAGATED"]),
        ((0, 1, 2), 1, ["", "GAP", "PROPAGATED"]),
        ((2, 1), 1, ["PROPAGATED", "GAP"]),
        ((3,), 0, ["GAP"]),
    ],
)
def test_a_parameter_of_a_later_step_follows_from_the_first(tmp_path, steps, wrong, expected):
    found = with_causes(weights(tmp_path, steps, wrong))
    assert ["".join(root.cause.value for root in one.roots) for one in found] == expected
    for one in found:
        for root in one.roots:
            words = [each.sentence() for each in root.evidence]
            assert (f"the difference follows from step {min(step for step in steps if step >= wrong)}" == words[0]) is (
                root.cause is Cause.PROPAGATED
            )


def test_an_input_of_a_later_step_is_a_gap_of_its_own(tmp_path):
    found = with_causes(weights(tmp_path, (0, 1), 0, "i0"))
    assert [[root.cause for root in one.roots] for one in found] == [[Cause.GAP], [Cause.GAP]]
