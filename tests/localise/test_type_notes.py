"""Notes on types and arguments that differ, and the parameters that optimizer calls update."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.notes import notes_of, with_parameters
from npucmp.model import Finding, Verdict
from tests.localise.networks import network, numbered, paired
from tests.localise.noted import alone, measured, root, rows, with_moments, with_target

HALF = 2.0**-11  # unit round-off of float16
LINE = "linear x w -> y z q"


def typed(letters: str, dtype: str = "float16", off: float = 0.0) -> dict:
    """These tensors in another type in the target, off by that rel_l2."""

    def change(one: Finding) -> Finding:
        return with_moments(with_target(one, dtype=dtype), max_abs=off, sum_dd=off * off, yy=1.0)._replace(error=off)

    return dict.fromkeys(letters, change)


def place(slot: str, line: int = 0) -> str:
    return f"linear.{line}.forward {slot}"


@pytest.mark.parametrize(
    "changed, words",
    [
        (typed("y"), f"1 of 5 float tensors (float16 against float32): {place('output:0')}"),
        (typed("xyz"), "3 of 5 float tensors (float16 against float32): "
                       + ", ".join(map(place, ("input:0", "output:0", "output:1")))),
        (typed("xyzq"), f"4 of 5 float tensors (float16 against float32), the first is {place('input:0')}"),
        ({**typed("x"), **typed("yz", "bfloat16")}, "3 of 5 float tensors (bfloat16 against float32): "
                       + ", ".join(map(place, ("input:0", "output:0", "output:1")))),  # the most frequent
        ({**typed("xy"), "y": alone("target"), "z": alone("golden")},
         f"1 of 3 float tensors (float16 against float32): {place('input:0')}"),
        ({}, None),
    ],
)  # fmt: skip
def test_float_types_that_differ(changed, words):
    found = rows(LINE, **changed)
    blamed = [root(paired(found[0], order=9))]
    assert notes_of(found, blamed) == ((f"dtypes differ in {words}",) if words else ())


WITHIN = "; the error is within rounding: largest rel_l2 {} unit round-offs, at linear.0.forward {}"
BEYOND = "; largest rel_l2 {} unit round-offs, at linear.0.forward {}"


@pytest.mark.parametrize(
    "changed, words",
    [
        (typed("y", off=FACTOR * HALF), WITHIN.format("3.9e-03 = 8.0", "output:0")),
        (typed("y", off=1.001 * FACTOR * HALF), BEYOND.format("3.9e-03 = 8.0", "output:0")),
        (typed("y", off=4 * FACTOR * HALF), BEYOND.format("1.6e-02 = 32.0", "output:0")),
        ({**typed("y", off=HALF), **typed("q", "bfloat16", off=2 * HALF)},
         WITHIN.format("9.8e-04 = 0.2", "output:2")),  # the coarsest type, the largest error
        (typed("y", off=0.0), WITHIN.format("0.0e+00 = 0.0", "input:0")),
    ],
)  # fmt: skip
def test_without_a_root_the_error_in_units_of_rounding(changed, words):
    (note,) = notes_of(rows(LINE, **changed), [])
    assert note.endswith(words) and note.startswith("dtypes differ in ")
    assert ("within rounding" in note) is ("within rounding" in words)


@pytest.mark.parametrize(
    "line, changed, words",
    [
        ("argmax x -> i", typed("i", "int32"), "1 of 1 other tensors (int32 against int64): output:0"),
        ("argmax -> i", typed("i", "int32"), "1 of 1 tensors (int32 against int64): output:0"),
        ("argmax i -> j", typed("j", "int32"), "1 of 2 tensors (int32 against int64): output:0"),
        ("argmax x -> i", typed("i", "float32"), "1 of 1 other tensors (float32 against int64): output:0"),
        ("argmax x -> i j?", typed("j", "int32"), "1 of 2 other tensors (int32 against int64): output:1"),
        ("argmax x -> i!", typed("i", "int32"), "1 of 1 other tensors (int32 against int64): output:0"),
        ("argmax x -> i", {"i": lambda one: with_target(one, dtype="int32")._replace(verdict=Verdict.DTYPE)}, None),
        ("argmax x -> i", {"i": lambda one: paired(with_target(one, dtype="int32"), golden=None)}, None),
        ("argmax x -> i j", {**typed("j", "int32"), "i": alone("golden")},
         "1 of 1 other tensors (int32 against int64): output:1"),
        ("argmax x -> i j", {**typed("j", "int32"), "i": alone("target")},
         "1 of 1 other tensors (int32 against int64): output:1"),
        ("argmax x -> y", {"x": lambda one: measured(one, moments=None),
                        "y": lambda one: measured(with_target(one, dtype="bfloat16"), moments=None)},
         "1 of 2 tensors (bfloat16 against float32): output:0"),
        ("argmax x -> y", typed("y", "complex64"), "1 of 1 other tensors (complex64 against float32): output:0"),
        ("argmax x -> y", typed("y", "odd"), "1 of 1 other tensors (odd against float32): output:0"),
    ],
)  # fmt: skip
def test_other_types_that_differ(line, changed, words):
    notes = [note.replace("argmax.0.forward ", "") for note in notes_of(rows(line, **changed), [])]
    assert notes == ([f"dtypes differ in {words}"] if words else [])


def with_arguments(found: list[Finding], target: dict, golden: dict, order: int = 0) -> list[Finding]:
    def change(one: Finding) -> Finding:
        sides = {"target_op": target, "golden_op": golden}
        operators = {side: getattr(one.pair, side) for side in sides}
        return paired(one, **{side: op and op._replace(arguments=sides[side]) for side, op in operators.items()})

    return [change(one) if one.pair.order == order else one for one in found]


@pytest.mark.parametrize(
    "target, golden, notes",
    [
        ({"input:4": 1e-5}, {"input:4": 1e-6}, ["argument input:4 (eps) is 1e-05 in the target, 1e-06 in the golden"]),
        ({"eps": 1, "dim": "a"}, {"eps": 2, "dim": "b"},
         ["argument eps is 1 in the target, 2 in the golden", "argument dim is 'a' in the target, 'b' in the golden"]),
        ({"eps": "x" * 50}, {"eps": 1}, [f"argument eps is '{'x' * 39} in the target, 1 in the golden"]),
        ({"eps": 1}, {"eps": "y" * 50}, [f"argument eps is 1 in the target, '{'y' * 39} in the golden"]),
        ({"eps": 1}, {"eps": 1}, []),
    ],
)  # fmt: skip
def test_arguments_that_differ_where_outputs_agree(target, golden, notes):
    found = with_arguments(rows("layer_norm x -> y z"), target, golden)
    notes = tuple(f"layer_norm.0.forward: {note}" for note in notes)
    assert notes_of(found, []) == notes_of(found, [root(paired(found[0], order=9))]) == notes
    assert notes_of(found, [root(found[-1])]) == ()  # the root has the argument in its evidence


def test_arguments_of_several_operators():
    found = rows("tanh x -> y", "exp y -> z", "golden sin x -> q", "target cos x -> p")
    for order in (0, 1, 2, 3):
        found = with_arguments(found, {"dim": 1}, {"dim": 2}, order)
    words = "argument dim is 1 in the target, 2 in the golden"
    assert notes_of(found, []) == (f"tanh.0.forward: {words}", f"exp.1.forward: {words}")


# Parameters of optimizer calls

FORWARD = ["linear x w b -> y", "linear.backward@linear.0 g -> h d"]
WEIGHT, BIAS = "linear.0.forward input:1", "linear.0.forward input:2"
BIASES = {"b": np.float32([3.3, 0.7, 0.1, 0.9, 0.4])}


def step(*updates: str, slots: dict | None = None, **scope: object) -> list[Finding]:
    """The findings of a linear layer and of calls of an optimizer; slots of the tensors of the calls, by letter."""
    scope = scope or {"scope": "optimizer"}
    found = []
    for one in network(*FORWARD, *updates, **BIASES):
        if one.pair.order >= len(FORWARD):
            operator = one.pair.target_op._replace(**scope)
            one = paired(one, target_op=operator, golden_op=operator)
            one = paired(one, slot=(slots or {}).get(f"{one.pair.slot} {one.pair.golden.label}", one.pair.slot))
        found.append(one)
    return numbered(found)


def named(found: list[Finding], slot: str, order: int = len(FORWARD)) -> str | None:
    """The parameter that the evidence of a root in that slot names."""
    at = next(one for one in found if one.pair.order == order)
    before = root(paired(at, slot=slot), "other")
    (after,) = with_parameters(found, [before])
    if after is before:
        return None
    first, *others = after.evidence
    assert tuple(others) == before.evidence and first.kind == "parameter"
    return first.sentence().removeprefix(f"{slot} belongs to parameter ")


@pytest.mark.parametrize(
    "update, slot, name",
    [
        ("add_ w g -> z", "output:0", WEIGHT),  # of any input
        ("add_ g b -> z", "output:0", BIAS),
        ("add_ w b -> b", "output:0", BIAS),  # the tensor of the slot comes first
        ("add_ w b -> z", "input:1", BIAS),
        ("add_ g q -> w z", "output:1", None),  # another output
        ("add_ g q -> w z", "output:0", WEIGHT),
        ("add_ g q -> z", "output:0", None),
        ("add_ k w -> z", "output:0", WEIGHT),
        ("add_ d -> z", "output:0", "linear.0.backward output:1"),  # the gradient of a parameter
        ("add_ h -> z", "output:0", None),
    ],
)
def test_the_parameter_of_an_optimizer_call(update, slot, name):
    assert named(step(update), slot) == name


LISTS = {"input:0 w": "input:0.0", "input:1 b": "input:0.1", "input:2 g": "input:1.0", "input:3 d": "input:1.1",
         "input:4 q": "input:2"}  # fmt: skip


@pytest.mark.parametrize(
    "slot, name",
    [
        ("output:0", WEIGHT),
        ("output:1", BIAS),
        ("input:0.1", BIAS),
        ("input:1.0", WEIGHT),  # the gradient itself has no name
        ("input:1.1", "linear.0.backward output:1"),
        ("output:2", None),
        ("output:10", None),
        ("input:2", None),  # no entry of a list
    ],
)
def test_the_entry_of_a_list_has_the_parameter_of_its_number(slot, name):
    assert named(step("_foreach_add w b g d q -> z p", slots=LISTS), slot) == name


@pytest.mark.parametrize(
    "scope, is_update",
    [
        ({"scope": "optimizer"}, True),
        ({"scope": "clip_grad"}, True),
        ({"scope": "Module.layer"}, False),
        ({"scope": "optimizer", "phase": "backward"}, False),
    ],
)
def test_calls_of_an_optimizer_alone_have_a_parameter(scope, is_update):
    assert named(step("add_ w g -> z", **scope), "output:0") == (WEIGHT if is_update else None)


def test_roots_keep_their_order():
    found = step("add_ b g -> z", "add_ w g -> p", "tanh w -> q")
    plain = [
        one if one.pair.order != 4 else paired(one, target_op=one.pair.target_op._replace(scope="")) for one in found
    ]
    roots = [root(one) for one in reversed(plain) if one.pair.slot == "output:0"]
    after = with_parameters(plain, roots)
    assert [one.pair.order for one in after] == [4, 3, 2, 1, 0]
    assert [one.because for one in after] == ["", f"output:0 belongs to parameter {WEIGHT}",
                                              f"output:0 belongs to parameter {BIAS}", "", ""]  # fmt: skip
    assert with_parameters(plain, roots[:1] + roots[3:]) == tuple(roots[:1] + roots[3:])
    assert with_parameters(found, []) == ()


def test_a_parameter_of_the_target_alone_has_no_name():
    found = [paired(one, golden=None) if one.pair.slot == "input:1" and not one.pair.order else one
             for one in step("add_ w g -> z")]  # fmt: skip
    assert named(found, "output:0") is None
