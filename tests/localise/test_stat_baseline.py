"""The noise before an operator, held against what plain code counts of all that was seen."""

from hypothesis import given
from hypothesis import strategies as st

from npucmp.localise.stat_test import Contribution, History, Level, NoiseBaseline

SIZES = st.floats(0.0, 4.0)
SEEN = st.lists(
    st.builds(
        Contribution, st.sampled_from("abc"), st.builds(Level, SIZES, SIZES), SIZES, st.booleans(), st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)  # fmt: skip


def usual(some, number):
    """Of their extremes or sums that at nine tenths."""
    sizes = sorted(one.highest[number] for one in some)
    return sizes[int(0.9 * (len(sizes) - 1))] if sizes else 0.0


def last(some, count):
    return max((max(one.highest) for one in some[-count:]), default=0.0)


def plain(some, kind):
    """What is told before an operator of a kind, behind all of these."""
    made = Level()
    for at, one in enumerate(some):
        unseen = max(usual(some[:at], 0), last(some[:at], 8)) if one.is_open else 0.0
        if one.kind == kind and max(one.highest) > max(one.incoming, unseen):  # more than it got
            made = Level(max(made.extremes, one.highest.extremes), max(made.sums, one.highest.sums))
    moved, still = any(not one.still for one in some), sum(one.still and one.sums for one in some)
    return NoiseBaseline(usual(some, 0), usual(some, 1), last(some, 8), len(some), moved, still, made)


@given(SEEN)
def test_what_is_told_before_each_operator(some):
    history, befores = History(), []
    for at, one in enumerate(some):
        befores.append(history.before(one.kind))
        assert befores[-1] == plain(some[:at], one.kind)
        history.add(one, befores[-1])
