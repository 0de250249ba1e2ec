"""Runs on several ranks against the same network on one: assembled, judged, and named by rank."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile

import numpy as np
import pytest

import npucmp
from npucmp.errors import UsageError
from npucmp.relations import held_values
from npucmp.relations.ranks import placement_choice
from tests.command import npucmp as run
from tests.corpus.parallel.cases import LAYOUTS, Case, design_for, draw_cases, make
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design
from tests.corpus.parallel.score import graded

SMALL = Design(batch=4, length=8, width=16, heads=4, keys=4, layers=2, inner=24, words=48)


def pair(folder, layout=Layout(tp=2), design=SMALL, fault=Fault(), **more):
    return make(Case("pair", layout, design, fault, seed=5, **more), folder)


def test_the_last_line_counts_shares_of_ranks(tmp_path):
    """Masks and numbers of words of a rank's part of the vocabulary: what is made of them is compared."""
    written = pair(tmp_path, LAYOUTS["tp2"])
    last = run("compare", written.target, written.golden).stdout.splitlines()[-1]
    assert " of ranks" in last and "without a partner" not in last


FAULTS = {
    "not reduced": ("tp2", Fault("not reduced", "layers.1.proj"), "a reduction is missing before it"),
    "bias per rank": ("tp2", Fault("bias per rank", "layers.1.down"), "added once per rank"),
    "replica differs": ("tp2", Fault("replica differs", "layers.0.norm1.weight", 1, size=0.02), "copies differ"),
    "wrong part": ("tp2", Fault("wrong part", "layers.1.softmax", 1, size=0.02), "the part of rank 1 differs"),
    "undivided": ("dp2", Fault("undivided", "layers.1.up.weight"), "were not divided before"),
    "gather order": ("tp2_sp", Fault("gather order", "layers.1"), "in another order: 1, 0"),
    "shard order": ("tp2", Fault("shard order", "layers.1.up.weight"), "rank 0 that of rank 1, rank 1 that of rank 0"),
    "maximum not reduced": ("tp2", Fault("maximum not reduced", "loss"), "the maximum over ranks 0-1 of Torch.amax"),
    "contiguous data": ("cp2_zigzag", Fault("contiguous data", "data"), "held as shard(0), elsewhere as zigzag(0)"),
    "gradient not reduced": ("dp2", Fault("gradient not reduced", "layers.0.norm1.weight"), "the mean of the copies on "
                             "ranks 0-1 is the golden's"),
}  # fmt: skip


