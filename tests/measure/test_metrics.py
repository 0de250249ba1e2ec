"""Every comparator against the formula written out over lists."""

from __future__ import annotations

import math
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.errors import UsageError
from npucmp.measure import metrics
from npucmp.measure.kernel.merge import merge
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Moments
from npucmp.model.dtypes import DTYPES
from tests.test_extensions import install

NAN, INF = math.nan, math.inf
TINY = {name: row.tiny for name, row in DTYPES.items()}


def moments(x, y, dtype="float64", rtol=0.0, atol=0.0) -> Moments:
    return measure_block(np.array(x, dtype), np.array(y, dtype), bars_for(dtype, dtype, rtol, atol))


def relative(x, y, dtype="float64") -> list:
    return [abs(a - b) / max(abs(b), TINY[dtype]) for a, b in zip(x, y)]


def norm(values) -> float:
    return math.sqrt(math.fsum(v * v for v in values))


def minus(x, y) -> list:
    return [a - b for a, b in zip(x, y)]


def mean(values) -> float:
    return math.fsum(values) / len(values)


FORMULAS = {
    "cosine": lambda x, y: math.fsum(a * b for a, b in zip(x, y)) / (norm(x) * norm(y)),
    "rel_l2": lambda x, y: norm(minus(x, y)) / norm(y),
    "max_abs_err": lambda x, y: max(abs(d) for d in minus(x, y)),
    "max_rel_err": lambda x, y: max(relative(x, y)),
    "mean_abs_err": lambda x, y: mean([abs(d) for d in minus(x, y)]),
    "mean_rel_err": lambda x, y: mean(relative(x, y)),
    "rmse": lambda x, y: math.sqrt(mean([d * d for d in minus(x, y)])),
    "err_1e3_ratio": lambda x, y: mean([e < 0.001 for e in relative(x, y)]),
    "err_5e3_ratio": lambda x, y: mean([e < 0.005 for e in relative(x, y)]),
    "allclose": lambda x, y: all(abs(a - b) <= 1e-3 + 0.01 * abs(b) for a, b in zip(x, y)),
    "mismatch_ratio": lambda x, y: mean([abs(a - b) > 1e-3 + 0.01 * abs(b) for a, b in zip(x, y)]),
    "max_ulp": lambda x, y: max(
        abs(int.from_bytes(np.float64(a).tobytes(), "little") - int.from_bytes(np.float64(b).tobytes(), "little"))
        for a, b in zip(x, y)
    ),
    "exact_ratio": lambda x, y: mean([a == b for a, b in zip(x, y)]),
    "nonfinite_mismatch": lambda x, y: 0,
    "gain": lambda x, y: math.fsum(a * b for a, b in zip(x, y)) / math.fsum(b * b for b in y) - 1,
    "euclidean": lambda x, y: norm(minus(x, y)),
    "snr": lambda x, y: 20 * math.log10(norm(y) / norm(minus(x, y))),
    "accumulated_rel_err": lambda x, y: math.fsum(relative(x, y)),
    "standard_deviation": lambda x, y: float(np.std(minus(x, y))),
}


def positive(count: int, seed: int) -> tuple[list, list]:
    random = np.random.default_rng(seed)
    y = random.random(count) + 0.1
    x = y * (1 + 0.003 * random.normal(size=count) * (random.random(count) < 0.7))
    return x.tolist(), y.tolist()


@pytest.mark.parametrize("name", [metric.name for metric in metrics.METRICS])
@pytest.mark.parametrize("seed", [1, 2])
def test_formula(name, seed):
    x, y = positive(500, seed)
    value = metrics.by_name(name).function(moments(x, y, rtol=0.01, atol=1e-3))
    assert value == pytest.approx(FORMULAS[name](x, y), rel=1e-9)


def test_the_table_has_no_name_twice():
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names) and set(names) == set(FORMULAS)
    with pytest.raises(KeyError):
        metrics.by_name("cosin")


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_an_error_is_never_better_than_none(metric):
    x, y = positive(500, 1)
    none, some = (metric.function(moments([*a, one], [*y, 1.0])) for a, one in ((y, 1.0), (x, math.nan)))
    assert none > some if metric.better == "more" else none < abs(some)


