"""How many tensors agree at a row of the target and a token of the golden."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.errors import SystemFailure
from npucmp.relations.tokens import token_evidence
from npucmp.relations.tokens.token_evidence import gather_evidence
from npucmp.relations.tokens.token_tensors import tensor_pairs
from tests.align.token_craft import sides

PACKED, BATCH = np.arange(12), np.arange(12).reshape(3, 4)


def gathered(target, golden):
    return gather_evidence(target, golden, tensor_pairs(target, golden, None, ANYWHERE), ANYWHERE)


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


def test_too_many_tokens_have_no_evidence(tmp_path, monkeypatch):
    both = sides(tmp_path, PACKED, PACKED)
    monkeypatch.setattr(token_evidence, "MOST", 144)
    assert gathered(*both) is not None
    monkeypatch.setattr(token_evidence, "MOST", 143)
    assert gathered(*both) is None
