"""What a comparison of statistics costs beside json.load of the same files: opening, judging, reporting, all of it.

python tests/benchmarks/statistics_dumps.py [--ranks 32] [--steps 1] [--layers 12] [--runs 3] [--folder DIR]

Makes two msprobe dumps of training steps of a transformer, level mix, `task: statistics`, and measures by the time of
the processor. Target and golden differ by a rounding; from three quarters of the way on all figures of the target are
5 % off. Each phase is a process of its own, contestants take turns, and the least of all runs is printed. The baseline
is json.load of every file that opening reads. Not run by pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

SIDES = ("golden", "target")
X, HEADS, WIDE = (8, 512, 1024), (8, 16, 512, 512), (8, 512, 4096)
LAYER = (  # name of the module inside a layer, its class, API, shapes of output and parameters
    ("norm1", "LayerNorm", "Functional.layer_norm", X, ((1024,), (1024,))),
    ("query", "Linear", "Functional.linear", X, ((1024, 1024), (1024,))),
    ("key", "Linear", "Functional.linear", X, ((1024, 1024), (1024,))),
    ("value", "Linear", "Functional.linear", X, ((1024, 1024), (1024,))),
    ("", "", "Torch.matmul", HEADS, ()),
    ("", "", "Tensor.__mul__", HEADS, ()),
    ("", "", "Functional.softmax", HEADS, ()),
    ("dropout", "Dropout", "Functional.dropout", HEADS, ()),
    ("", "", "Torch.matmul", X, ()),
    ("out", "Linear", "Functional.linear", X, ((1024, 1024), (1024,))),
    ("", "", "Tensor.__add__", X, ()),
    ("norm2", "LayerNorm", "Functional.layer_norm", X, ((1024,), (1024,))),
    ("up", "Linear", "Functional.linear", WIDE, ((4096, 1024), (4096,))),
    ("gelu", "GELU", "Functional.gelu", WIDE, ()),
    ("down", "Linear", "Functional.linear", X, ((1024, 4096), (1024,))),
    ("", "", "Tensor.__add__", X, ()),
)
TWO = {"Torch.matmul", "Tensor.__add__"}  # read two tensors
ROUNDING, FAULT, FROM = 1e-7, 0.05, 0.75


class Figures:
    """Leaves of tensors as one side records them; both sides draw the same numbers in the same order."""

    def __init__(self, seed: int, side: str, total: int) -> None:
        self.random, self.target, self.total, self.made = np.random.default_rng(seed), side == "target", total, 0

    def new(self, shape: tuple[int, ...]) -> dict[str, Any]:
        large, small, mean, noise = self.random.standard_normal(4)
        norm = np.sqrt(np.prod(shape))
        figures = np.array([abs(large), -abs(small), 1e-3 * mean, norm * (1 + 0.1 * large)])
        self.made += 1
        if self.target:
            figures *= 1 + (FAULT if self.made > FROM * self.total else ROUNDING * noise)
        most, least, mean, norm = map(float, figures.astype(np.float32))
        said = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [*shape], "Max": most, "Min": least}
        return {**said, "Mean": mean, "Norm": norm, "requires_grad": True}


def step(layers: int, figures: Figures) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, scope, record) of a forward and a backward pass."""
    calls: dict[str, int] = {}
    made, x = [], figures.new(X)
    for layer in range(layers):
        skip = x
        for part, kind, api, shape, parameters in LAYER:
            number = calls[api] = calls.get(api, -1) + 1
            weights = [figures.new(one) for one in parameters]
            read = [x, skip] if api in TWO else [x]
            extra = [{"type": "float", "value": 0.1}] if not weights and api not in TWO else []
            y = figures.new(shape)
            module = f"Module.layers.{layer}.{part}.{kind}" if part else ""
            scope = f"Module.layers.{layer}.Layer"
            record = {"input_args": [*read, *weights, *extra], "input_kwargs": {}, "output": [y]}
            yield f"{api}.{number}.forward", f"{module}.forward.0" if part else f"{scope}.forward.0", record
            if part:
                named = dict(zip(("weight", "bias"), weights))
                record = {"input_args": [x], "input_kwargs": {}, "output": [y], "parameters": named}
                yield f"{module}.forward.0", f"{scope}.forward.0", record
            made.append((api, number, module, scope, [one["shape"] for one in read], parameters))
            x = y
    gradient = figures.new(X)
    for api, number, module, scope, read, parameters in reversed(made):
        gradients = [figures.new(tuple(shape)) for shape in (*read, *parameters)]
        inner = f"{module}.backward.0" if module else f"{scope}.backward.0"
        yield f"{api}.{number}.backward", inner, {"input": [gradient], "output": gradients}
        if module:
            yield f"{module}.backward.0", f"{scope}.backward.0", {"input": [gradient], "output": gradients[:1]}
        if parameters:
            found = {name: [one] for name, one in zip(("weight", "bias"), gradients[len(read) :])}
            yield f"{module}.parameters_grad.0", "", found
        gradient = gradients[0]


