"""Report → text. A presenter reads the Report and nothing else.

REPORTS are the presenters that write the files of a comparison, OVERFLOWS those of a search for overflows; each is a
module with NAME and
    render(report, metrics) -> {file name: text}
terminal.py and overflow_terminal.py show the same on a screen.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Sequence, Union

from npucmp.errors import DumpError
from npucmp.model import Overflow, Report
from npucmp.report import fusion, json, overflow, rerun, tables

REPORTS: tuple[ModuleType, ...] = (tables, fusion, rerun, json)
OVERFLOWS: tuple[ModuleType, ...] = (overflow,)


def write_reports(
    report: Union[Report, Overflow], directory: "str | os.PathLike[str]", metrics: Sequence[str] = ()
) -> list[Path]:
    """Writes every report file below `directory`, which is created. All of them are complete before any appears.

    metrics are names of further columns for tensors.csv. Raises DumpError if the directory cannot be written.
    """
    folder = Path(directory)
    presenters = OVERFLOWS if isinstance(report, Overflow) else REPORTS
    texts = {name: text for presenter in presenters for name, text in presenter.render(report, metrics).items()}
    waiting: list[tuple[str, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            waiting.append((_written(folder, text), folder / name))
        while waiting:
            os.replace(*waiting[0])
            waiting.pop(0)
    except OSError as error:
        raise DumpError(folder, f"the report was not written: {error.strerror or error}") from None
    finally:
        for temporary, _ in waiting:
            Path(temporary).unlink(missing_ok=True)
    return [folder / name for name in texts]


def _written(folder: Path, text: str) -> str:
    """A complete temporary file beside its later name, so that replacing it is one step."""
    handle, name = tempfile.mkstemp(prefix=".npucmp-", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644 & ~_umask())
    except BaseException:
        os.unlink(name)
        raise
    return name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
