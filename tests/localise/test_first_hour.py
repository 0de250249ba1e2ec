"""Faults that a user plants within an hour: place 1 is right, no innocent operator follows, each sentence is true."""

import numpy as np
import pytest

import npucmp
from tests.reports import screen
from tests.synthetic import with_statistics, write_run

RANDOM = np.random.default_rng(5)
X, W, GIVEN = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((16, 12), (12, 12), (16, 12)))


def compared(folder, target, golden, statistics):
    paths = []
    for name, run in (("target", target), ("golden", golden)):
        path = write_run(folder / name, run)
        paths.append(with_statistics(path, alone=True) if statistics else path)
    return npucmp.compare(*paths)


def places(report):
    return [(one.pair.operator.name, one.cause.value) for one in report.roots if one.cause.value != "PROPAGATED"]


def reasons(report):
    return report.roots[0].because


def call(*inputs, out, **named):
    return {"in": [*inputs], "out": [out], "kwargs": named}


def single(value):
    return np.asarray(value, np.float32)


def loss_of(weight):
    """A weighted loss with its gradient; one run does not pass the weight."""
    given = {"weight": single(weight)} if weight != 1.0 else {}
    loss = single(weight * np.square(X - GIVEN).mean())
    gradient = (2 * weight * (X - GIVEN) / X.size).astype(np.float32)
    inner = (gradient @ W.T).astype(np.float32)
    return {
        "Functional.linear.0.forward": call(X, W, out=(X @ W.T).astype(np.float32)),
        "Functional.mse_loss.0.forward": call(X, GIVEN, out=loss, **given),
        "Functional.mse_loss.0.backward": call(single(1.0), out=gradient),
        "Torch.matmul.0.forward": call(gradient, W.T.copy(), out=inner),
    }


@pytest.mark.parametrize("statistics", [False, True])
def test_an_input_that_one_run_alone_passes_is_the_cause(tmp_path, statistics):
    report = compared(tmp_path, loss_of(1.0), loss_of(2.5), statistics)
    assert places(report) == [("Functional.mse_loss.0.forward", "BORN")]
    assert "only the golden passes input:weight to this call" in reasons(report)


def swapped(is_swapped):
    one, other = np.cos(X), np.sin(X)
    pair = [other, one] if is_swapped else [one, other]
    joined = np.concatenate(pair, axis=1)
    projected = (joined @ np.concatenate([W, 2 * W])).astype(np.float32)
    return {
        "Torch.cos.0.forward": call(X, out=one),
        "Torch.sin.0.forward": call(X, out=other),
        "Torch.cat.0.forward": call(*pair, out=joined),
        "Torch.matmul.0.forward": call(joined, np.concatenate([W, 2 * W]), out=projected),
        "Torch.tanh.0.forward": call(projected, out=np.tanh(projected)),
    }


def test_statistics_tell_that_another_recorded_tensor_was_read(tmp_path):
    report = compared(tmp_path, swapped(True), swapped(False), statistics=True)
    assert places(report) == [("Torch.cat.0.forward", "GAP")]
    words = "statistics of Torch.sin.0.forward output:0 in the target, of Torch.cos.0.forward output:0 in the golden"
    assert words in reasons(report)
    assert "not dumped" not in reasons(report)


def picked(name, index):
    taken = np.tanh(X)[np.arange(16), index].astype(np.float32)
    return {
        "Torch.tanh.0.forward": call(X, out=np.tanh(X)),
        f"Torch.{name}.0.forward": call(X, out=index),
        "Torch.sin.0.forward": call(GIVEN[:4], out=np.sin(GIVEN[:4])),
        "Torch.exp.0.forward": call(taken, out=np.exp(taken)),
    }


