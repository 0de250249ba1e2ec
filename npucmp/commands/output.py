"""Show the result of every command by its options: progress bar, screen, files, exit status.

The progress bar on stderr counts bytes and estimates the remaining time. With --baseline REPORT, suspects that an
earlier report lists do not cause exit status 1.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

import click

from npucmp.commands.settings import sources_of
from npucmp.errors import UsageError
from npucmp.presenter import is_chinese
from npucmp.workflows.option_fields import ScreenFields, spell_options

if TYPE_CHECKING:
    from npucmp.model import Result
    from npucmp.model.saved_report import Difference, SavedReport
    from npucmp.report import Form
    from npucmp.report.answer import Answer, Suspects
    from npucmp.report.text_formats import TextOutput

WIDTH = 80  # columns of a picture if stdout is no terminal


def carry_out(
    context: click.Context, parameters: dict[str, Any], work: Callable[..., Result], is_followed: bool = False
) -> None:
    """Run a workflow with its own options, show its result by the others, and exit with its status. If a run is
    followed, --json prints one object per line."""
    names = [one.name for one, _ in spell_options(ScreenFields)]
    screen = ScreenFields(**{name: parameters.pop(name) for name in names if name in parameters})
    folder = screen.output
    resumable = "resume" in parameters
    if resumable and parameters["resume"] and not folder:
        raise UsageError("--resume needs -o DIR, the folder of the interrupted run")
    if resumable and folder:
        parameters["journal"] = folder
    form = _form(screen)
    metrics: list[str] = []
    if screen.metrics:
        from npucmp.report.tables import optional_columns

        metrics = optional_columns(screen.metrics)
    _require_own(context, folder)
    outputs = _outputs(screen)
    with ExitStack() as kept:
        with _errors_written(str(context.info_name), folder, outputs):
            known = _baseline_report(screen.baseline, str(context.info_name), parameters, work)
            is_watched = not screen.quiet and _is_terminal(sys.stderr)
            has_bar = is_watched if screen.show_progress is None else screen.show_progress
            try:
                with bar() if has_bar else nullcontext() as progress:
                    result = replace(work(**parameters, progress=progress), argv=tuple(sys.argv))
            except SystemExit as end:  # by a signal
                if "journal" in parameters:
                    end.args += ("to continue, repeat the command with --resume",)
                raise
            sources = sources_of(context, context.obj or "")
            if sources:
                from npucmp.workflows.options import with_sources

                result = with_sources(result, sources)

            from npucmp.model.comparison import kept_workers
            from npucmp.report import answer_of, load_pages, terminal, write

            if folder:
                load_pages()
            kept.enter_context(kept_workers(result))

            answer = replace(answer_of(result, metrics), folder=folder or "")
            if sources:
                answer = _with_sources_shown(answer, context, sources)
            if known is not None:
                answer = mark_known(answer, known)
            if folder:
                from npucmp.report.tables import with_table_files

                answer = with_table_files(answer, screen.parts, screen.parquet)
            if answer.result.exit_status == 2:
                answer = _with_missing_data(answer, parameters)
            for output in outputs:
                if output.file is not None:
                    from npucmp.report.text_formats import write_text

                    write_text(answer, output)
        files = write(answer, folder, form) if folder else []
    if folder and "journal" in parameters and not result.partial:
        from npucmp.measure import checkpoint

        checkpoint.remove(folder)  # its measurements are in the report now
    printed = next((one.format for one in outputs if one.file is None), "text")
    if printed == "json":
        from npucmp.report import json

        data = json.content(answer)
        text = (json.with_files(data, [file.name for file in files]) if files else data).decode()
        if is_followed:
            from npucmp.follow.report import json_end

            text = json_end(text)
        write_stdout(text)
    elif printed != "text":
        from npucmp.report.text_formats import content_of

        write_stdout(content_of(answer, printed).decode("utf-8", "backslashreplace"))
    elif not screen.quiet:
        paint, columns = terminal.colours(shows_colour(screen.color)), width()
        shown = terminal.render(answer, screen.top, files, paint, screen.verbose, columns or WIDTH)
        shown = terminal.wrap_text(localised(shown, answer), columns, is_chinese())
        write_stdout(shown, is_needed=not folder, is_translated=False)
    result.close()
    context.exit(answer.result.exit_status)


@contextmanager
def _errors_written(command: str, folder: Optional[str], outputs: Sequence[TextOutput]) -> Iterator[None]:
    """Write the error that ends a command where its result was to be written."""
    try:
        yield
    except BaseException as error:
        from npucmp.report.error_object import write_error

        write_error(error, command, folder, outputs)
        raise


def _outputs(screen: ScreenFields) -> list[TextOutput]:
    """Return the formats of --report-format, --json and --junit; wrong ones are refused before a dump is read."""
    words = [
        *screen.report_format,
        *(["json"] if screen.json else []),
        *([f"junit={screen.junit}"] if screen.junit else []),
    ]
    if not words:
        return []
    from npucmp.report.text_formats import parse_outputs

    return parse_outputs(words)


def _with_sources_shown(answer: Answer, context: click.Context, sources: dict[str, str]) -> Answer:
    """Return the answer with the options from settings and environment at its head and in summary.json."""
    names = {max(one.opts, key=len).lstrip("-"): one.name or "" for one in context.command.params}
    words = [f"{name} {_value_words(context.params.get(names[name]))}({at})" for name, at in sources.items()]
    facts = answer.facts
    return replace(answer, head=[f"settings {', '.join(words)}"], facts=lambda: {**facts(), "sources": sources})


def _value_words(value: Any) -> str:
    """Return the value of an option; "" for a flag and for a value that is no text or number."""
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return f"{value} " if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""


def _require_own(context: click.Context, folder: Optional[str]) -> None:
    """Refuse an output folder that is also an input.

    Raises UsageError."""
    paths = [context.params.get(one.name or "") for one in context.command.params if isinstance(one, click.Argument)]
    words = [word for path in paths for word in (path if isinstance(path, tuple) else (path,)) if word]
    if folder and os.path.isdir(folder) and any(os.path.realpath(word) == os.path.realpath(folder) for word in words):
        raise UsageError(f"-o {folder}: the folder is an input; name another folder")


def _baseline_report(
    folder: Optional[str], command: str, parameters: dict[str, Any], work: Callable[..., Result]
) -> Any:
    """Return the report that --baseline names, and compare its options with the given ones before tensors are measured;
    None without --baseline."""
    if folder is None:
        return None
    from npucmp.workflows.decisive_options import require_settings
    from npucmp.workflows.diff import baseline

    found = baseline(folder, command, parameters.get("limits"))
    kind = getattr(getattr(work, "func", None), "options", None)
    if kind is not None:
        require_settings(found, kind, parameters)
    return found


def _with_missing_data(answer: Answer, parameters: dict[str, Any]) -> Answer:
    """Return the answer of an undecided command, with the data that its dumps lack (as npucmp show --fit)."""
    from npucmp.plans.workflow import lacks
    from npucmp.workflows.select_runs import RunSelection

    choice = RunSelection(
        **{name: parameters[name] for name in ("format", "step", "rank", "limits") if name in parameters}
    )
    if getattr(answer.result, "weights", None) is not None:  # a checkpoint records no operators
        return answer
    more = lacks(answer.result.command, answer.result.paths, choice)
    return replace(answer, remarks=lambda folder: [*answer.remarks(folder), *more]) if more else answer


def write_stdout(text: str, is_needed: bool = True, is_translated: bool = True) -> None:
    """Write text to stdout, in the language of the user unless it is in that language already. If stdout was closed
    before the start and the text is needed, raise OSError."""
    if sys.stdout is None and is_needed:
        raise OSError(errno.EBADF, "closed, so the result cannot be printed", "standard output")
    click.echo(localised(text) if is_translated else text, nl=False, color=True)


def localised(text: str, answer: Optional[Answer] = None) -> str:
    """Return the text of a screen in the language of the user; JSON and the names of an answer are unchanged."""
    if not is_chinese():
        return text
    from npucmp.report import chinese

    if answer is not None:
        chinese.keep_names(answer)
    return chinese.screen(text)


def shows_colour(wanted: Optional[str]) -> bool:
    """Return whether to colour: by --color always or never; auto by NO_COLOR (no-color.org), FORCE_COLOR and isatty."""
    if wanted in ("always", "never"):
        return wanted == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal(sys.stdout)


def width() -> int:
    """Return the columns of the terminal of stdout; 0 if it is no terminal, so that lines are not wrapped."""
    if not _is_terminal(sys.stdout):
        return 0
    from shutil import get_terminal_size

    return get_terminal_size((0, 0)).columns


def _form(screen: ScreenFields) -> Form:
    """Return the form of the files. A missing folder or package is reported before a dump is read."""
    from npucmp.report import Form

    if not screen.output:
        for name in ("xlsx", "excel"):
            if getattr(screen, name):
                raise UsageError(f"--{name} needs -o DIR, the folder for the files")
        for name in ("parts", "parquet"):
            if getattr(screen, name):
                option = f"--{name}"
                raise UsageError(f"{option} needs -o DIR, the folder of the report")
    if screen.xlsx:
        from npucmp.report import xlsx

        xlsx.require()
    if screen.parquet:
        from npucmp.report import parquet

        parquet.require()
    return Form(screen.excel, screen.xlsx)


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal. A stream that was closed before the start is None."""
    return stream is not None and bool(stream.isatty())


