"""The operators by share of tokens with equal bits: batch_invariance.csv, and two lines on the screen."""

from __future__ import annotations

from functools import partial
from typing import Sequence

from npucmp.model.relation import TokenBits
from npucmp.report.answer import ReportTable, Row
from npucmp.report.phrases import count_of
from npucmp.report.tables import table

_SHOWN = 4  # types of operators on the screen: work
COLUMNS = tuple("step op op_type slot golden_op tokens equal_tokens equal_ratio originated max_rel_l2".split(" "))


def invariance_table(bits: Sequence[TokenBits]) -> ReportTable:
    """Return the table: operators that originate differences first, then by share of equal tokens."""
    order = partial(sorted, bits, key=lambda one: (not one.originated, one.equal / max(1, one.tokens)))
    return table("batch_invariance.csv", COLUMNS, lambda: map(_row, order()))


def _row(one: TokenBits) -> Row:
    return {
        "step": one.step,
        "op": one.operator,
        "op_type": one.op_type,
        "slot": one.slot,
        "golden_op": one.golden_operator,
        "tokens": one.tokens,
        "equal_tokens": one.equal,
        "equal_ratio": one.equal / max(1, one.tokens),
        "originated": one.originated,
        "max_rel_l2": one.error,
    }


def invariance_line(bits: Sequence[TokenBits]) -> str:
    """Return the number of outputs with equal bits, and the operators that are not batch-invariant by their inputs."""
    same = sum(one.equal == one.tokens for one in bits)
    words = f"batch invariance: {same} of {count_of(len(bits), 'output')} bit-equal in all tokens"
    origins = [one for one in bits if one.originated]
    if not origins:
        return words
    kinds = dict.fromkeys(one.op_type for one in origins)
    first = origins[0]
    share = f"{first.equal} of {first.tokens} tokens equal"
    types = ", ".join([*kinds][:_SHOWN])
    return (
        f"{words}; equal bits in and other bits out in {len(origins)} ({types}), the first: {first.operator} ({share})"
    )
