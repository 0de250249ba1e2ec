"""The needs of each question on a dump (Question, one per command), the request of a user to `npucmp plan`
(DumpRequest), and the answer of a framework (Prepared).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, NamedTuple

from npucmp.errors import UsageError

VALUES, STATISTICS, MD5, DETECTION = "values", "statistics", "md5", "detection"
Ranges = tuple[tuple[int, int], ...]  # of steps or ranks, both ends included; (): all


class Question(NamedTuple):
    """The needs of a command on a dump.

    kinds   allowed records of a tensor, the default first
    needs   words of NEEDS (sufficiency.py): if one is missing, the command cannot answer, or answers less
    level   msprobe's word: L1 records operators, mix operators and their modules
    steps   first and last step
    equal   the runs must be as equal as possible: seeds, deterministic operators, no dropout
    second  the dump to compare with: "golden", "run" (a repetition), "" for none
    """

    name: str
    kinds: tuple[str, ...]
    needs: str
    level: str = "L1"
    steps: tuple[int, int] = (0, 0)
    equal: bool = False
    second: str = ""


_EVERY = (
    Question(
        "compare",
        (VALUES, STATISTICS, MD5),
        "values sums inputs outputs order apis calls whole",
        equal=True,
        second="golden",
    ),
    Question("overflow", (STATISTICS, VALUES), "figures inputs outputs order apis calls whole"),
    Question("fusion-diff", (VALUES, STATISTICS), "compiled values inputs outputs graph", equal=True, second="golden"),
    Question(
        "rerun-diff", (MD5, VALUES, STATISTICS), "bits inputs outputs order apis calls whole", equal=True, second="run"
    ),
    Question("replay", (VALUES,), "values inputs outputs"),
    Question("check", (VALUES, STATISTICS), "values sums inputs outputs modules steps backward", "mix", (0, 2)),
    Question(
        "precheck",
        (VALUES, STATISTICS, MD5),
        "values sums inputs outputs data steps backward",
        "mix",
        (0, 2),
        False,
        "golden",
    ),
)
QUESTIONS = {one.name: one for one in _EVERY}


SEED = 1234  # the default of msprobe
DUMP = "dump"  # the folder of the dumps, beside run.sh


@dataclass(frozen=True)
class DumpRequest:
    """The request for one side of a comparison, passed to a framework.

    folder  folder of the files, as written by the user; relative paths are relative to where the user starts the run
    kind    what is recorded of each tensor
    names   the requested operators, in the form of the tool; (): all
    model   for offline models the name of the loaded file, without .om
    layout  sizes of the target's parallel layout, as written by the user; "" if they are not stated
    """

    question: Question
    side: str
    folder: str
    kind: str
    steps: Ranges
    ranks: Ranges
    names: tuple[str, ...] = ()
    model: str = "model"
    layout: str = ""

    @property
    def dump(self) -> str:
        """The folder of the dump, as the user will write it."""
        return self.at(DUMP)

    def at(self, name: str) -> str:
        """Return the path of a file of the plan."""
        return os.path.join(self.folder, name)

    @property
    def is_reference(self) -> bool:
        """Return whether this is the reference run, on any device; the golden run of fusion-diff (NPU) is not."""
        return self.side == "golden" and self.question.name != "fusion-diff"

    @property
    def is_unfused(self) -> bool:
        """Return whether this run is made without fusion."""
        return self.question.name == "fusion-diff" and self.side == "golden"


class ScriptLine(NamedTuple):
    """A line for the user's script, and its place."""

    code: str
    where: str = ""


class Export(NamedTuple):
    """A variable of the environment, and its reason; the value may use "$here", the folder of run.sh."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class DumpInstructions:
    """The files and commands that make the dump of one side with one framework.

    files       configurations by name
    script      lines to add, in their order; `exports`, `before` and `after` go into run.sh
    command     an example of the command that run.sh takes
    steps       earlier commands, such as the conversion of a model
    found       the folder of the dump below `dump`, as a shell pattern
    notes       notes for the user
    unverified  facts that no source and no run has confirmed
    """

    files: Mapping[str, str]
    command: str
    script: tuple[ScriptLine, ...] = ()
    exports: tuple[Export, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    found: str = ""
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


EAGER = "operators run one by one and no compiler fuses them: use compare"


def parts(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Convert globs to parts of names, the form of msprobe: "*softmax*" becomes "softmax"."""
    return tuple(_plain(one.strip("*"), one, "parts of names: --ops '*softmax*'") for one in globs)


def exact(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Require full names, the only form that CANN takes."""
    return tuple(_plain(one, one, "full names") for one in globs)


def beginnings(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Convert globs to prefixes of names, the form of ATB: "word*" becomes "word"."""
    for one in globs:
        if "," in one:
            raise UsageError(f"--ops {one}: ATB separates names by commas; repeat --ops for each name")
    return tuple(
        _plain(one[:-1] if one.endswith("*") else one, one, "prefixes of names: --ops 'word*'") for one in globs
    )


def _plain(text: str, glob: str, takes: str) -> str:
    if not text or any(character in text for character in "*?["):
        raise UsageError(
            f"--ops {glob}: the tool expects {takes}; with --from DUMP, any glob selects operators of that dump"
        )
    return text
