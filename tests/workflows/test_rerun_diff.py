"""npucmp rerun-diff on small runs that are nearly the same, and compare with the noise that it found."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import npucmp
from npucmp import rerun_diff
from npucmp.cli import npucmp as command
from npucmp.errors import UsageError
from npucmp.localise.rerun.table import excuse
from npucmp.model import Cause, Operator, Pair, Root
from tests.dump.readers import craft_cann as craft
from tests.reports import screen
from tests.synthetic import chain, write_run

random = np.random.default_rng(11)


def rand(*shape):
    return random.standard_normal(shape).astype(np.float32)


def ulp(x, *places):
    """x with the last bit of some elements turned over."""
    y = x.copy()
    y.reshape(-1).view(np.uint32)[list(places or (0,))] ^= 1
    return y


def rerun(tmp_path, *runs, **options):
    return rerun_diff([write_run(tmp_path / f"run{i}", run) for i, run in enumerate(runs, 1)], **options)


def rows(report):
    """(operator, cause, slot, runs that stand apart) of what passes nothing on, in the order of places."""
    return [
        (one.pair.operator.name, one.cause.value, one.slot, one.odd)
        for one in report.reruns
        if one.cause is not Cause.PROPAGATED
    ]


def passed(report):
    return {one.pair.operator.name for one in report.reruns if one.cause is Cause.PROPAGATED}


def chained(at=None, places=(0,)):
    """A chain of operators; the output of number `at` has other last bits, and the rest is computed from it."""
    run = chain()
    names = list(run)
    for here, before in zip(names, [None, *names]):
        x, weight, _ = run[here]["in"]
        x = x if before is None else run[before]["out"][0]
        y = np.tanh(x.astype(np.float64) @ weight.astype(np.float64)).astype(np.float32)
        run[here] = {"in": [x, weight, 1e-5], "out": [ulp(y, *places) if here == names[at or 0] and at else y]}
    return run


LINEAR = "Functional.linear.{}.forward".format


# Which run stands apart


def test_runs_that_are_the_same_are_the_same(tmp_path):
    report = rerun(tmp_path, chained(), chained(), chained())
    assert (report.reruns, report.notes, report.exit_status) == ((), (), 0)
    assert {finding.because for finding in report.findings} == {"the same bits"}
    assert all(noise.rel_l2 == noise.max_abs_err == 0.0 for noise in report.noise)


ODD = [  # runs, who stands apart, words of the note
    ([chained(), chained(2)], (2,), ""),
    ([chained(), chained(), chained(2)], (3,), "run 3 differs from all others in 4 of 4 operators that differ"),
    ([chained(), chained(2), chained()], (2,), "run 2 differs from all others in 4 of 4"),
    ([chained(2), chained(), chained()], (1,), "run 1 differs from all others in 4 of 4"),
    ([chained(), chained(2, (0,)), chained(2, (5,))], (1, 2, 3), ""),
    ([chained(), chained(), chained(2), chained(2, (5,))], (3, 4), "runs 3 and 4 each differ from all others in"),
    ([chained(), chained(2), chained(2), chained(2, (5,)), chained(2)], (1, 4), "runs 1 and 4 each differ from all"),
]


@pytest.mark.parametrize("runs, odd, words", ODD, ids=["two", "last", "middle", "first", "none", "half", "most"])
def test_the_run_that_stands_apart_is_named(tmp_path, runs, odd, words):
    report = rerun(tmp_path, *runs)
    expected = odd if len(runs) > 2 else (1, 2)  # of two runs neither is the odd one
    assert rows(report) == [(LINEAR(2), "BORN", "output:0", expected)]
    assert passed(report) == {LINEAR(3), LINEAR(4), LINEAR(5)}
    assert report.exit_status == 1
    assert any(words in note for note in report.notes) == bool(words)


def test_runs_that_differ_elsewhere_in_one_output_do_not_agree(tmp_path):
    x, y, z = rand(4, 8), rand(4, 8), rand(4, 8)
    run = lambda b: {"Torch.split.0.forward": {"in": [x], "out": [y, b]}}  # noqa: E731
    other = {"Torch.split.0.forward": {"in": [x], "out": [ulp(y), ulp(z)]}}
    assert rerun(tmp_path, run(z), other, run(ulp(z))).reruns[0].odd == (1, 2, 3)


def test_a_birth_in_one_run_and_another_in_the_next_are_two(tmp_path):
    report = rerun(tmp_path, chained(), chained(1), chained(4))
    assert rows(report) == [(LINEAR(1), "BORN", "output:0", (2,)), (LINEAR(4), "BORN", "output:0", (1, 2, 3))]


def test_the_figures_are_the_largest_of_all_runs(tmp_path):
    far = chain()
    far[LINEAR(5)]["out"][0] = far[LINEAR(5)]["out"][0] + np.float32(0.5)
    near = chain()
    near[LINEAR(5)]["out"][0] = ulp(near[LINEAR(5)]["out"][0], 1, 2)
    (row,) = rerun(tmp_path, chain(), near, far).reruns
    assert (row.differing, row.max_abs) == (128, pytest.approx(0.5, rel=1e-6))
    assert "128 of 128 elements differ, by up to 0.5" in row.because


# What goes in


def test_harmless_bits_are_no_difference(tmp_path):
    x = rand(4, 8)
    x[0, 0], x[1, 1] = 0.0, np.nan
    y = x.copy()
    y[0, 0] = -0.0
    y.view(np.uint32)[1, 1] ^= 1
    report = rerun(
        tmp_path, {"Torch.neg.0.forward": {"in": [x], "out": [x]}}, {"Torch.neg.0.forward": {"in": [y], "out": [y]}}
    )
    assert (report.reruns, report.exit_status) == ((), 0)
    assert all("2 differ in the sign of a zero or the payload of a NaN" in f.because for f in report.findings)
    words = (
        "SAME: 2 tensors compared, the same values in all runs, 2 with other signs of zeros or other payloads of NaNs"
    )
    assert f"{words}." in screen(report)


def test_a_sign_of_zero_that_matters_is_told(tmp_path):
    x, y = rand(4, 8), rand(4, 8)
    x[0, 0], y[0, 0] = 0.0, np.inf
    other, result = x.copy(), y.copy()
    other[0, 0], result[0, 0] = -0.0, -np.inf
    run = lambda a, b: {"Torch.reciprocal.0.forward": {"in": [a], "out": [b]}}  # noqa: E731
    (row,) = rerun(tmp_path, run(x, y), run(other, result)).reruns
    assert (row.cause, row.slot) == (Cause.BORN, "output:0")
    assert "inputs agree (in value)" in row.because
    assert "input:0: the same values in other bits; a zero's sign or a NaN may matter here" in row.because


def test_inputs_of_the_network_come_first_and_say_that_these_are_no_repeats(tmp_path):
    x, y, seed = rand(4, 8), rand(4, 8), rand(4, 8)
    run = lambda a, b: {  # noqa: E731
        "Functional.gelu.0.forward": {"in": [a], "out": [np.tanh(a)]},
        "Functional.linear.0.forward": {"in": [seed, b], "out": [seed * b]},
    }
    report = rerun(tmp_path, run(x, y), run(ulp(x), ulp(y)))
    assert rows(report) == [
        ("Functional.gelu.0.forward", "GAP", "input:0", (1, 2)),
        ("Functional.linear.0.forward", "GAP", "input:1", (1, 2)),
    ]
    assert report.warnings[0].startswith(
        "these runs are not repeats: their inputs differ already (Functional.gelu.0.forward input:0, "
        "Functional.linear.0.forward input:1); fix seeds"
    )


def test_a_parameter_that_differs_is_placed_before_a_birth(tmp_path):
    other = chained(1)
    other[LINEAR(4)]["in"][1] = ulp(other[LINEAR(4)]["in"][1])
    assert rows(rerun(tmp_path, chained(), other)) == [
        (LINEAR(4), "GAP", "input:1", (1, 2)),
        (LINEAR(1), "BORN", "output:0", (1, 2)),
    ]


def test_a_parameter_of_a_later_step_follows_from_the_one_before(tmp_path):
    later = chained()
    later[LINEAR(3)]["in"][1] = ulp(later[LINEAR(3)]["in"][1])
    for name, first, second in (("a", chained(), chained()), ("b", chained(2), later)):
        write_run(tmp_path / name, first, step=0)
        write_run(tmp_path / name, second, step=1)
    report = rerun_diff([tmp_path / "a", tmp_path / "b"])
    assert rows(report) == [(LINEAR(2), "BORN", "output:0", (1, 2))]
    assert report.notes == ()
    (row,) = [one for one in report.reruns if one.step == 1]
    assert row.because.startswith("the difference follows from step 0; a parameter already differs")


def test_code_that_was_not_dumped_is_a_gap_and_no_input_of_the_network(tmp_path):
    other = chain()
    other[LINEAR(3)]["in"][0] = other[LINEAR(3)]["in"][0] * np.float32(1.5)
    report = rerun(tmp_path, chain(), other)
    assert rows(report) == [(LINEAR(3), "GAP", "input:0", (1, 2))]
    assert (
        f"{LINEAR(2)} wrote the same tensor in both runs: it was changed before this operator read it"
        in report.reruns[0].because
    )
    assert report.notes == ()


def test_an_input_that_comes_from_an_operator_of_one_run_was_not_changed_on_the_way(tmp_path):
    """The output of the earlier operator is no input of the later one there."""
    other: dict[str, dict[str, list[object]]] = {}
    for name, record in chain().items():
        if name == LINEAR(3):
            x = record["in"][0]
            other["Tensor.__mul__.0.forward"] = {"in": [x, 1.5], "out": [x * np.float32(1.5)]}
            record["in"][0] = x * np.float32(1.5)
        other[name] = record
    report = rerun(tmp_path, chain(), other)
    assert rows(report) == [(LINEAR(3), "GAP", "input:0", (1, 2))]
    assert "operators between these two tensors: Tensor.__mul__.0.forward (only in run 2)" in report.reruns[0].because
    assert "was changed before" not in report.reruns[0].because


def test_the_text_of_a_dump_steers_nothing(tmp_path):
    runs = chain(), chain()
    for run, text in zip(runs, ("plain", "x; y already differs {slot} of the target")):
        run[LINEAR(3)]["in"][2] = text
    runs[1][LINEAR(3)]["in"][0] = ulp(runs[1][LINEAR(3)]["in"][0])
    report = rerun(tmp_path, *runs)
    assert (report.warnings, report.notes) == ((), ())
    said = "argument input:2 is 'x; y already differs {slot} of the target' in run 2, 'plain' in run 1"
    assert said in [line.strip() for line in screen(report).splitlines()]


# Where it comes from: equal tensors are not measured, and yet known again


def branches(fault, changed):
    """Two branches: an operator of the one is at fault, the input of the last one of the other was changed."""
    x, one, two = (np.random.default_rng(4).standard_normal((3, 4, 8))).astype(np.float32)
    left = ulp(np.tanh(x)) if fault else np.tanh(x)
    read = ulp(two, 7) if changed else two
    return {
        "Torch.tanh.0.forward": {"in": [x], "out": [left]},
        "Torch.exp.0.forward": {"in": [one], "out": [two]},
        "Torch.abs.0.forward": {"in": [read], "out": [np.abs(read)]},
        "Torch.add.0.forward": {"in": [left, np.abs(read)], "out": [left + np.abs(read)]},
    }


def test_an_input_changed_behind_another_fault_is_a_gap(tmp_path):
    report = rerun(tmp_path, branches(False, False), branches(True, True))
    assert rows(report) == [
        ("Torch.tanh.0.forward", "BORN", "output:0", (1, 2)),
        ("Torch.abs.0.forward", "GAP", "input:0", (1, 2)),
    ]
    assert "Torch.exp.0.forward wrote the same tensor in both runs" in report.reruns[1].because
    assert passed(report) == {"Torch.add.0.forward"}


def test_a_branch_that_is_equal_is_not_listed(tmp_path):
    report = rerun(tmp_path, branches(False, False), branches(True, False))
    assert rows(report) == [("Torch.tanh.0.forward", "BORN", "output:0", (1, 2))]
    assert passed(report) == {"Torch.add.0.forward"}


def test_constants_are_nobodys_output(tmp_path):
    x, zero = rand(4, 8), np.zeros((4, 8), np.float32)
    run = lambda bad: {  # noqa: E731
        "Torch.tanh.0.forward": {"in": [x], "out": [ulp(np.tanh(x)) if bad else np.tanh(x)]},
        "Torch.zeros_like.0.forward": {"in": [x], "out": [zero]},
        "Torch.add.0.forward": {"in": [zero + np.float32(1e-9) * bad, x], "out": [x]},
    }
    assert rows(rerun(tmp_path, run(False), run(True))) == [("Torch.tanh.0.forward", "BORN", "output:0", (1, 2))]


def test_an_operator_that_works_in_place_behind_a_fault_is_listed(tmp_path):
    x, y = rand(4, 8), rand(4, 8)
    run = lambda a: {  # noqa: E731
        "Torch.tanh.0.forward": {"in": [x], "out": [a]},
        "Tensor.add_.0.forward": {"in": [a + y, y], "out": [a + y]},
        "Torch.exp.0.forward": {"in": [a + y], "out": [np.exp(a + y)]},
    }
    report = rerun(tmp_path, run(np.tanh(x)), run(ulp(np.tanh(x), *range(32))))
    assert rows(report) == [("Torch.tanh.0.forward", "BORN", "output:0", (1, 2))]
    assert passed(report) == {"Tensor.add_.0.forward", "Torch.exp.0.forward"}


def test_an_output_that_heals_is_not_listed(tmp_path):
    run = lambda last: {  # noqa: E731
        "Torch.tanh.0.forward": {"in": [X], "out": [last]},
        "Torch.argmax.0.forward": {"in": [last], "out": [np.arange(4)]},
    }
    report = rerun(tmp_path, run(X * 2), run(ulp(X * 2)))
    assert [one.pair.operator.name for one in report.reruns] == ["Torch.tanh.0.forward"]


X = rand(4, 8)


def test_memory_that_nobody_wrote_is_nobodys_fault(tmp_path):
    def run(memory):
        return {
            "Torch.empty.0.forward": {"in": [4, 8], "out": [memory]},
            "Torch.tanh.0.forward": {"in": [X], "out": [X]},
        }

    report = rerun(tmp_path, run(rand(4, 8)), run(rand(4, 8)))
    assert (report.reruns, report.exit_status) == ((), 0)


def test_an_argument_that_differs_is_told_of_the_runs(tmp_path):
    other = chained(2)
    other[LINEAR(2)]["in"][2] = 1e-3
    assert (
        "argument input:2 is 0.001 in run 3, 1e-05 in run 1"
        in rerun(tmp_path, chained(), chained(), other).reruns[0].because
    )


# Random and asynchronous operators


def dropped(seed, fault=False, x=X):
    kept = x * (np.random.default_rng(seed).random(x.shape) < 0.5)
    return {
        "Functional.dropout.0.forward": {"in": [x, 0.5], "out": [kept.astype(np.float32)]},
        "Torch.tanh.0.forward": {"in": [x], "out": [ulp(np.tanh(x)) if fault else np.tanh(x)]},
    }


def test_a_random_operator_is_named_and_placed_behind_a_fault(tmp_path):
    report = rerun(tmp_path, dropped(1), dropped(2, fault=True))
    assert [name for name, *_ in rows(report)] == ["Torch.tanh.0.forward", "Functional.dropout.0.forward"]
    assert [one.excused for one in report.reruns] == [False, True]
    assert report.reruns[1].because.count("a random operator") == 1


def test_what_a_random_operator_is_given_is_not_excused(tmp_path):
    (row,) = rerun(tmp_path, dropped(1), dropped(1, x=ulp(X, 3))).reruns[:1]
    assert (row.cause, row.slot, row.excused) == (Cause.GAP, "input:0", False)


EXCUSED = ["all_reduce", "AllReduce", "HcomAllReduce", "all_gather_into_tensor", "reduce_scatter", "alltoall", "irecv"]
EXCUSED += ["broadcast", "Broadcast", "HcomBroadcast", "dropout", "DropOutGenMask", "multinomial", "rand_like"]
BLAMED = [
    "broadcast_to",
    "BroadcastTo",
    "broadcast_tensors",
    "DropOutDoMask",  # it reads its mask
    "reduce_mean",
    "gather",
    "scatter_add",
    "linear",
    "sendmail",
]


def root(op_type, cause=Cause.BORN):
    operator = Operator("x", op_type, op_type, "forward", 0, ())
    return Root(
        0, Pair(0, "output:0", operator, operator, None, None), cause, "output:0", "", None, 0.0, None, None, ""
    )


def test_operators_that_may_differ():
    assert [word for word in [*EXCUSED, *BLAMED] if excuse(root(word))] == EXCUSED
    assert not excuse(root("dropout", Cause.PROPAGATED))


def test_a_collective_that_got_other_bits_from_another_rank_passes_them_on(tmp_path):
    x, y = rand(4, 8), rand(4, 8)
    run = lambda a, b: {  # noqa: E731
        "Torch.tanh.0.forward": {"in": [X], "out": [a]},
        "Distributed.all_reduce.0.forward": {"in": [a], "out": [b]},
    }
    for name, first, total in (("a", x, x + y), ("b", ulp(x), ulp(x + y))):
        write_run(tmp_path / name, run(first, total), rank=0)
        write_run(tmp_path / name, run(y, total), rank=1)
    report = rerun_diff([tmp_path / "a", tmp_path / "b"])
    assert rows(report) == [("Torch.tanh.0.forward", "BORN", "output:0", (1, 2))]
    assert [(one.rank, one.place) for one in report.reruns] == [(0, 1), (0, 2), (1, 3)]


# Runs that are not alike


def test_an_operator_that_one_run_lacks_is_told(tmp_path):
    longer = chained()
    longer["Torch.exp.0.forward"] = {"in": [X], "out": [np.exp(X)]}
    report = rerun(tmp_path, chained(), longer)
    assert report.notes == ("not in run 1, but in run 2: Torch.exp.0.forward (1 in all)",)
    assert report.exit_status == 0
    assert rerun(tmp_path / "strict", longer, chained(), strict=True).exit_status == 1


def test_another_shape_is_a_difference(tmp_path):
    other = chain()
    other[LINEAR(5)]["out"][0] = other[LINEAR(5)]["out"][0][:4]
    report = rerun(tmp_path, chain(), other)
    assert rows(report) == [(LINEAR(5), "BORN", "output:0", (1, 2))]
    assert "shape [4, 16] against [8, 16]" in report.reruns[0].because
    assert not [noise for noise in report.noise if (noise.op, noise.slot) == (LINEAR(5), "output:0")]


def test_a_tensor_that_cannot_be_read_leaves_it_undecided(tmp_path):
    paths = [write_run(tmp_path / name, chain()) for name in "ab"]
    file = next(paths[1].rglob(f"{LINEAR(5)}.output.0.npy"))
    file.write_bytes(file.read_bytes()[:-1])
    report = rerun_diff(paths)
    assert (report.reruns, report.exit_status) == ((), 2)
    assert sum(finding.verdict.value == "unreadable" for finding in report.findings) == 1


def test_steps_and_ranks_are_told_apart(tmp_path):
    for name, at in (("a", None), ("b", 4)):
        for step in (0, 1):
            for rank in (0, 1):
                write_run(tmp_path / name, chained(at if (step, rank) == (1, 0) else None), step=step, rank=rank)
    report = rerun_diff([tmp_path / "a", tmp_path / "b"])
    assert [(one.step, one.rank, one.pair.operator.name) for one in report.reruns] == [
        (1, 0, LINEAR(4)),
        (1, 0, LINEAR(5)),
    ]


def test_a_run_that_lacks_a_step_agrees_with_nobody(tmp_path):
    for name, runs in (("a", [chained(), chained()]), ("b", [chained(), chained(2)]), ("c", [chained()])):
        for step, run in enumerate(runs):
            write_run(tmp_path / name, run, step=step)
    report = rerun_diff([tmp_path / name for name in "abc"])
    assert {(one.step, one.odd) for one in report.reruns} == {(1, (1, 2))}
    assert [(side, run.step) for side, run in report.unpaired] == [("golden", 1)]


def test_an_interrupted_comparison_keeps_what_is_done(tmp_path):
    def interrupt(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    report = rerun(tmp_path, chained(1), chained(), chained(), progress=interrupt, jobs=1)
    assert (report.exit_status, report.partial, len(report.comparisons)) == (130, True, 1)
    assert rows(report)[0][0] == LINEAR(1)


def test_one_run_is_not_enough(tmp_path):
    with pytest.raises(UsageError, match="at least two runs"):
        rerun_diff([write_run(tmp_path / "a", chain())])


# CANN dumps


def five(values):
    """An NCHW image of 20 channels as a device stores it: C1 = 2, C0 = 16, 12 channels of padding."""
    padded = np.zeros((2, 32, 3, 5), np.float16)
    padded[:, :20] = values
    return np.ascontiguousarray(padded.reshape(2, 2, 16, 3, 5).transpose(0, 1, 3, 4, 2))


def cann(folder, image, padding=0, inserted=False):
    stored = five(image)
    stored[:, 1, :, :, 4:] = padding
    kind = "TransData" if inserted else "Relu"
    name = f"{kind}.{'trans_TransData_1' if inserted else 'net_relu'}.3.7.{craft.TIME}"
    where = folder / "20231114221320" / "0" / "net" / "1" / "0"
    one = craft.tensor(stored, craft.NC1HWC0, image.shape)
    other = craft.tensor(five(np.ones((2, 20, 3, 5))), craft.NC1HWC0, image.shape)
    where.mkdir(parents=True)
    (where / name).write_bytes(craft.v2([other], [one]))
    return folder


IMAGE = np.arange(600).reshape(2, 20, 3, 5).astype(np.float16)


def test_padding_of_a_device_is_harmless(tmp_path):
    report = rerun_diff([cann(tmp_path / "a", IMAGE), cann(tmp_path / "b", IMAGE, padding=7)])
    assert (report.reruns, report.exit_status) == ((), 0)
    assert any("hint: uninitialised padding" in finding.because for finding in report.findings)


def test_operators_that_the_compiler_put_in_are_listed_too(tmp_path):
    image = IMAGE.copy()
    image[1, 2, 1, 1] += 1
    report = rerun_diff([cann(tmp_path / "a", IMAGE, inserted=True), cann(tmp_path / "b", image, inserted=True)])
    assert [one.pair.operator.op_type for one in report.reruns] == ["TransData"]


# Checksums and statistics


def strip(folder, kind, spoil=""):
    """The dump without its values: checksums or statistics as msprobe records them; `spoil` names what gets others."""
    file = next(Path(folder).rglob("dump.json"))
    dump = json.loads(file.read_text())
    dump["task"] = "statistics"
    for leaf in leaves(dump["data"]):
        name = leaf.pop("data_name")
        values = np.load(file.parent / "dump_tensor_data" / name)
        if kind == "md5":
            leaf["md5"] = f"{sum(values.tobytes()) + (name == spoil):08x}"
        facts = (values.max(), values.min(), values.mean(), np.linalg.norm(values))
        leaf.update(zip(("Max", "Min", "Mean", "Norm"), (float(fact) * (2 if name == spoil else 1) for fact in facts)))
    file.write_text(json.dumps(dump))
    return folder


def leaves(value):
    if isinstance(value, dict):
        if "data_name" in value:
            yield value
        for below in value.values():
            yield from leaves(below)
    elif isinstance(value, list):
        for below in value:
            yield from leaves(below)


def stripped(tmp_path, kind, spoil=""):
    paths = [strip(write_run(tmp_path / name, chain()), kind, spoil if name == "b" else "") for name in "ab"]
    return rerun_diff(paths)


@pytest.mark.parametrize("kind, spoil, status", [("md5", "", 0), ("md5", f"{LINEAR(5)}.output.0.npy", 1)])
def test_checksums_prove_both(tmp_path, kind, spoil, status):
    report = stripped(tmp_path, kind, spoil)
    assert report.exit_status == status
    assert rows(report) == ([(LINEAR(5), "BORN", "output:0", (1, 2))] if spoil else [])


@pytest.mark.parametrize("spoil, status", [("", 2), (f"{LINEAR(5)}.output.0.npy", 1)])
def test_statistics_prove_differences_only(tmp_path, spoil, status):
    report = stripped(tmp_path, "statistics", spoil)
    assert report.exit_status == status
    assert rows(report) == ([(LINEAR(5), "UNKNOWN", "output:0", (1, 2))] if spoil else [])


# Noise


def noisy(seed, at=2, size=1e-3):
    """A chain whose operator `at` gives other values in every run, and the rest follows from it."""
    run = chained()
    names = list(run)
    for here, before in list(zip(names, [None, *names]))[at:]:
        x = run[before]["out"][0]
        y = np.tanh(x.astype(float) @ run[here]["in"][1].astype(float))
        if here == names[at]:
            y = y * (1 + size * np.random.default_rng(seed).standard_normal(y.shape))
        run[here] = {"in": [x, *run[here]["in"][1:]], "out": [y.astype(np.float32)]}
    return run


@pytest.fixture
def noise(tmp_path):
    """noise.csv of three runs of one noisy operator."""
    paths = [str(write_run(tmp_path / "reruns" / str(i), noisy(i))) for i in range(3)]
    got = CliRunner().invoke(command, ["rerun-diff", *paths, "-o", str(tmp_path / "report"), "-q"])
    assert (got.exit_code, got.output) == (1, "")
    return tmp_path / "report" / "noise.csv"


def test_noise_is_one_row_per_tensor(noise):
    table = {(row["op"], row["slot"]): row for row in csv.DictReader(noise.read_text().splitlines())}
    assert len(table) == 18  # two inputs and one output of six operators
    assert {row["runs"] for row in table.values()} == {"3"}
    assert float(table[LINEAR(1), "output:0"]["rel_l2"]) == 0.0
    assert 5e-4 < float(table[LINEAR(2), "output:0"]["rel_l2"]) < 3e-3
    assert float(table[LINEAR(2), "output:0"]["max_abs_err"]) > 0


def test_an_operator_within_its_own_noise_is_not_blamed(tmp_path, noise):
    paths = write_run(tmp_path / "target", noisy(7)), write_run(tmp_path / "golden", chained())
    assert npucmp.compare(*paths).roots[0].pair.operator.name == LINEAR(2)
    report = npucmp.compare(*paths, noise=noise)
    assert (report.roots, report.exit_status) == ((), 0)
    out = tmp_path / "out"
    got = CliRunner().invoke(command, ["compare", *map(str, paths), "--noise", str(noise), "-o", str(out)])
    assert "noise: 7 tensors above the limit, within measured noise; largest rel_l2 " in got.stdout
    because = {row["op"] + row["slot"]: row["because"] for row in csv.DictReader((out / "tensors.csv").open())}
    assert "within 4 times its own run-to-run noise of" in because[f"{LINEAR(2)}output:0"]


def test_an_operator_far_above_its_noise_is_blamed(tmp_path, noise):
    paths = write_run(tmp_path / "target", noisy(7, size=0.1)), write_run(tmp_path / "golden", chained())
    first = npucmp.compare(*paths, noise=noise).roots[0]
    assert (first.pair.operator.name, first.cause) == (LINEAR(2), Cause.BORN)
    assert "beyond 4 times its own run-to-run noise of" in first.because


def test_a_fault_behind_a_noisy_operator_is_still_seen(tmp_path, noise):
    faulted = noisy(7)
    for name in ("in", "out"):
        faulted[LINEAR(5)][name][0] = faulted[LINEAR(5)][name][0] * np.float32(1.5 if name == "out" else 1)
    paths = write_run(tmp_path / "target", faulted), write_run(tmp_path / "golden", chained())
    (first,) = npucmp.compare(*paths, noise=noise).roots
    assert first.pair.operator.name == LINEAR(5)


def test_noise_counts_under_limits_of_the_user_too(tmp_path, noise):
    paths = write_run(tmp_path / "target", noisy(7)), write_run(tmp_path / "golden", chained())
    assert npucmp.compare(*paths, noise=noise, rtol=1e-6, atol=1e-9).exit_status == 0


def test_nan_in_one_run_only_is_no_noise(tmp_path):
    spoilt = chain()
    spoilt[LINEAR(5)]["out"][0] = np.full((8, 16), np.nan, np.float32)
    paths = [str(write_run(tmp_path / name, run)) for name, run in (("a", chain()), ("b", spoilt))]
    CliRunner().invoke(command, ["rerun-diff", *paths, "-o", str(tmp_path), "-q"])
    assert f"{LINEAR(5)},output:0,inf," in (tmp_path / "noise.csv").read_text()
    wrong = chain({5: 1.5})
    assert npucmp.compare(write_run(tmp_path / "c", wrong), paths[0], noise=tmp_path / "noise.csv").roots


NAMES = ["=cmd.linear.0.forward", "'+a.linear.0.forward", "a\x1bb\u202e.linear.0.forward", "a\\x1bb.linear.0.forward"]


@pytest.mark.parametrize(
    "name", [*NAMES, "\u200babc.linear.0.forward", " -x.linear.0.forward", 'a"b,c.linear.0.forward']
)
def test_odd_names_survive_the_table(tmp_path, name):
    def write(folder, x, y):
        folder.mkdir()
        return write_run(folder, {"Torch.a.0.forward": {"in": [x], "out": [y]}})

    paths = [write(tmp_path / side, X, y) for side, y in (("a", X), ("b", X * np.float32(1.001)))]
    for path in paths:
        file = next(path.rglob("dump.json"))
        dump = json.loads(file.read_text())
        dump["data"] = {name: dump["data"]["Torch.a.0.forward"]}
        file.write_text(json.dumps(dump))
    CliRunner().invoke(command, ["rerun-diff", *map(str, paths), "-o", str(tmp_path / "r"), "-q"])
    assert npucmp.compare(*paths).roots
    assert npucmp.compare(*paths, noise=tmp_path / "r" / "noise.csv").roots == ()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "op,slot,rel_l2\nx,y,much\n", "op,slot,rel_l2\nx\n"])
def test_a_file_that_is_no_noise_table_is_refused(tmp_path, text):
    (tmp_path / "noise.csv").write_text(text)
    with pytest.raises(UsageError):
        npucmp.compare(
            write_run(tmp_path / "a", chain()), write_run(tmp_path / "b", chain()), noise=tmp_path / "noise.csv"
        )


def test_a_table_of_errors_is_no_noise(tmp_path):
    """tensors.csv and rerun.csv have the columns too: what they hold would excuse itself."""
    paths = [str(write_run(tmp_path / str(i), chain({1: 1.5} if i else ()))) for i in range(2)]
    CliRunner().invoke(command, ["compare", *paths, "-o", str(tmp_path / "c"), "-q"])
    CliRunner().invoke(command, ["rerun-diff", *paths, "-o", str(tmp_path / "r"), "-q"])
    for table in ("c/tensors.csv", "r/tensors.csv", "r/rerun.csv"):
        with pytest.raises(UsageError, match="is a table of errors; noise= requires"):
            npucmp.compare(*paths, noise=tmp_path / table)


# Files and screen


def test_the_table_and_the_screen(tmp_path):
    paths = [str(write_run(tmp_path / str(i), chained(2, (i,)) if i else chained())) for i in range(3)]
    got = CliRunner().invoke(command, ["rerun-diff", *paths, "-o", str(tmp_path / "out")])
    assert got.exit_code == 1
    table = list(csv.DictReader((tmp_path / "out" / "rerun.csv").open()))
    assert [(row["place"], row["op"], row["cause"], row["runs"]) for row in table[:2]] == [
        ("1", LINEAR(2), "BORN", "all"),
        ("2", LINEAR(3), "PROPAGATED", "all"),
    ]
    assert (table[0]["differing_elements"], table[0]["max_ulp"], table[0]["slot"]) == ("1", "1", "output:0")
    assert "  1  BORN        Functional.linear.2.forward  output:0   no two runs agree\n" in got.stdout
    assert "     PROPAGATED  3 operators downstream\n" in got.stdout
    assert "DIFFERS: difference originates in 1 place, propagated by 3." in got.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "rerun.csv",
        "noise.csv",
        "tensors.csv",
        "summary.json",
    }


# The sample

SAMPLE = Path(__file__).parent.parent.parent / "sample_dumps" / "rerun_scatter"


def test_the_sample_names_the_sum_whose_order_is_that_of_arrival():
    report = rerun_diff([SAMPLE / f"run{number}" for number in (1, 2, 3)])
    assert rows(report) == [("Mint.index_add.0.forward", "BORN", "output:0", (1, 2, 3))]
    assert "hint: rounding of sums accumulated in another order" in report.reruns[0].because
    assert len(passed(report)) == 8


def test_the_sample_is_what_its_script_writes(tmp_path):
    subprocess.run([sys.executable, SAMPLE.parent / "make_reruns.py", tmp_path], check=True)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {path.relative_to(SAMPLE): path.read_bytes() for path in SAMPLE.rglob("*") if path.is_file()}


# Real dumps

DATA = Path(__file__).parent.parent.parent.parent / "shared" / "data"
BERT = DATA / "msprobe" / "bert"
shared = pytest.mark.skipif(not BERT.is_dir(), reason="the shared dumps are not beside this checkout")


@shared
@pytest.mark.parametrize("kind", ["", "_md5_L1"])
def test_the_planted_operator_of_a_real_dump(kind):
    report = rerun_diff([BERT / f"A{kind}", BERT / f"D{kind}"])
    assert rows(report) == [("Functional.layer_norm.2.forward", "BORN", "output:0", (1, 2))]
    assert report.exit_status == 1


@shared
def test_the_odd_one_of_three_real_dumps():
    report = rerun_diff([BERT / "A", BERT / "R", BERT / "D"])
    assert {one.odd for one in report.reruns} == {(3,)}


@pytest.mark.few(2)
@shared
@pytest.mark.parametrize(
    "paths, status",
    [
        (["msprobe/bert/A", "msprobe/bert/R"], 0),
        (["mindspore/A", "mindspore/R"], 0),
        (["tf/golden/npy", "tf/golden/tfdbg_raw"], 0),
        (["msprobe/bert/A_stat_L1", "msprobe/bert/R_stat_L1"], 2),
        (["msprobe/bert/A", "msprobe/bert/A_stat_L1"], 2),
    ],
)
def test_real_repeats(paths, status):
    report = rerun_diff([DATA / path for path in paths])
    assert (report.reruns, report.exit_status) == ((), status)


def test_a_row_has_the_figures_of_one_run(tmp_path):
    """Those of its columns are those of its words, and it says which run they are of."""
    paths = [str(SAMPLE / f"run{i}") for i in (1, 2, 3)]
    CliRunner().invoke(command, ["rerun-diff", *paths, "-q", "-o", str(tmp_path)])
    table = list(csv.DictReader((tmp_path / "rerun.csv").open()))
    found = [row for row in table if "elements differ" in row["because"]]
    assert len(found) > 5 and all("figures of run" in row["because"] for row in found)
    for row in found:
        by, ulp = f"by up to {float(row['max_abs_err']):.2e}", f", {int(row['max_ulp']):,} ulp"
        assert f"{row['slot']}: {row['differing_elements']} of " in row["because"]
        assert by in row["because"] and ulp in row["because"]
