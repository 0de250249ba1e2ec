"""Which operator is blamed, and which is not: must-fire and must-not-fire tables over small synthetic runs."""

import copy
import json
from functools import partial

import numpy as np
import pytest

import npucmp
from npucmp.localise.multi_rank import with_roots
from npucmp.model import Verdict
from tests.recompute.craft import pair as recorded_pair
from tests.reports import screen
from tests.synthetic import chain, with_statistics, write_run

random = np.random.default_rng(1)


def report(tmp_path, target, golden, **options):
    return npucmp.compare(write_run(tmp_path / "target", target), write_run(tmp_path / "golden", golden), **options)


def found(report):
    return [
        (root.pair.operator.name, root.cause.value, root.slot)
        for root in report.roots
        if root.cause.value != "PROPAGATED"
    ]


@pytest.mark.parametrize("factor", [1.00002, 1.001, 1.05, 2.0, 0.0, -1.0])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_scaled_output_is_born_there(tmp_path, factor, noise):
    got = report(tmp_path, chain({3: factor}, noise=noise, seed=5), chain())
    assert found(got)[0] == ("Functional.linear.3.forward", "BORN", "output:0")


def test_noise_alone_is_silent(tmp_path):
    got = report(tmp_path, chain(noise=1e-7, seed=5), chain())
    assert got.roots == ()
    assert {finding.verdict.value for finding in got.findings} == {"match"}


@pytest.mark.parametrize("dtype, noise, factor", [(np.float16, 3e-4, 1.02), (np.float64, 1e-16, 1 + 1e-12)])
def test_the_limit_follows_the_dtype(tmp_path, dtype, noise, factor):
    clean = report(tmp_path / "clean", chain(noise=noise, seed=5, dtype=dtype), chain(dtype=dtype))
    faulted = report(tmp_path / "fault", chain({2: factor}, noise=noise, seed=5, dtype=dtype), chain(dtype=dtype))
    assert clean.roots == ()
    assert found(faulted)[0] == ("Functional.linear.2.forward", "BORN", "output:0")


def test_errors_that_grow_step_by_step_are_not_agreement(tmp_path):
    values = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(11)]
    jitter = random.standard_normal((8, 8))

    def run(noise):
        off = [(value * (1 + noise * 4.0**i * jitter)).astype(np.float32) for i, value in enumerate(values)]
        return {f"Torch.mystery.{i}.forward": {"in": [off[i]], "out": [off[i + 1]]} for i in range(10)}

    got = report(tmp_path, run(1e-7), run(0.0))
    assert [root.cause.value for root in got.roots] == ["WORSENED"]
    assert "no operator increases the error of its inputs more than 8 times" in got.roots[0].because


def test_uninitialised_memory_is_nobodys_fault(tmp_path):
    x, garbage, other = (random.standard_normal((4, 8)).astype(np.float32) for _ in range(3))

    def run(memory):
        return {
            "Torch.empty.0.forward": {"in": [4, 8], "out": [memory]},
            "Tensor.copy.0.forward": {"in": [memory, x], "out": [x]},
            "Torch.tanh.0.forward": {"in": [x], "out": [np.tanh(x)]},
        }

    got = report(tmp_path, run(garbage), run(other))
    assert got.roots == ()
    unknown = [one for one in got.findings if one.verdict is not Verdict.MATCH]
    assert [(one.pair.operator.name, one.pair.slot, one.verdict, one.rule) for one in unknown] == [
        ("Torch.empty.0.forward", "output:0", Verdict.UNKNOWN, "meaningless"),
        ("Tensor.copy.0.forward", "input:0", Verdict.UNKNOWN, "meaningless"),
    ]


@pytest.mark.parametrize("part", ["empty not recorded", "inputs alone"])
@pytest.mark.parametrize("name", ["Tensor.__setitem__.0.forward", "Tensor.copy_.0.forward"])
def test_memory_that_is_written_to_is_no_input(tmp_path, name, part):
    """What `empty` gave holds anything; a fault in what is put there shows all the same, at whoever reads it."""

    def run(seed, factor=1.0):
        made = chain(steps=8)
        (*_, last) = made.values()
        x, garbage = last["out"][0], np.random.default_rng(seed).standard_normal((8, 16)).astype(np.float32) * 1e3
        value = (x * np.float32(factor)).astype(np.float32)
        made["Torch.empty.0.forward"] = {"in": [8, 16], "out": [garbage]}
        made[name] = {"in": [garbage, value], "out": []}
        made["Torch.tanh.0.forward"] = {"in": [value], "out": [np.tanh(value)]}
        if part == "inputs alone":
            return without(made, "out")
        del made["Torch.empty.0.forward"]
        return made

    clean = report(tmp_path / "clean", run(1), run(2))
    assert (clean.roots, clean.exit_status) == ((), 0)
    faulted = report(tmp_path / "fault", run(1, 1.001), run(2))
    assert found(faulted)[0] == (name, "GAP", "input:1")


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


