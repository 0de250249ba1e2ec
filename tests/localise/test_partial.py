"""Recordings of a part of a network: a planted fault is never agreement, and never born where nobody could know."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import npucmp
from tests.reports import screen
from tests.synthetic import with_statistics, write_run

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
READ = ("input_args", "input_kwargs", "input")


def without(*keys):
    return lambda data: {
        name: {key: leaf for key, leaf in record.items() if key not in keys} for name, record in data.items()
    }


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
