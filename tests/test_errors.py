"""Errors keep what they know: on their way from a worker they are pickled."""

from __future__ import annotations

import pickle

import pytest

from npucmp.errors import (
    RAISE,
    DumpError,
    MissingExtra,
    NpucmpError,
    UnsupportedError,
    UsageError,
    raise_in_tests,  # fmt: skip
)
from npucmp.measure.executor import workers

ALL = [
    NpucmpError("plain"),
    DumpError("a/b.npy", "ended early", 7),
    DumpError("a/b.npy", "ended early"),
    UnsupportedError("a strided view of int4", "save it contiguous"),
    UnsupportedError("a strided view of int4"),
    MissingExtra("h5py", "reading x.h5"),
    UsageError("unknown format 'np'", ["npy", "hdf5"]),
]


@pytest.mark.parametrize("error", ALL, ids=str)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(error, protocol):
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def fail(item):
    raise DumpError(item, "is broken", 3)


def lost(item, because):
    return because


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_worker_raises_is_raised_here(jobs):
    with pytest.raises(DumpError) as raised:
        list(workers(jobs).map(fail, ["x", "y"], lost))
    assert (raised.value.path, raised.value.because, raised.value.offset) == ("x", "is broken", 3)


def test_an_unexpected_error_is_raised_in_tests_only(monkeypatch):
    with pytest.raises(KeyError):
        raise_in_tests(KeyError("a bug"))
    monkeypatch.delenv(RAISE)
    raise_in_tests(KeyError("a bug"))