def test_a_random_operator_is_named_as_such(tmp_path):
    x = random.standard_normal((4, 8)).astype(np.float32)
    run = lambda seed: {  # noqa: E731
        "Functional.dropout.0.forward": {
            "in": [x, 0.5],
            "out": [x * (np.random.default_rng(seed).random(x.shape) < 0.5)],
        }
    }
    assert "a random operator" in report(tmp_path, run(1), run(2)).roots[0].because


def test_nan_is_born_once_and_passed_on(tmp_path):
    got = report(tmp_path, chain(nan_at=2), chain())
    assert found(got) == [("Functional.linear.2.forward", "BORN", "output:0")]
    assert (got.roots[0].metric, got.roots[0].value, got.roots[0].output_error) == ("nonfinite_mismatch", 1.0, np.inf)
    assert got.roots[1].cause.value == "PROPAGATED"


def test_nan_on_both_sides_agrees(tmp_path):
    assert report(tmp_path, chain(nan_at=2), chain(nan_at=2)).roots == ()


def test_a_parameter_that_differs_is_a_gap_even_behind_another_root(tmp_path):
    target = chain({1: 1.05})
    target["Functional.linear.4.forward"]["in"][1] = target["Functional.linear.4.forward"]["in"][1] * np.float32(1.01)
    assert found(report(tmp_path, target, chain())) == [
        ("Functional.linear.1.forward", "BORN", "output:0"),
        ("Functional.linear.4.forward", "GAP", "input:1"),
    ]


def test_a_network_input_that_differs_is_a_gap(tmp_path):
    target = chain()
    target["Functional.linear.0.forward"]["in"][0] = target["Functional.linear.0.forward"]["in"][0] + np.float32(0.1)
    got = report(tmp_path, target, chain())
    assert found(got) == [("Functional.linear.0.forward", "GAP", "input:0")]
    assert "an input of the network or of the dumped part already differs: input:0, rel_l2" in got.roots[0].because


def test_an_input_changed_on_the_way_is_a_gap(tmp_path):
    golden, target = chain(), chain()
    target["Functional.linear.3.forward"]["in"][0] = target["Functional.linear.3.forward"]["in"][0] * np.float32(1.5)
    got = report(tmp_path, target, golden)
    assert found(got)[0] == ("Functional.linear.3.forward", "GAP", "input:0")
    assert "last matching tensor: Functional.linear.2.forward output:0" in got.roots[0].because


def test_one_sided_operator_between_producer_and_consumer_leaves_the_gap_standing(tmp_path):
    golden, target = chain(), chain()
    x = target["Functional.linear.2.forward"]["out"][0]
    changed = (x * np.float32(1.5)).astype(np.float32)
    names = list(target)
    target = {name: target[name] for name in names[:3]}
    target["Torch.clone.0.forward"] = {"in": [x], "out": [changed]}
    target.update({name: copy.copy(chain()[name]) for name in names[3:]})
    target["Functional.linear.3.forward"]["in"] = [changed, *target["Functional.linear.3.forward"]["in"][1:]]
    assert found(report(tmp_path, target, golden))[0] == ("Functional.linear.3.forward", "GAP", "input:0")


def two_branches(scaled):
    """A sum of two branches; one run scales the first of them in an operator of its own, before the other begins."""
    random = np.random.default_rng(0)
    x, other, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (8, 16), (16, 16)))
    first, second = x @ weight, np.maximum(other, 0)
    run = {"Functional.linear.0.forward": {"in": [x, weight], "out": [first]}}
    if scaled:
        run["Tensor.__mul__.0.forward"] = {"in": [first, 2.0], "out": [2 * first]}
        first = 2 * first
    run["Functional.relu.0.forward"] = {"in": [other], "out": [second]}
    run["Tensor.__add__.0.forward"] = {"in": [first, second], "out": [first + second]}
    return run


