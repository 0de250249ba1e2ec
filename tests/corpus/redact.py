"""Whether a redacted case has the verdict of its record: the share of guilty operators for which one is written.

    python -m tests.corpus.redact SEED --calls 300 --families 6

Guilty operators are calls of torch with a fault planted in one output (tests/recompute/innocent.py draws the calls),
and operators of the corpus of planted runs (planter.py). An operator is kept if `extract --redact` writes its case, and
if a second look finds the same verdict and no value of the record in its place. Needs torch.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import click
import numpy as np

from tests.corpus.draw import plan
from tests.corpus.faults import Random
from tests.corpus.planter import planted
from tests.corpus.training import train
from tests.corpus.truth import COLLECTIVES
from tests.corpus.writers import msprobe


class Outcome(NamedTuple):
    """What became of one guilty operator; `why` is empty if a redacted case was written."""

    source: str
    operator: str
    fault: str
    why: str
    coincide: int  # output elements that kept their value


def with_fault(values: Any, kind: str, rng: np.random.Generator) -> Any:
    """A recorded result with a fault."""
    import torch

    if not values.is_floating_point():
        found = values.clone().reshape(-1)
        at = int(rng.integers(found.numel()))
        found[at] = ~found[at] if found.dtype == torch.bool else found[at] + 1
        return found.reshape(values.shape)
    wide = values.double().numpy().copy()
    rows = wide.reshape(-1, wide.shape[-1]) if wide.ndim else wide.reshape(1, 1)
    with np.errstate(all="ignore"):
        if kind == "scaled":
            rows *= 1 + float(rng.choice([-0.5, 0.01, 0.1, 1.0]))
        elif kind == "tile":
            rows[: max(1, len(rows) // 3), : max(1, rows.shape[1] // 3)] = 0
        elif kind == "noise":
            rows *= 1 + 0.01 * rng.normal(size=rows.shape)
        elif kind == "element":
            rows.reshape(-1)[rng.integers(rows.size)] += 1 + np.abs(rows[np.isfinite(rows)]).mean()
        elif kind == "coarse":
            rows[...] = np.round(rows, 1)
        elif kind == "shifted":
            rows[...] = np.roll(rows, 1, axis=-1)
        elif kind == "nan":
            rows.reshape(-1)[rng.integers(rows.size)] = np.nan
    return torch.from_numpy(rows.reshape(wide.shape)).to(values.dtype)


FAULTS = ("scaled", "tile", "noise", "element", "coarse", "shifted", "nan")


def calls(seed: int, count: int, folder: Path) -> dict[str, str]:
    """Write a dump of calls, each with a fault in one result or gradient; return the fault of each."""
    from tests.recompute import innocent

    rng = np.random.default_rng(seed)
    faults, found = {}, []
    for one in innocent.records(seed, count):
        kind = str(rng.choice(FAULTS))
        faults[f"{one.name}.forward"] = faults[f"{one.name}.backward"] = kind
        outputs, gradients = [*one.outputs], [*one.gradients]
        for values in (outputs, gradients):
            places = [at for at, value in enumerate(values) if hasattr(value, "numel") and value.numel()]
            if places and (values is gradients or not gradients or rng.random() < 0.5):
                at = places[int(rng.integers(len(places)))]
                if not values[at].is_complex():
                    values[at] = with_fault(values[at].detach(), kind, rng)
        found.append(one._replace(outputs=outputs, gradients=gradients))
    innocent.write(found, folder)
    return faults


def runs(seed: int, families: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Write a dump of a faulty run of each family; yield its name and fault while it exists."""
    for number in range(seed, seed + families):
        planned = plan("open", number)
        clean = train(planned.target)
        for place, fault in enumerate(planned.faults):
            r = Random([*map(int, np.random.RandomState([number, place]).randint(1 << 30, size=2))])
            found = planted(fault, planned, clean, r) if fault.strikes == "operator" else None
            if found is None or not found.plants or found.plants[0].address.kind in (*COLLECTIVES, "recv"):
                continue
            msprobe.write(folder, train(planned.target, found.plants, found.setting).runs)
            yield f"{number}/{place}", fault.name
            shutil.rmtree(folder)


