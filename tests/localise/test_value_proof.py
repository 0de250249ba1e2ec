"""Golden tensors that a tensor of the target alone proves, by the values of both."""

import math

import numpy as np
import pytest

from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow
from npucmp.localise.value_proof import ValueProof
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
            number = hash(values.tobytes()) >> 8
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
        rows = [GoldenRow.of(one) for one in self.findings if one.pair.golden is not None]
        proof = ValueProof(self.findings, GoldenGraph(self.findings, rows), self.views)
        return proof, {(one.finding.pair.order, one.finding.pair.slot): one for one in rows}


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


@pytest.mark.parametrize("times, found", [(0.0, True), (0.99, True), (1.01, False)])
def test_the_target_holds_the_same_values_within_rounding(times, found):
    """Eight round-offs of the type."""
    assert proves(X, off(times * LIMIT)) is found


@pytest.mark.parametrize(
    "at, slots, found",
    [
        ((2, 3), ("output:0", "output:1"), True),
        ((2, 3), ("input:0", "input:5"), True),
        ((2, 3), ("input:0", "output:0"), False),
        ((2, 3), ("output:0", "input:0"), False),
        ((2, 12), ("output:0", "output:0"), False),  # another gap between matched operators
        ((12, 13), ("output:0", "output:0"), True),
        ((9, 10.5), ("output:0", "output:0"), False),
        ((21, 25), ("output:0", "output:0"), True),
        ((-2, -1), ("output:0", "output:0"), True),
        ((-2, 1), ("output:0", "output:0"), False),
    ],
)
def test_a_tensor_proves_another_in_its_place(at, slots, found):
    assert proves(X, X, at=at, slots=slots) is found


@pytest.mark.parametrize(
    "at, errors, found",
    [
        ((2, 3), (0.01, 0.0, 0.0), True),
        ((2, 3), (0.0, 0.01, 0.0), True),
        ((2, 3), (0.0, 0.0, 0.01), False),
        ((12, 13), (0.01, 0.0, 0.0), False),
        ((12, 13), (0.0, 0.0, 0.01), True),
        ((22, 23), (0.0, 0.0, 0.01), True),
        ((22, 23), (0.0, 0.01, 0.0), False),
        ((-2, -1), (0.01, 0.0, 0.0), True),
        ((-2, -1), (0.0, 0.01, 0.0), False),
        ((2, 3), (0.009, 0.0101, 0.0), True),
        ((2, 3), (0.0098, 0.0097, 0.0), False),
    ],
)
def test_the_errors_around_may_have_grown_eight_times(at, errors, found):
    """Those of the matched operators on both sides of the gap; the tensors are 0.079 apart."""
    assert proves(X, off(0.079), at=at, errors=errors) is found


def test_only_errors_that_agree_may_have_grown():
    assert proves(X, off(0.079), errors=(0.01, 0.0, 0.0), verdict=Verdict.DIVERGED) is False


@pytest.mark.parametrize(
    "golden, target, unit",
    [
        ({}, {}, 2.0**-24),
        ({"output:0": "bfloat16"}, {}, 2.0**-8),
        ({}, {"output:0": "bfloat16"}, 2.0**-8),
        ({"input:0": "float16"}, {}, 2.0**-11),  # the coarsest type of the operator
        ({"input:0": "float16"}, {"input:0": "bfloat16"}, 2.0**-8),
        ({"input:0": "int64"}, {}, 2.0**-24),
        ({"output:0": "unknown", "input:0": "unknown"}, {"output:0": "unknown", "input:0": "unknown"}, 0.0),
    ],
)
def test_the_rounding_of_the_coarsest_type_of_both_operators_is_allowed(golden, target, unit):
    for times, found in ((0.99, True), (1.01, unit == 0.0 and False)):
        runs = Runs().op(2, {"input:0": OTHER, "output:0": X}, "g", dtypes=golden)
        runs.op(3, {"input:0": OTHER + 1, "output:0": off(times * 8 * unit)}, "t", dtypes=target)
        proof, rows = runs.proof()
        assert proof.proves(rows[2, "output:0"]) is (found or not unit)


