"""Which operator is blamed, and which is not: must-fire and must-not-fire tables over small synthetic runs."""

import numpy as np
import pytest

import npucmp
from tests.reports import screen
from tests.synthetic import chain, write_run

random = np.random.default_rng(1)


def report(tmp_path, target, golden, **options):
    return npucmp.compare(write_run(tmp_path / "target", target), write_run(tmp_path / "golden", golden), **options)


def found(report):
    return [
        (root.pair.operator.name, root.cause.value, root.slot)
        for root in report.roots
        if root.cause.value != "PROPAGATED"
    ]


def test_errors_that_grow_step_by_step_are_not_agreement(tmp_path):
    values = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(11)]
    jitter = random.standard_normal((8, 8))

    def run(noise):
        off = [(value * (1 + noise * 4.0**i * jitter)).astype(np.float32) for i, value in enumerate(values)]
        return {f"Torch.mystery.{i}.forward": {"in": [off[i]], "out": [off[i + 1]]} for i in range(10)}

    got = report(tmp_path, run(1e-7), run(0.0))
    assert [root.cause.value for root in got.roots] == ["WORSENED"]
    assert "no operator increases the error of its inputs more than 8 times" in got.roots[0].because


def routed(noise, ties=0, lowest=False, part=""):
    """Tokens and the two experts that each goes to; some tokens like two equally, as far as rounding tells."""
    made = np.random.default_rng(4)
    scores = made.permuted(np.tile(np.arange(8) / 8 - 0.5, (256, 1)), axis=1) + 0.01 * made.standard_normal((256, 8))
    first, second, third = np.argsort(-scores)[:, :3].T
    for token in range(ties):
        scores[token, [first[token], third[token]]] = scores[token, second[token]]
    scores = (scores * (1 + noise * np.random.default_rng(5).standard_normal(scores.shape))).astype(np.float32)
    places = np.argsort(scores if lowest else -scores)[:, :2].astype(np.int64)
    values = np.take_along_axis(scores, places, 1)
    column, row = places[:, 1], np.ascontiguousarray(places[:, 1:].T)
    weight = made.standard_normal((8, 4)).astype(np.float32)
    run = {
        **chain(noise=noise, seed=int(noise > 0)),
        "Torch.topk.0.forward": {"in": [scores, 2], "out": [values, places]},
        "Tensor.__getitem__.0.forward": {"in": [places], "out": [column]},
        "Tensor.t.0.forward": {"in": [places[:, 1:]], "out": [row]},
        "Functional.embedding.0.forward": {"in": [column, weight], "out": [weight[column]]},
    }
    if part == "indices alone":
        run = {name: record for name, record in run.items() if "topk" not in name and "getitem" not in name}
    return without(run, "out") if part == "inputs" else run


@pytest.mark.parametrize("part", ["all", "inputs", "indices alone"])
def test_near_ties_behind_a_slice_or_a_view_are_no_fault(tmp_path, part):
    clean = report(tmp_path / "clean", routed(1e-7, 2, part=part), routed(0.0, 2, part=part))
    moved = [one for one in clean.findings if one.pair.golden.dtype == "int64" and one.measurement.moments.max_abs]
    assert moved and clean.roots == ()
    faulted = report(tmp_path / "fault", routed(1e-7, 2, True, part), routed(0.0, 2, part=part))
    assert faulted.exit_status == 1


@pytest.mark.parametrize("dim, said", [(-1, ()), (0, ("argument input:1 (dim) is 0 in the target, -1 in the golden",))])
def test_an_argument_by_keyword_is_the_same_argument_by_place(tmp_path, dim, said):
    """Implementations of one network spell calls differently: softmax(x, -1) and softmax(x, dim=-1)."""
    name, x = "Functional.softmax.0.forward", np.random.default_rng(1).random((4, 4), "f4")
    by_place = {name: {"in": [x, dim], "out": [x]}}
    by_keyword = {name: {"in": [x], "kwargs": {"dim": -1}, "out": [x]}}
    lines = screen(report(tmp_path, by_place, by_keyword)).splitlines()
    assert [line for line in lines if line.startswith("note: ")] == [f"note: {name}: {words}" for words in said]


