"""What a user named and no dump holds, and names given one at a time."""

import pytest

import npucmp
from npucmp.errors import NpucmpError, UsageError
from tests.command import npucmp as run
from tests.synthetic import chain, write_run

LINEAR = "Functional.linear.{}.forward".format


@pytest.fixture
def dumps(tmp_path):
    return write_run(tmp_path / "target", chain()), write_run(tmp_path / "golden", chain())


def notes(dumps, **options):
    return npucmp.compare(*dumps, **options).notes


def test_what_fits_is_told_nothing_of(dumps, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("metric,limit,dtype,op_type\nrel_l2,1,float32,\nrel_l2,1,,linear\n")
    assert notes(dumps, include=("*linear*",), exclude=("*.5.*",), mapping={LINEAR(0): LINEAR(0)}) == ()
    table.write_text("metric,limit,dtype,op_type\nrel_l2,1,,linear\n")
    assert notes(dumps, tolerances=table) == ()


def test_a_glob_that_fits_nothing_beside_others_is_a_note(dumps):
    said = notes(dumps, include=("*linear*", "*linaer*"), exclude=("*nothing like it*",))
    assert said == (
        "no operator fits --include '*linaer*' (did you mean *linear*?)",
        "no operator fits --exclude '*nothing like it*'",
    )
    assert "linaer" in npucmp.overflow(dumps[0], include=("*linear*", "*linaer*")).notes[0]
    assert "linaer" in npucmp.rerun_diff(dumps, include=("*linear*", "*linaer*")).notes[0]
    got = run("show", dumps[0], "--include", "*linear.1.*", "--include", "*linaer*")
    assert got.returncode == 0 and "linear.1.forward" in got.stdout and "linear.2" not in got.stdout
    assert "note: no operator fits --include '*linaer*'" in got.stdout


def test_an_entry_of_a_mapping_that_fits_nothing_is_a_note(dumps):
    said = notes(dumps, mapping={"Functional.linaer.0.forward": LINEAR(0), LINEAR(1): "none"})
    assert said[0].startswith(
        f"mapping: no operator 'Functional.linaer.0.forward' in the target (did you mean {LINEAR(0)}"
    )
    assert said[1] == "mapping: no operator 'none' in the golden"
    many = notes(dumps, mapping={f"x{i}": LINEAR(0) for i in range(9)})
    assert len(many) == 6 and many[-1] == "mapping: 4 more entries fit nothing"


def test_a_row_of_tolerances_that_fits_nothing_is_a_note(dumps, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("metric,limit,dtype,op_type\nrel_l2,1,,linaer\nrel_l2,1,bfloat16,\n")
    assert notes(dumps, tolerances=table) == (
        "tolerances: the row of op_type linaer fits no tensor (did you mean linear?)",
        "tolerances: the row of dtype bfloat16 fits no tensor",
    )
    table.write_text("metric,limit,dtype\nrel_l2,1,bf61\n")
    with pytest.raises(UsageError, match="no dtype 'bf61'"):
        npucmp.compare(*dumps, tolerances=table)


def test_noise_of_another_network_is_a_note(dumps, tmp_path):
    table = tmp_path / "noise.csv"
    table.write_text("op,slot,rel_l2\nFunctional.linaer.0.forward,output:0,1e-3\n")
    assert notes(dumps, noise=table) == ("noise: no row of the table fits a tensor",)
    table.write_text(f"op,slot,rel_l2\nFunctional.linaer.0.forward,output:0,1e-3\n{LINEAR(0)},output:0,1e-3\n")
    assert notes(dumps, noise=table) == notes(dumps, noise=table, include=LINEAR(1)) == ()


def test_dumps_without_tensors_are_not_said_to_be_filtered(tmp_path):
    """Numbers that operators were given are no tensors."""
    runs = [write_run(tmp_path / name, {"Torch.add.0.forward": {"in": [1, 2.0]}}) for name in "ab"]
    with pytest.raises(UsageError, match="no operator of the dumps holds a tensor"):
        npucmp.compare(*runs)
    with pytest.raises(UsageError, match="no tensor passes include= and exclude="):
        npucmp.compare(*runs, include="*add*")


def test_a_dump_without_numbers_is_step_0_and_rank_0(dumps):
    assert npucmp.compare(*dumps, step=0, rank=0).exit_status == 0
    for rank in (1, 3):
        with pytest.raises(NpucmpError, match=f"has no rank {rank}"):
            npucmp.compare(*dumps, rank=rank)


def test_one_name_will_do_where_several_are_taken(dumps):
    every = npucmp.compare(*dumps)
    one, rest = npucmp.compare(*dumps, include="*linear.1.*"), npucmp.compare(*dumps, exclude="*linear.1.*")
    assert 0 < len(one.findings) < len(rest.findings) < len(every.findings)
    assert one.findings == npucmp.compare(*dumps, include=("*linear.1.*",)).findings
    assert npucmp.FusionOptions(on_graph="a", graph="b", skip_rules="growth").on_graph == ("a",)
    with pytest.raises(NpucmpError, match="absent"):
        npucmp.compare(*dumps, graph="absent.txt")


def test_the_characters_of_a_path_are_no_runs(dumps):
    for words in (("run1",), ("run1", "run2"), (dumps[0],), dumps):
        with pytest.raises(UsageError, match="give"):
            npucmp.rerun_diff(*map(str, words))
