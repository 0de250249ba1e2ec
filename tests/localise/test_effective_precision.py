"""The precision that a tensor is held to: that of what its values went through, and of its operator where all that it
reads is known."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from npucmp.localise.effective_precision import count_types, float_types, work_in_other_types
from npucmp.model import Measurement, Pair, TensorRef
from tests.synthetic import write_run

random = np.random.default_rng(3)
U = {np.float64: 2.0**-53, np.float32: 2.0**-24, np.float16: 2.0**-11}


def drawn(dtype, *shape):
    return random.standard_normal(shape or (16, 16)).astype(dtype)


def limits(tmp_path, run):
    """{operator slot: limit in round-offs of float32} of a run held against itself."""
    report = npucmp.compare(write_run(tmp_path / "target", run), write_run(tmp_path / "golden", run))
    return {f"{one.pair.operator.name} {one.pair.slot}": one.limit / 2.0**-24 for one in report.findings}


def test_a_side_branch_does_not_coarsen_what_does_not_read_it(tmp_path):
    x, small, w = drawn(np.float32), drawn(np.float16), drawn(np.float32)
    y, z = x @ w, (x @ w) @ w
    found = limits(
        tmp_path,
        {
            "Tensor.to.0.forward": {"in": [x], "out": [small]},
            "Torch.matmul.0.forward": {"in": [x, w], "out": [y]},
            "Torch.matmul.1.forward": {"in": [y, w], "out": [z]},
            "Torch.tanh.0.forward": {"in": [small], "out": [drawn(np.float32)]},
        },
    )
    assert found["Torch.matmul.1.forward output:0"] == found["Torch.matmul.1.forward input:0"] == 8
    assert found["Torch.tanh.0.forward input:0"] == 8 * 2**13
    assert found["Torch.tanh.0.forward output:0"] == 8  # it computes in float32, and its input is known


def one_product(n, x, w, y):
    return {f"Functional.linear.{n}.forward": {"in": [x, w], "out": [y]}}


def test_one_product_alone_is_no_hf32(tmp_path):
    """A fault of that size in the first product must not raise the limit of all others; as many as are needed may."""
    x, w = drawn(np.float32, 64, 64), drawn(np.float32, 64, 64)
    off = lambda y: (y * (1 + 3e-4 * random.standard_normal(y.shape))).astype(np.float32)  # noqa: E731
    y, z = x @ w, (x @ w) @ w
    golden = {**one_product(0, x, w, y), **one_product(1, y, w, z)}
    wrong = off(y)
    target = {**one_product(0, x, w, wrong), **one_product(1, wrong, w, wrong @ w)}
    report = npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden))
    assert [(root.pair.operator.name, root.cause.value) for root in report.roots][:1] == [
        ("Functional.linear.0.forward", "BORN")
    ]
    v = drawn(np.float32, 64, 64)
    golden = {**one_product(0, x, w, y), **one_product(1, x, v, x @ v)}
    target = {**one_product(0, x, w, off(y)), **one_product(1, x, v, off(x @ v))}
    report = npucmp.compare(write_run(tmp_path / "t2", target), write_run(tmp_path / "g2", golden))
    assert report.roots == () and any("HF32" in note for one in report.comparisons for note in one.notes)


def eleven_bits(x):
    """As HF32 units round a float32: to the nearest of 11 significant bits."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 2**11), exponent - 11)


def rectified(seed, held=np.float64, faults=()):
    """Eight products with a rectifier between each two, their operands as `held` leaves them; relative noise of
    {product: size} on what they write."""
    draw, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    x, run = draw.standard_normal((32, 64)).astype(np.float32), {}
    for n in range(8):
        w = (draw.standard_normal((64, 64)) / 8).astype(np.float32)
        noise = 1 + dict(faults).get(n, 0.0) * chance.standard_normal((32, 64))
        y = (held(x) @ held(w) * noise).astype(np.float32)
        run.update(one_product(n, x, w, y))
        x = np.maximum(y, 0)
        run[f"Functional.relu.{n}.forward"] = {"in": [y], "out": [x]}
    return run


@pytest.mark.parametrize("seed", range(3))
def test_hf32_in_a_chain_is_told_by_what_each_product_adds(tmp_path, seed):
    report = npucmp.compare(
        write_run(tmp_path / "t", rectified(seed, eleven_bits)), write_run(tmp_path / "g", rectified(seed))
    )
    assert report.roots == () and any("HF32" in note for one in report.comparisons for note in one.notes)


def test_a_product_that_one_side_alone_has_says_nothing_of_hf32(tmp_path):
    """As those that were computed again on the way back: nothing differs in what has no partner."""
    again = {
        name.replace("linear.0", "linear.9"): one
        for name, one in rectified(0, eleven_bits).items()
        if "linear.0" in name
    }
    report = npucmp.compare(
        write_run(tmp_path / "t", {**rectified(0, eleven_bits), **again}), write_run(tmp_path / "g", rectified(0))
    )
    assert report.roots == () and any("HF32" in note for one in report.comparisons for note in one.notes)


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_a_fault_that_grows_on_its_way_is_no_hf32(tmp_path, seed):
    """Chains in which most products, but not all, happen to make what they read a tenth larger."""
    faulty = rectified(seed, faults={0: 3e-4, 3: 1e-3})
    report = npucmp.compare(write_run(tmp_path / "t", faulty), write_run(tmp_path / "g", rectified(seed)))
    assert (report.roots[0].pair.operator.name, report.roots[0].cause.value) == ("Functional.linear.0.forward", "BORN")


