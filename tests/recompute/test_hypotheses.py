"""What explains a guilty output: planted by numpy in one dump, and told in words."""

import numpy as np
import pytest

from npucmp import replay
from npucmp.model import Edge, EdgeVerdict, Operator, ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.recompute.kind_baseline import explain_kinds
from npucmp.recompute.run import finish_edges
from tests.recompute import kernels
from tests.recompute.craft import Dump

torch = pytest.importorskip("torch")

F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


X, W, B = normal(24, 64), normal(48, 64, seed=2), normal(48, seed=3)
GAIN, SHIFT = normal(64, seed=4), normal(64, seed=5)


def wide(*arrays):
    return (one.astype(float) for one in arrays)


def linear(x=X, w=W, b=B):
    x, w, b = wide(x, w, b)
    return (x @ w.T + b).astype(F32)


def norm(eps=1e-5, shift=SHIFT, x=X):
    x = x.astype(float)
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return (unit * GAIN + shift).astype(F32)


def gelu_tanh(x):
    x = x.astype(float)
    return (0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))).astype(F32)


def with_block(values, some, change):
    values = values.copy()
    values[some] = change(values[some])
    return values


def truncated(values):
    """Of positive numbers, in float16."""
    rounded = values.astype(np.float16)
    return np.where(rounded > values, np.nextafter(rounded, np.float16(0)), rounded)


