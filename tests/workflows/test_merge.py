"""Reports made on several machines become one, or are refused by name."""

import csv
import json
import shutil
import sys
import tempfile

import pytest

import npucmp
from npucmp import cli
from npucmp.workflows.merge import merge
from tests.localise.test_ranks import pipeline
from tests.synthetic import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two steps of two ranks, wrong from step 1 rank 0 on: compared as a whole, and each step by itself."""
    folder = tmp_path_factory.mktemp("merge")
    for side in ("target", "golden"):
        for step in (0, 1):
            fault = {"first": 1.01} if (side, step) == ("target", 1) else {}
            for rank, operators in enumerate(pipeline(**fault)):
                write_run(folder / side, operators, step, rank)
    for name, more in (("whole", {}), ("s0", {"step": "0"}), ("s1", {"step": "1"}), ("r1", {"step": "1", "rank": "1"})):
        report = npucmp.compare(folder / "target", folder / "golden", **more)
        npucmp.write_reports(report, folder / name)
    return folder


@pytest.fixture
def place(made, tmp_path):
    for name in ("s0", "s1", "r1"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def merged(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["npucmp", "merge", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return (end.value.code, *capsys.readouterr())


def rows(file):
    with open(file) as stream:
        return [*csv.DictReader(stream)]


def test_tables_are_those_of_one_comparison(made, place, monkeypatch, capsys):
    status, shown, _ = merged(monkeypatch, capsys, place / "s1", place / "s0", "-o", place / "out")
    assert status == 1 and "\nDIVERGED: error is born in 1 place" in shown
    for name in ("tensors.csv", "roots.csv"):
        assert (place / "out" / name).read_bytes() == (made / "whole" / name).read_bytes(), name
    summary, known = (json.loads((one / "summary.json").read_text()) for one in (place / "out", made / "whole"))
    for key in ("verdicts", "causes", "rules", "exit_status", "unpaired"):
        assert summary[key] == known[key], key
    assert [row["op"] for row in summary["roots"]] == [row["op"] for row in known["roots"]]
    assert summary["aligned"]["operators"] == known["aligned"]["operators"]
    assert summary["aligned"]["operators_compared"] == pytest.approx(known["aligned"]["operators_compared"])
    assert "what crosses steps and ranks was settled within each" in "".join(summary["notes"])
    verdicts = [[(row["step"], row["rank"], row["verdict"]) for row in rows(one / "matrix.csv")]
                for one in (place / "out", made / "whole")]  # fmt: skip
    assert verdicts[0] == verdicts[1]
    assert (
        summary["begins"] == known["begins"] and summary["begins"]["rank"] == 0 and summary["shards"] == known["shards"]
    )
    assert f"The error {known['begins']['sentence']}\n" in shown
    assert "DIVERGED" in (place / "out/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", [{"parts": True}, {"parquet": True}, {"parts": True, "parquet": True}], ids=str)
def test_parts_and_parquet_are_read_too(made, place, monkeypatch, capsys, form):
    """What comes out is the same, of Parquet "0.0" for "0" in columns of floats; nothing is left behind."""
    if form.get("parquet"):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    npucmp.write_reports(npucmp.compare(made / "target", made / "golden", step=0), place / "s0", **form)
    assert not (place / "s0/tensors.csv").exists()
    assert merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")[0] == 1
    found, known = rows(place / "out/tensors.csv"), rows(made / "whole/tensors.csv")
    assert len(found) == len(known) and [*found[0]] == [*known[0]]
    for row, expected in zip(found, known):
        for name, cell in row.items():
            assert cell == expected[name] or (name in ("max_ulp", "max_abs_err") and cell == f"{expected[name]}.0"), (
                name
            )
    assert not [*place.glob(".npucmp*")]


def test_what_was_written_for_excel_is_read_too(made, place, monkeypatch, capsys):
    for file in place.rglob("*.csv"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")[0] == 1
    assert (place / "out/tensors.csv").read_bytes() == (made / "whole/tensors.csv").read_bytes()
    joined = merge([place / "s0", place / "s1"]).to_pandas()
    whole = npucmp.compare(made / "target", made / "golden").to_pandas()
    assert joined.rel_l2.equals(whole.rel_l2) and joined.op.equals(whole.op)


def changed(**more):
    def change(folder):
        file = folder / "summary.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))

    return change


def rule_of(limit):
    def change(folder):
        file = folder / "summary.json"
        summary = json.loads(file.read_text())
        summary["rules"][0]["limit"] = limit
        file.write_text(json.dumps(summary))

    return change


def told(file, text):
    return lambda folder: (folder / file).write_text(text)


def replaced(file, old, new):
    def change(folder):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


def changed_roots(folder):
    head, first, *others = (folder / "roots.csv").read_text().splitlines()
    at = head.split(",").index("value")
    cells = [cell if number != at else "much" for number, cell in enumerate(first.split(","))]
    (folder / "roots.csv").write_text("\n".join([head, ",".join(cells), *others]) + "\n")


def linked(folder):
    (folder / "tensors.csv").rename(folder.parent / "elsewhere.csv")
    (folder / "tensors.csv").symlink_to(folder.parent / "elsewhere.csv")


OF_ROOTS = ("a root that is none", "a figure that is none", "no roots")
REFUSED = {
    "another version": (changed(npucmp="9.9"), "was made by npucmp 9.9"),
    "another rule": (rule_of(0.5), "were judged by other rules"),
    "a switch": (changed(argv=["npucmp", "--strict"]), "were judged by other rules"),
    "partial": (changed(partial=True), "the report is partial"),
    "another command": (changed(command="check"), "is no summary of a report of npucmp compare"),
    "no counts": (changed(verdicts=3), "is no summary of a report of npucmp compare"),
    "no JSON": (told("summary.json", "{"), "not JSON"),
    "numbers that are none": (
        replaced("summary.json", '"match": ', '"match": NaN, "x": '),
        "is no summary of a report",
    ),
    "a run that is none": (changed(unpaired=[{"step": []}]), "is no summary of a report of npucmp compare"),
    "a side that is none": (changed(target=[]), "is no summary of a report of npucmp compare"),
    "no table": (lambda folder: (folder / "tensors.csv").unlink(), "holds no tensors, which its summary.json lists"),
    "other columns": (
        replaced("tensors.csv", ",masked", ",masked,more"),
        "the columns of tensors.csv",
    ),
    "a formula": (replaced("tensors.csv", ",forward,", ",=cmd(),"), "holds a row that npucmp does not write"),
    "a cut row": (replaced("tensors.csv", "\n0,1,", "\nx"), "cannot be read"),
    "a root that is none": (replaced("roots.csv", "BORN", "TORN"), "holds a row that npucmp does not write"),
    "a figure that is none": (changed_roots, "holds a row that npucmp does not write"),
    "no roots": (lambda folder: (folder / "roots.csv").unlink(), "holds no roots, which its summary.json lists"),
    "a table elsewhere": (linked, "a link that leads out"),
}


def test_numbers_that_are_none_are_not_known(place, monkeypatch, capsys):
    file = place / "s0/matrix.csv"
    head, first, *others = file.read_text().splitlines()
    cells = ["²" if cell.isdecimal() and at > 1 else cell for at, cell in enumerate(first.split(","))]
    file.write_text("\n".join([head, ",".join(cells), *others]) + "\n")
    assert merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")[0] == 1
    row, *_ = rows(place / "out/matrix.csv")
    assert (row["operators"], row["match"]) == ("0", "0")


@pytest.mark.parametrize("how", REFUSED)
def test_what_does_not_belong_together_is_refused_by_name(place, monkeypatch, capsys, how):
    spoil, words = REFUSED[how]
    spoiled = "s1" if how in OF_ROOTS else "s0"
    spoil(place / spoiled)
    status, shown, error = merged(monkeypatch, capsys, place / "s0", place / "s1", "-o", place / "out")
    assert (status, shown, error.count("\n")) == (2, "", 1)
    assert words in error and str(place / spoiled) in error
    assert not (place / "out").exists()


def test_a_step_and_rank_is_in_one_report(place, monkeypatch, capsys):
    status, _, error = merged(monkeypatch, capsys, place / "s1", place / "r1")
    assert status == 2 and f"step 1 rank 1 is in {place / 's1'} and again in {place / 'r1'}" in error
    for words in ((place / "s1",), (place / "s1", place / "s1")):
        status, _, error = merged(monkeypatch, capsys, *words)
        assert status == 2 and "the folders of several reports, each once" in error