def test_products_whose_outputs_were_not_dumped_say_nothing_of_hf32(tmp_path):
    x, w, y = drawn(np.float32, 64, 64), drawn(np.float32, 64, 64), drawn(np.float32, 64, 64)
    golden = {"Functional.linear.0.forward": {"in": [x, w]}, "Functional.linear.1.forward": {"in": [y, w]}}
    wrong = (y * (1 + 2.5e-3 * random.standard_normal(y.shape))).astype(np.float32)
    target = {**golden, "Functional.linear.1.forward": {"in": [wrong, w]}}
    report = npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden))
    assert [(root.pair.operator.name, root.cause.value) for root in report.roots] == [
        ("Functional.linear.1.forward", "GAP")
    ]


def test_errors_beyond_all_bounds_are_errors_and_no_traceback(tmp_path):
    x, w, tiny = drawn(np.float32), drawn(np.float32), np.full((16, 16), 1e-30, np.float64)
    golden = {**one_product(0, x, w, x @ w), **one_product(1, x, w, tiny.astype(np.float32))}
    wrong = (x @ w).astype(np.float32)
    target = {**one_product(0, x, w, wrong), **one_product(1, x, w, np.full((16, 16), 3e38, np.float32))}
    golden["Torch.tan.0.forward"] = {"in": [tiny * 1e-270], "out": [tiny * 1e-270]}
    target["Torch.tan.0.forward"] = {"in": [tiny * 1e-270 + 1e200], "out": [tiny + 1e200]}
    report = npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden))
    assert report.exit_status == 1 and report.roots[0].pair.operator.name == "Functional.linear.1.forward"


@pytest.mark.parametrize("bits, error, verdict", [(16, 0.0, "match"), (16, 1e-4, "diverged"), (13, 0.0, "match")])
def test_values_of_16_bits_kept_in_float32_are_held_to_their_type(tmp_path, bits, error, verdict):
    """Files of numpy have no bfloat16. A few values of a tensor are one step of it apart, in a float32 run."""
    random = np.random.default_rng(6)
    x = random.standard_normal((32, 32)).astype(np.float32)
    y = (x.view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)  # the low bits are zero
    other = y.view(np.uint32).copy()
    other[random.random(y.shape) < 0.05] += np.uint32(1 << bits)
    off = (other.view(np.float32) * (1 + error * random.standard_normal(y.shape))).astype(np.float32)
    runs = [
        write_run(tmp_path / name, {"Torch.tanh.0.forward": {"out": [x]}, "Torch.exp.0.forward": {"out": [values]}})
        for name, values in (("target", off), ("golden", y))
    ]
    (row,) = [one for one in npucmp.compare(*runs).findings if one.pair.operator.name.startswith("Torch.exp")]
    assert row.error > 1e-4 and row.verdict.value == verdict


@pytest.mark.parametrize("is_computed, verdict", [(False, "diverged"), (True, "match")])
def test_moved_values_of_16_bits_do_not_show_the_type_of_a_run(tmp_path, is_computed, verdict):
    """Weights of 16 bits are moved. Only if products are of 16 bits too, the run works in them."""
    chance = np.random.default_rng(7)
    x, w, y = (chance.standard_normal((32, 32)).astype(np.float32) for _ in range(3))
    w, y = short(w), short(y) if is_computed else y
    other = w.view(np.uint32).copy()
    other[chance.random(w.shape) < 0.05] += np.uint32(1 << 16)
    runs = [
        write_run(tmp_path / name, {
            "Tensor.transpose.0.forward": {"in": [values], "out": [values.T]},
            "Functional.linear.0.forward": {"in": [x, x], "out": [y]},
            "Functional.linear.1.forward": {"in": [x, x], "out": [y.T]},
        })
        for name, values in (("target", other.view(np.float32)), ("golden", w))
    ]  # fmt: skip
    found = npucmp.compare(*runs).findings
    assert {one.verdict.value for one in found if "transpose" in one.pair.operator.name} == {verdict}


def short(x):
    """The 16 high bits of float32."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def of_types(*types):
    """One pair for each two types; "" is a side without a tensor."""
    sides = [[TensorRef("output:0", name, (4,)) if name else None for name in one.split("/")] for one in types]
    return [Measurement(Pair(0, "output:0", None, None, *both)) for both in sides]


@pytest.mark.parametrize(
    "types, kinds, counts",
    [
        ("float8_e5m2/float8_e5m2", {"float8_e5m2"}, (0, 1)),
        ("float8_e5m2/float64", {"float8_e5m2", "float64"}, (1, 1)),
        ("float64/float8_e5m2", {"float8_e5m2", "float64"}, (1, 1)),
        ("float8_e5m2/", set(), (0, 0)),
        ("/float8_e5m2", set(), (0, 0)),
        ("int16/float8_e5m2", set(), (0, 0)),
        ("float8_e5m2/int16", set(), (0, 0)),
        ("float8_e5m2/unknown", set(), (0, 0)),
        ("uint16/int16", set(), (0, 0)),
    ],
)
def test_types_of_a_pair_are_floats_on_both_sides(types, kinds, counts):
    (one,) = of_types(types)
    assert (float_types(one.pair), count_types([one])) == (kinds, counts)
    assert count_types([one] * 3) == (3 * counts[0], 3 * counts[1])


@pytest.mark.parametrize("apart, alike, whole", [(0, 0, 0), (1, 9, 0), (2, 18, 0), (3, 18, 0), (11, 89, 0), (0, 0, 5)])
def test_a_run_works_in_other_types_if_a_good_part_of_its_floats_does(apart, alike, whole):
    """More than one of ten; other tensors do not count."""
    given = ["float16/float32"] * apart + ["float32/float32"] * alike + ["int32/int64"] * whole
    assert work_in_other_types(of_types(*given)) == (10 * apart > apart + alike)
