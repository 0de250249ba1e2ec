"""Find the fused operators whose results differ from their unfused chains, and the passes that made them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Sequence

from npucmp.align.fused import guess_fusion
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import fusion_result
from npucmp.errors import DumpError
from npucmp.fusion.option_fields import FusionFields
from npucmp.model import FusionPass, FusionResult, Run, first_of
from npucmp.workflows.compare import compare_runs
from npucmp.workflows.graphs import load_named_graphs, with_graphs
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.options import Options, of_two
from npucmp.workflows.select_runs import Sides
from npucmp.workflows.tensor_details import with_looks

ANCESTORS = 5  # folders above that may hold fusion_result.json; "{time}/{device}/{model}/{id}/{step}" are of a dump


@dataclass(frozen=True)
class FusionOptions(FusionFields, Options):
    """The options of a comparison with and without fusion."""


@of_two(FusionOptions)
def fusion_diff(on: StrPath, off: StrPath, options: FusionOptions) -> FusionResult:
    """Compare a run with fusion (target) with a run without (golden).

    Raises NpucmpError if there is nothing to compare. Errors of single tensors are in the report.
    """
    started = time.monotonic()
    context = options.context(on, off)
    fused, plain = options.runs(on, context), options.runs(off, context, golden=True)
    both = load_named_graphs(options.graph, [*fused, *plain], context)
    fused = with_graphs(on, fused, on, [*load_named_graphs(options.on_graph, fused, context), *both], context)
    plain = with_graphs(off, plain, off, [*load_named_graphs(options.off_graph, plain, context), *both], context)
    notes: list[str] = []
    made = [sum(len(operator.originals) > 1 for run in runs for operator in run.operators) for runs in (fused, plain)]
    if made[1] > made[0]:
        notes.append(f"ON has {made[0]} fused operators, OFF has {made[1]}: were the two given in the wrong order?")
    if not any(operator.originals for run in fused for operator in run.operators):
        fused = [_guess_run(run, plain, notes) for run in fused]
    plain = [_without_inserted(run, notes) for run in plain]
    report = compare_runs(Sides(on, fused, off, plain), options)
    passes = _passes(Path(on), Path(off), notes, context)
    found = replace(FusionResult(**vars(report)), passes=passes, notes=(*report.notes, *notes))
    return replace(with_looks(found, options, context), seconds=time.monotonic() - started)


def _guess_run(run: Run, plain: Sequence[Run], notes: list[str]) -> Run:
    """Return a run without a graph, annotated with fused operators that names and order show."""
    found, by_name, by_order = guess_fusion(run, max(plain, key=lambda one: len(one.operators)))
    guesses = (
        f"fused operators are guessed, {_name_list(by_name)} by their names and {_name_list(by_order)} by the order of "
        "operators in the other run; their inputs are matched by content only"
    )
    notes.append(
        f"no graph of the run with fusion: {guesses if by_name or by_order else 'its names show no fused operator'}"
    )
    return _without_inserted(found, notes)


def _without_inserted(run: Run, notes: list[str]) -> Run:
    """Return a run without its inserted operators if no graph connects their outputs to consumers: their names are
    numbers."""
    inserted = [operator for operator in run.operators if operator.inserted]
    if not inserted or any(tensor.origin for operator in inserted for tensor in operator.tensors):
        return run
    what = f"{len(inserted)} inserted operators (TransData, Cast …) of {run.path}"
    notes.append(f"{what} left out: no graph has the consumers of their outputs")
    return replace(run, operators=tuple(operator for operator in run.operators if not operator.inserted))


def _name_list(names: Sequence[str]) -> str:
    return f"{len(names)} ({first_of(names)})" if names else "none"


def _passes(on: Path, off: Path, notes: list[str], context: ReadContext) -> tuple[FusionPass, ...]:
    """Return the passes with their counts of effects in both compilations, as far as fusion_result.json has them."""
    files = [_file(path) for path in (on, off)]
    effects = [_effects(file, notes, context) for file in files]
    names = {key: None for side in effects for key in side or ()}
    if files[0] is not None and files[0] == files[1]:
        notes.append(f"{files[0]}: lies beside both dumps, so it gives the passes, but not their run")
        return tuple(FusionPass(name, kind, None, None) for name, kind in names)
    return tuple(
        FusionPass(name, kind, *(None if side is None else side.get((name, kind), 0) for side in effects))
        for name, kind in names
    )


def _file(path: Path) -> Optional[Path]:
    folder = path.absolute()
    places = (folder, *list(folder.parents)[:ANCESTORS])
    files = (place / fusion_result.FILE for place in places)
    return next((file for file in files if file.is_file() and not file.is_symlink()), None)


def _effects(file: Optional[Path], notes: list[str], context: ReadContext) -> Optional[dict[tuple[str, str], int]]:
    """Return (pass, kind) → count of effects; None without a file."""
    if file is None:
        return None
    try:
        return {(one.name, one.kind): one.times for one in fusion_result.read_effects(file, context)}
    except DumpError as error:
        notes.append(f"{file}: ignored, {error.because}")
        return None
