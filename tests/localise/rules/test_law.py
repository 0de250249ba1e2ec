"""Laws of operators, which hold for any values that an operator reads."""

from __future__ import annotations

import json

import numpy as np
import pytest

import npucmp
from tests.localise.rules.craft import RuleContract, case, drawn, spelled
from tests.synthetic import write_run

normal, noisy = drawn(__name__)

X = normal(8, 16, 64, size=4)
READ = [(noisy(X, 0.02), X, "float16")]  # explains an error of 0.16 and more
WIDE = [(noisy(X, 0.02), X, "bfloat16")]
W = 1 + normal(64, size=0.3)


def half(x):
    return x.astype(np.float16).astype(np.float64)


def bfloat16(x):
    """Rounded to the nearest number of 8 bits."""
    part, power = np.frexp(x)
    return np.ldexp(np.rint(part * 256) / 256, power)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def both(function, of=READ):
    return function(of[0][0]), function(of[0][1])


def off(wrong, right=None, of=READ, dtype="float16", round_to=half):
    """What an operator makes of its inputs, the target by another function than the golden."""
    return round_to(wrong(of[0][0])), round_to((right or wrong)(of[0][1])), dtype


def scaled_softmax(spelling, factor=1.01):
    return case(spelling, READ, off(lambda x: factor * softmax(x), softmax))


def with_nan_rows(x):
    y = softmax(x)
    y[:, 3] = np.nan
    return y


def with_zero_rows(x):
    y = softmax(x)
    y[:, 3] = 0.0
    return y


def uniform(x):
    return np.full_like(x, 1 / 64)


def scattered(x):
    """The gradient of a pool or of a choice: each element that arrives in the place of one of two."""
    return np.stack([np.where(X > 0, x, 0.0), np.where(X > 0, 0.0, x)], axis=-1)


def shifted(x):
    return scattered(x + 0.1)


def returned(op, wrong, right=None, of=READ, phase="backward", **more):
    return case(op, of, off(wrong, right, of=of, **more), phase=phase)


def received(op, factor):
    """What a rank received, where the sender's tensor has an error that came from elsewhere."""
    sent = READ[0][:2]
    if op == "all_gather":
        return case(op, [], (np.stack([factor * sent[0]] * 2), np.stack([sent[1]] * 2)), [("input:0", sent)])
    return case(op, [], (factor * sent[0], sent[1]), [("input:0", sent)])


TWO = [*READ, (half(noisy(X, 0.02) / 4), half(X / 4), "float16")]
ROUTED = ("max_pool2d", "topk", "sort", "index_select", "gather", "slice", "getitem", "add", "mean", "interpolate")
CENTRED = X - X.mean()
POOLED = normal(8, 16, 64, 2)
GRADIENT = [(noisy(X[0], 0.02), X[0], "float16"), (noisy(CENTRED, 0.02), CENTRED, "float16")]
FIRST, HALF = ({"input:dim": 0},) * 2, ({"input:1": 0.5},) * 2
SPELLED = ("Softmax", "SoftmaxV2", "aten._softmax.int", "npu_scaled_masked_softmax", "ScaledMaskedSoftmax", "softmax")
EMBEDDED = [(np.arange(16), np.arange(16), "int64"), (noisy(X[0], 0.02), X[0], "float16")]


