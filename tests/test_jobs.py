"""Commands with several workers: the same files, byte for byte, whatever --jobs is; a worker's death costs rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import npucmp
from npucmp.cli import main
from npucmp.measure import executor
from npucmp.measure import pairs as measuring
from npucmp.model import Cause

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
COMMANDS = {
    "compare msprobe": ("compare", "msprobe_softmax/target", "msprobe_softmax/golden"),
    "compare cann": ("compare", "cann_fused_conv/target", "cann_fused_conv/golden"),
    "compare mindspore": ("compare", "mindspore_layer_norm/target", "mindspore_layer_norm/golden"),
    "overflow": ("overflow", "msprobe_softmax/target", "--golden", "msprobe_softmax/golden"),
    "fusion-diff": ("fusion-diff", "cann_fusion_pass/target", "cann_fusion_pass/golden"),
    "rerun-diff": ("rerun-diff", "rerun_scatter/run1", "rerun_scatter/run2", "rerun_scatter/run3"),
}


@pytest.fixture
def small_batches(monkeypatch):
    """Every pair is a task of its own, so that samples are enough for several workers."""
    monkeypatch.setattr(executor, "WEIGHT", 1)
    monkeypatch.setattr(executor, "BATCH", 1)


def written(words, jobs, output, monkeypatch):
    paths = [str(SAMPLES / word) if "/" in word else word for word in words]
    argv = ["npucmp", *paths, "-o", str(output), "--no-progress", "--jobs", str(jobs)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, 1)
    return {file.name: file.read_bytes() for file in output.iterdir() if file.suffix in (".csv", ".cfg")}


@pytest.mark.few(1)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_reports_do_not_depend_on_the_number_of_workers(words, small_batches, tmp_path, monkeypatch):
    alone = written(words, 1, tmp_path / "1", monkeypatch)
    assert alone
    for jobs in (2, 3):
        assert written(words, jobs, tmp_path / str(jobs), monkeypatch) == alone


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_tensor_that_ends_its_worker_is_a_row(small_batches, tmp_path, monkeypatch):
    """The fault is still found; every other tensor is compared as always."""
    whole = {(f.pair.order, f.pair.slot): f.verdict for f in report().findings}
    measure = measuring.measure
    deadly = next(f.pair for f in report().findings if f.pair.slot == "output:0" and f.pair.order == 0)

    def crash(pair, *more):
        if (pair.order, pair.slot) == (deadly.order, deadly.slot):
            os._exit(7)
        return measure(pair, *more)

    monkeypatch.setattr(measuring, "measure", crash)
    found = report(jobs=2)
    for finding in found.findings:
        key = finding.pair.order, finding.pair.slot
        if key == (deadly.order, deadly.slot):
            assert finding.verdict == "unreadable" and "ended the process: status 7" in finding.because
        else:
            assert finding.verdict == whole[key]
    assert found.roots[0].cause is Cause.BORN and "softmax" in found.roots[0].pair.operator.name


def report(jobs=1):
    return npucmp.compare(SAMPLES / "msprobe_softmax/target", SAMPLES / "msprobe_softmax/golden", jobs=jobs)
