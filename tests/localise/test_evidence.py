"""The sentences that say why an operator is suspected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from npucmp.localise.evidence import (
    own_reasons,
    passed_reasons,
    type_reasons,
    worst_of,
)
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict

NAN = float("nan")


def operator(*tensors, reads_recorded=True, **arguments) -> Operator:
    return Operator("norm", "norm", "norm", "", 0, tensors, arguments=arguments, reads_recorded=reads_recorded)


def found(order, name, slot, error, phase="forward", dtypes=("float32", "float32"), because="checksums differ"):
    tensors = [TensorRef(slot, dtype, (4,)) for dtype in dtypes]
    op = Operator(name, "norm", "norm", phase, order, tuple(tensors))
    return Finding(Measurement(Pair(order, slot, op, op, *tensors)), Verdict.DIVERGED, because, error)


OWN = found(3, "norm.back", "output:0", 0.5, "backward")
CAME, SAVED = found(3, "norm.back", "input:0", 1e-7, "backward"), found(1, "norm", "output:0", 2e-3)
ANOTHER, FORWARD = found(3, "norm.back", "input:1", NAN, "backward"), found(3, "norm", "output:0", 0.5)
GRADIENT, HELD = "the incoming gradient differs: ", "a tensor saved by the forward pass differs: "


@pytest.mark.parametrize(
    "own, apart, read, says",
    [
        (OWN, [(2e-3, SAVED, True)], [CAME, SAVED], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(2e-3, SAVED, False)], [SAVED], f"{GRADIENT}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(0.5, SAVED, True), (0.1, CAME, False)], [], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(0.1, CAME, False), (0.1, SAVED, True)], [], f"{HELD}norm output:0, rel_l2 2.0e-03"),
        (OWN, [(1e-7, CAME, False), (0.0, SAVED, True)], [], f"{GRADIENT}input:0, rel_l2 1.0e-07"),
        (OWN, [(9.0, ANOTHER, False), (1e-7, CAME, False)], [], f"{GRADIENT}input:1, checksums differ"),
        (FORWARD, [(2e-3, found(3, "norm", "input:0", 2e-3), False)], [], "inputs differ: input:0, rel_l2 2.0e-03"),
        (FORWARD, [(2e-3, SAVED, False)], [], "inputs differ: norm output:0, rel_l2 2.0e-03"),
        (FORWARD, [(2e-3, SAVED, True)], [], "a tensor of another rank differs: norm output:0, rel_l2 2.0e-03"),
        (
            FORWARD, [], [CAME, SAVED],
            "an input has an error below its limit (largest rel_l2 2.0e-03, of norm output:0)",
        ),
        (FORWARD, [], [CAME], "an input has an error below its limit (largest rel_l2 1.0e-07, of input:0)"),
        (FORWARD, [], [], "the error starts upstream; some inputs of this operator were not compared"),
    ],
)  # fmt: skip
def test_what_is_passed_on_is_named(own, apart, read, says):
    """What was read that differs, wherever it was compared; of several what reaches farthest."""
    worst = worst_of(apart, read)
    got, shown = passed_reasons(own, worst)
    assert (got.sentence(), shown.sentence()) == (says, f"output:0: {own.because}")
    if apart:
        assert own_reasons(own.pair, own, worst, True)[0] == got
        error = got.facts["error"]
        assert (error.op, error.slot) == (worst.finding.pair.operator.name, worst.finding.pair.slot)


COARSE, WHOLE = ("bfloat16", "float32"), ("int32", "int64")


@pytest.mark.parametrize("dtype, said", [("bfloat16", 0), ("float32", 1)])
def test_a_type_that_was_read_is_not_turned_to_where_the_golden_tells_no_inputs(dtype, said):
    """A device in 16 bits against outputs of the reference alone: the type was decided long before."""
    read = found(3, "norm", "input:0", 0.0, dtypes=(dtype,) * 2)
    read = read._replace(measurement=Measurement(read.pair._replace(golden=None)))
    wrote = [found(3, "norm", "output:0", 0.0, dtypes=COARSE)]
    assert len(type_reasons([read], wrote)) == said


def bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)
