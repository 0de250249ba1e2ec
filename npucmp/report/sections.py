"""Sections of a page, in the order in which they stand there: an Answer as markup, without any script."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence
from urllib.parse import quote

from npucmp.report.answer import Answer, Chain, Side, Suspect, Within
from npucmp.report.drawings import difference_map, flow, look
from npucmp.report.markup import NOTHING, Markup, fill, fill_each, fill_if, items, joined
from npucmp.report.sanitise import visible

DENSE = 32  # columns of a grid from which on it is drawn narrower
OPEN = 4  # notes from which on they are folded
Words = dict[str, Any]
MARKED = (
    '<p class="muted key">● a run that stands apart from most, ○ one that agrees with them. A picture is the tensor, '
    "its last axis across, all others down: empty where the runs are equal; shaded where they differ, in four steps: "
    "in under 1 % of a cell's elements, under 10 %, under 90 %, and above. {}</p>\n"
)


def header(answer: Answer, counts: Sequence[Words], shard: Optional[Within], has_rows: bool) -> Markup:
    """The verdict, and rows by what they are, as pieces of one bar; `counts` are buttons where the page has rows."""
    pieces = [(f"v-{one['name'].replace(' ', '-').replace('/', '-')}", one) for one in counts]
    chip = '<span class="chip {0}"><b>{2}</b> {1}</span>'
    if has_rows:
        chip = '<button type="button" class="chip {0}" data-filter="{1}"><b>{2}</b> {1}</button>'
    bars = ((kind, one["x"], one["width"]) for kind, one in pieces)
    return joined(
        (
            fill('<header class="verdict {}">\n', answer.tone),
            fill('<p class="tool">npucmp {}{}</p>\n', answer.result.command, _beside(shard) if shard else ""),
            fill('<h1><span class="word">{}</span> {}</h1>\n', answer.word, answer.sentence),
            Markup('<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">\n'),
            fill_each('<rect class="{}" x="{}" y="0" width="{}" height="4"/>', bars),
            fill('</svg>\n<p class="counts">{}</p>\n</header>\n',
                 fill_each(chip, ((kind, one["name"], one["count"]) for kind, one in pieces))),
        )
    )  # fmt: skip


def _beside(shard: Within) -> Markup:
    others = fill_each(' · <a href="{1}">{0}</a>', shard.beside)
    return fill(' · {} · <a href="../report.html">all steps and ranks</a>{}', shard.where, others)


def grid(one: Words) -> Markup:
    """The steps and ranks of grid.gridded."""
    legend = ((state.name, state.sign, state.words) for state in one["legend"])
    links = fill(
        "A sign leads to the page of its step and rank, with all its tensors{}. ",
        fill_if(one["unwritten"], "; {}", one["unwritten"]),
    )
    return joined(
        (
            Markup('<section class="matrix" aria-labelledby="matrix-title">\n'),
            Markup('<h2 id="matrix-title">Steps and ranks</h2>\n'),
            fill_if(one["sentence"], '<p class="begins">The error {}.</p>', one["sentence"]),
            fill_if(one["odd"], "<ul>{}</ul>", items(one["odd"])),
            fill('<p class="muted key">{}{}</p>\n<div class="scroll">\n',
                 fill_each('<span class="nobreak"><b class="m m-{}">{}</b> {}</span> ', legend), one["folded"] or ""),
            fill('<table class="grid{}"><thead><tr><th scope="col">{}</th>{}</tr></thead>\n',
                 " dense" if len(one["heads"]) > DENSE else "", one["name"],
                 items(one["heads"], '<th scope="col">{}</th>')),
            fill("<tbody>{}</tbody></table>\n</div>\n",
                 fill_each('<tr><th scope="row">{}</th>{}</tr>\n',
                           ((label, joined(map(_spot, spots))) for label, spots in one["lines"]))),
            fill('<p class="muted key">{}matrix.csv has a row for each.</p>\n</section>\n',
                 links if one["linked"] else ""),
        )
    )  # fmt: skip


def _spot(one: Words) -> Markup:
    sign, words = one["state"].sign, one["words"]
    shown = fill('<a href="{}" aria-label="{}">{}</a>', one["link"], words, sign) if one["link"] else sign
    return fill('<td class="m-{}" title="{}">{}</td>', one["state"].name, words, shown)


def first_suspects(answer: Answer, words: Mapping[str, Any]) -> Markup:
    """The suspects on top, or why there are none, and what to do next."""
    first, passed, remarks = words["first"], answer.suspects.passed, words["remarks"]
    marked = fill_each('<span class="nobreak">{} = <code>{}</code></span> ', enumerate(answer.marked, 1))
    more = '<p class="muted">… and {} more in the table below and in {}</p>'
    return joined(
        (
            Markup('<section class="answer" aria-label="The answer">\n'),
            fill_if(answer.title, "<h2>{}</h2>", answer.title),
            fill_if(answer.marked, MARKED, marked),
            joined(suspect(answer, one) for one in first),
            fill_if(words["more"] > 0, more, words["more"], answer.places),
            fill('<p class="passed"><span class="cause">{}</span> {}</p>', passed[0].word, answer.passed_words)
            if passed and not answer.rest
            else NOTHING,
            fill_if(not first, "<h2>No operator to look at</h2>{}", items(words["nothing"], "<p>{}</p>")),
            fill_if(remarks, '<h2>{}</h2>\n<ul class="plain">{}</ul>\n', answer.remarks_title, items(remarks)),
            Markup("</section>\n"),
        )
    )


def compared(answer: Answer, words: Mapping[str, Any]) -> Markup:
    """The dumps, what was not compared, and notes."""
    left_out, notes = words["left_out"], words["notes"]
    many = "" if len(notes) == 1 else "s"
    return joined(
        (
            fill('<section class="compared" aria-label="What was compared">\n<h2>{}</h2>\n', answer.compared),
            fill("<dl>{}{}</dl>\n", joined(map(_side, words["sides"])),
                 fill_if(words["sides_more"] > 0, "<dt></dt><dd>and {} more</dd>", words["sides_more"])),
            fill("<p>{}.</p>\n", answer.aligned),
            fill_if(left_out, "<h3>What was not</h3><ul>{}</ul>", items(left_out)),
            fill_if(notes, "<details{}><summary>{} note{}</summary><ul>{}</ul></details>",
                    " open" if len(notes) < OPEN else "", len(notes), many, items(notes)),
            Markup("</section>\n"),
        )
    )  # fmt: skip


def _side(one: Side) -> Markup:
    form = '<dt>{}</dt><dd><code>{}</code><br><span class="muted">{}</span></dd>'
    return fill(form, one.name, one.path, one.what)


def suspect(answer: Answer, one: Suspect) -> Markup:
    """An operator to look at, and why."""
    return fill(
        '<article class="suspect c-{}{}">\n{}\n{}<div class="evidence">\n<div>{}{}</div>\n{}</div>\n{}</article>\n',
        one.cause,
        " excused" if one.excused else "",
        _head(answer, one),
        fill_if(one.golden, '<p class="muted">golden: {}</p>', one.golden),
        _marks(one),
        _sentences(one),
        joined(_figures(one)),
        joined(_below(answer, one)),
    )


def _head(answer: Answer, one: Suspect) -> Markup:
    meaning = answer.meaning.get(one.word)
    title = NOTHING if meaning is None else fill(' title="{}"', meaning)
    return fill(
        '<p class="head">{}{}{}{}{}<span class="slot">{}</span>{}{}{}</p>\n',
        fill_if(one.place, '<span class="place">{}</span> ', one.place),
        fill_if(one.word, '<span class="cause"{}>{}</span> ', title, one.word),
        fill_if(one.rule, "<b>{}</b> ", one.rule),
        _name(one) if one.op else "",
        fill_if(one.rule, '<span class="muted">{}</span> ', one.aside),
        one.slot,
        fill_if(one.where, ' <span class="muted">{}</span>', one.where),
        fill_if(one.also, ' <span class="muted">and {}</span>', one.also),
        fill_if(one.excused, ' <span class="muted">random or asynchronous on purpose</span>'),
    )


def _name(one: Suspect) -> Markup:
    if one.page is None:
        return fill('<span class="name">{}</span> ', one.op)
    return fill('<a class="name" href="{}#op={}">{}</a> ', one.page, quote(visible(one.op)), one.op)


def _marks(one: Suspect) -> Markup:
    """Which of the marked dumps stand apart."""
    marks = [("odd" if is_odd else "even", "●" if is_odd else "○", at) for at, is_odd in enumerate(one.marks, 1)]
    aside = fill_if(False not in one.marks, '<span class="muted">{}</span>', one.aside)
    runs = fill_each('<span class="{}">{} run {}</span>', marks)
    return fill_if(marks, '<p class="marks">{}{}</p>', runs, aside)


def _sentences(one: Suspect) -> Markup:
    return fill("<ul>{}</ul>\n", items(some.sentence() for some in one.evidence))


def _figures(one: Suspect) -> Iterator[Markup]:
    """Beside the evidence."""
    if one.flow:
        yield flow(one.flow)
    if one.figures:
        yield fill('<dl class="figures">{}</dl>', fill_each("<dt>{}</dt><dd>{}</dd>", one.figures))


def _below(answer: Answer, one: Suspect) -> Iterator[Markup]:
    """Below the evidence: pictures, the line of the user's code, what to do next, the way of the error."""
    if one.picture:
        from npucmp.report.difference_map import drawn

        against = f"run {one.pictured} against run 1" if one.pictured else ""
        yield difference_map(drawn(one.picture), against or "elements further off than rounding makes them")
    if one.look:
        where = '<details class="where"{}><summary>where the error lies in {}</summary>{}</details>'
        yield fill(where, " open" if one.place == 1 else "", one.look.pair.slot, look(one.look))
    if one.line:
        yield fill('<p class="line"><code>{}</code></p>', one.line)
    if one.place and one.word in answer.advice:
        yield fill('<p class="muted next">next: {}</p>', answer.advice[one.word])
    if one.rule:
        way = ((step.word, step.words) for step in one.way())
        yield fill_each('<p class="passed"><span class="cause">{}</span> {}</p>', way)


