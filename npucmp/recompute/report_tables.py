"""Report what a replay finds between operators: gradients that are not the sum of the contributions of their consumers,
and inputs that no operator wrote. Both become suspects, lines, and rows of edges.csv and gaps.csv."""

from __future__ import annotations

from typing import Iterator

from npucmp.model import Edge, EdgeVerdict, Evidence, Fact, Gap, Replay
from npucmp.model.stack import source_line, source_path
from npucmp.report.answer import Line, Row, Suspect
from npucmp.report.phrases import count_of, known_numbers, where_words

EDGES = tuple("step rank order op op_type phase slot consumers via ratio rel_l2_u verdict explanation stack".split(" "))
GAPS = tuple(
    "step rank order reader slot writer function ratio equal other_functions differs_from_peers stack".split(" ")
)


def edge_rows(one: Replay) -> Iterator[Row]:
    operators = one.operators
    for edge in one.edges:
        operator = operators[edge.order]
        yield {
            "step": one.run.step, "rank": one.run.rank, "order": edge.order, "op": operator.name,
            "op_type": operator.op_type, "phase": operator.phase, "slot": edge.slot,
            "consumers": " ".join(operators[order].name for order in edge.consumers), "via": edge.via,
            "ratio": edge.ratio, "rel_l2_u": edge.rel_l2_u, "verdict": edge.verdict.value,
            "explanation": edge.explanation, "stack": source_line(operator),
        }  # fmt: skip


def gap_rows(one: Replay) -> Iterator[Row]:
    operators = one.operators
    for gap in one.gaps:
        operator = operators[gap.order]
        yield {
            "step": one.run.step, "rank": one.run.rank, "order": gap.order, "reader": operator.name, "slot": gap.slot,
            "writer": _writers(gap, one), "function": gap.function, "ratio": gap.ratio, "equal": gap.equal,
            "other_functions": ", ".join(gap.others), "differs_from_peers": gap.differs,
            "stack": source_line(operator),
        }  # fmt: skip


def gradient_suspect(edge: Edge, one: Replay, place: int) -> Suspect:
    """Return a gradient as a suspect; the change lies between its consumers and the operator that receives it."""
    operator = one.operators[edge.order]
    return Suspect(
        place,
        EdgeVerdict.BROKEN.value,
        operator.name,
        operator.op_type,
        edge.slot,
        tuple(_evidence(edge, one)),
        EdgeVerdict.BROKEN.value,
        where=" · ".join(where_words(one.run)),
        line=source_line(operator),
        path=source_path(operator),
        at=known_numbers(step=one.run.step, rank=one.run.rank),
        figures=tuple(
            (name, f"{value:.3g}")
            for name, value in (("times the expected rounding", edge.ratio), ("rel_l2 in u", edge.rel_l2_u))
            if value is not None
        ),
    )


def _evidence(edge: Edge, one: Replay) -> Iterator[Evidence]:
    names = [one.operators[order].name for order in edge.consumers]
    verb = "returns" if len(names) == 1 else "return"
    words = "the incoming gradient differs from the gradient that {consumers} " + verb
    facts = {"consumers": Fact(" and ".join(names))}
    if edge.via != "bit-equal":
        words, facts = words + " ({via})", {**facts, "via": Fact(edge.via)}
    yield Evidence("edge", words, facts)
    if edge.explanation:
        yield Evidence("explanation", "{words}", {"words": Fact(edge.explanation)})
    if edge.ratio is not None and edge.rel_l2_u is not None:
        facts = {"ratio": Fact(edge.ratio, slot=edge.slot), "units": Fact(edge.rel_l2_u, slot=edge.slot)}
        yield Evidence("budget", "{ratio:,.2g} times the expected rounding; rel_l2 {units:,.2g} u", facts)


def differing(one: Replay) -> list[Line]:
    """Return a line for each input that is another function of its producers than in other layers."""
    return [Line("differs", "UNKNOWN", f"  {words}") for words in differences(one)]


def differences(one: Replay) -> list[str]:
    found = []
    for gap in one.gaps:
        if gap.differs:
            reader = one.operators[gap.order].name
            found.append(f"{reader} {gap.slot} is {gap.function} of {_writers(gap, one)}, {gap.differs}")
    return found


def coverage(one: Replay) -> str:
    """Return the number of gradients between operators that were compared with their sums, in words; "" if there are
    none."""
    if not one.edges:
        return ""
    done = sum(edge.verdict is not EdgeVerdict.UNKNOWN for edge in one.edges)
    return f"{done:,} of {count_of(len(one.edges), 'gradient')} between operators"


def _writers(gap: Gap, one: Replay) -> str:
    return " ".join(one.operators[order].name for order, _ in gap.writers)
