"""How every result is shown, by the options that say how: the screen, the files, the exit status."""

from __future__ import annotations

import errno
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from npucmp.errors import UsageError
from npucmp.model import Result
from npucmp.model.collector import uncollected

if TYPE_CHECKING:
    from npucmp.report import Form
    from npucmp.report.answer import Answer


@uncollected()
def carry_out(context: click.Context, given: "dict[str, Any]", work: "Callable[..., Result]") -> None:
    """Runs a workflow with what is left of the options, shows its result, and exits with its status."""
    from npucmp.commands.progress import bar

    folder, quiet, wanted, top, verbose = map(given.pop, ("output", "quiet", "progress", "top", "verbose"))
    given["format"] = given.pop("format_")
    resumable = "resume" in given
    if resumable and given["resume"] and not folder:
        raise UsageError("--resume needs -o DIR, the folder of the interrupted run")
    if resumable and folder:
        given["journal"] = folder
    form = _form(given.pop("excel"), given.pop("xlsx"), folder)
    metrics = _columns(given.pop("metrics", None))
    parts, parquet = _layout(folder, bool(given.pop("parts", False)), bool(given.pop("parquet", False)))
    with bar(not quiet and _is_terminal(sys.stderr) if wanted is None else wanted) as progress:
        result = replace(work(**given, progress=progress), argv=tuple(sys.argv))

    from npucmp.report import answer_of, terminal, write
    from npucmp.report.layout import laid_out

    answer = laid_out(answer_of(result, metrics), parts, parquet)
    if result.exit_status == 2:
        answer = _with_what_lacks(answer, given)
    files = write(answer, folder, form) if folder else []
    if "journal" in given and not result.partial:
        from npucmp.measure import journal

        journal.remove(folder)  # its measurements are in the report now
    if not quiet:
        paint = terminal.colours(_is_terminal(sys.stdout))
        width = shutil.get_terminal_size().columns
        tell(terminal.render(answer, top, files, paint, verbose, width), is_needed=not folder)
    result.close()
    context.exit(result.exit_status)


def _with_what_lacks(answer: "Answer", given: "dict[str, Any]") -> "Answer":
    """The answer of a command that could not decide, and which dump lacks what for it (npucmp show --fit)."""
    from npucmp.workflows.plan import lacks
    from npucmp.workflows.runs import Choice

    choice = Choice(**{name: given[name] for name in ("format", "step", "rank", "limits") if name in given})
    more = lacks(answer.result.command, answer.result.paths, choice)
    return replace(answer, remarks=lambda folder: [*answer.remarks(folder), *more]) if more else answer


def tell(text: str, is_needed: bool = True) -> None:
    """Text for stdout. Where that was closed before the start nobody is told: an OSError, if nothing else tells it."""
    if sys.stdout is None and is_needed:
        raise OSError(errno.EBADF, "closed: nobody is told", "standard output")
    click.echo(text, nl=False, color=True)


def _form(excel: bool, xlsx: bool, folder: Optional[str]) -> "Form":
    """How files are written; what is missing for it is told before anything is read."""
    from npucmp.report import Form

    if (excel or xlsx) and not folder:
        raise UsageError(f"--{'xlsx' if xlsx else 'excel'} needs -o DIR, the folder for the files")
    if xlsx:
        from npucmp.report.xlsx import require

        require()
    return Form(excel, xlsx)


def _layout(folder: Optional[str], parts: bool, parquet: bool) -> "tuple[bool, bool]":
    """--parts and --parquet, which are known not to work before anything is read."""
    if (parts or parquet) and not folder:
        raise UsageError(f"{'--parts' if parts else '--parquet'} needs -o DIR, the folder of the report")
    if parquet:
        from npucmp.report.parquet import require

        require()
    return parts, parquet


def _columns(names: Optional[str]) -> "list[str]":
    """The columns that --metrics asks for, in the order of the table."""
    if not names:
        return []
    import difflib

    from npucmp.measure.metrics import METRICS

    known = [metric.name for metric in METRICS]
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise UsageError(f"no metric {name!r}", difflib.get_close_matches(name, known) or known)
    return [metric.name for metric in METRICS if metric.name in asked and not metric.always]


def _is_terminal(stream: Any) -> bool:
    """Whether somebody looks at it; a stream that was closed before the start is None."""
    return stream is not None and bool(stream.isatty())
