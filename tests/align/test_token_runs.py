"""Both runs by token: the rows of each tensor in the order of the golden's requests and positions."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align import token_runs as by_token
from npucmp.align.token_evidence import gather_evidence
from npucmp.align.token_index import find_index
from npucmp.align.token_rows import row_values
from npucmp.align.token_runs import token_runs
from npucmp.align.token_tensors import tensor_pairs
from npucmp.dump.limits import ANYWHERE
from npucmp.errors import SystemFailure
from npucmp.model import Payload, TensorRef
from npucmp.model.relation import TokenRelation
from tests.align.token_craft import side, step, values_of

BATCH = np.arange(12).reshape(3, 4)
PACKED = np.array([4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11])
STEPS = [BATCH[:, :3], BATCH[:, 3:]]
NAMES = ["embedding", "linear", "gelu", "output"]
TOKENS = TokenRelation(12, 3, 1)


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
    return token_runs(index, pairs, evidence, ANYWHERE)


def tensor(run, name, slot="output:0"):
    """A tensor of an operator; None without it."""
    operator = next(one for one in run.operators if one.name == f"Functional.{name}.0.forward")
    return next((one for one in operator.tensors if one.slot == slot), None)


def values(one):
    return row_values(one.payload, ANYWHERE)


@pytest.mark.parametrize("target, steps", [(PACKED, 1), (BATCH[::-1], 1), (STEPS, 2)])
def test_tensors_have_the_rows_of_the_goldens_tokens(tmp_path, target, steps):
    found, expected = by_tokens(tmp_path, target), values_of()
    for run in found:
        for name in NAMES:
            one = tensor(run, name)
            assert np.array_equal(values(one), expected[name][:12]) and one.shape == (12, len(expected[name][0]))
            assert one.relation == (TokenRelation(12, 3, steps) if run is found.target else None)
            assert (one.statistics, one.checksum, one.source, one.layout) == (None, "", "", "")
    assert values(tensor(found.target, "embedding", "input:0"))[:, 0].tolist() == [*range(12, 0, -1)]


def test_the_runs_have_the_step_and_rank_of_the_golden(tmp_path):
    found = by_tokens(
        tmp_path, change=lambda one, other: (replace(one, step=5, rank=6), replace(other, step=2, rank=3))
    )
    assert (found.target.step, found.target.rank) == (found.golden.step, found.golden.rank) == (2, 3)
    assert [one.name for one in found.target.operators] == [one.name for one in found.golden.operators]


def test_the_first_step_with_tokens_has_the_operators(tmp_path):
    """The first step computes another request, which the golden does not have."""
    found = by_tokens(tmp_path, [np.array([12, 12, 12]), PACKED])
    assert found.target.path.endswith("target 1") and np.array_equal(
        values(tensor(found.target, "gelu")), values_of()["gelu"][:12]
    )


SCORES, MASK = np.random.default_rng(5).standard_normal((5, 7)).astype(np.float32), np.ones((7, 7), bool)


def test_tensors_without_tokens_are_the_goldens_own(tmp_path):
    """An attention mask or scores: an input is marked; so is an output that a later operator reads, which is
    compared."""
    read = [call("scores", [MASK], [SCORES]), call("late", [SCORES], [values_of()["gelu"][BATCH]])]
    other = [call("scores", [MASK[1:]], [SCORES[1:]]), call("late", [SCORES[1:]], [values_of()["gelu"][PACKED]])]
    found = by_tokens(tmp_path, more=(other, read))
    assert tensor(found.target, "scores", "input:0") is None and tensor(found.target, "scores") is None
    own = TOKENS._replace(is_own=True)
    for name, slot in (("scores", "input:0"), ("scores", "output:0"), ("late", "input:0")):
        one = tensor(found.golden, name, slot)
        assert one.relation == own and one.relation.is_local
    assert tensor(found.golden, "late").relation is None


def test_an_output_without_tokens_that_none_reads_stays_open(tmp_path):
    last = [call("loss", [values_of()["gelu"][PACKED]], [SCORES])]
    other = [call("loss", [values_of()["gelu"][BATCH]], [SCORES])]
    one = tensor(by_tokens(tmp_path, more=(last, other)).golden, "loss")
    assert (one.relation, one.payload, one.shape) == (None, None, (5, 7)) and one.file


def test_an_output_that_only_an_open_operator_reads_stays_open(tmp_path):
    more = [call("a", [MASK], [SCORES]), call("b", [SCORES], [SCORES + 1])]
    found = by_tokens(tmp_path, more=(more, more)).golden
    assert tensor(found, "a").relation is None and tensor(found, "b").relation is None
    assert tensor(found, "b", "input:0").relation == TOKENS._replace(is_own=True)


def test_a_parameter_is_compared_as_it_is(tmp_path):
    weight = TensorRef("param:weight", "float32", (12, 3), "w.npy", "npy")

    def change(*runs):
        return tuple(
            replace(one, operators=(one.operators[0]._replace(tensors=(*one.operators[0].tensors, weight)),
                                    *one.operators[1:])) for one in runs)  # fmt: skip

    found = by_tokens(tmp_path, change=change)
    assert {tensor(run, "embedding", "param:weight") for run in found} == {weight}


@pytest.mark.parametrize("target, is_kept", [(PACKED, True), (STEPS, False)])
def test_a_number_is_compared_if_the_target_has_one_step(tmp_path, target, is_kept):
    number = [call("dim", [np.float32(2.0)], [values_of()["gelu"][0]])]
    found = by_tokens(tmp_path, target, more=(number, number))
    kept = tensor(found.target, "dim", "input:0")
    assert (kept is not None) is is_kept and (kept is None or (kept.shape, kept.relation) == ((), None))
    assert tensor(found.golden, "dim", "input:0").relation is None


# ---- integers ----


@pytest.mark.parametrize("is_other", [True, False])
def test_positions_are_compared_if_they_are_equal(tmp_path, is_other):
    """Positions of a packed run may count on through all requests. They are made of no activations."""
    places = BATCH % 4
    mine = np.arange(12) if is_other else places.reshape(-1)[PACKED]
    calls = ([call("rope", [one], [rows])] for one, rows in ((mine, values_of()["gelu"][PACKED]),
                                                             (places, values_of()["gelu"][BATCH])))  # fmt: skip
    found = by_tokens(tmp_path, more=tuple(calls))
    one = tensor(found.target, "rope", "input:0")
    assert (one is None) is is_other
    golden = tensor(found.golden, "rope", "input:0")
    assert golden.relation == (TOKENS._replace(is_own=True) if is_other else None)
    if one is not None:
        assert values(one).tolist() == values(golden).tolist() == [[0], [1], [2], [3]] * 3


@pytest.mark.parametrize("of_activations", [True, False])
def test_integers_that_an_operator_makes_of_activations_are_compared(tmp_path, of_activations):
    """The choice of an expert may be wrong; a table of the layout is not."""
    expert, table = np.arange(12), np.ones((2, 2), np.int64)
    sides = []
    for rows, wrong in ((PACKED, 1), (BATCH, 0)):
        reads = values_of()["gelu"][rows] if of_activations else table
        sides.append([call("choice", [reads], [expert[rows] + wrong])])
    found = by_tokens(tmp_path, more=tuple(sides))
    one = tensor(found.target, "choice")
    assert (one is not None) is of_activations
    if one is not None:
        assert values(one)[:, 0].tolist() == [at + 1 for at in range(12)]


def test_an_integer_input_without_a_partner_is_the_goldens_own(tmp_path):
    more = [call("gather", [np.arange(12).reshape(3, 4), values_of()["gelu"][BATCH]], [values_of()["gelu"][BATCH]])]
    other = [call("gather", [np.arange(5), values_of()["gelu"][PACKED]], [values_of()["gelu"][PACKED]])]
    found = by_tokens(tmp_path, more=(other, more))
    assert tensor(found.golden, "gather", "input:0").relation == TOKENS._replace(is_own=True)
    assert tensor(found.golden, "gather", "input:1").relation is None


def test_a_float_without_a_partner_is_selected_unless_the_other_side_has_it_without_tokens(tmp_path):
    alone = [call("extra", [], [values_of()["gelu"][BATCH]])]
    found = by_tokens(tmp_path, more=((), alone))
    assert np.array_equal(values(tensor(found.golden, "extra")), values_of()["gelu"][:12])
    (tmp_path / "again").mkdir()
    found = by_tokens(tmp_path / "again", more=([call("extra", [], [SCORES])], alone))
    assert tensor(found.target, "extra") is None and tensor(found.golden, "extra").relation is None
    assert tensor(found.golden, "extra").shape == (3, 4, 6)  # open: no partner


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


@pytest.mark.parametrize("is_golden", [False, True])
def test_a_tensor_that_cannot_be_read_has_its_reason(tmp_path, is_golden):
    def change(*runs):
        runs = [*runs]
        gelu = runs[is_golden].operators[2].tensors[1]
        with open(gelu.file, "wb") as stream:
            stream.write(b"no array")
        return runs

    found = by_tokens(tmp_path, change=change)
    one, other = (tensor(run, "gelu") for run in (found[::-1] if is_golden else found))
    assert one.problem and not other.problem and other.payload is not None


def test_values_of_packed_bits_have_a_reason(tmp_path):
    payload = Payload("x", "int4", (3, 4, 6), 0)

    def change(one, other):
        tensors = [
            one.operators[2].tensors[0],
            one.operators[2].tensors[1]._replace(payload=payload._replace(shape=(12, 6))),
        ]
        operators = (*one.operators[:2], one.operators[2]._replace(tensors=tuple(tensors)), *one.operators[3:])
        return replace(one, operators=operators), other

    assert "different sizes" in tensor(by_tokens(tmp_path, change=change).target, "gelu").problem


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
    assert tensor(found.target, "rope", "input:0") is not None
    assert tensor(found.golden, "rope", "input:0").relation is None


def test_integers_of_a_damaged_file_have_the_reason(tmp_path):
    calls = ([call("rope", [one], [values_of()["gelu"][rows]])] for one, rows in ((np.arange(12), PACKED),
                                                                                  (BATCH % 4, BATCH)))  # fmt: skip

    def change(*runs):
        with open(runs[0].operators[-1].tensors[0].file, "wb") as stream:
            stream.write(b"no array")
        return runs

    found = by_tokens(tmp_path, more=tuple(calls), change=change)
    assert tensor(found.target, "rope", "input:0").problem
    assert tensor(found.golden, "rope", "input:0").relation is None


def test_integers_that_a_later_step_does_not_have_are_the_goldens_own(tmp_path):
    calls = ([call("rope", [rows % 4], [values_of()["gelu"][rows]])] for rows in (STEPS[0], BATCH))
    found = by_tokens(tmp_path, STEPS, more=tuple(calls))
    assert tensor(found.target, "rope", "input:0") is None
    assert tensor(found.golden, "rope", "input:0").relation == TokenRelation(12, 3, 2, True)