ZEROS, ONES = [0.0, 0.0], [1.0, 1.0]
EDGES = [  # name, x, y, expected
    ("cosine", ZEROS, ZEROS, 1.0),
    ("cosine", ZEROS, ONES, 0.0),
    ("cosine", ONES, ZEROS, 0.0),
    ("cosine", [1.0, 0.0], [0.0, 1.0], 0.0),
    ("cosine", ONES, [-1.0, -1.0], -1.0),
    ("cosine", [], [], NAN),
    ("cosine", [NAN], [NAN], NAN),
    ("rel_l2", ZEROS, ZEROS, 0.0),
    ("rel_l2", ZEROS, ONES, 1.0),
    ("rel_l2", ONES, ZEROS, INF),
    ("rel_l2", [1e-30, 0.0], ZEROS, INF),
    ("rel_l2", [], [], 0.0),
    ("rel_l2", [1.0, NAN], ONES, INF),
    ("rel_l2", ONES, [1.0, NAN], INF),
    ("rel_l2", [1.0, INF], ONES, INF),
    ("rel_l2", [1.0, INF], [1.0, -INF], INF),
    ("rel_l2", [1.0, INF], [1.0, NAN], INF),
    ("rel_l2", [1.0, NAN], [1.0, NAN], 0.0),
    ("rel_l2", [2.0, INF], [1.0, INF], 1.0),
    ("rel_l2", [-INF, 3.0], [-INF, 4.0], 0.25),
    ("max_abs_err", [], [], NAN),
    ("max_abs_err", [1.0, NAN], [4.0, NAN], 3.0),
    ("max_rel_err", [], [], NAN),
    ("max_rel_err", [2.0**-1022], [0.0], 1.0),
    ("mean_abs_err", [1.0, NAN], [4.0, NAN], 3.0),
    ("mean_rel_err", [], [], NAN),
    ("rmse", [], [], NAN),
    ("rmse", [3.0, 4.0], ZEROS, math.sqrt(12.5)),
    ("err_1e3_ratio", [], [], NAN),
    ("err_1e3_ratio", [1.0, 2.0, NAN], [1.0, 1.0, 1.0], 0.5),
    ("allclose", [NAN, 1.0], [NAN, 1.0], True),
    ("allclose", [NAN, 1.0], [1.0, 1.0], False),
    ("allclose", [], [], True),
    ("mismatch_ratio", [NAN, 1.0, 2.0, 4.0], [1.0, 1.0, 1.0, 4.0], 0.5),
    ("mismatch_ratio", [], [], 0.0),
    ("exact_ratio", [], [], 1.0),
    ("exact_ratio", [NAN, 1.0], [NAN, 2.0], 0.5),
    ("exact_ratio", [-0.0, 1.0], [0.0, 1.0], 0.5),
    ("nonfinite_mismatch", [NAN, INF, INF, -INF], [NAN, INF, NAN, INF], 2),
    ("gain", [2.0, 4.0], [1.0, 2.0], 1.0),
    ("gain", ONES, ZEROS, 0.0),
    ("snr", ONES, ONES, INF),
    ("snr", ONES, ZEROS, -INF),
    ("snr", [1.1, 1.0], [1.0, 1.0], 10 * math.log10(200)),
    ("snr", [3.0, 3.0], ONES, 10 * math.log10(1 / 4)),
    ("standard_deviation", [2.0, 2.0], ONES, 0.0),
    ("standard_deviation", [], [], NAN),
    ("max_ulp", [], [], 0),
]


@pytest.mark.parametrize("name, x, y, expected", EDGES)
def test_edge(name, x, y, expected):
    assert metrics.by_name(name).function(moments(x, y)) == pytest.approx(expected, rel=1e-9, nan_ok=True)


EXTREMES = [  # squares leave the range of float64; the ratio does not
    ("rel_l2", [1e200], [2e200], 0.5),
    ("rel_l2", [1e-200], [2e-200], 0.5),
    ("rel_l2", [1e-200, 1.0], [0.0, 1.0], 1e-200),
    ("rel_l2", [1e200], [1.0], 1e200),
    ("rel_l2", [1e200, 2.0], [1e200, 1.0], 0.0),
    ("rel_l2", [1e-200], [0.0], INF),
    ("rel_l2", [0.0], [1e-200], 1.0),
    ("cosine", [1e200], [2e200], 1.0),
    ("cosine", [-1e200], [1e200], -1.0),
    ("cosine", [1e200, -1e200], [1e200, 1e200], 0.0),
    ("cosine", [1e-200], [2e-200], 1.0),
    ("cosine", [1e-200], [-1e-200], -1.0),
    ("cosine", [1e-200, 0.0], [0.0, 1e-200], 0.0),
]