@pytest.mark.parametrize("record", [str, partial(with_statistics, alone=True)], ids=["values", "statistics"])
@pytest.mark.parametrize("scaled", [True, False], ids=["target", "golden"])
def test_an_operator_of_one_run_is_named_wherever_it_stands_before_a_gap(tmp_path, record, scaled):
    runs = {"target": two_branches(scaled), "golden": two_branches(not scaled)}
    (root,) = npucmp.compare(*(record(write_run(tmp_path / name, run)) for name, run in runs.items())).roots
    side = "target" if scaled else "golden"
    assert (root.pair.operator.name, root.cause.value, root.slot) == ("Tensor.__add__.0.forward", "GAP", "input:0")
    assert "last matching tensor: Functional.linear.0.forward output:0" in root.because
    assert f"operators between these two tensors: Tensor.__mul__.0.forward (only in the {side})" in root.because
    assert "not dumped" not in root.because


def test_code_that_was_not_dumped_is_told_where_no_operator_of_one_run_stands_before_a_gap(tmp_path):
    target = two_branches(True)
    del target["Tensor.__mul__.0.forward"]
    (root,) = report(tmp_path, target, two_branches(False)).roots
    assert (root.pair.operator.name, root.cause.value, root.slot) == ("Tensor.__add__.0.forward", "GAP", "input:0")
    assert "the error starts between these two tensors, in code that was not dumped" in root.because


@pytest.mark.parametrize("shape", [(8, 16), (3,)])
def test_an_operator_of_one_run_may_be_the_origin_of_an_input_of_unknown_origin(tmp_path, shape):
    """Code that was not dumped may read what the operator wrote, and write another size."""
    target = two_branches(False)
    add = target["Tensor.__add__.0.forward"]
    add["in"] = [add["in"][0] * np.float32(1.5) + np.float32(1), add["in"][1]]
    names = list(target)
    odd = {"Torch.sin.0.forward": {"in": [np.ones(shape, np.float32)], "out": [np.ones(shape, np.float32)]}}
    target = {names[0]: target[names[0]], **odd, **{name: target[name] for name in names[1:]}}
    golden = two_branches(False)
    golden["Tensor.__add__.0.forward"]["in"][0] = golden["Tensor.__add__.0.forward"]["in"][0] * np.float32(3)
    root = report(tmp_path, target, golden).roots[0]
    assert (root.pair.operator.name, root.slot) == ("Tensor.__add__.0.forward", "input:0")
    assert "operators of one run before it: Torch.sin.0.forward (only in the target)" in root.because


def test_an_operator_of_one_run_that_reads_what_code_overwrites_in_place_is_named(tmp_path):
    """Clipping of gradients records the norm that it reads, and not the product that it writes in place."""
    target, golden = two_branches(False), two_branches(False)
    scaled = golden["Tensor.__add__.0.forward"]["in"][0] * np.float32(3)
    golden["Tensor.__add__.0.forward"]["in"][0] = scaled
    target["Tensor.__add__.0.forward"]["in"] = [scaled * np.float32(0.1), target["Tensor.__add__.0.forward"]["in"][1]]
    norm = np.array(np.linalg.norm(scaled), np.float32)
    clip = {
        "Torch.vector_norm.0.forward": {"in": [scaled], "out": [norm]},
        "Tensor.reciprocal.0.forward": {"in": [norm], "out": [np.array(1 / norm)]},
    }
    names = list(target)
    target = {names[0]: target[names[0]], **clip, **{name: target[name] for name in names[1:]}}
    root = report(tmp_path, target, golden).roots[0]
    assert (root.pair.operator.name, root.slot) == ("Tensor.__add__.0.forward", "input:0")
    assert "Torch.vector_norm.0.forward (only in the target), Tensor.reciprocal.0.forward" in root.because


def test_two_faults_are_two_roots_in_graph_order(tmp_path):
    got = report(tmp_path, chain({1: 1.001, 4: 3.0}), chain())
    assert found(got) == [
        ("Functional.linear.1.forward", "BORN", "output:0"),
        ("Functional.linear.4.forward", "WORSENED", "output:0"),
    ]


def test_a_differing_argument_is_named(tmp_path):
    target = chain({2: 1.05})
    target["Functional.linear.2.forward"]["in"][2] = 1e-3
    assert (
        "argument input:2 is 0.001 in the target, 1e-05 in the golden"
        in report(tmp_path, target, chain()).roots[0].because
    )


@pytest.mark.parametrize("dim, said", [(-1, ()), (0, ("argument input:1 (dim) is 0 in the target, -1 in the golden",))])
def test_an_argument_by_keyword_is_the_same_argument_by_place(tmp_path, dim, said):
    """Implementations of one network spell calls differently: softmax(x, -1) and softmax(x, dim=-1)."""
    name, x = "Functional.softmax.0.forward", np.random.default_rng(1).random((4, 4), "f4")
    by_place = {name: {"in": [x, dim], "out": [x]}}
    by_keyword = {name: {"in": [x], "kwargs": {"dim": -1}, "out": [x]}}
    lines = screen(report(tmp_path, by_place, by_keyword)).splitlines()
    assert [line for line in lines if line.startswith("note: ")] == [f"note: {name}: {words}" for words in said]


