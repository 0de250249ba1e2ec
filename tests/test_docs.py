"""The documentation is run: commands and code as they stand there, and the names that it has to tell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import click
import pytest

import npucmp
from npucmp.check.rules import RULES
from npucmp.cli import npucmp as group
from npucmp.dump.formats import FORMATS, module_of
from npucmp.dump.producers import PRODUCERS, SPELLINGS
from npucmp.dump.producers import told as told_of
from npucmp.measure.metrics import METRICS
from npucmp.model import STATUSES, Cause, Held, Judged, Verdict
from npucmp.precheck.order import NAMES
from npucmp.report import answer_of, between, check, diff, fusion_diff, matrix, overflow, precheck, replay, rerun_diff
from npucmp.report.json import summary
from npucmp.report.tables import ROOT_COLUMNS, TENSOR_COLUMNS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [page for page in (README, *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:.* && )?(?:\.venv/bin/)?npucmp (?P<words>.*)$")
SHELL = re.compile(r"\s(?:\|\|?|&&|>|2>|;|#)\s.*")  # what a shell would do with the rest of the line
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SECONDS = re.compile(r"\d+\.\d s\b.*")  # and what follows from it, the rate
PATHS = "target golden dump on off mapping tolerances noise before after report baseline".split()


class Line(NamedTuple):
    """A command of a page, as words; `shown` is the output that the page prints under it."""

    page: str
    words: tuple[str, ...]
    shown: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def fences(page: Path) -> "list[re.Match[str]]":
    return list(FENCE.finditer(page.read_text(encoding="utf-8"))) if page in PAGES else []


def lines() -> Iterator[Line]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in fences(page):
            if fence[1] not in ("console", "sh"):
                continue
            commands = [found for line in fence[2].replace("\\\n", " ").splitlines() if (found := COMMAND.match(line))]
            below = FENCE.match(text, fence.end() + 1)
            for found in commands:
                words = tuple(shlex.split(SHELL.sub("", f"{found['words']} ")))
                only = len(commands) == 1 and below is not None and below[1] == "text"
                yield Line(page.name, words, below[2] if only and below else None)


LINES = list(lines())


def parsed(words: "tuple[str, ...]") -> "Optional[dict[str, object]]":
    """The parameters of a command as click understands them; None for the group's own options."""
    if words[0].startswith("-"):
        return None
    context = click.Context(group)
    command = group.get_command(context, words[0])
    assert command is not None, f"there is no command {words[0]}"
    if "--help" in words:
        return None
    return command.make_context(words[0], list(words[1:]), parent=context).params


def runnable(line: Line) -> bool:
    given = parsed(line.words) or {}
    several = [*given.get("dumps", ()), *given.get("folders", ())]
    paths = [str(given[name]) for name in PATHS if given.get(name)] + [*map(str, several)]
    return all((ROOT / path).exists() for path in paths)


@pytest.fixture
def root(tmp_path):
    """A stand-in of the repository's root, in which `-o report` leaves nothing behind."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def run(command: "list[str]", where: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **more}
    return subprocess.run(
        [sys.executable, *command], cwd=where, env=surroundings, capture_output=True, encoding="utf-8", timeout=600
    )


@pytest.mark.parametrize("line", LINES, ids=str)
def test_commands_are_well_formed(line):
    try:
        parsed(line.words)
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


@pytest.mark.parametrize("line", [line for line in LINES if runnable(line)], ids=str)
def test_commands_run(line, root):
    if line.words[0] in ("replay", "extract"):
        pytest.importorskip("torch")
    got = run(["-m", "npucmp", *line.words], root)
    assert got.returncode in (0, 1), got.stderr
    if line.shown is not None:
        assert SECONDS.sub("", got.stdout) == SECONDS.sub("", line.shown)


def test_some_command_is_run_and_its_output_shown():
    assert [line for line in LINES if runnable(line) and line.shown and line.words[0] == "compare"]


@pytest.mark.parametrize("code", [fence[2] for fence in fences(README) if fence[1] == "python"])
def test_code_of_the_readme_runs(code, root):
    got = run(["-c", code], root)
    assert got.returncode == 0, got.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    assert not [link for link in links if not (page.parent / link.partition("#")[0]).exists()]


MODULE = re.compile(r"[\w/]+(?:\.py|/)")  # `npucmp/model/dump.py`, `measure/bits.py`, `values.py`, `align/`


def stands(words: str, rooms: "tuple[str, ...]" = ("",)) -> bool:
    """Whether a file or folder of that name stands in the repository, or in one of these folders of the package."""
    return (ROOT / words).exists() or any((ROOT / "npucmp" / room / words).exists() for room in rooms)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_of_the_package_stand_where_the_page_says(page):
    named = re.findall(r"`(npucmp/[\w/.{}]+)`", page.read_text(encoding="utf-8"))
    assert not [name for name in named if "{" not in name and not stands(name)]


def test_modules_of_the_architecture_exist():
    """Those of a line without a folder stand in one that the line names."""
    missing = []
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        named = [words for words in re.findall(r"`([^`]+)`", line) if MODULE.fullmatch(words)]
        rooms = ("", *(words if words.endswith("/") else words.rpartition("/")[0] for words in named))
        missing += [words for words in named if not stands(words, rooms)]
    assert not missing


def test_the_architecture_knows_all_rooms_and_modules():
    """All of the packages whose modules have rows; of the others, that they are named."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for room in ("model", "measure", "judge", "localise"):
        files = {file.name for file in (ROOT / "npucmp" / room).glob("*.py")} - {"__init__.py"}
        assert not {f"`{room}/{name}`" for name in files if f"`{room}/{name}`" not in page}


