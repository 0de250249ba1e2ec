"""How many tensors agree at a row of the target and a token of the golden."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align import token_evidence
from npucmp.align.token_evidence import counts_of, gather_evidence
from npucmp.align.token_tensors import tensor_pairs
from npucmp.dump.limits import ANYWHERE
from npucmp.errors import SystemFailure
from npucmp.model import Payload, Statistics
from tests.align.craft import run_with_values
from tests.align.token_craft import evidence, side, sides, step, values_of

PACKED, BATCH = np.arange(12), np.arange(12).reshape(3, 4)


def gathered(target, golden):
    return gather_evidence(target, golden, tensor_pairs(target, golden, None, ANYWHERE), ANYWHERE)


def counts(found):
    return {(int(row), int(token)): int(count) for row, token, count in zip(found.rows, found.tokens, found.counts)}


def one_of(folder, values, ids=True, golden=None, golden_values=None, places=PACKED):
    """The evidence of a target with these values against a golden with others."""
    target = side(step(folder / "target", places, values, ids))
    return gathered(target, side(step(folder / "golden", PACKED if golden is None else golden, golden_values, ids)))


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("target", [PACKED[::-1], BATCH, [BATCH[:, :2], BATCH[:, 2:]], [[3, 1, 2]]])
def test_the_same_token_agrees_in_all_tensors(tmp_path, target, ids):
    found = gathered(*sides(tmp_path, target, PACKED, ids=ids))
    tokens = [token for one in (target if isinstance(target, list) else [target]) for token in np.ravel(one)]
    assert found.tensors == (4 if ids else 3) and found.is_ids is ids
    assert counts(found) == dict.fromkeys(enumerate(tokens), found.tensors)
    slot = "input:0" if ids else "output:0"
    assert found.first.golden == ("Functional.embedding.0.forward", 0, slot)


def test_candidates_have_one_id(tmp_path):
    """Tokens 0 and 5 have one id, and agree with themselves alone."""
    values = values_of()
    values["ids"][5] = values["ids"][0]
    found = one_of(tmp_path, values, golden_values=values)
    same = {(0, 5): 0, (5, 0): 0}
    assert counts(found) == {**{(at, at): 4 for at in range(12)}, **same}
    assert found.classes.tolist() == values["ids"][:12].tolist()


def test_without_ids_candidates_agree_in_the_first_tensor(tmp_path):
    values = values_of()
    values["embedding"][5] = values["embedding"][0]
    found = one_of(tmp_path, values, ids=False, golden_values=values)
    assert counts(found) == {**{(at, at): 3 for at in range(12)}, (0, 5): 0, (5, 0): 0}
    classes = found.classes.tolist()
    assert classes[5] == classes[0] and len({*classes}) == 11


@pytest.mark.parametrize("first", [0, 4])
def test_a_row_has_the_class_of_the_first_row_with_which_it_agrees(tmp_path, first):
    """The third one agrees with the second, which agrees with the first."""
    values = values_of()
    for at, error in ((1, 0.002), (2, 0.0035)):
        values["embedding"][first + at] = values["embedding"][first] * np.float32(1 + error)
    classes = one_of(tmp_path, values, ids=False, golden_values=values).classes[first : first + 3].tolist()
    assert classes[0] == classes[1] != classes[2]


def test_the_classes_of_the_golden_are_not_those_of_the_target(tmp_path):
    """Without ids a token that only the golden has is a class of its own, and has no candidate."""
    found = one_of(tmp_path, values_of(), ids=False, golden=PACKED[:4], places=PACKED[2:6])
    assert counts(found) == {(0, 2): 3, (1, 3): 3} and len({*found.classes.tolist()}) == 4 == len(found.classes)


@pytest.mark.parametrize(
    "dtype, error, agrees",
    [
        (np.float32, 1e-3, True),
        (np.float32, 3e-2, False),
        (np.float16, 1e-2, True),
        (np.float32, 1e-2, False),
        (np.float16, 0.5, False),
        (np.float32, -3e-2, False),
        (np.float16, -0.5, False),
    ],
)
def test_tensors_agree_up_to_the_rounding_of_their_type(tmp_path, dtype, error, agrees):
    values, exact = values_of(dtype=dtype), values_of(dtype=dtype)
    values["gelu"][3] = values["gelu"][3] * dtype(1 + error)
    found = counts(one_of(tmp_path, values, golden_values=exact))
    assert found == {(at, at): 4 if agrees or at != 3 else 3 for at in range(12)}


def test_a_row_in_another_direction_does_not_agree(tmp_path):
    """Its norm is the same."""
    values = values_of()
    values["gelu"][3] = values["gelu"][3][::-1]
    assert counts(one_of(tmp_path, values))[3, 3] == 3


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("ids", [True, False])
def test_rows_with_nan_or_inf_agree_with_none(tmp_path, number, ids):
    values = values_of()
    values["embedding"][3, 2] = number
    found = one_of(tmp_path, values, ids, golden_values=values)
    assert counts(found) == {(at, at): found.tensors - (at == 3) for at in range(12) if ids or at != 3}


def test_large_values_are_no_inf(tmp_path):
    values = values_of()
    values["gelu"] = (values["gelu"] * 1e30).astype(np.float32)
    assert {*counts(one_of(tmp_path, values, golden_values=values)).values()} == {4}


def changed(run, at, **fields):
    """The run with other fields of the output of an operator."""
    operators = [*run.operators]
    *others, last = operators[at].tensors
    operators[at] = operators[at]._replace(tensors=(*others, last._replace(**fields)))
    return replace(run, operators=tuple(operators))


UNREADABLE = Payload("/missing/x", "float32", (12, 6), 0)


@pytest.mark.parametrize("fields", [{"payload": UNREADABLE}, {"file": "", "statistics": Statistics(1.0)}])
def test_a_tensor_that_cannot_be_read_is_not_asked(tmp_path, fields):
    target, golden = (step(tmp_path / name, PACKED) for name in ("target", "golden"))
    for both in ((changed(target, 1, **fields), golden), (target, changed(golden, 1, **fields))):
        found = gathered(*map(side, both))
        assert found.tensors == 3 and {*counts(found).values()} == {3}


@pytest.mark.parametrize("ids", [True, False])
def test_without_the_tensor_that_makes_candidates_there_is_no_evidence(tmp_path, ids):
    target, golden = (step(tmp_path / name, PACKED, ids=ids) for name in ("target", "golden"))
    tensor = target.operators[0].tensors[0]
    operators = (target.operators[0]._replace(tensors=(tensor._replace(file=""), *target.operators[0].tensors[1:])),)
    target = replace(target, operators=(*operators, *target.operators[1:]))
    assert gathered(side(target), side(golden)) is None


def test_a_failure_of_the_system_ends_the_search(tmp_path, monkeypatch):
    target, golden = sides(tmp_path, PACKED, PACKED)

    def failing(*_):
        raise SystemFailure("x.npy", "no file handles")

    monkeypatch.setattr(token_evidence, "row_values", failing)
    with pytest.raises(SystemFailure):
        gathered(target, golden)


def test_numbers_alone_are_no_evidence(tmp_path):
    both = sides(tmp_path, PACKED, PACKED)
    integers = [one for one in tensor_pairs(*both, None, ANYWHERE) if not one.is_float]
    assert len(integers) == 1 and gather_evidence(*both, integers, ANYWHERE) is None


def test_inputs_are_evidence_if_there_are_no_outputs(tmp_path):
    calls = [(f"Functional.{name}.0.forward", [values_of()[name][:12]], []) for name in ("embedding", "linear", "gelu")]
    both = (side(run_with_values(tmp_path / name, calls)) for name in ("target", "golden"))
    found = gathered(*both)
    assert found.tensors == 2 and counts(found) == {(at, at): 2 for at in range(12)}


def test_too_many_tokens_have_no_evidence(tmp_path, monkeypatch):
    both = sides(tmp_path, PACKED, PACKED)
    monkeypatch.setattr(token_evidence, "MOST", 144)
    assert gathered(*both) is not None
    monkeypatch.setattr(token_evidence, "MOST", 143)
    assert gathered(*both) is None


# 24 rows of 4 bytes for each of 8 + 6 + 6 + 4 values
@pytest.mark.parametrize("size, tensors", [(2304, 4), (2303, 2), (1152, 2), (1151, 2), (768, 2), (767, 1), (576, 1)])
def test_large_runs_give_an_even_choice_of_their_tensors(tmp_path, monkeypatch, size, tensors):
    monkeypatch.setattr(token_evidence, "READ", size)
    found = gathered(*sides(tmp_path, PACKED, PACKED))
    assert found.tensors == tensors and {*counts(found).values()} == {tensors}


@pytest.mark.parametrize("chunk", [1, 5, 12, 13])
def test_evidence_does_not_depend_on_the_chunks(tmp_path, monkeypatch, chunk):
    values = values_of()
    values["gelu"][7] *= 2
    monkeypatch.setattr(token_evidence, "CHUNK", chunk)
    assert counts(one_of(tmp_path, values)) == {(at, at): 3 if at == 7 else 4 for at in range(12)}


@pytest.mark.parametrize("most, frequent", [(17, True), (16, True), (15, False)])
def test_the_most_frequent_ids_have_no_candidates_beyond_a_limit(tmp_path, monkeypatch, most, frequent):
    """Three tokens of one id make nine pairs of 9 + 7."""
    values = values_of(10)
    values["ids"][:3] = values["ids"][0]
    ids = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    monkeypatch.setattr(token_evidence, "CANDIDATES", most)
    found = gathered(*(side(step(tmp_path / name, ids, values)) for name in ("target", "golden")))
    pairs = {(at, at) for at in range(3, 10)} | {(a, b) for a in range(3) for b in range(3) if frequent}
    assert {*counts(found)} == pairs


def test_counts_of_pairs():
    """Pairs that are no candidates have none; the candidates stand in any order."""
    found = evidence({(2, 1): 3, (0, 0): 5, (1, 2): 7}, [5, 6, 7])
    assert counts_of(found, [0, 1, 2, 2, 0, 9], np.array([0, 2, 1, 2, 1, 2])).tolist() == [5, 7, 3, 0, 0, 0]
    assert counts_of(found, [-1, 2], [0, 1]).tolist() == [0, 3]
    assert counts_of(evidence({}, [5, 6, 7]), [0, 1], [0, 1]).tolist() == [0, 0]