class TestLaw(RuleContract):
    name = "law"
    fires = {
        **{f"rows of {one} sum to 1.01": scaled_softmax(one) for one in SPELLED},
        **{f"{one} and 0.99": scaled_softmax(one, 0.99) for one in spelled("softmax", scaled_softmax)},
        "rows of bfloat16 sum to 1.01": case(
            "softmax", WIDE, off(lambda x: 1.01 * softmax(x), softmax, WIDE, "bfloat16", bfloat16)
        ),
        "the first axis": case(
            "softmax", READ, off(lambda x: 1.01 * softmax(x, 0), lambda x: softmax(x, 0)), arguments=FIRST
        ),
        "rows of one side are NaN on both": case(
            "softmax", READ, off(lambda x: 1.01 * with_nan_rows(x), with_nan_rows)
        ),
        "a relu below zero": case("relu", READ, off(lambda x: np.maximum(x, 0) - 0.2, lambda x: np.maximum(x, 0))),
        "a sigmoid above one": case(
            "sigmoid", READ, off(lambda x: 1.01 / (1 + np.exp(-x)), lambda x: 1 / (1 + np.exp(-x)))
        ),
        "a norm without the spread of one": case("layer_norm", READ, off(lambda x: 1.02 * norm(x), norm)),
        "a norm off its centre": case("LayerNorm", READ, off(lambda x: norm(x) + 0.02, norm)),
        "a transpose that scales": case(
            "transpose", READ, off(lambda x: 1.01 * np.swapaxes(x, 0, 1), lambda x: np.swapaxes(x, 0, 1))
        ),
        "rows of a table that are none of it": case(
            "embedding", EMBEDDED, (half(1.02 * EMBEDDED[1][0]), half(X[0]), "float16")
        ),
        "a largest that is none": case("amax", READ, off(lambda x: 1.02 * x.max(-1), lambda x: x.max(-1))),
        "a smallest that is none": case("amin", READ, off(lambda x: 1.02 * x.min(-1), lambda x: x.min(-1))),
        "a largest of two tensors": case("amax", TWO, off(lambda x: 1.02 * x.max(-1), lambda x: x.max(-1))),
        "a smallest of two tensors": case("amin", TWO, off(lambda x: 1.02 * x.min(-1), lambda x: x.min(-1))),
        "a smallest above that of the input": case("amin", READ, off(lambda x: 0.98 * x.min(-1), lambda x: x.min(-1))),
        **{
            f"a gradient of {one} with another sum": returned(one, shifted, scattered)
            for one in ROUTED
        },
        "a gradient of a relu beyond what arrives": returned(
            "relu", lambda x: 1.03 * np.where(X > 0, x, 0.0), lambda x: np.where(X > 0, x, 0.0)
        ),
        "of a graph, which reads the forward too": case(
            "MaxPoolGrad",
            [*READ, (noisy(POOLED, 0.01), POOLED, "float16")],
            off(shifted, scattered),
            phase="",
        ),
        **{f"{one}, not what was sent": received(one, 1.0001) for one in ("recv", "irecv", "broadcast")},
        "a dropout beyond its factor": case(
            "dropout", READ, off(lambda x: np.where(x > 10, 2.2, 2.0) * x, lambda x: 2.0 * x), arguments=HALF
        ),
    }  # fmt: skip
    silent = {
        "a softmax of inputs that differ": case("softmax", READ, off(softmax)),
        "of bfloat16": case("softmax", WIDE, off(softmax, of=WIDE, dtype="bfloat16", round_to=bfloat16)),
        "rows that round to one side": case("softmax", READ, off(uniform)),
        "as bfloat16 against float32": case(
            "softmax", WIDE, (bfloat16(softmax(WIDE[0][0])), softmax(X), "bfloat16", "float32")
        ),
        "rows of NaN on both sides": case("softmax", READ, off(with_nan_rows)),
        "rows of zeros on both sides": case("softmax", READ, off(with_zero_rows)),
        "the golden breaks it too": case("softmax", READ, off(lambda x: 1.01 * softmax(x))),
        "logarithms, which no mean tells": case(
            "log_softmax", READ, off(lambda x: np.log(softmax(x)) - 0.05, lambda x: np.log(softmax(x)))
        ),
        "its gradient": case("softmax", READ, off(lambda x: 1.01 * softmax(x), softmax), phase="backward"),
        **{f"a gradient of {one}": returned(one, scattered) for one in ROUTED},
        **{
            f"a gradient of {one} in bfloat16": returned(
                one, lambda x: x / 49.0, of=WIDE, dtype="bfloat16", round_to=bfloat16
            )
            for one in ("avg_pool2d", "interpolate")
        },
        **{f"{one}, what was sent": received(one, 1.0) for one in ("recv", "irecv", "broadcast")},
        "a gather, which holds more than was sent": received("all_gather", 1.0001),
        "a gradient that is doubled on both sides": returned("add", lambda x: 2.02 * x, lambda x: 2.0 * x),
        "a gradient of a relu": returned("relu", lambda x: np.where(X > 0, x, 0.0)),
        "a gradient of a leaky relu": returned("leaky_relu", lambda x: 1.05 * x, lambda x: x),
        "the sum of two gradients, of which one sums to nothing": case(
            "AddN",
            [*READ, (noisy(CENTRED, 0.02) + 0.1, CENTRED, "float16")],
            (half(READ[0][0] + noisy(CENTRED, 0.02) + 0.1), half(X + CENTRED), "float16"),
            phase="backward",
        ),
        "a gradient of a sum, which reads what sums to nothing": case(
            "ReduceSumGrad",
            GRADIENT,
            (half(1e-4 * np.abs(noisy(X, 0.02))), half(1e-4 * np.abs(X)), "float16"),
            phase="",
        ),
        "a norm with weights": case("layer_norm", [*READ, (W, W, "float16")], off(lambda x: norm(x) * W)),
        "a leaky relu": case("leaky_relu", READ, off(lambda x: np.where(x > 0, x, 0.1 * x))),
        "a transpose": case("transpose", READ, off(lambda x: np.swapaxes(x, 0, 1))),
        "a largest": case("amax", READ, off(lambda x: x.max(-1))),
        "a smallest": case("amin", READ, off(lambda x: x.min(-1))),
        "a product": case("mul", READ, off(lambda x: 1.01 * x, lambda x: x)),
        "noise of the limit's size": case("softmax", READ, (noisy(softmax(X), 3e-3), softmax(X), "float16")),
    }  # fmt: skip


