"""What must hold of every pair, whatever is in it: laws between the answers to one pair written in two ways.

A law that fails has found a defect, not a number to be tuned. Families are those of the open domain that are small.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npucmp
from npucmp.localise.rules import RULES
from tests.corpus import draw, score
from tests.corpus.planter import family, recorded
from tests.corpus.spelling import SPELLINGS, Spelling
from tests.corpus.trace import Record, Run, Tensor
from tests.synthetic import write_run

plan = cache(draw.plan)
SMALL = [number for number in range(1, 240) if plan("open", number).facts["size"] in ("64", "500")]
DIFFERS = ("diverged", "nonfinite", "shape")
CLONE = Spelling("Tensor.clone", "Tensor.clone", "TensorMove", "TensorMove", "Identity", "Identity")
EXPLANATIONS = {rule.name for rule in RULES if rule.kind == "explanation"}
ANY = {"choice", "routed", "collective", "inherited"}  # explanations that need not be finite


def fitting(count, **facts):
    """So many families whose facts are among those given: of each stretch of the small ones the shortest of another
    network than those before."""
    among = [n for n in SMALL if all(plan("open", n).facts[key] in some for key, some in facts.items())]
    found: dict[int, str] = {}
    for at in range(0, len(among), stretch := max(1, len(among) // count)):
        number = min(among[at : at + stretch], key=lambda n: (network(n) in found.values(), layers(n)))
        found[number] = network(number)
    return [*found][:count]


def network(number):
    return plan("open", number).facts["network"]


def layers(number):
    """The layers that a family records on all ranks in all steps."""
    one = plan("open", number)
    return one.golden.size.layers * int(one.facts["steps"]) * int(one.facts["ranks"])


def drawn(count, **facts):
    return pytest.mark.parametrize("number", fitting(count, **facts))


def drawn_on_ranks(count, **facts):
    """So many families, the last of them on two ranks."""
    numbers = [*fitting(count - 1, ranks=["1"], **facts), *fitting(1, ranks=["2"], **facts)]
    return pytest.mark.parametrize("number", numbers)


@cache
def made(number):
    return family("open", number, 2)


class Said:
    """What npucmp says of a pair: status, place 1, and what it found of each tensor, by names of the golden run."""

    def __init__(self, report):
        self.status = report.exit_status
        self.roots = {}
        self.found = {}
        roots = []
        for one in report.comparisons:
            step, rank = one.step or 0, one.rank or 0
            for finding in one.findings:
                pair = finding.pair
                self.found[step, rank, _name(pair), pair.slot] = finding
            for root in one.roots:
                place = step, rank, _name(root.pair)
                self.roots[place] = root.cause.value, root.slot
                if root.cause.value != "PROPAGATED":
                    roots.append((root.place, place, root.cause.value))
        self.first = min(roots, default=(0, None, ""))[1:]

    def verdict(self, key):
        return self.found[key].verdict.value

    def differing(self):
        return {key for key in self.found if self.verdict(key) in DIFFERS}


def _name(pair):
    """Its name in the golden run, whichever side that is: names are the same on both sides of these pairs."""
    return (pair.golden_op or pair.target_op).name


def said(folder, target, golden, style):
    score.write(folder / "target", target, style)
    score.write(folder / "golden", golden, style)
    return Said(npucmp.compare(folder / "target", folder / "golden", jobs=1))


def turned(before, after):
    """Tensors that differed, stand in both, and match afterwards."""
    return {key for key in before.differing() & after.found.keys() if after.verdict(key) == "match"}


# 1. match


def values(tensor):
    """What the dump holds, in float64, by numpy alone."""
    return np.load(tensor.file).astype(np.float64)


def masks(*dtypes):
    """What is written for minus infinity, as float32 or float16 hold it; and half the largest value, and beyond."""
    sizes = (1e4, 65504.0, 1e5, 1e6, 1e8, 1e9, 1e10, 1e12, 1e15, 1e20, 1e30)
    kinds = [{"float16": np.float16, "float64": np.float64}.get(dtype, np.float32) for dtype in dtypes]
    coarse = min(kinds, key=lambda kind: np.finfo(kind).bits)
    largest = float(np.finfo(coarse).max)
    return [-float(coarse(size)) for size in sizes if size <= largest], -largest / 2


def plain(x, y, dtypes):
    """rel_l2 over the positions that are no masks: ‖x − y‖ / ‖y‖."""
    if all("float" in dtype for dtype in dtypes):
        listed, bound = masks(*dtypes)
        masked = (x == y) & (np.isin(y, listed) | (y <= bound))
        if masked.sum() > 1 and (np.isfinite(y) & ~masked).any():
            x, y = x[~masked], y[~masked]
    both = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~both], y[~both], equal_nan=True):
        return math.inf
    error, size = np.linalg.norm((x - y)[both]), np.linalg.norm(y[both])
    return error / size if size else 0.0 if not error else math.inf


@pytest.mark.few(1)
@drawn(
    4,
    precision=["float32", "float16 / float16", "float16 / float32", "float32 / float64", "float16 autocast / float32"],
)
def test_a_match_is_within_the_limit_or_within_the_bound_of_what_explains_it(number, tmp_path):
    some, seen = made(number), 0
    style = {**some.style, "format": "mint", "task": "tensor"}  # .npy files, which numpy reads
    for place, case in enumerate(some.cases):
        for key, finding in said(tmp_path / str(place), case.target, some.golden, style).found.items():
            if finding.verdict.value != "match":
                continue
            pair = finding.pair
            error = plain(values(pair.target), values(pair.golden), (pair.target.dtype, pair.golden.dtype))
            bound = finding.limit
            if finding.explained_by:
                assert finding.explained_by in EXPLANATIONS
                assert finding.explained_by in ANY or math.isfinite(finding.explained_limit)
                bound = max(bound, finding.explained_limit)
            assert error <= bound * (1 + 1e-9), (case.name, key, finding.because)
            seen += 1
    assert seen


# 2. swapped


@pytest.mark.large
@drawn_on_ranks(3, part=["all"], steps=["1"])
def test_what_diverges_and_where_does_not_hang_on_which_side_is_the_golden(number, tmp_path):
    """But for limits that depend on the golden: ‖x − y‖ / ‖x‖ is up to e/(1 − e) where ‖x − y‖ / ‖y‖ is e, so that a
    verdict may turn where the two stand on two sides of a limit; what hangs on such a tensor may turn with it. A
    coarser type is a fault on the target's side alone."""
    some = made(number)
    for place, case in enumerate(some.cases):
        there = said(tmp_path / f"{place}", case.target, some.golden, some.style)
        back = said(tmp_path / f"{place}back", some.golden, case.target, some.style)
        if any(one.rule == "coarser" for one in (*there.found.values(), *back.found.values())):
            continue
        if set(there.found) != set(back.found):  # operators of one side only bear its names
            continue
        assert back.status == there.status, case.name
        assert back.first == there.first, case.name
        at = {key: (key[0], finding.pair.order) for key, finding in there.found.items()}
        close = [at[key] for key in at if _is_above(there.found[key]) != _is_above(back.found[key])]
        apart = {key for key in back.differing() ^ there.differing() if at[key] < min(close, default=(99, 0))}
        assert not apart, case.name