def test_a_row_is_asked_for_once():
    runs = Runs().op(2, {"output:0": X}, "g").op(3, {"output:0": X}, "t")
    proof, rows = runs.proof()
    row = rows[2, "output:0"]
    assert [proof.proves(row), proof.proves(row)] == [True, False]


def test_any_tensor_in_the_place_may_be_the_one():
    """A tensor of another norm is not read."""
    runs = Runs().op(2, {"output:0": X}, "g")
    runs.op(3, {"output:0": 2 * X, "output:1": 0.5 * X, "output:2": off(0.5) / 1.1180339887, "output:3": X}, "t")
    proof, rows = runs.proof()
    assert proof.proves(rows[2, "output:0"])
    assert runs.views.measured == ["3 t output:2", "3 t output:3"]


@pytest.mark.parametrize("order", [2, 3])
def test_tensors_without_values_prove_nothing(order):
    runs = Runs().op(2, {"output:0": X}, "g").op(3, {"output:0": X}, "t")
    runs.findings = [one._replace(measurement=one.measurement._replace(moments=None)) if one.pair.order == order
                     else one for one in runs.findings]  # fmt: skip
    proof, rows = runs.proof()
    assert not proof.proves(rows[2, "output:0"])


def test_tensors_without_elements_prove_nothing():
    assert not proves(np.zeros((0, 4)), np.zeros((0, 4)))


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
def test_slices_in_the_order_in_which_the_golden_ran_them(axis):
    fused = QKV if axis else QKV.T
    q, k, v = np.split(fused, [4, 8], axis)
    assert slices(fused, q, k, v) == [True] * 3
    assert slices(fused, q, v) == [True] * 2
    assert slices(fused, v, k, q) == [True, False, False]
    assert slices(fused, k, q, v) == [True, False, True]
    assert slices(fused, q, q) == [True, False]
    assert slices(fused, OTHER[:, :4] if axis else OTHER[:, :4].T, k) == [False, True]


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_slices_run_in_the_reverse_order(axis):
    fused = QKV if axis else QKV.T
    q, k, v = np.split(fused, [4, 8], axis)
    assert slices(fused, v, k, q, phase="backward") == [True] * 3
    assert slices(fused, v, q, phase="backward") == [True] * 2
    assert slices(fused, q, k, v, phase="backward") == [True, False, False]
    assert slices(fused, k, k, phase="backward") == [True, False]


def test_slices_of_one_tensor_have_one_axis():
    assert slices(QKV, QKV[:, :4], QKV[3:, :]) == [True, False]
    assert slices(QKV, QKV[3:, :]) == [True]


@pytest.mark.parametrize(
    "fused, part, found",
    [
        (QKV, QKV[:, 2:4], True),
        (QKV, QKV[:, 8:], True),
        (QKV, QKV[:, 3:5], False),  # slices begin at multiples of the common divisor
        (QKV, QKV[:, 3:11], False),
        (QKV, QKV[:, 4:12], True),
        (QKV, QKV[:2, :6], False),  # one axis alone is longer
        (QKV, QKV[:, 0], False),
        (QKV[:, :4], QKV, False),  # the golden's is the longer one
        (QKV, QKV[:, :0], False),
        (drawn(2, 16), drawn(2, 16)[:, 15:], True),
        (drawn(2, 16), drawn(2, 1, seed=4) / 9, False),
        (drawn(2, 17), drawn(2, 17)[:, 16:], False),  # more than sixteen slices
        (drawn(2, 34), drawn(2, 34)[:, 32:], False),
        (drawn(2, 32), drawn(2, 32)[:, 30:], True),
    ],
)
def test_a_slice_along_one_axis(fused, part, found):
    assert slices(fused, part) == [found]


def test_a_weight_of_a_checkpoint_has_no_slices():
    """Its tensors have no order."""
    assert slices(QKV, QKV[:, :4], name="layers.0.qkv.weight", reads=False) == [False]
    assert slices(QKV, QKV[:, :4], name="layers.0.qkv", reads=False) == [True]


def test_a_slice_has_a_smaller_norm_than_the_whole():
    """A part that is larger than the whole is not read."""
    runs = Runs().op(2, {"output:0": 20 * QKV[:, :4]}, "g").op(3, {"output:0": QKV}, "t")
    proof, rows = runs.proof()
    assert not proof.proves(rows[2, "output:0"]) and runs.views.measured == []


