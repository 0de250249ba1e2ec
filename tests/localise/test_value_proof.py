"""Golden tensors that a tensor of the target alone proves, by the values of both."""

import math

import numpy as np
import pytest

from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRows
from npucmp.localise.open_tensors import ValueProof
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Side, TensorRef, Verdict
from tests.localise.weight_craft import drawn

X, OTHER = drawn(4, 6), drawn(4, 6, seed=9)
ROUND_OFF = 2.0**-24
LIMIT = 8 * ROUND_OFF


class Arrays:
    """Views of arrays by the labels of their tensors, and the labels of what was measured."""

    def __init__(self):
        self.values, self.measured = {}, []

    def rel_l2(self, pair, part=None):
        self.measured.append(pair.target.label)
        x, y = self.values[pair.target.label], self.values[pair.golden.label]
        if part is not None:
            x = x.take(range(part.start, part.start + y.shape[part.axis]), part.axis)
        off, norm = np.linalg.norm(x - y), np.linalg.norm(y)
        return float(off / norm if norm else off and math.inf) if x.shape == y.shape else None

    def sum_error(self, tensor, whole):
        y = self.values[whole.label]
        return float(np.linalg.norm(self.values[tensor.label] - y.sum(0)) / np.linalg.norm(y))


class Runs:
    """The operators of two runs, of which some have no partner, in the order of both."""

    def __init__(self):
        self.findings, self.views = [], Arrays()

    def op(self, order, tensors, sides="tg", kind="linear", phase="forward", error=0.0, name="", dtypes=None,
           verdict=Verdict.MATCH, reads=True):  # fmt: skip
        """An operator of the target ("t"), the golden ("g") or both, with its tensors by slot."""
        name = name or f"{kind}.{order}"
        refs = []
        for slot, values in tensors.items():
            label = f"{order} {sides} {slot}"
            self.views.values[label] = np.asarray(values, float)
            dtype = (dtypes or {}).get(slot, "float32")
            refs.append(TensorRef(slot, dtype, np.shape(values), label=label))
        own = Operator(name, kind, kind, phase, order, tuple(refs), call=name, reads_recorded=reads)
        for ref in refs:
            values = self.views.values[ref.label]
            number = abs(hash(values.tobytes())) >> 8
            side = Side(minimum=values.min(initial=0), maximum=values.max(initial=1), total=values.sum(),
                        squares=(values**2).sum(), hash=number)  # fmt: skip
            target, golden = (side if one in sides else Side() for one in "tg")
            pair = Pair(order, ref.slot, *((own if one in sides else None) for one in "tg"),
                        *((ref if one in sides else None) for one in "tg"))  # fmt: skip
            moments = Moments(values.size, target, golden, values.size)
            is_alone = len(sides) == 1
            self.findings.append(Finding(Measurement(pair, moments), Verdict.MISSING if is_alone else verdict, "",
                                         None if is_alone else error, row=len(self.findings)))  # fmt: skip
        return self

    def proof(self):
        """The proof, and the golden rows by order and slot."""
        self.findings.sort(key=lambda one: one.pair.order)
        proof = ValueProof(GoldenGraph(GoldenRows(self.findings)), self.views)
        return proof, {(one.pair.order, one.pair.slot): at for at, one in enumerate(self.findings) if one.pair.golden}


def proves(golden, target, *, at=(2, 3), slots=("output:0", "output:0"), errors=(0.0, 0.0, 0.0), golden_more=None,
           target_more=None, verdict=Verdict.MATCH):  # fmt: skip
    """Whether a tensor of the target alone proves one of the golden alone, at these places among matched operators at
    0, 10 and 20 with these errors."""
    runs = Runs()
    for order, error in zip((0, 10, 20), errors):
        runs.op(order, {"input:0": OTHER + order, "output:0": OTHER - order}, error=error, verdict=verdict)
    runs.op(at[0], {slots[0]: golden}, "g", **(golden_more or {}))
    runs.op(at[1], {slots[1]: target}, "t", **(target_more or {}))
    proof, rows = runs.proof()
    return proof.proves(rows[at[0], slots[0]])


def off(error, values=X):
    """Values with that rel_l2, in a direction that does not change their norm to first order."""
    other = OTHER - (OTHER * values).sum() / (values * values).sum() * values
    return values + error * np.linalg.norm(values) / np.linalg.norm(other) * other


@pytest.mark.parametrize("order", [2, 3])
def test_tensors_without_values_prove_nothing(order):
    runs = Runs().op(2, {"output:0": X}, "g").op(3, {"output:0": X}, "t")
    runs.findings = [one._replace(measurement=one.measurement._replace(moments=None)) if one.pair.order == order
                     else one for one in runs.findings]  # fmt: skip
    proof, rows = runs.proof()
    assert not proof.proves(rows[2, "output:0"])


# A golden tensor as a slice of one of the target


QKV = drawn(4, 12)


def slices(fused, *parts, phase="forward", gap=2, **more):
    """Which golden tensors, in their order, slices of a fused tensor of the target prove."""
    runs = Runs()
    for at, part in enumerate(parts):
        runs.op(gap + at, {"output:0": part}, "g", phase=phase)
    runs.op(gap + len(parts), {"output:0": fused}, "t", phase=phase, **more)
    proof, rows = runs.proof()
    return [proof.proves(rows[gap + at, "output:0"]) for at in range(len(parts))]


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_slices_run_in_the_reverse_order(axis):
    fused = QKV if axis else QKV.T
    q, k, v = np.split(fused, [4, 8], axis)
    assert slices(fused, v, k, q, phase="backward") == [True] * 3
    assert slices(fused, v, q, phase="backward") == [True] * 2
    assert slices(fused, q, k, v, phase="backward") == [True, False, False]
    assert slices(fused, k, k, phase="backward") == [True, False]


# Gradients of biases


@pytest.mark.parametrize("small, found", [(1e-7, True), (1e-5, False)])
def test_a_slice_of_a_bias_that_is_rounding_is_proven(small, found):
    """Relative to the whole: LIMIT times its norm over that of the slice is 1 or more."""
    fused = np.concatenate([drawn(4), small * drawn(4, seed=2), drawn(4, seed=3)])
    noise = small * drawn(4, seed=5)
    scale = LIMIT * np.linalg.norm(fused) / np.linalg.norm(noise)
    assert (scale >= 1.0) == found and np.linalg.norm(noise - fused[4:8]) / np.linalg.norm(noise) < 4.0
    assert slices(fused, noise, phase="backward") == [found]
    assert slices(fused, noise) == [False]