def _is_above(finding):
    """Whether its error is above its limit."""
    return (finding.error or 0.0) > finding.limit


# 3. renamed


@pytest.mark.large
@drawn_on_ranks(3, format=["msprobe"], task=["tensor"], part=["all"], steps=["1"], level=["L1"])
def test_another_frameworks_names_turn_nothing(number, tmp_path):
    """In a device's graphs a backward reads what its forward did as well, and modules have no records, so that only
    outputs are held against each other there; what may not be is that a tensor that diverged is a match."""
    some = made(number)
    for place, case in enumerate(some.cases):
        here = _by_record(said(tmp_path / f"{place}", case.target, some.golden, some.style), some.golden, some.style)
        for format in ("mint", "cann", "mindspore"):
            style = {**some.style, "format": format}
            folder = tmp_path / f"{place}{format}"
            there = _by_record(said(folder, case.target, some.golden, style), some.golden, style)
            both = {key for key in here.keys() & there.keys() if format == "mint" or key[-1].startswith("output")}
            assert len(both) > 10
            for key in both:
                words = here[key].verdict.value, there[key].verdict.value
                assert here[key].rule == "coarser" or words != ("diverged", "match"), (case.name, key)
                if format == "mint":
                    assert here[key].verdict is there[key].verdict, (case.name, key)


