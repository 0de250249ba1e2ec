"""Calls of an optimizer: partners update the same parameter, whatever their call index and their place in a list."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from npucmp import compare
from npucmp.align.updates import by_entries, match
from npucmp.cli import npucmp
from npucmp.model import Match, TensorRef, Verdict
from tests.align.craft import api
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


# ---- calls and lists made by hand ----


def update(order, values, folder, kind="Torch.mul", scope="optimizer"):
    """A call of the optimizer that reads these values, or none."""
    ref = []
    if values is not None:
        np.save(folder / f"{order} {kind}.npy", values)
        ref = [
            TensorRef("input:0", "float32", values.shape, str(folder / f"{order} {kind}.npy"), "npy", label=str(order))
        ]
    return api(kind, order, "forward", order, (), (), scope=scope)._replace(tensors=tuple(ref))


VALUES = [np.random.default_rng(at).standard_normal((4, 4)).astype(np.float32) for at in range(5)]


def matched(folder, target, golden, **more):
    """Partners by order; each side is a list of numbers of values, None for a call that reads none."""
    runs = []
    for name, side in (("target", target), ("golden", golden)):
        (folder / name).mkdir()
        runs.append([update(order, None if one is None else VALUES[one], folder / name, **more)
                     for order, one in enumerate(side)])  # fmt: skip
    found = match(*runs, ())
    assert all((one.via, one.confidence) == ("content", 0.9) for one in found)
    return [(one.target.order, one.golden.order) for one in found]


@pytest.mark.parametrize(
    "target, golden, expected",
    [
        ([0, 1, 2], [0, 1, 2, 3], [(0, 0), (1, 1), (2, 2)]),
        ([2, 0, 1], [0, 1, 2, 3], [(0, 2), (1, 0), (2, 1)]),  # in any order
        ([0, 1, 2], [3, 4, 1, 2], [(0, 1), (1, 2), (2, 3)]),  # a call beside partners: the one before them
        ([1, 2, 0], [1, 2, 3, 4], [(0, 0), (1, 1), (2, 2)]),  # and the one behind them
        ([0, 0, 1], [0, 1], [(1, 0), (2, 1)]),  # two calls of one content: the neighbour of a partner
        ([0, 1], [2, 3, 4], []),
        ([0, 1], [2, 3], []),  # equal kinds and shapes in the same order
        ([], [0, 1], []),
        ([0, 1], [], []),
        ([None, 0, None, 1], [None, 2, None, 0, None, 1], [(0, 2), (1, 3), (2, 4), (3, 5)]),  # steps of a counter
    ],
)
def test_calls_with_one_content_are_partners(tmp_path, target, golden, expected):
    assert matched(tmp_path, target, golden) == expected


def test_neighbours_of_another_kind_are_no_partners(tmp_path):
    for name in ("target", "golden"):
        (tmp_path / name).mkdir()
    target = [update(0, None, tmp_path, "Torch.add"), update(1, VALUES[0], tmp_path / "target")]
    golden = [update(0, None, tmp_path, "Torch.sub"), update(1, VALUES[0], tmp_path / "golden")]
    golden.append(update(2, VALUES[1], tmp_path / "golden"))
    assert [(one.target.order, one.golden.order) for one in match(target, golden, ())] == [(1, 1)]


def lists(folder, values, slots=("input:0.",)):
    """A call that takes lists of tensors: of each slot a list of these values."""
    folder.mkdir(exist_ok=True)
    refs = []
    for slot in slots:
        for number, one in enumerate(values):
            file = str(folder / f"{slot}{number}.npy")
            np.save(file, one)
            refs.append(TensorRef(f"{slot}{number}", "float32", one.shape, file, "npy", label=f"{slot}{number}"))
    return api("Torch._foreach_mul", 0, "forward", 0, (), (), scope="optimizer")._replace(tensors=tuple(refs))


WIDE = [np.random.default_rng(at).standard_normal((4, 4 + at)).astype(np.float32) for at in range(5)]


def entries(folder, target, golden, slots=("input:0.",)):
    """Slots of the golden's tensors after the match, with the numbers that they had."""
    sides = lists(folder / "target", target, slots), lists(folder / "golden", golden, slots)
    found = by_entries(Match(*sides, "name", 1.0))
    assert found.target == sides[0]
    return [(one.own_slot or one.slot, one.slot) for one in found.golden.tensors]


def test_entries_of_other_content_are_partners_by_shape_in_order(tmp_path):
    changed = [WIDE[1] * 2, WIDE[0] * 2, WIDE[1] * 3]
    found = entries(tmp_path, [WIDE[1], WIDE[0], WIDE[1] + 1], [changed[1], changed[0], changed[2]])
    assert [there for _, there in found] == ["input:0.1", "input:0.0", "input:0.2"]
