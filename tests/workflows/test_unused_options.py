"""What a user named and no dump holds, and names given one at a time."""

import pytest

import npucmp
from npucmp.errors import NpucmpError, UsageError
from tests.synthetic import chain, write_run

LINEAR = "Functional.linear.{}.forward".format


@pytest.fixture
def dumps(tmp_path):
    return write_run(tmp_path / "target", chain()), write_run(tmp_path / "golden", chain())


def notes(dumps, **options):
    return npucmp.compare(*dumps, **options).notes


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


def test_dumps_without_tensors_are_not_said_to_be_filtered(tmp_path):
    """Numbers that operators were given are no tensors."""
    runs = [write_run(tmp_path / name, {"Torch.add.0.forward": {"in": [1, 2.0]}}) for name in "ab"]
    with pytest.raises(UsageError, match="no operator of the dumps holds a tensor"):
        npucmp.compare(*runs)
    with pytest.raises(UsageError, match="no tensor passes include= and exclude="):
        npucmp.compare(*runs, include="*add*")


def test_one_name_will_do_where_several_are_taken(dumps):
    every = npucmp.compare(*dumps)
    one, rest = npucmp.compare(*dumps, include="*linear.1.*"), npucmp.compare(*dumps, exclude="*linear.1.*")
    assert 0 < len(one.findings) < len(rest.findings) < len(every.findings)
    assert one.findings == npucmp.compare(*dumps, include=("*linear.1.*",)).findings
    assert npucmp.FusionOptions(on_graph="a", graph="b", skip_rules="growth").on_graph == ("a",)
    with pytest.raises(NpucmpError, match="absent"):
        npucmp.compare(*dumps, graph="absent.txt")
