"""Rules of gradients that need more than one change of one weight: accumulation, jumps, float16, ranks, loss scales."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import check
from tests.health.craft import Training, Writer, checked, found


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


@pytest.mark.parametrize(("own", "expected"), [((1, 1), []), ((1, 2), ["grad.rank_differs"])])
def test_what_an_all_reduce_gives_out_is_the_same_everywhere(own, expected, tmp_path):
    for rank, value in enumerate(own):
        writer = Writer(tmp_path / "step0" / f"rank{rank}", values=True)
        reduced = np.full(8, value, "float32")
        writer.record("Functional.linear.0.backward", [reduced], [reduced])
        writer.record("Distributed.all_reduce.0.forward", [reduced], [reduced])
        writer.write("mix")
    assert [one.rule for one in check(tmp_path, jobs=1, only=("grad.rank_differs",)).symptoms] == expected
