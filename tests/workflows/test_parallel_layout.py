"""Runs on several ranks against the same network on one: assembled, judged, and named by rank."""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.align import placement_choice, rank_run
from npucmp.errors import UsageError
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.report.coverage import open_words
from npucmp.workflows.parallel_layout import _is_wrong_behind
from tests.align.rank_craft import numbers
from tests.align.rank_networks import call, searched
from tests.command import npucmp as run
from tests.corpus.parallel.cases import LAYOUTS, Case, design_for, draw_cases, make
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design
from tests.corpus.parallel.score import graded
from tests.synthetic import write_run

ROOT = Path(__file__).parents[2]
SMALL = Design(batch=4, length=8, width=16, heads=4, keys=4, layers=2, inner=24, words=48)


def pair(folder, layout=Layout(tp=2), design=SMALL, fault=Fault(), **more):
    return make(Case("pair", layout, design, fault, seed=5, **more), folder)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "layout",
    [
        "tp2",
        "tp2_sp",
        "dp2",
        "micro2",
        "pp2",
        "cp2_zigzag",
        "tp2_dp2",
        "pp2_vpp2_micro2_ahead",
        "dp2_zero1",
        "dp2_zero1_backward",
        "dp2_zero1_each",
        "tp2_dp2_fsdp",
    ],
)
def test_a_clean_layout_agrees_and_covers_the_golden(tmp_path, layout):
    written = pair(tmp_path, LAYOUTS[layout])
    report = npucmp.compare(written.target, written.golden, jobs=1)
    assert report.exit_status == 0 and not report.roots
    assert report.layout is not None and {one.state for one in report.layout.placed} <= {"agrees", "local"}


def test_the_last_line_counts_shares_of_ranks(tmp_path):
    """Masks and numbers of words of a rank's part of the vocabulary: what is made of them is compared."""
    written = pair(tmp_path, LAYOUTS["tp2"])
    last = run("compare", written.target, written.golden).stdout.splitlines()[-1]
    assert " of ranks" in last and "without a partner" not in last


def test_what_a_layout_leaves_open_has_one_cause():
    first = tuple(OpenTensor(name, "output:0", 4, "missing", "not compared") for name in ("lt", "ge", "or"))
    said = open_words(Coverage(988, 12, 3, first=first), 5, is_of_layout=True)
    assert said.endswith("accept with --coverage 0.98") and "--exclude" in open_words(
        Coverage(988, 12, 3, first=first), 5
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["tp2", "dp2", "pp2"])
def test_bfloat16_is_silent(tmp_path, layout):
    written = pair(tmp_path, LAYOUTS[layout], base="bfloat16")
    assert npucmp.compare(written.target, written.golden, jobs=1).exit_status == 0


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
}


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


class OnBothRanks(Fault):
    """A fault of 2 % on rank 0 and of 3 % on rank 1."""

    def strikes(self, kind, scope, rank, step):
        object.__setattr__(self, "size", 0.03 if rank else 0.02)
        return super().strikes(kind, scope, rank, step)


def test_copies_that_all_differ_are_named_with_their_errors(tmp_path):
    """No rank has the golden's weight, and none stands out."""
    written = pair(tmp_path, LAYOUTS["tp2"], fault=OnBothRanks("replica differs", "layers.0.norm1.weight"))
    root = npucmp.compare(written.target, written.golden, jobs=1).roots[0]
    assert (root.cause.value, root.slot, root.rank) == ("GAP", "input:2", None)
    words = "copies on ranks 0-1 differ from each other and from the golden (2.0e-02 to 3.0e-02)"
    assert words in [one.sentence() for one in root.evidence]


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


def test_ranks_apart_compares_rank_by_rank(tmp_path):
    written = pair(tmp_path)
    report = npucmp.compare(written.target, written.golden, ranks_apart=True, jobs=1)
    assert report.layout is None and report.exit_status == 1


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


def test_statistics_name_a_rank_whose_part_exceeds_the_whole(tmp_path):
    case = next(one for one in draw_cases(51, "dp4", 1, "statistics", most=5) if one.fault.kind == "wrong part")
    written = make(case, tmp_path)
    root = npucmp.compare(written.target, written.golden, jobs=1).roots[0]
    assert root.pair.golden_op.name in written.right and root.rank == case.fault.rank
    assert f"the part of rank {root.rank} is no part of the golden" in root.because


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
    for module in (rank_run, placement_choice):
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


