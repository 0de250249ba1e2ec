"""mapping.yaml: the partners of operators that an alignment by contents found, which `--mapping` reads back.

The file is a flat table, target name: golden name. A user may correct a line, or remove it. Its first entry lets
npucmp align by contents again, with the table as anchors.
"""

from __future__ import annotations

import json
from typing import Iterator

from npucmp.model import Comparison, Report, map_comparisons
from npucmp.model.finding import BY_CONTENT, FOUND_BY_CONTENT
from npucmp.model.roles import is_output
from npucmp.report.answer import Text

FILE = "mapping.yaml"
_HEAD = "# The partners that npucmp found by content. Correct a line, and read the file with --mapping.\n"


def mapping_texts(report: Report) -> Iterator[Text]:
    """Yield the file, if any step and rank was aligned by contents."""
    found: dict[str, str] = {}
    for partners in map_comparisons(report.comparisons, _partners):
        for target, golden in partners.items():
            found.setdefault(target, golden)
    if found:
        rows = {**FOUND_BY_CONTENT, **found}
        lines = (f"{_quoted(one)}: {_quoted(other)}\n" for one, other in rows.items())
        yield Text(FILE, _HEAD + "".join(lines))


def _partners(_: int, one: Comparison) -> dict[str, str]:
    """The golden partner of each operator of the target, by the first output that has one."""
    found: dict[str, str] = {}
    for finding in one.findings if one.aligned_by_content else ():
        pair = finding.pair
        if pair.target_op is None or pair.golden_op is None or pair.target is None or pair.golden is None:
            continue
        if is_output(pair) and pair.via in (*BY_CONTENT, "weights", "parts", "mapping"):
            found.setdefault(pair.target_op.name, pair.golden_op.name)
    return found


def _quoted(name: str) -> str:
    """A name in double quotes, as YAML and JSON spell it."""
    return json.dumps(name, ensure_ascii=True)
