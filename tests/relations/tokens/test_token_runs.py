"""Both runs by token: the rows of each tensor in the order of the golden's requests and positions."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.errors import SystemFailure
from npucmp.model import Payload
from npucmp.relations.tokens import token_runs as by_token
from npucmp.relations.tokens.token_evidence import gather_evidence
from npucmp.relations.tokens.token_index import find_index
from npucmp.relations.tokens.token_rows import row_values
from npucmp.relations.tokens.token_runs import TokenRuns
from npucmp.relations.tokens.token_tensors import tensor_pairs
from tests.align.token_craft import side, step, values_of

BATCH = np.arange(12).reshape(3, 4)
PACKED = np.array([4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11])


def call(name, reads, writes):
    return f"Functional.{name}.0.forward", reads, writes


def by_tokens(folder, target=PACKED, more=((), ()), change=None, golden=BATCH):
    """Both runs by token. `more`: further calls of each side; `change`: a function of both runs."""
    steps = target if isinstance(target, list) else [target]
    left = [step(folder / f"target {at}", one, more=more[0] if not at else ()) for at, one in enumerate(steps)]
    right = step(folder / "golden", golden, more=more[1])
    if change is not None:
        left[0], right = change(left[0], right)
    both = side(*left), side(right)
    pairs = tensor_pairs(*both, None, ANYWHERE)
    evidence = gather_evidence(*both, pairs, ANYWHERE)
    index = find_index(*both, evidence)
    assert index.problem == ""
    runs = TokenRuns(index, pairs, evidence, ANYWHERE)
    return runs.target_run(), runs.golden_run(index.golden, index.places)


def tensor(run, name, slot="output:0"):
    """A tensor of an operator; None without it."""
    operator = next(one for one in run.operators if one.name == f"Functional.{name}.0.forward")
    return next((one for one in operator.tensors if one.slot == slot), None)


def values(one):
    return row_values(one.payload, ANYWHERE)


# ---- shapes of the values of a token ----


@pytest.mark.parametrize("mine, shape", [((2, 3), (12, 2, 3)), ((6,), (12, 6)), ((3, 2), (12, 6))])
def test_both_sides_have_the_values_of_a_token_in_one_shape(tmp_path, mine, shape):
    rows = values_of()["gelu"]
    calls = (
        [call("heads", [], [rows[PACKED].reshape(12, *mine)])],
        [call("heads", [], [rows[BATCH].reshape(3, 4, 2, 3)])],
    )
    found = by_tokens(tmp_path, more=calls)
    one, other = (tensor(run, "heads") for run in found)
    assert one.shape == other.shape == shape
    assert np.array_equal(values(one), rows[:12]) and np.array_equal(values(other), rows[:12])


# ---- tensors that cannot be read ----


def test_values_of_packed_bits_have_a_reason(tmp_path):
    payload = Payload("x", "int4", (3, 4, 6), 0)

    def change(one, other):
        tensors = [
            one.operators[2].tensors[0],
            one.operators[2].tensors[1]._replace(payload=payload._replace(shape=(12, 6))),
        ]
        operators = (*one.operators[:2], one.operators[2]._replace(tensors=tuple(tensors)), *one.operators[3:])
        return replace(one, operators=operators), other

    assert "different sizes" in tensor(by_tokens(tmp_path, change=change)[0], "gelu").problem


@pytest.mark.parametrize("name", ["row_values", "selected"])
def test_a_failure_of_the_system_ends_the_search(tmp_path, monkeypatch, name):
    places = [call("rope", [np.arange(12)], [values_of()["gelu"][PACKED]])]
    other = [call("rope", [BATCH % 4], [values_of()["gelu"][BATCH]])]

    def failing(*_):
        raise SystemFailure("x.npy", "no file handles")

    monkeypatch.setattr(by_token, name, failing)
    with pytest.raises(SystemFailure):
        by_tokens(tmp_path, more=(places, other))


def test_integers_that_cannot_be_read_are_not_the_layouts_own(tmp_path):
    """Whether they differ is not known."""
    places = [call("rope", [np.arange(12)], [values_of()["gelu"][PACKED]])]
    other = [call("rope", [BATCH % 4], [values_of()["gelu"][BATCH]])]

    def change(one, others):
        rope = one.operators[-1]
        missing = rope.tensors[0]._replace(payload=Payload("/missing/x", "int64", (12,), 0))
        return replace(one, operators=(*one.operators[:-1], rope._replace(tensors=(missing, rope.tensors[1])))), others

    found = by_tokens(tmp_path, more=(places, other), change=change)
    assert tensor(found[0], "rope", "input:0") is not None
    assert tensor(found[1], "rope", "input:0").relation is None