def mark_known(answer: Answer, baseline: SavedReport) -> Answer:
    """Return the answer with known suspects marked; the exit status is 1 only for suspects that are not known."""
    from npucmp.report import diff, notebook
    from npucmp.report.answer import Listing
    from npucmp.workflows.diff import compare_reports, is_in_baseline
    from npucmp.workflows.report_reader import of_files

    result = answer.result
    strict = bool(getattr(result, "strict", False))
    found = compare_reports(baseline, of_files(notebook.files(answer)), strict)
    result = replace(result, known=is_in_baseline(result, found) and not _is_newly_worse(result, baseline))
    counts = {kind: len(suspects) for kind, suspects in diff.by_kind(found).items()}
    facts = {"path": baseline.path, "excused": result.known, **counts}
    listed = Listing("new", [diff.one_line(one) for one in (found.new or found.worse)], "summary.json")
    return replace(
        answer,
        result=result,
        suspects=_mark_known(answer.suspects, found),
        notes=[*answer.notes, listed, Listing("baseline", [_words(found, baseline, result.exit_status)], "")],
        facts=lambda: {**answer.facts(), "baseline": facts},
    )


def _is_newly_worse(result: Result, baseline: SavedReport) -> bool:
    """Return whether the truth accuses an operator that it did not accuse in the baseline."""
    runs = getattr(result, "three_runs", None)
    if runs is None or not runs.is_worse:
        return False
    before = baseline.summary.get("truth")
    rows = before.get("worse") if isinstance(before, dict) else None
    known = {row.get("op") for row in rows if isinstance(row, dict)} if isinstance(rows, list) else set()
    return not runs.worse or any(runs.rows[place].op not in known for place in runs.worse)


def _words(found: Difference, baseline: SavedReport, status: int) -> str:
    from npucmp.report.phrases import count_of

    words = [f"{len(found.same)} known", f"{len(found.new)} new"]
    words += [f"{count_of(len(found.worse), 'tensor')} worse"] if found.worse else []
    words += [f"{len(found.gone)} gone"] if found.gone else []
    return f"{', '.join(words)}, compared with {baseline.path}: exit status {status}"


def _mark_known(suspects: Suspects, found: Difference) -> Suspects:
    """Return the suspects with known ones marked; a suspect of several steps and ranks is known if all of them are."""
    from npucmp.report.sanitise import escape_formula

    new = {(one.key.op, one.key.slot) for one in (*found.new, *found.worse)}
    first = [
        suspect._replace(known=(escape_formula(suspect.op), escape_formula(suspect.slot)) not in new)
        for suspect in suspects.first
    ]
    return suspects._replace(first=first)


@contextmanager
def bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function (bytes done, bytes in all) that draws the bar."""
    from tqdm import tqdm

    with tqdm(unit="B", unit_scale=True, desc="measuring", leave=False, delay=0.5) as drawn:

        def update(done: int, total: int) -> None:
            drawn.total = total
            drawn.update(done - drawn.n)

        yield update
