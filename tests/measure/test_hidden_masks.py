"""Masks by positions: constants that the kernel does not know, before an exponential and behind known masks."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.dump.limits import ANYWHERE
from npucmp.measure.hidden_masks import with_hidden_masks
from npucmp.measure.pairs import Closeness, measure
from npucmp.model import Operator, Pair, TensorRef
from npucmp.model.dtypes import numpy_dtype

LOWEST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38, "float32": -3.4028234663852886e38}
HIDDEN = np.triu(np.ones((2, 8, 8), bool), 1)


def scores(seed=0, shape=HIDDEN.shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def held(values, dtype):
    """As a type holds it, in a file that numpy can write."""
    with np.errstate(over="ignore"):
        found = np.asarray(values, np.float32).astype(numpy_dtype(dtype))
    return found.astype(np.float32) if dtype == "bfloat16" else found


def masked(x, constant, added=False, hidden=HIDDEN):
    return np.where(hidden, np.float32(constant) + (x if added else np.float32(0)), x)


@pytest.fixture
def measured(tmp_path):
    """The measurements, by operator and slot, of operators with tensors (target, golden) of a type."""
    numbers = count()

    def ref(values, slot, dtype):
        file = tmp_path / f"{next(numbers)}.npy"
        np.save(file, held(values, dtype))
        return TensorRef(slot, dtype, np.shape(values), str(file), "npy")

    def run(operators, dtype="float32", phase="forward"):
        found = []
        for order, (name, tensors) in enumerate(operators.items()):
            operator = Operator(f"{name}.{order}", name, name, phase, order, ())
            for slot, sides in tensors.items():
                pair = Pair(order, slot, operator, operator, *(ref(one, slot, dtype) for one in sides))
                found.append(measure(pair))
        again = with_hidden_masks(found, Closeness(), ANYWHERE)
        assert all(one.pair is two.pair and one.bytes_read == two.bytes_read for one, two in zip(found, again))
        return {f"{one.pair.operator.op_type} {one.pair.slot}": one for one in again}

    return run


def read_by(reader, target, golden):
    """A masked_fill and what reads its output."""
    shown = np.abs(np.nan_to_num(scores(9), neginf=0.0))
    return {
        "masked_fill": {"output:0": (target, golden)},
        reader: {"input:0": (target, golden), "output:0": [shown] * 2},
    }


def of_rows(constant):
    """Whole rows that are masked, as of padding."""
    hidden = HIDDEN.copy()
    hidden[1, 5:] = True
    return hidden, [masked(one, constant, True, hidden) for one in (scores() * np.float32(1.1), scores())]


def test_padding_of_one_constant_is_mask(measured):
    hidden, (x, y) = of_rows(-4e9)
    assert measured(read_by("softmax", x, y))["softmax input:0"].moments.masked == hidden.sum()


ONCE = np.zeros(HIDDEN.shape, bool)
ONCE[0, 0, 1] = True


@pytest.mark.parametrize("dtype, constant", [("bfloat16", -1e9), ("bfloat16", -1e4), ("float16", -1e5 / 2)])
def test_a_constant_as_a_type_of_16_bits_rounds_it(measured, dtype, constant):
    """In files of numpy, which hold them as float32; half of what 1e5 would be in float16 is no known constant."""
    x, y = (masked(held(one, dtype).astype(np.float32), held(constant, dtype)) for one in (scores() * 2, scores()))
    one = measured(read_by("mystery", x, y))["mystery input:0"].moments
    assert one.masked == (HIDDEN.sum() if constant in (-1e9, -1e4) else 0)


@given(
    st.integers(0, 99),
    st.sampled_from(sorted(LOWEST)),
    st.floats(0.01, 0.9),
    st.floats(3.0, 38.0),
    st.floats(3.0, 38.0),
    st.booleans(),
)
def test_norms_are_those_of_what_is_no_mask(tmp_path_factory, seed, dtype, share, size, other, added):
    """Whatever the constants, where the masks stand, and what else differs."""
    random = np.random.default_rng(seed)
    hidden = random.random((6, 10)) < share
    hidden[:, 0] = False
    values = random.standard_normal((6, 10)).astype(np.float32)
    sides = [
        np.maximum(masked(one, -(10.0**exponent), added, hidden), np.float32(LOWEST[dtype]))
        for one, exponent in ((values * np.float32(1.1), size), (values, other))
    ]
    folder, refs = tmp_path_factory.mktemp("hidden"), []
    for name, one in zip("xy", sides):
        np.save(folder / f"{name}.npy", held(one, dtype))
        refs.append(TensorRef("input:0", dtype, one.shape, str(folder / f"{name}.npy"), "npy"))
    operator = Operator("softmax.0", "softmax", "softmax", "forward", 0, ())
    (found,) = with_hidden_masks([measure(Pair(0, "input:0", operator, operator, *refs))], Closeness(), ANYWHERE)
    x, y = (held(one, dtype).astype(np.float64) for one in sides)
    kept = ~hidden if hidden.sum() > 1 else np.ones_like(hidden)
    assert (found.moments.masked, found.moments.compared) == ((~kept).sum(), kept.sum())
    assert found.moments.yy == pytest.approx(np.square(y[kept]).sum(), rel=1e-9)
    assert found.moments.sum_dd == pytest.approx(np.square(x - y)[kept].sum(), rel=1e-9)


def crafted(folder, *records, phase="forward"):
    """Masked elements of operators (name, type, tensors by slot[, type of the golden's operator]): both sides of a
    tensor, or the place in the graph whose values an input reads."""
    found = []
    for order, (name, op_type, tensors, *other) in enumerate(records):
        operators = [Operator(name, one, one, phase, order, ()) for one in (op_type, *other, op_type)[:2]]
        for slot, one in tensors.items():
            if isinstance(one, str):
                refs = [TensorRef(slot, "float32", HIDDEN.shape, source=one)] * 2
            else:
                files = [folder / f"{order}{slot[0]}{slot[-1]}{side}.npy" for side in "tg"]
                for file, values in zip(files, one):
                    np.save(file, values)
                refs = [
                    TensorRef(slot, values.dtype.name, values.shape, str(file), "npy")
                    for file, values in zip(files, one)
                ]
            found.append(measure(Pair(order, slot, *operators, *refs)))
    again = with_hidden_masks(found, Closeness(), ANYWHERE)
    return [one.moments.masked if one.moments else None for one in again]


COUNT = int(HIDDEN.sum())
SIDES = masked(scores(), -2e3), masked(scores() + np.float32(1e-3), -7e3)  # masks of two constants


@pytest.mark.parametrize("constants", [(-2e3, -7e3), (-1e9, -1e9)], ids=["unknown", "known"])
def test_a_constant_before_a_fill_is_all_mask(tmp_path, constants):
    """An operator that moves values writes a tensor with masks, which a softmax reads."""
    fill = tuple(np.full(HIDDEN.shape, one, np.float32) for one in constants)
    sides = masked(scores(), constants[0]), masked(scores() + np.float32(1e-3), constants[1])
    found = crafted(
        tmp_path,
        ("a", "where", {"input:0": fill, "output:0": sides}),
        ("b", "softmax", {"input:0": sides, "output:0": (scores(1), scores(2))}),
    )
    assert found == [HIDDEN.size, COUNT, COUNT, 0]
    alone = crafted(tmp_path, ("b", "softmax", {"input:0": fill, "output:0": (scores(1), scores(2))}))
    assert alone == [0, 0]


def test_a_file_that_is_gone_hides_no_mask(tmp_path):
    record = "a", "softmax", {"input:0": SIDES, "output:0": (scores(1), scores(2))}
    crafted(tmp_path, record)
    operator = Operator("a", "softmax", "softmax", "forward", 0, ())
    refs = [TensorRef("input:0", "float32", HIDDEN.shape, str(tmp_path / f"0i0{side}.npy"), "npy") for side in "tg"]
    one = measure(Pair(0, "input:0", operator, operator, *refs))
    (tmp_path / "0i0g.npy").unlink()
    assert with_hidden_masks([one], Closeness(), ANYWHERE) == [one]
    assert with_hidden_masks([], Closeness(), ANYWHERE) == []