def _by_record(answer, runs, style):
    """Findings by what the planter calls their operator."""
    names = {
        (run.step, run.rank or 0, name): (one.kind, one.phase, one.call, one.scope)
        for run, one, name in score.names_of(runs, style)
    }
    return {(*key[:2], *names[key[:3]], key[3]): finding for key, finding in answer.found.items() if key[:3] in names}


# 4. ranks


@pytest.mark.large
@drawn(3, format=["msprobe", "mint", "cann", "mindspore"], ranks=["1"], steps=["1"])
def test_two_ranks_that_hold_the_same_say_what_one_says(number, tmp_path):
    some = made(number)
    for place, case in enumerate(some.cases):
        target, golden = (
            [replace(run, rank=rank) for run in runs for rank in (0, 1)] for runs in (case.target, some.golden)
        )
        one = said(tmp_path / f"{place}", case.target, some.golden, some.style)
        two = said(tmp_path / f"{place}two", target, golden, some.style)
        assert two.status == one.status and two.first == one.first, case.name
        for rank in (0, 1):
            assert {(s, 0, name): cause for (s, r, name), cause in two.roots.items() if r == rank} == one.roots
            assert {(key[0], 0, *key[2:]): two.verdict(key) for key in two.found if key[1] == rank} == {
                key: one.verdict(key) for key in one.found
            }


# 5. copies


def with_copies(runs):
    """Each output of a forward is copied once more, which nobody reads; not memory that nobody wrote."""
    made = []
    for run in runs:
        records, count = [], 0
        for one in run.records:
            records.append(one)
            if one.phase == "forward" and one.kind not in ("Module", "empty") and isinstance(one.outputs[0], Tensor):
                copy = Tensor(one.outputs[0].values.copy(), one.outputs[0].dtype, 10**9 + one.outputs[0].key)
                records.append(Record("clone", "forward", count, one.scope, (one.outputs[0],), (copy,)))
                count += 1
        made.append(Run(tuple(records), run.step, run.rank))
    return made


@pytest.mark.few(1)
@drawn_on_ranks(3, variation=["none"], part=["all"], steps=["1"])
def test_operators_that_only_copy_turn_nothing(number, tmp_path, monkeypatch):
    monkeypatch.setitem(SPELLINGS, "clone", CLONE)
    some = made(number)
    for place, case in enumerate(some.cases):
        without = said(tmp_path / f"{place}", case.target, some.golden, some.style)
        copied = said(tmp_path / f"{place}copied", with_copies(case.target), with_copies(some.golden), some.style)
        assert copied.status == without.status, case.name
        assert not turned(without, copied), case.name


# 6. times


@pytest.mark.few(1)
@drawn(3, format=["npy", "cann", "mindspore"], steps=["1"])
@pytest.mark.parametrize("shrink", [1, 40])
def test_only_the_order_of_times_counts(number, shrink, tmp_path):
    """File names with times shifted by an hour, or so close together that they only tell the order."""
    some = made(number)
    case = some.cases[-1]
    as_written = said(tmp_path / "written", case.target, some.golden, some.style)
    for side in ("target", "golden"):
        _retimed(tmp_path / "written" / side, some.style["format"], shrink)
    again = Said(npucmp.compare(tmp_path / "written/target", tmp_path / "written/golden", jobs=1))
    assert again.first == as_written.first and again.status == as_written.status
    assert {key: again.verdict(key) for key in again.found} == {
        key: as_written.verdict(key) for key in as_written.found
    }