def write(folder: Path, layers: int, figures: Figures) -> None:
    folder.mkdir(parents=True)
    rows = list(step(layers, figures))
    data = {name: record for name, _, record in rows}
    top = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
    frames = [f"File /model/part_{n}.py, line {n}, in forward, \n return self.inner_{n}(x)" for n in range(9)]
    stacks = {str(n): [[name], frames] for n, name in enumerate(data) if ".forward" in name and n % 2}
    for name, content in ("dump", top), ("stack", stacks), ("construct", {name: scope for name, scope, _ in rows}):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))


def make(folder: Path, ranks: int, layers: int, steps: int = 1) -> None:
    """Both dumps."""
    counted = Figures(0, "golden", 1)
    list(step(layers, counted))
    for side in SIDES:
        for seed in range(steps * ranks):
            number, rank = divmod(seed, ranks)
            write(folder / side / f"step{number}" / f"rank{rank}", layers, Figures(seed, side, counted.made))


def load(folder: Path) -> dict[str, float]:
    """Seconds of json.load of all files."""
    start = time.process_time()
    for side in SIDES:
        for file in sorted((folder / side).rglob("*.json")):
            with open(file) as stream:
                json.load(stream)
    return {"json.load": time.process_time() - start}


def phases(folder: Path) -> dict[str, float]:
    """Seconds of each phase, and how many tensors there are on both sides, and pairs of them."""
    from npucmp import Options, open_runs, write_reports
    from npucmp.workflows.compare import compare_runs
    from npucmp.workflows.select_runs import Sides

    start = time.process_time()
    target, golden = (open_runs(folder / side) for side in ("target", "golden"))
    opened = time.process_time()
    report = compare_runs(Sides(folder / "target", target, folder / "golden", golden), Options(jobs=1))
    judged = time.process_time()
    write_reports(report, folder / "report")
    written = time.process_time()
    counts = {"tensors": sum(run.tensors for run in (*target, *golden)), "pairs": len(report.findings)}
    return {"opening": opened - start, "judging": judged - opened, "writing": written - judged, **counts}


def command(folder: Path) -> dict[str, float]:
    """Seconds of the whole command, its workers included. It may keep the bytecode of its modules, as installed."""
    sides = [str(folder / side) for side in ("target", "golden")]
    before = os.times()
    child = [sys.executable, "-m", "npucmp", "compare", *sides, "-q", "-o", str(folder / "report")]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    status = subprocess.run(child, env={**kept, "PYTHONPATH": str(ROOT)}).returncode
    after = os.times()
    assert status == 1, status
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return {"command": used}


CONTESTANTS = {"load": load, "phases": phases, "command": command}


def measured(folder: Path, runs: int) -> dict[str, float]:
    """The least that each took."""
    found: dict[str, float] = {}
    for _ in range(runs):
        for name in CONTESTANTS:
            child = [sys.executable, __file__, "--folder", str(folder), "--child", name]
            said = json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
            found.update({key: min(value, found.get(key, value)) for key, value in said.items()})
    return found


def show(folder: Path, found: dict[str, float]) -> None:
    size = sum(file.stat().st_size for side in SIDES for file in (folder / side).rglob("*.json"))
    base = found["json.load"]
    print(f"{found['tensors']:.0f} tensors in {size / 1e6:.0f} MB; json.load of them {base:.2f} s of CPU")
    print(f"opening            {found['opening']:6.2f} s, {found['opening'] / base:.2f} × json.load (goal 1.5)")
    rate = found["pairs"] / found["judging"]
    print(f"judging            {found['judging']:6.2f} s, {rate:,.0f} pairs of tensors per second (goal 60,000)")
    print(f"writing the report {found['writing']:6.2f} s, {found['writing'] / found['judging']:.2f} × judging (goal 1)")
    print(f"npucmp compare -o  {found['command']:6.2f} s, {found['command'] / base:.2f} × json.load (goal 4)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a comparison of statistics.")
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the dumps are kept; those that are there are taken")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(CONTESTANTS[given.child](given.folder)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        if not (folder / "golden").exists():
            make(folder, given.ranks, given.layers, given.steps)
        show(folder, measured(folder, given.runs))


if __name__ == "__main__":
    main()
