"""npucmp ticket: the page and the archive, of reports that may have been made up by somebody else."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import compare, write_reports
from npucmp.cli import npucmp
from npucmp.errors import DumpError, UsageError
from npucmp.measure.ascend_criteria import vendor_of
from npucmp.report import ticket_zip
from npucmp.report.sanitise import block, code, strip_folders
from npucmp.report.ticket import page
from npucmp.version import __version__
from npucmp.workflows.ticket import Bundle
from tests.reports import named
from tests.synthetic import chain, with_statistics, write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
SOFTMAX = "Functional.softmax.1.forward"
LINEAR = "Module.model.layers.1.linear.Linear.forward.0"
HOSTILE = "`</code>\n# <script>alert(1)</script> | [x](http://x) @all ![i](y) ``` \x1b[31m\u202e"


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


def test_a_page_in_the_order_of_a_reader(report):
    text = page(Bundle(report).ticket())
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert heads == [
        f"`{SOFTMAX}`: BORN", "Where", "Figures", "Compared runs and rules", "Versions and environment",
        "How to reproduce",
    ]  # fmt: skip
    for words in (
        "its inputs agree, its output differs: the error originates in this operator",
        "- `output:0: rel_l2 1.72e-03, limit 4.77e-07`",
        "- source line: `make.py:67  x = x + torch.matmul(F.softmax(scores, dim=-1), self.value(h))`",
        "| `dim` | `-1` | `-1` |  |",
        "| `output:0` | `float32 [2, 8, 8]` | `float32 [2, 8, 8]` |",
        "File …/make.py, line 67, in forward, x = x +",
        "| `input:0` | `match` | `0` |",
        "| `output:0` | `diverged` | `0.001725` | `4.768e-07` | `1.49e-06` | `0.0006392` | `[1, 2, 4]` |",
        "| `output:0` | `float32` | **fails** | **fails** | `0.001428` | `0.00424` | `46.88 %` | `0 of 0` |",
        "limits of `float32`: `rtol 0.0009766, atol 1.526e-05, limit 0.01, t 0.0001221, s 6.104e-05, e 9.313e-10`",
        "- target: `…/target · msprobe · pytorch · L1 tensor · 54 operators · 151 tensors`",
        "| `rel_l2` | `4.768e-07` | `float32` |  | `8 unit round-offs of the working precision` |",
        f"- npucmp `{__version__}`, `compare`",
        "python case/run.py",
    ):
        assert words in text, words


def test_further_suspects_stand_last(report_of_two):
    first, second = (page(Bundle(report_of_two).ticket(place)) for place in (1, 2))
    for text, cause, other in ((first, "BORN", "WORSENED"), (second, "WORSENED", "BORN")):
        assert text.startswith(f"# `{LINEAR}`: {cause}\n")
        heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert heads[1:] == ["Where", "Figures", "Compared runs and rules", "Versions and environment",
                             "How to reproduce", "Further suspects"]  # fmt: skip
        others = text.partition("\n## Further suspects\n")[2]
        assert re.search(rf"^- {other} `{re.escape(LINEAR)} output:0`( \(step \d\))?: ", others, re.MULTILINE)


def test_the_figures_are_those_of_a_plain_reading(tmp_path, monkeypatch):
    """What the page says of MERE and MARE, by numpy from the files of the dumps."""
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))
    dumps = [SAMPLES / "npy_batch_norm" / side for side in ("target", "golden")]
    CliRunner().invoke(npucmp, ["compare", *map(str, dumps), "-q", "-o", str(tmp_path)])
    files = [next(dump.glob("resnet_block_1_bn2_FusedBatchNormV3.0.*.npy")) for dump in dumps]
    target, golden = (np.load(file).astype(np.float64) for file in files)
    relative = np.abs(target - golden) / (np.abs(golden) + 1e-7)
    assert f"`{relative.mean():.4g}` | `{relative.max():.4g}`" in page(Bundle(tmp_path).ticket())


def test_of_statistics_no_figures_are_missed(tmp_path, monkeypatch):
    """There is nothing to be read again, however large the tensors were."""
    monkeypatch.setattr("npucmp.workflows.tensor_details.ELEMENTS", 1)
    for side, factor in (("target", 2.0), ("golden", 1.0)):
        x = np.linspace(-3, 5, 1000, dtype=np.float32)
        write_run(tmp_path / side, {"Torch.exp.0.forward": {"in": [x], "out": [np.exp(x) * np.float32(factor)]}})
        with_statistics(tmp_path / side, alone=True)
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert found.accused and not any("vendor" in note for note in found.notes)


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


def test_what_was_looked_at_is_not_read_again(monkeypatch):
    """And its figures are the same as of values that are; those of outputs without a look are read."""
    read = []

    def again(pair, context):
        read.append(pair.slot)
        return vendor_of(pair, context)

    monkeypatch.setattr("npucmp.workflows.tensor_details.vendor_of", again)
    dumps = [SAMPLES / "npy_batch_norm" / side for side in ("target", "golden")]
    found = compare(*dumps, jobs=1)
    looked = {(look.place, look.pair.slot): look.vendor for look in found.looks if look.vendor is not None}
    told = {(one.place, figures.slot): figures for one in found.accused for figures in one.vendor}
    assert looked and looked == {key: told[key] for key in looked} and len(read) == len(told) - len(looked)
    monkeypatch.setattr("npucmp.workflows.compare.with_looks", lambda report, *_, **__: report)
    read.clear()
    assert compare(*dumps, jobs=1).accused == found.accused and len(read) == len(told)


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


def test_the_archive(report, tmp_path):
    got = CliRunner().invoke(npucmp, ["ticket", str(report), "-o", str(tmp_path / "t.zip")])
    assert got.exit_code == 0 and got.stdout.startswith(f"BORN  {SOFTMAX}  output:0\n{tmp_path}/t.zip  with 8 files: ")
    with zipfile.ZipFile(tmp_path / "t.zip") as archive:
        names = archive.namelist()
        assert names == [
            "ticket.md", "report.html", "roots.csv", "summary.json", "tensors.csv", "worst.csv",
            "case/call.json", "case/input_0.npy", "case/run.py",
        ]  # fmt: skip
        for name in names:
            data = archive.read(name)
            assert str(report.parent).encode() not in data and b"/home/user" not in data, name
            if name.startswith("case/"):
                assert data == (report / name).read_bytes()
        assert json.loads(archive.read("summary.json"))["target"]["path"] == "…/target"
        assert archive.read("tensors.csv") == (report / "tensors.csv").read_bytes()  # which has no paths
        shown, whole = archive.read("report.html").decode(), (report / "report.html").read_text()
        assert re.findall("<script.*?>", shown) == re.findall("<script.*?>", whole)
        data = [json.loads(re.search('id="data">(.*?)</script>', text)[1]) for text in (shown, whole)]
        assert data[0].keys() == data[1].keys() and data[0] != data[1]


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


def test_names_of_dumps_are_nothing_but_names(tmp_path, monkeypatch):
    """Markup, links, names of people, control characters, and the end of the code span that they stand in."""
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))
    write_reports(named(HOSTILE, "other", because=HOSTILE, stack=HOSTILE), tmp_path)
    text = page(Bundle(tmp_path).ticket())
    assert "\x1b" not in text and "\u202e" not in text
    outside = re.sub(r"^(`{3,})text$.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)  # without blocks and spans
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    for word in ("<script", "[x]", "@all", "![i]", "http"):
        assert word not in outside
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and all(len(re.findall(r"(?<!\\)\|", line)) in (4, 6, 8, 9, 10, 11) for line in rows)


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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/me/net/model.py:67", "…/model.py:67"),
        ("File C:\\Users\\me\\net.py, line 3", "File …/net.py, line 3"),
        ("~/dumps/npu and /data", "…/npu and …/data"),
        ("'/home/我/网络.py'", "'…/网络.py'"),
        ('{"path": "/tmp/a/b", "n": "x\\n y"}', '{"path": "…/b", "n": "x\\n y"}'),
        ("a/b, 1/2, ‖x‖/‖y‖, |d|/(|y|+1e-7), n / m, sample/dump.json, …/x", None),
        ("http://example.com/a", None),
        ("--also target=/data/x/y", "--also target=…/y"),
    ],
)
def test_folders_of_a_machine_are_left_out(text, left):
    assert strip_folders(text) == (text if left is None else left)


@pytest.mark.parametrize(
    ("text", "span"),
    [("a", "`a`"), ("`", "`` ` ``"), ("a``b", "```a``b```"), ("", "`  `"), (" a", "`  a `"), ("a\nb", "`a\\x0ab`")],
)
def test_a_code_span_ends_where_it_should(text, span):
    assert code(text) == span


def test_a_block_ends_where_it_should():
    assert block(["a", "````", "\x1bb"]) == "`````text\na\n````\n\\x1bb\n`````"
