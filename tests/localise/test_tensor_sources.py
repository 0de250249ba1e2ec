"""The earlier row of the tensor that an operator reads, and the operators that two runs execute in another order."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.flow.contents import content_of
from npucmp.localise.search import RootSearch
from npucmp.localise.sources import replace_source, source_of
from npucmp.localise.sweep import TensorSource
from npucmp.model import Finding
from tests.localise.networks import SHAPE, network

FIRST = 100  # the row of the first tensor, as in a search over several ranks
ONES = np.ones(SHAPE, np.float32)


def rank(*lines: str, first: int = FIRST, **values: np.ndarray) -> tuple[list[Finding], RootSearch]:
    walk = RootSearch(network(*lines, **values), first_row=first)
    return [*walk.findings], walk


def place(source: Optional[TensorSource]) -> Optional[int]:
    """The row of a source, counted from the first."""
    return None if source is None else source.finding.row - FIRST


def foreign(letter: str, row: int = 0) -> Finding:
    """A tensor of another rank."""
    return network(f"relu {letter} -> q")[0]._replace(row=row)


def test_a_replacement_concerns_one_tensor_and_other_ranks():
    findings, walk = rank("relu x k -> y", "tanh y k -> z", k=ONES)
    other = TensorSource(foreign("y", 7), True)
    replace_source(walk, other, 0, FIRST)  # ones, which identify no tensor
    assert [place(source_of(walk, one)) for one in findings] == [None, None, None, 2, None, None]
    replace_source(walk, other, content_of(findings[2]), FIRST + 3)
    assert source_of(walk, findings[3]) == source_of(walk, foreign("y")) == other
    assert source_of(walk, findings[0]) is None and source_of(walk, foreign("x")) is None
