"""Files beside the dumps: zips of config_check, text, configurations; what is hostile costs its row."""

from __future__ import annotations

import json
import struct
import zipfile

import pytest

from npucmp import precheck
from npucmp.comparability.config_check_zip import read_setup
from npucmp.comparability.config_file import options_of, read_config
from npucmp.errors import UsageError
from tests.comparability.craft import differing, status, words

PIP = "torch=2.1.0\nnumpy=1.26.0\ntransformers=4.40.0\n"
ENV = {"HCCL_DETERMINISTIC": "true", "ASCEND_HOME": "/opt", "PYTHONHASHSEED": "1"}
HYPER = {"lr": 1e-4, "batch_size": 8, "output_dir": "/a"}


def pack(path, pip=PIP, env=ENV, hyper=HYPER, calls=None, weight=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pip", pip)
        archive.writestr("env", json.dumps(env))
        archive.writestr("hyperparameters/hyperparameters_static.json", json.dumps(hyper))
        if weight is not None:
            figures = {"max": weight, "min": -1.0, "mean": 0.0, "norm": 3.0}
            archive.writestr("weights/step0/rank0/weight.json", json.dumps({"fc.weight": figures, "fc.bias": figures}))
            archive.writestr("dataset/step0/rank0/dataset.json", json.dumps({"args": {"0": figures}, "kwargs": {}}))
        if calls is not None:
            stack = ["File /x/train.py, line 3, in main, main()", "File /x/data.py, line 9, in draw, torch.rand(3)"]
            archive.writestr("random/rank0.json", json.dumps({"torch.rand": [{"count": calls, "stack": stack}]}))
    return str(path)


def checked(target, golden, **more):
    return precheck("-", "-", env=(target, golden), **more)


CASES = {  # name: (what the target's zip has, row, severity of the difference or status, words)
    "a repeat": ({}, "versions", "same", "3 libraries"),
    "another torch": ({"pip": PIP.replace("2.1.0", "2.6.0")}, "versions", "error", "torch 2.6.0 against 2.1.0"),
    "a local part": ({"pip": PIP.replace("2.1.0", "2.1.0+cpu")}, "versions", "close", "torch"),
    "not there": ({"pip": "torch=2.1.0\ntransformers=4.40.0\n"}, "versions", "warning", "only on one side: numpy"),
    "a library that no number depends on": ({"pip": f"{PIP}rich=1\n"}, "versions", "same", ""),
    "on the device alone": ({"pip": f"{PIP}torch_npu=2.1.0\n"}, "versions", "same", ""),
    "determinism": (
        {"env": {**ENV, "HCCL_DETERMINISTIC": "false"}},
        "environment",
        "error",
        "HCCL_DETERMINISTIC: false against true",
    ),
    "the GPU's name for it": (
        {"env": {"NCCL_DETERMINISTIC": "1", "PYTHONHASHSEED": "1"}},
        "environment",
        "same",
        "",
    ),
    "set on one side": (
        {"env": {"HCCL_DETERMINISTIC": "true"}},
        "environment",
        "warning",
        "PYTHONHASHSEED = 1 only in golden",
    ),
    "other variables": ({"env": {**ENV, "HOME": "/root"}}, "environment", "same", ""),
    "learning rate": ({"hyper": {**HYPER, "lr": 2e-4}}, "hyperparameters", "error", "lr: 0.0002 against 0.0001"),
    "spelled otherwise": ({"hyper": {**HYPER, "lr": "1e-04"}}, "hyperparameters", "same", ""),
    "by a synonym": (
        {"hyper": {"optim.learning-rate": 3e-4, "batch_size": 8}},
        "hyperparameters",
        "error",
        "optim.learning-rate (lr): 0.0003 against 0.0001",
    ),
    "a similar name": ({"hyper": {"lr": 1e-4, "batch_sizes": 9}}, "hyperparameters", "close", "please confirm"),
    "folders": ({"hyper": {**HYPER, "output_dir": "/b"}}, "hyperparameters", "same", ""),
    "not told": (
        {"hyper": {"lr": 1e-4}},
        "hyperparameters",
        "warning",
        "only in golden: batch_size = 8: defaults",
    ),
    "random calls": ({"calls": 4}, "random.calls", "note", "torch.rand in data.py draw: 4 against 2"),
}


@pytest.mark.parametrize("name", CASES)
def test_two_zips(tmp_path, name):
    changed, row, outcome, told = CASES[name]
    calls = {"calls": 2} if "calls" in changed else {}
    result = checked(pack(tmp_path / "t.zip", **changed), pack(tmp_path / "g.zip", **calls))
    found = differing(result)
    assert found.get(row, status(result, row)) == outcome and told in words(result, row)
    assert {*found} <= {row}
    assert result.exit_status == (1 if outcome == "error" else 0)


@pytest.mark.parametrize(("weight", "status_of"), [(1.0, "same"), (1.0 + 1e-7, "same"), (1.5, "DIFFERS")])
def test_weights_and_inputs_of_zips_without_dumps(tmp_path, weight, status_of):
    result = checked(pack(tmp_path / "t.zip", weight=weight), pack(tmp_path / "g.zip", weight=1.0))
    assert (status(result, "weights"), status(result, "input")) == (status_of, status_of)
    assert result.exit_status == (1 if status_of == "DIFFERS" else 0)


def test_texts(tmp_path):
    (tmp_path / "t.txt").write_text("torch==2.6.0\nnumpy==1.26.0\n")
    (tmp_path / "g.txt").write_text("torch==2.1.0\nnumpy==1.26.0\n")
    result = checked(str(tmp_path / "t.txt"), str(tmp_path / "g.txt"))
    assert differing(result) == {"versions": "error"}
    assert "output of `env`" in words(result, "environment")
    (tmp_path / "env").write_text("HCCL_ALGO=ring\nexport HOME=/root\n")
    assert read_setup(str(tmp_path / "env")).environment == {"HCCL_ALGO": "ring", "HOME": "/root"}


CONFIGS = {
    "a.yaml": "optim:\n  lr: 1.0e-4\n  betas: [0.9, 0.95]\nmodel: {layers: 4}\n",
    "a.json": '{"optim": {"lr": 0.0001, "betas": [0.9, 0.95]}, "model": {"layers": 4}}',
    "a.toml": "[optim]\nlr = 1e-4\nbetas = [0.9, 0.95]\n[model]\nlayers = 4\n",
}


def test_configurations_of_every_form_are_one(tmp_path):
    paths = []
    for name, text in CONFIGS.items():
        (tmp_path / name).write_text(text)
        paths.append(str(tmp_path / name))
    for path in paths:
        assert read_config(path).values == {"optim.lr": 1e-4, "optim.betas": [0.9, 0.95], "model.layers": 4}
    result = precheck("-", "-", config=(paths[0], paths[2]))
    assert differing(result) == {} and status(result, "hyperparameters") == "same"


def test_a_script():
    text = "#--old 1\nLR=1e-4\nARGS=\"--lr ${LR} --bf16 \\\n --seq-length 128\"\ntorchrun x.py $ARGS --name 'a b'\n"
    found = options_of(text)
    assert found["lr"] == 1e-4 and found["bf16"] is True and found["seq-length"] == 128 and "old" not in found


def test_settings_of_a_file(tmp_path):
    (tmp_path / "rules.toml").write_text(
        '[row."hyperparameters"]\nignore = ["lr"]\n[row."versions"]\nseverity = "hint"\n'
    )
    target = pack(tmp_path / "t.zip", PIP.replace("2.1.0", "2.6.0"), hyper={**HYPER, "lr": 5})
    result = checked(target, pack(tmp_path / "g.zip"), rules=tmp_path / "rules.toml")
    assert differing(result) == {"versions": "note"} and result.exit_status == 0


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("env", b" " * (40 << 20))


def long_list(path):
    pack(path)
    end = bytearray(path.read_bytes())
    at = end.rindex(b"PK\x05\x06")
    end[at + 12 : at + 16] = struct.pack("<I", 1 << 30)
    path.write_bytes(bytes(end))


def cut(path):
    pack(path)
    path.write_bytes(path.read_bytes()[:200])


HOSTILE = {
    "a bomb": bomb,
    "a list of members that is too long": long_list,
    "no zip behind the first bytes": lambda path: path.write_bytes(b"PK\x03\x04" + b"x" * 100),
    "cut": cut,
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "empty": lambda path: path.write_bytes(b""),
    "not there": lambda path: None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_its_rows(tmp_path, name):
    HOSTILE[name](tmp_path / "t.zip")
    result = checked(str(tmp_path / "t.zip"), pack(tmp_path / "g.zip"))
    assert {row.status.value for row in result.rows if row.row in ("versions", "environment")} == {"unknown"}
    assert result.exit_status == 2 and differing(result) == {}


def test_members_that_lead_out_are_not_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("../env", "{}")
        archive.writestr("hyperparameters/../../x.json", '{"lr": 1}')
    assert read_setup(str(tmp_path / "t.zip")).environment is None
    assert [*tmp_path.iterdir()] == [tmp_path / "t.zip"]


def test_a_name_that_no_row_has(tmp_path):
    with pytest.raises(UsageError, match="version"):
        checked(pack(tmp_path / "t.zip"), pack(tmp_path / "g.zip"), only="version")
