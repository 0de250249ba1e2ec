"""Make the report of a Result: Result → Answer → files and screen.

The module report.py of a feature makes the Answer of its command: its words. REPORTS names the presenters that write
the files of any Answer; each is a module of this package with
    render(answer) -> {file name: content}
terminal.py writes the same Answer to a screen. A presenter knows no command, and an Answer knows no presenter.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from npucmp.errors import DumpError
from npucmp.model import Result
from npucmp.report.answer import Answer

ANSWERS = {  # command of a feature → the module that makes its Answer; those of the others stand in this package
    "check": "health.report",
    "follow": "follow.report",
    "fusion-diff": "fusion.report",
    "overflow": "overflows.report",
    "parity": "token_parity.report",
    "plan": "plans.report",
    "precheck": "comparability.report",
    "replay": "recompute.report",
    "rerun-diff": "reruns.report",
    "ticket": "tickets.report",
}
REPORTS = ("csv", "json", "html")
PAGES = "html"  # rendered first: the pages of steps and ranks also make their rows of the tables


def answer_of(result: Result, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a result, made by the module of its command; metrics are further columns of tensors.csv."""
    module: Any = import_module(_module_of(result.command))
    answer: Answer = module.answer(result, metrics)
    return answer


def _module_of(command: str) -> str:
    return f"npucmp.{ANSWERS.get(command, f'report.{command}')}"


def present(result: Result, how: str, *more: str) -> Any:
    """Return what a function of notebook.py makes of a result: its words, a line, HTML, a table or its summary."""
    from npucmp.report import notebook

    module: Any = import_module(_module_of(result.command))
    if how == "frame" and not any(more) and hasattr(module, "first_table"):
        table = module.first_table(result)
        if table is not None:
            return notebook.frame_of(table.columns(), table.names)
    return getattr(notebook, how)(answer_of(result), *more)


class Form(NamedTuple):
    """The optional forms of tables: CSV with a byte-order mark, by which Excel detects UTF-8, and a workbook."""

    excel: bool = False
    xlsx: bool = False


def render(answer: Answer, form: Form = Form()) -> dict[str, Any]:
    """Return all files of a report by name: bytes, or an object that makes them piece by piece (files.ConcatFile)."""
    from npucmp.report import json
    from npucmp.report.files import LAST, after

    names = (*REPORTS, "xlsx") if form.xlsx else REPORTS
    modules: dict[str, Any] = {name: import_module(f"{__name__}.{name}") for name in names}
    made = {name: modules[name].render(answer) for name in sorted(names, key=lambda name: name != PAGES)}
    found = {name: data for module in names for name, data in made[module].items()}
    if form.excel:
        found.update((name, after(BOM_UTF8, data)) for name, data in found.items() if name.endswith(".csv"))
    return {**found, LAST: json.with_files(found[LAST], found)}


def load_pages() -> None:
    """Import the modules of pages and of their tables, which workers that are forked later share."""
    from npucmp.localise import rank_digest  # noqa: F401
    from npucmp.plans import dump_config, next_dump  # noqa: F401
    from npucmp.report import html, matrix, rank_tables, same_cause  # noqa: F401

    html.load_template()


def write(answer: Answer, directory: str | os.PathLike[str], form: Form = Form()) -> list[Path]:
    """Write every report file below `directory`, which is created. All files appear together or none does (files.py).

    Raises DumpError if the directory cannot be written.
    """
    from npucmp.report import files

    folder, found = Path(directory), render(answer, form)
    try:
        files.write(folder, found)
    except OSError as error:
        raise DumpError(folder, f"the report was not written: {error.strerror or error}") from None
    return [folder / name for name in found]


def write_reports(
    result: Result,
    directory: str | os.PathLike[str],
    metrics: Sequence[str] = (),
    excel: bool = False,
    xlsx: bool = False,
    parts: bool = False,
    parquet: bool = False,
) -> list[Path]:
    """Write the report of a result, as `npucmp … -o directory` does.

    metrics  further columns of tensors.csv: ["snr", "gain"], or as on the command line ("snr,gain")
    excel    write CSV files with a byte-order mark, by which Excel detects UTF-8
    xlsx     write report.xlsx too; needs XlsxWriter
    parts    write a file of tensors for each step and rank, tensors-0-3.csv …
    parquet  write tensors.parquet instead of tensors.csv; needs pyarrow

        npucmp.write_reports(npucmp.compare("npu_dump", "gpu_dump"), "report", metrics="snr,gain")
    """
    from npucmp.model.comparison import kept_workers
    from npucmp.report.tables import optional_columns, with_table_files

    if parquet:
        from npucmp.report.parquet import require

        require()
    wanted = optional_columns(metrics)
    load_pages()
    with kept_workers(result):
        return write(with_table_files(answer_of(result, wanted), parts, parquet), directory, Form(excel, xlsx))


def write_junit(result: Result, file: str | os.PathLike[str]) -> Path:
    """Write JUnit XML for continuous integration, as `npucmp … --junit file` does: one case per suspect and rule.

    npucmp.write_junit(npucmp.check("npu_dump"), "npucmp.xml")
    """
    return write_format(result, "junit", file)


def write_format(result: Result, format: str, file: str | os.PathLike[str]) -> Path:
    """Write a result in a format of --report-format: text, json, jsonl, sarif, github, junit, markdown.

    Raises UsageError for an unknown format, DumpError if the file cannot be written.

        npucmp.write_format(npucmp.compare("npu_dump", "gpu_dump"), "sarif", "npucmp.sarif")
    """
    from npucmp.report.text_formats import TextOutput, write_text

    return write_text(answer_of(result), TextOutput(format, os.fspath(file)))
