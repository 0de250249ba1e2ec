"""Differences between two clean runs that no operator bears, each beside a fault that is still found."""

from __future__ import annotations

import json

import numpy as np
import pytest

import npucmp
from npucmp import fusion_diff
from tests.synthetic import chain, with_statistics, write_run


def npy(folder, operators):
    folder.mkdir(parents=True)
    for name, one in operators.items():
        name = name.replace("layer_norm", "LayerNorm").partition(".forward")[0]
        for role in ("in", "out"):
            for place, values in enumerate(one[role]):
                if isinstance(values, np.ndarray):
                    np.save(folder / f"{name}.{role}put.{place}.npy", values)


def in_bfloat16(folder, slots):
    """The same dump, in which some tensors are recorded as bfloat16; files of numpy keep that in float32."""
    for file in folder.rglob("dump.json"):
        dump = json.loads(file.read_text())
        for leaf in (leaf for record in dump["data"].values() for key in record for leaf in record[key]):
            if leaf.get("data_name", "")[: -len(".npy")] in slots:
                leaf["dtype"] = "BFloat16"
        file.write_text(json.dumps(dump))


def compared(folder, target, golden, write=write_run):
    write(folder / "target", target)
    write(folder / "golden", golden)
    return npucmp.compare(folder / "target", folder / "golden", jobs=1)


def first(report):
    root = report.roots[0]
    return root.cause.value, root.pair.operator.name, root.slot


# Zeros of the other sign


def rectified(zero, factor=1.0, flip=False):
    """relu, whose zeros have a sign, a product and tanh. flip: one element of relu has the other sign."""
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((16, 64)), random.standard_normal((64, 64)) / 8
    x, weight = x.astype(np.float16), weight.astype(np.float16)
    y = np.where(x > 0, x, np.float16(zero))
    if flip:
        y.reshape(-1)[y.argmax()] *= -1
    product = (np.maximum(x, 0).astype(np.float64) @ weight).astype(np.float16)
    z = (factor * np.tanh(product.astype(np.float64))).astype(np.float16)
    return {
        "Torch.relu.0.forward": {"in": [x], "out": [y]},
        "Functional.linear.0.forward": {"in": [y, weight], "out": [product]},
        "Torch.tanh.0.forward": {"in": [product], "out": [z]},
    }


@pytest.mark.parametrize("write", [npy, write_run])
def test_zeros_of_the_other_sign_are_no_difference(tmp_path, write):
    report = compared(tmp_path, rectified(-0.0), rectified(0.0), write)
    assert (report.exit_status, report.roots) == (0, ())


def test_a_fault_behind_zeros_of_the_other_sign_comes_first(tmp_path):
    report = compared(tmp_path, rectified(-0.0, factor=1.1), rectified(0.0))
    assert first(report) == ("BORN", "Torch.tanh.0.forward", "output:0")


def test_another_sign_of_one_number_beside_zeros_is_a_difference(tmp_path):
    report = compared(tmp_path, rectified(-0.0, flip=True), rectified(0.0))
    assert first(report) == ("BORN", "Torch.relu.0.forward", "output:0")


# A cast to a coarser type in one run alone


def rounded(values, mode="nearest"):
    """float32 values as bfloat16 holds them."""
    bits = values.view(np.uint32).astype(np.uint64)
    bits += 0x7FFF + ((bits >> 16) & 1) if mode == "nearest" else 0
    return (bits >> 16 << 16).astype(np.uint32).view(np.float32)


def wrong(values):
    found = rounded(values)
    found[2, 3] *= np.float32(1.25)
    return found


def casting(folder, operator, cast, statistics=False):
    """Two runs of a chain in float32, of which the target ends in bfloat16."""
    golden = chain(steps=25)
    (y,) = golden["Functional.linear.24.forward"]["out"]
    sides = {"target": cast(y), "golden": y}
    for side, values in sides.items():
        write_run(folder / side, {**golden, operator: {"in": [y], "out": [values]}})
    in_bfloat16(folder / "target", [f"{operator}.output.0"])
    for side in sides if statistics else ():
        with_statistics(folder / side, alone=True)
    return folder / "target", folder / "golden"