# Gradients of sums


def summed(values=None, phase="backward", kind="add", slot="input:0", verdict=Verdict.MATCH, dtype="float32"):
    """Whether a golden output of a matched operator is proven by the sum of a gradient that was compared."""
    runs = Runs().op(2, {slot: X}, kind=kind, phase=phase, verdict=verdict, name="own")
    runs.op(2, {"output:0": X.sum(0) if values is None else values}, kind=kind, phase=phase, name="own",
            dtypes={"output:0": dtype})  # fmt: skip
    last = runs.findings[-1]
    pair = last.measurement.pair._replace(target=None)
    runs.findings[-1] = last._replace(measurement=last.measurement._replace(pair=pair), verdict=Verdict.MISSING)
    proof, rows = runs.proof()
    return proof.proves(rows[2, "output:0"])


def test_the_gradient_of_a_broadcast_addend_is_the_sum_of_the_incoming_one():
    """Only runs in which the addend requires a gradient record it."""
    assert summed() and summed(kind="sub")
    assert not summed(kind="addcmul") and not summed(kind="cat") and not summed(phase="forward")
    assert not summed(verdict=Verdict.DIVERGED) and not summed(slot="output:1")


@pytest.mark.parametrize("dtype, unit", [("float32", 2.0**-24), ("bfloat16", 2.0**-8), ("unknown", 0.0)])
def test_a_sum_has_the_rounding_of_its_own_type(dtype, unit):
    """Relative to the terms."""
    direction = np.array([1.0, 0, 0, 0, 0, 0]) * np.linalg.norm(X)
    assert summed(X.sum(0) + 7.9 * unit * direction, dtype=dtype)
    assert not summed(X.sum(0) + max(8.1 * unit, 1e-9) * direction, dtype=dtype)


# Gradients of biases


G = drawn(5, 8, seed=3)
BIAS = G.sum(0) * 1e-4  # terms that cancel


def bias_found(error, *, phase="backward", values=BIAS, compared=True, slot="input:0"):
    """Whether the target proves the gradient of a bias that is off by `error` of itself, beside the incoming gradient,
    which a matched operator read too."""
    runs = Runs().op(0, {"input:0": G if compared else G + 1.0}, name="before")
    runs.op(2, {slot: G, "output:0": values}, "g", phase=phase)
    runs.op(3, {"output:0": off(error, np.asarray(values)) if values.shape == X.shape else values * (1 + error)}, "t",
            phase=phase)  # fmt: skip
    proof, rows = runs.proof()
    return proof.proves(rows[2, "output:0"])


RATIO = np.linalg.norm(G) / np.linalg.norm(BIAS)


def test_the_gradient_of_a_bias_has_the_rounding_of_the_incoming_gradient():
    """Its terms may cancel, as for the bias of keys."""
    assert bias_found(0.99 * LIMIT * RATIO) and not bias_found(1.01 * LIMIT * RATIO)


@pytest.mark.parametrize(
    "change",
    [{"phase": "forward"}, {"compared": False}, {"values": BIAS.reshape(2, 4)}, {"slot": "output:1"}],
)
def test_other_tensors_have_the_rounding_of_their_type(change):
    assert not bias_found(0.5 * LIMIT * RATIO, **change) and bias_found(0.99 * LIMIT, **change)


@pytest.mark.parametrize("small, found", [(1e-7, True), (1e-5, False)])
def test_a_slice_of_a_bias_that_is_rounding_is_proven(small, found):
    """Relative to the whole: LIMIT times its norm over that of the slice is 1 or more."""
    fused = np.concatenate([drawn(4), small * drawn(4, seed=2), drawn(4, seed=3)])
    noise = small * drawn(4, seed=5)
    scale = LIMIT * np.linalg.norm(fused) / np.linalg.norm(noise)
    assert (scale >= 1.0) == found and np.linalg.norm(noise - fused[4:8]) / np.linalg.norm(noise) < 4.0
    assert slices(fused, noise, phase="backward") == [found]
    assert slices(fused, noise) == [False]


def test_a_bias_whose_gradient_is_zero_is_proven_by_zeros():
    assert bias_found(0.0, values=np.zeros(8))
