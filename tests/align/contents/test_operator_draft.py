"""Drafts of matches: how an operator was paired, and how certain that is."""

from __future__ import annotations

import pytest

from npucmp.align.contents.content import Recording
from npucmp.align.contents.content_pairs import ContentPair
from npucmp.align.contents.operator_draft import OperatorDraft, TensorPartner
from npucmp.align.contents.slices import CONFIDENCE
from npucmp.model import Operator, TensorRef

OPERATOR = Operator("linear.0", "linear", "linear", "forward", 3, ())


def draft_of(slots, via=""):
    draft = OperatorDraft(3, OPERATOR, 5, via)
    for at, slot in enumerate(slots):
        pair = ContentPair(at, at, f"stage {at}", 0.5 + at / 10, "")
        draft.partners[slot] = TensorPartner(Recording(5, TensorRef(slot, "float32", (4,))), pair)
    return draft


@pytest.mark.parametrize("slots, number", [
    (["input:0", "output:1", "output:0"], 1), (["output:0", "input:0"], 0), (["input:0", "input:1", "grad:weight"], 2),
])  # fmt: skip
@pytest.mark.parametrize("via", ["", "layer"])
def test_the_first_output_with_a_partner_shows_how_an_operator_was_paired(slots, number, via):
    draft = draft_of(slots, via)
    assert draft.first_output.target == number
    assert (draft.via_of, draft.confidence_of) == (f"stage {number}", 0.5 + number / 10)
    assert (draft.place, draft.operator, draft.golden) == (3, OPERATOR, 5)


@pytest.mark.parametrize("slots", [[], ["input:0"]])
def test_without_an_output_the_stage_counts_and_otherwise_slices(slots):
    draft = draft_of(slots, "layer")
    assert draft.first_output is None and (draft.via_of, draft.confidence_of) == ("layer", 0.8)
    draft = draft_of(slots)
    assert (draft.via_of, draft.confidence_of) == ("parts", CONFIDENCE) == ("parts", 0.9)
    assert OperatorDraft(0, OPERATOR).golden == -1
