"""Rules of gradients that need more than one change of one weight: accumulation, jumps, float16, ranks, loss scales."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import check
from tests.health.craft import OWN, Training, Writer, checked, found


def accumulated(training: Training) -> None:
    """Gradients that are not cleared: the backward of each step writes its own, what is kept is their sum."""
    for name in training.layers:
        own = [{word: training.gradients[f"{name}.{word}"][n] for word in ("weight", "bias")} for n in range(3)]
        training.own[name] = own
        for word in ("weight", "bias"):
            sums = np.cumsum([one[word] for one in own], axis=0).astype("float32")
            training.gradients[f"{name}.{word}"] = list(sums)


@pytest.mark.parametrize("values", [True, False], ids=["values", "statistics"])
def test_gradients_that_are_not_cleared(values, tmp_path):
    training = Training()
    accumulated(training)
    one = found(checked(training, tmp_path, values))["grad.accumulated"]
    assert one.severity == "hint" and one.value == 0
    assert one.because == "the backward pass wrote 100% of the gradients in step 0, 0% in step 1"


def test_accumulation_cannot_be_told_without_calls(tmp_path):
    training = Training()
    accumulated(training)
    result = checked(training, tmp_path, level="L0")
    decision = next(one for one in result.decisions if one.rule == "grad.accumulated")
    assert decision.decided == "no" and "level L1 or mix" in decision.why_not


@pytest.mark.parametrize(("times", "expected"), [(40, ["grad.norm_jump"]), (4, [])])
def test_a_jump_is_one_of_five_steps(times, expected, tmp_path):
    training = Training(steps=5)
    training.gradients["layers.2.weight"][3] = training.gradients["layers.2.weight"][3] * times
    result = checked(training, tmp_path)
    assert [one.rule for one in result.symptoms] == expected
    assert [one.step for one in result.symptoms] == [3] * len(expected)


@pytest.mark.parametrize(("size", "expected"), [(1e-6, ["grad.underflow16"]), (1e-2, [])])
def test_float16_gradients_below_the_smallest_normal_number(size, expected, tmp_path):
    training = Training()
    for name in training.layers:
        small = np.full((8, 8), size, "float16")
        training.own[name] = [{"weight": small, "bias": small[0]}] * 3
    assert [one.rule for one in checked(training, tmp_path, only=("grad.underflow16",)).symptoms] == expected


def test_a_skipped_step_is_a_hint(tmp_path):
    """Where the loss scale falls after a step that overflowed, the scaler did its work."""
    for step, scale in enumerate((65536.0, 32768.0)):
        writer = Writer(tmp_path / f"step{step}" / "rank0", values=True)
        gradient = np.full((4, 4), np.inf if step == 0 else 0.1, "float32")
        logits, labels = np.ones((2, 4), "float32"), np.zeros(2, "int64")
        weight = writer.wanted(np.arange(16, dtype="float32").reshape(4, 4))
        writer.module("head", "Linear", [logits], [logits], {"weight": weight})
        writer.record("Functional.cross_entropy.0.forward", [logits, labels], [np.array(1.4, "float32")])
        writer.record("Functional.cross_entropy.0.backward", [np.array(scale, "float32")], [logits])
        writer.gradients("head", "Linear", {"weight": gradient})
        writer.write("mix")
    one = found(check(tmp_path, jobs=1, only=OWN))["grad.nonfinite"]
    assert (one.severity, one.step) == ("hint", 0) and "the step was skipped" in one.because


@pytest.mark.parametrize(("own", "expected"), [((1, 1), []), ((1, 2), ["grad.rank_differs"])])
def test_what_an_all_reduce_gives_out_is_the_same_everywhere(own, expected, tmp_path):
    for rank, value in enumerate(own):
        writer = Writer(tmp_path / "step0" / f"rank{rank}", values=True)
        reduced = np.full(8, value, "float32")
        writer.record("Functional.linear.0.backward", [reduced], [reduced])
        writer.record("Distributed.all_reduce.0.forward", [reduced], [reduced])
        writer.write("mix")
    assert [one.rule for one in check(tmp_path, jobs=1, only=("grad.rank_differs",)).symptoms] == expected


@pytest.mark.parametrize(("factor", "expected"), [(0.03, True), (0.3, False)])
def test_vanishing_does_not_depend_on_the_scale_of_the_loss(factor, expected, tmp_path):
    for scale in (1, 65536):
        training = Training()
        for depth, name in enumerate(reversed(training.layers)):
            some = training.gradients[f"{name}.weight"]
            training.gradients[f"{name}.weight"] = [one * factor**depth * scale for one in some]
        result = checked(training, tmp_path / str(scale), only=("grad.vanishing",))
        assert bool(result.symptoms) is expected


def test_gradients_before_a_head_that_starts_at_zero_do_not_vanish(tmp_path):
    """Its weight is a hundred thousand times smaller than others after its first step."""
    training = Training()
    head = "layers.3.weight"
    training.weights[head] = [-size * training.gradients[head][0] for size in (0, 1e-6, 2e-6)]
    for name in ("layers.0", "layers.1", "layers.2"):
        training.gradients[f"{name}.weight"] = [1e-3 * one for one in training.gradients[f"{name}.weight"]]
    assert "grad.vanishing" not in found(checked(training, tmp_path))