def test_a_dead_output_is_seen(tmp_path):
    got = report(tmp_path, chain({5: 0.0}), chain())
    assert found(got) == [("Functional.linear.5.forward", "BORN", "output:0")]
    assert "all zero" in got.roots[0].because


def test_outputs_without_inputs_are_of_unknown_cause(tmp_path):
    strip = lambda run: {name: {"out": operator["out"]} for name, operator in run.items()}  # noqa: E731
    target = write_run(tmp_path / "target", strip(chain({2: 1.05})))
    golden = write_run(tmp_path / "golden", strip(chain()))
    for folder in (target, golden):  # a dump of outputs only has no input key at all
        file = folder / "step0/proc1/dump.json"
        file.write_text(
            file.read_text().replace('"input_args": [],', "").replace('"input_kwargs": {}', '"is_recompute": false')
        )
    assert found(npucmp.compare(target, golden))[0] == ("Functional.linear.2.forward", "UNKNOWN", "output:0")


def test_a_bias_gradient_that_is_zero_but_for_rounding_is_silent(tmp_path):
    gradient = random.standard_normal((64, 16)).astype(np.float32)
    gradient -= gradient.mean(axis=0, keepdims=True)
    noisy = (gradient * (1 + 1e-7 * random.standard_normal(gradient.shape))).astype(np.float32)
    run = lambda g: {"Functional.linear.0.backward": {"in": [g], "out": [g.sum(axis=0)]}}  # noqa: E731
    got = report(tmp_path, run(noisy), run(gradient))
    assert got.roots == ()


def test_a_module_that_contains_the_culprit_passes_it_on(tmp_path):
    x, wrong, right = (random.standard_normal((4, 8)).astype(np.float32) for _ in range(3))

    def run(y):
        return {
            "Cell.block.softmax.Softmax.forward.0": {"in": [x], "out": [y]},
            "Cell.block.Attention.forward.0": {"in": [x], "out": [y + y]},
        }

    got = report(tmp_path, run(wrong), run(right))
    assert found(got) == [("Cell.block.softmax.Softmax.forward.0", "BORN", "output:0")]
    assert "contains Cell.block.softmax.Softmax.forward.0" in got.roots[1].because


def test_a_mask_flipped_by_noise_is_explained(tmp_path):
    x = random.standard_normal((200, 200)).astype(np.float32)
    x[3, 4], other = 1e-9, x.copy()
    other[3, 4] = -1e-9
    gradient = np.ones_like(x) + random.standard_normal(x.shape).astype(np.float32)

    def run(values):
        return {
            "Functional.relu.0.forward": {"in": [values], "out": [np.maximum(values, 0)]},
            "Functional.relu.0.backward": {"in": [gradient], "out": [gradient * (values > 0)]},
        }

    noisy = (other * np.float32(1 + 2e-7)).astype(np.float32)
    assert report(tmp_path, run(noisy), run(x)).roots == ()


def test_user_rules_decide_instead_of_the_default(tmp_path):
    paths = write_run(tmp_path / "target", chain({3: 1.001})), write_run(tmp_path / "golden", chain())
    assert npucmp.compare(*paths, rtol=0.1, atol=0.1).roots == ()
    assert found(npucmp.compare(*paths, rtol=1e-6, atol=0.0))[0] == ("Functional.linear.3.forward", "BORN", "output:0")


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


X = (20 * random.standard_normal((40, 40))).astype(np.float32)
SILENT = [  # operators that enlarge what they read: (name, function, inputs)
    ("Torch.exp.0.forward", np.exp, X),
    ("Torch.cos.0.forward", np.cos, 100 * X),
    ("Functional.layer_norm.0.forward", lambda x: x - x.mean(-1, keepdims=True), X + np.float32(2000)),
    ("Torch.log.0.forward", np.log, 1 + np.abs(X) / np.float32(2000)),
]


@pytest.mark.parametrize("name, function, x", SILENT, ids=[row[0] for row in SILENT])
def test_ill_conditioned_operators_are_not_to_blame(tmp_path, name, function, x):
    noisy = jittered(x, 1e-7)
    runs = one_operator(
        name,
        [
            ("in", noisy, x),
            ("out", function(noisy.astype(float)).astype(np.float32), function(x.astype(float)).astype(np.float32)),
        ],
    )
    assert report(tmp_path, *runs).roots == ()


