"""How many elements of the golden were compared, are known otherwise, or are open; and which are listed."""

import pytest

from npucmp.localise.coverage import NO_TENSORS, coverage_of
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict
from npucmp.model.comparison import OpenTensor
from tests.localise.networks import network, numbered, paired


def bare(name: str, target: int, golden: int) -> list[Finding]:
    """The rows of an operator whose record has that many tensors on each side."""
    order = int(name.partition(".")[2])
    tensors = tuple(TensorRef(f"output:{at}", "float32", (4,)) for at in range(target))
    sides = [Operator(name, "relu", "relu", "forward", order, tensors[:count]) for count in (target, golden)]
    pairs = [Pair(order, one.slot, *sides, one, one if at < golden else None) for at, one in enumerate(tensors)]
    return [Finding(Measurement(one), Verdict.MATCH if one.golden else Verdict.MISSING, "") for one in pairs]


@pytest.mark.parametrize("target, golden, listed", [(1, 0, 1), (2, 0, 1), (1, 1, 0), (2, 1, 0)])
def test_a_record_without_tensors_is_listed_once(target, golden, listed):
    findings = numbered([*network("relu x -> y"), *bare("a.1", target, golden)])
    found = coverage_of(findings, (), None)
    assert found.first == (OpenTensor("a.1", "", 0, "", NO_TENSORS),) * listed
    assert (found.tensors, found.missed, found.unsized) == (listed, 0, 0)


def test_a_record_of_one_run_alone_is_not_listed():
    findings = bare("a.1", 1, 0)
    for side in ("target_op", "golden_op"):
        alone = numbered([paired(one, **{side: None}) for one in findings])
        assert coverage_of([*network("relu x -> y"), *alone], (), None).tensors == 0
