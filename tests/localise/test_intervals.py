"""What is known of the error of a tensor that an operator reads, and the cause and evidence that follow."""

import json

import numpy as np
import pytest

import npucmp
from tests.synthetic import chain, with_statistics, write_run

random = np.random.default_rng(11)
LINEAR = "Functional.linear.{}.forward".format
USUAL = "about 90 % of the preceding errors that no root cause explains are at most"


def first(folder, target, golden, of_figures=False):
    """Place 1 of two runs: the operator, the cause, the evidence."""
    paths = [write_run(folder / name, run) for name, run in (("t", target), ("g", golden))]
    report = npucmp.compare(*(with_statistics(one, alone=True) for one in paths) if of_figures else paths)
    root = min(report.roots, key=lambda one: one.place)
    return root.pair.operator.name, root.cause.value, root.because


def without(operators, *slots, of=None):
    """The same run, in which operators (all, or one) recorded no inputs ("in") or outputs ("out")."""
    return {name: {key: value for key, value in operator.items() if key not in slots or (of and name != of)}
            for name, operator in operators.items()}  # fmt: skip


@pytest.mark.parametrize(
    "of_figures, alike", [(False, "inputs agree (bit for bit)"), (True, "the statistics of the inputs agree")]
)
def test_what_agrees_by_values_or_by_figures_leaves_the_operator_the_error(tmp_path, of_figures, alike):
    found = first(tmp_path, chain({3: 1.05}), chain(), of_figures)
    assert found[:2] == (LINEAR(3), "BORN") and alike in found[2]


def test_figures_behind_a_root_bound_nothing(tmp_path):
    """The error of operator 2 descends from operator 1; figures that agree by chance make it no second root."""
    report = npucmp.compare(*(with_statistics(write_run(tmp_path / name, run), alone=True)
                              for name, run in (("t", chain({1: 1.5})), ("g", chain()))))  # fmt: skip
    causes = [root.cause.value for root in sorted(report.roots, key=lambda one: one.place)]
    assert causes[0] == "BORN" and set(causes[1:]) <= {"PROPAGATED"}


def test_without_inputs_the_errors_before_decide_and_the_evidence_prints_them(tmp_path):
    paths = [
        write_run(tmp_path / name, run) for name, run in (("t", chain({4: 1.05}, noise=1e-7, seed=3)), ("g", chain()))
    ]
    for file in (file for one in paths for file in one.rglob("dump.json")):
        dump = json.loads(file.read_text())
        for record in dump["data"].values():
            del record["input_args"], record["input_kwargs"]
        file.write_text(json.dumps(dump))
    root = min(npucmp.compare(*paths).roots, key=lambda one: one.place)
    assert (root.pair.operator.name, root.cause.value) == (LINEAR(4), "UNKNOWN")
    printed = float(root.because.partition(f"{USUAL} ")[2].split(";")[0])
    assert 1e-8 < printed < 1e-6


def test_an_input_that_nothing_wrote_is_held_against_the_errors_before_it(tmp_path):
    target, golden = chain({3: 1.05}, noise=1e-7, seed=3), chain()
    target, golden = (without(run, "out", of=LINEAR(3)) for run in (target, golden))
    for run in (target, golden):
        run[LINEAR(3)] = {"in": [random.standard_normal(4)], "out": []}
    golden[LINEAR(3)] = target[LINEAR(3)]
    name, cause, because = first(tmp_path, target, golden)
    assert (name, cause) == (LINEAR(4), "GAP") and USUAL in because


@pytest.mark.parametrize("figures_of_mask", [-np.inf, -1e9], ids=["-inf", "-1e9"])
def test_a_mask_hides_no_noise_from_a_softmax(tmp_path, figures_of_mask):
    """Scores are off by rounding to 16 bits; the mask swallows it in the figures of what the softmax reads."""

    def attention(noise):
        draw = np.random.default_rng(5)
        x = draw.standard_normal((4, 64, 64)).astype(np.float32) * 4
        scores = (x * (1 + noise * np.random.default_rng(9).standard_normal(x.shape))).astype(np.float32)
        masked = np.where(np.tril(np.ones((64, 64), bool)), scores, np.float32(figures_of_mask)).astype(np.float32)
        e = np.exp(masked.astype(np.float64) - masked.max(-1, keepdims=True))
        share = (e / e.sum(-1, keepdims=True)).astype(np.float32)
        return {
            "Tensor.__mul__.0.forward": {"in": [x, 1.0], "out": [scores]},
            "Tensor.masked_fill.0.forward": {"in": [scores], "out": [masked]},
            "Functional.softmax.0.forward": {"in": [masked], "out": [share]},
        }

    paths = [with_statistics(write_run(tmp_path / name, attention(noise)), alone=True)
             for name, noise in (("t", 3e-7), ("g", 0.0))]  # fmt: skip
    report = npucmp.compare(*paths)
    assert not [root for root in report.roots if root.pair.operator.name.startswith("Functional.softmax")]


