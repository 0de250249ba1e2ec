"""Steps and ranks: chosen by lists and ranges, held against others by --pair, recognised in the trees of all tools."""

import time
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.dump.formats.cann import _step_and_rank
from npucmp.dump.readers.names import place_of
from npucmp.errors import NpucmpError, UsageError
from npucmp.measure.executor import Serial
from npucmp.model import Run
from npucmp.workflows.select_runs import pair_runs
from npucmp.workflows.selectors import parse_numbers, partners
from tests.synthetic import write_run

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def dump(folder, places, factor=1.0):
    for step, rank in places:
        y = X * np.float32((1 + step + 10 * rank) * factor)
        write_run(folder, {"Functional.relu.0.forward": {"in": [X], "out": [y]}}, step, rank)
    return folder


@pytest.mark.parametrize(
    ("asked", "meant"),
    [(None, {0, 1, 9, 12}), (1, {1}), ("1", {1}), ("0-9", {0, 1, 9}), ("0,9-12", {0, 9, 12}), ([12, 1], {1, 12})],
)
def test_lists_and_ranges(asked, meant):
    assert {number for number in (0, 1, 9, 12) if parse_numbers("step", asked).has(number)} == meant


@pytest.mark.parametrize("asked", ["", "a", "3-1", "1,,2", "-1", "1-2-3", [], -1])
def test_what_is_no_number_is_named(asked):
    with pytest.raises(UsageError, match=r"--rank .*: needs numbers or ranges"):
        parse_numbers("rank", asked)


@pytest.mark.parametrize("text", ["step1", "step1=rank0", "step1=step0=step2", "=", "1=0", "step1/rank0=step0"])
def test_a_pair_names_the_same_on_both_sides(text):
    with pytest.raises(UsageError, match=r"--pair .*as in --pair step1=step0"):
        partners([text])


def test_pairs_that_contradict_each_other_are_refused():
    assert partners(["step1=step0", "step_1=step0"])[0].target.step == 1
    with pytest.raises(UsageError, match="--pair step1=step2: contradicts --pair step1=step0"):
        partners(["step1=step0", "step1=step2"])


def compared(tmp_path, targets, goldens, **options):
    report = npucmp.compare(dump(tmp_path / "t", targets), dump(tmp_path / "g", goldens), **options)
    return [((a.step, a.rank), (b.step, b.rank)) for a, b in ((one.target, one.golden) for one in report.comparisons)]


GRID = [(step, rank) for step in range(3) for rank in range(2)]


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"step": "0,2"}, [(0, 0), (0, 1), (2, 0), (2, 1)]),
        ({"step": "1-9", "rank": "1"}, [(1, 1), (2, 1)]),
        ({"rank": 0}, [(0, 0), (1, 0), (2, 0)]),
    ],
)
def test_runs_are_chosen(tmp_path, options, meant):
    assert compared(tmp_path, GRID, GRID, **options) == [(one, one) for one in meant]


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"pair": ["step1=step0"]}, [((1, 0), (0, 0)), ((1, 1), (0, 1))]),
        ({"pair": ["step1=step0"], "step": 1, "rank": 1}, [((1, 1), (0, 1))]),
        ({"pair": ["step1=step0", "step1/rank0=step0/rank1"]}, [((1, 0), (0, 1)), ((1, 1), (0, 1))]),
        ({"pair": ["step1/rank1=step0/rank0", "step1/rank0=step0/rank1"]}, [((1, 0), (0, 1)), ((1, 1), (0, 0))]),
    ],
)
def test_runs_of_other_numbers_are_held_against_each_other(tmp_path, options, meant):
    assert compared(tmp_path, [(1, 0), (1, 1)], [(0, 0), (0, 1)], **options) == meant


def test_one_golden_run_serves_several(tmp_path):
    found = compared(tmp_path, [(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 5)], pair=["rank1=rank0", "rank2=rank0"])
    assert found == [((0, rank), (0, 0)) for rank in range(3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": "7-9"}, r"has no step 7-9; it holds step 0 rank 0, step 0 rank 1"),
        ({"pair": ["step7=step0"]}, r"pair= ?step7=step0: the target has no step 7; it holds step 0 rank 0"),
        ({"pair": ["rank1=rank9"]}, r"pair= ?rank1=rank9: the golden has no rank 9; it holds step 0 rank 0"),
    ],
)
def test_errors_name_what_was_asked_and_what_there_is(tmp_path, options, words):
    with pytest.raises(NpucmpError, match=words):
        compared(tmp_path, GRID, GRID, **options)


