"""Notes on a comparison beside its roots: which facts give one, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.localise.notes import ALIKE_PRODUCTS, REDUCED_PRODUCTS, notes_of
from npucmp.model import Finding, Statistics
from npucmp.model.cause import UNKNOWN_INPUTS
from npucmp.model.dump import ELSEWHERE
from tests.localise.explained import argued
from tests.localise.networks import paired, with_golden
from tests.localise.noted import alone, measured, root, rows, with_moments, with_target

OVERFLOW = "npucmp overflow finds the operators that produce them"
ONLY_OUTPUTS = "only outputs were dumped: dump inputs too, or pass a graph of the network with --graph if it exists"


def test_runs_without_peculiarities_have_no_notes():
    assert notes_of(rows("linear x w k -> y~1e-3", "argmax y~1e-3 m -> i"), []) == () == notes_of([], [])


def test_notes_on_reduced_products():
    found = rows("linear x w -> y")
    assert notes_of(found, [], True) == (REDUCED_PRODUCTS,) and notes_of(found, [], alike=True) == (ALIKE_PRODUCTS,)
    assert notes_of(found, [], reduced=True, alike=True) == (REDUCED_PRODUCTS, ALIKE_PRODUCTS)
    assert "10-bit mantissas" in REDUCED_PRODUCTS and "4.9e-04" in REDUCED_PRODUCTS and "11 bits" in ALIKE_PRODUCTS


def test_the_order_of_notes():
    extremes = Statistics(2.0, -1.0)
    changed = {
        "x": lambda one: with_target(one, shape=(4, 1, 5)),
        "y": lambda one: with_target(one, dtype="float16"),
        "i": lambda one: with_target(one, dtype="int32"),
        "z": lambda one: cut(one, "[axis 0: 0:2]"),
        "q": lambda one: measured(
            with_target(with_golden(one, statistics=extremes), statistics=extremes), moments=None
        ),
    }
    found = argued(rows("mystery -> n x y i z q", **changed))
    elsewhere = root(paired(found[0], order=9), UNKNOWN_INPUTS)
    notes = notes_of(found, [elsewhere], True, True)
    assert [note.partition(" (")[0][:40] for note in notes] == [
        "1 tensor contains NaN in both runs, the ",
        "tensors compared although their shapes d",
        "fused products are compared with their p",
        "the statistics of target and golden have",
        "dtypes differ in 1 of 4 float tensors",
        "dtypes differ in 1 of 2 other tensors",
        REDUCED_PRODUCTS.partition(" (")[0][:40],
        ALIKE_PRODUCTS[:40],
        "mystery.0.forward: argument input:9 is 1",
        ONLY_OUTPUTS[:40],
    ]


@pytest.mark.parametrize(
    "line, changed, kinds, is_noted",
    [
        ("mystery -> y z", {}, [UNKNOWN_INPUTS], True),
        ("mystery -> y z", {}, ["other", UNKNOWN_INPUTS], True),
        ("mystery -> y z", {}, ["other"], False),
        ("mystery -> y z", {}, [], False),
        ("mystery x -> y", {}, [UNKNOWN_INPUTS], False),
        ("mystery x -> y", {"x": alone("golden")}, [UNKNOWN_INPUTS], False),
        ("mystery x -> y", {"x": alone("target")}, [UNKNOWN_INPUTS], False),
        ("mystery -> y", {"y": alone("golden")}, [UNKNOWN_INPUTS], True),
        ("mystery x -> y", {"x": lambda one: paired(one, target=None, golden=None)}, [UNKNOWN_INPUTS], True),
    ],
)
def test_unknown_inputs_of_outputs_alone(line, changed, kinds, is_noted):
    found = rows(line, **changed)
    assert notes_of(found, [root(found[-1], "other"), root(found[-1], *kinds)]) == ((ONLY_OUTPUTS,) if is_noted else ())


LONGER = {"x": lambda one: with_target(one, shape=(4, 1, 5))}


@pytest.mark.parametrize(
    "changed, words",
    [
        (LONGER, "1, the first is mystery.0.forward input:0, [4, 1, 5] against [4, 5]"),
        ({"w": lambda one: with_golden(one, shape=(1, 4, 5)), **LONGER},
         "2, the first is mystery.0.forward input:0, [4, 1, 5] against [4, 5]"),
        ({"w": lambda one: with_golden(one, shape=(1, 4, 5))},
         "1, the first is mystery.0.forward input:1, [4, 5] against [1, 4, 5]"),
        ({"x": lambda one: measured(with_target(one, shape=(5, 4)), shapes_differ=True)}, None),
        ({"x": lambda one: measured(with_target(one, shape=(5, 4)), problem="target: cannot be read")}, None),
        ({"x": alone("target")}, None),
        ({"x": alone("golden")}, None),
    ],
)  # fmt: skip
def test_tensors_whose_shapes_differ_by_axes_of_length_1(changed, words):
    head = "tensors compared although their shapes differ by axes of length 1: "
    assert notes_of(rows("mystery x w -> y", **changed), []) == ((head + words,) if words else ())


def cut(finding: Finding, target: str, golden: str = "", via: str = "parts") -> Finding:
    return with_golden(paired(with_target(finding, label=f"y{target}"), via=via), label=f"y{golden}")


@pytest.mark.parametrize(
    "cuts, words",
    [
        ([("[axis 2: 0:4]",)], "1 outputs, cut along axis 2; the first is linear.0.forward output:0, axis 2: 0:4"),
        ([("", "[axis 1: 4:8]")], "1 outputs, cut along axis 1; the first is linear.0.forward output:0, axis 1: 4:8"),
        ([("",), ("[axis 1: 4:8]",), ("[axis 2: 0:4]",)],
         "2 outputs, cut along axis 1; the first is linear.0.forward output:1, axis 1: 4:8"),
        ([("[axis 2: 0:4]", "", "name")], None),
        ([("[axis 2: 0:4] copy",)], None),
        ([("[rows 2: 0:4]",)], None),
        ([], None),
    ],
)  # fmt: skip
def test_products_that_one_run_fuses(cuts, words):
    found = rows("linear x w -> " + " ".join("yzq"[: len(cuts)]), x=lambda one: cut(one, "[axis 0: 0:1]"))
    found[2:] = [cut(one, *more) for one, more in zip(found[2:], cuts)]
    assert notes_of(found, []) == ((f"fused products are compared with their parts: {words}",) if words else ())
    one_sided = [paired(one, target=None) for one in found[2:] if one.pair.golden.label == "y[axis 1: 4:8]"]
    assert len(notes_of(one_sided, [])) == len(one_sided)


def extremes_alone(*types: str, mean: float | None = None, norm: float | None = None, sides=("target", "golden"),
                   more: int = 0) -> list[Finding]:  # fmt: skip
    """Tensors of which extremes were recorded, and perhaps the mean and the norm; and more tensors with all figures."""
    found = rows("mystery " + " ".join("xyzpq"[: len(types)]), *["mystery r"] * more, figures=True)
    figures = Statistics(2.0, -1.0, mean, norm)
    for at, dtype in enumerate(types):
        tensors = {side: getattr(found[at].pair, side)._replace(dtype=dtype) for side in ("target", "golden")}
        tensors.update({side: tensors[side]._replace(statistics=figures) for side in sides})
        found[at] = paired(found[at], **tensors)
    return found


NEITHER = (
    "the statistics of {} have Max and Min, but neither Mean nor Norm: a fault that does not change the extremes is "
    'not found; msprobe records all four with "precision": "low" in config.json'
)


@pytest.mark.parametrize(
    "found, lacking",
    [
        (extremes_alone("float32"), "target and golden"),
        (extremes_alone("float32", sides=["target"]), "target"),
        (extremes_alone("float32", sides=["golden"]), "golden"),
        (extremes_alone("float32", norm=3.0), None),
        (extremes_alone("float32", mean=0.5), None),
        (extremes_alone("float64", "int32"), None),  # types of which no sums are recorded
        (extremes_alone("float32", "int32"), "target and golden"),
        (extremes_alone("float32", "float32", more=1), "target and golden"),
        (extremes_alone("float32", more=1), None),  # half of them
        ([measured(one, same=True) for one in extremes_alone("float32")], None),  # equal checksums decide
        ([measured(one, moments=rows("mystery x")[0].measurement.moments) for one in extremes_alone("float32")], None),
        ([paired(one, target=None) for one in extremes_alone("float32")], "golden"),
        ([with_golden(one, statistics=None) for one in extremes_alone("float32")], "target"),
    ],
)
def test_statistics_without_sums(found, lacking):
    assert notes_of(found, []) == ((NEITHER.format(lacking),) if lacking else ())


@pytest.mark.parametrize(
    "lines, changed, words",
    [
        (["log x -> n"], {}, "1 tensor contains NaN in both runs, the first at log.0.forward output:0"),
        (["exp x -> y", "log n -> n"], {}, "2 tensors contain NaN in both runs, the first at log.1.forward input:0"),
        (["log x -> n?"], {}, "1 tensor contains NaN in both runs, the first at log.0.forward output:0"),
        (["log x -> n!"], {}, None),  # it differs
        (["log x -> n"], {"n": lambda one: nan_of(one, 0, 1)}, None),
        (["log x -> n"], {"n": lambda one: nan_of(one, 1, 0)}, None),
        (["empty x -> n"], {}, None),  # memory that no operator wrote
    ],
)
def test_nan_in_both_runs(lines, changed, words):
    assert notes_of(rows(*lines, **changed), []) == ((f"{words}: {OVERFLOW}",) if words else ())


def nan_of(finding: Finding, target: int, golden: int) -> Finding:
    moments = finding.measurement.moments
    return with_moments(finding, target=moments.target._replace(nan=target), golden=moments.golden._replace(nan=golden))


HAS_NAN, FINITE, INFINITE = (
    Statistics(*figures) for figures in (
        (np.nan, np.nan, None, np.nan), (2.0, -1.0, None, 3.0), (np.inf, -np.inf, None, np.inf)
    )
)  # fmt: skip


@pytest.mark.parametrize(
    "target, golden, is_noted",
    [
        (HAS_NAN, HAS_NAN, True),
        (FINITE._replace(mean=np.nan), FINITE._replace(norm=np.nan), True),
        (FINITE, HAS_NAN, False),
        (HAS_NAN, FINITE, False),
        (HAS_NAN, None, False),
        (None, HAS_NAN, False),
        (INFINITE, INFINITE, False),
        (FINITE, FINITE, False),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_nan_in_the_statistics_of_both_runs(target, golden, is_noted, shared):
    """The statistics of a tensor that ranks share are in the measurement."""

    def figures(one: Finding) -> Finding:
        own = (ELSEWHERE, ELSEWHERE) if shared else (target, golden)
        one = with_target(with_golden(one, statistics=own[1]), statistics=own[0])
        return measured(one, statistics=(target, golden) if shared else (None, None))

    notes = notes_of(rows("log x? -> y?", figures=True, y=figures), [])
    assert notes == ((f"1 tensor contains NaN in both runs, the first at log.0.forward output:0: {OVERFLOW}",)
                     if is_noted else ())  # fmt: skip