def test_a_sum_that_should_be_zero_and_is_not(tmp_path):
    zero, five = np.zeros((8, 8), np.float32), np.full((8, 8), 5, np.float32)
    x = random.standard_normal((8, 8)).astype(np.float32)
    runs = one_operator("Tensor.__sub__.0.forward", [("in", x, x), ("in", x, x), ("out", five, zero)])
    assert found(report(tmp_path, *runs)) == [("Tensor.__sub__.0.forward", "BORN", "output:0")]


def test_a_sum_that_is_zero_but_for_rounding_is_silent(tmp_path):
    x = random.standard_normal((8, 8)).astype(np.float32)
    noisy, zero = jittered(x, 1e-7), np.zeros((8, 8), np.float32)
    runs = one_operator("Tensor.__sub__.0.forward", [("in", noisy, x), ("in", x, x), ("out", noisy - x, zero)])
    assert report(tmp_path, *runs).roots == ()


def test_choices_may_flip_under_noise_but_not_without(tmp_path):
    x, one, other = random.standard_normal((64, 8)), np.arange(64), np.arange(64)
    other[[3, 4]] = other[[4, 3]]
    noisy = one_operator("Torch.argsort.0.forward", [("in", jittered(x, 3e-16), x), ("out", other, one)])
    exact = one_operator("Torch.argsort.0.forward", [("in", x, x), ("out", other, one)])
    assert report(tmp_path / "noisy", *noisy).roots == ()
    assert found(report(tmp_path / "exact", *exact)) == [("Torch.argsort.0.forward", "BORN", "output:0")]


def test_one_lost_row_among_thousands_is_seen(tmp_path):
    x = random.standard_normal((2048, 16)).astype(np.float16)
    y = random.standard_normal((2048, 16)).astype(np.float16)
    lost = jittered(y, 1e-3)
    lost[7] = 0
    runs = one_operator("Functional.linear.0.forward", [("in", jittered(x, 1e-3), x), ("out", lost, y)])
    assert found(report(tmp_path, *runs)) == [("Functional.linear.0.forward", "BORN", "output:0")]


def test_products_of_reduced_precision_set_the_limit(tmp_path):
    def run(size, fault=1.0):
        y = [jittered(random_matrix, size, seed) for seed in (4, 5)]
        return {
            "Functional.linear.0.forward": {"in": [X, X], "out": [y[0]]},
            "Functional.linear.1.forward": {"in": [X, X], "out": [y[1]]},
            "Torch.tanh.0.forward": {"in": [y[1]], "out": [(np.tanh(y[1]) * fault).astype(np.float32)]},
        }

    random_matrix = random.standard_normal((40, 40)).astype(np.float32)
    clean, faulted = (
        report(tmp_path / name, run(1.4e-4, fault), run(0.0)) for name, fault in (("c", 1.0), ("f", 1.05))
    )
    assert clean.roots == ()
    assert found(faulted) == [("Torch.tanh.0.forward", "BORN", "output:0")]


def test_a_wrong_parameter_shows_under_16_bit_noise(tmp_path):
    target, golden = chain(noise=3e-4, seed=5, dtype=np.float16), chain(dtype=np.float16)
    weights = [run["Functional.linear.3.forward"]["in"] for run in (target, golden)]
    for side, inputs in enumerate(weights):
        inputs[1] = inputs[1].astype(np.float32) * np.float32(1.001 if side == 0 else 1)
    assert found(report(tmp_path, target, golden)) == [("Functional.linear.3.forward", "GAP", "input:1")]


def test_equal_bits_in_lower_the_bar_for_16_bits(tmp_path):
    x, y = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    runs = one_operator("Functional.gelu.0.forward", [("in", x, x), ("out", jittered(y, 2e-3), y)])
    assert found(report(tmp_path, *runs)) == [("Functional.gelu.0.forward", "BORN", "output:0")]