def fused(answer: Answer, chains: Sequence[Chain]) -> Markup:
    """Fused operators against their originals, and the texts of the report."""
    texts = [(one.title, joined(fill("{}\n", line) for line in one.text.splitlines()))
             for one in answer.texts() if one.title]  # fmt: skip
    return joined(
        (
            Markup('<section aria-labelledby="fused-title">\n'),
            Markup('<h2 id="fused-title">Fused operators against their originals</h2>\n'),
            Markup('<p class="muted key">The heavy frames are compared with each other; in a box the type and range of '
                   "what it writes, where it was dumped.</p>\n"),
            fill('<div class="scroll">\n{}</div>\n', joined(_chain(answer, one) for one in chains)),
            fill_each("<details open><summary>{}</summary><pre>{}</pre></details>", texts),
            Markup("</section>\n"),
        )
    )  # fmt: skip


def _chain(answer: Answer, one: Chain) -> Markup:
    sign, tone = ("✗", "bad") if one.differs else ("✓", "good") if one.verdict == "match" else ("?", "open")
    arrow = '<span class="arrow" aria-label="then">→</span>'
    box = '<span class="box{}">{}{}</span>'
    originals = [
        fill(box, " compared-here" if some.compared else "", some.name, _small(some.holds)) for some in one.originals
    ]
    fused_one = fill(
        '<span class="box compared-here">{}{}{}</span>',
        one.suspect.op_type,
        fill_if(one.passes, ' <span class="muted">by {}</span>', ", ".join(one.passes)),
        _small(one.holds),
    )
    return joined(
        (
            fill('<article class="fused c-{}">\n<div>{}\n', one.suspect.cause, _head(answer, one.suspect)),
            Markup('<div class="duo">\n<p class="side">without fusion</p>\n'),
            fill('<p class="originals">{}</p>\n',
                 Markup(arrow.join(originals) or '<span class="muted">no graph tells</span>')),
            fill('<p class="outcome w-{}"><span>{} {}</span>{}</p>\n', tone, sign, one.verdict,
                 fill_if(one.error, "<small>rel_l2 {}</small>", one.error)),
            fill('<p class="side">with fusion</p>\n<p class="originals">{}</p>\n</div></div>\n', fused_one),
            fill('<div class="why">{}{}</div>\n</article>\n', flow(one.suspect.flow) if one.suspect.flow else "",
                 _sentences(one.suspect)),
        )
    )  # fmt: skip


