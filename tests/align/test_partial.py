"""A few operators of a network against all of it: what lines up of the smaller side decides whether it is the same."""

import shutil

import pytest

import npucmp
from npucmp.align import align
from npucmp.errors import UsageError
from tests.align.craft import a_run, api, own
from tests.test_samples import SAMPLES

WHOLE = a_run([own(f"layer{i}/MatMulV2", i, outputs=((i + 2, 3),)) for i in range(60)], "golden")


def part(count, broken=0, other=0):
    """The first operators: some with a file that cannot be read (no slot, no shape), some of another shape."""
    found = list(WHOLE.operators[:count])
    for i in range(broken):
        found[i] = found[i]._replace(
            tensors=tuple(t._replace(slot="", shape=(), problem="cut") for t in found[i].tensors)
        )
    for i in range(broken, broken + other):
        found[i] = own(found[i].name, i, inputs=((7, 7, 7),), outputs=((7, 7, 7),))
    return a_run(found, "target")


@pytest.mark.parametrize("count, broken, other", [(1, 1, 0), (2, 1, 0), (3, 1, 0), (12, 4, 0), (12, 0, 4), (3, 1, 1)])
def test_a_few_operators_are_of_the_network_though_files_are_broken(count, broken, other):
    assert len(align(part(count, broken, other), WHOLE).matches) == count
    assert len(align(WHOLE, part(count, broken, other)).matches) == count


@pytest.mark.parametrize("count", [1, 2, 12])
def test_equal_names_whose_shapes_have_nothing_in_common_are_another_network(count):
    with pytest.raises(UsageError, match="look like different networks"):
        align(part(count, other=count), WHOLE)


def test_names_that_hold_a_number_coincide_by_chance():
    golden = a_run([api("Functional.linear", i, "forward", i, ((i + 2, 3),)) for i in range(60)])
    shapes = [((i + 2, 3),) if i % 2 else ((9, 9, 9),) for i in range(12)]
    target = a_run([api("Functional.linear", i, "forward", i, shapes[i], ((5, 5),)) for i in range(12)])
    with pytest.raises(UsageError, match="look like different networks"):
        align(target, golden)


def test_a_part_of_a_cann_dump_with_a_broken_file_is_compared(tmp_path):
    """By hand, of a dozen operators only two are left and one of them is cut."""
    sample = SAMPLES / "cann_clean"
    shutil.copytree(sample / "target", tmp_path / "target")
    files = sorted(file for file in (tmp_path / "target").rglob("*") if file.name.count(".") == 4)
    for file in files[2:]:
        file.unlink()
    files[0].write_bytes(files[0].read_bytes()[:-5])
    report = npucmp.compare(tmp_path / "target", sample / "golden")
    assert report.exit_status == 2
    assert [f.verdict.value for f in report.findings if f.pair.target_op and f.verdict.value != "match"].count(
        "unreadable"
    )
