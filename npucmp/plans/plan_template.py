"""The plan of a framework as a template: rows of text, each with the requests in which it stands; `fill_template` fills
it.

A row stands if all words of its `when` hold for the request; `!word` must not hold. The words:

    target, golden       the side
    values, statistics, md5, detection      what is recorded
    compare, overflow …  the question
    two-runs             another dump is compared with this one: of the reference (golden-pair), or of a repetition
    equal                the runs must be as equal as possible
    unfused              this run is made without fusion
    steps, ranks, names  some are selected
    layout               the parallel layout of the target is stated

Texts are formats of Python. Their fields are {dump}, the folder of the dump; {at[FILE]}, the path of a file of the
plan; {seed}, {steps}; and those of `Template.fields`. Text of a user is quoted: {dump!r} in Python, by `fields` else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional, Protocol, TypeVar

from npucmp.plans import tool_configs
from npucmp.plans.request import (
    DETECTION,
    MD5,
    QUESTIONS,
    SEED,
    STATISTICS,
    VALUES,
    DumpInstructions,
    DumpRequest,
    Export,
    ScriptLine,
)


class Row(NamedTuple):
    """A line, note or part of a command; `where` is the place of a line in the user's script."""

    text: str
    where: str = ""
    when: str = ""


class Variable(NamedTuple):
    """A variable of the environment, as in Export."""

    name: str
    value: str
    why: str
    when: str = ""


class ConfigFile(NamedTuple):
    """A configuration in JSON."""

    name: str
    content: Callable[[DumpRequest], dict[str, Any]]
    when: str = ""


def no_fields(request: DumpRequest) -> dict[str, str]:
    """Return no field beyond those of every template."""
    return {}


@dataclass(frozen=True)
class Template:
    """A Prepared before it is filled. The rows of a command are joined by blanks.

    fields     further fields of the texts
    reference  the plan of the reference run, if another tool makes its dump
    """

    command: tuple[Row, ...]
    files: tuple[ConfigFile, ...] = ()
    script: tuple[Row, ...] = ()
    exports: tuple[Variable, ...] = ()
    before: tuple[Row, ...] = ()
    after: tuple[Row, ...] = ()
    steps: tuple[tuple[Row, ...], ...] = ()
    found: str = ""
    notes: tuple[Row, ...] = ()
    unverified: tuple[str, ...] = ()
    fields: Callable[[DumpRequest], Mapping[str, str]] = no_fields
    reference: Optional[Template] = None


class Framework(Protocol):
    """The interface of a module of frameworks/.

    FORMAT   format of its dumps, by npucmp's name
    KINDS    what it can record of a tensor; `DETECTION` if the device itself detects overflows; REFERENCE lists what
             the reference run can record, on any device
    REFUSED  unsupported questions: the reason, and an alternative
    SERVES   it serves requests: the user has to stop the run, and the first steps may be warm-up
    PLAN     the files, lines and commands that make the dump
    """

    NAME: str
    ABOUT: str
    SOURCE: str
    FORMAT: str
    KINDS: tuple[str, ...]
    REFERENCE: tuple[str, ...]
    REFUSED: Mapping[str, str]
    SERVES: bool
    PLAN: Template

    def named(self, globs: tuple[str, ...]) -> tuple[str, ...]: ...


AnyRow = TypeVar("AnyRow", Row, Variable)


def only(when: str, rows: Iterable[AnyRow]) -> tuple[AnyRow, ...]:
    """Return rows that stand only if these words hold too."""
    return tuple(row._replace(when=f"{when} {row.when}") for row in rows)


def _words_of(request: DumpRequest) -> dict[str, bool]:
    """Return all words of the module's docstring, and whether they hold for a request."""
    question = request.question
    return {
        **{side: side == request.side for side in ("target", "golden")},
        **{kind: kind == request.kind for kind in (VALUES, STATISTICS, MD5, DETECTION)},
        **{name: name == question.name for name in QUESTIONS},
        "two-runs": question.second != "",
        "golden-pair": question.second == "golden",
        "equal": question.equal,
        "unfused": request.is_unfused,
        "steps": request.steps != (),
        "ranks": request.ranks != (),
        "names": request.names != (),
        "layout": request.layout != "",
    }


def fill_template(template: Template, request: DumpRequest) -> DumpInstructions:
    """Return the plan of one request."""
    if request.is_reference and template.reference is not None:
        return fill_template(template.reference, request)
    words = _words_of(request)
    fields = {
        "dump": request.dump,
        "at": {file.name: request.at(file.name) for file in template.files},
        "seed": SEED,
        "steps": tool_configs.format_ranges(request.steps),
        **template.fields(request),
    }

    def applies(when: str) -> bool:
        return all(words[word.lstrip("!")] is not word.startswith("!") for word in when.split())

    def texts(rows: Iterable[Row]) -> tuple[str, ...]:
        return tuple(row.text.format_map(fields) for row in rows if applies(row.when))

    script = (row for row in template.script if applies(row.when))
    return DumpInstructions(
        files={one.name: tool_configs.text_of(one.content(request)) for one in template.files if applies(one.when)},
        command=" ".join(texts(template.command)),
        script=tuple(ScriptLine(row.text.format_map(fields), row.where) for row in script),
        exports=tuple(Export(one.name, one.value, one.why) for one in template.exports if applies(one.when)),
        before=texts(template.before),
        after=texts(template.after),
        steps=tuple(" ".join(texts(rows)) for rows in template.steps),
        found=template.found,
        notes=texts(template.notes),
        unverified=template.unverified,
    )


# Variables of runs that must be equal, by the device of the run.
_HASHES = Variable("PYTHONHASHSEED", str(SEED), "sets and dicts of text in the same order", "two-runs")
SEEDED_NPU = (_HASHES, Variable("HCCL_DETERMINISTIC", "true", "collectives sum in the same order", "equal"))
SEEDED_GPU = (
    _HASHES,
    Variable("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "products sum in the same order on a GPU", "equal"),
    Variable("NVIDIA_TF32_OVERRIDE", "0", "float32 stays float32 on a GPU: no TF32 in the reference", "compare"),
)
SEEDED = (*only("target", SEEDED_NPU), *only("!target", SEEDED_GPU))

MAKE_FOLDER = Row('mkdir -p "$here/dump"')
