"""The row of an operator that is not bit-equal in all runs: which run differs, its figures, and its words."""

import pytest

from npucmp.model import Cause, Comparison, Evidence, Root, Run
from npucmp.reruns import table
from npucmp.reruns.table import reruns_of
from tests.localise.step_craft import Op, Tensor, step
from tests.relations.weights.craft import Files

READ = Tensor("input:0", equal=64)
WROTE = Tensor("output:0", error=0.01, checksum="0xa", equal=14)


class Differing:
    """An operator of one comparison: its cause, its tensors, and the evidence of its root."""

    def __init__(self, cause="BORN", wrote=WROTE, *, kind="linear", read=READ, evidence=(), slot="output:0"):
        self.cause, self.op, self.slot = Cause[cause], Op(kind, (read, wrote)), slot
        self.evidence = tuple(Evidence("", one) if isinstance(one, str) else one for one in evidence)


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


# Figures


def test_without_values_no_figures_are_known():
    (row,) = rows(compared(Differing(wrote=WROTE._replace(statistics=(None, None)))))
    assert (row.differing, row.max_abs, row.max_ulp) == (None, None, None)
    (row,) = rows(compared(Differing(wrote=WROTE._replace(error=0.0), slot="output:0")))
    assert (row.differing, row.max_abs, row.rel_l2) == (None, None, None)  # the root names no tensor that differs


# Several runs


def test_runs_that_differ_in_other_tensors_do_not_agree():
    read = READ._replace(error=0.1, checksum="0xc")
    (row,) = rows(compared(Differing(read=read)), compared(Differing()))
    assert row.odd == (1, 2, 3)
    (row,) = rows(compared(Differing(read=read)), compared(Differing(read=read)))
    assert row.odd == (1,)
    (row,) = rows(compared(Differing(read=read)), compared(Differing(read=read._replace(checksum="0xd"))))
    assert row.odd == (1, 2, 3)


def test_a_tensor_of_one_run_agrees_with_none():
    one = compared(Differing())
    findings = tuple(each._replace(measurement=each.measurement._replace(pair=each.pair._replace(target=None)))
                     if each.error else each for each in one.findings)  # fmt: skip
    lacking = Comparison(one.target, one.golden, findings, one.roots, {})
    assert [row.odd for row in rows(one, lacking)] == [(1, 2, 3)]
    assert [row.odd for row in rows(lacking, one)] == [(1, 2, 3)]


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


@pytest.mark.parametrize(
    "cause, elements, is_shown", [("PROPAGATED", 4, True), ("PROPAGATED", 5, False), ("BORN", 5, True)]
)
def test_large_tensors_that_only_propagate_are_not_read_again(stored, monkeypatch, cause, elements, is_shown):
    monkeypatch.setattr(table, "PLACES", 4)
    (row,) = rows(stored(Differing(cause), elements=elements))
    assert (row.picture is not None) is is_shown


def test_a_checksum_of_one_run_alone_decides_nothing(stored):
    """The values are read; a file that is absent shows nothing."""
    for checksums in (("0x12", ""), ("", "0x12")):
        (row,) = rows(*(stored(Differing(), checksum=one) for one in checksums))
        assert row.odd == (1,)
    (row,) = rows(stored(Differing()), compared(Differing(wrote=WROTE._replace(checksum=""))))
    assert row.odd == (1, 2, 3)
