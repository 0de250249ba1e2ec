"""Calls of an optimizer: partners update the same parameter, whatever their call index and their place in a list."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import compare, precheck
from npucmp.cli import npucmp
from npucmp.model import Cause, Verdict
from npucmp.model.cause import sentences
from npucmp.model.precheck_result import Status
from tests.synthetic import with_statistics, write_run

SHAPES = {"a.weight": (8, 6), "a.bias": (6,), "b.weight": (8, 6), "norm.weight": (6,), "c.weight": (6, 6)}
EVERY = tuple(SHAPES)
DECAYED, OTHERS = ("a.weight", "b.weight", "c.weight"), ("a.bias", "norm.weight")
RATE = np.float32(0.1)
FOREACH = "Torch._foreach_neg.0.forward"


def dump(folder: Path, groups: tuple[tuple[str, ...], ...], wrong: str = "", foreach: bool = False) -> Path:
    """One step of SGD: weights and gradients of all modules, clipping, then the update of all that is in `groups`."""
    random = np.random.default_rng(5)
    values = {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    gradients = {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    x = random.normal(size=(4, 8)).astype(np.float32)
    operators = {}
    for module in dict.fromkeys(name.split(".")[0] for name in values):
        own = {name.split(".")[1]: value for name, value in values.items() if name.split(".")[0] == module}
        operators[f"Module.{module}.Linear.forward.0"] = {"in": [x], "param": own, "out": [x * 2]}
    for number, name in enumerate(name for name in values if name.endswith("weight")):
        operators[f"Functional.linear.{number}.backward"] = {"in": [x], "out": [x * 3, gradients[name]]}
    updated = [name for group in groups for name in group]
    for i, name in enumerate(updated):
        norm = np.float32(np.linalg.norm(gradients[name]))
        operators[f"Torch.vector_norm.{i}.forward"] = {"in": [gradients[name]], "out": [np.asarray(norm)]}
    if foreach:
        factor = [gradients[name] * (2 if name == wrong else 1) for name in updated]
        operators[FOREACH] = {
            "in": [[gradients[n] for n in updated]],
            "out": [-g for g in factor],
        }
    for i, name in enumerate(updated):
        after = values[name] - RATE * gradients[name] * (2 if name == wrong else 1)
        operators[f"Tensor.add_.{i}.forward"] = {"in": [values[name], gradients[name]], "out": [after]}
    write_run(folder, operators)
    frames = ["File /site/torch/optim/sgd.py, line 1, in step, \n update()"]
    stack = {name: frames for name in operators if not name.startswith("Module.")}
    next(folder.rglob("dump.json")).with_name("stack.json").write_text(json.dumps(stack))
    return folder


GROUPS = {
    "one more": (EVERY, EVERY[:1] + EVERY[2:]),
    "one fewer": (EVERY[1:], EVERY),
    "another group": (("a.weight", "a.bias", "b.weight", "c.weight"), ("norm.weight",)),
}


def sides(how: str) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    return (GROUPS[how], (DECAYED, OTHERS)) if how == "another group" else ((GROUPS[how][0],), (GROUPS[how][1],))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("how", GROUPS)
def test_calls_of_one_parameter_are_partners(tmp_path, how, statistics, foreach):
    here, there = sides(how)
    target, golden = (
        dump(tmp_path / name, groups, foreach=foreach) for name, groups in (("target", here), ("golden", there))
    )
    if statistics:
        with_statistics(target), with_statistics(golden)
    report = compare(target, golden)
    assert not report.roots
    both = [one for one in report.comparisons[0].findings if one.pair.target and one.pair.golden]
    assert {one.verdict for one in both} == {Verdict.MATCH}
    alone = {*sum(here, ())} ^ {*sum(there, ())}
    notes = " ".join(report.comparisons[0].notes)
    assert (" has calls of the optimizer for" in notes) == bool(alone and statistics)
    assert not statistics or all(name in notes for name in alone)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("how", GROUPS)
def test_an_update_that_is_wrong_is_named_beside_other_groups(tmp_path, how, foreach):
    here, there = sides(how)
    report = compare(
        dump(tmp_path / "target", here, "b.weight", foreach), dump(tmp_path / "golden", there, foreach=foreach)
    )
    named = [root for root in report.roots if root.cause is not Cause.PROPAGATED]
    place = sum(here, ()).index("b.weight")
    slots = {FOREACH: f"output:{place}"} if foreach else {}
    assert {root.pair.operator.name: root.slot for root in named} == {
        f"Tensor.add_.{place}.forward": "output:0",
        **slots,
    }
    for root in named:
        known = "Functional.linear.1.backward output:1" if "foreach" in root.pair.operator.name else "b.weight"
        assert sentences(root.evidence).startswith(f"{root.slot} belongs to parameter {known}; ")


def test_entries_of_a_list_keep_the_slots_of_the_target(tmp_path):
    target = dump(tmp_path / "target", (EVERY[1:],), foreach=True)
    golden = dump(tmp_path / "golden", (EVERY,), foreach=True)
    CliRunner().invoke(npucmp, ["compare", str(target), str(golden), "-o", str(tmp_path / "report")])
    with (tmp_path / "report" / "tensors.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "foreach" in row["op"] and row["slot"].startswith("input")]
    slots = {row["slot"]: (row["golden_slot"], row["verdict"]) for row in rows}
    assert slots == {
        **{f"input:0.{i}": (f"input:0.{i + 1}", "match") for i in range(4)}, "input:0.4": ("input:0.0", "missing"),
    }  # fmt: skip


def test_parameters_in_another_group_leave_the_step_comparable(tmp_path):
    here, there = sides("another group")
    found = precheck(dump(tmp_path / "target", here), dump(tmp_path / "golden", there))
    assert not [
        row
        for row in found.rows
        if row.row in ("network.shapes", "network.operators") and row.status is not Status.SAME
    ]
