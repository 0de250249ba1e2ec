"""The second look at what diverged, against the same said element by element in plain Python; which tensors get one."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import npucmp
from npucmp.errors import DumpError
from npucmp.measure.error_map import PARTS, WORST, tensor_detail
from npucmp.measure.heat_map import ACROSS, DOWN
from npucmp.measure.pairs import READ, measure
from npucmp.model import Cause, Comparison, Finding, Operator, Pair, Report, Root, Run, TensorRef, Verdict
from npucmp.report.worst_elements import template_data
from npucmp.workflows import tensor_details
from tests.reports import table

CHANCE = np.random.default_rng(3)
NAN, INF = float("nan"), float("inf")


def tensor(folder, name, values, slot="output:0"):
    bits = values.view(np.uint16) if values.dtype == ml_dtypes.bfloat16 else values
    np.save(Path(folder, f"{name}.npy"), bits)
    dtype = str(values.dtype)
    return TensorRef(slot, dtype if bits is values else "uint16", values.shape, str(Path(folder, f"{name}.npy")), "npy")


def finding(folder, x, y, order=0, verdict=Verdict.DIVERGED, name="op"):
    refs = tensor(folder, f"{name}{order}x", x), tensor(folder, f"{name}{order}y", y)
    operators = (Operator(f"{name}.{order}", name, name, "", order, (ref,)) for ref in refs)
    return Finding(measure(Pair(order, "output:0", *operators, *refs, "name", 1.0)), verdict, "", 1.0, 1e-6, "rel_l2")


def plainly(x, y):
    """Errors by place, the worst first: float64 or whole numbers of Python, and nothing else."""
    found = []
    for at, (a, b) in enumerate(zip(x.ravel().tolist(), y.ravel().tolist())):
        finite = [math.isfinite(abs(one)) for one in (a, b)]
        alike = a == b or (a != a and b != b)
        error = abs(a - b) if all(finite) else 0.0 if alike else INF
        if error:
            found.append((-error, at, a, b))
    return [(at, a, b, -error) for error, at, a, b in sorted(found, key=lambda one: one[:2])]


def odd(shape, dtype):
    y = CHANCE.standard_normal(shape).astype(dtype)
    x = (y + CHANCE.standard_normal(shape) * 1e-2 * (CHANCE.random(shape) < 0.3)).astype(dtype)
    return x, y


def with_others(x, y):
    x.flat[[3, 9, 11]] = NAN, INF, -INF
    y.flat[[5, 9, 11]] = INF, INF, INF
    return x, y


CASES = {
    "float32": odd((6, 50, 7), np.float32),
    "float64 of several blocks": odd((3, 65536), np.float64),
    "float16, others": with_others(*odd((40, 90), np.float16)),
    "one element": (np.float32([2.0]), np.float32([3.0])),
    "whole numbers beyond float64": (
        np.array([2**60 + 1, 5, -(2**62)]), np.array([2**60, 5, 2**62]),
    ),
    "truth": (np.array([[True, False], [True, True]]), np.array([[True, True], [True, False]])),
    "complex": ((CHANCE.standard_normal((4, 9)) + 1j).astype(np.complex64), np.ones((4, 9), np.complex64)),
    "the same off everywhere": (np.full((30, 70), 1.5, np.float32), np.full((30, 70), 1.25, np.float32)),
    "many of one size": (np.ones(500, np.float32), np.arange(500).astype(np.float32) % 2),
    "beyond the range of float64": (np.array([1.7e308, 1.0, 2.0]), np.array([-1.7e308, 1.0, 2.5])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_as_element_by_element(case, tmp_path):
    x, y = CASES[case]
    one = finding(tmp_path, x, y)
    found = tensor_detail(one)
    known = plainly(x, y)
    worst = known[:WORST]
    assert [one.at for one in found.worst] == [at for at, *_ in worst]
    assert [one.abs_err for one in found.worst] == pytest.approx([error for *_, error in worst], rel=1e-15, abs=0)
    assert [(repr(one.target), repr(one.golden)) for one in found.worst] == [(repr(a), repr(b)) for _, a, b, _ in worst]
    for one_worst in found.worst:
        if math.isfinite(one_worst.abs_err):
            assert one_worst.rel_err == one_worst.abs_err / max(abs(one_worst.golden), floor(x.dtype))
    assert found.pair == one.pair
    finite = [abs(error) for *_, error in known if error < INF]
    bar = 0.999 * math.sqrt(sum((e / 1e154) ** 2 for e in finite) / one.measurement.moments.compared) * 1e154
    if case != "beyond the range of float64":
        assert found.bar == pytest.approx(bar, rel=1e-12)
        assert sum(found.picture.counts) == sum(error > bar for *_, error in known)
    rows, columns = found.picture.rows, found.picture.columns
    assert rows * columns == x.size and len(found.picture.counts) == min(DOWN, rows) * min(ACROSS, columns)
    for side, values in zip(found.values, (x, y)):
        sizes = np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)
        assert sum(side.counts) == np.isfinite(sizes).sum()
    if case in ("float32", "float64 of several blocks"):
        wide = [values.astype(np.float64) for values in (x, y)]
        edges = np.linspace(min(map(np.min, wide)), max(map(np.max, wide)), PARTS + 1)
        for side, values in zip(found.values, wide):
            assert np.abs(np.array(side.counts) - np.histogram(values, edges)[0]).sum() <= 2  # on an edge
        errors = wide[0] - wide[1]
        edges = np.linspace(-np.abs(errors).max(), np.abs(errors).max(), PARTS + 2)
        assert np.abs(np.array(found.errors.counts) - np.histogram(errors, edges)[0]).sum() <= 2
    assert template_data(found)["key"] == "0/output:0"


def floor(dtype):
    return float(np.finfo(dtype).tiny) if dtype.kind in "fc" else 1.0


def test_masks_are_no_error(tmp_path):
    y = np.linspace(1, 2, 60, dtype=np.float32)
    x = y.copy()
    x[7] += 0.5
    y[20:40], x[20:40] = -65504.0, -65504.0
    x[50:52], y[50:52] = -3.4028235e38, -3.4028235e38
    found = tensor_detail(finding(tmp_path, x, y))
    assert [one.at for one in found.worst] == [7] and found.errors.counts[-1] == 1
    assert sum(found.errors.counts) == 38 and sum(found.picture.counts) == 1


def test_a_corner_is_drawn_where_it_is(tmp_path):
    y = CHANCE.standard_normal((48, 128)).astype(np.float32)
    x = y + np.float32(1e-5) * CHANCE.standard_normal(y.shape).astype(np.float32)
    x[:4, 120:] += 1
    counts = np.array(tensor_detail(finding(tmp_path, x, y)).picture.counts).reshape(24, 64)
    assert counts[:2, 60:].sum() == counts.sum() == 4 * 8


def test_what_cannot_be_read_any_more_is_not_looked_at(tmp_path):
    one = finding(tmp_path, *odd((5, 5), np.float32))
    Path(one.pair.target.file).unlink()
    with pytest.raises(DumpError, match="no such file"):
        tensor_detail(one)
    assert tensor_detail(one._replace(measurement=one.measurement._replace(moments=None))) is None


@pytest.mark.parametrize("length", [24, 26, READ - 1, READ + 1, 2 * READ])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_values_of_another_number_are_not_compared(tmp_path, side, length):
    """A side of which a tensor with fewer or more elements, or with more blocks, has taken the place."""
    one = finding(tmp_path, *odd((READ,), np.float32))
    assert tensor_detail(one) is not None
    pair = one.pair._replace(**{side: tensor(tmp_path, "other", np.ones(length, np.float32))})
    assert tensor_detail(one._replace(measurement=one.measurement._replace(pair=pair))) is None


def comparison(folder, findings, causes):
    """Operators in order, each with the cause that is given, in places from the last to the first."""
    roots = [
        Root(len(causes) - at, one.pair, cause, "output:0", "rel_l2", 1.0, 1e-6, 0.0, 1.0, ())
        for at, (one, cause) in enumerate(zip(findings, causes))
        if cause is not None
    ]
    run = Run(str(folder), "npy", tuple(one.pair.target_op for one in findings))
    return Comparison(run, run, tuple(findings), tuple(roots), {})


def test_suspects_come_first_and_the_number_and_bytes_are_bounded(tmp_path, monkeypatch):
    made = [finding(tmp_path, *odd((40 if order == 1 else 4, 5), np.float32), order) for order in range(6)]
    made[5] = finding(tmp_path, np.ones(3, np.float32), np.ones(3, np.float32), 5, Verdict.MATCH)
    causes = [Cause.PROPAGATED, Cause.BORN, Cause.BORN, None, Cause.WORSENED, None]
    one = comparison(tmp_path, made, causes)

    def orders():
        report = Report((str(tmp_path), str(tmp_path)), comparisons=(one,))
        found = tensor_details.with_looks(report, npucmp.Options(jobs=1), npucmp.Options().context(tmp_path)).looks
        assert [tensor_detail.place for tensor_detail in found] == [
            6 - tensor_detail.pair.order if tensor_detail.cause else 0 for tensor_detail in found
        ]
        return [tensor_detail.pair.order for tensor_detail in found]

    assert orders() == [4, 2, 1, 0, 3]
    monkeypatch.setattr(tensor_details, "BYTES", 3 * 2 * 80)  # order 1 alone has 2 × 800
    assert orders() == [4, 2, 0]
    monkeypatch.setattr(tensor_details, "MOST", 2)
    assert orders() == [4, 2]


def test_worst_csv_has_the_elements_of_what_diverged(tmp_path):
    for side in ("target", "golden"):
        (tmp_path / side).mkdir()
    y = CHANCE.standard_normal((3, 4, 5)).astype(np.float32)
    x = y.copy()
    x[1, 2, 3] += 1
    x[2, 0, 4] -= 2
    for name in ("a.0.output.0", "b.0.output.0"):
        np.save(tmp_path / "target" / f"{name}.npy", x)
        np.save(tmp_path / "golden" / f"{name}.npy", y)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", format="npy", jobs=1)
    rows = table(report, "worst.csv")
    assert [(row["number"], row["at"]) for row in rows] == 2 * [(1, "[2, 0, 4]"), (2, "[1, 2, 3]")]
    first = rows[0]
    assert (first["target"], first["golden"]) == (float(x[2, 0, 4]), float(y[2, 0, 4]))
    assert first["abs_err"] == abs(first["target"] - first["golden"])
    assert {row["op"] for row in rows} == {finding.pair.operator.name for finding in report.findings}
    assert [row["place"] for row in rows[::2]] == [root.place for root in report.roots]