def outcomes(dump: Path, source: str, fault_of: Any, engine: str) -> Iterator[Outcome]:
    """What becomes of each guilty operator of a dump."""
    from npucmp.dump.formats import calls_of
    from npucmp.dump.limits import ReadContext
    from npucmp.errors import NpucmpError
    from npucmp.model import ReplayVerdict
    from npucmp.recompute.arguments import RefusedRecord
    from npucmp.recompute.engine import CaseEngine, OperatorEngine
    from npucmp.recompute.extract import ExtractOptions
    from npucmp.recompute.redacted_case import RedactedCaseEngine
    from npucmp.recompute.task import ReplaySettings, tasks_of

    options, settings, context = ExtractOptions(), ReplaySettings(), ReadContext().confine(dump)
    judge = OperatorEngine(engine)
    for run in options.runs(dump, context):
        for task in tasks_of(run, calls_of(run, context)):
            with tempfile.TemporaryDirectory(dir=dump.parent) as folder:
                case = CaseEngine(Path(folder), engine)
                if case.refuses(task)[0]:
                    continue
                try:
                    rows = judge.replay(task, context, settings)
                except (RefusedRecord, NpucmpError):
                    continue
                if not any(row.verdict is ReplayVerdict.GUILTY for row in rows):
                    continue
                why, coincide, started = "", 0, time.monotonic()
                try:
                    case.replay(task, context, settings)  # without redaction
                except (RefusedRecord, NpucmpError):
                    continue
                shutil.rmtree(folder)
                Path(folder).mkdir()
                try:
                    RedactedCaseEngine(Path(folder), case).replay(task, context, settings)
                    text = (Path(folder) / "call.json").read_text()
                    coincide = sum(map(int, re.findall(r"(\d+) elements coincide", text.replace(",", ""))))
                except (RefusedRecord, NpucmpError) as error:
                    why = str(error)
                name = f"{task.call.prefix}.{task.call.name}.{task.operator.phase}"
                if time.monotonic() - started > 20:
                    print(f"slow: {name} {time.monotonic() - started:.0f} s", flush=True)
                yield Outcome(source, name, fault_of(task.operator.name), why, coincide)


@click.command(help=__doc__)
@click.argument("seed", type=int)
@click.option("--calls", "count", default=300, help="Calls of torch.")
@click.option("--families", default=6, help="Runs of the corpus.")
@click.option("--engine", type=click.Choice(["torch", "numpy"]), default="torch")
@click.option("--cases", "listed", is_flag=True, help="List the operators without a case.")
def main(seed: int, count: int, families: int, engine: str, listed: bool) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    every: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "calls"
        faults = calls(seed, count, dump) if count else {}
        every += outcomes(dump, "calls", lambda name: faults.get(name, ""), engine) if count else []
        for _, fault in runs(seed, families, Path(folder) / "run"):
            every += outcomes(Path(folder) / "run", "runs", lambda name, fault=fault: fault, engine)
    for one in every:
        if listed and one.why:
            print(one)
    for title in ("source", "fault"):
        groups: dict[str, list[bool]] = defaultdict(list)
        for one in every:
            groups[getattr(one, title)].append(not one.why)
        print(f"by {title}: " + ", ".join(f"{name} {sum(some)}/{len(some)}" for name, some in sorted(groups.items())))
    print("without a case:", dict(Counter(one.operator for one in every if one.why)))
    kept = sum(not one.why for one in every)
    same = Counter({one.operator: one.coincide for one in every if one.coincide})
    print(
        f"output elements that coincide: {sum(same.values()):,} of {len(same)} operators: {dict(same.most_common(12))}"
    )
    print(f"guilty operators with a redacted case: {kept} of {len(every)} ({kept / max(1, len(every)):.1%})")


if __name__ == "__main__":
    main()
