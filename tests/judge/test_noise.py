"""The noise of repeated runs: its file, and the verdicts that it changes."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.errors import UsageError
from npucmp.judge.tolerance import Limit, Tolerances, judge, load_noise
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Tolerance, Verdict
from tests.judge.test_tolerance import measured

LIMIT = Limit(0.125, "round_off")


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "not a noise.csv with the columns op, slot, rel_l2"),
        ("op,slot,rel_l2\n", "not a noise.csv with the columns"),
        ("op,rel_l2\na,1\n", "not a noise.csv with the columns"),
        ("op,slot,rel_l2,verdict\na,output:0,1,match\n", "is a table of errors"),
        ("op,slot,rel_l2,cause\na,output:0,1,BORN\n", "is a table of errors"),
        ("op,slot,rel_l2\na,output:0,much\n", "its rel_l2 is not a number"),
        ("op,slot,rel_l2\na,output:0\n", "a row has no name, or its rel_l2"),
        ("rel_l2,op,slot\n1e-3,a\n", "a row has no name, or its rel_l2"),
        ("slot,rel_l2,op\noutput:0,1e-3\n", "a row has no name, or its rel_l2"),
        ("op,slot,rel_l2\na,output:0," + "9" * 200_000, "not CSV"),
    ],
)
def test_another_file_is_no_noise(tmp_path, text, words):
    (tmp_path / "noise.csv").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load_noise(tmp_path / "noise.csv")
    assert str(tmp_path / "noise.csv") in str(caught.value)


def judged(measurement, noise, limit=LIMIT, **more):
    return judge(measurement, Tolerances(noise=noise, **more), limit)


def test_an_undefined_metric_decides_nothing():
    one = measured([1.5], [1.0])
    sides = np.array([2, 3], np.int32), np.array([2, 4], np.int32)
    integers = one._replace(moments=measure_block(*sides, bars_for("int32", "int32", 0.0, 0.0)))
    found = judged(integers, {}, table=(Tolerance("max_ulp", 4.0),))
    assert (found.verdict, found.error, found.limit) == (Verdict.UNKNOWN, None, 4.0)
    assert found.metric == "max_ulp" and "max_ulp is undefined here" in found.because
