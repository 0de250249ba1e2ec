"""npucmp ticket: the page and the archive, of reports that may have been made up by somebody else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import compare
from npucmp.cli import npucmp
from npucmp.errors import DumpError, UsageError
from npucmp.tickets import zip as ticket_zip
from npucmp.tickets.report import page
from npucmp.tickets.workflow import Bundle
from tests.synthetic import chain, write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
SOFTMAX = "Functional.softmax.1.forward"
LINEAR = "Module.model.layers.1.linear.Linear.forward.0"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of the sample with the planted fault, whose dumps lie in folders of this machine; with a case of place 1."""
    folder = tmp_path_factory.mktemp("private")
    shutil.copytree(SAMPLES / "msprobe_softmax", folder / "dumps")
    dumps = [str(folder / "dumps" / side) for side in ("target", "golden")]
    CliRunner().invoke(npucmp, ["compare", *dumps, "-q", "-o", str(folder / "report")])
    case = folder / "report" / "case"
    case.mkdir()
    (case / "call.json").write_text(json.dumps({"operator": SOFTMAX, "kwargs": {"dim": -1}}))
    (case / "run.py").write_text("a = '/usr/bin'\n")
    np.save(case / "input_0.npy", np.ones(3))
    (case / "notes.doc").write_text("private")
    return folder / "report"


@pytest.fixture(scope="module")
def report_of_two(tmp_path_factory):
    """Of the sample with two suspects."""
    folder = tmp_path_factory.mktemp("private")
    shutil.copytree(SAMPLES / "msprobe_steps", folder / "dumps")
    dumps = [str(folder / "dumps" / side) for side in ("target", "golden")]
    CliRunner().invoke(npucmp, ["compare", *dumps, "-q", "-o", str(folder / "report")])
    return folder / "report"


def test_what_is_too_large_is_not_read_again_and_said_so(monkeypatch):
    monkeypatch.setattr("npucmp.workflows.tensor_details.ELEMENTS", 3000)
    dumps = [SAMPLES / "npy_batch_norm" / side for side in ("target", "golden")]
    found = compare(*dumps)
    words = (
        "no figures by the vendor's rules of resnet_block_1_bn2_FusedBatchNormV3 output:0: 3,072 elements are too many"
    )
    assert any(note.startswith(words) for note in found.notes) and not found.accused[0].vendor
    monkeypatch.undo()
    first = compare(*dumps).accused[0]
    assert (first.place, first.op, len(first.vendor)) == (1, "resnet_block_1_bn2_FusedBatchNormV3", 1)


def test_another_place(report, report_of_two):
    text = page(Bundle(report_of_two).ticket(2))
    assert text.startswith(f"# `{LINEAR}`: WORSENED\n") and "- step: `3`\n" in text
    assert re.search(rf"^npucmp extract '…/target' {re.escape(LINEAR)}( --\S+ \S+)* -o case$", text, re.MULTILINE)
    with pytest.raises(UsageError, match=r"the case is of .*, the ticket of"):
        Bundle(report_of_two, report / "case").ticket(2)
    with pytest.raises(UsageError, match="has 2 suspects, none at place 3"):
        Bundle(report_of_two).ticket(3)
    with pytest.raises(UsageError, match="none at place 2"):
        Bundle(report).ticket(2)


def test_data_of_a_page_that_is_deflated(monkeypatch, report):
    """Pages of many rows are read, cleared of paths and deflated again; what is no page of ours is left out."""
    from npucmp.report import html

    text = (report / "report.html").read_text()
    data = json.loads(re.search('id="data">(.*?)</script>', text)[1])
    packed = json.dumps({"deflate": html._deflate(json.dumps(data))})
    lambda_free = re.sub('(id="data">).*?(</script>)', lambda found: found[1] + packed + found[2], text)
    shown = ticket_zip._page(lambda_free.encode()).decode()
    found = json.loads(re.search('id="data">(.*?)</script>', shown)[1])
    again = ticket_zip._deflate(found["deflate"])
    assert (
        again == found["deflate"]
        and "/home/user" not in str(ticket_zip._remove_folders(data))
        and "/home/user" in str(data)
    )
    for bad in (
        '<script type="application/json" id="data">{</script>',
        '<script type="application/json" id="x">"AA"</script>',
    ):
        assert ticket_zip._page(bad.encode()) is None
    assert ticket_zip._page(b"\xff") is None


