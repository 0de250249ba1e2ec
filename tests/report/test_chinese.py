"""Chinese on the screen, on the page, in a ticket and in the help; tables and JSON stay English."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from npucmp import compare
from npucmp.cli import npucmp as group
from npucmp.report import chinese, page_words
from npucmp.report.terminal import columns_of, wrap_text
from npucmp.report.translation import Catalogue, catalogue
from tests import catalogue as source
from tests.command import npucmp

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
PAIR = SAMPLES / "msprobe_softmax" / "target", SAMPLES / "msprobe_softmax" / "golden"
FIELD = re.compile(r"{(\w*)[^{}]*}")
COMMANDS = [
    ("compare", *PAIR),
    ("compare", *(SAMPLES / "msprobe_two_ranks" / side for side in ("target", "golden"))),
    ("compare", *(SAMPLES / "msprobe_tensor_parallel" / side for side in ("target", "golden"))),
    ("compare", *(SAMPLES / "weights_megatron" / side for side in ("target", "golden"))),
    ("compare", *(SAMPLES / "cann_fusion_pass" / side for side in ("target", "golden"))),
    ("compare", "--list-rules"),
    ("overflow", SAMPLES / "overflow_exp" / "target", "--golden", SAMPLES / "overflow_exp" / "golden"),
    ("check", SAMPLES / "msprobe_softmax" / "target", "-v"),
    ("check", "--list"),
    ("precheck", *PAIR),
    ("replay", SAMPLES / "msprobe_softmax" / "target"),
    ("rerun-diff", *(SAMPLES / "rerun_scatter" / f"run{number}" for number in (1, 2, 3))),
    ("parity", *(SAMPLES / "parity_temperature" / side for side in ("rollout", "trainer"))),
    ("show", SAMPLES / "msprobe_softmax" / "target", "*softmax*", "--values"),
    ("show", SAMPLES / "msprobe_softmax" / "target", "--fit", "check"),
    ("formats",),
    ("--help",),
]
SAMPLE_COMMANDS = [  # besides those above: samples with other sentences
    *(("compare", SAMPLES / name / "target", SAMPLES / name / "golden") for name in (
        "msprobe_steps", "msprobe_extra_operator", "msprobe_backward", "msprobe_tokens", "cross_framework_conv",
        "mindspore_layer_norm", "msprobe_uncaptured", "npy_batch_norm", "tfdbg_batch_norm", "hdf5_convolution",
    )),
    ("fusion-diff", *(SAMPLES / "cann_fusion_pass" / side for side in ("target", "golden"))),
    ("check", SAMPLES / "overflow_exp" / "target"),
    ("overflow", SAMPLES / "overflow_exp" / "target"),
]  # fmt: skip
TOKEN = re.compile(r"\d+(?:[.,]\d+)*|`[^`]*`|[A-Za-z_][\w-]*(?:\.[\w-]+)+")  # numbers, code, names with dots
NAMES = re.compile(  # options, paths, names, types, source lines, code in quotes, lists of names
    r"'[^']*'|\"[^\"]*\"|`[^`]*`|\S*[/_.*={}\[\]<>|-]\S*|\b(?:npucmp|msprobe|pip|python|make)\b.*|\S+, .*"
)
ENGLISH = re.compile(r"\b[A-Za-z]{2,}[,;:]? [A-Za-z]{2,}[,;:]? [A-Za-z]{2,}")
ALLOWED = re.compile(
    r"gelu|of \d+ steps and ranks|backward and forward|batch x sequence|autograd|BFLOAT|INTEGER RANGE|FLOAT RANGE|"
    r"37 reasons|guide|SageMaker|MindInsight|DeepDiagnosis|AUTOTRAINER|TheDeepChecker|TrainCheck|UMLAUT|brief of"
)


@pytest.fixture
def in_chinese(monkeypatch):
    monkeypatch.setenv("NPUCMP_LANG", "zh")


@pytest.fixture(scope="module")
def po():
    pytest.importorskip("babel")
    return {source.key(one): one for one in source.read() if one.id}


@pytest.mark.lint
def test_every_message_has_a_translation_and_none_is_left_over(po):
    """`python -m tests.catalogue` lists the messages, and --update writes the catalogue again."""
    messages = {source.key(one) for one in source.messages() if one.id}
    assert not {key for key in messages if key not in po or not po[key].string}
    assert not po.keys() - messages


def test_translations_have_the_values_of_their_messages(po):
    """A value behind a letter, as the s of a plural, may be left out."""
    for (context, message), one in po.items():
        if context is not None:
            continue
        wanted, found = {*FIELD.findall(message)}, {*FIELD.findall(one.string)}
        plurals = {name for name in wanted if re.search(rf"[A-Za-z]{{{name}}}", message)}
        assert found <= wanted and wanted - found <= plurals, message


@pytest.mark.lint
def test_the_compiled_catalogue_is_that_of_the_text(po):
    assert source.MO.read_bytes() == source.compiled(source.read())
    assert source.PO.read_bytes() == source.written(source.updated(source.read()))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "words", COMMANDS + SAMPLE_COMMANDS, ids=lambda words: " ".join(str(word)[-20:] for word in words)
)
def test_every_number_and_name_of_the_english_screen_is_kept(words):
    got = npucmp(*words)
    assert got.returncode in (0, 1, 2) and not got.stderr
    for line in got.stdout.splitlines():
        assert sorted(TOKEN.findall(chinese.line(line))) == sorted(TOKEN.findall(line)), line


@pytest.mark.few(3)
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(str(word)[-20:] for word in words))
def test_no_message_stays_english(words, in_chinese):
    """Three English words in a row, besides names, paths, options and commands, are a message without translation."""
    got = npucmp(*words)
    assert got.returncode in (0, 1) and not got.stderr
    bare = [NAMES.sub("X", line) for line in got.stdout.splitlines()]
    assert not [line for line in bare if ENGLISH.search(line) and not ALLOWED.search(line)]
    assert re.search("[\u4e00-\u9fff]", got.stdout)


@pytest.mark.lint
def test_the_help_is_chinese(in_chinese):
    for name in group.list_commands(click.Context(group)):
        lines = [NAMES.sub("X", line) for line in npucmp(name, "--help").stdout.splitlines()]
        assert lines[0].startswith("用法：") and not [
            line for line in lines if ENGLISH.search(line) and not ALLOWED.search(line)
        ]


def test_verdicts_notes_tables_and_json_are_english(tmp_path, monkeypatch):
    for language in ("zh", "en"):
        monkeypatch.setenv("NPUCMP_LANG", language)
        shown = npucmp("compare", *PAIR, "-o", tmp_path / language).stdout
        assert shown.splitlines()[-2].startswith("DIVERGED: ") and "\nnote: " in shown and " BORN " in shown
        shown = npucmp("compare", *PAIR, "--json").stdout
        assert json.loads(shown)["causes"]["BORN"] == 1 and shown.isascii()
    for name in ("roots.csv", "tensors.csv"):
        assert (tmp_path / "zh" / name).read_bytes() == (tmp_path / "en" / name).read_bytes()
    pages = [(tmp_path / language / "report.html").read_text() for language in ("zh", "en")]
    assert '<html lang="zh"' in pages[0] and "最先出现偏差的算子" in pages[0] and "逐位相同" in pages[0]
    assert '<html lang="en"' in pages[1] and "First diverging operator" in pages[1]
    monkeypatch.setenv("NPUCMP_LANG", "zh")
    assert npucmp("ticket", tmp_path / "en", "-o", tmp_path / "ticket.md").returncode == 0
    ticket = (tmp_path / "ticket.md").read_text()
    assert (
        "## 如何复现" in ticket and "- `输入一致（逐位相同）`" in ticket and "`Functional.softmax.1.forward`" in ticket
    )


def test_a_result_in_python_follows_the_variable(in_chinese):
    result = compare(*PAIR)
    assert "最先出现偏差的算子" in str(result) and "输入一致" in result._repr_html_()
    assert result.roots[0].because.startswith("inputs agree")


LANGUAGES = [  # environment, words before the command, whether Chinese is shown
    ({"LANG": "zh_CN.UTF-8"}, (), True),
    ({"LC_ALL": "zh_TW.UTF-8"}, (), True),
    ({"LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, (), True),
    ({"LANGUAGE": "zh:en", "LANG": "de_DE.UTF-8"}, (), True),
    ({"LANG": "de_DE.UTF-8"}, (), False),
    ({}, (), False),
    ({"LANG": "zh_CN.UTF-8", "NPUCMP_LANG": "en"}, (), False),
    ({"LANG": "zh_CN.UTF-8"}, ("--lang", "en"), False),
    ({"NPUCMP_LANG": "en"}, ("--lang=zh",), True),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("environ, option, shown", LANGUAGES)
def test_the_language_is_chosen(environ, option, shown, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE", "NPUCMP_LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert ("显示 dump 的内容" in npucmp("show", "--help", *option).stdout) is shown


def test_a_terminal_without_chinese_characters_is_spoken_to_in_english():
    environ = {**os.environ, "NPUCMP_LANG": "zh", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "npucmp", "--help"]
    got = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert "Show this message and exit." in got.stdout


def test_another_language_is_refused():
    got = npucmp("show", PAIR[0], "--lang", "fr")
    assert got.returncode == 2 and got.stderr == "npucmp: --lang fr: the languages are en and zh\n"


def test_errors_are_chinese(in_chinese):
    assert npucmp("show", "nowhere").stderr.startswith("npucmp: nowhere: 没有此文件或目录")
    assert re.search("没有选项.*--nix", npucmp("show", PAIR[0], "--nix").stderr)
    assert "没有命令" in npucmp("sho").stderr


def test_columns_stay_in_their_places(in_chinese):
    """A Chinese character takes two columns of a terminal."""
    lines = [
        line for line in npucmp("formats").stdout.splitlines() if line.startswith(("  " * 7 + " s", " " * 15 + "p"))
    ]
    starts = {columns_of(line[: re.match(r" +\S+(?: \S+)* {2,}", line).end()]) for line in lines}
    assert len(lines) > 20 and len(starts) == 1
    width = {columns_of(line) for line in npucmp("compare", "--help").stdout.splitlines()}
    assert max(width) <= 80


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [57, 80, 100])
def test_lines_break_between_chinese_characters(in_chinese, columns):
    shown = npucmp("compare", *PAIR).stdout
    wrapped = wrap_text(shown, columns, is_chinese=True)
    assert "".join(wrapped.split()) == "".join(shown.split())
    wide = [line for line in wrapped.splitlines() if columns_of(line) > columns]
    assert not [line for line in wide if len(line.split()) > 1 and not re.search(r"[\w./]{30}|=", line)]
    assert not [line for line in wrapped.splitlines() if re.match(" *[，。：；）]", line)]


def test_names_of_a_dump_stay(in_chinese, tmp_path):
    """Even names that look like messages: paths, operators and source lines."""
    folder = tmp_path / "机器v2 inputs agree"
    shutil.copytree(PAIR[0], folder)
    (file,) = folder.rglob("dump.json")
    name = "Functional.inputs agree.1.forward"
    file.write_text(file.read_text().replace("Functional.softmax.1.forward", name))
    names = {"Functional.softmax.1.forward": name}
    (tmp_path / "map.yaml").write_text(json.dumps({new: old for old, new in names.items()}))
    got = npucmp("compare", folder, PAIR[1], "--mapping", tmp_path / "map.yaml", "-o", tmp_path / "report")
    assert f"目标    {folder}  msprobe" in got.stdout and f" {name} output:0" in got.stdout
    assert name in (tmp_path / "report" / "report.html").read_text()
    assert npucmp("show", tmp_path / "no tensor agrees").stderr.startswith(f"npucmp: {tmp_path}/no tensor agrees: 没有")


def test_a_text_is_read_as_the_message_with_the_most_letters():
    found = Catalogue({
        "{0} agree": "{0} 一致", "{0} differ": "{0} 不同", "count\x04tensor": "{0} 个 tensor", "all {0} differ, {why}":
        "全部 {0} 不同，{why}", "no data": "没有数据", " and {0} more": " 等另外 {0} 个", "by {0}": "由 {0}",
    })  # fmt: skip
    assert found.text("3 tensors agree") == "3 个 tensor 一致"
    assert found.text("3 tensors agree; 1 tensor differ") == "3 个 tensor 一致；1 个 tensor 不同"
    assert found.text("all 3 tensors differ, no data") == "全部 3 个 tensor 不同，没有数据"
    assert found.text("a, b and 2 more") == "a, b 等另外 2 个"
    assert found.text("x.y.z by hand and foot") == "x.y.z by hand and foot"


def test_scripts_keep_their_code():
    """Only strings with words change: no class, no key, no selector, no comment, no regular expression."""
    for file in sorted((source.ROOT / "report" / "page").glob("*.js")):
        text = file.read_text()
        assert page_words.translate_script(text, str) == text
        changed = chinese.page_script(text)
        names = re.compile(r"(?:getElementById|querySelector(?:All)?)\(([^)]*)\)|class: (\"[^\"]*\")")
        assert names.findall(changed) == names.findall(text)
    assert catalogue().word("no error") == "无误差"
