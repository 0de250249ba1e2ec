"""Report → text. A presenter reads the Report and nothing else.

REPORTS name the presenters that write the files of a comparison, OVERFLOWS those of a search for overflows; each is a
module of this package with NAME and
    render(report, metrics) -> {file name: text}
terminal.py and overflow_terminal.py show the same on a screen.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Iterator, Sequence, Union

from npucmp.errors import DumpError
from npucmp.model import Overflow, Report

REPORTS = ("tables", "fusion", "rerun", "json", "html")
OVERFLOWS = ("overflow", "html")


def write_reports(
    report: Union[Report, Overflow], directory: "str | os.PathLike[str]", metrics: Sequence[str] = ()
) -> list[Path]:
    """Writes every report file below `directory`, which is created. They appear together or not at all (files.py).

    metrics are names of further columns for tensors.csv. Raises DumpError if the directory cannot be written.
    """
    from npucmp.report import files

    folder = Path(directory)
    with _uncollected():
        texts = {
            name: text for presenter in presenters(report) for name, text in presenter.render(report, metrics).items()
        }
    try:
        files.write(folder, texts)
    except OSError as error:
        raise DumpError(folder, f"the report was not written: {error.strerror or error}") from None
    return [folder / name for name in texts]


def presenters(report: Union[Report, Overflow]) -> list[ModuleType]:
    """What writes its files; imported when there is something to write."""
    return [import_module(f"{__name__}.{name}") for name in (OVERFLOWS if isinstance(report, Overflow) else REPORTS)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which takes a third of the time to look at a hundred thousand cells again and
    again: what presenters make refers to nothing in circles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