@pytest.mark.parametrize("statistics", [False, True])
def test_operators_of_one_run_that_make_indices_are_named_before_a_gap(tmp_path, statistics):
    report = compared(tmp_path, picked("argmin", X.argmin(1)), picked("argmax", X.argmax(1)), statistics)
    assert places(report)[0] == ("Torch.exp.0.forward", "GAP")
    assert "Torch.argmin.0.forward (only in the target)" in reasons(report)
    assert "Torch.argmax.0.forward (only in the golden)" in reasons(report)


def scaled(is_exp, noise):
    scale = single(2.6592600)
    factor = single(np.exp(scale)) if is_exp else scale
    product = (X * (1 + noise * GIVEN) @ W.T).astype(np.float32)
    made = {"Tensor.exp.0.forward": call(scale, out=factor)} if is_exp else {}
    scores = (product * factor).astype(np.float32)
    return {
        "Functional.linear.0.forward": call(X, W, out=product),
        "Torch.tanh.0.forward": call(product, out=np.tanh(product)),
        **made,
        "Tensor.__mul__.0.forward": call(factor, product, out=scores),
        "Functional.softmax.0.forward": call(scores, out=np.tanh(scores)),
    }


def test_a_number_that_one_run_did_not_compute_exceeds_the_noise_of_statistics(tmp_path):
    report = compared(tmp_path, scaled(False, 1e-7), scaled(True, 0.0), statistics=True)
    assert report.exit_status == 1
    assert places(report)[0] == ("Tensor.__mul__.0.forward", "GAP")


def selected(name, keep):
    ids = np.arange(16)[keep]
    rows = X[ids]
    return {
        "Torch.tanh.0.forward": call(X, out=np.tanh(X)),
        f"Tensor.{name}.0.forward": call(X[:, 0].copy(), 0.0, out=keep),
        "Functional.embedding.0.forward": call(ids, X, out=rows),
        "Torch.exp.0.forward": call(rows, out=np.exp(rows)),
    }


def test_a_choice_of_one_run_is_no_setup(tmp_path):
    counts = np.round(X[:, 0])
    report = compared(tmp_path, selected("__ge__", counts >= 0), selected("__gt__", counts > 0), statistics=False)
    assert "inputs differ: " not in screen(report)
    assert "shapes differ" not in screen(report)


def test_a_gradient_of_a_call_with_another_argument_is_no_root(tmp_path):
    def normalised(dim):
        size = np.sqrt(np.square(X).sum(dim, keepdims=True))
        out, slope = X / size, (GIVEN - X / size * (GIVEN * X / size).sum(dim, keepdims=True)) / size
        forward = {"in": [X], "out": [out], "kwargs": {"dim": dim}}
        return {
            "Functional.normalize.0.forward": forward,
            "Functional.normalize.0.backward": call(GIVEN, out=(slope * (1 + 9 * (dim == 0))).astype(np.float32)),
        }

    report = compared(tmp_path, normalised(0), normalised(1), statistics=False)
    assert places(report) == [("Functional.normalize.0.forward", "BORN")]


def halved(is_halved):
    given = (GIVEN > 0).astype(np.float32)
    scores = 3 * np.tanh(X)
    half = (0.5 * scores).astype(np.float32)
    read = half if is_halved else scores
    risk = 1 / (1 + np.exp(-read))
    made = {"Tensor.__rmul__.0.forward": call(scores, 0.5, out=half)} if is_halved else {}
    kind = "Functional.binary_cross_entropy_with_logits.0"
    return {
        "Torch.tanh.0.forward": call(X, out=scores),
        **made,
        f"{kind}.forward": call(read, given, out=single(np.square(risk - given).mean())),
        f"{kind}.backward": call(single(1.0), out=((risk - given) / X.size).astype(np.float32)),
    }


def test_behind_a_root_statistics_accuse_no_gradient_that_reads_what_descends(tmp_path):
    report = compared(tmp_path, halved(False), halved(True), statistics=True)
    assert places(report) == [("Functional.binary_cross_entropy_with_logits.0.forward", "GAP")]
