"""`npucmp show DUMP --fit QUESTION`, and what commands say that could not decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp as group
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.plans.request import QUESTIONS
from npucmp.plans.sufficiency import NEEDS, SETTINGS, missing
from tests.synthetic import chain, with_statistics, write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
READ, WRITTEN = (TensorRef(slot, "float32", (4,), file="x.pt") for slot in ("input:0", "output:0"))
FIGURES = Statistics(1.0, 0.0, 0.5, 1.0)


def run(*tensors: TensorRef, format: str = "msprobe", detail: str = "pytorch · mix tensor", **more: object) -> Run:
    """A module and an operator, forward and backward, of these tensors."""
    operators = [
        Operator(f"op.{phase}.{n}", "x", "x", phase, 2 * n, tensors, path="Module.a" * n, call=f"{n}")
        for n in range(2)
        for phase in ("forward", "backward")
    ]
    return Run("dump", format, tuple(operators), detail=detail, **more)  # type: ignore[arg-type]


def plain(tensor: TensorRef, **more: object) -> TensorRef:
    """Without values."""
    return tensor._replace(file="", **more)


def needs(question: str, one: Run, steps: int = 2) -> list[str]:
    return [found.need for found in missing(QUESTIONS[question], one, {*range(steps)})]


STATISTICS = run(*(plain(one, statistics=FIGURES) for one in (READ, WRITTEN)))
CHECKSUMS = run(*(plain(one, checksum="0a0b0c0d") for one in (READ, WRITTEN)))
FEW = run(*(plain(one, statistics=Statistics(1.0, 0.0)) for one in (READ, WRITTEN)))
LACKING = [
    ("compare", run(READ, WRITTEN), []),
    ("compare", STATISTICS, ["values"]),
    ("compare", CHECKSUMS, ["values"]),
    ("compare", FEW, ["values", "sums"]),
    ("check", FEW, ["values", "sums"]),
    ("overflow", FEW, []),
    (
        "compare",
        run(*(plain(one, statistics=Statistics(1.0, 0.0), dtype="float64") for one in (READ, WRITTEN))),
        ["values"],
    ),
    ("compare", run(WRITTEN), ["inputs"]),
    ("compare", run(READ), ["outputs"]),
    ("compare", run(READ, WRITTEN, ordered=False), ["order"]),
    ("compare", run(READ._replace(problem="gone"), WRITTEN._replace(problem="gone")), ["values"]),
    ("compare", Run("dump", "msprobe", ()), ["operators"]),
    ("compare", Run("dump", "msprobe", (), problem="cut short"), ["run"]),
    ("overflow", STATISTICS, []),
    ("overflow", CHECKSUMS, ["figures"]),
    ("rerun-diff", STATISTICS, ["bits"]),
    ("rerun-diff", CHECKSUMS, []),
    ("replay", STATISTICS, ["values"]),
    ("fusion-diff", run(READ, WRITTEN), ["compiled"]),
    ("fusion-diff", run(READ, WRITTEN, format="cann"), ["graph"]),
    ("fusion-diff", run(READ._replace(source="a:0"), WRITTEN, format="cann"), []),
    ("check", run(READ, WRITTEN), []),
    ("check", run(READ, WRITTEN, detail="pytorch · L1 tensor"), ["modules"]),
    ("precheck", run(READ, WRITTEN, format="mindspore"), ["data"]),
]


@pytest.mark.parametrize("question, one, wanted", LACKING)
def test_what_a_dump_lacks(question, one, wanted):
    assert needs(question, one) == wanted


def test_every_word_has_its_meaning():
    """Questions, needs and settings know each other; what every msprobe dump may lack has a setting."""
    asked = {word for one in QUESTIONS.values() for word in one.needs.split()}
    assert asked == {*NEEDS}
    for format, settings in SETTINGS.items():
        assert {word.split()[0] for word in settings} <= {*NEEDS, "operators"}, format
    assert {*SETTINGS["msprobe"]} >= asked - {"order", "data", "compiled", "graph"}


@pytest.mark.parametrize(
    "sample, question, status, words",
    [
        ("msprobe_softmax/target", "compare", 0, "suffices for compare"),
        ("cann_fusion_pass/target", "fusion-diff", 0, "suffices for fusion-diff"),
        (
            "msprobe_softmax/target",
            "check",
            1,
            "  level L1: parameters have no names, or operators no arguments; "
            'to record it: "level": "mix" in config.json, and debugger.start(model=model)\n',
        ),
    ],
)
def test_it_is_shown(sample, question, status, words):
    got = CliRunner().invoke(group, ["show", str(SAMPLES / sample), "--fit", question])
    assert got.exit_code == status and words in got.stdout


def test_unknown_questions_are_told():
    got = CliRunner().invoke(group, ["show", str(SAMPLES / "cann_clean/target"), "--fit", "overflw"])
    assert str(got.exception) == "no question 'overflw'; nearest: overflow"


def calls(*names):
    """A run of msprobe with these calls."""
    operators = tuple(
        Operator(f"Torch.{name}.{at}.forward", name, "", "forward", at, (READ, WRITTEN))
        for at, name in enumerate(names)
    )
    return Run("dump", "msprobe", operators, detail="pytorch · L1 tensor")


@pytest.mark.parametrize(
    "names, config, wanted",
    [
        (["matmul"] * 30, None, ["calls"]),
        (["matmul"] * 29 + ["cat"], None, []),
        (["matmul"] * 29, None, []),  # too few to tell
        (["matmul"] * 30, {"risk_level": "ALL"}, []),
        (["matmul"] * 2, {"risk_level": "CORE"}, ["calls"]),
        (["matmul"] * 30, {"tensor": {"list": ["matmul"]}}, ["whole"]),  # `list` selects whatever the risk is
        (["matmul"] * 30, {"tensor": {"scope": ["a", "b"]}, "risk_level": "ALL"}, ["whole"]),
        (["matmul"] * 30, {"dump_path": "of/another", "risk_level": "ALL"}, ["calls"]),
        (["matmul"] * 30, "no json", ["calls"]),
    ],
)
def test_calls_that_msprobe_leaves_out(names, config, wanted, tmp_path):
    """By config.json beside the dump, or by the absence of all views, casts and constants."""
    dump = tmp_path / "dump" / "step0" / "rank0" / "dump.json"
    dump.parent.mkdir(parents=True)
    if config is not None:
        told = {"task": "tensor", "dump_path": "npu/dump", **config} if isinstance(config, dict) else config
        (tmp_path / "config.json").write_text(json.dumps(told))
    one = calls(*names)
    assert needs("compare", Run(str(dump), one.format, one.operators, detail=one.detail)) == wanted


def without_sums(folder):
    """The dump as msprobe 26.2 writes it with "precision": "high"."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in (leaf for record in dump["data"].values() for key in record for leaf in record[key]):
            leaf.update(dict.fromkeys(("Mean", "Norm") if "Max" in leaf else ()))
        file.write_text(json.dumps(dump))
    return folder