def test_an_argument_tips_the_balance(tmp_path):
    x, y = (random.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    tensors = [("in", jittered(x, 3e-4), x), ("out", jittered(y, 1.5e-3), y)]
    same = one_operator("Functional.layer_norm.0.forward", tensors, extra=[[1e-5], [1e-5]])
    other = one_operator("Functional.layer_norm.0.forward", tensors, extra=[[1e-3], [1e-5]])
    assert report(tmp_path / "same", *same).roots == ()
    assert found(report(tmp_path / "other", *other)) == [("Functional.layer_norm.0.forward", "BORN", "output:0")]


# Dumps that hold half of it


def without(run, role, names=None):
    """A run whose operators (all, or those of these names) kept no inputs or no outputs."""
    return {name: {**record, role: []} if name in (names or run) else record for name, record in run.items()}


def test_a_fault_whose_output_is_missing_is_sought_where_that_was_written(tmp_path):
    target, golden = chain({3: 1.05}), chain()
    (root,) = [
        root
        for root in report(tmp_path, without(target, "out", ["Functional.linear.3.forward"]), golden).roots
        if root.cause.value != "PROPAGATED"
    ]
    assert (root.pair.operator.name, root.cause.value, root.slot) == ("Functional.linear.4.forward", "GAP", "input:0")
    assert "last matching tensor: Functional.linear.3.forward input:1" in root.because
    assert (
        "this tensor is Functional.linear.3.forward output:0, which was not dumped or cannot be compared"
        in root.because
    )


def test_inputs_alone_blame_one_operator(tmp_path):
    got = report(tmp_path, without(chain({2: 1.05}), "out"), chain())
    assert found(got) == [("Functional.linear.3.forward", "GAP", "input:0")]


def test_outputs_alone_pass_on_what_the_golden_run_read(tmp_path):
    target, golden = without(chain({2: 1.05}), "in"), chain()
    for record in golden.values():
        del record["in"][1:]  # of weights the target tells nothing
    got = report(tmp_path, target, golden)
    assert [root.cause.value for root in got.roots][1:] == ["PROPAGATED"] * 3
    assert got.roots[0].pair.operator.name == "Functional.linear.2.forward"


def test_inputs_of_one_side_only_are_no_inputs_that_agree(tmp_path):
    x, other, y = (random.standard_normal((4, 8)).astype(np.float32) for _ in range(3))
    target = {"Torch.mystery.0.forward": {"in": [x], "out": [y * 2]}, "Torch.tanh.0.forward": {"in": [x], "out": [x]}}
    golden = {**target, "Torch.mystery.0.forward": {"in": [other[:2]], "out": [y]}}
    target["Torch.mystery.0.forward"]["in"] = []
    assert found(report(tmp_path, target, golden)) == [("Torch.mystery.0.forward", "UNKNOWN", "output:0")]


def test_what_could_not_be_compared_is_named(tmp_path):
    """Of the factors of a product, one was written by an operator that is known, the other by none."""
    for side, run in (("target", chain({2: 1.05})), ("golden", chain())):
        (tmp_path / side).mkdir()
        for i, record in enumerate(run.values()):
            np.save(tmp_path / side / f"product_{i}.output.0.npy", record["out"][0])
            for slot, tensor in enumerate(record["in"][:2] if side == "golden" else []):
                np.save(tmp_path / side / f"product_{i}.input.{slot}.npy", tensor)
    first, *others = npucmp.compare(tmp_path / "target", tmp_path / "golden").roots
    assert (first.pair.operator.name, first.cause.value) == ("product_2", "UNKNOWN")
    assert "the inputs were not dumped or cannot be compared (input:1)" in first.because
    assert [root.cause.value for root in others] == ["PROPAGATED"] * 3


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


def test_a_clean_quantised_run_is_silent(tmp_path):
    got = report(tmp_path, *quantised_pair())
    assert got.roots == ()
    assert {finding.verdict.value for finding in got.findings} == {"match", "dtype"}


def test_a_fault_in_a_quantised_run_is_seen_where_numbers_are_numbers_again(tmp_path):
    got = report(tmp_path, *quantised_pair(1.2))
    assert got.roots[0].pair.operator.name == "Torch.scale.1.forward"


def test_whole_numbers_stored_as_floats_are_compared(tmp_path):
    x = np.arange(12).reshape(3, 4)
    runs = [{"Torch.mystery.0.forward": {"in": [x], "out": [y]}} for y in (x.astype(np.int32), x.astype(np.float32))]
    assert {finding.verdict.value for finding in report(tmp_path, *runs).findings} == {"match"}


# Statistics alone


def recorded(folder, number):
    """A dump of one operator that was given a number, as statistics."""
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    given, made = (
        {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": shape,
            **dict.fromkeys(("Max", "Min", "Mean"), value),
        }
        for shape, value in (([], number), ([4, 4], 0.5))
    )
    record = {"input_args": [{**given, "Norm": number}], "input_kwargs": {}, "output": [{**made, "Norm": 2.0}]}
    dump = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    place.joinpath("dump.json").write_text(json.dumps({**dump, "data": {"Torch.mystery.0.forward": record}}))
    return folder


def test_a_number_of_which_statistics_are_known_is_told(tmp_path):
    got = npucmp.compare(recorded(tmp_path / "target", 0.1), recorded(tmp_path / "golden", 1e-7))
    assert found(got) == [("Torch.mystery.0.forward", "GAP", "input:0")]
    assert got.roots[0].because == ("scalar input:0 already differs: target 0.1, golden 1e-07, factor 1e+06")


def test_trusted_statistics_are_not_called_bits(tmp_path):
    same = recorded(tmp_path, 0.1)
    assert "2 tensors agree, by statistics only" in screen(npucmp.compare(same, same, trust_statistics=True))


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


def test_a_copy_of_memory_that_nobody_wrote_is_nobodys_fault_either(tmp_path):
    x, garbage, other = (random.standard_normal((4, 8)).astype(np.float32) for _ in range(3))

    def run(memory):
        return {
            "Torch.empty.0.forward": {"in": [4, 8], "out": [memory]},
            "Tensor.clone.0.forward": {"in": [memory], "out": [memory]},
            "Torch.tanh.0.forward": {"in": [x], "out": [np.tanh(x)]},
        }

    got = report(tmp_path, run(garbage), run(other))
    assert got.roots == ()
    unknown = [one for one in got.findings if one.verdict is not Verdict.MATCH]
    assert [(one.pair.operator.name, one.pair.slot, one.verdict, one.rule) for one in unknown] == [
        ("Torch.empty.0.forward", "output:0", Verdict.UNKNOWN, "meaningless"),
        ("Tensor.clone.0.forward", "input:0", Verdict.UNKNOWN, "meaningless"),
        ("Tensor.clone.0.forward", "output:0", Verdict.UNKNOWN, "meaningless"),
    ]


def test_parameters_behind_a_faulty_step_descend_from_it(tmp_path):
    """They are no match, however their gradients excuse them, and no suspects of their own."""
    x, w, g = (random.standard_normal((8, 8)).astype(np.float32) for _ in range(3))
    y = x @ w
    for name, wrong in (("target", 1.05), ("golden", 1.0)):
        for step in range(2):
            weight = w * np.float32(1 + (wrong - 1) / 50) if step else w
            write_run(
                tmp_path / name,
                {
                    "Functional.linear.0.forward": {"in": [x, weight], "out": [y * np.float32(wrong)]},
                    "Functional.linear.0.backward": {"in": [g], "out": [g, g * np.float32(wrong)]},
                },
                step=step,
            )
    got = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    suspects = [(one.step, root.cause.value) for one in got.comparisons for root in one.roots]
    assert (0, "BORN") in suspects and not {(1, "GAP"), (1, "BORN")} & set(suspects)
    [weight] = [one for one in got.comparisons[1].findings if one.pair.slot == "input:1"]
    assert weight.verdict.value == "diverged"


@pytest.mark.parametrize("first", [0, 1, 4])
def test_suspects_of_an_earlier_step_come_first(tmp_path, first):
    """Also if their operators run later; the number of the first step does not matter."""
    for name, faults in (("target", ({4: 1.05}, {1: 1.05})), ("golden", ({}, {}))):
        for step, fault in enumerate(faults, first):
            write_run(tmp_path / name, chain(fault), step=step)
    got = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    placed = sorted(
        (root.place, one.step, *told) for one in got.comparisons for root, told in zip(one.roots, found(one))
    )
    assert [row[1:3] for row in placed] == [
        (first, "Functional.linear.4.forward"), (first + 1, "Functional.linear.1.forward"),
    ]  # fmt: skip
    assert [one.roots for one in with_roots(got.comparisons)] == [one.roots for one in got.comparisons]


def test_a_gradient_below_the_rounding_of_what_was_just_written_is_noise(tmp_path):
    """Of a bias that softmax makes irrelevant, brought in by code that was not dumped: zero in exact arithmetic."""
    g, w = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(2))

    def run(size, seed):
        noise = np.random.default_rng(seed).standard_normal(64).astype(np.float32) * np.float32(size)
        return {
            "Functional.linear.0.backward": {"in": [g], "out": [g @ w]},
            "Distributed.all_reduce.0.forward": {"in": [noise], "out": [noise + noise]},
        }

    assert report(tmp_path / "noise", run(1e-8, 1), run(1e-8, 2)).exit_status == 0
    assert report(tmp_path / "more", run(1e-4, 1), run(1e-4, 2)).exit_status == 1