@pytest.mark.parametrize("name, x, y, expected", EXTREMES)
def test_extreme_values_have_the_right_ratio_or_none(name, x, y, expected):
    value = metrics.by_name(name).function(moments(x, y))
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-150) or (name == "cosine" and math.isnan(value))


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_no_value_raises(metric):
    values = (1e200, 1e308, 1e-200, 5e-324, 0.0, 1.0, INF, NAN)
    for x, y in product((-1e308, *values), values):
        value = metric.function(moments([x, 0.0], [y, 0.0]))
        assert isinstance(value, (bool, int, float))


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_no_values_at_all(metric):
    value = metric.function(Moments())
    assert value is None or isinstance(value, (bool, int, float))


def test_integers_keep_their_exact_error():
    found = metrics.max_abs_err(moments([2**53 + 1, 5], [2**53, 5], "int64"))
    assert found == 1 and isinstance(found, int)


FINITE = st.lists(st.tuples(*[st.floats(-1e100, 1e100)] * 2), min_size=1, max_size=20)


@given(FINITE)
def test_ranges(values):
    m = moments(*zip(*values))
    squares_vanish = any(0 < abs(value) < 1e-150 for pair in values for value in pair)
    assert -1 <= metrics.cosine(m) <= 1 or (squares_vanish and math.isnan(metrics.cosine(m)))
    assert metrics.rel_l2(m) >= 0
    assert squares_vanish or metrics.rmse(m) <= metrics.max_abs_err(m) * (1 + 1e-9)
    assert 0 <= metrics.err_1e3_ratio(m) <= metrics.err_5e3_ratio(m) <= 1
    assert metrics.mean_abs_err(m) <= metrics.max_abs_err(m) * (1 + 1e-9)


@given(FINITE, FINITE)
def test_no_metric_depends_on_blocks(one, two):
    (a, b), (c, d) = zip(*one), zip(*two)
    parts = merge(moments(a, b), moments(c, d))
    whole = moments(a + c, b + d)
    for metric in metrics.METRICS:
        x, y = metric.function(parts), metric.function(whole)
        if metric.name not in ("standard_deviation", "gain", "cosine"):  # these subtract sums: no relative bound
            assert x == pytest.approx(y, rel=1e-9, nan_ok=True), metric.name


ALWAYS = (
    "cosine rel_l2 max_abs_err max_rel_err mean_abs_err mean_rel_err rmse err_1e3_ratio err_5e3_ratio allclose "
    "mismatch_ratio max_ulp exact_ratio nonfinite_mismatch"
).split()


@pytest.mark.parametrize(
    "extra, more",
    [((), []), (("gain",), ["gain"]), (("snr", "gain"), ["gain", "snr"]), (("rel_l2", "euclidean"), ["euclidean"])],
)
def test_a_table_has_the_optional_columns_that_a_user_requests(extra, more):
    assert [metric.name for metric in metrics.columns(extra)] == [*ALWAYS, *more]
    assert metrics.requested_columns([f" {name} " for name in (*extra, "")]) == more


@pytest.mark.parametrize("name, near", [("cosin", "cosine"), ("rel_l", "rel_l2"), ("zzz", "standard_deviation")])
def test_an_unknown_metric_is_an_error_with_near_names(name, near):
    with pytest.raises(UsageError, match="no metric here") as caught:
        metrics.require_metric(name, "no metric here")
    assert near in str(caught.value)
    with pytest.raises(UsageError, match=f"no metric '{name}'"):
        metrics.requested_columns(["gain", name])
    assert metrics.require_metric("gain", "") is None


