"""Recordings of a part of a network: a planted fault is never agreement, and never born where nobody could know."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import npucmp
from tests.reports import screen
from tests.synthetic import with_statistics, write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
READ = ("input_args", "input_kwargs", "input")


def of_phase(phase):
    return lambda data: {name: record for name, record in data.items() if f".{phase}" in name}


def without(*keys):
    return lambda data: {
        name: {key: leaf for key, leaf in record.items() if key not in keys} for name, record in data.items()
    }


def named(*parts):
    return lambda data: {name: record for name, record in data.items() if any(part in name for part in parts)}


def every(step):
    return lambda data: dict(list(data.items())[::step])


def both(one, other):
    return lambda data: other(one(data))


PARTS = {
    "inputs": without("output"),
    "outputs": without(*READ),
    "forward": of_phase("forward"),
    "backward": of_phase("backward"),
    "inputs of the forward": both(of_phase("forward"), without("output")),
    "inputs of the backward": both(of_phase("backward"), without("output")),
    "outputs of the backward": both(of_phase("backward"), without(*READ)),
    "products": named("linear", "matmul"),
    "norms": named("norm", "softmax"),
    "every second": every(2),
    "every third": every(3),
}
UNSEEN = {("msprobe_backward", "forward"), ("msprobe_backward", "inputs of the forward")}  # a fault of the backward


def recorded(folder, source, change, remove=()):
    """A copy of a sample with another dump.json, and without some of its files."""
    shutil.copytree(source, folder)
    (dump,) = folder.rglob("dump.json")
    content = json.loads(dump.read_text())
    dump.write_text(json.dumps({**content, "data": change(content["data"])}))
    for name in remove:
        next(folder.rglob(name)).unlink()
    return folder


def compared(tmp_path, sample, change=dict, remove=(), **options):
    target = recorded(tmp_path / "target", SAMPLES / sample / "target", change, remove)
    golden = recorded(tmp_path / "golden", SAMPLES / sample / "golden", change)
    return npucmp.compare(target, golden, **options)


@pytest.mark.few(6)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sample", ["msprobe_softmax", "msprobe_uncaptured", "msprobe_backward"])
def test_a_fault_in_a_part_is_no_agreement(tmp_path, sample, part):
    report = compared(tmp_path, sample, PARTS[part])
    if (sample, part) in UNSEEN:
        assert report.roots == ()
        return
    assert report.exit_status == 1
    for root in report.roots:
        operator, cause = root.pair.operator.name, root.cause.value
        if "inputs" in part:
            assert cause == "GAP"
        if "outputs" in part:
            assert cause in ("UNKNOWN", "PROPAGATED")
        if cause in ("BORN", "WORSENED"):
            assert (operator, cause) == ("Functional.softmax.1.forward", "BORN") or part == "norms"
    forward = {root.pair.operator.name for root in report.roots if root.pair.operator.phase == "forward"}
    if "backward" not in part and sample == "msprobe_softmax":
        assert report.roots[0].pair.operator.name in forward


@pytest.mark.few(8)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sample", ["msprobe_clean", "msprobe_bfloat16"])
def test_a_clean_part_is_silent(tmp_path, sample, part):
    report = compared(tmp_path, sample, PARTS[part])
    assert (report.roots, report.exit_status) == ((), 0)


def test_a_gap_between_inputs_may_be_born_in_what_was_dumped(tmp_path):
    (root,) = compared(tmp_path, "msprobe_softmax", PARTS["inputs"]).roots
    assert (root.pair.operator.name, root.slot) == ("Torch.matmul.3.forward", "input:0")
    assert "in an operator whose outputs were not dumped, or in code that was not dumped" in root.because


def test_a_gradient_of_another_autograd_node_is_not_accused(tmp_path):
    report = compared(tmp_path, "msprobe_softmax", PARTS["backward"])
    assert "Functional.softmax.1.backward" not in {root.pair.operator.name for root in report.roots}
    assert "different autograd nodes; the first is Functional.softmax.1.backward output:0" in screen(report)


SOFTMAX, READER = "Functional.softmax.1.forward", "Torch.matmul.3.forward"
NOT_COMPARED = [
    ({"remove": [f"{SOFTMAX}.output.0.pt"]}, "could not be compared"),
    ({"exclude": [SOFTMAX]}, "was excluded by --include or --exclude"),
]


@pytest.mark.parametrize("how, why", NOT_COMPARED)
def test_whoever_reads_what_was_not_compared_is_not_accused(tmp_path, how, why):
    report = compared(tmp_path, "msprobe_softmax", **how)
    first = report.roots[0]
    assert (first.pair.operator.name, first.cause.value) == (READER, "UNKNOWN")
    assert f"this tensor is {SOFTMAX} output:0, which {why}: check that operator first" in first.because
    assert {root.cause.value for root in report.roots} == {"UNKNOWN", "PROPAGATED"}
    words = screen(report)
    assert "First diverging operator" not in words and "100 % of elements compared" not in words
    assert "all tensors dumped" not in words and "code that was not dumped" not in words


def test_an_output_of_unknown_shape_is_not_taken_for_a_number(tmp_path):
    """dump.json may be damaged where it tells a shape; a number that differs later need not come from there."""
    x, number = np.linspace(1, 2, 8, dtype=np.float32), np.array(0.7321, np.float32)
    runs = []
    for side, loss in (("t", number * 2), ("g", number)):
        run = {
            "Torch.tanh.0.forward": {"in": [x], "out": [np.tanh(x)]},
            "Torch.mul.0.forward": {"in": [np.array(loss)], "out": [np.array(loss * 2)]},
        }
        runs.append(write_run(tmp_path / side, run))
        (dump,) = runs[-1].rglob("dump.json")
        whole = json.loads(dump.read_text())
        whole["data"]["Torch.tanh.0.forward"]["output"][0]["shape"] = ["?"]
        dump.write_text(json.dumps(whole))
    first = npucmp.compare(*runs).roots[0]
    assert (first.pair.operator.name, first.cause.value) == ("Torch.mul.0.forward", "GAP")
    assert "tanh" not in first.because


@pytest.mark.parametrize("operator", ["linear.8", "linear.9", "matmul.3"])
def test_what_was_filtered_out_did_not_agree(tmp_path, operator):
    report = compared(tmp_path, "msprobe_softmax", include=[f"*{operator}.forward"])
    first = report.roots[0]
    assert first.cause.value in ("UNKNOWN", "GAP")
    assert "excluded by --include or --exclude" in first.because
    assert "all tensors dumped" not in first.because and "an input of the network" not in first.because
    assert "First diverging operator" not in screen(report)


def test_an_input_is_the_output_of_what_was_recorded_before_it(tmp_path):
    """Where only inputs were recorded, the next operator reads what is left of a sum that cancels."""
    x = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    other = x[:, ::-1]  # another order

    def run(values, total):
        return {
            "Torch.tanh.0.forward": {"in": [values]},
            "Torch.sum.0.forward": {"in": [values]},
            "Torch.exp.0.forward": {"in": [total]},
        }

    added = [
        one.sum(axis=1, dtype=np.float32) if name == "g" else _one_by_one(one) for name, one in (("t", other), ("g", x))
    ]
    report = npucmp.compare(
        write_run(tmp_path / "target", run(x, added[0])), write_run(tmp_path / "golden", run(x, added[1]))
    )
    (row,) = [one for one in report.findings if one.pair.operator.name.startswith("Torch.exp")]
    assert row.error > 1e-3 and row.explained_by == "cancellation" and report.exit_status == 0


def _one_by_one(rows):
    return np.cumsum(rows, axis=1, dtype=np.float32)[:, -1]


def test_a_fault_behind_what_was_recorded_of_inputs_is_no_noise(tmp_path):
    """The same with an operator before that sums nothing."""
    x = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)

    def run(factor):
        return {"Torch.tanh.0.forward": {"in": [x]}, "Torch.exp.0.forward": {"in": [np.tanh(x) * np.float32(factor)]}}

    report = npucmp.compare(write_run(tmp_path / "target", run(1.001)), write_run(tmp_path / "golden", run(1.0)))
    assert [(root.cause.value, root.pair.operator.name) for root in report.roots] == [("GAP", "Torch.exp.0.forward")]


def weak_gelu(folder, weak):
    """A residual sum, a norm and two products with a function between them that is not recorded; inputs alone."""
    random = np.random.default_rng(8)
    a, b, w, v = (random.standard_normal(shape) for shape in ((16, 32), (16, 32), (32, 32), (32, 32)))
    a, b, w, v = (one.astype(np.float32) for one in (a, b, 0.012 * w, 0.1 * v))
    h = a + b
    n = ((h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)).astype(np.float32)
    z = (n @ w).astype(np.float64)
    inner = np.vectorize(math.erf)(z / math.sqrt(2))
    if weak:
        inner = np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    g = (0.5 * z * (1 + inner)).astype(np.float32)
    run = {
        "Tensor.__add__.0.forward": {"in": [a, b]},
        "Functional.layer_norm.0.forward": {"in": [h]},
        "Functional.linear.0.forward": {"in": [n, w.T]},
        "Functional.linear.1.forward": {"in": [g, v.T]},
        "Functional.dropout.0.forward": {"in": [g @ v, 0.0]},
    }
    return write_run(folder, run)


def test_an_operator_whose_output_was_read_already_wrote_no_other_tensor(tmp_path):
    """The error is below that of a sum with terms of size 1, such as the residual sum, which the norm has read."""
    report = npucmp.compare(weak_gelu(tmp_path / "target", True), weak_gelu(tmp_path / "golden", False))
    first = report.roots[0]
    assert (first.cause.value, first.pair.operator.name, first.slot) == (
        "GAP",
        "Functional.linear.1.forward",
        "input:0",
    )
    assert first.value < 1e-4 and report.exit_status == 1


def test_what_is_left_of_a_sum_is_followed_where_only_outputs_were_recorded(tmp_path):
    """A sum that cancels, what is made of that number, and a fault behind."""
    random = np.random.default_rng(3)
    values = [random.standard_normal((32, 32)) for _ in range(3)]
    values[0] -= values[0].mean()

    def run(seed, factor):
        random = np.random.default_rng(seed)
        noisy = [(one * (1 + 1e-7 * random.standard_normal(one.shape))).astype(np.float32) for one in values]
        total = noisy[0].sum(dtype=np.float64)
        return {
            "Torch.exp.0.forward": {"out": [noisy[0]]},
            "Torch.sum.0.forward": {"out": [np.array(total, np.float32)]},
            "Tensor.__mul__.0.forward": {"out": [(total * np.arange(1.0, 65)).astype(np.float32)]},
            "Torch.tanh.0.forward": {"out": [noisy[1]]},
            "Torch.sin.0.forward": {"out": [(noisy[2] * factor).astype(np.float32)]},
        }

    runs = [
        recorded(tmp_path / name, write_run(tmp_path / f"all of {name}", run(seed, factor)), without(*READ))
        for name, seed, factor in (("target", 4, 1.03), ("golden", 5, 1.0))
    ]
    report = npucmp.compare(*runs)
    errors = {one.pair.operator.name: one.error for one in report.findings}
    assert errors["Tensor.__mul__.0.forward"] > 0.1
    assert [(one.cause.value, one.pair.operator.name) for one in report.roots] == [("UNKNOWN", "Torch.sin.0.forward")]


@pytest.mark.parametrize("number, causes", [(-5.6e-9, []), (-5.6e-3, ["GAP"])])
def test_a_number_that_is_zero_in_the_golden_may_be_left_of_a_sum(tmp_path, number, causes):
    """A zero links nothing, so that the operator reads the mean as a number that no operator wrote."""
    x = np.random.default_rng(3).standard_normal((32, 32)).astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)

    def run(total, read):
        total, mean, read = (np.array(one, np.float32) for one in (total, total.mean(), read))
        return {
            "Torch.sum.0.forward": {"in": [x], "out": [total]},
            "Tensor.mean.0.forward": {"in": [total], "out": [mean]},
            "Tensor.__mul__.0.forward": {"in": [read, 0.5], "out": [np.array(0.5 * read, np.float32)]},
        }

    left = np.zeros(32)
    left[3] = -32 * 5.6e-9
    runs = run(left, number), run(np.zeros(32), 0.0)
    report = npucmp.compare(*(write_run(tmp_path / name, one) for name, one in zip(("target", "golden"), runs)))
    assert [one.cause.value for one in report.roots if one.cause.value != "PROPAGATED"] == causes


@pytest.mark.parametrize("error, causes", [(1e-4, []), (3e-2, ["BORN"])])
def test_a_parameter_that_was_not_recorded_moves_from_step_to_step(tmp_path, error, causes):
    """A norm whose input was recorded, and whose scale was not; the first step tells how far an update may move it."""
    random = np.random.default_rng(5)
    x, y = (random.standard_normal((16, 32)).astype(np.float32) for _ in range(2))
    for folder, off in (("target", 1.0), ("golden", 0.0)):
        for step in range(2):
            noisy = [one * (1 + 1e-7 * off * random.standard_normal(one.shape)) for one in (x, y)]
            noisy[1] = noisy[1] * (1 + error * off * step * random.standard_normal(32))
            read, wrote = (one.astype(np.float32) for one in noisy)
            run = {
                "Torch.sin.0.forward": {"in": [np.arcsin(x / 9)], "out": [read]},
                "Functional.rms_norm.0.forward": {"in": [read], "out": [wrote]},
            }
            write_run(tmp_path / folder, run, step=step)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert [one.cause.value for one in report.roots if one.cause.value != "PROPAGATED"] == causes


def backward_of(dtype, error, saved):
    """A backward that reads the same gradient on both sides; with or without the record of its forward, which read and
    wrote the same."""
    random = np.random.default_rng(4)
    x, dy, dx = (random.standard_normal((16, 16)).astype(dtype) for _ in range(3))
    off = (dx + error * random.standard_normal(dx.shape) * dx.std()).astype(dtype)
    forward = {"Functional.gelu.0.forward": {"in": [x], "out": [np.maximum(x, 0)]}} if saved else {}
    return [{**forward, "Functional.gelu.0.backward": {"in": [dy], "out": [one]}} for one in (off, dx)]


@pytest.mark.parametrize(
    "dtype, error, saved, causes",
    [
        (np.float32, 7e-7, True, ["BORN"]),
        (np.float32, 7e-7, False, []),  # 12 round-offs: what the forward saved may be as far off
        (np.float32, 1e-5, False, ["UNKNOWN"]),
        (np.float16, 2e-3, True, ["BORN"]),  # the same bits went in, and 4 roundings came out
        (np.float16, 2e-3, False, []),
        (np.float16, 3e-2, False, ["UNKNOWN"]),
    ],
)
def test_what_a_forward_saved_that_nobody_dumped_is_not_the_same_bits(tmp_path, dtype, error, saved, causes):
    target, golden = backward_of(dtype, error, saved)
    report = npucmp.compare(write_run(tmp_path / "target", target), write_run(tmp_path / "golden", golden))
    assert [root.cause.value for root in report.roots] == causes


@pytest.mark.parametrize("saved, working", [(True, 2.0**-24), (False, 2.0**-11)])
def test_what_a_forward_saved_that_nobody_dumped_went_through_what_the_run_works_in(tmp_path, saved, working):
    run, _ = backward_of(np.float32, 0, saved)
    half = np.ones((4, 4), np.float16)
    run["Functional.gelu.1.backward"] = {"in": [half], "out": [half]}
    report = npucmp.compare(write_run(tmp_path / "target", run), write_run(tmp_path / "golden", run))
    first = next(
        one for one in report.findings if one.pair.operator.phase == "backward" and one.pair.slot == "output:0"
    )
    assert first.limit == 8 * working


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize("again, cause", [(1.0, "BORN"), (1.5, "UNKNOWN")])
def test_a_forward_that_ran_again_is_what_its_backward_reads(tmp_path, side, again, cause):
    """Checkpointing of one side, whose second forward has no partner: what it recorded is held against the first."""
    random = np.random.default_rng(4)
    x, y, dy, dx, off = (random.standard_normal((8, 8)).astype(np.float32) for _ in range(5))
    forward = {"Functional.gelu.0.forward": {"in": [x], "out": [y]}}
    for name in ("target", "golden"):
        gradient = {"in": [dy], "out": [dx + 0.1 * off if name == "target" else dx]}
        run = {**forward, "Functional.gelu.0.backward": gradient}
        if name == side:
            second = {"Functional.gelu.1.forward": {"in": [x], "out": [y * np.float32(again)]}}
            run = {**forward, **second, "Functional.gelu.1.backward": gradient}
        with_statistics(write_run(tmp_path / name, run))
    (root,) = npucmp.compare(tmp_path / "target", tmp_path / "golden").roots
    assert root.cause.value == cause
    assert ("ran again as Functional.gelu.1.forward, with other values" in root.because) == (cause == "UNKNOWN")
