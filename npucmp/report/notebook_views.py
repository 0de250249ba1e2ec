"""Drawings of a result for a notebook: the error along the network, the whole network, a tensor over the steps."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any, Optional, Sequence

from npucmp.errors import UsageError
from npucmp.report.answer import Answer, Plot, Suspects
from npucmp.report.phrases import count_of
from npucmp.report.static_plot import figure, text

HEIGHT = 760  # pixels of the frame with the network
NEAREST = 3  # names in the message about an unknown name
FIGURES = (("norm (l2)", ("l2",)), ("mean", ("mean",)), ("smallest and largest", ("min", "max")))


class NotebookView:
    """A drawing that a notebook shows. `html` is a fragment that needs nothing else."""

    def __init__(self, html: str, words: str) -> None:
        self.html, self._words = html, words

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<{self._words}>"


def plot(answer: Answer) -> NotebookView:
    """Return the operators along the network, and the curves of the result. Raises UsageError if there are neither."""
    along = answer.along()
    plots = [*([along] if along is not None and along.curves else []), *answer.plots]
    if not plots:
        raise UsageError(f"this result of {answer.result.command} has nothing to plot")
    head = f"<p><b>{text(answer.word)}</b> {text(answer.sentence)}</p>"
    return NotebookView(figure(plots, head), f"npucmp {answer.result.command}: {plots[0].title}")


def graph(answer: Answer) -> NotebookView:
    """Return the network folded by module, in a frame of its own in which scripts run; of several steps and ranks, that
    of the first suspect. Raises UsageError for a result without a network."""
    from npucmp.report.html import page

    answer = answer if answer.first is None else answer.first()
    detail = answer.detail()
    if not (detail.more.get("graph") or detail.more.get("readers")):
        raise UsageError(f"this result of {answer.result.command} has no network")
    bare = replace(answer, sections=[], suspects=Suspects(()), looks=(), plots=(), series=lambda: None)
    source = escape(page(bare, only="whole").decode("utf-8", "replace"), quote=True)
    style = f"width:100%;height:{HEIGHT}px;border:0"
    settings = f'sandbox="allow-scripts" title="the network, folded by module" style="{style}"'
    frame = f'<iframe srcdoc="{source}" {settings}></iframe>'
    return NotebookView(frame, f"npucmp {answer.result.command}: the whole network")


def steps(answer: Answer, name: str, rank: str = "") -> NotebookView:
    """Return curves over the steps of the first tensor whose name and slot contain all words of `name`. Raises
    UsageError for a result of one step and for an unknown name or rank."""
    series = answer.series()
    if series is None:
        raise UsageError(f"this result of {answer.result.command} has no several steps")
    names = [
        f"{op} {slot or ''}".strip()
        for op, slot in zip(*(_unpacked(series["tensors"], one) for one in ("name", "slot")))
    ]
    wanted = name.lower().split()
    matches = [at for at, one in enumerate(names) if all(word in one.lower() for word in wanted)]
    exact = [at for at in matches if names[at] == name or names[at].rpartition(" ")[0] == name]
    outputs = [at for at in exact or matches if " output" in names[at]]
    if not matches:
        from difflib import get_close_matches

        raise UsageError(
            f"no tensor {name!r} has figures of several steps", get_close_matches(name, names, NEAREST, 0.0)
        )
    at, ranks = (outputs or exact or matches)[0], series["ranks"]
    if rank and int(rank) not in ranks:
        raise UsageError(f"there is no rank {rank}", [str(one) for one in ranks])
    number = ranks.index(int(rank)) if rank else series["marks"][0][2] if series["marks"] else 0
    plots = [one for one in (_figure(series, at, number, *figures) for figures in FIGURES) if one is not None]
    where = f" · rank {ranks[number]}" if len(ranks) > 1 else ""
    others = f" · {count_of(len(matches) - 1, 'other tensor')} with these words" if len(matches) > 1 else ""
    head = f"<p><code>{text(names[at])}</code>{where}{others}</p>"
    return NotebookView(figure(plots, head), f"npucmp {answer.result.command}: {names[at]} over the steps")


def _figure(series: dict[str, Any], tensor: int, rank: int, title: str, figures: Sequence[str]) -> Optional[Plot]:
    count, numbers = series["tensors"]["length"], series["steps"]
    curves = []
    for figure_name in figures:
        for side in series["sides"]:
            cells = series["figures"]["columns"][f"{side}_{figure_name}"]["values"]
            values = {
                step: float(cells[(rank * len(numbers) + at) * count + tensor])
                for at, step in enumerate(numbers)
                if cells[(rank * len(numbers) + at) * count + tensor] is not None
            }
            if values:
                curves.append((side if len(figures) == 1 else f"{side} {figure_name}", [*values], [*values.values()]))
    return Plot(title, "over the steps", curves) if curves else None


def _unpacked(table: dict[str, Any], name: str) -> list[Any]:
    """Return the values of a packed column."""
    column = table["columns"].get(name, {"all": None})
    if "codes" in column:
        return [column["words"][code] for code in column["codes"]]
    return column["values"] if "values" in column else [column["all"]] * table["length"]
