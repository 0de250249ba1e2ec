"""Parameters of later steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

import npucmp
from tests.localise.rules.craft import RuleContract, case, drawn
from tests.synthetic import with_statistics, write_run

normal, noisy = drawn(__name__)
X, W, B = normal(16, 8), normal(4, 8, size=0.3), normal(4, size=0.3)


class TestInherited(RuleContract):
    name = "inherited"
    fires = {
        "a weight": case(
            "linear", [], (noisy(W, 1e-5), W), slot="input:1", node=False, round_off=2.0**-24, inherited=3e-5
        ),
        "noise alone": case(
            "linear", [], (noisy(B, 0.3), B), slot="input:2", node=False, round_off=2.0**-24, inherited=math.inf
        ),
    }
    silent = {
        "more than that": case(
            "linear", [], (noisy(W, 1e-3), W), slot="input:1", node=False, round_off=2.0**-24, inherited=3e-5
        ),
        "the first step": case("linear", [], (noisy(W, 1e-5), W), slot="input:1", node=False, round_off=2.0**-24),
    }


def off(x, error):
    return noisy(x, error).astype(np.float32) if error else x.astype(np.float32)


def two_steps(folder, weight=0.0, bias=0.0, gradients=(0.0, 0.0)):
    """One layer, forward and backward, at two steps; errors of the parameters of the second, and of the gradients
    that made them."""
    dy, dw, db = normal(16, 4), normal(4, 8), normal(4)
    for step in range(2):
        w, b = (off(x, error * step) for x, error in ((W, weight), (B, bias)))
        y, x = (X @ W.T + B).astype(np.float32), X.astype(np.float32)
        write_run(
            folder,
            {
                "Functional.linear.0.forward": {"in": [x, w, b], "out": [y]},
                "Functional.linear.0.backward": {
                    "in": [dy.astype(np.float32)],
                    "out": [x, off(dw, gradients[0]), off(db, gradients[1])],
                },
            },
            step=step,
        )
    return folder


def alike(write, tmp_path, **told):
    """Two runs of the same values, the target with errors; their causes of divergence."""
    state = np.random.default_rng(3).bit_generator.state
    runs = []
    for name, errors in (("target", told), ("golden", {})):
        normal.__closure__[0].cell_contents.bit_generator.state = state
        runs.append(write(tmp_path / name, **errors))
    report = npucmp.compare(*runs)
    return [root.cause.value for root in report.roots if root.cause.value != "PROPAGATED"]


@pytest.mark.parametrize(
    "errors, roots",
    [
        ({"weight": 1e-5, "gradients": (4e-7, 4e-7)}, []),
        ({"weight": 1e-2, "gradients": (4e-7, 4e-7)}, ["GAP"]),
        ({"bias": 3e-2, "gradients": (4e-7, 4e-7)}, ["GAP"]),
    ],
)
def test_a_parameter_may_be_off_by_what_its_gradient_made_of_it(tmp_path, errors, roots):
    assert alike(two_steps, tmp_path, **errors) == roots


def two_steps_of_a_norm(folder, scale=0.0, gradient=0.0):
    """A norm, whose backward writes the gradients of input, scale and shift: one place before what its forward read."""
    x, dy, ds, db = normal(16, 4), normal(16, 4), normal(4), normal(4)
    for step in range(2):
        given = [x.astype(np.float32), 4, off(1 + B, scale * step), off(B, 0), 1e-5]
        y = (given[0] - given[0].mean(-1, keepdims=True)) / given[0].std(-1, keepdims=True) * (1 + B) + B
        write_run(
            folder,
            {
                "Functional.layer_norm.0.forward": {"in": given, "out": [off(y, 0)]},
                "Functional.layer_norm.0.backward": {
                    "in": [off(dy, 0)],
                    "out": [off(dy, 0), off(ds, gradient), off(db, 0)],
                },
            },
            step=step,
        )
    return folder


@pytest.mark.parametrize("scale, roots", [(2e-6, []), (1e-2, ["GAP"])])
def test_gradients_stand_in_another_order_than_parameters(tmp_path, scale, roots):
    assert alike(two_steps_of_a_norm, tmp_path, scale=scale, gradient=4e-7) == roots


@pytest.mark.parametrize(
    "errors, roots",
    [
        ({"weight": 2e-4, "gradients": (4e-7, 4e-7)}, []),  # the statistics of the gradients agree, not their bits
        ({"weight": 2e-4}, ["GAP"]),  # of the step before everything is the same
        ({"weight": 3e-2, "gradients": (4e-7, 4e-7)}, ["GAP"]),
    ],
)
def test_statistics_that_agree_do_not_prove_that_gradients_do(tmp_path, errors, roots):
    def recorded(folder, **told):
        return with_statistics(two_steps(folder, **told), alone=True)

    assert alike(recorded, tmp_path, **errors) == roots


def reading_behind_a_weight(folder, read=0.0, first=0.0):
    """A lookup and a product at two steps; at the second what the lookup wrote is off, and its weight is not."""
    table, w = normal(32, 8), normal(8, 8)
    for step in range(2):
        y, error = table[:16], max(first, read * step)
        z = y @ w
        write_run(
            folder,
            {
                "Functional.embedding.0.forward": {"in": [np.arange(16), off(table, 0)], "out": [off(y, error)]},
                "Torch.matmul.0.forward": {"in": [off(y, error), off(w, 0)], "out": [off(z, first)]},
            },
            step=step,
        )
    return with_statistics(folder, alone=True)


@pytest.mark.parametrize("first, roots", [(4e-7, ["SUSPECT"]), (0.0, ["BORN"])])
def test_a_parameter_whose_figures_agree_to_the_last_digit_explains_nothing_of_what_reads_it(tmp_path, first, roots):
    assert alike(reading_behind_a_weight, tmp_path, read=1e-4, first=first) == roots


def test_an_update_that_is_wrong_in_several_parameters_excuses_none(tmp_path):
    """An optimizer that computes something else moves all parameters, some by no more than noise would have."""
    weights = [normal(8, 8, size=0.3) for _ in range(6)]
    errors = (1e-5, 1e-2, 1e-5, 1e-2, 1e-2, 1e-5)  # of which half are beyond what gradients of 4e-7 make
    x = normal(16, 8).astype(np.float32)
    gradients = [normal(8, 8) for _ in weights]
    for name, wrong in (("target", 1.0), ("golden", 0.0)):
        for step in range(2):
            operators = {}
            for place, (w, g, error) in enumerate(zip(weights, gradients, errors)):
                w = off(w, wrong * step * error)
                operators[f"Functional.linear.{place}.forward"] = {"in": [x, w], "out": [(x @ w.T).astype(np.float32)]}
                operators[f"Functional.linear.{place}.backward"] = {"in": [x], "out": [x, off(g, wrong * 4e-7)]}
            write_run(tmp_path / name, operators, step=step)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    first = min((root for one in report.comparisons for root in one.roots), key=lambda root: root.place)
    assert (first.cause.value, first.pair.operator.name) == ("GAP", "Functional.linear.0.forward")


def test_statistics_that_only_bound_an_error_do_not_make_an_update_wrong(tmp_path):
    """Of many parameters that moved by a little: their error is at least that, and no more is known."""
    weights = [normal(8, 8, size=0.3) for _ in range(6)]
    gradients = [normal(8, 8) for _ in weights]
    x = normal(16, 8).astype(np.float32)
    runs = []
    for name, wrong in (("target", 1.0), ("golden", 0.0)):
        for step in range(2):
            operators = {}
            for place, (w, g) in enumerate(zip(weights, gradients)):
                w = off(w, wrong * step * 1e-4)
                operators[f"Functional.linear.{place}.forward"] = {"in": [x, w], "out": [off(x, wrong * 1e-6)]}
                operators[f"Functional.linear.{place}.backward"] = {"in": [x], "out": [x, off(g, wrong * 1e-5)]}
            write_run(tmp_path / name, operators, step=step)
        runs.append(with_statistics(tmp_path / name, alone=True))
    assert not [root for one in npucmp.compare(*runs).comparisons for root in one.roots if root.cause.value == "GAP"]


def forward_of_two_steps(folder, weight=0.0, bias=0.0, spread=0.0, only=range(6), rate=1e-3, sign=False, damped=1.0):
    """Six layers without their backward. At the second step the target's parameters are scaled by 1 + weight and
    1 + bias, and biases have an error of the size `spread`; `sign` moves a bias, of noise alone, by the rate either
    way on both sides, on the golden's as far as `damped` says: where its noise is below Adam's epsilon."""
    jitter = np.random.default_rng(11 if folder.name == "target" else 12)
    layers = [(normal(32, 32, size=0.2), normal(32, size=0.1)) for _ in range(6)]
    for step in range(2):
        x, operators = normal(16, 32).astype(np.float32), {}
        for place, (w, b) in enumerate(layers):
            planted = step == 1 and place in only and folder.name == "target"
            told = w * (1 + weight * planted), b * (1 + bias * planted)
            told = told[0], told[1] + spread * planted * 0.1 * jitter.standard_normal(32)
            w, b = (one.astype(np.float32) for one in told)
            y = (x @ w.T + b).astype(np.float32)
            y = (y * (1 + 1e-7 * jitter.standard_normal(y.shape))).astype(np.float32)
            operators[f"Functional.linear.{place}.forward"] = {"in": [x, w, b], "out": [y]}
            x = np.tanh(y)
            operators[f"Torch.tanh.{place}.forward"] = {"in": [y], "out": [x]}
        write_run(folder, operators, step=step)
        steps = [(normal(32, 32), np.sign(jitter.standard_normal(32)) if sign else normal(32)) for _ in layers]
        shares = (1.0, damped if folder.name == "golden" else 1.0) if sign else (0.1, 1.0)
        layers = [(w - shares[0] * rate * dw, b - shares[1] * rate * db) for (w, b), (dw, db) in zip(layers, steps)]
    return folder


@pytest.mark.parametrize("record", [None, with_statistics], ids=["values", "statistics"])
@pytest.mark.parametrize(
    "errors, first, count",
    [
        ({"bias": 0.4}, "Functional.linear.0.forward", 6),
        ({"bias": 0.02}, "Functional.linear.0.forward", 6),
        ({"bias": -0.3, "only": [3]}, "Functional.linear.3.forward", 1),
        ({"bias": 0.4, "weight": 0.4}, "Functional.linear.0.forward", 6),
        ({"bias": 0.4, "rate": 3e-2}, "Functional.linear.0.forward", 6),  # steps that are larger than the fault
        ({"spread": 0.4}, "Functional.linear.0.forward", 6),
    ],
)
def test_a_bias_without_a_gradient_is_off_by_no_more_than_a_step_of_the_optimizer(
    tmp_path, record, errors, first, count
):
    report = both_sides(forward_of_two_steps, tmp_path, record, **errors)
    kinds = {"fed", "update"}  # the update is one root, its members propagate it
    roots = [root for one in report.comparisons for root in one.roots if kinds & {each.kind for each in root.evidence}]
    assert (roots[0].pair.operator.name, len(roots), report.exit_status) == (first, count, 1)


@pytest.mark.parametrize(
    "told", [{}, {"sign": True}, {"sign": True, "rate": 1e-2}, {"sign": True, "damped": 0.05}, {"rate": 3e-2}]
)
def test_a_bias_whose_gradient_is_noise_wanders_by_the_step_of_the_optimizer(tmp_path, told):
    report = both_sides(forward_of_two_steps, tmp_path, None, **told)
    assert [root for one in report.comparisons for root in one.roots] == [] and report.exit_status == 0


def both_sides(write, tmp_path, record, **told):
    """Two runs of the same values, the target with errors."""
    state = np.random.default_rng(4).bit_generator.state
    for name in ("target", "golden"):
        normal.__closure__[0].cell_contents.bit_generator.state = state
        folder = write(tmp_path / name, **told)
        if record is not None:
            record(folder, alone=True)
    return npucmp.compare(tmp_path / "target", tmp_path / "golden")


def running_means(folder, factor=1.0):
    """A norm over the batch at two steps, whose running statistics begin at 0 and 1."""
    x = normal(32, 8).astype(np.float32)
    y = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    for step in range(2):
        mean = (0.1 * step * (1 + x.mean(0)) * (factor if folder.name == "target" else 1.0)).astype(np.float32)
        read = [x, mean, np.ones(8, np.float32), np.ones(8, np.float32), np.zeros(8, np.float32)]
        noise = np.float32(1 + 2e-7 * (folder.name == "target"))
        write_run(
            folder,
            {
                "Functional.mul.0.forward": {"in": [x], "out": [x * noise]},
                "Functional.batch_norm.0.forward": {"in": [x * noise, *read[1:]], "out": [y]},
            },
            step=step,
        )
    return folder


@pytest.mark.parametrize("factor, roots", [(1.0, []), (1.4, ["GAP"])])
def test_a_running_statistic_that_began_at_zero_is_bounded_by_what_it_averages(tmp_path, factor, roots):
    report = both_sides(running_means, tmp_path, None, factor=factor)
    assert [root.cause.value for one in report.comparisons for root in one.roots] == roots


def layers(folder, spread=0.0, sparse=0.0, names=range(4)):
    """Four layers at two steps, whose gradients have errors of 4e-7; those of the second step's weights are spread over
    all elements, or in two of them."""
    sign = np.random.default_rng(6)
    for step in range(2):
        random, operators = np.random.default_rng(step), {}
        for layer in names:
            x, dy, w, dw = (random.standard_normal(shape) for shape in ((16, 32), (16, 32), (32, 32), (32, 32)))
            error = spread * np.abs(w) * sign.choice([-1, 1], w.shape)
            error.flat[5 * layer : 5 * layer + 2] += sparse * 32 / np.sqrt(2)
            off_gradient = dw + (4e-7 if spread or sparse else 0.0) * sign.standard_normal(dw.shape)
            arrived = dy + (4e-7 if spread or sparse else 0.0) * sign.standard_normal(dy.shape)
            operators[f"Functional.linear.{layer}.forward"] = {"in": [x, w + step * error], "out": [x @ w.T]}
            operators[f"Functional.linear.{layer}.backward"] = {"in": [arrived], "out": [dy @ w, off_gradient]}
        floats = {
            name: {way: [np.asarray(one, np.float32) for one in some] for way, some in tensors.items()}
            for name, tensors in operators.items()
        }
        write_run(folder, floats, step=step)
    return folder


@pytest.mark.parametrize(
    "errors, first",
    [
        ({"sparse": 2e-4}, ""),  # signs of gradients that are noise
        ({"spread": 2e-4}, "Functional.linear.0.forward"),  # as large, in all elements
        ({"spread": 2e-4, "names": range(2)}, ""),  # of two parameters: no evidence together
    ],
)
def test_an_error_in_all_elements_is_no_sign_of_noise(tmp_path, errors, first):
    names = {"names": errors["names"]} if "names" in errors else {}
    report = npucmp.compare(layers(tmp_path / "target", **errors), layers(tmp_path / "golden", **names))
    assert [root.pair.operator.name for root in report.roots[:1]] == ([first] if first else [])


def two_steps_of_a_shift(folder, shift=0.0, error=0.0):
    """Shifts of four elements in float16, of which the update of the second step moves each by 0.01."""
    normal = np.random.default_rng(3).standard_normal
    for step in range(2):
        x, dy = normal((16, 4)), normal((16, 4))
        b = np.array([0.1, -0.2, 0.1, 0.3]) + 0.01 * step
        moved = b + shift * step * np.array([0, 0, 1, 0])
        arrived = dy + error * np.random.default_rng(9).standard_normal(dy.shape)
        y = x + b
        tensors = {
            "Tensor.add.0.forward": {"in": [x], "out": [x]},
            "Functional.layer_norm.0.forward": {"in": [x, 4, 1 + 0 * b, moved, 1e-5], "out": [y]},
            "Functional.layer_norm.0.backward": {"in": [arrived], "out": [arrived, arrived[0], arrived[1]]},
        }
        halves = {
            name: {way: [np.float16(one) if np.ndim(one) else one for one in some] for way, some in each.items()}
            for name, each in tensors.items()
        }
        write_run(folder, halves, step=step)
    return folder


@pytest.mark.parametrize("shift, count", [(-0.02, 0), (-0.2, 1)])
def test_one_element_may_have_the_sign_of_noise(tmp_path, shift, count):
    report = npucmp.compare(
        two_steps_of_a_shift(tmp_path / "target", shift, 3e-3), two_steps_of_a_shift(tmp_path / "golden")
    )
    assert sum(root.slot == "input:3" for root in report.roots) == count


def two_steps_of_a_cell(folder, weight=0.0, gradient=0.0):
    """A layer that a step calls twice with one weight, first with zeros, so that this call has no gradient."""
    zeros, dy, dw = np.zeros((16, 8), np.float32), off(normal(16, 4), 0), normal(4, 8)
    for step in range(2):
        w, run = off(W * (1 + 0.01 * step), weight * step), {}
        for call, x in enumerate((zeros, off(X, 0))):
            run[f"Functional.linear.{call}.forward"] = {"in": [x, w], "out": [(x @ w.T).astype(np.float32)]}
        for call, made in ((1, off(dw, gradient)), (0, np.zeros((4, 8), np.float32))):
            run[f"Functional.linear.{call}.backward"] = {"in": [dy], "out": [off(X, 0), made]}
        write_run(folder, run, step=step)
    return folder


@pytest.mark.parametrize(
    "errors, roots",
    [
        ({"weight": 1e-4, "gradient": 4e-7}, []),
        ({"weight": 1e-2, "gradient": 4e-7}, ["GAP"]),
        ({"weight": 1e-4}, ["GAP"]),
    ],
)
def test_calls_that_share_a_parameter_have_one_gradient(tmp_path, errors, roots):
    assert alike(two_steps_of_a_cell, tmp_path, **errors) == roots


def signed_steps(folder, rate=1.0, still=(), noise=0.0):
    """Four layers before and after a step of 0.003 by the sign of each gradient, as Adam's first one; `noise` is the
    error of the gradients in float16, of which a share has another sign."""
    draw, jitter = np.random.default_rng(7), np.random.default_rng(8)
    weights, gradients = draw.standard_normal((4, 32, 32)) * 0.2, draw.standard_normal((4, 32, 32))
    wrong = gradients + noise * jitter.standard_normal(gradients.shape)
    x = draw.standard_normal((16, 32)).astype(np.float32)
    for step in range(2):
        operators = {}
        for layer, (w, g) in enumerate(zip(weights, wrong)):
            w = (w - step * 0.003 * (1.0 if layer in still else rate) * np.sign(g) * (layer not in still)).astype("f4")
            operators[f"Functional.linear.{layer}.forward"] = {"in": [x, w], "out": [x @ w.T]}
            arrived = off(x, noise).astype("f2")
            operators[f"Functional.linear.{layer}.backward"] = {"in": [arrived], "out": [arrived, g.astype("f2")]}
        write_run(folder, operators, step=step)
    return folder


@pytest.mark.parametrize(
    "wrong, first",
    [
        ({}, ""),
        ({"rate": 1.05}, "Functional.linear.0.forward"),  # in all parameters, each within √e of its gradient
        ({"still": [2]}, "Functional.linear.2.forward"),  # in one
    ],
)
def test_a_step_of_another_length_is_no_noise_of_gradients(tmp_path, wrong, first):
    target, golden = signed_steps(tmp_path / "target", noise=1e-3, **wrong), signed_steps(tmp_path / "golden")
    report = npucmp.compare(target, golden, recompute="none")
    gaps = [root.pair.operator.name for root in report.roots if root.cause.value == "GAP"]
    assert gaps[:1] == ([first] if first else [])
