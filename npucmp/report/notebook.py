"""The forms of a result in Python: printed text, HTML of a notebook cell, tables as DataFrames."""

from __future__ import annotations

import io
from html import escape
from typing import Any, Sequence

import numpy as np

from npucmp.errors import UsageError
from npucmp.presenter import is_chinese
from npucmp.report import csv, json, terminal
from npucmp.report.answer import Answer, Columns, Suspect
from npucmp.report.csv_text import CodedColumn
from npucmp.report.files import ConcatFile
from npucmp.report.sanitise import visible
from npucmp.report.summary_types import SuspectLine
from npucmp.report.tables import head_of

SUSPECTS = "suspects"  # a table that is no file
MOST_SUSPECTS = 10  # suspects in a notebook cell
LONGEST = 120  # characters of a path in one line; a sentence may have 300


def word(answer: Answer) -> str:
    """Return the word of the last line of the screen."""
    return answer.word


def screen(answer: Answer) -> str:
    """Return the text of the terminal."""
    made = terminal.render(answer).rstrip("\n")
    if is_chinese():
        from npucmp.report import chinese

        chinese.keep_names(answer)
        return chinese.screen(made)
    return made


def brief(answer: Answer) -> str:
    """Return one line that describes any result."""
    result = answer.result
    paths = ", ".join(visible(path)[-LONGEST:] for path in result.paths[:2])
    more = f" and {len(result.paths) - 2} more" if len(result.paths) > 2 else ""
    return f"<npucmp {result.command} of {paths}{more}: {answer.word}, {visible(answer.sentence)[:300]}>"


def html(answer: Answer) -> str:
    """Return the verdict and the first suspects as HTML without styles. All text from dumps is escaped."""
    first = answer.suspects.first
    rows = "".join(map(_row, first[:MOST_SUSPECTS]))
    table = f"<table><tr><th></th><th></th><th>operator</th><th>why</th></tr>{rows}</table>" if rows else ""
    notes = (
        [f"… and {len(first) - MOST_SUSPECTS} more"] if len(first) > MOST_SUSPECTS else answer.nothing[:MOST_SUSPECTS]
    )
    return f"<p><b>{_text(answer.word)}</b> {_message(answer.sentence)}</p>{table}" + "".join(
        f"<p>{_message(words)}</p>" for words in notes
    )


def _row(one: Suspect) -> str:
    why = "<br>".join(_message(evidence.sentence()) for evidence in one.evidence)
    name = " ".join(filter(None, (one.rule, one.op, one.slot)))
    return f"<tr><td>{one.place or ''}</td><td><b>{_text(one.word)}</b></td><td>{_text(name)}</td><td>{why}</td></tr>"


def _message(words: str) -> str:
    """Return a message in the language of the user."""
    if is_chinese():
        from npucmp.report.translation import translate

        return _text(translate(words))
    return _text(words)


def _text(words: str) -> str:
    return escape(visible(words))


def files(answer: Answer) -> dict[str, bytes | ConcatFile]:
    """Return the tables and the summary as the contents of their files."""
    found = {**csv.render(answer), **json.render(answer)}
    return {name: data for name, data in found.items() if isinstance(data, (bytes, ConcatFile))}


def summary(answer: Answer) -> dict[str, Any]:
    """Return the content of summary.json."""
    found: dict[str, Any] = json.strict(json.summary(answer))
    return found


def frame(answer: Answer, table: str = "") -> Any:
    """Return the rows of a CSV file as a pandas DataFrame, with its columns in order; "suspects" are the rows of JSON
    Lines. Without a name, the first table is returned, with the additional columns `cause` and `limit`. Raises
    UsageError for an unknown name."""
    import pandas

    if table == SUSPECTS:
        from npucmp.report.json_lines import suspect_row

        rows = [
            {**suspect_row(one), "evidence": "; ".join(evidence.sentence() for evidence in one.evidence)}
            for one in answer.suspects.first
        ]
        return pandas.DataFrame(rows, columns=[*SuspectLine.__annotations__]).drop(columns="kind")
    known = {one.file.partition(".")[0]: one for one in answer.tables}
    name = table[: -len(".csv")] if table.endswith(".csv") else table or next(iter(known))
    if name not in known:
        raise UsageError(f"{answer.result.command} has no table {table!r}", [SUSPECTS, *known])
    one = known[name]
    columns: Columns = one.columns()
    if one.rows is not None and not any(columns.values()):  # merged reports
        lines = io.BytesIO(b"".join(ConcatFile([head_of(one), *one.rows()])))
        exact: dict[str, Any] = {}
        if int(pandas.__version__.partition(".")[0]) < 3:  # later versions parse all digits by default
            exact = {"float_precision": "round_trip"}
        return pandas.read_csv(lines, names=[*one.names], header=0, low_memory=False, **exact)
    more = {} if table else {name: columns[of] for name, of in answer.alike.items()}
    return frame_of({**columns, **more}, (*one.names, *more))


def frame_of(columns: Columns, names: Sequence[str]) -> Any:
    """Return columns as a pandas DataFrame, in the order of the names."""
    import pandas

    return pandas.DataFrame({name: _series(columns[name]) for name in names}, copy=False)


def _series(cells: Sequence[Any]) -> Any:
    """Return a column; equal cells are converted once."""
    import pandas

    if not isinstance(cells, CodedColumn):
        return pandas.Series(cells)
    return pandas.Series(pandas.Series(cells.different).array.take(np.asarray(cells.codes)))


def plot(answer: Answer) -> Any:
    """Return a plot for a notebook."""
    from npucmp.report import notebook_views

    return notebook_views.plot(answer)


def graph(answer: Answer) -> Any:
    """Return the network of the result for a notebook."""
    from npucmp.report import notebook_views

    return notebook_views.graph(answer)


def steps(answer: Answer, name: str, rank: str = "") -> Any:
    """Return a tensor over the steps for a notebook."""
    from npucmp.report import notebook_views

    return notebook_views.steps(answer, name, rank)
