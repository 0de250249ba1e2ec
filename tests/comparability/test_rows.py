"""Each row: one difference is named by its row and by no other, and a repeat is silent."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.comparability.registry import ROWS
from tests.comparability.craft import Net, classes, differing, held, images, start, status, words

RANDOM = np.random.default_rng(5).normal(0, 1, (3, 4, 4)).astype("f4")
ORDER = [3, 0, 1, 2, 5, 4]
CHANNELS = np.array([0.229, 0.224, 0.225], "f4")[:, None, None]


def changed(**more):
    return {**start(), **more}


def moved(seed):
    return {name: (one + np.random.default_rng(seed).normal(0, 0.1, one.shape)).astype("f4")
            for name, one in start().items()}  # fmt: skip


def tied():
    return changed(**{"side.weight": start()["head.weight"]})


BASE = Net()
CASES = {  # name: (target, golden, what differs, words of the first of these)
    "operators": (Net(more=3), BASE, {"network.operators": "error"}, "3 of 18 operators only in target (3 mul"),
    "eps": (
        Net(eps=1e-3),
        BASE,
        {"network.arguments": "error"},
        "eps is 0.001 against 1e-05 in Functional.batch_norm.0",
    ),
    "mode": (
        Net(training=False),
        BASE,
        {"network.arguments": "error"},
        "training is False against True in Functional.batch_norm.0.forward; training in 4 operators",
    ),
    "dropout on one side": (
        Net(p=0.5),
        BASE,
        {"network.arguments": "error", "dropout": "error"},
        "p is 0.5 against 0.0 in Functional.dropout.0.forward",
    ),
    "dropout on both": (
        Net(p=0.5, seed=1),
        Net(p=0.5),
        {"dropout": "warning", "random": "error"},
        "on in both (p 0.5)",
    ),
    "reduction": (
        Net(reduction="sum"),
        BASE,
        {"loss.reduction": "error", "loss.value": "note"},
        "reduction is sum against mean in Functional.cross_entropy.0.forward",
    ),
    "shuffled": (
        Net(images=[one[ORDER] for one in images()], labels=[one[ORDER] for one in classes()]),
        BASE,
        {"input": "error", "labels": "error"},
        "the same 6 samples in another order (6 moved)",
    ),
    "normalised": (
        Net(images=[(one - 0.3) / 0.7 for one in images()]),
        BASE,
        {"input": "error"},
        "target = 1.429·golden − 0.4286",
    ),
    "per channel": (
        Net(images=[one / CHANNELS for one in images()]),
        BASE,
        {"input": "error"},
        "target = 4.367·golden, 4.464·golden, 4.444·golden",
    ),
    "BGR": (Net(images=[one[:, ::-1].copy() for one in images()]), BASE, {"input": "error"}, "RGB against BGR"),
    "stored in float16": (
        Net(images=[one.astype("f2").astype("f4") for one in images()]),
        BASE,
        {"input": "warning"},
        "on one side rounded to float16",
    ),
    "other images": (Net(images=images(9)), BASE, {"input": "error"}, "no relation explains it"),
    "labels": (
        Net(labels=[np.where(np.arange(6) == 0, (one + 1) % 5, one) for one in classes()]),
        BASE,
        {"labels": "error"},
        "labels differ in 17%",
    ),
    "batch": (
        Net(images=[one[:3] for one in images()], labels=[one[:3] for one in classes()]),
        BASE,
        {"network.shapes": "error", "input": "error", "labels": "error"},
        "only the first axis differs, 3 against 6 (batch size)",
    ),
    "seed": (
        Net(weights=start(5)),
        BASE,
        {"weights": "error"},
        "100% of all but constants: another seed or checkpoint",
    ),
    "checkpoint": (
        Net(weights=moved(3)),
        BASE,
        {"weights": "error", "weights.start": "error"},
        "another seed or checkpoint",
    ),
    "one layer": (
        Net(weights=changed(**{"fc.weight": start(5)["fc.weight"]})),
        BASE,
        {"weights": "error"},
        "1 of 6 differ (fc.weight)",
    ),
    "transposed": (
        Net(weights=changed(**{"head.weight": start()["head.weight"].T.copy()})),
        BASE,
        {"weights": "error"},
        "(head.weight): transposed",
    ),
    "weights by way of float16": (
        Net(weights={name: one.astype("f2").astype("f4") for name, one in start().items()}),
        BASE,
        {"weights": "warning"},
        "4 of 6 hold the same values, on one side rounded to float16",
    ),
    "buffers": (
        Net(mean=0.5),
        BASE,
        {"buffers": "error"},
        "1 of 1 buffers and constants and 2 running statistics differ",
    ),
    "frozen": (Net(frozen=("fc.weight",)), BASE, {"frozen": "error"}, "frozen only in target: fc.weight"),
    "shared": (
        Net(weights=tied(), apart=True),
        Net(weights=tied()),
        {"sharing": "error"},
        "head.weight and side.weight share a tensor only in golden",
    ),
    "types": (Net(products="float16"), BASE, {"precision.types": "warning"}, "in float16 against float32 (4 conv2d"),
    "loss scale": (Net(scale=1024.0), BASE, {"loss.scale": "warning"}, "loss scale 1024 against 1"),
    "learning rate": (
        Net(rate=0.11),
        BASE,
        {"optimizer.step": "error"},
        "updates of target are 1.1 times as large, in the same direction (cosine 1.0000): another learning rate, or "
        "gradients that are scaled, averaged or clipped another way",
    ),
    "optimizer": (Net(by_sign=True), BASE, {"optimizer.step": "error"}, "another optimizer, weight decay"),
    "accumulated": (Net(accumulates=True), BASE, {"gradient.accumulation": "warning"}, ""),
    "steps": (Net(steps=(2, 3)), BASE, {"dump.steps": "error"}, "steps 2, 3 against 0, 1"),
    "an operator's fault": (Net(spoil=0.01), BASE, {}, ""),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", CASES)
def test_one_difference_is_named(tmp_path, name):
    target, golden, rows, told = CASES[name]
    result = held(tmp_path, target, golden)
    found = differing(result)
    assert {row: found.get(row) for row in rows} == rows
    consequences = {
        "loss.value": "note",
        "network.operators": "warning",
        "target.health": "error",
        "network.shapes": "",
    }
    assert {row for row in found if row not in rows and row not in consequences} == set()
    assert not rows or told in words(result, next(iter(rows)))
    assert result.exit_status == (1 if "error" in found.values() else 0)


def test_a_loss_that_names_no_reduction_has_the_default(tmp_path):
    """The advice is not another level: the arguments of other operators were recorded."""
    loss = "Functional.cross_entropy.0.forward"
    neither = held(tmp_path / "neither", Net(reduction=""), Net(reduction=""))
    assert words(neither, "loss.reduction") == (
        f"{loss} records none on either side: both have the default of their framework"
    )
    one = held(tmp_path / "one", Net(reduction="sum"), Net(reduction=""))
    assert words(one, "loss.reduction") == (f"{loss} records reduction only in the target: the other has its default")
    assert status(one, "loss.reduction") == "unknown"


@pytest.mark.parametrize("name", ["normalised", "seed", "batch", "eps", "reduction", "learning rate"])
def test_statistics_alone(tmp_path, name):
    """What needs no values is named all the same; the step of the optimizer is unknown."""
    target, golden, rows, _ = CASES[name]
    result = held(tmp_path, target, golden, values=False)
    if name == "learning rate":
        assert status(result, "optimizer.step") == "unknown" and result.exit_status == 0
    else:
        assert {row: differing(result).get(row) for row in rows} == rows


def test_a_row_that_raises_costs_itself(tmp_path, monkeypatch, as_installed):
    from npucmp.comparability import registry, workflow

    def broken(both):
        raise ZeroDivisionError("by design")

    rows = [row._replace(compare=broken) if row.name == "network.shapes" else row for row in registry.ROWS]
    monkeypatch.setattr(workflow, "ROWS", tuple(rows))
    result = held(tmp_path, BASE, BASE)
    assert words(result, "network.shapes") == "row failed: ZeroDivisionError: by design"
    assert status(result, "network.shapes") == "unknown" and result.exit_status == 0


def test_what_differs_beyond_what_is_looked_at_is_not_the_same(tmp_path, monkeypatch):
    from npucmp.comparability import tensors
    from npucmp.health import detectors

    monkeypatch.setattr(detectors, "MOST_ELEMENTS", 0)
    monkeypatch.setattr(tensors, "MOST", 2 * 48)
    monkeypatch.setattr(tensors.values_of, "__defaults__", (2 * 48,))
    odd = [one.copy() for one in images()]
    odd[0][5] += RANDOM
    result = held(tmp_path, Net(images=odd), BASE)
    assert words(result, "input") == (
        "Functional.conv2d.0.forward input:0: the first 96 elements are the same, others differ"
    )


def test_a_row_asks_for_those_that_it_needs(tmp_path):
    result = held(tmp_path, *CASES["learning rate"][:2], only="optimizer.step")
    assert [row.row for row in result.rows] == ["optimizer.step"] and result.exit_status == 1


def test_names_of_rows_are_told_once():
    names = [row.name for row in ROWS]
    assert len(names) == len({*names}) and all(row.severity in ("error", "warning", "note") for row in ROWS)


def test_unreadable_values_are_unknown_and_never_the_same(tmp_path):
    target, golden = BASE.write(tmp_path / "t"), BASE.write(tmp_path / "g")
    for file in (tmp_path / "t").rglob("Functional.conv2d.0.forward.input_args.0.npy"):
        file.write_bytes(b"no numbers")
    from npucmp import precheck

    result = precheck(target, golden, jobs=1, skip="*.health")
    assert "input" not in differing(result)
    assert status(result, "input") == "unknown" and result.exit_status == 2
