"""Small command lines to disturb: comparisons of one rank, by workers, of several ranks, of other formats; commands."""

from __future__ import annotations

from pathlib import Path

from tests.faults.injection import SAMPLES, Scenario
from tests.synthetic import chain, write_run


def small_scenarios(folder: Path) -> list[Scenario]:
    """Return the scenarios of the default suite, whose dumps are written below a folder."""
    write_run(folder / "target", chain({1: 1.05}, steps=3))
    write_run(folder / "close", chain(noise=1e-7, steps=3))
    write_run(folder / "golden", chain(steps=3))
    for step in (0, 1):
        for rank in (0, 1):
            faults = {1: 1.05} if (step, rank) == (0, 1) else ()
            write_run(folder / "ranks_target", chain(faults, steps=2), step, rank)
            write_run(folder / "ranks_golden", chain(steps=2), step, rank)
    target, close, golden = (str(folder / name) for name in ("target", "close", "golden"))
    ranks = [str(folder / f"ranks_{name}") for name in ("target", "golden")]
    return [
        _compare("values", target, golden, earlier=close, jobs=1),
        _compare("clean", close, golden, earlier=target, jobs=1),
        _compare("workers", target, golden, earlier=close, jobs=2, divided=True),
        _compare("ranks", *ranks, earlier=ranks[1], jobs=2, divided=True),
    ]


def sample_scenario(name: str) -> Scenario:
    """Return the comparison of a sample."""
    sides = str(SAMPLES / name / "target"), str(SAMPLES / name / "golden")
    return _compare(name, *sides, earlier=sides[1], jobs=1)


def all_scenarios(folder: Path) -> list[Scenario]:
    """Return these, and one of each format and of other commands."""
    found = small_scenarios(folder)
    found += [sample_scenario(one.name) for one in sorted(SAMPLES.iterdir()) if (one / "golden").exists()]
    from tests.dump.formats.test_atb import write_atb
    from tests.dump.formats.test_npz import write_npz
    from tests.dump.formats.test_pt import micro
    from tests.dump.formats.test_safetensors import write_safetensors

    for name, write in {"atb": write_atb, "npz": write_npz, "pt": micro, "safetensors": write_safetensors}.items():
        for side in ("target", "golden"):
            write(folder / name / side)
        sides = str(folder / name / "target"), str(folder / name / "golden")
        found.append(_compare(name, *sides, earlier="", jobs=1))
    target, golden = str(folder / "target"), str(folder / "golden")
    commands = {
        "overflow": (str(SAMPLES / "overflow_exp" / "target"),),
        "rerun-diff": tuple(str(SAMPLES / "rerun_scatter" / f"run{n}") for n in (1, 2, 3)),
        "fusion-diff": tuple(str(SAMPLES / "cann_fusion_pass" / side) for side in ("target", "golden")),
        "precheck": (target, golden),
        "check": (target,),
    }
    found += [Scenario(name, (name, *dumps, "-o", "{out}", "-q")) for name, dumps in commands.items()]
    return found


def _compare(name: str, target: str, golden: str, *, earlier: str, jobs: int, divided: bool = False) -> Scenario:
    words = ("-o", "{out}", "--jobs", str(jobs), "-q")
    before = ("compare", earlier, golden, *words) if earlier else ()
    return Scenario(name, ("compare", target, golden, *words), before, divided)