@pytest.mark.parametrize("command", [npucmp.compare, fusion_diff])
def test_a_cast_that_rounds_once_bears_no_error(tmp_path, command):
    report = command(*casting(tmp_path, "Torch.to.0.forward", rounded), jobs=1)
    assert (report.exit_status, report.roots) == (0, ())
    notes = [note for one in report.comparisons for note in one.notes]
    assert [note for note in notes if "bfloat16 against float32" in note and "Torch.to.0.forward output:0" in note]


def test_statistics_of_a_cast_that_rounds_once_suspect_nobody(tmp_path):
    report = npucmp.compare(*casting(tmp_path, "Torch.to.0.forward", rounded, statistics=True), jobs=1)
    assert (report.exit_status, report.roots) == (2, ())


@pytest.mark.parametrize(
    "operator, cast",
    [
        ("Torch.to.0.forward", wrong),
        ("Torch.to.0.forward", lambda values: rounded(values, "down")),
        ("Torch.to.0.forward", lambda values: rounded(np.roll(values, 1))),
        ("Torch.tanh.0.forward", rounded),
    ],
    ids=["one wrong element", "truncation", "other elements", "no cast"],
)
def test_whatever_else_writes_a_coarser_type_bears_its_error(tmp_path, operator, cast):
    report = npucmp.compare(*casting(tmp_path, operator, cast), jobs=1)
    assert first(report) == ("BORN", operator, "output:0")


def test_statistics_of_a_cast_that_truncates_suspect_it(tmp_path):
    target, golden = casting(tmp_path, "Torch.to.0.forward", lambda values: rounded(values, "down"), statistics=True)
    assert first(npucmp.compare(target, golden, jobs=1)) == ("SUSPECT", "Torch.to.0.forward", "output:0")


# Masks of two codings


def softmax(x):
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def attention(
    constant, coding, scores=1.0, factor=1.0, reader="Functional.softmax.0.forward", hidden=(3, 4), filling=1.0
):
    """Causal attention. scores, filling, factor: of faults in them, in what writes them masked, and in what softmax
    writes; hidden: one position that is masked."""
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 8, 16)).astype(np.float32)
    k, constant = k.transpose(0, 2, 1).copy(), np.float32(constant)
    s = q @ k * np.float32(scores)
    causal = np.triu(np.ones((8, 8), bool), 1)
    causal[hidden] = True
    filled = np.where(causal, constant, s * np.float32(filling))
    operators = {"Torch.bmm.0.forward": {"in": [q, k], "out": [s]}}
    if coding == "masked_fill":
        operators["Torch.masked_fill.0.forward"] = {"in": [s, causal, float(constant)], "out": [filled]}
    elif coding == "where":
        operators["Torch.where.0.forward"] = {"in": [causal, np.array(constant), s], "out": [filled]}
    elif coding == "add":
        mask = np.where(causal, constant, np.float32(0))
        filled = s * np.float32(filling) + mask
        operators["Torch.add.0.forward"] = {"in": [s, mask], "out": [filled]}
    elif coding == "masked_fill and mul":
        operators["Torch.masked_fill.0.forward"] = {"in": [s, causal, float(constant)], "out": [filled]}
        operators["Torch.mul.0.forward"] = {"in": [filled, 0.25], "out": [filled * np.float32(0.25)]}
        filled = filled * np.float32(0.25)
    p = np.float32(factor) * softmax(filled)
    operators[reader] = {"in": [filled], "out": [p]}
    operators["Torch.bmm.1.forward"] = {"in": [p, v], "out": [p @ v]}
    return operators