def test_a_rank_without_a_partner_is_not_decided(tmp_path):
    written = pair(tmp_path, Layout(dp=2), golden=Layout(dp=2))
    without(written.golden, 1)
    got = run("compare", written.target, written.golden, "-o", tmp_path / "out")
    assert got.returncode == 2 and "rank 1 of the target has no partner" in got.stdout
    assert npucmp.compare(written.target, written.golden, rank=0, jobs=1).exit_status == 0


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
    report = npucmp.compare(written.target, written.golden, jobs=1)
    name = next(one.pair.target_op.own_name for one in report.findings if "gelu" in one.pair.operator.name)
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


@pytest.mark.parametrize(
    "more, state, words",
    [
        ([0, 0, 0, 0], "agrees", "sum"),
        ([1, 0, 0, 0], "local", "local"),  # within the rounding of floats, but no sum of numbers of occurrences
        ([900, 0, 0, 0], "local", "local"),
    ],
)
def test_numbers_of_occurrences_on_ranks_add_up_exactly(tmp_path, more, state, words):
    random = np.random.default_rng(4)
    x, weight = random.standard_normal((8, 6)).astype(np.float32), random.standard_normal((5, 6)).astype(np.float32)
    counts = np.array([[3000, 2000, 100, 40], [2500, 1500, 300, 70]])
    ids = np.array([3, 1, 0, 2, 2, 1, 3, 3])

    def calls(rows, count):
        return {
            "Functional.linear.0.forward": {"in": [x[rows], weight], "out": [x[rows] @ weight.T]},
            "Torch.bincount.0.forward": {"in": [ids[rows]], "out": [count]},
            "Functional.linear.1.forward": {"in": [x[rows] * 2, weight], "out": [2 * x[rows] @ weight.T]},
        }

    for rank in range(2):
        write_run(tmp_path / "target", calls(slice(4 * rank, 4 * rank + 4), counts[rank] + more), rank=rank)
    write_run(tmp_path / "golden", calls(slice(None), counts.sum(0)))
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    placed = {(one.operator, one.slot): one for one in report.layout.placed}
    found = placed["Torch.bincount.0.forward", "output:0"]
    assert (found.state, found.relation.placement if found.relation else "local") == (state, words)


def test_a_rank_that_scales_by_another_number_is_no_match(tmp_path):
    """Each rank's own recomputation acquits its kernel."""
    random = np.random.default_rng(3)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (8, 8)))

    def calls(own, scale, error=0.0):
        made = (x @ w[:, own] * np.float32(1 + error)).astype(np.float32)
        scaled = (made * np.float32(scale)).astype(np.float32)
        return {
            "Torch.matmul.0.forward": {"in": [x, w[:, own]], "out": [made]},
            "Tensor.__mul__.0.forward": {"in": [made, scale], "out": [scaled]},
            "Torch.sin.0.forward": {"in": [scaled], "out": [np.sin(scaled)]},
        }

    for rank, scale in enumerate((0.5, 0.75)):
        write_run(tmp_path / "target", calls(slice(4 * rank, 4 * rank + 4), scale, 2e-7), rank=rank)
    golden = write_run(tmp_path / "golden", calls(slice(None), 0.5))
    report = npucmp.compare(tmp_path / "target", golden)
    assert report.exit_status == 1
    assert (report.roots[0].pair.operator.name, report.roots[0].cause.name) == ("Tensor.__mul__.0.forward", "BORN")
    assert report.roots[0].rank == 1


@pytest.mark.parametrize(
    "differing, is_wrong",
    [
        ("", True),
        ("forward", True),
        ("back 1, step 1", True),
        ("back 0, step 0", True),
        ("back 0", False),  # something reduces it later
        ("back 0, step 0, step 1", False),  # all gradients are wrong: they were not divided
        ("back 1, step 0", False),
        ("back 1, forward, step 0", True),
    ],
)
def test_a_gradient_is_wrong_if_its_update_is_and_those_before_are_right(tmp_path, differing, is_wrong):
    """Two products and their backward operators, the last first; updates read the gradients of the weights."""
    x, names = numbers(4, 6, seed=1), ("forward", "back 1", "back 0", "step 1", "step 0")

    def calls(*wrong):
        noise = {name: numbers(4, 6, seed=20 + at) * (name in wrong) for at, name in enumerate(names)}
        made = [numbers(4, 6, seed=10 + at) for at in range(2)]
        found = [call("linear", [x, x + 1], [x + 2 + noise["forward"]]), call("linear", [x + 3, x + 4], [x + 5], 1)]
        found += [call("linear", [made[at] * 3 + noise[f"back {at}"]], [made[at]], at, "backward") for at in (1, 0)]
        return found + [call("mul", [made[at] + noise[f"step {at}"]], [made[at] * 2], at) for at in (1, 0)]

    search = searched(tmp_path, [calls(), calls(*differing.split(", "))], calls())
    assert _is_wrong_behind(search) is is_wrong