def off(y, error, seed=3):
    """A tensor with a relative error in each element."""
    noise = np.random.default_rng(seed).standard_normal(np.shape(y))
    return np.asarray(y * (1 + error * noise), np.asarray(y).dtype)


def left_of_a_sum(error, late=0.0, dtype=np.float32):
    """A number that is left of a sum that cancels, what is made of it, and later an input that no operator wrote. The
    number has few digits, so that nothing tells which operator wrote what the next one reads."""
    draw = np.random.default_rng(17)
    rows = draw.standard_normal((64, 64)).astype(dtype)
    rows = off(rows, error)
    centred = (rows - rows.mean(1, keepdims=True)).astype(dtype)
    sums = centred.sum(1)
    number = np.float32(7 * 2.0**-30 if error else 3 * 2.0**-30)
    scaled = np.float32(number * 2.0**-10)
    spread = np.full((64, 64), scaled * np.float32(1.001))
    x = off(draw.standard_normal((8, 16)).astype(dtype), late)
    return {
        "Torch.tanh.0.forward": {"in": [rows], "out": [rows]},
        "Tensor.__sub__.0.forward": {"in": [rows, rows.mean(1, keepdims=True)], "out": [centred]},
        "Torch.sum.0.forward": {"in": [centred], "out": [sums]},
        "Tensor.mean.0.forward": {"in": [sums], "out": [np.array(number)]},
        "Tensor.__mul__.0.forward": {"in": [np.array(number), 2.0**-10], "out": [np.array(scaled)]},
        "Torch.erf.0.forward": {"in": [np.array(scaled)], "out": [spread]},
        "Torch.tanh.1.forward": {"in": [x], "out": [x]},
    }


@pytest.mark.parametrize("late, found", [(0.0, []), (1e-3, [("Torch.tanh.1.forward", "GAP")])])
def test_what_is_left_of_a_sum_tells_nothing_of_the_error_of_other_tensors(tmp_path, late, found):
    paths = [write_run(tmp_path / name, left_of_a_sum(*made)) for name, made in (("t", (1e-7, late)), ("g", (0.0,)))]
    report = npucmp.compare(*paths)
    assert [(root.pair.operator.name, root.cause.value) for root in report.roots[:1]] == found


