"""A plan: the files, the lines for the script, the commands to run, the npucmp command that follows, and the size.

run.sh sets the environment of a dump around the command that makes it. It contains no text of a dump or of a user. The
size of the dump on a disk is estimated from an earlier dump of the same network, as is the part that fits.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence

from npucmp.model import Run
from npucmp.plans.dump_config import FORMATS, RecordedOperators, RunFacts, SideSelection, recorded_operators
from npucmp.plans.plan_template import Framework, fill_template
from npucmp.plans.request import DETECTION, DUMP, VALUES, DumpInstructions, DumpRequest, ScriptLine

RECORD = 400  # bytes of a tensor's statistics in dump.json or a table: 220 to 580 were measured


class Size(NamedTuple):
    """The bytes of the largest step of a rank, and of the whole dump.

    steps, ranks  the counts
    operators     number of dumped operators, of `known` operators of a rank
    """

    each: int
    steps: int
    ranks: int
    total: int
    operators: int
    known: int


class FittedRequest(NamedTuple):
    """A selection that fits: names ((): all), number of steps (None: unchanged), its size, and warnings on what was
    cut."""

    names: tuple[str, ...]
    steps: Optional[int]
    size: Size
    warnings: tuple[str, ...] = ()


def bytes_of(one: RecordedOperators, kind: str, names: Sequence[str] = ()) -> tuple[int, int]:
    """Return bytes and operator count of a run; the device's detection may dump all operators, or none."""
    orders = {order for name in names for order in one.selected(name)}
    chosen = [operator for operator in one.run.operators if not names or operator.order in orders]
    if kind in (VALUES, DETECTION):
        return one.bytes([operator.order for operator in chosen]), len(chosen)
    return RECORD * sum(len(operator.tensors) for operator in chosen), len(chosen)


def estimate_size(runs: Sequence[Run], kind: str, steps: int, ranks: int, names: Sequence[str] = ()) -> Size:
    """Return the size of a dump, with the largest run as the estimate of every run: steps × ranks of it."""
    every = [recorded_operators(run) or RecordedOperators(run) for run in runs]
    each, operators, known = max((*bytes_of(one, kind, names), len(one.run.operators)) for one in every)
    return Size(each, steps, ranks, each * steps * ranks, operators, known)


