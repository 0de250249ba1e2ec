"""docs/schema/: the JSON Schemas are those of the types; the output of every command has their keys and no others."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from npucmp.report.summary_types import schemas
from tests.command import npucmp

FOLDER = Path("docs/schema")
S = Path("sample_dumps").resolve()
CALLS = {
    "compare": ["compare", S / "msprobe_softmax/target", S / "msprobe_softmax/golden"],
    "ranks": ["compare", S / "msprobe_two_ranks/target", S / "msprobe_two_ranks/golden"],
    "layout": ["compare", S / "msprobe_tensor_parallel/target", S / "msprobe_tensor_parallel/golden"],
    "weights": ["compare", S / "weights_megatron/target", S / "weights_megatron/golden"],
    "tokens": ["compare", S / "msprobe_tokens/target", S / "msprobe_tokens/golden"],
    "uncaptured": ["compare", S / "msprobe_uncaptured/target", S / "msprobe_uncaptured/golden"],
    "statistics": ["compare", S / "npy_batch_norm/target", S / "npy_batch_norm/golden", "--include", "*bn2*"],
    "check": ["check", S / "msprobe_softmax/target"],
    "overflow": ["overflow", S / "overflow_exp/target", "--golden", S / "overflow_exp/golden"],
    "replay": ["replay", S / "msprobe_softmax/target", "--golden", S / "msprobe_softmax/golden"],
    "precheck": ["precheck", S / "msprobe_softmax/target", S / "npy_batch_norm/golden"],
    "fusion-diff": ["fusion-diff", S / "cann_fusion_pass/target", S / "cann_fusion_pass/golden"],
    "rerun-diff": ["rerun-diff", S / "rerun_scatter/run1", S / "rerun_scatter/run2"],
    "parity": ["parity", S / "parity_temperature/rollout", S / "parity_temperature/trainer"],
}


def closed(schema):
    """The schema that also refuses keys which it does not name."""
    if isinstance(schema, dict):
        more = {"additionalProperties": False} if "properties" in schema else {}
        return {**more, **{key: closed(value) for key, value in schema.items()}}
    return [closed(one) for one in schema] if isinstance(schema, list) else schema


def faults(name, found):
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return [f"{one.json_path}: {one.message:.200}" for one in Draft202012Validator(closed(schema)).iter_errors(found)]


def printed(*words, status):
    got = npucmp(*words)
    assert got.returncode in status, got.stderr
    return json.loads(got.stdout)


def test_the_files_are_those_of_the_types():
    """`python -m npucmp.report.summary_types docs/schema` makes them again."""
    made = schemas()
    assert {file.name for file in FOLDER.iterdir()} == {*made}
    for name, data in made.items():
        assert (FOLDER / name).read_bytes() == data, name
        Draft202012Validator.check_schema(json.loads(data))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CALLS)
def test_what_a_command_prints(name):
    words = CALLS[name]
    found = printed(*words, "--json", status=(0, 1, 2))
    assert faults(str(words[0]), found) == []
    assert found["schema_version"] == 1 and found["command"] == words[0] and found["outcome"].isupper()


def test_reports_of_reports(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    two = S / "msprobe_two_ranks"
    for step, folder in (("0", first), ("1", second)):
        npucmp("compare", two / "target", two / "golden", "--step", step, "-o", folder)
    assert faults("diff", printed("diff", second, second, "--json", status=(0, 1, 2))) == []
    merged = printed("merge", first, second, "-o", tmp_path / "both", "--json", status=(1,))
    assert faults("merge", merged) == []
    assert merged["next"][0]["command"] == f"npucmp ticket {tmp_path / 'both'} -o ticket.md"
    known = [two / "target", two / "golden", "--step", "1", "--baseline", second]
    assert faults("compare", printed("compare", *known, "--json", "-o", tmp_path / "c", status=(0,))) == []


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("words", "type_", "hint"),
    [
        (["compare", "nothing", "nowhere"], "dump", "npucmp formats"),
        (["compare", "nothing"], "usage", "npucmp compare --help"),
        (["compare", "a", "b", "--rtoll", "1"], "usage", "--rtol"),
        (["compare", S / "msprobe_softmax/target", S / "msprobe_softmax/golden", "--step", "77"], "", ""),
        (["show", S / "msprobe_softmax/target", "--format", "hdf6"], "usage", "npucmp show --help"),
        (["plan", "compare", "--framework", "caffe", "-o", "x"], "usage", ""),
        (["ticket", "nothing", "-o", "t.md"], "", ""),
    ],
)
def test_an_error_is_one_object(words, type_, hint, tmp_path):
    got = npucmp(*words, "--json", cwd=tmp_path)
    found = json.loads(got.stdout)
    assert (got.returncode, found["exit_status"]) == (2, 2)
    assert faults("error", found) == []
    assert found["error"]["type"] == type_ or not type_
    assert hint in found["hint"] and found["error"]["message"] and got.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["compare", "ranks", "overflow", "replay", "rerun-diff"])
def test_the_next_commands_run(name, tmp_path):
    """Each command of `next` is a call that npucmp takes; a placeholder is in capitals."""
    for one in printed(*CALLS[name], "--json", status=(1,))["next"]:
        words = shlex.split(one["command"])[1:]
        got = npucmp(*words, cwd=tmp_path)
        assert got.returncode in (0, 1), (one["command"], got.stderr)


def test_the_next_command_of_a_parameter_shows_its_operator(tmp_path):
    dump = tmp_path / "dump"
    shutil.copytree(S / "msprobe_steps/target", dump)
    for file in dump.rglob("*weight*.npy"):
        np.save(file, np.full_like(np.load(file), np.nan))
    found = printed("check", dump, "--only", "weight.nonfinite", "--json", status=(1,))
    (shown,) = [one["command"] for one in found["next"] if " show " in one["command"]]
    assert npucmp(*shlex.split(shown)[1:], cwd=tmp_path).returncode == 0
