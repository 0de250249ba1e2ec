"""Which operator is blamed, and which is not: must-fire and must-not-fire tables over small synthetic runs."""

import copy

import numpy as np
import pytest

import npucmp
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
    assert "no operator turns its inputs' error into more than 8 times as much" in got.roots[0].evidence


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
    assert {finding.verdict.value for finding in got.findings} == {"match", "unknown"}


def test_a_random_operator_is_named_as_such(tmp_path):
    x = random.standard_normal((4, 8)).astype(np.float32)
    run = lambda seed: {  # noqa: E731
        "Functional.dropout.0.forward": {
            "in": [x, 0.5],
            "out": [x * (np.random.default_rng(seed).random(x.shape) < 0.5)],
        }
    }
    assert "a random operator" in report(tmp_path, run(1), run(2)).roots[0].evidence


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
    assert "an input of the network already differs" in got.roots[0].evidence


def test_an_input_changed_on_the_way_is_a_gap(tmp_path):
    golden, target = chain(), chain()
    target["Functional.linear.3.forward"]["in"][0] = target["Functional.linear.3.forward"]["in"][0] * np.float32(1.5)
    got = report(tmp_path, target, golden)
    assert found(got)[0] == ("Functional.linear.3.forward", "GAP", "input:0")
    assert "last agreeing: Functional.linear.2.forward output:0" in got.roots[0].evidence


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
        in report(tmp_path, target, chain()).roots[0].evidence
    )


def test_a_dead_output_is_seen(tmp_path):
    got = report(tmp_path, chain({5: 0.0}), chain())
    assert found(got) == [("Functional.linear.5.forward", "BORN", "output:0")]
    assert "all zero" in got.roots[0].evidence


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
    assert "contains Cell.block.softmax.Softmax.forward.0" in got.roots[1].evidence


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