LOWEST = float(np.finfo(np.float32).min)
CODINGS = ["not recorded", "masked_fill", "where", "add", "masked_fill and mul"]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("write", [npy, write_run])
def test_constants_that_a_softmax_cannot_see_are_one_mask(tmp_path, coding, write):
    report = compared(tmp_path, attention(-1e9, coding), attention(LOWEST, coding), write)
    assert (report.exit_status, report.roots) == (0, ())


def test_a_module_and_a_fused_operator_may_read_such_masks(tmp_path):
    """A module holds the operators that add the mask; fused attention adds it itself."""
    sides = []
    for constant in (-1e9, LOWEST):
        operators = attention(constant, "add")
        s, mask = operators["Torch.add.0.forward"]["in"]
        fused = {"in": [s, s, s, mask], "out": [softmax(s + mask)]}
        sides.append(
            {
                **operators,
                "Module.block.Block.forward.0": {"in": [s, mask], "out": [operators["Torch.bmm.1.forward"]["out"][0]]},
                "Functional.scaled_dot_product_attention.0.forward": fused,
            }
        )
    report = compared(tmp_path, *sides)
    assert (report.exit_status, report.roots) == (0, ())


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "fault, operator",
    [({"scores": 1.05}, "Torch.bmm.0.forward"), ({"factor": 1.02}, "Functional.softmax.0.forward")],
    ids=["scores", "softmax"],
)
def test_a_fault_beside_masks_of_two_codings_comes_first(tmp_path, coding, fault, operator):
    report = compared(tmp_path, attention(-1e9, coding, **fault), attention(LOWEST, coding))
    assert first(report) == ("BORN", operator, "output:0")


@pytest.mark.parametrize("coding", CODINGS[1:])
@pytest.mark.parametrize("constant", [-4e9, -1e9 / 4, LOWEST / 4, -1e9])
def test_a_fault_of_what_writes_masked_scores_is_not_swallowed(tmp_path, coding, constant):
    """The softmax behind is innocent, whatever the constant is, and whatever was made of it."""
    sides = [attention(constant, coding, filling=filling) for filling in (1.1, 1.0)]
    operator = "Torch.masked_fill" if "masked_fill" in coding else f"Torch.{coding}"
    assert first(compared(tmp_path, *sides)) == ("BORN", f"{operator}.0.forward", "output:0")


@pytest.mark.parametrize("coding", CODINGS)
def test_a_position_that_one_run_alone_masks_is_a_difference(tmp_path, coding):
    report = compared(tmp_path, attention(-1e9, coding, hidden=(3, 2)), attention(LOWEST, coding))
    assert report.exit_status == 1
    assert first(report)[0] == "GAP"


def test_constants_that_another_operator_reads_must_be_equal(tmp_path):
    sides = (attention(one, "masked_fill", reader="Torch.mystery.0.forward") for one in (-1e9, LOWEST))
    assert first(compared(tmp_path, *sides))[:2] == ("BORN", "Torch.masked_fill.0.forward")


def test_a_row_of_masks_alone_that_differ_from_each_other_is_data(tmp_path):
    """A softmax sees these: its largest value is one of them."""
    sides = []
    for constant in (-1e9, -1e6):
        x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
        x[1, 2:5] = constant
        x[2] = constant * (1 + np.arange(8, dtype=np.float32) / 8)
        sides.append({"Functional.softmax.0.forward": {"in": [x], "out": [softmax(x)]}})
    assert first(compared(tmp_path, *sides)) == ("GAP", "Functional.softmax.0.forward", "input:0")


# Rows that a layer norm reads and that are constant up to rounding


def means(x, way):
    """Mean and variance of the rows in float32, each of a device: in two passes, or in one, term after term."""
    if way == "two passes":
        mean = x.mean(-1, keepdims=True)
        return mean, np.square(x - mean).mean(-1, keepdims=True)
    first, second = (np.add.accumulate(one, -1)[..., -1:] / np.float32(x.shape[-1]) for one in (x, x * x))
    return first, np.maximum(second - first * first, 0)


