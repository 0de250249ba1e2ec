"""The row of an operator that is not bit-equal in all runs: which run differs, its figures, and its words."""

import math

import pytest

from npucmp.localise.rerun import table
from npucmp.localise.rerun.table import FirstRunPlace, excuse, place_of, reruns_of
from npucmp.model import Cause, Comparison, Evidence, Fact, Root, Run, Verdict
from tests.align.weights.craft import Files
from tests.localise.step_craft import Op, Tensor, step

READ = Tensor("input:0", equal=64)
WROTE = Tensor("output:0", error=0.01, checksum="0xa", equal=14)


class Differing:
    """An operator of one comparison: its cause, its tensors, and the evidence of its root."""

    def __init__(self, cause="BORN", wrote=WROTE, *, kind="linear", read=READ, evidence=(), slot="output:0"):
        self.cause, self.op, self.slot = Cause[cause], Op(kind, (read, wrote)), slot
        self.evidence = tuple(Evidence("", one) if isinstance(one, str) else one for one in evidence)


EQUAL = None


def compared(*operators, of_step=(0, 0), of_rank=(0, 0)):
    """The comparison of a later run with the first; an operator that is EQUAL has no root. Steps and ranks are those of
    the target and the golden."""
    findings = step(*(one.op if one else Op("linear", (READ, READ._replace(slot="output:0"))) for one in operators))
    runs = [Run("run", "npy", (), own_step, rank) for own_step, rank in zip(of_step, of_rank)]
    roots = []
    for order, one in enumerate(operators):
        if one is not None:
            found = next(each for each in findings if each.pair.order == order and each.pair.slot == one.slot)
            roots.append(Root(0, found.pair, one.cause, one.slot, "rel_l2", found.error, 0.0, 0.0, 0.0, one.evidence))
    return Comparison(*runs, tuple(findings), tuple(roots), {})


def rows(*comparisons, numbers=None):
    return [*reruns_of(comparisons, numbers or [*range(2, 2 + len(comparisons))]).values()]


def sentences(row):
    return [one.sentence() for one in row.evidence]


# Figures


def test_the_figures_of_one_operator():
    first = compared(EQUAL, Differing(), of_step=(3, 3), of_rank=(1, 1))
    found = reruns_of([first], [2])
    ((where, row),) = found.items()
    assert where == FirstRunPlace(3, 1, 1) == place_of(first, first.roots[0].pair)
    assert (row.place, row.step, row.rank, row.slot, row.cause) == (1, 3, 1, "output:0", Cause.BORN)
    assert (row.differing, row.max_abs, row.rel_l2, row.max_ulp) == (64 - 14, 0.01, 0.01, None)
    assert (row.excused, row.picture, row.pictured) == (False, None, 2)
    assert row.pair == first.roots[0].pair


@pytest.mark.parametrize("error, shown", [(math.nan, None), (math.inf, math.inf), (0.5, 0.5)])
def test_an_error_of_unknown_size_is_unknown(error, shown):
    one = compared(Differing())
    changed = tuple(each._replace(error=error) if each.error else each for each in one.findings)
    (row,) = rows(Comparison(one.target, one.golden, changed, one.roots, {}))
    assert row.rel_l2 == shown


def test_without_values_no_figures_are_known():
    (row,) = rows(compared(Differing(wrote=WROTE._replace(statistics=(None, None)))))
    assert (row.differing, row.max_abs, row.max_ulp) == (None, None, None)
    (row,) = rows(compared(Differing(wrote=WROTE._replace(error=0.0), slot="output:0")))
    assert (row.differing, row.max_abs, row.rel_l2) == (None, None, None)  # the root names no tensor that differs


@pytest.mark.parametrize(
    "of_step, of_rank, expected",
    [
        ((4, 5), (6, 7), (5, 7)),
        ((4, None), (6, None), (4, 6)),
        ((None, None), (None, None), (-1, -1)),
        ((4, 0), (6, 0), (0, 0)),
    ],
)
def test_the_place_is_that_of_the_first_run(of_step, of_rank, expected):
    """The golden is the first run; a place that is not recorded is unknown."""
    one = compared(Differing(), of_step=of_step, of_rank=of_rank)
    assert place_of(one, one.roots[0].pair) == (*expected, 0)
    (row,) = rows(one)
    assert (row.step, row.rank) == tuple(None if at < 0 else at for at in expected)


