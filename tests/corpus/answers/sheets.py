"""The kept answers: sheets/CORPUS.jsonl, a line for each pair in the order of their names."""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Iterator, Mapping, Optional

from tests.corpus.answers.command_lines import printed, said
from tests.corpus.answers.pairs import SAMPLES, SHARED, ask
from tests.corpus.answers.record import Answer, record

FOLDER = Path(__file__).parent / "sheets"
RECOMPUTED = re.compile("replay|recompute|commands/extract")  # names of pairs whose answers are other with torch


def kept() -> dict[str, Answer]:
    """Return the kept answers by the names of the pairs."""
    lines = (line for file in sorted(FOLDER.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines())
    answers = map(json.loads, lines)
    return {answer.pop("pair"): answer for answer in answers}


def here() -> list[str]:
    """Return the names of the pairs that can be asked here: their dumps are here, and no torch that recomputes more."""
    has_torch = find_spec("torch") is not None
    return [
        name
        for name, answer in kept().items()
        if (not name.startswith("shared/") or SHARED.is_dir())
        and not (has_torch and (RECOMPUTED.search(name) or "npucmp[replay]" in str(answer)))
    ]


def asked(name: str) -> Answer:
    """Return the answer to a pair, as JSON gives it back."""
    warnings.simplefilter("ignore")
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="answers-", dir=base) as folder:
        pair, report = Path(folder, "pair"), Path(folder, "report")
        pair.mkdir()
        words = {str(pair): "PAIR", str(SAMPLES): "SAMPLES", str(SHARED): "SHARED", folder: "FOLDER"}
        if name.startswith("reports/"):
            found = said(name, pair, report, words)
        elif name.startswith("commands/"):
            found = printed(name, pair, SAMPLES, words)
        else:
            found = record(lambda: ask(name, pair), report, words)
        return json.loads(json.dumps(found))


def difference(before: Optional[Answer], after: Answer) -> Iterator[str]:
    """Yield the lines in which an answer differs from the kept one."""
    if before != after:
        yield from [*difflib.unified_diff(_lines(before or {}), _lines(after), "kept", "now", n=1, lineterm="")][2:]


def accept(answers: Mapping[str, Answer]) -> None:
    """Keep answers; those of other pairs stay."""
    every = {**kept(), **answers}
    corpora = sorted({name.partition("/")[0] for name in every})
    FOLDER.mkdir(exist_ok=True)
    for corpus in corpora:
        names = sorted(name for name in every if name.partition("/")[0] == corpus)
        lines = (json.dumps({"pair": name, **every[name]}, ensure_ascii=False) + "\n" for name in names)
        (FOLDER / f"{corpus}.jsonl").write_text("".join(lines), "utf-8")


def _lines(answer: Answer) -> list[str]:
    return json.dumps(answer, indent=1, ensure_ascii=False).splitlines()