def test_a_coarser_type_in_the_whole_run_accuses_nobody(tmp_path):
    """The first operator alone reads what is no coarser than the golden's: that makes it no exception."""
    x = [random.standard_normal((16, 16)).astype(np.float32) for _ in range(42)]

    def run(dtype):
        return {
            f"Functional.linear.{n}.forward": {
                "in": [x[n].astype(dtype if n else np.float32)],
                "out": [x[n + 1].astype(dtype)],
            }
            for n in range(41)
        }

    assert report(tmp_path, run(np.float16), run(np.float32)).roots == ()


def test_an_operand_passes_on_no_more_than_its_part_of_the_sum(tmp_path):
    """A number that is rounding alone, and wrong as a whole, is nothing beside what it is added to."""
    x = random.standard_normal((32, 32)).astype(np.float32)

    def run(number, fault):
        noise, y = np.float32(number), x + np.float32(number)
        return {
            "Torch.mystery.0.forward": {"in": [x], "out": [np.array([noise, noise, noise * 2, noise * 3])]},
            "Tensor.__add__.0.forward": {"in": [x, np.array([noise, noise, noise * 2, noise * 3])], "out": [y * fault]},
        }

    got = report(tmp_path, run(2e-8, np.float32(1.01)), run(1.1e-8, np.float32(1)))
    assert ("Tensor.__add__.0.forward", "output:0") in [(name, slot) for name, _, slot in found(got)]


