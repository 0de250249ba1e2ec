"""The documentation is run: commands and code as they stand there, and the names that it has to tell."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import click
import pytest
from click.testing import CliRunner, Result

from npucmp.cli import npucmp as group
from npucmp.comparability.registry import NAMES
from npucmp.dump.catalogue import PRODUCERS
from npucmp.dump.formats import FORMATS, module_of
from npucmp.health.rules import RULES
from npucmp.model import Cause, Verdict
from tests.corpus.three_runs.kernels import Fault
from tests.corpus.three_runs.sample import write_runs

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [page for page in (README, *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:.* && )?(?:\.venv/bin/)?npucmp (?P<words>.*)$")
SHELL = re.compile(r"\s(?:\|\|?|&&|>|2>|;|#)\s.*")  # what a shell would do with the rest of the line
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SECONDS = re.compile(r"\d+\.\d s\b.*")  # and what follows from it, the rate


class Line(NamedTuple):
    """A command of a page, as words; `shown` is the output that the page prints under it."""

    page: str
    words: tuple[str, ...]
    shown: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def fences(page: Path) -> list[re.Match[str]]:
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
TRANSLATIONS = {  # translation → its original
    page.name: "README.md" if page.name == "README.zh.md" else f"docs/{page.name.replace('.zh', '')}"
    for page in PAGES
    if page.name.endswith(".zh.md")
}
ADDED = {"workflow.zh.md": "\n## 术语\n"}  # translation → the last section, which its original lacks


def options_of(command: str) -> set[str]:
    found = group.get_command(click.Context(group), command)
    return {
        word
        for parameter in found.params
        if isinstance(parameter, click.Option)
        for word in (*parameter.opts, *parameter.secondary_opts)
    }


def parsed(words: tuple[str, ...]) -> Optional[dict[str, object]]:
    """The parameters of a command as click understands them; None for the group's own options."""
    if words[0].startswith("-"):
        return None
    context = click.Context(group)
    command = group.get_command(context, words[0])
    assert command is not None, f"there is no command {words[0]}"
    if "--help" in words:
        return None
    return command.make_context(words[0], list(words[1:]), parent=context).params


S = "sample_dumps"
STAND_INS = {  # what pages call the reader's own dumps → the sample that a test takes for it
    "npu_dump": f"{S}/msprobe_softmax/target", "gpu_dump": f"{S}/msprobe_softmax/golden",
    "tp2_dump": f"{S}/msprobe_tensor_parallel/target", "one_card_dump": f"{S}/msprobe_tensor_parallel/golden",
    "megatron_weights": f"{S}/weights_megatron/target", "hf_weights": f"{S}/weights_megatron/golden",
    "weights_before": f"{S}/weights_megatron/target", "weights_after": f"{S}/weights_megatron/target",
    "packed_dump": f"{S}/msprobe_tokens/target", "padded_dump": f"{S}/msprobe_tokens/golden",
    "npu_values": f"{S}/msprobe_softmax/target", "gpu_values": f"{S}/msprobe_softmax/golden",
}  # fmt: skip
FILES = {
    "npu.yaml": "lr: 0.001\n", "gpu.yaml": "lr: 0.001\n",
    "npu.log": "step: 1 loss: 2.5\nstep: 2 loss: 2.25\n", "gpu.log": "step: 1 loss: 2.5\nstep: 2 loss: 2.25\n",
}  # fmt: skip
CANNOT = {"--scheduler": "asks for the scheduler of a cluster; tests/measure/test_dask_executor.py runs one"}
TORCH = ("replay", "extract")


