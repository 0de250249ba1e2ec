"""Report → text. A presenter reads the Report and nothing else.

REPORTS are the presenters that write the files of a comparison, OVERFLOWS those of a search for overflows; each is a
module with NAME and
    render(report, metrics) -> {file name: text}
terminal.py and overflow_terminal.py show the same on a screen.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Sequence, Union

from npucmp.errors import DumpError
from npucmp.model import Overflow, Report
from npucmp.report import files, fusion, html, json, overflow, rerun, tables

REPORTS: tuple[ModuleType, ...] = (tables, fusion, rerun, json, html)
OVERFLOWS: tuple[ModuleType, ...] = (overflow, html)


def write_reports(
    report: Union[Report, Overflow], directory: "str | os.PathLike[str]", metrics: Sequence[str] = ()
) -> list[Path]:
    """Writes every report file below `directory`, which is created. They appear together or not at all (files.py).

    metrics are names of further columns for tensors.csv. Raises DumpError if the directory cannot be written.
    """
    folder = Path(directory)
    presenters = OVERFLOWS if isinstance(report, Overflow) else REPORTS
    texts = {name: text for presenter in presenters for name, text in presenter.render(report, metrics).items()}
    try:
        files.write(folder, texts)
    except OSError as error:
        raise DumpError(folder, f"the report was not written: {error.strerror or error}") from None
    return [folder / name for name in texts]