LINEAR = "Functional.linear", [X, W, B]
NORM = "Functional.layer_norm", [X, [64], GAIN, SHIFT, 1e-5]
HALF = np.abs(normal(24, 64, seed=6)).astype(np.float16) + np.float16(0.1)
PLANTED = [  # call, what it gave, words
    (*NORM, norm(1e-2), "eps 0.01 instead of 1e-05 explains it within"),
    (*NORM, norm(shift=0), "bias left out explains it within"),
    ("Functional.gelu", [X], gelu_tanh(X), "tanh instead of erf explains it within"),
    (*LINEAR, linear(b=B * 0), "bias left out explains it within"),
    (*LINEAR, linear(kernels.hf32(X), kernels.hf32(W)), "HF32 operands explains it within"),
    (*LINEAR, linear(X.astype("f2"), W.astype("f2"), B.astype("f2")), "float16 operands explains it within"),
    (*LINEAR, linear(X[:, :60], W[:, :60]), "the last 4 of 64 terms left out explains it within"),
    (*LINEAR, linear(X[:, 1:], W[:, 1:]), "the first 1 of 64 terms left out explains it within"),
    (*LINEAR, linear() * F32(1.0015), "scaled by 1.0015 explains it within"),
    (*LINEAR, -linear(), "negated explains it within"),
    (*LINEAR, with_block(linear(), np.s_[:, :4], lambda one: one * F32(1.2021)), "first 4 columns x 1.2021 explains"),
    (*LINEAR, with_block(linear(), np.s_[:, 40:], lambda one: one * 0), "last 8 columns left at zero explains it"),
    (
        *LINEAR,
        with_block(linear(), np.s_[8:16, 16:24], lambda one: one * F32(1.02)),
        "[8:16, 16:24] x 1.02 explains it",
    ),
    (*LINEAR, with_block(linear(), np.s_[3, 7], lambda one: one + 5), "one element, [3, 7], explains it within"),
    (
        *LINEAR,
        with_block(linear(), np.s_[:, [5, 9]], lambda one: one[:, ::-1]),
        "columns 5 and 9 swapped",
    ),
    (*LINEAR, linear().astype("f2").astype(F32), "rounded to float16 explains it within"),
    ("Tensor.__mul__", [HALF, HALF], truncated(HALF.astype(float) ** 2), "truncated instead of rounded explains it"),
    (*LINEAR, (linear() * (1 + 1e-4 * normal(24, 48, seed=8))).astype(F32), ""),  # random: nothing does
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    dump = Dump(tmp_path_factory.mktemp("planted"))
    for number, (name, args, out, _) in enumerate(PLANTED):
        dump.add(f"{name}.{number}.forward", args, [out])
    return dump.rows()


@pytest.mark.parametrize("number, words", [(at, words) for at, (*_, words) in enumerate(PLANTED)])
def test_a_planted_fault_is_put_into_words(rows, number, words):
    row = rows[number]
    assert row.verdict is ReplayVerdict.GUILTY
    assert row.explanation.startswith(words) and bool(words) == bool(row.explanation)
    assert row.explanation.startswith(row.explained_by)


def test_of_gradients_too(tmp_path):
    """A softmax in bfloat16 on the way back."""
    y = np.exp(X.astype(float))
    y = (y / y.sum(-1, keepdims=True)).astype(F32)
    given = normal(24, 64, seed=7)
    half, g = (torch.from_numpy(one).bfloat16() for one in (y, given))
    back = torch.ops.aten._softmax_backward_data(g, half, -1, torch.bfloat16).float().numpy()
    dump = Dump(tmp_path).add("Functional.softmax.0.forward", [X], [y], {"dim": -1})
    rows = dump.add("Functional.softmax.0.backward", [given], [back]).rows()
    assert rows[1].verdict is ReplayVerdict.GUILTY and rows[1].explained_by == "computed in bfloat16"


def test_one_line_where_all_of_a_kind_have_one_explanation(tmp_path):
    dump = Dump(tmp_path)
    for at in range(4):
        x = normal(24, 64, seed=at)
        dump.add(f"Functional.layer_norm.{at}.forward", [x, [64], GAIN, SHIFT, 1e-5], [norm(1e-2, x=x)])
        out = linear(kernels.hf32(x), kernels.hf32(W))
        dump.add(f"Functional.linear.{at}.forward", [x, W, B], [out])
    found = replay(dump.write())
    (one,) = found.replays
    assert "all 4 Functional.layer_norm.forward output:0: eps 0.01 instead of 1e-05" in one.peers  # guilty all the same
    assert any(
        words.startswith("all 4 Functional.linear.forward") and "explained by HF32 operands" in words
        for words in one.peers
    )
    assert {one.operators[row.order].op_type for row in one.guilty} == {"layer_norm"} and found.exit_status == 1


def test_others_explain_nothing():
    rows = [
        ReplayedOutput(at, "output:0", verdict=ReplayVerdict.GUILTY, rms_ratio=1e4, rel_l2=0.1, rel_l2_u=1e6,
                       budget="noise", explained_by=words)
        for at, words in enumerate(["bias left out", "bias left out", "scaled by 1.1"])
    ]  # fmt: skip
    assert explain_kinds(rows, {at: Operator("x", "x", "linear", "forward", at, ()) for at in range(3)}) == []


# edges of a kind


def edge(order, error, verdict=EdgeVerdict.BROKEN):
    """Its one consumer is a linear of the order before; error is relative."""
    return Edge(order, "input:0", verdict, (order - 1,), ratio=100.0, rel_l2_u=error * 2.0**24)


def operators(count):
    tensor = TensorRef("input:0", "float32", (2,))
    names = {order: "linear" if order % 2 == 0 else "gelu" for order in range(count)}
    return {
        order: Operator(
            f"Functional.{name}.{order}.backward", name, name, "backward", order, (tensor,), call=f"{name}.{order}"
        )
        for order, name in names.items()
    }


def test_gradients_that_are_off_alike_are_a_setting():
    edges, words = finish_edges([edge(order, 3e-4) for order in (1, 3, 5, 7)], [], operators(8))
    assert {one.verdict for one in edges} == {EdgeVerdict.UNKNOWN} and len(words) == 1
    assert words[0].startswith("4 of 4 gradients that ") and "explained by coarser arithmetic inside" in words[0]


def test_one_that_stands_out_is_broken_all_the_same():
    edges, _ = finish_edges([*(edge(order, 3e-4) for order in (1, 3, 5)), edge(7, 1e-2)], [], operators(8))
    assert [one.verdict is EdgeVerdict.BROKEN for one in edges] == [False, False, False, True]


@pytest.mark.parametrize("edges", [
    [edge(1, 3e-4), edge(3, 3e-4)],  # too few
    [edge(1, 0.01), edge(3, 0.01), edge(5, 0.01)],  # too much for any precision
    [edge(1, 3e-4), edge(3, 3e-4), edge(5, 3e-4), *(edge(order, 1e-7, EdgeVerdict.CLEAN) for order in (7, 9, 11, 13))],
])  # fmt: skip
def test_few_or_large_errors_are_no_setting(edges):
    found, words = finish_edges(edges, [], operators(14))
    assert words == [] and [one.verdict for one in found] == [one.verdict for one in edges]


def test_what_a_guilty_consumer_explains_is_told_there():
    row = ReplayedOutput(0, "output:0", verdict=ReplayVerdict.GUILTY)
    found, _ = finish_edges([edge(1, 0.01), edge(3, 0.01)], [row], operators(4))
    assert [one.verdict for one in found] == [EdgeVerdict.UNKNOWN, EdgeVerdict.BROKEN]
    assert found[0].explanation == "Functional.linear.0.backward is guilty"