def test_the_place_of_an_operator_that_the_first_run_lacks():
    one = compared(EQUAL, Differing())
    pair = one.roots[0].pair
    golden_op = pair.golden_op._replace(order=7)
    assert place_of(one, pair._replace(golden_op=golden_op)).order == 7
    assert place_of(one, pair._replace(golden_op=None)).order == 1


# The order of rows


FED = Evidence("fed", "an input of the network differs")


def test_inputs_of_the_network_come_first_and_random_operators_last_of_their_cause():
    one = compared(
        Differing("PROPAGATED"), Differing("UNKNOWN", kind="dropout"), Differing("UNKNOWN"),
        Differing(kind="all_reduce"), Differing(kind="dropout"), Differing("GAP"), Differing(),
        Differing("GAP", evidence=[FED]),
    )  # fmt: skip
    found = rows(one)
    assert [row.pair.order for row in found] == [7, 5, 6, 3, 4, 2, 1, 0]
    assert [row.place for row in found] == [*range(1, 9)]
    assert [row.pair.order for row in found if row.excused] == [3, 4, 1]


def test_earlier_steps_and_ranks_come_first():
    places = [(1, 0), (0, 1), (0, 0)]
    found = rows(
        *(compared(Differing(), of_step=(at, at), of_rank=(rank, rank)) for at, rank in places), numbers=[2] * 3
    )
    assert [(row.step, row.rank) for row in found] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    "kind, cause, kinds",
    [
        ("dropout", "BORN", ["random", "random"]),
        ("dropout", "UNKNOWN", ["random", "random"]),
        ("dropout", "GAP", []),
        ("dropout", "PROPAGATED", []),
        ("all_reduce", "BORN", ["asynchronous"]),
        ("linear", "BORN", []),
    ],
)
def test_some_operators_may_differ_without_a_fault(kind, cause, kinds):
    one = compared(Differing(cause, kind=kind))
    assert [each.kind for each in excuse(one.roots[0])] == kinds
    (row,) = rows(one)
    assert row.excused is bool(kinds) and [each.kind for each in row.evidence] == kinds


def test_a_reason_is_not_given_twice():
    known = Evidence("random", "it is random")
    (row,) = rows(compared(Differing(kind="dropout", evidence=[known])))
    assert row.evidence == (known,) and row.excused


# Several runs


@pytest.mark.parametrize(
    "causes, errors, expected",
    [
        (("PROPAGATED", "BORN"), (0.9, 0.1), ("BORN", 0.1, 3)),
        (("BORN", "PROPAGATED"), (0.1, 0.9), ("BORN", 0.1, 2)),
        (("BORN", "GAP"), (0.1, 0.9), ("GAP", 0.9, 3)),
        (("BORN", "BORN"), (0.9, 0.1), ("BORN", 0.9, 2)),
        (("BORN", "BORN"), (0.0, 0.1), ("BORN", 0.1, 3)),
    ],
)
def test_an_operator_has_the_gravest_cause_and_the_largest_figures(causes, errors, expected):
    words = "the target differs from the golden"
    runs = [compared(Differing(cause, WROTE._replace(error=error), evidence=[words]))
            for cause, error in zip(causes, errors)]  # fmt: skip
    (row,) = rows(*runs)
    assert (row.cause.value, row.rel_l2, row.pictured) == expected
    assert sentences(row) == [
        f"run {expected[2]} differs from run 1",
        f"figures of run {expected[2]}, which has the largest error, against run 1",
    ]


def test_two_runs_need_no_run_of_their_figures():
    (row,) = rows(compared(Differing(evidence=["the target differs"])))
    assert sentences(row) == ["run 2 differs"]


OTHER = WROTE._replace(checksum="0xb")
SECOND = WROTE._replace(target_content=9)