TIME_AT = {"npy": -2, "cann": -1, "mindspore": 4}  # the part of a file's name between dots that is its time


def _retimed(folder, format, shrink):
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".txt", ".csv")]
    at = TIME_AT[format]
    times = sorted({int(path.name.split(".")[at]) for path in files})
    new = {time: times[0] + 3_600_000_000 + rank for rank, time in enumerate(times)} if shrink > 1 else {
        time: time + 3_600_000_000 for time in times
    }  # fmt: skip
    for path in files:
        parts = path.name.split(".")
        parts[at] = str(new[int(parts[at])])
        path.rename(path.with_name(".".join(parts)))


# 7. more and less

SHAPES = ("inputs", "outputs", "forward", "backward", "list", "inputs of the forward", "inputs of the backward",
          "no parameters", "statistics", "md5")  # fmt: skip


def shaped(runs, shape, style, seed):
    """What a recording of that shape holds of the runs, and the style in which it is written."""
    if shape in ("statistics", "md5"):
        return list(runs), {**style, "task": shape}
    if shape == "no parameters":
        return [replace(run, records=tuple(map(_without_parameters, run.records))) for run in runs], style
    for part in reversed(shape.split(" of the ")):
        runs = recorded(runs, part, seed)
    return runs, style


def _without_parameters(record):
    kept = tuple(None if isinstance(one, Tensor) and one.parameter else one for one in record.inputs)
    return replace(record, inputs=kept, parameters={})


def in_shape(folder, target, golden, shape, style, seed):
    """What npucmp says of a pair in that shape; None where nothing of it was recorded."""
    (target, style), (golden, _) = (shaped(runs, shape, style, seed) for runs in (target, golden))
    return said(folder, target, golden, style) if all(run.records for run in golden) else None


