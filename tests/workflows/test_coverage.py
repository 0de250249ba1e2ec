"""AGREES is said of what was compared: incomplete pairs exit with 2, complete clean pairs with 0."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp.cli import npucmp as command
from npucmp.errors import UsageError
from tests.synthetic import write_run

WIDTH, ROWS = 16, 12
APIS = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate", "up"), "linear")}
APIS.update(scores="matmul", context="matmul")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Network:
    """A few layers of attention and a gated product in numpy, recorded operator by operator.

    fused     q, k, v and attention are one operator; flash: attention is
    faulty    the fused operator writes something else, and what follows reads the right values
    view      the output of a norm goes through a view
    ends      attention is what the run ends with
    masked    scores are masked, by a row that is expanded to all rows
    counted   a comparison of two numbers stands between the products
    packed    letters: q, k and v are one product, in this order
    lost      letter of the part of that product that is recorded as zeros
    turned    queries and keys are turned on the way to the scores, and no operator records that
    """

    def __init__(self, seed=0, layers=3, level="L1", **options):
        self.options, self.level, self.layers = options, level, layers
        self.random = np.random.RandomState(seed)
        self.operators, self.counts = {}, {}
        self.backward = {}

    def has(self, name):
        return bool(self.options.get(name))

    def draw(self, *shape):
        return self.random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))

    def call(self, name, inputs, *outputs):
        """One record; at level L0 a module does not record its parameters."""
        name = name if self.level == "L0" else APIS.get(name, name)
        number = self.counts[name] = self.counts.get(name, -1) + 1
        if self.level == "L0":
            inputs = inputs[:1]
            name = f"Module.layer{number}.{name}.forward.0"
        else:
            name = f"Functional.{name}.{number}.forward"
        self.operators[name] = {"in": list(inputs), "out": list(outputs)}
        return outputs[0]

    def linear(self, name, x, weight, recorded=True):
        y = (x @ weight.T).astype(np.float32)
        return self.call(name, [x, weight], y) if recorded else y

    def run(self):
        x = self.draw(ROWS, WIDTH)
        for layer in range(self.layers):
            last = layer == self.layers - 1
            x = self.attention(self.norm(x), x, last)
            x = self.gated(self.norm(x), x)
        return self.operators

    def norm(self, x):
        weight = self.draw(WIDTH)
        y = ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight).astype(np.float32)
        self.call("layer_norm", [x, weight], y)
        if self.has("view"):
            self.counts.setdefault("view", -1)
            y = self.call("view", [y], y.reshape(3, -1, WIDTH)).reshape(y.shape)
        return y

    def attention(self, x, residual, last):
        weights = [self.draw(WIDTH, WIDTH) for _ in range(3)]
        fused = self.has("fused")
        alone = not (fused or self.has("packed"))
        q, k, v = (self.linear(f"{name}_proj", x, w, alone) for name, w in zip("qkv", weights))
        if self.has("packed"):
            parts = dict(zip("qkv", zip(weights, (q, k, v))))
            if self.has("lost"):
                parts[self.options["lost"]] = [np.zeros_like(one) for one in parts[self.options["lost"]]]
            weight, y = (np.concatenate([parts[name][i] for name in self.options["packed"]], -i) for i in (0, 1))
            self.call("linear", [x, weight], y)
        if self.has("turned"):
            q, k = -q[:, ::-1], -k[:, ::-1]
        scores = (q @ k.T / 4.0).astype(np.float32)
        places, mask = np.arange(ROWS)[None], np.ones((1, ROWS), bool)
        if self.has("masked"):
            mask = self.call("cumsum", [mask], places) < ROWS - 2
        visible = np.where(mask, scores, np.float32(-1e30))
        shares = softmax(visible).astype(np.float32)
        y = (shares @ v).astype(np.float32)
        if fused:
            wrong = y * np.float32(1.5) if self.has("faulty") else y
            self.call("npu_attention", [x, np.concatenate(weights)], wrong)
        elif self.has("flash"):
            self.call("scaled_dot_product_attention", [q, k, v], y)
        else:
            self.call("scores", [q, k], scores)
            if self.has("masked"):
                self.call("le", [places], mask)
                self.call("where", [np.broadcast_to(mask, scores.shape), scores], visible)
            self.call("softmax", [visible], shares)
            self.call("context", [shares, v], y)
        if last and self.has("ends"):
            return y
        out = self.linear("linear", y, self.draw(WIDTH, WIDTH))
        return self.call("add", [residual, out], residual + out)

    def gated(self, x, residual):
        gate, up, down = self.draw(24, WIDTH), self.draw(24, WIDTH), self.draw(WIDTH, 24)
        a = self.linear("gate", x, gate)
        if self.has("counted"):
            self.call("eq", [np.array(3), np.array(4)], np.array(False))
        b = self.linear("up", x, up)
        y = self.call("glu", [a, b], (a / (1 + np.exp(-a)) * b).astype(np.float32))
        out = self.linear("linear", y, down)
        return self.call("add", [residual, out], residual + out)


def network(**options):
    return Network(**options).run()


def recomputed(operators):
    """The operators, and all of them once more, as checkpointing of activations records them."""
    counts = Counter(name.split(".")[1] for name in operators)
    found = dict(operators)
    for name, one in operators.items():
        kind, number = name.split(".")[1:3]
        found[f"Functional.{kind}.{int(number) + counts[kind]}.forward"] = one
    return found


def without(operators, *names, slot=None):
    """The operators without those whose name holds one of the names, or without one list of their tensors."""
    if slot is None:
        return {key: one for key, one in operators.items() if not any(name in key for name in names)}
    return {key: {**one, slot: []} if any(name in key for name in names) else one for key, one in operators.items()}


def status(tmp_path, target, golden, **options):
    for name, runs in (("target", target), ("golden", golden)):
        for step, operators in enumerate(runs if isinstance(runs, list) else [runs]):
            write_run(tmp_path / name, operators, step)
    return npucmp.compare(tmp_path / "target", tmp_path / "golden", precheck=False, **options)


def test_operators_that_ran_once_more_need_no_partner(tmp_path):
    """A comparison of numbers writes nothing by which it is known again: its neighbours ran again."""
    golden = recomputed(network(counted=True))
    assert status(tmp_path / "clean", network(counted=True), golden).exit_status == 0
    last = max(key for key in golden if ".eq." in key)
    other = {**golden, last: {"in": golden[last]["in"], "out": [np.array(True)]}}
    assert status(tmp_path / "other", network(counted=True), other).exit_status == 2


def shares(is_fused, *lost):
    """A softmax between two others, forward and backward; the golden computes it by three operators."""
    random = np.random.RandomState(4)
    x, g = (random.standard_normal((ROWS, 6)).astype(np.float32) for _ in range(2))
    terms = np.exp(x)
    total = terms.sum(-1, keepdims=True)
    y = terms / total
    of_terms, of_total = g / total, -(g * terms / total**2).sum(-1, keepdims=True)
    back = y * (g - (g * y).sum(-1, keepdims=True))
    forward = {"Functional.softmax.0.forward": {"in": [x], "out": [y]}}
    backward = {"Functional.softmax.0.backward": {"in": [g], "out": [back]}}
    if not is_fused:
        forward = {
            "Torch.exp.0.forward": {"in": [x], "out": [terms]},
            "Torch.sum.0.forward": {"in": [terms], "out": [total]},
            "Tensor.__truediv__.0.forward": {"in": [terms, total], "out": [y]},
        }
        backward = {
            "Tensor.__truediv__.0.backward": {"in": [g], "out": [of_terms, of_total]},
            "Torch.sum.0.backward": {"in": [of_total], "out": [np.repeat(of_total, 6, -1)]},
            "Torch.exp.0.backward": {"in": [of_terms + of_total], "out": [back]},
        }
    found = {
        "Functional.tanh.0.forward": {"in": [np.arctan(x)], "out": [x]},
        **forward,
        "Functional.sigmoid.0.forward": {"in": [y], "out": [1 / (1 + np.exp(-y))]},
        "Functional.sigmoid.0.backward": {"in": [g * 2], "out": [g]},
        **backward,
        "Functional.tanh.0.backward": {"in": [back], "out": [back * 3]},
    }
    return {name: one for name, one in found.items() if not any(word in name for word in lost)}


@pytest.mark.parametrize(
    "added, lost, open_tensors",
    [
        ((), (), 0),
        (np.float32([0.37]), (), 0),  # only the effect of a number counts
        (np.float32([0.37, -2.1, 0.9]), (), 11),  # a tensor that entered, and its gradient, were not compared
        ((), ("tanh.0.backward",), 2),
        ((), ("sigmoid.0.backward",), 3),
    ],
)
def test_the_backward_of_a_fused_operator_may_be_that_of_other_autograd_nodes(tmp_path, added, lost, open_tensors):
    """Contents do not link the gradients of the golden's sum to those beside it; its forward lies between compared
    tensors."""
    golden, random = shares(False), np.random.RandomState(8)
    golden["Torch.exp.0.forward"]["in"] += [added] if len(added) else []
    golden["Torch.sum.0.backward"] = {
        "in": [random.standard_normal((ROWS, 1)).astype(np.float32)],
        "out": [random.standard_normal((ROWS, 6)).astype(np.float32)],
    }
    report = status(tmp_path, shares(True, *lost), golden)
    assert (report.exit_status, report.coverage.tensors) == (2 if open_tensors else 0, open_tensors)


def run(*arguments):
    return CliRunner().invoke(command, ["compare", *map(str, arguments), "--no-precheck"])


@pytest.fixture
def few(tmp_path):
    """A dump of which operators are missing, and the golden."""
    target = without(network(), "norm.5", "add.5")
    return write_run(tmp_path / "target", target), write_run(tmp_path / "golden", network())


def test_a_coverage_that_is_no_share_is_refused(few):
    assert run(*few, "--coverage", "1.5").exit_code == 2
    with pytest.raises(UsageError, match=r"coverage is -0\.5, it must be a share from 0 to 1"):
        npucmp.compare(*few, coverage=-0.5)


def test_a_rank_without_a_partner_is_open_unless_it_was_excluded(tmp_path):
    for rank in (0, 1):
        write_run(tmp_path / "golden", network(seed=rank), rank=rank)
    shutil.copytree(tmp_path / "golden", tmp_path / "target")
    shutil.rmtree(tmp_path / "target" / "step0" / "rank1")
    found = run(tmp_path / "target", tmp_path / "golden")
    assert found.exit_code == 2 and "no partner, step 0 rank 1" in found.output.splitlines()[-1]
    for options in (["--rank", "0"], ["--coverage", "0.4"]):
        assert run(tmp_path / "target", tmp_path / "golden", *options).exit_code == 0
    assert "excluded by --rank 0" in run(tmp_path / "target", tmp_path / "golden", "--rank", "0").output
    assert run(tmp_path / "target", tmp_path / "golden", "--coverage", "0.6").exit_code == 2


def weights(layers=2, zeroed=()):
    random, found = np.random.RandomState(4), {}
    for layer in range(layers):
        for name, shape in (("self_attn.q_proj", (8, 8)), ("self_attn.k_proj", (8, 8)), ("self_attn.v_proj", (8, 8)),
                            ("self_attn.o_proj", (8, 8)), ("mlp.gate_proj", (16, 8)), ("mlp.up_proj", (16, 8)),
                            ("mlp.down_proj", (8, 16)), ("input_layernorm", (8,))):  # fmt: skip
            values = random.standard_normal(shape).astype(np.float32)
            found[f"model.layers.{layer}.{name}.weight"] = values * 0 if name in zeroed and layer == 0 else values
    return found


def packed(tensors, how):
    """A checkpoint of transformers in the names of vLLM or Megatron, with q, k, v and gate, up in one tensor each."""
    found = {}
    for name, values in tensors.items():
        if "q_proj" in name or "gate_proj" in name:
            parts = ("q_proj", "k_proj", "v_proj") if "q_proj" in name else ("gate_proj", "up_proj")
            part = "q_proj" if "q_proj" in name else "gate_proj"
            values = np.concatenate([tensors[name.replace(part, other)] for other in parts])
            new = {"vllm": ("qkv_proj", "gate_up_proj"), "megatron": ("linear_qkv", "linear_fc1")}[how]
            found[name.replace(part, new[part == "gate_proj"])] = values
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            found[name] = values
    if how == "megatron":
        table = {"model.": "decoder.", "self_attn": "self_attention"}
        table.update(o_proj="linear_proj", down_proj="linear_fc2")
        for old, new in table.items():
            found = {name.replace(old, new): values for name, values in found.items()}
    return found
