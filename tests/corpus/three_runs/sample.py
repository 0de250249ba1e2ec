"""Three small runs with a chosen fault, for tests and for the commands of docs/three_runs.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence

from tests.corpus.three_runs.kernels import Device, Fault, Kernels
from tests.corpus.three_runs.networks import Plan, Size, run
from tests.corpus.writers.msprobe import names, write

DEVICES = {
    "golden": Device("bfloat16", 32, bits=14),
    "target": Device("bfloat16", 8, reverse=True, bits=14),
    "truth": Device("float32", 1 << 20),
}
SIZE = Size(layers=3, width=32, heads=2, tokens=32)


def write_runs(
    place: Path, fault: Optional[Fault] = None, kind: str = "linear", side: str = "target", steps: int = 1
) -> str:
    """Write the runs of a decoder, one side with a fault: in all operators of a kind if it rounds to one side, else in
    the last but one. Return the name of the first faulty operator, "" without a fault."""
    weights: dict[str, Any] = {}
    first, net = run("decoder", Kernels(DEVICES["golden"]), weights, 7, 0, SIZE, None)
    calls: Sequence[int] = [at for at, (function, _) in net.own.items() if function == kind]
    calls = calls if fault is not None and fault.kind == "zero" else calls[-2:-1]
    for name, device in DEVICES.items():
        plan = Plan(frozenset(calls), fault) if fault is not None and name == side else None
        runs = [run("decoder", Kernels(device), weights, 7, step, SIZE, plan)[0] for step in range(steps)]
        write(place / name, runs)
    return names(first)[first.records[min(calls)]] if fault is not None else ""