def test_the_direction_and_the_name_of_metrics():
    more = {metric.name for metric in metrics.METRICS if metric.better == "more"}
    assert more == {"cosine", "err_1e3_ratio", "err_5e3_ratio", "allclose", "exact_ratio", "snr"}


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"xx": 1.0, "yy": 1.0, "xy": 1.0 + 1e-15}, 1.0),
        ({"xx": 1.0, "yy": 1.0, "xy": -1.0 - 1e-15}, -1.0),
        ({"xx": 1.0, "yy": INF, "xy": 1.0}, 0.0),
        ({"xx": 1.0, "yy": 1.0, "xy": INF}, NAN),
        ({"xx": 0.0, "yy": 0.0, "max_abs": 1e-300}, 0.0),
        ({"xx": 0.0, "yy": 0.0, "max_abs": 0.0}, 1.0),
        ({"xx": 0.0, "yy": 1.0, "max_abs": 1.0}, 0.0),
        ({"xx": 0.0, "yy": 1.0, "max_abs": 0.0}, 0.0),
        ({"xx": 4.0, "yy": 1.0, "xy": 1.0, "equal": 3}, 1.0),
        ({"xx": 4.0, "yy": 1.0, "xy": 1.0, "equal": 2}, 0.5),
    ],
)
def test_a_cosine_stays_within_1(change, expected):
    assert metrics.cosine(Moments(3, compared=3)._replace(**change)) == pytest.approx(expected, nan_ok=True, abs=0)


def test_masks_beside_zeros_are_no_size_of_the_golden():
    """All compared elements of the golden are 0, and the minimum is that of a mask."""
    one = Moments(4, compared=2, masked=2, max_abs=1.0, sum_dd=1.0)
    golden = one.golden._replace(minimum=-1e9, maximum=0.0)
    assert metrics.rel_l2(one._replace(golden=golden)) == INF
    assert metrics.rel_l2(one._replace(golden=golden, masked=0)) == pytest.approx(1e-9)
    assert metrics.gain(Moments(1, xy=3.0, yy=2.0, max_abs=1.0)) == 0.5 and metrics.gain(Moments(1, yy=2.0)) == 0.0
    assert metrics.max_ulp(Moments()) is None and metrics.max_abs_err(Moments(1, max_abs=2.0, max_abs_exact=3)) == 3


EXTENSIONS = """
import numpy as np
from npucmp.measure.metrics import Metric

def of(value):
    return lambda moments: value

number, none, truth, count = (Metric(name, of(value)) for name, value in
                              (("number", 2.5), ("none", None), ("truth", True), ("count", 3)))
scalar, array = Metric("scalar", of(np.float32(1.5)), "more"), Metric("array", of(np.ones(1)))
elements, text = Metric("elements", lambda moments: moments.elements), Metric("text", of("much"))
side, formula, other = Metric("side", of(1.0), "odd"), Metric("formula", 1.0), Metric("else", of(1.0))
function = of(1.0)
"""
NAMED = "number none truth count scalar array elements text side formula other function".split()


@pytest.fixture
def extended(tmp_path, monkeypatch):
    """An installed package with metrics."""
    monkeypatch.delitem(sys.modules, "own_metrics", raising=False)
    groups = {metrics.GROUP: {name: f"own_metrics:{name}" for name in NAMED}}
    monkeypatch.syspath_prepend(str(install(tmp_path, "own_metrics", groups, EXTENSIONS)))
    metrics._extensions.cache_clear()
    yield
    metrics._extensions.cache_clear()


def test_a_metric_of_a_package_returns_a_number_or_none(extended):
    values = {"number": 2.5, "none": None, "truth": True, "count": 3, "scalar": 1.5, "elements": 7}
    for name, value in values.items():
        found = metrics.by_name(name).function(Moments(7))
        assert found == value and type(found) is type(value)
    for name, kind in (("text", "str"), ("array", "ndarray")):
        with pytest.raises(UsageError, match=f"entry point {name} .* returned {kind}, not a number"):
            metrics.by_name(name).function(Moments(7))


@pytest.mark.parametrize(
    "name, words",
    [
        ("side", "is not a Metric"),
        ("formula", "is not a Metric"),
        ("function", "is not a Metric"),
        ("other", "its name is 'else', not 'other'"),
    ],
)
def test_an_object_that_is_no_metric_is_an_error(extended, name, words):
    with pytest.raises(UsageError, match=f"entry point {name} .*{words}"):
        metrics.require_metric(name, "")


def test_metrics_of_packages_are_columns_behind_the_others(extended):
    names = metrics.requested_columns(["scalar", "snr", "number", "rmse"])
    assert names == ["snr", "number", "scalar"]
    found = metrics.columns(names)[-3:]
    assert [(one.name, one.better, one.always) for one in found] == [
        ("snr", "more", False),
        ("number", "less", False),
        ("scalar", "more", False),
    ]
    with pytest.raises(UsageError, match="scalar"):
        metrics.require_metric("scala", "no such metric")