ALIKE = {  # no stack tells products of a layer apart whose weights have one shape, and another split
    "not reduced": SMALL._replace(fused="", inner=16),  # square: the columns of q, k and v, the rows of proj
    "bias per rank": SMALL._replace(fused="blocks", gated=True),  # q, k and v; gate and up
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_kind(tmp_path, name):
    layout, fault, words = FAULTS[name]
    written = pair(tmp_path, LAYOUTS[layout], ALIKE.get(name, SMALL), fault)
    for stack in tmp_path.rglob("stack.json") if name in ALIKE else ():
        stack.unlink()
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert report.exit_status == 1 and words in report.roots[0].because
    assert report.roots[0].rank == fault.rank


@pytest.mark.large
def test_place_one_is_right_in_every_fault_of_a_layout(tmp_path):
    found = [graded(case, tmp_path / case.name) for case in draw_cases(5, "tp2")]
    assert [one.case.name for one in found if one.grade not in ("right", "silent")] == []


def test_files_say_how_ranks_hold_a_tensor(tmp_path):
    written = pair(tmp_path, fault=FAULTS["wrong part"][1])
    got = run("compare", written.target, written.golden, "-o", tmp_path / "out")
    assert got.returncode == 1 and "layout target 2 ranks" in got.stdout
    with open(tmp_path / "out" / "placements.csv", newline="") as stream:
        placements = {(row["golden_op"], row["slot"]): row for row in csv.DictReader(stream)}
    row = placements["Functional.linear.0.forward", "output:0"]
    assert (row["placement"], row["ranks"], row["decided_by"]) == ("shard(2)", "0-1", "agreement")
    assert row["target_ops"] == "rank0/Functional.linear.0.forward;rank1/Functional.linear.0.forward"
    wrong = placements["Functional.softmax.1.forward", "output:0"]["rank_errors"]
    errors = {one.split("/")[0]: float(one.split("/")[1]) for one in wrong.split(";")}
    assert errors["rank0"] < 1e-6 and 1e-3 < errors["rank1"] < 1.0
    summed = placements["Functional.linear.1.forward", "output:0"]
    assert (summed["placement"], summed["rank_errors"]) == ("sum", "")
    with open(tmp_path / "out" / "roots.csv", newline="") as stream:
        first = next(csv.DictReader(stream))
    assert (first["rank"], first["ranks"], first["relation"]) == ("1", "0-1", "concat(ranks 0-1, axis 1)")
    with open(tmp_path / "out" / "tensors.csv", newline="") as stream:
        assert {row["rank"] for row in csv.DictReader(stream)} == {""}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["layout"]["ranks"] == [0, 1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "target, golden, stated",
    [
        (Layout(tp=4), Layout(tp=2), {"layout": "tp=4", "golden_layout": "tp=2"}),
        (Layout(tp=4), Layout(tp=2), {}),
        (Layout(tp=2, dp=2), Layout(dp=2), {}),
    ],
    ids=["stated", "tp4", "tp2,dp2"],
)
def test_layouts_on_both_sides(tmp_path, target, golden, stated):
    written = pair(tmp_path, target, SMALL._replace(heads=8, width=32), golden=golden)
    assert npucmp.compare(written.target, written.golden, jobs=1, **stated).exit_status == 0


def test_a_golden_of_several_ranks(tmp_path):
    written = pair(tmp_path)
    assert npucmp.compare(written.golden, written.target, jobs=1).exit_status == 0


def test_a_layout_that_the_dump_contradicts_is_refused(tmp_path):
    written = pair(tmp_path, Layout(tp=2, dp=2))
    assert npucmp.compare(written.target, written.golden, layout="tp=2,dp=2", jobs=1).exit_status == 0
    for layout, words in (
        ("tp=4", "a collective has the group of ranks"),
        ("tp=x", "no size of"),
    ):
        with pytest.raises(UsageError, match=words):
            npucmp.compare(written.target, written.golden, layout=layout, jobs=1)
    with pytest.raises(UsageError, match="belong together"):
        npucmp.compare(written.target, written.golden, rank=0, jobs=1)


def test_a_missing_rank_is_named_and_nothing_agrees(tmp_path):
    written = pair(tmp_path)
    shutil.rmtree(written.target / "step0" / "rank1")
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert report.exit_status == 2 and report.layout is not None and report.layout.missing == (1,)
    assert any("rank 1 is missing" in note for one in report.comparisons for note in one.target.notes)


def test_statistics_name_a_missing_reduction(tmp_path):
    design = design_for(np.random.RandomState(1), Layout(tp=2))
    written = pair(tmp_path, design=design, fault=Fault("not reduced", "layers.0.proj"), style="statistics")
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert report.exit_status == 1 and report.roots[0].pair.operator.name == "Tensor.__add__.0.forward"


@pytest.mark.large
@pytest.mark.parametrize("layout", ["tp4", "dp4", "tp2_dp2_pp2"])
def test_statistics_of_a_clean_layout_name_nothing(tmp_path, layout):
    """Masks of a part of the vocabulary, of which extremes alone are recorded, and sums of which the mean alone is."""
    (case,) = draw_cases(51, layout, 1, "statistics", most=0)
    one = graded(case, tmp_path)
    assert (one.grade, one.status) == ("silent", 2)


@pytest.mark.large
def test_statistics_name_the_sum_whose_mean_moved(tmp_path):
    cases = draw_cases(51, "tp2_sp_cp2_zigzag", 1, "statistics", most=5)
    case = next(one for one in cases if one.fault.kind == "wrong part")
    assert graded(case, tmp_path).grade == "right"


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["tp2", "tp2_dp2"])
def test_large_tensors_are_read_block_by_block(tmp_path, layout, monkeypatch):
    """Placements of tensors that are not held in memory are decided from blocks."""
    written = pair(tmp_path, LAYOUTS[layout])
    held = rank_errors(npucmp.compare(written.target, written.golden, jobs=1))
    for module in (held_values, placement_choice):
        monkeypatch.setattr(module, "WHOLE", 32)
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert report.exit_status == 0
    streamed = rank_errors(report)
    assert len(streamed) > 100 and streamed == {key: pytest.approx(held[key], abs=1e-9) for key in streamed}


