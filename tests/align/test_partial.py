"""A few operators of a network against all of it: what lines up of the smaller side decides whether it is the same."""

import shutil

import npucmp
from tests.test_samples import SAMPLES


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
