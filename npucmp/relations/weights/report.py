"""The Answer of a comparison of two checkpoints: relations of parameters in lines, and words for parameters, which no
operator reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator

from npucmp.model import Report, Verdict
from npucmp.model.relation import WeightFacts
from npucmp.report.answer import Answer, Detail, Line, Section, Suspect, Suspects
from npucmp.report.coverage import covered_words, open_words
from npucmp.report.phrases import count_of, percent

TITLE, TITLE_OF_STATES = "Parameters that differ", "Parameters and states that differ"
NOUNS, NOUNS_OF_STATES = ("parameters", "parameter"), ("parameters and states", "parameter or state")
MEANING = {"GAP": "the target's parameter is not what the golden's tensor and the relations above make of it"}
NEXT = {"GAP": "convert or synchronise this tensor again; npucmp show prints its values on both sides"}
MOST = 12  # relations on the screen; summary.json has all


def weight_answer(found: Answer, report: Report, facts: WeightFacts) -> Answer:
    """Return an answer in the words of checkpoints."""
    title = TITLE_OF_STATES if facts.states else TITLE
    sections = [_section(one, facts, at == 0) for at, one in enumerate(found.sections)]
    suspects = Suspects(*([_suspect(one) for one in some] for some in found.suspects))
    detail = found.detail
    return replace(
        found,
        sentence=_sentence(report, found.sentence),
        sections=sections,
        suspects=suspects,
        title=title if suspects.first else found.title,
        compared="Compared checkpoints",
        nothing=[line.replace("operator", "parameter") for line in found.nothing],
        facts=lambda: {
            **found.facts(),
            "next_dump": None,
            "weights": {"relations": [*facts.lines], "only_target": [*facts.only_target]},
        },
        remarks=lambda folder: [],
        texts=tuple,
        meaning=MEANING,
        advice=NEXT,
        detail=lambda: _detail(detail()),
    )


def _detail(one: Detail) -> Detail:
    return one._replace(chart="Parameters in the order of the network", more={**one.more, "weights": True})


def _section(one: Section, facts: WeightFacts, is_first: bool) -> Section:
    suspects = Suspects(*([_suspect(each) for each in some] for some in one.suspects))
    lines = [line._replace(head=line.head.replace("operator", "parameter")) for line in one.lines]
    many, single = NOUNS_OF_STATES if facts.states else NOUNS
    aligned = one.aligned.replace("operators", many).replace("operator", single)
    sides = [side._replace(what=side.what.replace("operators", many)) for side in one.sides]
    relations = "\n".join(_relation_lines(facts)) if is_first else ""
    return one._replace(
        aligned="\n".join(filter(None, [aligned, relations])),
        sides=sides,
        suspects=suspects,
        lines=[Line(*line) for line in lines],
        title=(TITLE_OF_STATES if facts.states else TITLE) if one.title else "",
    )


def _relation_lines(facts: WeightFacts) -> Iterator[str]:
    for line in facts.lines[:MOST]:
        yield f"relation {line}"
    if len(facts.lines) > MOST:
        yield f"relation {len(facts.lines) - MOST} more in summary.json"


def _suspect(one: Suspect) -> Suspect:
    return one._replace(flow=None)


def _sentence(report: Report, words: str) -> str:
    counts, status = report.tally.verdicts, report.exit_status
    if status == 1:
        places = sum(report.tally.causes.values())
        wrong = counts[Verdict.DIVERGED] + counts[Verdict.NONFINITE] + counts[Verdict.SHAPE]
        tensors, where = count_of(sum(counts.values()), "tensor"), count_of(places, "place")
        rest = [f"1 of {tensors} differs in {where}" if wrong == 1 else f"{wrong:,} of {tensors} differ in {where}"]
        if counts[Verdict.MISSING]:
            rest.append(f"{count_of(counts[Verdict.MISSING], 'parameter')} without a partner")
        return ", ".join(rest)
    if status == 0:
        share = percent(report.coverage.share)
        rest = [
            f"{count_of(counts[Verdict.MATCH], 'parameter')} agree element by element, {share} of elements compared"
        ]
        return ", ".join([*rest, *covered_words(report, report.coverage)])
    if status == 2 and report.coverage.tensors and counts[Verdict.MATCH]:
        return open_words(report.coverage, counts[Verdict.MATCH]).replace(" or set partners with --mapping", "")
    return words
