"""The table of a step and rank: rows hold all of a finding, whatever a dump says."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from npucmp.model import Finding, Measurement, Moments, Operator, Pair, Side, Statistics, TensorRef, Verdict
from npucmp.model.moments import HISTOGRAM_BINS, moments_in, record_of
from npucmp.model.table import MOMENTS, ROW, Table, columns_of, findings_of, measurements_of

FLOATS = st.floats(width=64)
COUNTS = st.integers(0, 2**63 - 1)
HASHES = st.integers(0, 2**64 - 1)
PLACES = st.integers(-1, 2**63 - 1)
TEXTS = st.text(st.characters(), max_size=8)  # surrogates and control characters too
NAMES = st.sampled_from(["a", "b", ""])


def optional(some):
    return st.none() | some


def made(kind, *fields, **more):
    """Records of these fields; no others are inferred from types."""
    return st.builds(lambda *values, **named: kind(*values, **named), *fields, **more)


FIGURES = optional(made(Statistics, *[optional(FLOATS)] * 4))
SIDES = made(Side, COUNTS, COUNTS, COUNTS, *[FLOATS] * 4, COUNTS, *[FLOATS] * 4, HASHES)
MEASURED = made(
    Moments, COUNTS, SIDES, SIDES, *[COUNTS] * 4, *[FLOATS] * 6, FLOATS, PLACES, optional(st.integers(0, 2**66)),
    FLOATS, PLACES, FLOATS, *[COUNTS] * 3, optional(st.integers(0, 2**64 - 1)),
    st.tuples(*[COUNTS] * HISTOGRAM_BINS),
)  # fmt: skip
TENSORS = optional(made(TensorRef, NAMES, NAMES, st.just((2, 3)), statistics=FIGURES))
OPERATORS = optional(made(Operator, NAMES, NAMES, NAMES, NAMES, st.integers(0, 9), st.just(())))
PAIRS = made(Pair, st.integers(0, 3), TEXTS, OPERATORS, OPERATORS, TENSORS, TENSORS, NAMES, FLOATS, TEXTS)
MEASUREMENTS = made(
    Measurement, PAIRS, optional(MEASURED), optional(FLOATS), optional(st.booleans()), TEXTS, TEXTS, st.booleans(),
    st.tuples(FIGURES, FIGURES), st.integers(0, 2**62), optional(FLOATS),
)  # fmt: skip
FINDINGS = made(
    Finding,
    MEASUREMENTS,
    st.sampled_from(Verdict),
    TEXTS,
    optional(FLOATS),
    FLOATS,
    TEXTS,
    TEXTS,
    TEXTS,
    FLOATS,
    FLOATS,
)


@given(st.lists(FINDINGS, max_size=4))
def test_rows_hold_all_of_a_finding(findings):
    columns = columns_of(findings)
    assert [*map(repr, findings_of(columns))] == [*map(repr, findings)]
    measured = [one.measurement for one in findings]
    assert [*map(repr, measurements_of(columns_of(measured)))] == [*map(repr, measured)]
    assert [*map(repr, pickle.loads(pickle.dumps(Table(findings))))] == [*map(repr, findings)]


@given(MEASURED)
def test_a_record_holds_all_moments(moments):
    assert repr(moments_in(record_of(moments))) == repr(pickle.loads(pickle.dumps(moments))) == repr(moments)


@given(st.lists(FINDINGS, min_size=2, max_size=4), st.data())
def test_other_findings_of_the_same_measurements_take_the_place_of_rows(findings, data):
    at = data.draw(st.integers(0, len(findings) - 1))
    other = data.draw(FINDINGS)
    changed = other._replace(measurement=findings[at].measurement)
    expected = [changed if number == at else one for number, one in enumerate(findings)]
    for table in (Table(findings), Table(columns=columns_of(findings))):
        assert [*map(repr, table.replaced({at: changed}))] == [*map(repr, expected)]
        assert [*map(repr, table)] == [*map(repr, findings)]


def test_a_row_takes_at_most_900_bytes():
    assert ROW.itemsize + MOMENTS.itemsize <= 900
