"""Ranks that are walked each by itself say what they say side by side: on runs by hand, and on the corpus' families."""

import pickle

import pytest

import npucmp
from npucmp.localise import apart, ranks, suspects
from npucmp.workflows import compare
from tests.corpus.draw import plan
from tests.corpus.planter import family
from tests.corpus.score import write
from tests.localise import test_ranks as by_hand


def travelled(thing):
    """As what comes out of another process."""
    return pickle.loads(pickle.dumps(thing))


def each_by_itself(some, updates, by_round_off, rules):
    """A walk in which nothing but what is pickled goes from rank to rank."""
    rounds = []

    def everyone(what, whom):
        rounds.append((what, len(whom)))
        found = {}
        for rank, arguments in whom.items():
            own = apart.Rank(some[rank], updates[rank], by_round_off, rules, len(some) == 1)
            asked = suspects.concluded if what == "concluded" else getattr(own, what)
            answer = asked(*(arguments if what in ("again", "concluded") else travelled(arguments)))
            found[rank] = (answer[0], *travelled(answer[1:])) if what == "walked" else travelled(answer)
        return found

    noise = None
    if by_round_off and not any(map(ranks.has_values, some)):
        noise = apart.NoiseOf(all(one.are_first for one in updates), max(one.unproven for one in updates))
    told = apart.walked_apart(len(some), everyone, noise)
    ROUNDS.append([count for what, count in rounds if what == "walked"])
    return told


ROUNDS: "list[list[int]]" = []


def both_ways(paths, monkeypatch, **options):
    """A comparison with the ranks side by side, and with each by itself, which one of them begins."""
    found = []
    monkeypatch.setattr(apart, "PILOTS", 1)
    for walked in (ranks.side_by_side, each_by_itself):
        with monkeypatch.context() as patch:
            patch.setattr(compare, "with_roots", lambda *given, how=walked: ranks.with_roots(*given, walked=how))
            found.append(npucmp.compare(*paths, jobs=1, **options))
    return found


def said(report):
    """All that a comparison says of findings and roots, as text: NaN is NaN."""
    return [
        (one.step, one.rank, [repr(finding[1:]) for finding in one.findings], [*map(repr, one.roots)], one.notes)
        for one in report.comparisons
    ]


FAULTS = {
    "pipeline": [by_hand.pipeline, {"first": 1.01}, {"second": 1.01}, {"received": 1.01}, {"back": 1.01}],
    "unrecorded": [lambda **more: by_hand.pipeline(recorded=False, **more), {"first": 1.01}, {"second": 1.01}],
    **{
        name: [lambda name=name, **more: by_hand.collective(name, **more), {}, {"wrong": 0.01}, {"damaged": 1.01}]
        for name in (*by_hand.SUMS, *by_hand.GATHERS)
    },
}


@pytest.mark.parametrize(("kind", "number"), [(kind, i) for kind, some in FAULTS.items() for i in range(1, len(some))])
def test_by_hand(tmp_path, monkeypatch, kind, number):
    make, fault = FAULTS[kind][0], FAULTS[kind][number]
    paths = by_hand.written(tmp_path / "t", make(**fault)), by_hand.written(tmp_path / "g", make())
    together, alone = both_ways(paths, monkeypatch)
    assert said(alone) == said(together)


def of_several(domain, least, has_values=True):
    """Families of several ranks or steps whose dumps hold values, or statistics and checksums alone."""
    number = 0
    while least:
        facts = plan(domain, number).facts
        if (facts["ranks"], facts["steps"]) != ("1", "1") and (facts["task"] == "tensor") == has_values:
            yield number
            least -= 1
        number += 1


LARGE = {15, 108}  # families of many tensors, half of the time of all

NUMBERS = [*of_several("open", 6), *of_several("open", 6, has_values=False)]


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.large] * (n in LARGE)) for n in NUMBERS])
def test_families(tmp_path, monkeypatch, number):
    some = family("open", number, 2)
    write(tmp_path / "golden", some.golden, some.style)
    for at, case in enumerate(some.cases):
        write(tmp_path / f"target{at}", case.target, some.style)
        together, alone = both_ways((tmp_path / f"target{at}", tmp_path / "golden"), monkeypatch)
        assert said(alone) == said(together), case.name