def attention(folder, factor=1.0, noise=0.0, dtype=np.float16, inputs=True, outputs=True):
    """A product, a softmax and a product; the batch has a relative error, as that of another card."""
    random, jitter = np.random.default_rng(1), np.random.default_rng(5)
    x = random.standard_normal((4, 32, 64))
    x = (x * (1 + noise * jitter.standard_normal(x.shape))).astype(dtype).astype(np.float64)
    scores = 2 * x @ np.swapaxes(x[:, ::-1], 1, 2) / 8
    scores = (scores * (1 + 2 * noise * jitter.standard_normal(scores.shape))).astype(dtype)
    shares = (factor * softmax(scores.astype(np.float64))).astype(dtype)
    y = (shares.astype(np.float64) @ x).astype(dtype)
    x = x.astype(dtype)
    operators = {
        "Torch.matmul.0.forward": ([x, x], [scores]),
        "Functional.softmax.0.forward": ([scores], [shares]),
        "Torch.bmm.0.forward": ([shares, x], [y]),
    }
    shown = {name: {"in": read, "out": wrote if outputs else []} for name, (read, wrote) in operators.items()}
    write_run(folder, shown)
    if not inputs:
        for file in folder.rglob("dump.json"):
            dump = json.loads(file.read_text())
            for record in dump["data"].values():
                del record["input_args"], record["input_kwargs"]
            file.write_text(json.dumps(dump))


@pytest.mark.parametrize("factor, words", [(1.01, "rows sum to 1.0"), (0.99, "rows sum to 0.9")])
def test_a_softmax_whose_rows_do_not_sum_to_1_is_named_although_its_inputs_explain_the_error(tmp_path, factor, words):
    attention(tmp_path / "golden")
    attention(tmp_path / "target", factor, 3e-3)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    root = report.roots[0]
    assert (root.cause.value, root.pair.operator.name, root.slot) == (
        "BORN",
        "Functional.softmax.0.forward",
        "output:0",
    )
    assert root.rule == "law" and words in root.because
    assert report.exit_status == 1


@pytest.mark.parametrize("told, cause", [({"outputs": False}, ["GAP"]), ({"inputs": False}, ["UNKNOWN"])])
def test_a_law_is_seen_where_inputs_or_outputs_alone_were_recorded(tmp_path, told, cause):
    attention(tmp_path / "golden", dtype=np.float16, **told)
    attention(tmp_path / "target", 1.0015, 1e-3, dtype=np.float16, **told)  # below every limit
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    assert [root.cause.value for root in report.roots if root.rule == "law"] == cause
    assert report.exit_status == 1


@pytest.mark.parametrize("told", [{}, {"outputs": False}, {"inputs": False}])
@pytest.mark.parametrize("dtype, noise", [(np.float16, 3e-3), (np.float16, 4e-4), (np.float32, 3e-7)])
def test_a_softmax_that_keeps_its_law_is_silent(tmp_path, told, dtype, noise):
    attention(tmp_path / "golden", dtype=dtype, **told)
    attention(tmp_path / "target", 1.0, noise, dtype=dtype, **told)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    assert "law" not in [finding.rule for finding in report.findings]
