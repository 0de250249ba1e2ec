"""Settings files and variables of the environment: defaults of options, never from a dump."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.command import npucmp
from tests.report.test_schema import S

SOFTMAX = S / "msprobe_softmax/target", S / "msprobe_softmax/golden"


def compare(cwd, *words, status=(0, 1, 2)):
    got = npucmp("compare", *SOFTMAX, "--json", *words, cwd=cwd)
    assert got.returncode in status, got.stderr
    return json.loads(got.stdout)


def test_npucmp_toml_beside_the_work(tmp_path):
    (tmp_path / "npucmp.toml").write_text('jobs = 1\n[compare]\nrtol = 10.0\natol = 10\nexclude = ["*gelu*"]\n')
    found = compare(tmp_path)
    assert found["exit_status"] == 0 and found["settings"] == {"rtol": 10.0, "atol": 10.0, "exclude": ["*gelu*"]}
    assert found["sources"] == dict.fromkeys(("exclude", "rtol", "atol", "jobs"), "npucmp.toml")
    (rule,) = found["rules"]
    assert "--rtol of npucmp.toml" in rule["why"]
    shown = npucmp("compare", *SOFTMAX, cwd=tmp_path).stdout
    assert shown.startswith("settings ") and "rtol 10.0 (npucmp.toml)" in shown.splitlines()[0]
    assert compare(tmp_path, "--no-config")["exit_status"] == 1
    assert compare(tmp_path, "--rtol", "0", "--atol", "0")["exit_status"] == 1  # the command line decides
    got = npucmp("--no-config", "compare", *SOFTMAX, cwd=tmp_path)
    assert got.returncode == 1 and not got.stdout.startswith("settings")


def test_the_table_of_pyproject_toml_in_a_work_tree(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.npucmp.compare]\nrtol = 10\natol = 10\nprecheck = false\n")
    (tmp_path / "below").mkdir()
    found = compare(tmp_path / "below")
    assert found["exit_status"] == 0 and found["sources"]["rtol"] == os.path.join("..", "pyproject.toml")
    (tmp_path / ".git").rmdir()
    assert "sources" not in compare(tmp_path / "below")  # no file of a stranger's folder above


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [("RTOL", "10", "rtol"), ("SKIP_RULE", "coarser_type", "skip-rule"), ("INCLUDE", "*softmax*", "include")],
)
def test_variables_of_the_environment(name, value, key, tmp_path, monkeypatch):
    monkeypatch.setenv(f"NPUCMP_COMPARE_{name}", value)
    if name == "SKIP_RULE":
        from npucmp.localise.rules import RULES

        monkeypatch.setenv("NPUCMP_COMPARE_SKIP_RULE", RULES[0].name)
    found = compare(tmp_path)
    assert found["sources"] == {key: f"NPUCMP_COMPARE_{name}"} and key in found["settings"]


def test_json_and_no_precheck_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUCMP_COMPARE_JSON", "1")
    monkeypatch.setenv("NPUCMP_COMPARE_NO_PRECHECK", "1")
    assert json.loads(npucmp("compare", *SOFTMAX, cwd=tmp_path).stdout)["unlike"] == ""
    assert json.loads(npucmp("compare", "nothing", "nothing", cwd=tmp_path).stdout)["error"]["type"] == "dump"


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["", "step0"])
def test_no_settings_from_inside_a_dump(place, tmp_path):
    dump = tmp_path / "dump"
    shutil.copytree(SOFTMAX[0], dump)
    for folder in (dump, dump / "step0"):
        (folder / "npucmp.toml").write_text("[compare]\nrtol = 10\natol = 10\n")
    for words in ([dump, SOFTMAX[1]], [".", SOFTMAX[1]]):
        got = npucmp("compare", *words, "--json", cwd=dump / place)
        assert got.returncode == 1 and "sources" not in json.loads(got.stdout)
        assert "npucmp.toml: not read, because its folder is a dump" in got.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("[compare]\nrtool = 1\n", "compare.rtool is no option; nearest: rtol"),
        ("rtool = 1\n", "rtool is no option; nearest: rtol"),
        ("[compare\n", "not TOML"),
        ("[compare]\nrtol = 'x'\n", "'x' is not a valid float range. It comes from npucmp.toml."),
        ("[check]\nplugin = ['own.py']\n", "plugin may only be given on the command line"),
        ("[check]\nrules = 'own.toml'\n", "rules may only be given on the command line"),
    ],
)
def test_a_wrong_file_is_one_line(text, because, tmp_path):
    (tmp_path / "npucmp.toml").write_text(text)
    words = ["check", SOFTMAX[0]] if "check" in text else ["compare", *SOFTMAX]
    got = npucmp(*words, cwd=tmp_path)
    assert got.returncode == 2 and because in got.stderr and "Traceback" not in got.stderr
    assert npucmp(*words, "--help", cwd=tmp_path).returncode == 0