def test_an_archive_is_whole_or_not_there(report, tmp_path):
    """An error on the way leaves what was there, and nothing else."""
    (tmp_path / "t.zip").write_text("before")
    (report / "case" / "broken.npy").symlink_to("/etc/passwd")
    try:
        with pytest.raises(DumpError, match="a link that leads out"):
            npucmp.main(["ticket", str(report), "-o", str(tmp_path / "t.zip")], standalone_mode=False)
    finally:
        (report / "case" / "broken.npy").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["t.zip"] and (tmp_path / "t.zip").read_text() == "before"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere", "-o", "t.md"], "holds no summary.json"),
        (["{report}", "-o", "t.pdf"], "the name must end in .md or .zip"),
        (["{report}", "-o", "t.md", "--case", "nowhere"], "holds no call.json"),
        (["{report}", "-o", "{report}/roots.csv/t.md"], "the ticket was not written"),
    ],
)
def test_wrong_words(report, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, DumpError), match=re.escape(why)):
        npucmp.main(["ticket", *(word.format(report=report) for word in words)], standalone_mode=False)


def test_a_report_that_accuses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))
    dump = write_run(tmp_path / "run", chain())
    CliRunner().invoke(npucmp, ["compare", str(dump), str(dump), "-q", "-o", str(tmp_path / "report")])
    with pytest.raises(UsageError, match="has no suspect, so"):
        Bundle(tmp_path / "report").ticket()


def crafted(folder, summary=(), **tables):
    folder.mkdir()
    found = {"npucmp": "0", "command": "compare", "exit_status": 1, **dict(summary)}
    (folder / "summary.json").write_text(json.dumps(found))
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_keys_of_a_summary_are_not_believed(tmp_path):
    roots = "place,op,cause,slot", "1,op,BORN,output:0"
    odd = [None, 7, "text", [], {}, [1], {"a": [{}]}, [{"place": 1, "arguments": 3, "stack": "x", "vendor": [1, {}]}]]
    vendor = [{"limits": {}, "mere": [], "inside": "x"}]
    odd.append([{"place": 1, "arguments": [{}, 5], "stack": [7, "f"], "vendor": vendor}])
    for number, value in enumerate(odd):
        keys = ("target", "golden", "aligned", "rules", "notes", "argv", "accused", "verdicts", "npucmp")
        folder = crafted(tmp_path / str(number), dict.fromkeys(keys, value), roots=roots)
        assert page(Bundle(folder).ticket()).startswith("# `op`: BORN")


OTHERS = {
    "check": (
        {"health": ("severity,rule,parameter,value,limit,because,follows", "error,weight.zero,w,1.0,0.5,all is 0,")},
        ["# `w`: error", "Found by `npucmp check`", "- `all is 0`", "value `1`, limit `0.5`"],
    ),
    "replay": (
        {"replay": ("order,op,slot,verdict,rms_ratio,vendor_mixed,explanation", "1,op,output:0,GUILTY,9.5,False,odd")},
        ["# `op`: GUILTY", "not match float64 of its", "- `odd`", "rms_ratio `9.5`", "vendor_mixed `False`"],
    ),
    "overflow": (
        {
            "roots": ("place,step,rank,order,op,slot,cause,evidence", "1,0,,1,op,output:0,BORN,nan"),
            "overflow": ("step,rank,order,op,slot,event,count", "0,,1,op,output:0,nan,3", "0,,2,other,output:0,nan,4"),
        },
        ["# `op`: BORN", "`output:0`: count `3`, event `nan`"],
    ),
    "rerun-diff": (
        {
            "rerun": ("place,step,rank,order,op,slot,cause,because", "1,0,,1,op,output:0,BORN,1 element differs"),
            "tensors": ("step,rank,order,op,slot,verdict,rel_l2", "0,,4,op,output:0,diverged,0.5"),
        },
        ["# `op`: BORN", "- `1 element differs`", "| `output:0` | `diverged` | `0.5` |"],
    ),
    "precheck": (
        {"precheck": ("row,status,severity,target,golden,because", "seed,DIFFERS,error,1,2,seeds differ")},
        ["# `seed`: error", "- `seeds differ`", "target `1`, golden `2`"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", OTHERS)
def test_reports_of_every_command(tmp_path, command):
    tables, expected = OTHERS[command]
    text = page(Bundle(crafted(tmp_path / "a", {"command": command}, **tables)).ticket())
    for words in expected:
        assert words in text, text
