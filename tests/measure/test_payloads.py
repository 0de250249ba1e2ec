"""Values that a measurement reads: headers against the dump, kinds that can be compared, records beside values."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import pytest

from npucmp.errors import DumpError
from npucmp.measure import pairs
from npucmp.measure.pairs import (
    Closeness,
    alike,
    allclose_bars,
    map_pairs,
    measure,
    measure_pairs,
    payload_bytes,
    payload_of,
    recorded_type,
    values_of,
)
from npucmp.model import Measurement, Payload, Statistics, TensorRef
from npucmp.model.relation import WeightRelation
from tests.measure.craft import paired, stored

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_header_of_a_file_is_checked_against_the_dump(tmp_path):
    one = stored(tmp_path, X, label="x")
    opened = []
    assert payload_of(one) == payload_of(one, opened) and len(opened) == 1
    opened[0].close()
    known = payload_of(one)
    assert (known.shape, known.dtype) == ((2, 3), "float32")
    assert payload_of(one._replace(payload=known, file="", shape=(9,))) is known
    assert payload_of(one._replace(file="")) is None
    for change, words in (
        ({"problem": "damaged"}, "damaged"),
        ({"shape": (3, 2)}, r"holds shape \[2, 3\], the dump says \[3, 2\]"),
        ({"dtype": "float64"}, "holds float32, the dump says float64"),
        ({"file": f"{tmp_path}/none.npy"}, r"no such file.*\(x\)"),
    ):
        with pytest.raises(DumpError, match=words) as caught:
            payload_of(one._replace(**change))
        assert caught.value.path == change.get("file", one.file)


def test_a_cut_header_names_the_file_the_tensor_and_the_byte(tmp_path):
    one = stored(tmp_path, X, label="x")
    Path(one.file).write_bytes(Path(one.file).read_bytes()[:60])
    with pytest.raises(DumpError, match=r"\(x\)") as caught:
        payload_of(one)
    assert caught.value.path == one.file and "(x)" in caught.value.because
    assert caught.value.offset is not None and f"at byte {caught.value.offset}" in str(caught.value)


PUBLISHED = {  # rtol and atol of torch.testing.assert_close; of float8, those of the CANN operator standard
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float16": (0.001, 1e-5),
    "bfloat16": (0.016, 1e-5),
    "float8_e4m3fn": (0.25, 0.0625),
    "float8_e5m2": (0.5, 0.125),
    "hifloat8": (0.25, 0.0625),
    "int32": (0.0, 0.0),
    "odd": (0.0, 0.0),
}


@pytest.mark.parametrize("dtype", PUBLISHED)
def test_the_bar_of_a_type_is_the_published_one(dtype):
    assert allclose_bars(dtype, dtype, Closeness()) == PUBLISHED[dtype]


@pytest.mark.parametrize(
    "held, recorded, conflicts",
    [
        ("float32", "bfloat16", False),
        ("float32", "float16", False),
        ("float64", "float32", False),
        ("float16", "bfloat16", True),  # a smaller range
        ("float32", "float64", True),
        ("float32", "int8", True),
        ("int64", "int32", True),
        ("int64", "float32", True),
        ("float32", "odd", False),
        ("complex64", "float32", True),
    ],
)
def test_a_file_may_store_a_float_in_a_wider_type(tmp_path, held, recorded, conflicts):
    one = stored(tmp_path, X.astype(held))._replace(dtype=recorded)
    if conflicts:
        with pytest.raises(DumpError, match="the dump says"):
            payload_of(one)
    else:
        found = payload_of(one)
        assert recorded_type(one, found) == (recorded if recorded != "odd" else held)


@pytest.mark.parametrize(
    "x, y, comparable",
    [
        (("float32", (2, 3)), ("float32", (2, 3)), True),
        (("float32", (2, 3)), ("int8", (2, 3)), True),
        (("float32", (2, 3)), ("float32", (2, 1, 3, 1)), True),
        (("float32", (1,)), ("float32", ()), True),
        (("float32", (2, 3)), ("float32", (3, 2)), False),
        (("float32", (2, 3)), ("float32", (6,)), False),
        (("complex64", (2,)), ("complex128", (2,)), True),
        (("complex64", (2,)), ("float32", (2,)), False),
        (("odd", (2,)), ("odd", (2,)), False),
        (("odd", (2,)), ("float32", (2,)), False),
    ],
)
def test_payloads_of_one_shape_and_of_numbers_are_comparable(x, y, comparable):
    one, other = (Payload("x", dtype, shape, 0) for dtype, shape in (x, y))
    assert alike(one, other) is alike(other, one) is comparable


def test_the_bytes_and_the_identity_of_values(tmp_path):
    x, y = stored(tmp_path, X), stored(tmp_path, X.astype(np.float64))
    bare = x._replace(file="")
    assert payload_bytes(paired(x, y)) == 24 + 48
    assert payload_bytes(paired(bare, y)) == 48 and payload_bytes(paired(x, bare)) == 24
    assert payload_bytes(paired(x, None)) == 24 and payload_bytes(paired(None, y)) == 48
    assert payload_bytes(paired(bare, bare)) == 0
    for one in (paired(bare, y), paired(x, bare), paired(x, None), paired(None, y)):
        assert values_of(one) is None
    assert values_of(paired(x, y)) == values_of(paired(x, y, "other.1")) != values_of(paired(y, x))
    for change in ({"file": "z"}, {"dtype": "odd"}, {"shape": (6,)}, {"problem": "damaged"}):
        assert values_of(paired(x._replace(**change), y)) != values_of(paired(x, y))
        assert values_of(paired(x, y._replace(**change))) != values_of(paired(x, y))
    known = x._replace(payload=Payload(x.file, "float32", (2, 3), 128))
    assert values_of(paired(known, y)) != values_of(paired(known._replace(payload=y.payload), y))


def test_values_of_several_pairs_are_read_once(tmp_path):
    x, y = stored(tmp_path, X), stored(tmp_path, X + 1)
    rows = [paired(x, y), paired(y, x), paired(x, y, "sub.0"), paired(x, None)]
    for jobs in (1, 2):
        found = [*measure_pairs(rows, jobs=jobs)]
        assert [one.pair for one in found] == rows
        assert [one.bytes_read for one in found] == [48, 48, 0, 24]
        assert found[2].moments == found[0].moments and found[0].moments != found[1].moments
    assert [one.pair for one in map_pairs(measure, rows, 1)] == rows


def test_without_jobs_no_other_process_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "workers", None)
    (found,) = measure_pairs([paired(stored(tmp_path, X), stored(tmp_path, X))])
    assert found.moments.equal == 6


def test_one_job_measures_in_this_process_as_pairs_are_asked_for(tmp_path):
    rows, begun = [paired(stored(tmp_path, X), None, f"add.{at}") for at in range(3)], []

    def begin(pair, word):
        begun.append(pair)
        return Measurement(pair, problem=word)

    found = map_pairs(begin, rows, 1, "odd")
    assert begun == [] and next(found) == Measurement(rows[0], problem="odd") and begun == rows[:1]


@pytest.mark.parametrize("read, whole", [(2, 1), (4, 1), (2, 1 << 17), (1 << 16, 1), (1 << 16, 152), (1 << 16, 151)])
def test_the_size_of_what_is_read_changes_no_measurement(tmp_path, monkeypatch, read, whole):
    x, y = stored(tmp_path, X), stored(tmp_path, X * 2)
    expected = measure(paired(x, y))
    monkeypatch.setattr(pairs, "READ", read)
    monkeypatch.setattr(pairs, "WHOLE", whole)
    assert measure(paired(x, y)) == expected
    assert expected.moments.max_abs_index == 5 and expected.moments.compared == 6


@pytest.mark.parametrize("side", ["target", "golden"])
def test_one_side_is_measured_alone(tmp_path, side):
    both = {"target": None, "golden": None, side: stored(tmp_path, X)}
    found = measure(paired(**both))
    half = getattr(found.moments, side)
    assert (half.minimum, half.maximum, half.total, found.moments.elements) == (0.0, 5.0, 15.0, 6)
    other = found.moments.golden if side == "target" else found.moments.target
    assert math.isnan(other.minimum) and found.bytes_read == 24
    both[side] = both[side]._replace(shape=(9,))
    assert measure(paired(**both)).problem.startswith(f"{side}: the file holds shape")
    recorded = Statistics(1.0, 0.0, 0.5, 2.0)
    both[side] = TensorRef("output:0", "float32", (2,), statistics=recorded)
    expected = (recorded, None) if side == "target" else (None, recorded)
    assert measure(paired(**both)).statistics == expected


CRC = f"{zlib.crc32(X.tobytes()):08x}"
FIGURES = Statistics(5.0, 0.0, 2.5, math.sqrt(55.0))


def record(**more):
    return TensorRef("output:0", "float32", (2, 3), **more)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "own, other, same, bound, read",
    [
        ({}, {"checksum": CRC}, True, None, 24),
        ({}, {"checksum": CRC[:-1] + ("0" if CRC[-1] != "0" else "1")}, False, None, 24),
        ({}, {"statistics": FIGURES}, None, 0.0, 24),
        ({}, {"statistics": FIGURES._replace(max=6.0)}, None, 1 / math.sqrt(55.0), 24),
        ({"statistics": FIGURES._replace(max=7.0)}, {"statistics": FIGURES}, None, 2 / math.sqrt(55.0), 0),
        ({"statistics": FIGURES._replace(max=7.0, norm=None)}, {"statistics": FIGURES}, None, 0.0, 24),
        ({"statistics": FIGURES}, {"statistics": FIGURES, "checksum": CRC}, True, None, 24),
        ({"checksum": "00000000"}, {"checksum": CRC}, True, None, 24),  # the dump's statistics are no help
        ({"checksum": CRC, "statistics": FIGURES}, {"statistics": FIGURES, "checksum": CRC}, True, None, 0),
        ({}, {}, None, None, 24),
    ],
)
def test_records_are_computed_of_values_unless_the_dump_has_as_many(tmp_path, turned, own, other, same, bound, read):
    sides = [stored(tmp_path, X, **own), record(**other)]
    found = measure(paired(*(sides[::-1] if turned else sides)))
    assert (found.same, found.moments, found.bytes_read) == (same, None, read)
    if not turned:
        assert found.bound == (bound if bound is None else pytest.approx(bound))


SLACK = 2.0**-17 + 8 * 2.0**-24


@pytest.mark.parametrize("share, same", [(0.99, True), (1.0, True), (1.01, None)])
def test_figures_beyond_their_rounding_contradict_equal_hashes(share, same):
    golden = Statistics(1.0, 0.0, 0.5, 1.0)
    target = golden._replace(max=1.0 + share * SLACK)
    found = measure(paired(record(checksum="ab", statistics=target), record(checksum="ab", statistics=golden)))
    assert found.same is same and found.bound == (None if same else pytest.approx(share * SLACK))
    for dtype in ("int32", "odd"):  # they have no rounding of their own
        sides = (record(checksum="ab", statistics=one)._replace(dtype=dtype) for one in (target, golden))
        assert measure(paired(*sides)).same is None


def test_the_bar_of_a_relation_of_weights_is_taken(tmp_path):
    x, y = stored(tmp_path, X), stored(tmp_path, X + np.float32(0.5))
    assert measure(paired(x, y)).moments.outside == 6
    loose = x._replace(relation=WeightRelation(rtol=0.0, atol=1.0))
    assert measure(paired(loose, y)).moments.outside == 0
    assert measure(paired(loose, y), pairs.Closeness(atol=0.25)).moments.outside == 6


@pytest.mark.parametrize(
    "types, given, expected",
    [
        (("float32", "bfloat16"), (None, None), (1.6e-2, 1e-5)),
        (("float16", "float32"), (None, None), (1e-3, 1e-5)),
        (("int8", "int64"), (None, None), (0.0, 0.0)),
        (("odd", "float32"), (None, None), (0.0, 0.0)),
        (("float32", "odd"), (None, None), (0.0, 0.0)),
        (("float32", "float32"), (0.5, None), (0.5, 0.0)),
        (("float32", "float32"), (None, 0.5), (0.0, 0.5)),
        (("float32", "float32"), (0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_the_bars_of_the_user_replace_those_of_the_narrower_type(types, given, expected):
    assert allclose_bars(*types, pairs.Closeness(*given)) == expected