FILE = re.compile(r"# ([\w/]+\.py)\n")  # the first line of an example
EXAMPLES = [(fence[1], fence[2]) for fence in fences(ROOT / "docs" / "extending.md") if fence[1] in ("python", "diff")]


def put(kind: str, example: str, where: Path) -> str:
    """Writes the file of an example, or changes it as its lines of - and + say; the name of the file."""
    name = FILE.match(example)
    assert name, f"an example that names no file: {example[:60]}"
    file, body = where / name[1], example[name.end() :]
    if kind == "python":
        assert not file.exists(), f"{name[1]} is there already"
        file.write_text(body, encoding="utf-8")
        return name[1]
    lines = body.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    text = f"\n{file.read_text(encoding='utf-8')}"
    assert text.count(f"\n{old}") == 1 and len(lines) == old.count("\n") + new.count("\n"), f"{name[1]}: {old}"
    file.write_text(text.replace(f"\n{old}", f"\n{new}")[1:], encoding="utf-8")
    return name[1]


def test_examples_of_extending_work(tmp_path):
    """All at once, in a copy of the package: what is shown to be added does not get into the way of each other."""
    for folder in ("npucmp", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    for entry in ("docs", "pyproject.toml"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    names = [put(kind, example, tmp_path) for kind, example in EXAMPLES]
    added = [name for name in dict.fromkeys(names) if name.startswith("tests/") and "test_" in name]
    assert len(added) >= 8
    others = "tests/test_layers.py", "tests/dump/formats/test_formats.py", "tests/dump/test_context.py"
    kernel = "tests/measure/kernel/test_numpy_kernel.py"
    got = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *added, *others, kernel], tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert got.returncode == 0, got.stdout[-4000:] + got.stderr[-2000:]


def told(page: str) -> "set[str]":
    """The words that stand in code marks on a page, outside fences."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", text))


COLUMNS = [
    *TENSOR_COLUMNS,
    *ROOT_COLUMNS,
    *overflow.COLUMNS,
    *fusion_diff.COLUMNS,
    *rerun_diff.COLUMNS,
    *rerun_diff.NOISE_COLUMNS,
    *replay.COLUMNS,
    *between.EDGES,
    *between.GAPS,
    *diff.COLUMNS,
    *matrix.COLUMNS,
]


@pytest.mark.parametrize("name", dict.fromkeys(COLUMNS))
def test_every_column_is_told(name):
    assert name in told("metrics.md")


@pytest.mark.parametrize("name", [metric.name for metric in METRICS])
def test_every_metric_is_told(name):
    assert name in told("metrics.md")


@pytest.mark.parametrize("name", [verdict.value for verdict in Verdict])
def test_every_verdict_is_told(name):
    assert name in told("metrics.md")


@pytest.mark.parametrize("name", [cause.value for cause in Cause])
def test_every_cause_is_told(name):
    assert name in told("metrics.md")


@pytest.mark.parametrize("name", [*STATUSES, *(verdict.value for verdict in (*Judged, *Held))])
def test_every_status_and_verdict_of_a_replay_is_told(name):
    assert name in told("metrics.md")


@pytest.mark.parametrize("name", dict.fromkeys([*check.HEALTH, *check.CHECKS, *check.PARAMETERS]))
def test_every_column_of_a_check_is_told(name):
    assert name in told("health.md")


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_every_rule_of_a_check_is_told(name):
    assert name in told("health.md")


@pytest.mark.parametrize("name", dict.fromkeys([*precheck.COLUMNS, *precheck.INPUTS, *precheck.CURVES]))
def test_every_column_of_a_precheck_is_told(name):
    assert name in told("precheck.md")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_precheck_is_told(name):
    assert name in told("precheck.md")


def test_checklists_name_rules_and_rows_that_there_are():
    text = (ROOT / "docs" / "workflow.md").read_text(encoding="utf-8").partition("### What the checklists ask")[2]
    rules = {rule.name for rule in RULES}
    dotted = set(re.findall(r"`([a-z]+\.[a-z_0-9]+)`", text.partition("## 2. ")[0]))
    files = {"parameters.csv", "weight.update_ratio"}  # a table, and its column
    assert dotted - rules - {*NAMES} - files == set()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_told(name):
    assert name == module_of(name).NAME and name in told("formats.md")


def test_the_page_of_formats_has_the_producers_and_trees_of_the_command():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    found = re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    assert [(name, trees.split("\n")) for name, trees in found] == [(one.name, told_of(one)) for one in PRODUCERS]
    assert "\n".join(SPELLINGS) in page
    assert {tree.format for one in PRODUCERS for tree in one.trees} == {*FORMATS}


def test_every_key_of_the_summary_is_told():
    clean = ROOT / "sample_dumps" / "msprobe_clean"
    report = npucmp.compare(clean / "target", clean / "golden")
    keys = summary(answer_of(report)).keys() | summary(answer_of(replace(report, comparisons=report.comparisons * 2)))
    assert {"begins", "peers"} <= keys and not keys - told("metrics.md")