def _small(holds: str) -> Markup:
    return fill_if(holds, "<small>{}</small>", holds)


def later_suspects(answer: Answer, later: Sequence[Suspect], more: int) -> Markup:
    """The suspects that come later."""
    return joined(
        (
            fill('<section aria-labelledby="rest-title">\n<h2 id="rest-title">{}</h2>\n', answer.rest),
            fill('<div class="scroll rest">{}</div>\n', joined(suspect(answer, one) for one in later)),
            fill_if(more > 0, '<p class="muted">… and {} more in {}</p>', more, answer.places),
            Markup("</section>\n"),
        )
    )


def made(answer: Answer, versions: Mapping[str, Any]) -> Markup:
    """The rules that applied, what the causes mean, and the versions."""
    rules = (
        (one.metric, f"{one.limit:.3g}", one.dtype or "any", one.op_type or "any", one.why) for one in answer.rules
    )
    return joined(
        (
            Markup('<section aria-label="Rules and versions" class="made">\n'),
            fill_if(
                answer.rules,
                '<h2>Rules that applied</h2>\n<table class="rules"><thead><tr><th>metric</th><th>limit</th>'
                "<th>dtype</th><th>operator type</th><th>why</th></tr></thead>\n<tbody>{}</tbody></table>",
                fill_each('<tr><td>{}</td><td class="number">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>', rules),
            ),
            fill_if(
                answer.meaning,
                "<details><summary>What the causes mean</summary><dl>{}</dl></details>",
                fill_each("<dt>{}</dt><dd>{}{}</dd>", _meanings(answer)),
            ),
            fill('<p class="muted">{}', fill_if(versions["argv"], "<code>{}</code><br>", versions["argv"])),
            fill(
                "npucmp {npucmp} · Python {python} · numpy {numpy} · {machine} · {rate}</p>\n</section>\n", **versions
            ),
        )
    )


def _meanings(answer: Answer) -> Iterator[tuple[object, ...]]:
    for name, meaning in answer.meaning.items():
        advice = answer.advice.get(name)
        yield name, meaning, NOTHING if advice is None else fill('<br><span class="muted">next: {}</span>', advice)
