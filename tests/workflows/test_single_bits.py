"""One flipped bit of one float32 element is no rounding, whichever format holds it; 16-bit values in float32 are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import npucmp
from tests.dump.formats.pt_files import save_pt
from tests.dump.formats.test_safetensors import packed
from tests.synthetic import write_run

LAYERS, ROWS, WIDTH = 6, 16, 48
U32, U16 = 2.0**-24, {16: 2.0**-8, 13: 2.0**-11}  # unit round-offs; low bits of float32 that bfloat16, float16 lack


def network(seed, flip=None, kept=0, noise=0.0):
    """Products and tanh in turn. flip: (tensor, bit) of one element; kept: low bits that are rounded off everywhere."""
    random, jitter, chance = (np.random.default_rng(seed + more) for more in (0, 1000, 2000))
    operators = {}

    def made(name, values):
        values = values * (1 + noise * jitter.standard_normal(values.shape))
        values = rounded(values.astype(np.float32), kept)
        return flipped(values, flip[1], chance) if flip and flip[0] == name else values

    x = made("input", random.standard_normal((ROWS, WIDTH)))
    for i in range(LAYERS):
        weight = made(f"weight{i}", random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH))
        bias = made(f"bias{i}", random.standard_normal(WIDTH) / 8)
        y = made(f"product{i}", x.astype(np.float64) @ weight + bias)
        operators[f"Functional.linear.{i}.forward"] = {"in": [x, weight, bias], "out": [y]}
        x = made(f"tanh{i}", np.tanh(y.astype(np.float64)))
        operators[f"Torch.tanh.{i}.forward"] = {"in": [y], "out": [x]}
    return operators


def rounded(values, low):
    """float32 values to the nearest with so many low bits that are zero."""
    if not low:
        return values
    bits = values.view(np.uint32).astype(np.uint64) + (1 << (low - 1)) - 1 + ((values.view(np.uint32) >> low) & 1)
    return (bits >> low << low).astype(np.uint32).view(np.float32)


def flipped(values, bit, random):
    """With one bit of one element turned: an element of usual size."""
    found = values.copy()
    usual = np.flatnonzero(np.abs(values) > np.abs(values).max() / 16)
    found.reshape(-1).view(np.uint32)[random.choice(usual)] ^= np.uint32(1 << bit)
    return found


def slots(operators):
    for name, one in operators.items():
        for role in ("in", "out"):
            for place, values in enumerate(one[role]):
                yield f"{name}.{role}put.{place}", values


def npy(folder, operators):
    folder.mkdir(parents=True)
    for name, values in slots(operators):
        np.save(folder / f"{name}.npy", values)


def npz(folder, operators):
    folder.mkdir(parents=True)
    np.savez(folder / "tensors.npz", **dict(slots(operators)))


def msprobe_pt(folder, operators):
    write_run(folder, operators, framework="pytorch")
    for file in folder.rglob("dump.json"):
        text = file.read_text().replace("mindspore.Tensor", "torch.Tensor").replace(".npy", ".pt")
        file.write_text(text.replace('"float32"', '"torch.float32"'))
    for file in folder.rglob("*.npy"):
        save_pt(file.with_suffix(".pt"), np.load(file))
        file.unlink()


def weights(folder, operators):
    """safetensors of the parameters alone."""
    folder.mkdir(parents=True)
    parameters = {}
    for i in range(LAYERS):
        _, weight, bias = operators[f"Functional.linear.{i}.forward"]["in"]
        parameters.update({f"layers.{i}.linear.weight": weight, f"layers.{i}.linear.bias": bias})
    (folder / "model.safetensors").write_bytes(packed(parameters))


WRITERS = {"npy": npy, "npz": npz, "msprobe": write_run, "msprobe .pt": msprobe_pt, "safetensors": weights}
DATA = ["input", "product0", "tanh2", "product5", "tanh5"]
PARAMETERS = ["weight0", "weight3", "weight5", "bias2", "bias5"]


@cache
def clean(seed, kept):
    return network(seed, kept=kept)


def status(folder, write, target, golden):
    write(folder / "target", target)
    write(folder / "golden", golden)
    return npucmp.compare(folder / "target", folder / "golden", jobs=1).exit_status


@pytest.mark.few(2)
@pytest.mark.parametrize("name", WRITERS)
def test_no_flipped_bit_agrees(tmp_path, name):
    """Bits 13 to 23 of float32: 2^-10 of the element and more, of which an 8 u of float32 leaves nothing."""
    write, names = WRITERS[name], PARAMETERS if name == "safetensors" else DATA + PARAMETERS
    agree = []
    for number, bit in enumerate(range(13, 24)):
        seed, tensor = number % 3, names[number * 7 % len(names)]
        write(folder := tmp_path / str(bit) / "target", network(seed, (tensor, bit)))
        write(golden := tmp_path / str(bit) / "golden", clean(seed, 0))
        if npucmp.compare(folder, golden, jobs=1).exit_status != 1:
            agree.append((tensor, bit))
    assert not agree


@pytest.mark.parametrize("bit", [13, 18, 23])
def test_a_bit_that_flipped_between_two_operators_is_seen(tmp_path, bit):
    """What an operator reads is not what the one before it wrote."""
    target = {**clean(0, 0)}
    name = "Functional.linear.3.forward"
    x, *others = target[name]["in"]
    target[name] = {**target[name], "in": [flipped(x, bit, np.random.default_rng(bit)), *others]}
    write_run(tmp_path / "t", target)
    report = npucmp.compare(tmp_path / "t", write_run(tmp_path / "g", clean(0, 0)))
    first = report.roots[0]
    assert report.exit_status == 1
    assert (first.pair.operator.name, first.slot, first.cause.value) == (name, "input:0", "GAP")


@pytest.mark.parametrize("role", ["weight", "output"])
def test_a_flipped_bit_that_the_norm_hides_is_seen(tmp_path, role):
    """One of 2 million elements: the relative L2 error is below 8 unit round-offs of float32."""
    random = np.random.default_rng(5)
    x, w = random.standard_normal((4, 1448)).astype(np.float32), random.standard_normal((1448, 1448)).astype(np.float32)
    y = w * np.float32(3)
    place = np.flatnonzero(np.abs(w) > 0.1)[0]
    wrong = (w if role == "weight" else y).copy()
    wrong.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << 13)
    right = w if role == "weight" else y
    assert 0 < np.linalg.norm((wrong - right).astype(np.float64)) / np.linalg.norm(right.astype(np.float64)) < 8 * U32
    runs = [
        {
            "Functional.linear.0.forward": {"in": [x, values if role == "weight" else w], "out": [x]},
            "Torch.mystery.0.forward": {"in": [x], "out": [y if role == "weight" else values]},
        }
        for values in (wrong, right)
    ]
    assert status(tmp_path, write_run, *runs) == 1


def test_an_update_may_move_single_elements_of_a_bias_by_a_rounding(tmp_path):
    """A module records the bias that its function reads: what differs there came from the update before."""
    random = np.random.default_rng(6)
    x, w = (random.standard_normal((64, 64)).astype("f4") for _ in range(2))
    bias = np.full(64, 0.25, "f4")
    bias[:2] = 2.0**-9  # what an update of 0.25 left over, whose rounding is that of 0.25
    moved = bias.copy()
    moved[:2] += np.float32(2.0**-26)
    gradient = random.standard_normal(64).astype("f4")
    for side, last, noise in (("target", moved, 2e-7), ("golden", bias, 0.0)):
        for step, values in enumerate((np.full(64, 0.25, "f4") + gradient * np.float32(1e-3), last)):
            run = {
                "Functional.linear.0.forward": {"in": [x, w, values], "out": [x @ w.T + values]},
                "Module.lin.Linear.forward.0": {
                    "in": [x], "out": [x @ w.T + values], "param": {"weight": w, "bias": values},
                },
                "Functional.linear.0.backward": {
                    "in": [x], "out": [x @ w, x.T @ x, (gradient * (1 + noise)).astype("f4")],
                },
            }  # fmt: skip
            write_run(tmp_path / side, run, step)
    assert npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1).exit_status == 0


# Values of 16 bits


@pytest.mark.parametrize("low", [16, 13])
def test_clean_runs_of_16_bits_in_float32_agree(tmp_path, low):
    """Every value of both runs is a number of bfloat16 or float16, and roundings fall otherwise here and there."""
    target, golden = network(0, kept=low, noise=U16[low] / 64), clean(0, low)
    apart = [np.count_nonzero(x != y) / x.size for (_, x), (_, y) in zip(slots(target), slots(golden))]
    assert max(apart) > 0.02
    assert status(tmp_path, npy, target, golden) == 0


@pytest.mark.parametrize("low", [16, 13])
def test_a_fault_in_a_run_of_16_bits_in_float32_is_seen(tmp_path, low):
    golden = clean(0, low)
    target = {**golden, "Torch.tanh.5.forward": {**golden["Torch.tanh.5.forward"]}}
    (y,) = golden["Torch.tanh.5.forward"]["out"]
    wrong = rounded((y * (1 + 16 * U16[low] * np.random.default_rng(1).standard_normal(y.shape))).astype("f4"), low)
    target["Torch.tanh.5.forward"]["out"] = [wrong]
    assert status(tmp_path, npy, target, golden) == 1


def both(folder, target, golden):
    """The finding on the output of one operator."""
    runs = ({"Torch.mystery.0.forward": {"in": [np.ones(3, "f4")], "out": [one]}} for one in (target, golden))
    for side, run in zip(("target", "golden"), runs):
        write_run(folder / side, run)
    report = npucmp.compare(folder / "target", folder / "golden", jobs=1)
    return next(one for one in report.findings if one.pair.slot == "output:0")


def stepped(values, low, share=0.05):
    """A share of the elements one step of the 16-bit type away."""
    bits = values.view(np.uint32).copy()
    bits[np.random.default_rng(8).random(values.shape) < share] += np.uint32(1 << low)
    return bits.view(np.float32)


def drawn(dtype=np.float32, size=1.0, count=(64, 64)):
    return (size * np.random.default_rng(4).standard_normal(count)).astype(dtype).astype(np.float32)


HALF = drawn(np.float16)
TINY = drawn(np.float16, 3e-6)  # subnormal numbers of float16
BRAIN = rounded(drawn(), 16)
MASKED = np.where(np.arange(64) % 5 == 0, np.float32(-3.4028235e38), BRAIN)
NAN = np.where(np.arange(64) % 5 == 0, np.float32(np.nan), BRAIN)
ONE_MORE = BRAIN.copy()
ONE_MORE[3, 3] = np.float32(1 / 3)
SIXTEEN = {
    "bfloat16": (BRAIN, 16, 2.0**-8),
    "float16": (HALF, 13, 2.0**-11),
    "beside masks": (MASKED, 16, 2.0**-8),
    "beside NaN": (NAN, 16, 2.0**-8),
    "huge bfloat16": (np.ldexp(BRAIN, 100).astype("f4"), 16, 2.0**-8),
    "small bfloat16": (np.ldexp(BRAIN, -100).astype("f4"), 16, 2.0**-8),
}
NO_SIXTEEN = {
    "float32": (drawn(), 16),
    "one value of float32 among bfloat16": (ONE_MORE, 16),
    "too large for float16": (np.ldexp(HALF, 15).astype("f4"), 13),
    "too small for float16": (np.ldexp(HALF, -20).astype("f4"), 13),
    "constant": (np.full((64, 64), 1.5, "f4"), 16),
    "whole numbers": (np.arange(4096).reshape(64, 64).astype("f4") % 200 + 1, 16),
    "whole numbers below 2048": (np.arange(4096).reshape(64, 64).astype("f4") % 2000 + 1, 13),
    "multiples of 8": (np.arange(4096).reshape(64, 64).astype("f4") % 200 * 8 + 8, 16),
    "powers of two": (np.exp2(np.arange(4096).reshape(64, 64) % 30 - 15.0).astype("f4"), 16),
    "steps of 1/256": ((np.arange(4096).reshape(64, 64) % 255 + 1).astype("f4") / 256, 16),
}


@pytest.mark.parametrize("name", SIXTEEN)
def test_values_of_16_bits_are_held_to_their_type(tmp_path, name):
    values, low, unit = SIXTEEN[name]
    finite = np.isfinite(values) & (np.abs(values) < 3e38)
    found = both(tmp_path, np.where(finite, stepped(values, low), values), values)
    assert (found.verdict.value, found.limit) == ("match", 8 * unit)


@pytest.mark.parametrize("name", NO_SIXTEEN)
def test_other_values_are_held_to_float32(tmp_path, name):
    """Differences that are whole steps of a 16-bit type say nothing of the values."""
    values, low = NO_SIXTEEN[name]
    found = both(tmp_path, stepped(values, low), values)
    assert (found.verdict.value, found.limit) == ("diverged", 8 * U32)


@pytest.mark.parametrize("step", [1, 8])
def test_whole_numbers_in_float32_that_differ_are_differences(tmp_path, step):
    values = (np.random.default_rng(2).integers(1, 250, (64, 64)) * step).astype(np.float32)
    other = values.copy()
    other[5, 7] += step
    assert both(tmp_path, other, values).verdict.value == "diverged"


@pytest.mark.parametrize("bit", [16, 19, 22])
def test_a_flipped_bit_of_a_bfloat16_weight_in_a_float32_run_is_seen(tmp_path, bit):
    """Checkpoints of bfloat16 are loaded into float32: numbers of bfloat16 that nothing in this run rounded."""

    def run(weight):
        x = drawn(count=(16, 64))
        product = {"in": [x, weight], "out": [(x.astype(np.float64) @ weight).astype(np.float32)]}
        return {"Functional.linear.0.forward": product}

    assert status(tmp_path, write_run, run(flipped(BRAIN, bit, np.random.default_rng(bit))), run(BRAIN)) == 1


def test_what_a_tensor_needs_does_not_depend_on_blocks(tmp_path):
    """The last element alone, far behind the first block, is no number of bfloat16."""
    values = rounded(drawn(count=(300_000,)), 16)
    other = stepped(values, 16)
    assert both(tmp_path / "a", other, values).verdict.value == "match"
    other[-1], values[-1] = np.float32(1 / 3), np.float32(0.3)
    assert both(tmp_path / "b", other, values).verdict.value == "diverged"