@pytest.mark.parametrize(
    ("path", "step", "rank"),
    [
        ("dump/step3/rank12", 3, 12),
        ("4711/step_3/rank_1", 3, 1),
        ("step0/run/step5/pid77", 5, None),
        ("msprobe_ge_dump/worldsize2_global_rank1/20260801120000/0", None, 1),
        ("steps/rank", None, None),
    ],
)
def test_folders_tell_step_and_rank(path, step, rank):
    assert place_of(Path(path).parts)[:2] == (step, rank)


def test_the_global_rank_is_the_rank_though_each_process_sees_device_0():
    place = _step_and_rank(Path("/dump/worldsize2_global_rank1/20260801120000/0/graph/1/3"))
    assert (place.rank, place.step) == (1, 3)


def test_the_tree_of_verl(tmp_path):
    written = dump(tmp_path / "d", [(0, 0), (0, 1), (1, 0), (1, 1)])
    for step in (0, 1):
        for rank in (0, 1):
            (written / f"step{step}/rank{rank}").rename(written / f"step{step}/rank_{rank}")
        (written / f"step{step}").rename(written / f"step_{step}")
    report = npucmp.compare(written, written)
    assert [(one.step, one.rank) for one in report.comparisons] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_numbers_that_no_run_has_are_told(tmp_path):
    """Of a range some are enough; one that one dump has is a run without a partner."""
    left, right = dump(tmp_path / "t", [(0, 0), (0, 1), (0, 5)]), dump(tmp_path / "g", [(0, 0), (0, 1)])
    told = [{one for one in npucmp.compare(left, right, rank=rank, step="0-99", executor=crew).notes if "--" in one}
            for rank in ("0-9", "0,5", "0,8-15,3") for crew in (None, Serial())]  # fmt: skip
    assert told == [set()] * 4 + [{"no run has rank 8-15,3, which --rank names"}] * 2


def test_as_many_as_there_are_on_a_cluster_are_paired_at_once():
    """By their numbers, without looking through all for each; those without one are left for who has none."""
    where = [(step, rank) for step in range(12) for rank in range(1000)]
    runs = [[Run(f"{side}{one}", "npy", (), *one) for one in some] for side, some in (("t", where), ("g", where[::-1]))]
    started = time.process_time()
    together, alone = pair_runs(*runs)
    assert time.process_time() - started < 3  # all by all: 144 million
    assert not alone and all((a.step, a.rank) == (b.step, b.rank) for a, b in together) and len(together) == 12_000


@pytest.mark.parametrize(
    ("targets", "goldens", "meant"),
    [
        ([(0, 0), (0, 1)], [(0, None), (0, 1)], [((0, 0), (0, None)), ((0, 1), (0, 1))]),
        ([(0, 0), (0, 0)], [(0, 0), (0, 0)], [((0, 0), (0, 0))] * 2),
        ([(None, None), (1, 1)], [(0, 0), (1, 1)], [((None, None), (0, 0)), ((1, 1), (1, 1))]),
        ([(0, None), (0, 0)], [(0, 0), (0, 1)], [((0, None), (0, 1)), ((0, 0), (0, 0))]),
        ([(None, 1), (2, 1)], [(3, 0), (3, 1)], [((None, 1), (3, 1))]),
        ([(0, 0), (0, 0)], [(0, 0), (1, None)], [((0, 0), (0, 0))]),
    ],
)
def test_a_number_that_is_not_there_matches_any(targets, goldens, meant):
    runs = [[Run(f"{at}", "npy", (), *one) for at, one in enumerate(some)] for some in (targets, goldens)]
    together, alone = pair_runs(*runs)
    assert [((a.step, a.rank), (b.step, b.rank)) for a, b in together] == meant
    assert len({*map(id, sum(together, ()))}) + len(alone) == len(targets) + len(goldens)