def normalised(way, constant, size, spread=0, eps=1e-5, factor=1.0, next_factor=1.0, bias=0.0):
    """layer_norm of 32 rows and a product. constant: how many rows are so, up to `spread` last places of `size`."""
    random = np.random.default_rng(1)
    x = random.standard_normal((32, 64)).astype(np.float32)
    x[:constant] = size + spread * np.spacing(np.float32(size)) * random.integers(-3, 4, (constant, 64))
    weight, shift = 1 + random.standard_normal((2, 64)).astype(np.float32) / 8
    shift *= np.float32(bias)
    product = random.standard_normal((64, 64)).astype(np.float32) / 8
    mean, variance = means(x, way)
    y = np.float32(factor) * ((x - mean) / np.sqrt(variance + np.float32(eps)) * weight + shift)
    z = np.float32(next_factor) * (y @ product)
    return {
        "Torch.mystery.0.forward": {"in": [x], "out": [x]},
        "Functional.layer_norm.0.forward": {"in": [x, weight, shift, 1e-5], "out": [y]},
        "Functional.linear.0.forward": {"in": [y, product], "out": [z]},
    }


NORM = ("BORN", "Functional.layer_norm.0.forward", "output:0")
SOME, ALL = 4, 32


@pytest.mark.parametrize("write", [npy, write_run])
@pytest.mark.parametrize(
    "constant, size, spread",
    [(SOME, 1.3, 0), (SOME, 103.7, 1), (SOME, 1e4, 1), (ALL, 1.3, 0), (ALL, 103.7, 1), (ALL, 1e4, 1)],
)
def test_rows_that_are_constant_up_to_rounding_bear_no_error(tmp_path, write, constant, size, spread):
    target, golden = (normalised(way, constant, size, spread) for way in ("one pass", "two passes"))
    y, golden_y = (run["Functional.layer_norm.0.forward"]["out"][0].astype(np.float64) for run in (target, golden))
    assert np.linalg.norm(y - golden_y) > 64 * 2.0**-24 * np.linalg.norm(golden_y)
    report = compared(tmp_path, target, golden, write)
    assert (report.exit_status, report.roots) == (0, ())
    found = next(one for one in report.findings if one.pair.golden.is_output and "orm" in one.pair.operator.name)
    assert (found.verdict.value, found.explained_by) == ("match", "constant_rows")


@pytest.mark.parametrize(
    "fault",
    [
        {"constant": SOME, "size": 100, "factor": 1.001},
        {"constant": SOME, "size": 100, "spread": 1, "eps": 1e-12},
        {"constant": SOME, "size": 1, "spread": 1, "eps": 1e-3},
        {"constant": ALL, "size": 100, "spread": 1, "eps": 1e-12},
        {"constant": ALL, "size": 1, "bias": 1.0, "factor": 1.001},
    ],
    ids=["scale", "small eps", "large eps", "small eps, all rows constant", "scale, all rows constant, bias"],
)
def test_a_wrong_norm_of_such_rows_bears_its_error(tmp_path, fault):
    right = {**fault, "eps": 1e-5, "factor": 1.0}
    report = compared(tmp_path, normalised("two passes", **fault), normalised("two passes", **right))
    assert first(report) == NORM


def test_a_fault_behind_such_rows_comes_first(tmp_path):
    target = normalised("one pass", SOME, 100, 1, next_factor=1.1)
    report = compared(tmp_path, target, normalised("two passes", SOME, 100, 1))
    assert first(report) == ("BORN", "Functional.linear.0.forward", "output:0")


def test_one_constant_row_that_differs_by_more_than_rounding_is_an_error(tmp_path):
    target, golden = (normalised(way, ALL, 1, 0) for way in ("one pass", "two passes"))
    target["Functional.layer_norm.0.forward"]["out"][0][5] += np.float32(0.1)
    assert first(compared(tmp_path, target, golden)) == NORM