@pytest.mark.few(4)
@drawn(3, part=["all"], task=["tensor"], steps=["1"], format=["msprobe", "mint"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_recorded_less_is_not_said_to_agree_more(number, shape, tmp_path):
    """Of what differs clearly, by 64 times its limit and by a quarter of the golden: where such a tensor is still
    recorded the exit status is not 0, and it is no match. Statistics turn nothing that differs into a match. Less than
    that may be lost with what was left out: arguments, types, the same bits that an operator read."""
    some = made(number)
    for place, case in enumerate(some.cases[1:]):
        whole = wholly(number, 1 + place, tmp_path)
        less = in_shape(tmp_path / f"{place}", case.target, some.golden, shape, some.style, number)
        if less is None:
            continue
        clear = {key for key in whole.differing() if _is_clear(whole.found[key])} & less.found.keys()
        assert not clear or less.status in (1, 2), (case.name, shape)
        assert not {key for key in clear if less.verdict(key) == "match"}, (case.name, shape)
        if shape == "statistics":
            assert not turned(whole, less), case.name


WHOLE = {}


def wholly(number, place, folder):
    """What npucmp says of a pair as it is, once for all shapes."""
    some = made(number)
    if (number, place) not in WHOLE:
        WHOLE[number, place] = said(folder / f"whole{place}", some.cases[place].target, some.golden, some.style)
    return WHOLE[number, place]


@pytest.mark.few(6)
@drawn(2, part=["all"], task=["tensor"], format=["msprobe", "mint"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_of_any_shape_agrees_with_itself(number, shape, tmp_path):
    some = made(number)
    same = in_shape(tmp_path, some.golden, some.golden, shape, some.style, number)
    assert same is None or (same.status == (2 if shape == "statistics" else 0) and not same.roots)


@pytest.mark.few(4)
@drawn(2, part=["all"], task=["tensor"], steps=["1"], format=["msprobe", "mint"])
@pytest.mark.parametrize("shape", SHAPES)
def test_in_any_shape_the_sides_change_places(number, shape, tmp_path):
    """As in 2, but for statistics: what they make likely is a figure of one side."""
    some = made(number)
    for place, case in enumerate(some.cases[:2]):
        there = in_shape(tmp_path / f"{place}", case.target, some.golden, shape, some.style, number)
        back = in_shape(tmp_path / f"{place}back", some.golden, case.target, shape, some.style, number)
        if there is None or back is None or shape == "statistics" or set(there.found) != set(back.found):
            continue
        if not any(one.rule == "coarser" for one in (*there.found.values(), *back.found.values())):
            assert (back.status, back.first) == (there.status, there.first), (case.name, shape)


TWO_STEPS = 62  # a family of float32 with biases that trains for two steps


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [*SHAPES, "whole"])
@pytest.mark.parametrize("factor", [1.02, 1.4])
def test_in_any_shape_biases_that_are_scaled_at_a_later_step_are_no_agreement(factor, shape, tmp_path):
    """Parameters that an optimizer changed alike on both sides stand wrong in the target's last step."""
    some = made(TWO_STEPS)
    *before, last = some.golden
    target = [*before, replace(last, records=tuple(_with_biases(one, factor) for one in last.records))]
    report = in_shape(tmp_path, target, some.golden, shape, some.style, TWO_STEPS)
    changed = {key for key, one in report.found.items() if abs((one.error or 0.0) - (factor - 1)) < 1e-4}
    assert len(changed) > 5 or shape not in ("whole", "forward", "inputs")
    assert not changed or report.status in (1, 2)
    assert not {key for key in changed if report.verdict(key) == "match"}


def _with_biases(record, factor):
    def scaled(one):
        is_bias = isinstance(one, Tensor) and one.parameter.endswith("bias")
        return replace(one, values=(one.values * factor).astype(one.values.dtype)) if is_bias else one

    parameters = {name: scaled(one) for name, one in record.parameters.items()}
    return replace(record, inputs=tuple(map(scaled, record.inputs)), parameters=parameters)


def _is_clear(finding):
    return (finding.error or 0.0) > max(64 * finding.limit, 0.25)


# 8. permuted channels


@settings(max_examples=12, derandomize=True)
@given(order=st.permutations(range(16)), seed=st.integers(0, 99), fault=st.sampled_from([None, 2]))
def test_channels_in_another_order_on_both_sides_change_nothing(tmp_path_factory, order, seed, fault):
    """y = tanh(x w) with rounding noise: rows and columns of each weight and columns of each value in that order."""
    folder = tmp_path_factory.mktemp("channels")
    answers = []
    for name, permuted in (("plain", list(range(16))), ("permuted", list(order))):
        for side, noisy in (("target", True), ("golden", False)):
            write_run(folder / name / side, _chain(permuted, seed, noisy, fault if noisy else None))
        answers.append(Said(npucmp.compare(folder / name / "target", folder / name / "golden", jobs=1)))
    as_it_was, permuted = answers
    assert permuted.first == as_it_was.first and permuted.status == as_it_was.status == (fault is not None)
    assert {key: permuted.verdict(key) for key in permuted.found} == {
        key: as_it_was.verdict(key) for key in as_it_was.found
    }


def _chain(order, seed, noisy, fault):
    random, jitter = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    x, operators = random.standard_normal((8, 16)).astype(np.float32), {}
    for n in range(5):
        weight = (random.standard_normal((16, 16)) / 4).astype(np.float32)
        y = np.tanh(x.astype(np.float64) @ weight)
        y *= 1 + (6e-8 * jitter.standard_normal(y.shape) if noisy else 0.0)
        y = (y * (1.01 if fault == n else 1.0)).astype(np.float32)
        operators[f"Functional.linear.{n}.forward"] = {
            "in": [x[:, order], np.ascontiguousarray(weight[np.ix_(order, order)])],
            "out": [np.ascontiguousarray(y[:, order])],
        }
        x = y
    return operators