def test_a_dump_without_mean_and_norm_says_so(tmp_path):
    """In one line of the fit and in one of the comparison, whatever its verdict is."""
    target, golden = (with_statistics(write_run(tmp_path / side, chain()), alone=True) for side in "tg")
    other = with_statistics(write_run(tmp_path / "other", chain({2: 1.2})), alone=True)
    assert "Mean" not in CliRunner().invoke(group, ["compare", str(target), str(golden)]).stdout
    for folder in (target, golden, other):
        without_sums(folder)
    got = CliRunner().invoke(group, ["show", str(target), "--fit", "compare"])
    (line,) = (line for line in got.stdout.splitlines() if "Mean" in line)
    assert got.exit_code == 1 and line == (
        "  only Max and Min of 18 of 18 float tensors, no Mean and Norm: a fault that preserves the extremes is not "
        'detected; to record it: "precision": "low" in config.json'
    )
    for one, status in ((target, 2), (other, 1)):
        got = CliRunner().invoke(group, ["compare", str(one), str(golden)])
        notes = [
            line for line in got.stdout.splitlines() if line.startswith("note: the statistics of target and golden")
        ]
        assert got.exit_code == status and len(notes) == 1 and "neither Mean nor Norm" in notes[0]
    whole = with_statistics(write_run(tmp_path / "whole", chain()), alone=True)
    got = CliRunner().invoke(group, ["compare", str(whole), str(golden)])
    assert "note: the statistics of golden have Max and Min" in got.stdout