@pytest.fixture
def root(tmp_path):
    """A stand-in of the repository's root, in which `-o report` leaves nothing behind."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def run(command: list[str], where: Path, **more: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **more}
    return subprocess.run(
        [sys.executable, *command], cwd=where, env=surroundings, capture_output=True, encoding="utf-8", timeout=600
    )


@pytest.mark.lint
@pytest.mark.parametrize("line", LINES, ids=str)
def test_commands_are_well_formed(line):
    try:
        parsed(line.words)
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


@pytest.fixture
def desk(root, monkeypatch):
    """The folder that a reader of the pages works in, with dumps of the names that the pages use."""
    (root / S).unlink()
    shutil.copytree(ROOT / S, root / S)  # what a command writes there stays here
    for name, sample in STAND_INS.items():
        (root / name).symlink_to(root / sample)
    for name, text in FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    write_runs(root / "three_runs", Fault("factor", 1.004))
    for name, side in (("npu_bf16", "target"), ("gpu_bf16", "golden"), ("gpu_fp32", "truth")):
        (root / name).symlink_to(root / "three_runs" / side)
    for side in ("npu", "gpu"):
        with zipfile.ZipFile(root / f"{side}_pack.zip", "w") as archive:
            archive.writestr("pip", "torch=2.1.0\n")
        shutil.copytree(ROOT / STAND_INS[f"{side}_values"], root / f"{side}_statistics")
        for file in (root / f"{side}_statistics").rglob("dump.json"):
            shutil.rmtree(file.parent / "dump_tensor_data")
            text = re.sub(r'"data_name": "[^"]*"', '"data_name": null', file.read_text())
            file.write_text(text.replace('"task": "tensor"', '"task": "statistics"'))
    monkeypatch.chdir(root)
    return root


def invoke(*words: str) -> Result:
    return CliRunner().invoke(group, list(words))


@pytest.mark.few(4)
@pytest.mark.parametrize("page", dict.fromkeys(line.page for line in LINES))
def test_commands_of_a_page_run(page, desk):
    """One after the other, as a reader does: what one writes the next ones read."""
    if page in TRANSLATIONS:
        return  # the same fences, held by test_translations_have_the_fences_of_their_originals
    has_torch = importlib.util.find_spec("torch") is not None
    for line in (line for line in LINES if line.page == page and not CANNOT.keys() & {*line.words}):
        if line.words[0] in TORCH and not has_torch:
            continue
        got = invoke(*line.words)
        ended = got.exception is None or isinstance(got.exception, SystemExit)
        assert ended and got.exit_code in (0, 1), f"{line}: {got.exception!r}"
        if line.shown is not None:
            shown = got.stdout.replace(str(desk), "…")
            assert SECONDS.sub("", shown) == SECONDS.sub("", line.shown), str(line)


WORKFLOW = "workflow.md"


@pytest.mark.few(1)
def test_commands_of_the_workflow_run_unchanged(root, monkeypatch):
    """Those behind a $, in the folder of the repository with the links that the page makes first."""
    (root / S).unlink()
    shutil.copytree(ROOT / S, root / S)
    monkeypatch.chdir(root)
    has_torch = importlib.util.find_spec("torch") is not None
    typed = [line[2:] for fence in fences(ROOT / "docs" / WORKFLOW) if fence[1] == "console"
             for line in fence[2].splitlines() if line.startswith("$ ")]  # fmt: skip
    links = [words for words in map(shlex.split, typed) if words[0] == "ln"]
    for _, option, place, name in links:
        assert option == "-s"
        Path(name).symlink_to(place)
    assert len(links) == 2 and len(typed) > 20
    for words in map(shlex.split, typed):
        if words[0] == "npucmp" and (has_torch or words[1] != "replay"):
            got = invoke(*words[1:])
            assert got.exit_code in (0, 1), f"{words}: {got.output}"


def test_some_command_is_run_and_its_output_shown():
    shown = {line.words[0] for line in LINES if line.shown}
    assert shown >= {"compare", "overflow", "fusion-diff", "rerun-diff", "replay", "extract"}


def outline(text: str) -> list[str]:
    """Levels of headings, items of lists, and rows of tables as their number of cells and their figures."""
    kept = []
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            row = re.sub(r"(\d+) million", lambda found: f"{found[1]}00 万", line)
            kept.append(f"{row.count('|')} {sorted(re.findall(r'[0-9]+(?:[.,^-]*[0-9])*', row))}")
        elif found := re.match(r"#+ |- |\d+\. ", line):
            kept.append(found[0])
    return kept


@pytest.mark.parametrize("translated, original", TRANSLATIONS.items())
def test_translations_have_the_outline_of_their_originals(translated, original):
    """The sections, lists, tables and figures of the English page, in their order."""
    text = (ROOT / "docs" / translated).read_text(encoding="utf-8")
    text = text.partition(ADDED[translated])[0] if translated in ADDED else text
    assert outline(text) == outline((ROOT / original).read_text(encoding="utf-8")) != []


@pytest.mark.parametrize("translated, original", TRANSLATIONS.items())
def test_translations_and_originals_link_to_each_other(translated, original):
    """Other links of a translation lead to the translations that exist."""
    first, _, text = (ROOT / "docs" / translated).read_text(encoding="utf-8").partition("\n")
    assert first == f"[English]({os.path.relpath(ROOT / original, ROOT / 'docs')})"
    english = (ROOT / original).read_text(encoding="utf-8")
    assert {*LINK.findall(english)} & {translated, f"docs/{translated}"}
    links = {link.partition("#")[0] for link in LINK.findall(FENCE.sub("", text))}
    assert not links & {name.replace(".zh", "") for name in TRANSLATIONS}


@pytest.mark.parametrize("translated, original", TRANSLATIONS.items())
def test_translations_have_the_fences_of_their_originals(translated, original):
    """Commands, code and outputs are those of the English page, so what is run and shown there is here."""
    kept = [fence[0] for fence in fences(ROOT / "docs" / translated)]
    assert kept == [fence[0] for fence in fences(ROOT / original)]


@pytest.mark.parametrize("translated, original", TRANSLATIONS.items())
def test_translations_name_what_their_originals_name(translated, original):
    """The words in code marks are real names; a page that gained or lost one has to be translated again."""
    one, other = (
        {*re.findall(r"`([^`\n]+)`", FENCE.sub("", (ROOT / page).read_text(encoding="utf-8")))}
        for page in (f"docs/{translated}", original)
    )
    assert one == other


def test_the_page_for_contributors_has_the_test_line_of_the_readme():
    line = re.findall(r"^\$ .*python -m pytest.*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert line and (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8").count(line[0]) == 1


OTHERS = {"--help", "--version", "--seeds", "--lang", "--update", "--fill"} | {
    "--dashboard-address",
    "--memory-limit",
    "--no-dashboard",
    "--name",
}  # of Dask
OTHERS |= {"--map", "--only", "--sheet"}  # of tests.mutants
OPTIONS = {option for command in group.list_commands(click.Context(group)) for option in options_of(command)}


@pytest.mark.lint
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_text_exist(page):
    marked = re.findall(r"`((?:npucmp )?[^`\n]*)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    named = {
        word for words in marked if re.match(r"npucmp |--", words) for word in re.findall(r"(?<!\S)--[a-z0-9-]+", words)
    }
    assert not named - OPTIONS - OTHERS


@pytest.mark.parametrize(
    "code", [fence[2] for page in (README, ROOT / "docs/library.md") for fence in fences(page) if fence[1] == "python"]
)
def test_code_of_readme_and_library_runs(code, root):
    got = run(["-c", code], root)
    assert got.returncode == 0, got.stderr


@pytest.mark.lint
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    assert not [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    anchored = [link for link in links if ".md#" in link or link.startswith("#")]
    assert not [link for link in anchored if link.partition("#")[2] not in anchors(page, link.partition("#")[0])]


def anchors(page: Path, file: str) -> set[str]:
    """The anchors of the headings of a page that another page links to, as GitHub makes them."""
    text = FENCE.sub("", (page.parent / file if file else page).read_text(encoding="utf-8"))
    words = (re.sub(r"[^\w\- ]", "", found).lower() for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {one.strip().replace(" ", "-") for one in words}


MODULE = re.compile(r"[\w/]+(?:\.py|/)")  # `npucmp/model/dump.py`, `measure/bitwise.py`, `values.py`, `align/`


def stands(words: str, rooms: tuple[str, ...] = ("",)) -> bool:
    """Whether a file or folder of that name stands in the repository, or in one of these folders of the package."""
    return (ROOT / words).exists() or any((ROOT / "npucmp" / room / words).exists() for room in rooms)


@pytest.mark.lint
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


def test_the_architecture_is_a_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 1300
    path = page.partition("to the verdict of a tensor")[2].partition("The seventh file")[0]
    assert len(re.findall(r"^\d\. `", path, re.MULTILINE)) == 6


def test_the_architecture_knows_all_packages():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {file.parent.name for file in (ROOT / "npucmp").glob("*/__init__.py")}
    assert not {name for name in packages if f"| `{name}/`" not in page}


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


@pytest.mark.lint
def test_examples_of_extending_work(tmp_path):
    """All at once, in a copy of the package: what is shown to be added does not get into the way of each other."""
    for folder in ("npucmp", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    for entry in ("docs", "pyproject.toml"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    names = [put(kind, example, tmp_path) for kind, example in EXAMPLES]
    added = [name for name in dict.fromkeys(names) if name.startswith("tests/") and "test_" in name]
    assert len(added) >= 3
    others = "tests/test_layers.py", "tests/dump/formats/test_formats.py", "tests/dump/test_context.py"
    kernel = (
        "tests/measure/kernel/test_numpy_kernel.py",
        "-k",
        "not compiled_kernel",
    )  # which lacks the field of a metric
    got = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *added, *others, *kernel], tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert got.returncode == 0, got.stdout[-4000:] + got.stderr[-2000:]


def told(page: str) -> set[str]:
    """The words that stand in code marks on a page, outside fences."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("name", [verdict.value for verdict in (*Verdict, *Cause)])
def test_every_verdict_and_cause_is_told(name):
    assert name in told("metrics.md")


def test_checklists_name_rules_and_rows_that_there_are():
    text = (ROOT / "docs" / "health.md").read_text(encoding="utf-8").partition("## Checklists, and the rules")[2]
    rules = {rule.name for rule in RULES}
    dotted = set(re.findall(r"`([a-z]+\.[a-z_0-9]+)`", text.partition("\n## ")[0]))
    files = {"parameters.csv", "weight.update_ratio"}  # a table, and its column
    assert dotted - rules - {*NAMES} - files == set()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_told(name):
    assert name == module_of(name).NAME and name in told("formats.md")


def test_the_page_of_formats_has_a_section_for_each_producer():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert [one.name for one in PRODUCERS if f"\n## {one.name}\n" not in page] == []
    assert {tree.format for one in PRODUCERS for tree in one.trees} == {*FORMATS}