def outputs_alone(folder):
    """The dump without what operators read."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        for record in dump["data"].values():
            record.pop("input_args", None), record.pop("input_kwargs", None), record.pop("input", None)
        file.write_text(json.dumps(dump))
    return folder


def compared(folder, target, golden, kept=lambda one: one):
    """Place 1 of two runs: the operator and the cause."""
    paths = [kept(write_run(folder / name, run)) for name, run in (("t", target), ("g", golden))]
    report = npucmp.compare(*paths)
    return [(root.pair.operator.name, root.cause.value) for root in report.roots[:1]], report.exit_status


@pytest.mark.parametrize("error, found", [(1e-7, []), (6e-6, [("Functional.cross_entropy.0.forward", "UNKNOWN")])])
def test_a_loss_is_not_what_is_left_of_a_sum(tmp_path, error, found):
    def run(noise, seen):
        operators = left_of_a_sum(noise)
        operators["Functional.linear.0.forward"] = {"in": [], "out": [off(np.float32([[1.1, 0.3], [0.2, 0.9]]), noise)]}
        operators["Functional.cross_entropy.0.forward"] = {"in": [], "out": [np.array(np.float32(2.877 * (1 + seen)))]}
        return operators

    assert compared(tmp_path, run(1e-7, error), run(0.0, 0.0), outputs_alone)[0] == found


def sixteen_bits(error):
    """A backward pass in float16: a large gradient of weights, then small gradients that no operator wrote."""
    draw = np.random.default_rng(23)
    x, weight, vector = draw.standard_normal((32, 64)), draw.standard_normal((64, 64)), draw.standard_normal(64)
    g, h = 1e-3 * draw.standard_normal((2, 32, 64))
    half = lambda y, e=0.0: off(y, e).astype(np.float16)  # noqa: E731
    noise = 3e-4 if error is not None else 0.0
    return {
        "Functional.linear.0.forward": {"in": [half(x), half(weight)], "out": [half(x, noise)]},
        "Functional.linear.0.backward": {"in": [half(g)], "out": [half(g, noise), half(weight, noise)]},
        "Functional.layer_norm.0.backward": {"in": [half(h, error or 0.0)], "out": [half(h, error or 0.0)]},
        "Functional.tanh.0.backward": {"in": [half(1e-3 * vector, error or 0.0)], "out": []},
    }


@pytest.mark.parametrize("error, found", [(5e-4, []), (0.5, [("Functional.layer_norm.0.backward", "GAP")])])
def test_a_gradient_of_many_rows_is_more_than_rounding_of_the_gradients_before_it(tmp_path, error, found):
    assert compared(tmp_path, sixteen_bits(error), sixteen_bits(None))[0] == found


def product(factor, noise):
    """A product of what is left of a sum that cancels with a number, and its gradient."""
    draw = np.random.default_rng(29)
    rows = off(draw.standard_normal((64, 64)).astype(np.float32), noise)
    sums = (rows - rows.mean(1, keepdims=True)).sum(1)
    g = draw.standard_normal(64).astype(np.float32)
    by = np.array(np.float32(0.37))
    return {
        "Torch.tanh.0.forward": {"in": [rows], "out": [rows]},
        "Torch.sum.0.forward": {"in": [rows - rows.mean(1, keepdims=True)], "out": [sums]},
        "Tensor.__mul__.0.forward": {"in": [sums, by], "out": [sums * by]},
        "Tensor.__mul__.0.backward": {"in": [g], "out": [(g * by * np.float32(factor)).astype(np.float32)]},
    }


@pytest.mark.parametrize("factor, found", [(1.0, []), (1.04, [("Tensor.__mul__.0.backward", "BORN")])])
def test_the_gradient_of_an_operand_does_not_depend_on_that_operand(tmp_path, factor, found):
    assert compared(tmp_path, product(factor, 1e-7), product(1.0, 0.0))[0] == found


@pytest.mark.parametrize("fault, found", [({}, []), ({4: 1.0001}, [(LINEAR(4), "UNKNOWN")])])
def test_a_factor_is_seen_below_the_limit_where_outputs_alone_were_recorded(tmp_path, fault, found):
    """One operator on a side branch writes float16, which the limits follow."""

    def run(faults, noise):
        operators = chain(faults, noise, seed=3)
        half = {"in": [], "out": [np.ones(4, np.float16) * np.float16(0.3)]}
        return {**dict([*operators.items()][:2]), "Tensor.to.0.forward": half, **dict([*operators.items()][2:])}

    assert compared(tmp_path, run(fault, 1e-7), run((), 0.0), outputs_alone) == (found, int(bool(found)))


def graph_product(folder, bias=0.0, wrong=0.0):
    """A product with a bias of a graph, whose gradient reads all that its forward read and wrote; the bias is off, and
    with it the product."""
    draw = np.random.default_rng(31)
    x, w, g = (draw.standard_normal((32, 32)).astype(np.float32) for _ in range(3))
    b = off(draw.standard_normal(32).astype(np.float32), bias)
    y, dx = (x @ w.T + b).astype(np.float32), off((g @ w).astype(np.float32), wrong)
    z = off(np.tanh(x), 1e-7 if bias else 0.0)
    folder.mkdir()
    operators = {"a_Tanh": ([x], [z]), "b_MatMulV2": ([x, w, b], [y]), "c_MatMulV2Grad": ([g, x, w, b, y], [dx])}
    for name, sides in operators.items():
        for way, tensors in zip(("input", "output"), sides):
            for at, tensor in enumerate(tensors):
                np.save(folder / f"{name}.{way}.{at}.npy", tensor)
    return folder


@pytest.mark.parametrize("wrong, found", [(0.0, []), (1e-4, ["c_MatMulV2Grad"])])
def test_the_gradient_of_a_product_does_not_depend_on_its_bias_nor_on_the_product(tmp_path, wrong, found):
    target, golden = graph_product(tmp_path / "t", 1e-2, wrong), graph_product(tmp_path / "g")
    roots = npucmp.compare(target, golden, recompute="none").roots
    names = [(root.pair.operator.name, root.cause.value) for root in roots if "Grad" in root.pair.operator.name]
    assert names == [(name, "WORSENED") for name in found]


def added_and_subtracted(noise, fault=0.0):
    """x + 1e4 - 1e4, where x is off by noise; a tensor of that shape; and much later the sum of both."""
    draw = np.random.default_rng(41)
    x, other = draw.standard_normal((2, 128, 128)).astype(np.float32)
    large = [draw.standard_normal((16, 16)).astype(np.float32) for _ in range(20)]
    x, other, *large = (off(one, noise) for one in (x, other, *large))
    shifted = x + np.float32(1e4)
    back = off(shifted - np.float32(1e4), fault)
    written = {
        "Torch.tanh.0.forward": x,
        "Tensor.__add__.0.forward": shifted,
        "Tensor.__sub__.0.forward": back,
        "Torch.exp.0.forward": other,
        **{f"Torch.sin.{at}.forward": one for at, one in enumerate(large)},
        "Tensor.__add__.1.forward": back + other,
    }
    return {name: {"in": [], "out": [one]} for name, one in written.items()}


@pytest.mark.parametrize("fault, found", [(0.0, []), (0.1, [("Tensor.__sub__.0.forward", "UNKNOWN")])])
def test_a_sum_of_outputs_reads_the_latest_tensors_of_its_shape(tmp_path, fault, found):
    """Of outputs alone. What is left of the large number is rounding, and so is a part of the sum."""
    target, golden = added_and_subtracted(3e-7, fault), added_and_subtracted(0.0)
    assert compared(tmp_path, target, golden, outputs_alone)[0] == found


def behind_a_choice(noise, wrong=False, recorded=True):
    """A near tie of 64 rows fell otherwise; later the sum of two recorded gradients, which no operator recorded; in one
    row it may be that of another row."""
    draw = np.random.default_rng(43)
    shares, a, b = draw.random((64, 4)).astype(np.float32), *draw.standard_normal((2, 64, 32)).astype(np.float32)
    shares[5, :2] = np.float32(3.0), np.nextafter(np.float32(3.0), np.float32(4.0))
    if noise:
        shares = off(shares, noise)
        shares[5, :2] = np.nextafter(np.float32(3.0), np.float32(4.0)), np.float32(3.0)
    places = np.argsort(-shares, axis=1)[:, :2]
    sides = [shares, np.take_along_axis(shares, places, 1), off(a, noise), off(b, noise)]
    total = sides[2] + sides[3]
    total[7] = total[8] if wrong else total[7]
    last = [sides[2], sides[3]] if recorded else [sides[2][:40], sides[3][:40]]
    g = draw.standard_normal((4, 4)).astype(np.float32)
    return {
        "Torch.tanh.0.forward": {"in": [g], "out": [off(g, noise)]},
        "Functional.softmax.0.forward": {"in": [g], "out": [sides[0]]},
        "Torch.topk.0.forward": {"in": [sides[0]], "out": [sides[1], places]},
        "Functional.linear.1.backward": {"in": [off(g, noise)], "out": [last[0]]},
        "Functional.linear.0.backward": {"in": [off(g, noise)], "out": [last[1]]},
        "Functional.gelu.0.backward": {"in": [total], "out": [total]},
    }


@pytest.mark.parametrize("recorded, found", [(True, [("Functional.gelu.0.backward", "GAP")]), (False, [])])
def test_the_sum_of_recorded_tensors_has_no_rows_of_another_choice(tmp_path, recorded, found):
    target, golden = behind_a_choice(1e-7, True, recorded), behind_a_choice(0.0, False, recorded)
    assert compared(tmp_path, target, golden)[0] == found


def test_the_sum_of_recorded_tensors_agrees_behind_another_choice(tmp_path):
    assert compared(tmp_path, behind_a_choice(1e-7), behind_a_choice(0.0)) == ([], 0)