@pytest.mark.parametrize(
    "wrote, odd",
    [
        ([WROTE], (1, 2)),  # no two agree
        ([WROTE, EQUAL], (2,)),
        ([EQUAL, WROTE], (3,)),
        ([WROTE, WROTE], (1,)),
        ([WROTE, WROTE._replace(checksum="0xA")], (1,)),
        ([WROTE, OTHER], (1, 2, 3)),
        ([WROTE, OTHER, EQUAL], (2, 3)),
        ([WROTE, WROTE, EQUAL], (2, 3)),  # at a tie the group with the first run is right
        ([WROTE, WROTE, OTHER], (1, 4)),
        ([OTHER, WROTE, WROTE, EQUAL, EQUAL], (2, 3, 4)),
        ([OTHER, WROTE, WROTE, OTHER], (1, 3, 4)),
        ([OTHER, WROTE, OTHER, WROTE, WROTE], (1, 2, 4)),
        ([WROTE, SECOND], (1, 2, 3)),  # statistics differ
        ([WROTE, WROTE._replace(error=0.02)], (1, 2, 3)),
    ],
)
def test_the_largest_group_of_runs_that_agree_is_right(wrote, odd):
    (row,) = rows(*(compared(EQUAL, Differing(wrote=one) if one else EQUAL) for one in wrote))
    assert row.odd == odd


def test_runs_that_differ_in_other_tensors_do_not_agree():
    read = READ._replace(error=0.1, checksum="0xc")
    (row,) = rows(compared(Differing(read=read)), compared(Differing()))
    assert row.odd == (1, 2, 3)
    (row,) = rows(compared(Differing(read=read)), compared(Differing(read=read)))
    assert row.odd == (1,)
    (row,) = rows(compared(Differing(read=read)), compared(Differing(read=read._replace(checksum="0xd"))))
    assert row.odd == (1, 2, 3)


def test_a_run_without_the_operator_is_not_counted():
    one, without = compared(EQUAL, Differing()), compared(EQUAL)
    assert [row.odd for row in rows(one, without)] == [(1, 2)]
    alone = compared(EQUAL, EQUAL)
    pairs = [each.pair._replace(target_op=None) if each.pair.order else each.pair for each in alone.findings]
    findings = [each._replace(measurement=each.measurement._replace(pair=pair))
                for each, pair in zip(alone.findings, pairs)]  # fmt: skip
    lacking = Comparison(alone.target, alone.golden, tuple(findings), (), {})
    assert [row.odd for row in rows(one, lacking)] == [(1, 2)] and [row.odd for row in rows(one, alone)] == [(2,)]


def test_a_tensor_of_one_run_agrees_with_none():
    one = compared(Differing())
    findings = tuple(each._replace(measurement=each.measurement._replace(pair=each.pair._replace(target=None)))
                     if each.error else each for each in one.findings)  # fmt: skip
    lacking = Comparison(one.target, one.golden, findings, one.roots, {})
    assert [row.odd for row in rows(one, lacking)] == [(1, 2, 3)]
    assert [row.odd for row in rows(lacking, one)] == [(1, 2, 3)]


# Words


OTHER_BITS = ["input:0: the same values in other bits", "a zero's sign or a NaN may matter here"]
AGREE = Evidence("inputs agree", "inputs agree ({size})", {"size": Fact(0.0)})


@pytest.mark.parametrize(
    "read, words",
    [
        (READ._replace(equal=60), ["inputs agree (in value)", "it differs", *OTHER_BITS]),
        (READ._replace(equal=64), ["inputs agree (0.0e+00)", "it differs"]),
        (READ._replace(equal=60, error=0.1), ["inputs agree (0.0e+00)", "it differs"]),
        (READ._replace(statistics=(None, None)), ["inputs agree (0.0e+00)", "it differs"]),
        (READ._replace(slot="output:1", equal=60), ["inputs agree (0.0e+00)", "it differs"]),
    ],
)
def test_inputs_of_the_same_values_in_other_bits_are_named(read, words):
    """A zero of another sign, or another NaN."""
    (row,) = rows(compared(Differing(read=read, evidence=[AGREE, "it differs"])))
    assert sentences(row) == words


