"""Installed packages that add a format, a metric, a report and a rule of check: tests/data/example_extension."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp as group
from npucmp.dump import installed_formats
from npucmp.dump.readers.text import load_toml
from npucmp.errors import UsageError
from npucmp.measure import metrics
from tests.health.calls import linear, normal, write

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "tests" / "data" / "example_extension"
SAMPLE = ROOT / "sample_dumps" / "msprobe_softmax"
COMPARE = "compare", SAMPLE / "target", SAMPLE / "golden"
BROKEN = """
from npucmp.measure.metrics import Metric

class Format:
    NAME = "{name}"
    def sniff(path, context): return False
    def open_runs(path, context): return {{}}["runs"]

def fails(*given): raise ZeroDivisionError("of the example")

FAILING = Metric("{name}", fails)
CLASH = Metric("verdict", fails)
WORDS = Metric("{name}", lambda m: "much")
NOTHING = Metric("{name}", lambda m: float("nan"), "more")
"""


def install(folder: Path, module: str, groups: dict[str, dict[str, str]], code: str = "") -> Path:
    """Put a module and its metadata into a folder, as pip does."""
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = (f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in own.items()) for group, own in groups.items())
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (folder / f"{module}.py").write_text(code or (EXAMPLE / f"{module}.py").read_text(encoding="utf-8"))
    return folder


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The folder that the example package is installed into."""
    path = EXAMPLE / "pyproject.toml"
    groups = load_toml(path, path.read_text(encoding="utf-8"))["project"]["entry-points"]
    return install(tmp_path_factory.mktemp("site"), "npucmp_example", groups)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Two dumps in the format of the example; the output of the second of three operators differs by a few elements."""
    folder = tmp_path_factory.mktemp("dumps")
    random = np.random.default_rng(7)
    values = [random.normal(size=64).astype(np.float32) for _ in range(4)]
    for side in ("target", "golden"):
        (folder / side).mkdir()
        lines = []
        for at in range(3):
            read, made = values[at], values[at + 1].copy()
            if side == "target" and at == 1:
                made[:8] += 0.5
            for slot, array in (("input:0", read), ("output:0", made)):
                with open(folder / side / f"{at}{slot[0]}.data", "wb") as file:
                    np.save(file, array)
                lines.append(f"op{at} {slot} {at}{slot[0]}.data")
        (folder / side / "index.txt").write_text("\n".join(lines))
    return folder / "target", folder / "golden"


def run(*words, site=None, cwd=None):
    path = os.pathsep.join(str(one) for one in (site, ROOT) if one)
    return subprocess.run(
        [sys.executable, "-m", "npucmp", *map(str, words)], capture_output=True, encoding="utf-8", timeout=120, cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


@pytest.fixture
def invoke(monkeypatch):
    """Run a command in this process, with folders that packages are installed in."""

    def invoked(*words, sites):
        for site in sites:
            monkeypatch.syspath_prepend(str(site))
        for name in ("broken", "other"):
            sys.modules.pop(name, None)
        for cached in (metrics._extensions, installed_formats.format_extensions):
            cached.cache_clear()
        return CliRunner().invoke(group, [*map(str, words)])

    yield invoked
    for cached in (metrics._extensions, installed_formats.format_extensions):
        cached.cache_clear()


def test_an_installed_format_reads_its_dumps(example, dumps):
    for words in ((), ("--format", "indexed")):
        got = run("compare", *dumps, "--json", *words, site=example)
        found = json.loads(got.stdout)
        assert (got.returncode, got.stderr) == (1, "") and found["target"]["format"].startswith("indexed")
        assert [(one["op"], one["cause"]) for one in found["roots"]] == [("op1", "BORN")]
    assert "no dump is recognised here" in run("compare", *dumps).stderr


def test_a_built_in_format_comes_first(example):
    assert "msprobe" in run("show", SAMPLE / "golden", site=example).stdout.splitlines()[0]


def test_installed_formats_are_listed(example):
    lines = run("formats", site=example).stdout.splitlines()
    assert lines[-1].endswith(", indexed") and any(line.split()[:1] == ["indexed"] for line in lines)
    assert "indexed" in json.loads(run("formats", "--json", site=example).stdout)["formats"]


def test_an_installed_metric_is_a_column_and_a_tolerance(example, dumps, tmp_path, invoke):
    expected = 8 * 0.5**2 / 64
    got = invoke("compare", *dumps, "-o", tmp_path / "r", "--metrics", "snr,mean_square", sites=[example])
    assert got.exit_code == 1, got.output
    rows = list(csv.DictReader((tmp_path / "r" / "tensors.csv").open(encoding="utf-8")))
    assert [*rows[0]][-2:] == ["snr", "mean_square"]
    values = {(row["op"], row["slot"]): float(row["mean_square"]) for row in rows}
    assert values.pop(("op1", "output:0")) == pytest.approx(expected, rel=1e-6) and set(values.values()) == {0.0}
    for limit, status in ((expected * 0.99, 1), (expected * 1.01, 0)):
        (tmp_path / "limits.csv").write_text(f"metric,limit\nmean_square,{limit}\n")
        got = invoke("compare", *dumps, "--tolerances", tmp_path / "limits.csv", "--json", sites=[example])
        found = json.loads(got.stdout)
        assert (got.exit_code, found["exit_status"]) == (status, status), got.output
        assert [one["value"] for one in found["roots"]] == [pytest.approx(expected, rel=1e-6)] * status


def test_a_report_with_an_installed_metric_is_read_without_the_package(example, dumps, tmp_path, invoke):
    invoke("compare", *dumps, "-o", tmp_path / "r", "--metrics", "mean_square", sites=[example])
    assert run("diff", tmp_path / "r", tmp_path / "r").returncode == 0


def test_an_installed_report_is_printed_or_written(example, dumps, tmp_path, invoke):
    got = invoke("compare", *dumps, "--report-format", f"suspects,suspects={tmp_path / 's.txt'}", sites=[example])
    assert got.stdout == "1 BORN 'op1'\n" == (tmp_path / "s.txt").read_text()


def test_an_installed_rule_of_check_runs(example, tmp_path):
    x = normal(8, 16)
    dump = write(tmp_path / "dump", [[linear(x, normal(8, 4), normal(4, 16, at=5))]])
    got = run("check", dump, "--only", "example.*", site=example)
    assert got.stderr == "" and "example.centre" in got.stdout and "deviations from 0" in got.stdout


BAD = [  # group, object, options of compare, words of the message
    ("formats", "none:X", "--format bad", "ModuleNotFoundError: No module named 'none'"),
    ("formats", "broken:FAILING", "--format bad", "lacks sniff and open_runs; docs/extending.md has an example"),
    ("formats", "broken:Format", "--format bad", "KeyError: 'runs'"),
    ("metrics", "none:X", "--metrics bad -o r", "ModuleNotFoundError"),
    ("metrics", "broken:fails", "--metrics bad -o r", "is not a Metric"),
    ("metrics", "broken:CLASH", "--metrics bad -o r", "its name is 'verdict', not 'bad'"),
    ("metrics", "broken:FAILING", "--metrics bad -o r", "ZeroDivisionError: of the example"),
    ("metrics", "broken:WORDS", "--metrics bad -o r", "returned str, not a number"),
    ("reports", "none:X", "--report-format bad", "ModuleNotFoundError"),
    ("reports", "broken:BROKEN", "--report-format bad", "AttributeError"),
    ("reports", "broken:fails", "--report-format bad", "ZeroDivisionError: of the example"),
]


@pytest.mark.parametrize("kind, value, words, says", BAD)
def test_a_broken_extension_is_one_line_that_names_it(tmp_path, monkeypatch, invoke, kind, value, words, says):
    monkeypatch.chdir(tmp_path)
    site = install(tmp_path / "site", "broken", {f"npucmp.{kind}": {"bad": value}}, BROKEN.format(name="bad"))
    error = invoke(*COMPARE, *words.split(), sites=[site]).exception
    assert isinstance(error, UsageError) and f"entry point bad ({value}) of npucmp.{kind}: {says}" in str(error)
    assert "\n" not in str(error) and not (tmp_path / "r" / "summary.json").exists()


def test_a_broken_extension_does_not_matter_until_it_is_needed(tmp_path, example, dumps):
    groups = {f"npucmp.{kind}": {"a_bad_one": "none:X"} for kind in ("formats", "metrics", "reports")}
    both = os.pathsep.join([str(install(tmp_path / "site", "broken", groups, "pass")), str(example)])
    words = "--metrics", "mean_square", "-o", tmp_path / "r", "--report-format", "suspects"
    got = run("compare", *dumps, *words, site=both)
    assert (got.returncode, got.stdout, got.stderr) == (1, "1 BORN 'op1'\n", "")
    got = run("show", ROOT / "docs", site=both)
    assert got.returncode == 2 and "not tried: entry point a_bad_one (none:X) of npucmp.formats" in got.stderr
    assert got.stderr.count("\n") == 1


def test_a_tolerance_over_nan_decides_nothing(tmp_path, invoke):
    """As over a built-in metric that has no value: the tensors that are not bit-equal are unknown."""
    points = {"npucmp.metrics": {"nothing": "broken:NOTHING"}}
    site = install(tmp_path / "site", "broken", points, BROKEN.format(name="nothing"))
    (tmp_path / "limits.csv").write_text("metric,limit\nnothing,0.5\n")
    got = invoke(*COMPARE, "--tolerances", tmp_path / "limits.csv", "--json", sites=[site])
    found = json.loads(got.stdout)
    assert (got.exit_code, found["outcome"]) != (0, "AGREES") and found["verdicts"]["unknown"] > 0
    assert "diverged" not in found["verdicts"]


def test_a_name_that_is_taken_is_refused(tmp_path, invoke):
    points = {"npucmp.metrics": {"stack": "broken:FAILING", "twice": "broken:FAILING"}}
    site = install(tmp_path / "site", "broken", points, BROKEN.format(name="stack"))
    other = install(tmp_path / "other", "other", {"npucmp.metrics": {"twice": "other:FAILING"}}, "pass")
    for name, says in (("stack", "tensors.csv has another column"), ("twice", "two packages have this name")):
        error = invoke(*COMPARE, "--metrics", name, "-o", tmp_path / "r", sites=[site, other]).exception
        assert isinstance(error, UsageError) and says in str(error)


def test_the_page_shows_the_entry_points_of_the_example_package():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    assert (EXAMPLE / "pyproject.toml").read_text().partition("[project.entry")[2].partition("[tool")[0].strip() in page
