"""What a user asks of `npucmp plan`, and what a framework answers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Protocol

from npucmp.dump_plan.questions import Question, Ranges
from npucmp.errors import UsageError

SEED = 1234  # msprobe's own
DUMP = "dump"  # the folder beside run.sh into which dumps go


@dataclass(frozen=True)
class Asked:
    """One side of a question to a framework.

    folder  where the files go, as the user wrote it: relative paths hold where the user starts the run
    kind    what is recorded of each tensor
    names   the operators that are meant, as the tool takes them; none: all
    model   of offline models: the name of the file that is loaded, without .om
    """

    question: Question
    side: str
    folder: str
    kind: str
    steps: Ranges
    ranks: Ranges
    names: tuple[str, ...] = ()
    model: str = "model"

    @property
    def dump(self) -> str:
        """Where the dump goes, as the user will name it."""
        return self.at(DUMP)

    def at(self, name: str) -> str:
        """A file of the plan."""
        return os.path.join(self.folder, name)

    @property
    def is_reference(self) -> bool:
        """Whether this is the run that is to be right, on whatever device; without fusion it is one on the NPU."""
        return self.side == "golden" and self.question.name != "fusion-diff"

    @property
    def is_unfused(self) -> bool:
        """Whether this is the run that is to be made without fusion."""
        return self.question.name == "fusion-diff" and self.side == "golden"


class Line(NamedTuple):
    """A line for the user's script, and where it goes."""

    code: str
    where: str = ""


class Export(NamedTuple):
    """A variable of the environment, and why; its value may use "$here", the folder of run.sh."""

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Prepared:
    """What makes the dump of one side with one framework.

    files       configurations by name
    script      lines to add, in their order; `exports`, `before` and `after` go into run.sh
    command     what run.sh is given, for example
    steps       commands before that, such as the conversion of a model
    found       the folder of the dump below `dump`, a pattern of the shell
    notes       what the user has to know
    unverified  what no source or run has confirmed
    """

    files: Mapping[str, str]
    command: str
    script: tuple[Line, ...] = ()
    exports: tuple[Export, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    found: str = ""
    notes: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


class Framework(Protocol):
    """A module of frameworks/.

    FORMAT   of the dumps that it makes, by npucmp's name
    KINDS    what it can record of a tensor; `DETECTION` where the device itself tells what overflows; REFERENCE is what
             its reference can, on whatever device
    REFUSED  questions that it cannot answer: why, and what to ask instead
    SERVES   it answers requests: a run has to be stopped, and the first steps may be warming up
    """

    NAME: str
    ABOUT: str
    SOURCE: str
    FORMAT: str
    KINDS: tuple[str, ...]
    REFERENCE: tuple[str, ...]
    REFUSED: Mapping[str, str]
    SERVES: bool

    def prepare(self, asked: Asked) -> Prepared: ...

    def named(self, globs: tuple[str, ...]) -> tuple[str, ...]: ...


EAGER = "operators run one by one here, no compiler fuses them: ask compare"


def parts(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Globs as parts of names, which is what msprobe takes: "*softmax*" is "softmax"."""
    return tuple(_plain(one.strip("*"), one, "parts of names: --ops '*softmax*'") for one in globs)


def exact(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Names in full, which is all that CANN takes."""
    return tuple(_plain(one, one, "names in full") for one in globs)


def beginnings(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Globs as beginnings of names, which is what ATB takes: "word*" is "word"."""
    for one in globs:
        if "," in one:
            raise UsageError(f"--ops {one}: ATB separates names by commas; give --ops once for each")
    return tuple(_plain(one[:-1] if one.endswith("*") else one, one, "beginnings: --ops 'word*'") for one in globs)


def _plain(text: str, glob: str, takes: str) -> str:
    if not text or any(character in text for character in "*?["):
        raise UsageError(
            f"--ops {glob}: the tool takes {takes}; with --from DUMP any glob names operators of that dump"
        )
    return text


def seeded(asked: Asked, *, on_npu: bool) -> tuple[Export, ...]:
    """What the environment does for runs that are to be equal."""
    if not asked.question.second:
        return ()
    found = [Export("PYTHONHASHSEED", str(SEED), "sets and dicts of text in the same order")]
    if asked.question.equal:
        found.append(
            Export("HCCL_DETERMINISTIC", "true", "collectives add in the same order")
            if on_npu
            else Export("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "products add in the same order on a GPU")
        )
    if asked.question.name == "compare" and not on_npu:
        found.append(Export("NVIDIA_TF32_OVERRIDE", "0", "float32 stays float32 on a GPU: no TF32 in the reference"))
    return tuple(found)
