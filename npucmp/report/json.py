"""Write summary.json: one object that scripts read. Keys are only ever added; NaN and infinities are strings.

docs/schema/ has its JSON Schema for each command, made from summary_types.py. With --json every outcome is one object
on stdout; an error has the keys of `error_object`.
"""

from __future__ import annotations

import json
import math
from typing import Any, Iterable

from npucmp.report.answer import Answer
from npucmp.report.next_commands import next_commands
from npucmp.version import SCHEMA_VERSION, __version__


def render(answer: Answer) -> dict[str, bytes]:
    """Return the file."""
    return {"summary.json": _encode(summary(answer))}


def content(answer: Answer) -> bytes:
    """Return the object, as --json prints it."""
    return _encode(summary(answer))


def with_files(data: bytes, names: Iterable[str]) -> bytes:
    """Return summary.json with the names of all files of its report, which the next report replaces."""
    return _encode({**json.loads(data), "files": sorted(names)})


def _encode(found: dict[str, Any]) -> bytes:
    return (json.dumps(strict(found), indent=1, ensure_ascii=True) + "\n").encode()


def summary(answer: Answer) -> dict[str, Any]:
    """Return the content of summary.json as Python values."""
    result = answer.result
    return {
        "schema_version": SCHEMA_VERSION,
        "npucmp": __version__,
        "command": result.command,
        "outcome": answer.word,
        "sentence": answer.sentence,
        "argv": list(result.argv),
        "settings": dict(result.settings),
        **answer.facts(),
        "next": [one._asdict() for one in next_commands(answer)],
        "broken": [{"side": side, "path": run.path, "because": run.problem} for side, run in result.broken],
        "seconds": round(result.seconds, 3),
        "bytes_read": result.bytes_read,
        "partial": result.partial,
        "exit_status": result.exit_status,
    }


def strict(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by strings, so that any JSON parser can read the file."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: strict(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(below) for below in value]
    return value
