"""Tensors of a report as Parquet: files that somebody else may have made up."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

from npucmp import Limits, diff, write_reports
from npucmp.cli import npucmp
from npucmp.errors import DumpError, MissingExtra, NpucmpError, UnsupportedError
from npucmp.workflows import report_reader as reader
from npucmp.workflows.report_reader import Folder, read
from tests.reports import named

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

COLUMNS = {"step": [0, 0], "rank": [None, None], "op": ["a", "b"], "slot": ["output:0"] * 2,
           "verdict": ["match", "diverged"], "rel_l2": [0.0, float("inf")], "limit": [1e-6, 1e-6],
           "elements": [100, None], "allclose": [True, None]}  # fmt: skip
TYPES = {"step": pa.int64(), "rank": pa.int64(), "elements": pa.int64(), "rel_l2": pa.float64(),
         "limit": pa.float64(), "allclose": pa.bool_()}  # fmt: skip


def table(**more):
    """The columns; of one that is given as an array, this one instead, without one that is given as None."""
    found = {name: pa.array(cells, TYPES.get(name, pa.string())) for name, cells in COLUMNS.items()}
    return pa.table({name: cells for name, cells in {**found, **more}.items() if cells is not None})


def report(folder, content=None):
    folder.mkdir()
    (folder / "summary.json").write_text('{"npucmp": "1", "command": "compare", "exit_status": 0}')
    (folder / "roots.csv").write_text("op,cause\n")
    if isinstance(content, bytes):
        (folder / "tensors.parquet").write_bytes(content)
    else:
        parquet.write_table(table() if content is None else content, folder / "tensors.parquet")
    return folder


def test_cells_are_those_of_the_csv_file_in_whatever_order_the_columns_are(tmp_path):
    folder = Folder(report(tmp_path / "a", table().select([*reversed(COLUMNS)])))
    names = "step rank op slot verdict rel_l2 limit elements allclose".split()
    assert [[row[name] for name in names] for row in folder.rows("tensors.csv")] == [
        ["0", "", "a", "output:0", "match", "0.0", "1e-06", "100", "True"],
        ["0", "", "b", "output:0", "diverged", "inf", "1e-06", "", ""],
    ]
    assert b"".join(folder.text("tensors.parquet", ["op", "rel_l2"])) == b"rel_l2,op\n0.0,a\ninf,b\n"


def test_many_rows_are_read_piece_by_piece(tmp_path, monkeypatch):
    """More rows than are read at once, in several groups, with words that repeat: the same as all at once."""
    monkeypatch.setattr(reader, "ROWS", 7)
    names = [f"op{number % 5}" for number in range(100)]
    folder = report(tmp_path / "a", b"")
    parquet.write_table(pa.table({"op": pa.array(names)}), folder / "tensors.parquet", row_group_size=30)
    pieces = [*Folder(folder).text("tensors.parquet")]
    assert len(pieces) > 10 and b"".join(pieces).decode().split("\n") == ["op", *names, ""]


def claiming(data):
    """9,000 rows that claim, everywhere in the foot, to be a million."""
    length = int.from_bytes(data[-8:-4], "little")
    body, foot = data[: -8 - length], data[-8 - length :]
    assert foot.count(b"\xd0\x8c\x01") > 1
    return body + foot.replace(b"\xd0\x8c\x01", b"\x80\x89\x7a")


def many(rows):
    """Empty cells, which take no room."""
    return pa.table({field.name: pa.nulls(rows, field.type) for field in table().schema})


def not_utf8():
    offsets, data = pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")
    return table(op=pa.StringArray.from_buffers(2, offsets, data))


REFUSED = {
    "step is floating": (
        table(step=pa.array([0.0, 0.0])),
        "column 'step' is of type double, where npucmp writes int64",
    ),
    "op is a number": (table(op=pa.array([1, 2])), "column 'op' is of type int64, where npucmp writes string"),
    "verdict is bytes": (table(verdict=pa.array([b"match", b"match"])), "'verdict' is of type binary"),
    "a list": (table(rel_l2=pa.array([[0.0], [1.0]])), "'rel_l2' is of type list<"),
    "a time": (table(limit=pa.array([1, 2], pa.timestamp("s"))), "'limit' is of type timestamp"),
    "half": (
        table(rel_l2=pa.array([0.0, 1.0], pa.float32())),
        "'rel_l2' is of type float, where npucmp writes int64 or ",
    ),
    "no verdict": (table(verdict=None), "has no column verdict"),
    "no rows that are counted": (table(op=None, slot=None), "has no column op"),
    "a column twice": (pa.table([pa.array(["a"])] * 2, ["op", "op"]), "has several columns 'op'"),
    "not UTF-8": (not_utf8(), "is not a readable Parquet file"),
    "nothing": (b"", "is not a readable Parquet file"),
    "text": (b"step,rank,op\n", "is not a readable Parquet file"),
    "magic alone": (b"PAR1" * 20, "is not a readable Parquet file"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_npucmp_does_not_write_is_one_line_and_no_report_without_a_difference(tmp_path, how):
    content, why = REFUSED[how]
    whole, other = report(tmp_path / "whole"), report(tmp_path / "other", content)
    assert CliRunner().invoke(npucmp, ["diff", str(whole), str(whole), "-q"]).exit_code == 0
    for pair in ((whole, other), (other, whole)):
        with pytest.raises(DumpError) as told:
            diff(*pair)
        assert why in str(told.value) and f"{other}/tensors.parquet" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("at", [4, 30, 200, -300, -100, -20, -8])
def test_a_cut_or_changed_file_is_refused_or_reads_as_text(tmp_path, at):
    """Bytes that are gone, and bytes that are others: an error of ours, if it is not merely another word."""
    data = (report(tmp_path / "whole") / "tensors.parquet").read_bytes()
    with pytest.raises(DumpError, match=r"cut/tensors.parquet"):
        read(report(tmp_path / "cut", data[:at]))
    for number, byte in enumerate((0x00, 0xFF, 0x7F)):
        folder = report(tmp_path / str(number), data[:at] + bytes([byte]) + data[at:][1:])
        try:
            found = read(folder)
        except NpucmpError as error:
            assert "\n" not in str(error)
        else:
            assert len(found.seen) <= 2


def test_sizes_are_not_believed(tmp_path):
    """Rows that are only claimed, rows that take no room in the file, cells that are one word again and again."""
    few, limits = many(9000), Limits().changed(["report_bytes=2M"])
    parquet.write_table(few, tmp_path / "few.parquet", compression="none")
    claims = report(tmp_path / "claims", claiming((tmp_path / "few.parquet").read_bytes()))
    with pytest.raises(DumpError, match=r"1,000,000 rows, as text .* more than the limit report_bytes"):
        diff(claims, claims, limits=limits)
    with pytest.raises(DumpError, match=r"not a readable Parquet file|has .* rows, but claims 1,000,000"):
        read(claims)
    with pytest.raises(DumpError, match="300,000 rows, as text 2,700,000 bytes at least, more than"):
        diff(*[report(tmp_path / "many", many(300_000))] * 2, limits=limits)
    words = table(op=pa.array(["x" * 10_000] * 2)).take(pa.array([0] * 1000))
    folder = report(tmp_path / "words", words)
    with pytest.raises(
        DumpError, match=r"a table of 10,.* bytes and more, more than the limit report_bytes of 2,097,152"
    ):
        diff(folder, folder, limits=limits)


def test_names_are_nothing_but_names(tmp_path):
    """A formula, a line break, a control character: in the key as in the file, made harmless where it is shown."""
    name = '=op\n\x1b[31m,"x"'
    folder = report(tmp_path / "a", table(op=pa.array([name, "b"])))
    assert [key.op for key in read(folder).seen] == [name, "b"]
    clean = report(tmp_path / "b", table(op=pa.array([name, "b"]), verdict=pa.array(["match", "match"])))
    got = CliRunner().invoke(npucmp, ["diff", str(clean), str(folder), "-o", str(tmp_path / "out")])
    assert got.exit_code == 1 and "\x1b" not in got.output
    for odd in (b"\x1b", b",=op"):
        assert odd not in (tmp_path / "out" / "diff.csv").read_bytes()


def test_types_that_a_file_names_are_not_made(tmp_path):
    """CVE-2023-47248: an extension type of an older pyarrow is a pickle in the schema."""

    class Made:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    kind = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Made())}
    found = table()
    schema = pa.schema([one.with_metadata(kind) if one.name == "op" else one for one in found.schema])
    folder = report(tmp_path / "a", found.cast(schema))
    stored = parquet.read_metadata(folder / "tensors.parquet").metadata[b"ARROW:schema"]
    assert b"arrow.py_extension_type" in base64.b64decode(stored)
    with suppress(NpucmpError):
        read(folder)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_bytes_that_are_others_never_end_in_anything_but_a_line(tmp_path, compression):
    parquet.write_table(table().take(pa.array([0, 1] * 300)), tmp_path / "whole.parquet", compression=compression)
    data, chance, folder = (tmp_path / "whole.parquet").read_bytes(), random.Random(1), report(tmp_path / "a")
    refused = 0
    for _ in range(100):
        spoiled = bytearray(data)
        for _ in range(chance.choice([1, 2, 20])):
            spoiled[chance.randrange(len(data))] = chance.choice([0, 127, 128, 255])
        (folder / "tensors.parquet").write_bytes(spoiled)
        try:
            read(folder)
        except NpucmpError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 20


def test_what_lies_elsewhere_or_never_ends_is_refused(tmp_path):
    elsewhere = report(tmp_path / "elsewhere")
    for name, make, why in (("link", lambda file: file.symlink_to(elsewhere / "tensors.parquet"), "leads out"),
                            ("fifo", os.mkfifo, "a FIFO, not a file")):  # fmt: skip
        folder = report(tmp_path / name, b"")
        (folder / "tensors.parquet").unlink()
        make(folder / "tensors.parquet")
        with pytest.raises(DumpError, match=why):
            read(folder)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    folder = report(tmp_path / "a")
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(UnsupportedError, match=r"pyarrow 14\.0\.0 may execute code of a file; update to 14\.0\.1"):
        read(folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra) as told:
        npucmp.main(["compare", "a", "b", "--baseline", str(folder)], standalone_mode=False)
    assert str(told.value) == (
        f"{folder}/tensors.parquet needs the package npucmp[parquet]: pip install -e '.[parquet]'"
    )


def test_a_report_of_another_command_leaves_no_parts_behind(tmp_path):
    write_reports(named("op"), tmp_path, parts=True, parquet=True)
    assert [file.name for file in tmp_path.glob("tensors*")] == ["tensors-0-0.parquet"]
    write_reports(diff(tmp_path, tmp_path), tmp_path)
    assert (tmp_path / "diff.csv").exists() and not [*tmp_path.glob("tensors*")]


def test_a_summary_that_counts_more_than_the_file_holds(tmp_path):
    folder = report(tmp_path / "a")
    summary = {"npucmp": "1", "command": "compare", "exit_status": 0, "verdicts": {"match": 3, "diverged": 10**30}}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert read(folder).lacking == 1 and diff(folder, folder).exit_status == 2