def fit_to_disk(
    runs: Sequence[Run], kind: str, steps: int, ranks: int, names: Sequence[str], disk: int, least: int
) -> FittedRequest:
    """Return the selection that fits: all; else fewer steps, but `least` of them; else the first operators in time.

    The first operators are selected because their errors come first. Names are returned unchanged if only steps are
    cut.
    """
    size = estimate_size(runs, kind, steps, ranks, names)
    if size.total <= disk:
        return FittedRequest(tuple(names), None, size)
    few = min(steps, max(least, disk // max(1, size.each * ranks)))
    size = size._replace(steps=few, total=size.each * few * ranks)
    words = [f"{few:,} of {steps:,} steps fit"] if few < steps else []
    if size.total <= disk:
        return FittedRequest(tuple(names), few, size, tuple(words))
    if kind != VALUES or not {run.format for run in runs} <= {*FORMATS}:
        return FittedRequest(tuple(names), few, size, (*words, "the dump still exceeds the disk"))
    first = _first(runs, names, disk // max(1, few * ranks))
    if not first:
        return FittedRequest(tuple(names), few, size, (*words, "not even the first operator fits"))
    cut = estimate_size(runs, kind, few, ranks, first)
    share = f"the first {cut.operators:,} of {size.operators:,} operators in execution order fit"
    return FittedRequest(first, few, cut, (*words, f"{share}: examine them first, then select the others with --ops"))


def _first(runs: Sequence[Run], names: Sequence[str], disk: int) -> tuple[str, ...]:
    """Return the names of the first operators of the largest run that fit into a rank's share of the disk."""
    known = [one for run in runs if (one := recorded_operators(run)) is not None]
    largest = max(known, key=lambda one: bytes_of(one, VALUES, names)[0])
    growing = SideSelection({0: RunFacts.of(largest.run)})
    orders = {order for name in names for order in largest.selected(name)}
    for operator in largest.run.operators:
        name = largest.selecting_name(operator)
        if not name or (names and operator.order not in orders):
            continue
        more = growing.cost_of(0, name)
        if growing.size + more.size > disk:
            break
        growing.take(more)
    return tuple(growing.names)


RUN = "run.sh"
_START = """\
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
if [ $# -eq 0 ]; then echo "run.sh: append the command: bash run.sh python train.py" >&2; exit 2; fi
if [ -n "$(ls -A "$here/dump" 2>/dev/null)" ]; then
    echo "run.sh: $here/dump is not empty: move it away, because two dumps of one step cannot be distinguished" >&2
fi
"""
_NEXT_RUN = (  # each call is one run
    'n=1; while [ -e "$here/run$n" ]; do n=$((n + 1)); done',
    f'[ ! -e "$here/{DUMP}" ] || mv "$here/{DUMP}" "$here/run$n"',
)


def run_sh(request: DumpRequest, framework: Framework, prepared: DumpInstructions) -> str:
    """Return the script. Its last commands run however the main command ends, including Ctrl-C."""
    title = f"{request.question.name}, {framework.NAME}, {request.side}"
    about = f"# {title}: written by npucmp plan. Usage: bash run.sh COMMAND…"
    lines = ["#!/usr/bin/env bash", about, f"# Source: {framework.SOURCE}."]
    lines += [f"# UNVERIFIED: {words}." for words in prepared.unverified]
    lines += _START.splitlines()
    lines += [f'export {one.name}="{one.value}"  # {one.why}' for one in prepared.exports]
    lines += prepared.before
    after = [*prepared.after, *(_NEXT_RUN if request.question.second == "run" else ())]
    if after:
        lines += ["finish() {", *(f"    {line}" for line in after), "}", "trap finish EXIT"]
    return "\n".join([*lines, '"$@"']) + "\n"


REPORT = "report"


@dataclass(frozen=True)
class Planned:
    """The answer of `npucmp plan`.

    files     by name, all to be written to `folder`: configurations and run.sh
    script    lines for the user's script, in their order, with where they go
    run       commands that make the dump, in their order
    other     the command that plans the other side, "" without another side
    then      the npucmp commands after the runs
    size      the size of the dump on a disk, None without an earlier dump
    warnings  what exceeds the disk, and what was removed to fit
    """

    request: DumpRequest
    framework: str
    source: str
    files: dict[str, str]
    script: tuple[ScriptLine, ...]
    run: tuple[str, ...]
    other: str
    then: tuple[str, ...]
    size: Optional[Size]
    notes: tuple[str, ...]
    unverified: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.request.folder


def make_plan(
    request: DumpRequest, framework: Framework, again: list[str], size: Optional[Size], warnings: tuple[str, ...]
) -> Planned:
    """Return the whole plan; `again` are the options that the other side takes too."""
    prepared = fill_template(framework.PLAN, request)
    name = request.question.name
    files = {**prepared.files, RUN: run_sh(request, framework, prepared)}
    run = f"bash {shlex.quote(request.at(RUN))} {prepared.command}"
    other, words = "golden" if request.side == "target" else "target", ["npucmp", "plan", name]
    words += ["--framework", framework.NAME, "--side", other, "-o", _other_folder(request), *again]
    return Planned(
        request=request,
        framework=framework.NAME,
        source=framework.SOURCE,
        files=files,
        script=prepared.script,
        run=(*prepared.steps, run, *([run] if request.question.second == "run" else [])),
        other=shlex.join(words) if request.question.second == "golden" else "",
        then=(_command(request, prepared),),
        size=size,
        notes=(*_of_steps(request, framework), *prepared.notes),
        unverified=prepared.unverified,
        warnings=warnings,
    )


def _command(request: DumpRequest, prepared: DumpInstructions) -> str:
    """Return the npucmp command that follows."""
    name = request.question.name
    own = shlex.quote(request.dump) + (f"/{prepared.found}" if prepared.found else "")
    if request.question.second == "run":
        return f"npucmp {name} {shlex.quote(request.at('run1'))} {shlex.quote(request.at('run2'))} -o {REPORT}"
    if request.question.second != "golden":
        return f"npucmp {name} {own} -o {REPORT}"
    far = shlex.quote(os.path.join(_other_folder(request), DUMP))
    both = (own, far) if request.side == "target" else (far, own)
    layout = f" --layout {shlex.quote(request.layout)}" if request.layout else ""
    return f"npucmp {name} {' '.join(both)}{layout} -o {REPORT}"


def _other_folder(request: DumpRequest) -> str:
    """Return the folder of the other side's plan."""
    own, far = (f"-{side}" for side in ((request.side, "golden" if request.side == "target" else "target")))
    named = os.path.basename(os.path.normpath(request.folder)) not in ("", os.curdir, os.pardir)
    folder = os.path.normpath(request.folder) if named else os.path.abspath(request.folder)
    if request.side == "golden":
        return folder[: -len(own)] if folder.endswith(own) and folder != own else f"{folder}{far}"
    return f"{folder}{far}"


def _of_steps(request: DumpRequest, framework: Framework) -> list[str]:
    found = []
    if framework.SERVES:
        found.append(
            "a step is a forward pass since the start, including warm-up (artificial shapes, no request): npucmp show "
            f"{shlex.quote(request.dump)} lists them, --steps selects others"
        )
    if request.question.name == "overflow" and request.steps:
        found.append("--steps: select the first step with NaN or a falling loss scale, and the step before it")
    if request.question.equal:
        dropout = "" if framework.FORMAT == "msprobe" else ", dropout 0"  # seed_all removes it
        found.append(
            f"use the same weights and the same data in the same order: no shuffling, no augmentation{dropout}"
        )
    if request.layout and not framework.SERVES:
        found.append(
            "record the optimizer step: start before the forward pass, stop after optimizer.step(); without it, faults "
            "of gradient reduction are not decidable"
        )
    if request.question.second == "run":
        found.append(
            "if the runs agree, repeat without these switches to find operators that sum in the order of arrival"
        )
    return found
