"""Own modules against those of a library: fused products, what a module hands on, exchanged axes, reciprocals."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.synthetic import write_run

LAYERS, ROWS, WIDTH, HEADS = 4, 12, 32, 4


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normed(x, weight):
    away = x - x.mean(-1, keepdims=True)
    return (away / np.sqrt((away**2).mean(-1, keepdims=True) + 1e-5) * weight).astype(np.float32)


def weights(seed, *shape):
    return drawn(seed, *shape) / np.float32(np.sqrt(shape[-1]))


class Network:
    """Records of one spelling of a network. `strike`: a module, and what it makes of its output."""

    def __init__(self, mix, strike=None):
        self.records, self.mix, self.strike, self.numbers = {}, mix, strike, {}

    def function(self, kind, inputs, out):
        number = self.numbers[kind] = self.numbers.get(kind, -1) + 1
        if self.mix:
            self.records[f"{kind}.{number}.forward"] = {"in": inputs, "out": [out]}
        return out

    def module(self, path, x, out, **parameters):
        if self.strike is not None and path.startswith(self.strike[0]):
            out = self.strike[1](out).astype(np.float32)
        self.records[f"Module.{path}.forward.0"] = {"in": [x], "out": [out], "param": parameters}
        return out

    def linear(self, path, x, weight):
        out = self.function("Functional.linear", [x, weight], x @ weight.T)
        return self.module(f"{path}.Linear", x, out, weight=weight)

    def norm(self, path, x, weight):
        out = self.function("Functional.layer_norm", [x, weight], normed(x, weight))
        return self.module(f"{path}.LayerNorm", x, out, weight=weight)

    def add(self, x, y):
        return self.function("Tensor.__add__", [x, y], x + y)


def run(folder, own, mix, strike=None):
    """Layers with a fused product of queries, keys and values in the own spelling, and with three in the other."""
    network, x = Network(mix, strike), drawn(1, ROWS, WIDTH)
    for at in range(LAYERS):
        p = f"stack.{at}" if own else f"encoder.layer.{at}"
        parts = [weights(10 * at + k, WIDTH, WIDTH) for k in (2, 3, 4)]
        if own:
            q, k, v = np.split(network.linear(f"{p}.qkv", x, np.concatenate(parts)), 3, -1)
        else:
            q, k, v = (network.linear(f"{p}.{name}", x, one) for name, one in zip(("query", "key", "value"), parts))
        mixed = np.tanh(q) * k + v
        y = network.linear(f"{p}.{'proj' if own else 'output.dense'}", mixed, weights(10 * at + 5, WIDTH, WIDTH))
        x = network.norm(f"{p}.{'ln' if own else 'output.norm'}", network.add(y, x), drawn(10 * at + 6, WIDTH))
    top = {"framework": "pytorch", "level": "mix" if mix else "L0"}
    return write_run(folder, network.records, **top)


def first(target, golden, **options):
    roots = npucmp.compare(target, golden, jobs=1, precheck=False, **options).roots
    return roots[0].pair.operator.name if roots else ""


def exchanged(x):
    return np.concatenate((x[:, WIDTH : 2 * WIDTH], x[:, :WIDTH], x[:, 2 * WIDTH :]), -1)


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize(
    "strike",
    [
        None,
        ("stack.1.proj", lambda x: x + np.float32(0.3)),  # the norm behind it hides the shift
        ("stack.2.ln", lambda x: x * np.float32(1.05)),
        ("stack.3.qkv", exchanged),
    ],
)
def test_the_module_that_hands_on_other_values_is_first(tmp_path, mix, strike):
    golden = run(tmp_path / "golden", False, mix)
    target = run(tmp_path / "target", True, mix, strike)
    found = first(target, golden)
    assert found.startswith(f"Module.{strike[0]}." if strike else "") and (strike or not found)


def test_a_part_without_bias_is_no_part_of_a_product_that_adds_one(tmp_path):
    x, bias, given = drawn(1, ROWS, WIDTH), drawn(2, 2 * WIDTH), weights(3, 2 * WIDTH, WIDTH)
    whole = x @ given.T + bias
    a, b = np.split(whole, 2, -1)
    out = np.tanh(a) * b
    last = weights(4, WIDTH, WIDTH)
    target = {
        "Functional.linear.0.forward": {"in": [x, given, bias], "out": [whole]},
        "Functional.linear.1.forward": {"in": [out, last], "out": [out @ last.T]},
    }
    golden = {}
    for at, (part, weight, own) in enumerate(zip((a, b), np.split(given, 2), np.split(bias, 2))):
        golden[f"Torch.matmul.{at}.forward"] = {"in": [x, weight.T.copy()], "out": [x @ weight.T]}
        golden[f"Tensor.__add__.{at}.forward"] = {"in": [x @ weight.T, own.copy()], "out": [part]}
    golden["Torch.matmul.2.forward"] = {"in": [out, last.T.copy()], "out": [out @ last.T]}
    top = {"framework": "pytorch"}
    both = write_run(tmp_path / "target", target, **top), write_run(tmp_path / "golden", golden, **top)
    assert not first(*both, align="content")


def scores(folder, merged, exchanged_at=None):
    """Products of queries and keys with four axes or with merged heads. One of them may have exchanged axes."""
    records = {}
    for at in range(3):
        q, k = drawn(2 * at, 2, HEADS, ROWS, 8), drawn(2 * at + 1, 2, HEADS, 8, ROWS)
        out = (q @ k).astype(np.float32)
        out = np.ascontiguousarray(out.swapaxes(2, 3)) if at == exchanged_at else out
        shaped = [one.reshape(-1, *one.shape[2:]) if merged else one for one in (q, k, out)]
        records[f"Torch.{'bmm' if merged else 'matmul'}.{at}.forward"] = {"in": shaped[:2], "out": [shaped[2]]}
        half = out * np.float32(0.5)
        records[f"Tensor.{'mul' if merged else '__mul__'}.{at}.forward"] = {"in": [out], "out": [half]}
    return write_run(folder, records, framework="pytorch")


@pytest.mark.parametrize("at", [None, 1])
def test_exchanged_axes_are_a_difference_even_where_heads_are_merged(tmp_path, at):
    golden, target = scores(tmp_path / "golden", True), scores(tmp_path / "target", False, at)
    assert first(target, golden, align="content") == ("" if at is None else "Torch.matmul.1.forward")


def test_a_product_with_the_reciprocal_is_no_truncated_division(tmp_path):
    x, divisor = drawn(1, 8, 96), np.sqrt(np.float32(8))
    runs = []
    for name, out in (("target", x * (np.float32(1) / divisor)), ("golden", x / divisor)):
        records = {"Torch.div.0.forward": {"in": [x, np.array(divisor)], "out": [out.astype(np.float32)]}}
        runs.append(write_run(tmp_path / name, records, framework="pytorch"))
    assert not first(*runs)