def test_a_module_whose_output_was_explained_inside_it_is_not_blamed(tmp_path):
    """What an operator inside it wrote is the same tensor."""
    x, y = (random.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    off = jittered(x, 4e-7)

    def run(read, factor):
        z = (y * factor).astype(np.float32)
        return {
            "Functional.linear.0.forward": {"in": [read, y], "out": [z]},
            "Module.block.Block.forward.0": {"in": [y], "out": [z]},
        }

    got = report(tmp_path, run(off, jittered(np.ones((16, 16)), 1.4e-6, seed=3)), run(x, 1.0))
    assert got.exit_status == 0 and {one.explained_by for one in got.findings if one.error > 1e-6} == {"growth"}
    assert {one.because.partition("; ")[2] for one in got.findings if one.explained_by} == {
        "explained by the errors of its inputs"
    }
    (line,) = [one for one in screen(got).splitlines() if one.startswith("No operator diverged")]
    assert line.endswith("e-06, above its limit but explained by upstream errors")


def test_a_module_whose_output_was_explained_inside_it_passes_on_no_other_error(tmp_path):
    """The module reads an error that reaches another output of it; this tensor is the one that agreed inside."""
    x, y, w = (random.standard_normal((16, 16)).astype(np.float32) for _ in range(3))
    off = jittered(x, 4e-7)

    def run(read, factor, fault):
        z, wrong = (y * factor).astype(np.float32), (w * fault).astype(np.float32)
        return {
            "Functional.linear.0.forward": {"in": [read, y], "out": [z]},
            "Functional.linear.1.forward": {"in": [y, w], "out": [wrong]},
            "Module.block.Block.forward.0": {"in": [wrong], "out": [z]},
        }

    ones = jittered(np.ones((16, 16)), 1.4e-6, seed=3)
    got = report(tmp_path, run(off, ones, np.float32(1.1)), run(x, 1.0, np.float32(1.0)))
    assert found(got) == [("Functional.linear.1.forward", "BORN", "output:0")]
    (written,) = [one for one in got.findings if one.pair.operator.path and one.pair.slot == "output:0"]
    assert (written.verdict.value, len(got.roots)) == ("match", 1)


def test_an_operator_that_computes_wrongly_within_the_limit_is_found_by_recomputation(tmp_path, monkeypatch):
    """Two rows in float16 are 0.4 % off; the golden is in float32."""
    monkeypatch.setattr("npucmp.recompute.torch_engine.find_spec", lambda name: None)
    x = np.random.default_rng(1).normal(size=(8, 32)).astype(np.float16)
    terms = np.exp(x.astype(np.float64))
    right = (terms / terms.sum(-1, keepdims=True)).astype(np.float32)
    half = right.astype(np.float16)
    half[2:4] = right[2:4] * np.float32(1.004)
    name, axis = "Functional.softmax.0.forward", {"dim": -1}
    sides = [(name, [x], [half], axis)], [(name, [x.astype(np.float32)], [right], axis)]
    dumps = recorded_pair(tmp_path, *sides)
    assert npucmp.compare(*dumps, recompute="none").exit_status == 0
    got = npucmp.compare(*dumps, recompute="all")
    assert [(root.pair.operator.name, root.cause.value, root.rule) for root in got.roots] == [
        (name, "BORN", "recompute")
    ]
    assert "expected rounding" in got.roots[0].because
