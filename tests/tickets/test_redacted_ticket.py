"""npucmp ticket --redact: pseudonyms for private names, in the page and in every file of the archive."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from npucmp import compare, ticket, write_reports, write_ticket
from npucmp.errors import UsageError
from npucmp.model.pseudonyms import Pseudonyms
from tests.command import npucmp as run
from tests.synthetic import write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
PRIVATE = ("secretenc", "HushedAttention", "alicebox", "hushed_model", "forward_hidden", "self.hidden")
FRAME = "File /home/alice/vit/hushed_model.py, line 12, in forward_hidden, \n y = self.hidden(x)"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of a module whose output is wrong by 1 %, with a call stack."""
    folder = tmp_path_factory.mktemp("alicebox")
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    for side, factor in (("target", np.float32(1.01)), ("golden", np.float32(1))):
        write_run(folder / side, {
            "Module.secretenc.layers.0.HushedAttention.forward.0": {"in": [x], "out": [x * 2]},
            "Module.secretenc.layers.1.Linear.forward.0": {"in": [x * 2], "out": [x * factor], "param": {"weight": x}},
            "Functional.gelu.0.forward": {"in": [x * factor], "out": [x * factor * 3]},
        })  # fmt: skip
        stack = {"0": [["Module.secretenc.layers.1.Linear.forward.0"], [FRAME]]}
        (folder / side / "step0" / "proc1" / "stack.json").write_text(json.dumps(stack))
    write_reports(compare(folder / "target", folder / "golden"), folder / "report")
    return folder / "report"


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_on_the_command_line(report, tmp_path):
    got = run("ticket", report, "-o", tmp_path / "ticket.md", "--redact", "--names", tmp_path / "names.csv")
    assert got.returncode == 0 and "pseudonyms; originals in" in got.stdout
    text = (tmp_path / "ticket.md").read_text()
    assert not [word for word in PRIVATE if word in text]
    got = run("ticket", report, "-o", tmp_path / "ticket.md", "--names", tmp_path / "names.csv")
    assert got.returncode == 2 and "--names needs --redact" in got.stderr


def test_the_names_are_not_in_the_ticket(report, tmp_path):
    with pytest.raises(UsageError, match="the names need a file of their own"):
        write_ticket(ticket(report, redact=True), tmp_path / "t.zip", names=tmp_path / "t.zip")


def test_a_report_of_somebody_else(report, tmp_path):
    """A damaged file is left out."""
    shutil.copytree(report, tmp_path / "report")
    (tmp_path / "report" / "next_dump.json").write_text('{"secretenc"')
    assert "next_dump.json" not in write_ticket(ticket(tmp_path / "report", redact=True), tmp_path / "ticket.zip")


def test_a_case_of_the_ticket_is_redacted(tmp_path):
    """A case with values of the dump is refused, a redacted one is taken."""
    for side in ("target", "golden"):
        shutil.copytree(SAMPLES / "msprobe_softmax" / side, tmp_path / "alicebox" / side)
    dump, report = tmp_path / "alicebox" / "target", tmp_path / "report"
    write_reports(compare(dump, tmp_path / "alicebox" / "golden"), report)
    words = "extract", dump, "Functional.softmax.1.forward", "-o", report / "case"
    assert run(*words).returncode == 0
    with pytest.raises(
        UsageError, match="the case holds values of the dump; write it again with npucmp extract --redact"
    ):
        ticket(report, redact=True)
    values = {one.name: one.read_bytes() for one in (report / "case").glob("*.npy")}
    shutil.rmtree(report / "case")
    got = run(*words, "--redact")
    assert got.returncode == 0 and "redacted input:0: mantissas drawn again" in got.stdout
    write_ticket(ticket(report, redact=True), tmp_path / "ticket.zip")
    files = contents(tmp_path / "ticket.zip")
    assert {"case/call.json", "case/run.py", "case/input_0.npy", "case/actual_0.npy"} <= {*files}
    assert "worst.csv" not in files and "report.html" not in files
    for data in files.values():
        assert b"alicebox" not in data and b"make.py" not in data and b"torch.matmul(F" not in data
    for name, data in values.items():
        array = data[128:]  # behind the header of .npy
        runs = (array[at : at + 16] for at in range(0, len(array) - 16, 8))  # four numbers, some of 7 bits only
        assert not [run for run in runs if run in files[f"case/{name}"][128:]]


def test_names_of_any_form_are_found():
    """Names with blanks and signs, and names that begin others."""
    names = Pseudonyms()
    names.collect(["conv 1 (x)", "conv", "enc/l0/MatMul"], ["/home/bob/hush/target"])
    text = names.of_text("conv 1 (x) reads conv and enc/l0/MatMul of hush, /home/bob/hush/target")
    assert (
        not re.search(r"conv|enc|l0|bob|hush", text)
        and "reads module_2 and module_3/module_4/module_5 of path_" in text
    )
