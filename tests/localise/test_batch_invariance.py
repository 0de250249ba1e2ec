"""At how many tokens a difference originates in an operator, from the bits of what it read."""

from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.localise.batch_invariance import token_bits
from npucmp.measure.row_errors import RowErrors
from npucmp.model import Comparison, Finding, Measurement, Operator, Pair, Run, TensorRef, Verdict
from npucmp.model.relation import Relation


def bits(words):
    """The errors of tokens: "=" has equal bits, "x" is off by a half."""
    equal = np.array([one == "=" for one in words])
    return RowErrors(np.where(equal, 0.0, 0.5), np.ones(len(equal)), equal)


def rows_of(tensors, requests, **kinds):
    """The rows of one operator, of which `tensors` has the tokens by slot; None is a tensor without tokens."""
    known = {slot: None if words is None else bits(words) for slot, words in tensors.items()}
    relation = kinds.get("relation", Relation((0,), ()))
    refs = [TensorRef(slot, "float32", (4,)) for slot in tensors]
    op = Operator("f.0", "f", "f", "forward", 0, tuple(refs))
    pairs = [Pair(0, one.slot, op, op, one._replace(relation=relation), one) for one in refs]
    findings = tuple(Finding(Measurement(pair), Verdict.MATCH, "") for pair in pairs)
    run = Run("here", "npy", (op,), step=3)
    errors_of = SimpleNamespace(of=lambda pair: known[pair.slot])
    return [*token_bits(Comparison(run, run, findings, (), {}), requests, errors_of)]


ORIGINS = [  # tokens of the inputs, those of the output, the request of each, tokens at which a difference begins
    (["===="], "=x=x", "aaaa", 2),
    (["=x=="], "=x=x", "aaaa", 0),  # the token after one that differs reads it
    (["=x=="], "=x=x", "aabb", 1),  # in another request it does not
    (["x==="], "xxxx", "abcd", 3),
    (["x==="], "xxxx", "aaab", 1),
    (["==x=", "===="], "xxxx", "aaaa", 2),
    (["====", "==x="], "xxxx", "aaaa", 2),
    (["==xx", "xx=="], "xxxx", "aaaa", 0),
    (["===="], "====", "aaaa", 0),
    (["===x"], "xxxx", "aaaa", 3),
    ([], "=x=x", "aaaa", None),
    ([None], "=x=x", "aaaa", None),
    (["====", None], "=x=x", "aaaa", 2),
    (["==="], "=x=x", "aaaa", None),  # of another length
    (["====", "==="], "=x=x", "aaaa", None),
]


@pytest.mark.parametrize(("inputs", "output", "requests", "origins"), ORIGINS)
def test_a_difference_originates_where_all_inputs_up_to_the_token_have_equal_bits(inputs, output, requests, origins):
    tensors = {**{f"input:{at}": one for at, one in enumerate(inputs)}, "output:0": output}
    (row,) = rows_of(tensors, [*requests])
    assert (row.slot, row.tokens, row.equal, row.originated) == ("output:0", 4, output.count("="), origins)
    assert row.error == (0.5 if "x" in output else 0.0)
    assert (row.step, row.operator, row.golden_operator) == (3, "f.0", "f.0")


def test_outputs_without_tokens_have_no_row():
    assert rows_of({"input:0": "====", "output:0": None}, "aaaa") == []
    assert rows_of({"input:0": "====", "output:0": "===="}, "aaaa", relation=None) == []