def one_operator(name, pairs, **arguments):
    """(target, golden) runs of one operator: pairs are (role, target array, golden array)."""
    sides = []
    for side in (1, 2):
        tensors = {role: [pair[side] for pair in pairs if pair[0] == role] for role in ("in", "out")}
        tensors["in"] += list(arguments.get("extra", [[], []])[side - 1])
        sides.append({name: tensors})
    return sides


def jittered(x, size, seed=2):
    return (x * (1 + size * np.random.default_rng(seed).standard_normal(x.shape))).astype(x.dtype)


def test_choices_may_flip_under_noise_but_not_without(tmp_path):
    x, one, other = random.standard_normal((64, 8)), np.arange(64), np.arange(64)
    other[[3, 4]] = other[[4, 3]]
    noisy = one_operator("Torch.argsort.0.forward", [("in", jittered(x, 3e-16), x), ("out", other, one)])
    exact = one_operator("Torch.argsort.0.forward", [("in", x, x), ("out", other, one)])
    assert report(tmp_path / "noisy", *noisy).roots == ()
    assert found(report(tmp_path / "exact", *exact)) == [("Torch.argsort.0.forward", "BORN", "output:0")]


def test_equal_bits_in_lower_the_bar_for_16_bits(tmp_path):
    x, y = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    runs = one_operator("Functional.gelu.0.forward", [("in", x, x), ("out", jittered(y, 2e-3), y)])
    assert found(report(tmp_path, *runs)) == [("Functional.gelu.0.forward", "BORN", "output:0")]


# Dumps that hold half of it


def without(run, role, names=None):
    """A run whose operators (all, or those of these names) kept no inputs or no outputs."""
    return {name: {**record, role: []} if name in (names or run) else record for name, record in run.items()}


# Quantised runs


def quantised_pair(factor=1.0):
    """Products in 8 bits against those in float32: what the device reads and sums counts steps, what it hands on does
    not. The scale of the second layer's result may be wrong."""
    target, golden = {}, {}
    x = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    seen = x
    for i in range(3):
        weight = np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) / 8
        steps = [np.abs(one).max() / 127 for one in (seen, weight)]
        small = [np.round(one / step).astype(np.int8) for one, step in zip((seen, weight), steps)]
        total = small[0].astype(np.int32) @ small[1].astype(np.int32)
        seen = (total * steps[0] * steps[1] * (factor if i == 1 else 1.0)).astype(np.float16)
        target[f"Torch.product.{i}.forward"] = {"in": small, "out": [total]}
        target[f"Torch.scale.{i}.forward"] = {"in": [total], "out": [seen]}
        golden[f"Torch.product.{i}.forward"] = {"in": [x, weight], "out": [x @ weight]}
        x = x @ weight
        golden[f"Torch.scale.{i}.forward"] = {"in": [x], "out": [x]}
    return target, golden


# Statistics alone


def test_shapes_that_differ_by_axes_of_one_are_compared_with_a_note(tmp_path):
    """[1, 8, 16] against [1, 8, 1, 16], as GE makes 1-d convolutions 4-d; a fault is found in them as in any other."""
    x = random.standard_normal((1, 8, 16)).astype(np.float32)
    run = lambda y, shape: {"Torch.conv.0.forward": {"in": [x.reshape(shape)], "out": [y.reshape(shape)]}}  # noqa: E731
    golden = run(np.tanh(x), (1, 8, 16))
    got = report(tmp_path / "same", run(np.tanh(x), (1, 8, 1, 16)), golden)
    assert got.exit_status == 0
    (note,) = got.comparisons[0].notes
    assert note == (
        "tensors compared although their shapes differ by axes of length 1: 2, "
        "the first is Torch.conv.0.forward input:0, [1, 8, 1, 16] against [1, 8, 16]"
    )
    wrong = report(tmp_path / "fault", run(np.tanh(x) * 1.5, (1, 8, 1, 16)), golden)
    assert found(wrong) == [("Torch.conv.0.forward", "BORN", "output:0")]
    other = report(tmp_path / "other", run(np.tanh(x), (1, 16, 8)), golden)
    assert other.exit_status == 1 and other.comparisons[0].notes == ()
