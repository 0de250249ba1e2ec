"""Verdicts on single elements of parameters, and the places to look at."""

from functools import partial

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.assembly import joined
from npucmp.dump.readers.training_state import no_state
from npucmp.dump.readers.weight_payloads import scaled
from npucmp.model import Finding, Measurement, Moments, Operator, Pair, TensorRef, Verdict
from npucmp.relations.weights import weight_roots as roots
from npucmp.relations.weights.checkpoint_pair import JudgedWeight
from npucmp.relations.weights.limits import WeightLimit
from npucmp.relations.weights.next_update import UpdateFinder
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.weight_faults import WeightFault
from npucmp.relations.weights.weight_roots import judged
from tests.localise.weight_craft import Weights, drawn

COUNT = 8
weight_roots = partial(roots.weight_roots, updates=UpdateFinder(no_state(), no_state(), ANYWHERE))


def finding(verdict=Verdict.DIVERGED, because="as measured", *, name="layers.0.up.weight", row=0, moments=None,
            relation=None, **more):  # fmt: skip
    tensor = TensorRef("param:weight", "float32", (COUNT,))
    op = Operator(name, "up", "up", "", row, (tensor,))
    pair = Pair(row, tensor.slot, op, op, tensor._replace(relation=relation), tensor)
    return Finding(Measurement(pair, moments), verdict, because, row=row, **more)


def measured(verdict=Verdict.DIVERGED, because="as measured", **moments):
    """A finding of eight elements whose rel_l2 is a half."""
    own = {"elements": COUNT, "compared": COUNT, "xx": 4.0, "yy": 4.0, "sum_dd": 1.0, "max_abs": 1.0, **moments}
    return finding(verdict, because, moments=Moments(**own), explained_by="growth", explained_limit=9.0, limit=3.0)


@pytest.fixture
def weights(tmp_path):
    return Weights(tmp_path)


CODES, SCALE = np.arange(-4.0, 4.0).reshape(2, 4), np.array([[0.5], [0.25]])


def test_codes_without_known_steps_have_the_plain_limit(weights):
    limit = WeightLimit(0.0, 0.0, 0.5)
    pair = weights.pair(CODES, CODES + 9.0, limit=limit, of_target={"scale_dtype": "float32"})
    assert judged(measured(equal=1, outside=7), pair, ANYWHERE).share == 7 / 8


def test_lost_codes_leave_the_verdict_open(weights, tmp_path):
    lost = joined([weights.payload(CODES), weights.payload(CODES)._replace(path=str(tmp_path / "lost"))], 0)
    codes = scaled(lost, weights.payload(np.ones((4, 1))), (1, 4))
    limit = WeightLimit(0.0, 0.0, 0.5)
    pair = weights.pair(codes, drawn(4, 4), limit=limit, of_target={"scale_dtype": "float32"})
    row = judged(measured(equal=1, outside=7), pair, ANYWHERE)
    assert (row.finding.verdict, row.share, row.finding.error) == (Verdict.UNKNOWN, 0.0, None)
    assert row.finding.because.startswith("the step is unknown: ") and "lost" in row.finding.because
    assert row.finding.rule == "weight"


# The places to look at


class Faults:
    """Describes a pair by a label for its layer, and notes which pairs it describes."""

    context = ANYWHERE

    def __init__(self, label=lambda role: "element"):
        self.asked, self._label = [], label

    def fault(self, pair):
        self.asked.append(pair.role)
        return WeightFault(self._label(pair.role), "row {first} is off", {"first": 7})


def row(role, at=0, verdict=Verdict.DIVERGED, share=0.25, *, relation=None, because="as measured", error=None,
        of_target=None, **more):  # fmt: skip
    """One judged parameter in the row `at`."""
    name = f"layers.{role.layer}.mlp.{role.kind}_proj.weight"
    own = finding(verdict, because, name=name, row=at, relation=relation, error=error, limit=0.5,
                  metric="mismatch_ratio", rule="weight")  # fmt: skip
    pair = Weights(None).pair(None, None, role, of_target={"name": name, **(of_target or {})}, of_golden={"name": name})
    return JudgedWeight(own, pair._replace(**more), share)


def layers(*numbers, kind="up", **more):
    return [row(Role(number, kind, "weight"), at, **more) for at, number in enumerate(numbers)]


# Families


def test_experts_of_all_layers_are_a_family():
    rows = [row(Role(layer, "gate", "weight", expert), 2 * layer + expert) for layer in (0, 1) for expert in (0, 1)]
    (root,) = weight_roots(rows, Faults())
    assert root.evidence[0].sentence() == "all 4 experts of all layers: gate_proj: row 7 is off"
    found = weight_roots([*rows[:3], row(Role(1, "gate", "weight", 1), 3, Verdict.MATCH)], Faults())
    assert len(found) == 3


def test_a_member_that_is_not_described_holds_other_values():
    """Members that are described differ, so that each is a place."""
    found = weight_roots(layers(*range(7)), Faults(lambda role: f"{role.layer}"))
    described = [at for at, one in enumerate(found) if one.evidence[0].sentence() == "row 7 is off"]
    assert described == [0, 3, 6]
    assert {found[at].evidence[0].sentence() for at in (1, 2, 4, 5)} == {"its values differ"}
