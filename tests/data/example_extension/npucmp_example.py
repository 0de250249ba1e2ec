"""An extension of npucmp: a format, a metric, a report and a rule of check. docs/extending.md explains it."""

from __future__ import annotations

import math
from pathlib import Path

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError
from npucmp.health import Found, rule
from npucmp.measure.metrics import Metric
from npucmp.model import Moments, Operator, Result, Run, TensorRef


class Indexed:
    """A folder with index.txt: "operator slot file" per line, in execution order; the files have the layout of .npy."""

    NAME = "indexed"

    @staticmethod
    def sniff(path: Path, context: ReadContext = ANYWHERE) -> bool:
        return (path / "index.txt").is_file()

    @staticmethod
    def open_runs(path: Path, context: ReadContext = ANYWHERE) -> list[Run]:
        operators: dict[str, list[TensorRef]] = {}
        for line in read_text(path / "index.txt", 2**24, context).splitlines():
            words = line.split()
            if len(words) != 3:
                raise DumpError(path / "index.txt", "a line is not: operator slot file")
            file = str(path / Path(words[2]).name)  # never outside the folder
            operators.setdefault(words[0], []).append(_tensor(words[1], file, context))
        named = enumerate(operators.items())
        found = tuple(Operator(name, name, name, "", order, tuple(own), call=name) for order, (name, own) in named)
        return [Run(path=str(path), format=Indexed.NAME, operators=found)]


def _tensor(slot: str, file: str, context: ReadContext) -> TensorRef:
    try:
        found = header("npy", file, context)
    except DumpError as error:  # one unreadable tensor is one row
        return TensorRef("", "", (), file=file, encoding="npy", problem=error.because, label=file)
    return TensorRef(slot, found.dtype, found.shape, file=file, encoding="npy", label=file)


def mean_square(m: Moments) -> float:
    """Σ(x-y)² / n over positions that are finite on both sides, in [0, ∞); NaN if there is none."""
    return m.sum_dd / m.compared if m.compared else math.nan


MEAN_SQUARE = Metric("mean_square", mean_square, better="less")


def suspects(result: Result) -> str:
    """The first operators to look at, one per line: place, cause, operator. The keys are those of summary.json."""
    roots = result.to_dict().get("roots", [])
    return "".join(f"{root['place']} {root['cause']} {root['op']!r}\n" for root in roots)


@rule("example.centre", "hint", "figures, matrices", 1.0, says="a weight is off centre", remedy="subtract its mean")
def centre(health, limit):
    """Mean over deviation of the first step. Evidence: none. This is an example; measure before you believe it."""
    for one in health.matrices:
        x = one.first.figures
        if x.mean and x.std and abs(x.mean) > limit * x.std:
            yield Found(one, f"its mean is {x.mean / x.std:.2g} deviations from 0", abs(x.mean / x.std))