BETWEEN = Evidence("between", "it changed behind {writer}", {"writer": Fact("relu.3")})


@pytest.mark.parametrize(
    "cause, source, evidence, words",
    [
        (
            "GAP",
            "relu.3:0",
            [],
            ["relu.3 wrote the same tensor in both runs: it was changed before this operator read it"],
        ),
        ("GAP", "", [], []),
        ("BORN", "relu.3:0", [], []),
        ("GAP", "relu.3:0", [BETWEEN], ["it changed behind relu.3"]),
        (
            "GAP",
            "relu.3:0",
            [BETWEEN._replace(words="it changed", facts={})],
            ["it changed", "relu.3 wrote the same tensor in both runs: it was changed before this operator read it"],
        ),
    ],
)
def test_an_input_that_was_changed_names_its_producer(cause, source, evidence, words):
    one = compared(Differing(cause, evidence=evidence, read=READ._replace(error=0.1, equal=2), slot="input:0"))
    findings = []
    for each in one.findings:
        pair = each.pair._replace(golden=each.pair.golden._replace(source=source))
        findings.append(each._replace(measurement=each.measurement._replace(pair=pair)))
    (row,) = rows(Comparison(one.target, one.golden, tuple(findings), one.roots, {}))
    assert sentences(row) == words and row.slot == "input:0"


def test_operators_without_a_difference_have_no_row():
    assert rows(compared(EQUAL, EQUAL)) == [] and rows() == []
    assert Verdict.MATCH in {one.verdict for one in compared(EQUAL).findings}


# Values that are read again


@pytest.fixture
def stored(tmp_path):
    """Comparisons in whose files elements 1 and 2 of an output differ."""
    files = Files(tmp_path)

    def compare(*operators, elements=4, by=1.0, checksum=""):
        values = files([float(at) for at in range(elements)]), files([at + by * (0 < at < 3) for at in range(elements)])
        one = compared(*operators)
        findings = []
        for each in one.findings:
            if each.error:
                golden, target = (tensor._replace(slot=each.pair.slot) for tensor in values)
                pair = each.pair._replace(target=target._replace(checksum=checksum), golden=golden)
                each = each._replace(measurement=each.measurement._replace(pair=pair))
            findings.append(each)
        return Comparison(one.target, one.golden, tuple(findings), one.roots, {})

    return compare


@pytest.mark.parametrize("cause, words", [("BORN", ["the differing elements are scattered"]), ("PROPAGATED", [])])
def test_the_places_of_an_error_that_began_are_described(stored, cause, words):
    """The picture shows those of others too."""
    (row,) = rows(stored(Differing(cause)))
    assert sentences(row) == words and row.picture is not None


@pytest.mark.parametrize(
    "cause, elements, is_shown", [("PROPAGATED", 4, True), ("PROPAGATED", 5, False), ("BORN", 5, True)]
)
def test_large_tensors_that_only_propagate_are_not_read_again(stored, monkeypatch, cause, elements, is_shown):
    monkeypatch.setattr(table, "PLACES", 4)
    (row,) = rows(stored(Differing(cause), elements=elements))
    assert (row.picture is not None) is is_shown


def test_the_first_operators_are_read_again(stored, monkeypatch):
    monkeypatch.setattr(table, "PATTERNS", 2)
    found = rows(stored(Differing(), Differing(), Differing()))
    assert [row.picture is not None for row in found] == [True, True, False]


@pytest.mark.parametrize("by, odd", [(1.0, (1,)), (2.0, (1, 2, 3))])
def test_runs_agree_by_their_values_where_no_checksum_decides(stored, by, odd):
    (row,) = rows(stored(Differing()), stored(Differing(), by=by))
    assert row.odd == odd


def test_a_checksum_of_one_run_alone_decides_nothing(stored):
    """The values are read; a file that is absent shows nothing."""
    for checksums in (("0x12", ""), ("", "0x12")):
        (row,) = rows(*(stored(Differing(), checksum=one) for one in checksums))
        assert row.odd == (1,)
    (row,) = rows(stored(Differing()), compared(Differing(wrote=WROTE._replace(checksum=""))))
    assert row.odd == (1, 2, 3)
