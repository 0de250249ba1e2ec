"""What lies between dumped operators: gradients against the sums of their consumers, and functions that fill gaps."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from npucmp import ReplayOptions, replay, write_reports
from npucmp.dump.formats import calls_of
from npucmp.model import EdgeVerdict, ReplayVerdict
from npucmp.recompute.permutations import places_in
from npucmp.recompute.report_tables import EDGES, GAPS
from npucmp.recompute.run import link_operators
from npucmp.recompute.task import ReplaySettings, tasks_of
from tests.recompute.craft import Dump

torch = pytest.importorskip("torch")
F = torch.nn.functional

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
F32 = np.float32


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


def plain(one):
    return one.detach().contiguous().numpy().copy() if isinstance(one, torch.Tensor) else one


def network(folder, between=F.gelu, incoming=None, hidden=None, detached=False, left_out=()):
    """n = norm(x); h = linear(n); loss = mse(n + linear(between(h))): as msprobe records a linear of three dimensions,
    whose own gradients are in no record.

    between is not recorded; incoming changes the gradient that reaches h; hidden adds code to what reads n; detached:
    the first linear hands nothing back; left_out are records that are missing.
    """
    torch.manual_seed(1)
    x, weights = torch.randn(2, 5, 16), [torch.randn(24, 16) / 4, torch.randn(16, 24) / 5]
    scale, target = torch.ones(16, requires_grad=True), torch.randn(2, 5, 16)
    n = F.layer_norm(x, [16], scale)
    h = F.linear(n.detach() if detached else n, weights[0].requires_grad_())
    a = between(h)
    y = F.linear(a, weights[1].requires_grad_())
    m = hidden(n) if hidden is not None else n
    z = m + y
    loss = F.mse_loss(z, target)
    reached = {}
    for name, one in (("n", n), ("h", h), ("y", y), ("z", z)):
        if incoming is not None and name == "h":
            one.register_hook(incoming)
        one.register_hook(lambda gradient, name=name: reached.update({name: plain(gradient)}))
    loss.backward()
    gn, gh, gy, gz = (reached[name] for name in "nhyz")
    dump = Dump(folder)
    for name, args, out in (
        ("Functional.layer_norm.0", [x, [16], scale], n),
        ("Functional.linear.0", [n, weights[0]], h),
        ("Functional.linear.1", [a, weights[1]], y),
        ("Tensor.__add__.0", [m, y], z),
        ("Functional.mse_loss.0", [z, target], loss),
    ):
        dump.add(
            f"{name}.forward", [plain(one) if isinstance(one, torch.Tensor) else one for one in args], [plain(out)]
        )
    for name, given, handed in (
        ("Functional.mse_loss.0", np.array(1, F32), [gz, None]),
        ("Tensor.__add__.0", gz, [gz, gz]),
        ("Functional.linear.1", gy, [gy.reshape(10, 16)]),
        ("Functional.linear.0", gh, [gh.reshape(10, 24)]),
        ("Functional.layer_norm.0", gn, [None]),
    ):
        dump.add(f"{name}.backward", [given], handed)
    for name in left_out:
        del dump.data[name]
    return dump


def edges(dump, **options):
    """Of a dump, by the record whose gradient it is."""
    (one,) = replay(dump.write(), jobs=1, **options).replays
    return {one.operators[edge.order].name: edge for edge in one.edges}


def test_a_clean_gradient_is_the_sum_of_what_its_consumers_hand_back(tmp_path):
    found = edges(network(tmp_path))
    loss = found.pop("Functional.mse_loss.0.backward")
    assert (loss.verdict, loss.explanation) == (EdgeVerdict.UNKNOWN, "no dumped operator reads it")
    assert {edge.verdict for edge in found.values()} == {EdgeVerdict.CLEAN}
    assert found["Functional.linear.0.backward"].via == "gelu (erf)"
    assert found["Functional.layer_norm.0.backward"].via == "sum of 2: bit-equal"
    assert all(edge.ratio < 3 for edge in found.values())


@pytest.mark.parametrize("change, words", [
    (lambda g: g * 1.01, "it is 1.01 times the sum"),
    (lambda g: g * (torch.arange(24) >= 4), "it is the sum except in [0:2, 0:5, 0:4]"),
    (lambda g: g + 1e-3 * g.abs().max() * torch.ones_like(g), ""),
])  # fmt: skip
def test_what_changes_a_gradient_between_operators_breaks_one_edge(tmp_path, change, words):
    found = edges(network(tmp_path, incoming=change))
    broken = {name: edge for name, edge in found.items() if edge.verdict is EdgeVerdict.BROKEN}
    assert [*broken] == ["Functional.linear.0.backward"]
    assert broken["Functional.linear.0.backward"].explanation == words


def test_rounding_in_bfloat16_is_no_fault_in_bfloat16_only(tmp_path):
    found = edges(network(tmp_path, incoming=lambda g: g.bfloat16().float()))
    assert found["Functional.linear.0.backward"].verdict is EdgeVerdict.BROKEN
    assert found["Functional.linear.0.backward"].rel_l2_u == pytest.approx(2.0**-8 / 2.0**-24 * 0.4, rel=0.3)


@pytest.mark.parametrize("change, call, words", [
    ({"left_out": ["Functional.linear.0.backward"]}, "layer_norm.0", "linear.0.forward reads it and has no gradient"),
    ({"hidden": lambda n: n.cumsum(-1)}, "layer_norm.0", "__add__.0.forward input:0 may depend on it"),
    ({"between": lambda h: h.cumsum(-1)}, "linear.0", "linear.1.forward input:0 may depend on it"),
    ({"detached": True}, "layer_norm.0", "it is the sum without Functional.linear.0.backward: detached there"),
])  # fmt: skip
def test_where_consumers_are_missing_nobody_knows(tmp_path, change, call, words):
    found = edges(network(tmp_path, **change))
    edge = next(edge for name, edge in found.items() if call in name)
    assert edge.verdict is EdgeVerdict.UNKNOWN and words in edge.explanation
    assert all(edge.verdict is not EdgeVerdict.BROKEN for edge in found.values())


@pytest.mark.parametrize(
    "factor, verdict", [(1.05, EdgeVerdict.BROKEN), (2, EdgeVerdict.UNKNOWN)]
)  # twice: it may be read twice
def test_a_factor_is_told_even_where_consumers_may_be_missing(tmp_path, factor, verdict):
    """What reads z is not known."""
    dump = network(tmp_path, incoming=lambda g: g * factor)
    x = normal(2, 5, 24, seed=3)
    for phase, given, handed in (("forward", [x], [np.tanh(x)]), ("backward", [x * 2], [x])):
        dump.add(f"Functional.tanh.0.{phase}", given, handed)  # what it reads may follow from h
    dump.data = {name: dump.data[name] for name in sorted(dump.data, key=lambda name: "backward" in name)}
    found = edges(dump)["Functional.linear.0.backward"]
    assert found.verdict is verdict


def test_files_words_and_status(tmp_path):
    found = replay(network(tmp_path / "dump", incoming=lambda g: g * 1.01).write())
    assert found.exit_status == 1 and not [row for row in found.rows if row.verdict is ReplayVerdict.GUILTY]
    text = str(found)
    assert "BROKEN      Functional.linear.0.backward  input:0" in text
    words = "the incoming gradient differs from the gradient that Functional.linear.1.backward returns (gelu (erf))"
    assert words in text
    assert text.splitlines()[-1].startswith("GUILTY: 1 gradient differs from the sum of its consumers")
    write_reports(found, tmp_path / "out")
    with open(tmp_path / "out" / "edges.csv", newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == EDGES and [row[header.index("verdict")] for row in rows].count("BROKEN") == 1
    with open(tmp_path / "out" / "gaps.csv", newline="") as stream:
        header, *rows = csv.reader(stream)
    (cells,) = (cells for row in rows if (cells := dict(zip(header, row)))["function"])
    assert tuple(header) == GAPS
    assert (cells["reader"], cells["writer"]) == ("Functional.linear.1.forward", "Functional.linear.0.forward")
    assert cells["function"] == "gelu (erf)"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["edges"] == {"UNKNOWN": 1, "CLEAN": 3, "BROKEN": 1} and summary["exit_status"] == 1
    assert summary["broken_edges"][0]["op"] == "Functional.linear.0.backward"


@pytest.mark.parametrize("sample, broken", [
    ("msprobe_backward", ["Functional.linear.8.backward"]),
    ("msprobe_clean", []),
    ("msprobe_bfloat16", []),
    ("msprobe_softmax", []),
    ("msprobe_uncaptured", []),
    ("msprobe_extra_operator", []),
])  # fmt: skip
def test_samples(sample, broken):
    found = replay(SAMPLES / sample / "target")
    (one,) = found.replays
    assert [one.operators[edge.order].name for edge in one.broken_edges] == broken
    assert sum(edge.verdict is EdgeVerdict.CLEAN for edge in one.edges) == 26 - len(broken)
    if broken:
        assert found.exit_status == 1


# gaps

X = normal(4, 6, 16)
POSITIVE = np.abs(X) + F32(0.1)
BF16 = (X.view(np.uint32) & 0xFFFF0000).view(F32)  # few bits: many elements are equal


def gaps_of(dump):
    """Names of operators by order, and the gaps; no torch is needed for them."""
    options, path = ReplayOptions(), dump.write()
    context = options.context(path)
    (run,) = options.runs(path, context)
    _, gaps = link_operators(tasks_of(run, calls_of(run, context)), context, ReplaySettings(), 1)
    return {operator.order: operator.name for operator in run.operators}, gaps


def erf(x):
    return torch.erf(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("written, read, function", [
    (X, 0.5 * X * (1 + erf(X.astype(float) * 0.5**0.5)), "gelu (erf)"),
    (X, 0.5 * X * (1 + np.tanh((2 / np.pi) ** 0.5 * (X + 0.044715 * X.astype(float) ** 3))), "gelu (tanh)"),
    (X, X / (1 + np.exp(-X.astype(float))), "silu"),
    (X, np.maximum(X, 0), "relu"),
    (X, np.where(X > 0, X, X * 0.2), "leaky relu 0.2"),
    (X, 1 / (1 + np.exp(-X.astype(float))), "sigmoid"),
    (X, np.tanh(X.astype(float)), "tanh"),
    (X, np.exp(X.astype(float)), "exp"),
    (X, X * X, "square"),
    (X, -X, "negative"),
    (POSITIVE, 1 / POSITIVE, "reciprocal"),
    (POSITIVE, 1 / np.sqrt(POSITIVE), "rsqrt"),
    (X, X * F32(0.125), "scaled by 0.125"),
    (X, X.astype(np.float16), "cast"),
    (X, X[:, :, 4:12], "slice"),
    (X, X[:, 0], "slice"),
    (X, X[[3, 1, 1, 0]], "rows"),
    (X, np.concatenate([-X[..., 8:], X[..., :8]], -1), "halves, one negated"),
    (BF16, np.concatenate([-BF16[..., 8:], BF16[..., :8]], -1), "halves, one negated"),
    (X, X.cumsum(-1), ""),
    (X, normal(4, 6, 16, seed=7), ""),
])  # fmt: skip
def test_a_gap_gets_the_name_of_its_function(tmp_path, written, read, function):
    kept = read.dtype if read.dtype == np.float16 else F32
    dump = Dump(tmp_path).add("Torch.square.0.forward", [normal(*written.shape, seed=3)], [written])
    dump.add("Torch.sort.0.forward", [read.astype(kept)], [np.sort(read.astype(kept))])
    names, gaps = gaps_of(dump)
    gap = next(gap for gap in gaps if names[gap.order] == "Torch.sort.0.forward")
    assert gap.function == function
    assert [names[order] for order, _ in gap.writers] == ["Torch.square.0.forward"] * bool(function)


@pytest.mark.parametrize("made, function", [
    (lambda a, b: a + b, "sum"),
    (lambda a, b: a - b, "difference"),
    (lambda a, b: a * b, "product"),
    (lambda a, b: np.concatenate([a, b], 1), "concatenation"),
])  # fmt: skip
def test_a_gap_of_two_outputs(tmp_path, made, function):
    a, b = normal(4, 6, 16), normal(4, 6, 16, seed=2)
    dump = Dump(tmp_path)
    dump.add("Torch.square.0.forward", [normal(4, 6, 16, seed=3)], [a])
    dump.add("Torch.square.1.forward", [normal(4, 6, 16, seed=4)], [b])
    dump.add("Torch.sort.0.forward", [made(a, b)], [np.sort(made(a, b))])
    (one,) = replay(dump.write()).replays
    gap = next(gap for gap in one.gaps if one.operators[gap.order].name == "Torch.sort.0.forward")
    assert gap.function == function
    assert {one.operators[order].name for order, _ in gap.writers} == {
        "Torch.square.0.forward",
        "Torch.square.1.forward",
    }


def test_layers_that_differ_are_told(tmp_path):
    dump = Dump(tmp_path)
    for at in range(3):
        x = normal(6, 32, seed=at)
        approximate = "tanh" if at == 1 else "none"
        read = F.gelu(torch.from_numpy(x), approximate=approximate).numpy()
        dump.add(f"Torch.square.{at}.forward", [normal(6, 32, seed=at + 9)], [x])
        dump.add(f"Torch.sort.{at}.forward", [read], [np.sort(read)])
    names, gaps = gaps_of(dump)
    told = {names[gap.order]: gap.differs for gap in gaps if gap.function}
    assert told["Torch.sort.1.forward"] == "gelu (erf) in 2 of 3"
    assert told["Torch.sort.0.forward"] == told["Torch.sort.2.forward"] == ""


def test_in_16_bits_all_functions_that_fit_are_told(tmp_path):
    """A relu, a cast, an abs of what is positive are the same."""
    dump = Dump(tmp_path).add("Torch.square.0.forward", [normal(6, 32)], [POSITIVE])
    read = POSITIVE.astype(np.float16)
    dump.add("Torch.sort.0.forward", [read], [np.sort(read)])
    _, gaps = gaps_of(dump)
    gap = next(gap for gap in gaps if gap.function)
    assert gap.function == "cast" and {"relu", "abs"} <= {*gap.others} and gap.equal


@pytest.mark.parametrize("values", [X, BF16.astype(np.float16)])
@pytest.mark.parametrize("moved", [
    lambda x: x.reshape(4, 6, 2, 8).transpose(0, 2, 1, 3),
    lambda x: x.reshape(4, 6, 2, 8).transpose(0, 2, 3, 1),
    lambda x: x[:, :, 8:].reshape(4, 6, 2, 4).transpose(0, 2, 3, 1),
    lambda x: x[:, 2],
    lambda x: x[[2, 0, 3]],
    lambda x: x.swapaxes(0, 1),
])  # fmt: skip
def test_elements_are_found_where_they_came_from(values, moved):
    wanted = moved(np.arange(values.size).reshape(values.shape)).reshape(-1)
    found = places_in(np.ascontiguousarray(moved(values)), values)
    assert found is not None and found.share == 1 and not found.negated.any()
    assert found.ambiguous or np.array_equal(found.places, wanted)
    assert np.array_equal(values.reshape(-1)[found.places], moved(values).reshape(-1))


def test_equal_rows_are_ambiguous():
    values = np.repeat(normal(1, 4, 8), 2, 0)
    found = places_in(np.ascontiguousarray(values[:, 1:3]), values)
    assert found is not None and found.ambiguous
    assert np.array_equal(found.places, np.arange(64).reshape(2, 4, 8)[:, 1:3].reshape(-1))  # in order, all the same


# hostile records


def test_what_cannot_be_read_costs_its_own_edges(tmp_path):
    dump = network(tmp_path)
    folder = dump.write() / "step0" / "rank0" / "dump_tensor_data"
    (folder / "Functional.linear.0.backward.input.0.npy").unlink()
    (folder / "Tensor.__add__.0.forward.input.0.npy").write_bytes(b"\x93NUMPY no")
    np.save(folder / "Functional.linear.1.backward.input.0.npy", normal(3, 3))
    (one,) = replay(tmp_path).replays
    found = {one.operators[edge.order].name: edge for edge in one.edges}
    assert {edge.verdict for edge in found.values()} <= {EdgeVerdict.UNKNOWN, EdgeVerdict.CLEAN}
    assert found["Functional.linear.0.backward"].verdict is EdgeVerdict.UNKNOWN
    assert found["Functional.linear.1.backward"].verdict is EdgeVerdict.UNKNOWN
    assert found["Tensor.__add__.0.backward"].verdict is EdgeVerdict.CLEAN


def test_nan_and_constant_gradients_are_nobodys_fault(tmp_path):
    found = edges(network(tmp_path / "nan", incoming=lambda g: g * float("nan")))
    assert all(edge.verdict is not EdgeVerdict.BROKEN for edge in found.values())
    assert "NaN" in found["Functional.linear.0.backward"].explanation
    lost = edges(network(tmp_path / "zero", incoming=lambda g: g * 0))
    assert lost["Functional.linear.0.backward"].verdict is EdgeVerdict.BROKEN


def test_constant_tensors_link_nothing(tmp_path):
    dump = Dump(tmp_path)
    for at in range(3):
        dump.add(f"Torch.abs.{at}.forward", [np.zeros((4, 4), F32)], [np.zeros((4, 4), F32)])
    (one,) = replay(dump.write()).replays
    assert one.edges == () and one.gaps == ()


def test_a_batch_norm_hands_back_to_its_input_alone(tmp_path):
    """Its running statistics have no gradient."""
    torch.manual_seed(1)
    x, kernel, gain = torch.randn(4, 3, 6, 6), torch.randn(5, 3, 3, 3, requires_grad=True), torch.ones(5)
    mean, var, gain = torch.randn(5) / 9, torch.rand(5) + 1, (gain * 1.5).requires_grad_()
    y = F.conv2d(x, kernel)
    z = F.batch_norm(y, mean.clone(), var.clone(), gain, None, True)
    target = torch.randn(4, 5, 4, 4)
    loss = F.mse_loss(z, target)
    gy, gz = (plain(one) for one in torch.autograd.grad(loss, [y, z]))
    dump = Dump(tmp_path)
    records = (
        ("Functional.conv2d.0", [x, kernel], y),
        ("Functional.batch_norm.0", [y, mean, var, gain, None, True], z),
        ("Functional.mse_loss.0", [z, target], loss),
    )
    for name, args, out in records:
        dump.add(f"{name}.forward", [plain(one) for one in args], [plain(out)])
    dump.add("Functional.mse_loss.0.backward", [np.array(1, F32)], [gz, None])
    dump.add("Functional.batch_norm.0.backward", [gz], [gy, None, None, None])
    dump.add("Functional.conv2d.0.backward", [gy], [None, None])
    found = edges(dump)
    assert [found[f"Functional.{name}.0.backward"].verdict for name in ("batch_norm", "conv2d")] == [
        EdgeVerdict.CLEAN
    ] * 2
