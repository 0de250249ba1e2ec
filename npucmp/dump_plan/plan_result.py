"""A plan: the files, the lines for the script, the commands to run, and the npucmp command that follows."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Optional

from npucmp.dump_plan.request import DUMP, DumpRequest, Framework, Prepared, ScriptLine
from npucmp.dump_plan.run_script import RUN, run_sh
from npucmp.dump_plan.size import Size

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

    asked: DumpRequest
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
        return self.asked.folder


def planned(
    asked: DumpRequest, framework: Framework, again: list[str], size: Optional[Size], warnings: tuple[str, ...]
) -> Planned:
    """Return the whole plan; `again` are the options that the other side takes too."""
    prepared = framework.prepare(asked)
    name = asked.question.name
    files = {**prepared.files, RUN: run_sh(asked, framework, prepared)}
    run = f"bash {shlex.quote(asked.at(RUN))} {prepared.command}"
    other, words = "golden" if asked.side == "target" else "target", ["npucmp", "plan", name]
    words += ["--framework", framework.NAME, "--side", other, "-o", _other_folder(asked), *again]
    return Planned(
        asked=asked,
        framework=framework.NAME,
        source=framework.SOURCE,
        files=files,
        script=prepared.script,
        run=(*prepared.steps, run, *([run] if asked.question.second == "run" else [])),
        other=shlex.join(words) if asked.question.second == "golden" else "",
        then=(_command(asked, prepared),),
        size=size,
        notes=(*_of_steps(asked, framework), *prepared.notes),
        unverified=prepared.unverified,
        warnings=warnings,
    )


def _command(asked: DumpRequest, prepared: Prepared) -> str:
    """Return the npucmp command that follows."""
    name = asked.question.name
    own = shlex.quote(asked.dump) + (f"/{prepared.found}" if prepared.found else "")
    if asked.question.second == "run":
        return f"npucmp {name} {shlex.quote(asked.at('run1'))} {shlex.quote(asked.at('run2'))} -o {REPORT}"
    if asked.question.second != "golden":
        return f"npucmp {name} {own} -o {REPORT}"
    far = shlex.quote(os.path.join(_other_folder(asked), DUMP))
    both = (own, far) if asked.side == "target" else (far, own)
    return f"npucmp {name} {' '.join(both)} -o {REPORT}"


def _other_folder(asked: DumpRequest) -> str:
    """Return the folder of the other side's plan."""
    own, far = (f"-{side}" for side in ((asked.side, "golden" if asked.side == "target" else "target")))
    named = os.path.basename(os.path.normpath(asked.folder)) not in ("", os.curdir, os.pardir)
    folder = os.path.normpath(asked.folder) if named else os.path.abspath(asked.folder)
    if asked.side == "golden":
        return folder[: -len(own)] if folder.endswith(own) and folder != own else f"{folder}{far}"
    return f"{folder}{far}"


def _of_steps(asked: DumpRequest, framework: Framework) -> list[str]:
    found = []
    if framework.SERVES:
        found.append(
            "a step is a forward pass since the start, including warm-up (artificial shapes, no request): npucmp show "
            f"{shlex.quote(asked.dump)} lists them, --steps selects others"
        )
    if asked.question.name == "overflow" and asked.steps:
        found.append("--steps: select the first step with NaN or a falling loss scale, and the step before it")
    if asked.question.equal:
        dropout = "" if framework.FORMAT == "msprobe" else ", dropout 0"  # seed_all removes it
        found.append(
            f"use the same weights and the same data in the same order: no shuffling, no augmentation{dropout}"
        )
    if asked.question.second == "run":
        found.append(
            "if the runs agree, repeat without these switches to find operators that sum in the order of arrival"
        )
    return found