def rank_errors(report):
    """The error of each rank's part, by operator, slot and rank; masked scores apart, of which blocks count the
    masks."""
    return {
        (one.operator, one.slot, rank): error
        for one in report.layout.placed if one.relation is not None and "masked_fill" not in one.operator
        for rank, error in one.relation.rank_errors
    }  # fmt: skip


def without(folder, *ranks):
    for rank in ranks:
        shutil.rmtree(folder / "step0" / f"rank{rank}")


@pytest.mark.large
@pytest.mark.parametrize("fault, status", [(Fault(), 2), (Fault("not reduced", "layers.1.proj"), 1)])
def test_one_replica_of_a_stated_layout_is_compared(tmp_path, fault, status):
    """The ranks of one replica that computes the golden's batch: the other replica is missing, and is named."""
    written = pair(tmp_path, Layout(tp=2), fault=fault)
    report = npucmp.compare(written.target, written.golden, layout="tp=2,dp=2", jobs=1)
    assert report.exit_status == status and report.layout.missing == (2, 3)
    assert [root.pair.golden_op.name for root in report.roots[:1]] == ["Tensor.__add__.4.forward"] * (status == 1)


@pytest.mark.large
def test_one_replica_of_a_larger_batch_has_its_weights_compared(tmp_path):
    written = pair(tmp_path, Layout(tp=2, dp=2))
    without(written.target, 2, 3)
    report = npucmp.compare(written.target, written.golden, layout="tp=2,dp=2", jobs=1)
    states = {(one.operator, one.slot): one.state for one in report.layout.placed}
    assert report.exit_status == 2 and not report.roots
    assert states["Functional.linear.0.forward", "input:1"] == "agrees"
    assert states["Functional.linear.0.forward", "output:0"] == "unknown"


@pytest.mark.parametrize("golden", [Layout(dp=2), Layout(pp=2), Layout(tp=2, sp=True)])
def test_unequal_layouts_of_equally_many_ranks_are_refused(tmp_path, golden):
    written = pair(tmp_path, Layout(tp=2), golden=golden)
    with pytest.raises(UsageError, match="both runs have 2 ranks, in unequal layouts"):
        npucmp.compare(written.target, written.golden, jobs=1)


def test_a_part_that_stands_out_differs_although_the_whole_is_within_its_limit(tmp_path):
    """Nothing that is computed from the part is wrong: the dump of one output of one rank was changed alone."""
    written = pair(tmp_path, Layout(tp=4))
    run = npucmp.open_runs(written.target)[0]
    name = next(operator.name for operator in run.operators if "gelu" in operator.name)
    files = [written.target / "step0" / f"rank{rank}" / "dump_tensor_data" / f"{name}.output.0.pt" for rank in range(4)]
    parts = [read_members(file) for file in files]
    rank = min(range(4), key=lambda at: np.linalg.norm(parts[at][1]))  # the smallest part moves the whole least
    members, values, data = parts[rank]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], values.size)
    members[data] = (values * (1 + 1e-6 * signs)).astype(np.float32).tobytes()
    with zipfile.ZipFile(files[rank], "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    report = npucmp.compare(written.target, written.golden, jobs=1)
    first = report.roots[0]
    assert first.rule == "odd_part" and first.rank == rank and report.exit_status == 1


def read_members(file):
    """The members of a .pt file, the values of its tensor, and the member that holds them."""
    with zipfile.ZipFile(file) as archive:
        members = {one.filename: archive.read(one) for one in archive.infolist()}
    data = next(one for one in members if one.endswith("/data/0"))
    return members, np.frombuffer(members[data], np.float32), data
