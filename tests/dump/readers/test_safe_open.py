"""What all readers stand on: exact reads, limits, arithmetic on strides."""

from __future__ import annotations

import errno
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp import Limits
from npucmp.dump.limits import ReadContext, tensor_size
from npucmp.dump.readers import strides
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError


@pytest.fixture
def ten(tmp_path):
    (tmp_path / "ten").write_bytes(b"0123456789")
    return str(tmp_path / "ten")


def test_reads_are_exact(ten):
    with open_regular(ten) as file:
        assert (file.size, file.read(0, 10), file.read(4, 3), file.read(10, 0)) == (10, b"0123456789", b"456", b"")


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (10, 1), (11, 0), (-1, 1), (-5, 20), (3, -1), (2**70, 1)])
def test_reads_outside(ten, offset, length):
    with open_regular(ten) as file, pytest.raises(DumpError, match="ended early: 10 bytes"):
        file.read(offset, length)


def test_a_window_saves_reads(ten, monkeypatch):
    with open_regular(ten) as file:
        file.prefetch(-3, 5)
        file.prefetch(6, 100)
        file.prefetch(10, 5)
        monkeypatch.setattr(os, "pread", None)
        assert (file.read(0, 5), file.read(1, 2), file.read(6, 4)) == (b"01234", b"12", b"6789")
        monkeypatch.undo()
        assert (file.read(4, 2), file.read(4, 4)) == (b"45", b"4567")


def test_reads_that_come_in_pieces(ten, monkeypatch):
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: whole(fd, min(length, 3), offset))
    with open_regular(ten) as file:
        assert file.read(1, 8) == b"12345678"


@pytest.mark.parametrize(
    "change", [lambda s: s.write(b"x"), lambda s: s.truncate(9), lambda s: s.seek(0, 2) + s.write(b"x")]
)
def test_a_file_that_changes_between_two_reads(ten, change):
    with pytest.raises(DumpError, match="ten: changed while it was read"), open_regular(ten) as file:
        file.read(0, 1)
        with open(ten, "r+b") as other:
            change(other)
        os.utime(ten, ns=(1, 1))
        file.read(1, 1)


def test_what_a_single_read_found_is_of_one_moment(ten):
    with open_regular(ten) as file:
        file.prefetch(0, 10)
        os.utime(ten, ns=(1, 1))
        assert file.read(0, 5) + file.read(5, 5) == b"0123456789"


def test_what_went_wrong_first_is_told(ten):
    with pytest.raises(DumpError, match="ended early"), open_regular(ten) as file:
        file.read(0, 1)
        os.utime(ten, ns=(1, 1))
        file.read(8, 5)


def test_links_are_confined_to_dumps(tmp_path):
    """Below the folder that was confined, wherever the way to it leads; elsewhere a link is the user's own."""
    for name in ("dump", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    (tmp_path / "dump" / "in").symlink_to("x")
    (tmp_path / "dump" / "out").symlink_to(tmp_path / "other" / "x")
    (tmp_path / "dump" / "folder").symlink_to(tmp_path / "other")
    (tmp_path / "alias").symlink_to("dump")
    named = {f"{way}/{name}" for way in ("dump", "alias") for name in ("x", "in", "out", "folder/x")}

    def refused(*dumps):
        context = ReadContext().confine(*dumps)
        found = set()
        for name in named:
            try:
                open_regular(str(tmp_path / name), context).close()
            except DumpError as error:
                assert error.because.startswith("refused: a link that leads out of the dump")
                found.add(name)
        return found

    alias, dump, other = tmp_path / "alias", tmp_path / "dump" / "x", tmp_path / "other"
    assert refused() == set()
    assert refused(alias) == {"alias/out", "alias/folder/x"}
    assert refused(alias, dump) == {"alias/out", "alias/folder/x", "dump/out", "dump/folder/x"}
    assert refused(alias, dump, other) == set()
    assert refused(alias) == {"alias/out", "alias/folder/x"}  # whatever was asked before


def test_an_error_of_the_disk(ten, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with open_regular(ten) as file, pytest.raises(DumpError, match="cannot be read: Input/output error"):
        file.read(0, 1)


def test_a_file_that_was_read_may_fail_to_close(ten, monkeypatch):
    close = os.close

    def failing(handle):
        close(handle)
        raise OSError(errno.EIO, "Input/output error")

    with open_regular(ten) as file:
        monkeypatch.setattr(os, "close", failing)
        assert file.read(0, 10) == b"0123456789"


def test_nothing_stays_open(ten, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), open_regular(ten):
        raise KeyError
    with pytest.raises(DumpError), open_regular(str(tmp_path)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_limits_are_inclusive():
    limits = Limits(ndim=2, tensor_bytes=24)
    assert tensor_size("p", (2, 3), 4, limits) == 24
    assert tensor_size("p", (24, 0), 4, limits) == 0
    for shape in ((1, 1, 1), (25, 0), (7,), (2, True), (2.0,), (-1,)):
        with pytest.raises(DumpError):
            tensor_size("p", shape, 4, limits)


def places(shape, steps):
    """Where each element lies, in logical order, index by index."""
    return [sum(i * s for i, s in zip(index, steps)) for index in itertools.product(*map(range, shape))]


SHAPES = st.lists(st.integers(0, 4), max_size=5)


@given(SHAPES)
def test_contiguous_strides(shape):
    assert places(shape, strides.c_strides(shape)) == list(range(len(places(shape, shape))))
    turned = places(shape[::-1], strides.fortran_strides(shape)[::-1])
    assert turned == list(range(len(turned)))
    assert strides.compact(shape, strides.c_strides(shape)) == ()


@given(SHAPES, st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12]), min_size=5, max_size=5))
def test_views(shape, steps):
    steps = steps[: len(shape)]
    expected = places(shape, steps)
    assert strides.reach(shape, steps) == max(expected, default=-1) + 1
    contiguous = expected == list(range(len(expected)))
    assert strides.compact(shape, steps) == (() if contiguous else tuple(steps))
    if expected:
        assert places(*strides.merge_dimensions(shape, steps)) == expected


def test_merge_leaves_as_few_dimensions_as_possible():
    assert strides.merge_dimensions((2, 1, 3, 4), (12, 7, 4, 1)) == ((24,), (1,))
    assert strides.merge_dimensions((2, 3, 4), (1, 2, 6)) == ((2, 3, 4), (1, 2, 6))
    assert strides.merge_dimensions((5, 2, 3), (0, 3, 1)) == ((5, 6), (0, 1))
    assert strides.merge_dimensions((1, 1), (9, 9)) == ((), ())
