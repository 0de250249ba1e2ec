"""The sentence that states the outcome of a comparison."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

from npucmp.model import DIFFERS, Cause, Report, Verdict, VerdictTally
from npucmp.report.coverage import covered_words, open_words
from npucmp.report.phrases import count_of
from npucmp.report.rank_summary import LEFT_OUT


def sentence_of(report: Report, tally: VerdictTally) -> str:
    """Describe the outcome of a comparison in one sentence."""
    counts, status = tally.verdicts, report.exit_status
    held = report.layout.placed if report.layout is not None else ()
    shares = min(counts[Verdict.MISSING], sum(one.state == "local" for one in held))
    if status == 130:
        return f"interrupted after {count_of(tally.tensors, 'tensor')}"
    if status == 1:
        return found_words(tally, len(report.unpaired), shares)
    if status == 0:
        words = [f"{count_of(counts[Verdict.MATCH], 'tensor')} compared, none diverged"]
        words += [f"{count_of(shares, 'share')} of ranks"] if shares else []
        counts = counts - Counter({Verdict.MISSING: shares})
        words += [f"{counts[one]} {what}" for one, what in LEFT_OUT.items() if counts[one]]
        words += [f"{count_of(len(report.unpaired), 'run')} without a partner"] if report.unpaired else []
        return ", ".join([*words, *covered_words(report, report.coverage)])
    if report.broken:
        return f"{count_of(len(report.broken), 'run')} could not be read, the others agree"
    if counts[Verdict.UNREADABLE]:
        unreadable = count_of(counts[Verdict.UNREADABLE], "tensor")
        return f"{unreadable} could not be read, none of the others diverged"
    bare = ""
    if tally.bare and counts[Verdict.MATCH]:
        bare = f"no tensor could be compared in {tally.bare:,} of {len(report.comparisons):,} steps and ranks"
    if (absent := _absent_ranks(report)) and report.coverage.suffices(report.least):
        return f"{absent}; {count_of(counts[Verdict.MATCH], 'tensor')} of the other ranks agree"
    uncompared = counts[Verdict.MATCH] and (tally.coverage.tensors > tally.undecided or not tally.undecided)
    unpaired = [run for side, run in report.unpaired if side == "golden"]
    if uncompared and (tally.coverage.tensors or unpaired):
        return "; ".join(filter(None, [bare, open_words(tally.coverage, counts[Verdict.MATCH], unpaired, bool(held))]))
    if report.tokens is not None and report.tokens.problem and not report.tokens.tokens:
        return "no tensor was compared: the tokens of the runs have no index, as a note says"
    if undecided := tally.undecided:
        what, advice = "statistics", "dump with task tensor or md5, or pass --trust-statistics"
        if any("XOR" in one.because for one in tally.coverage.first):
            what, advice = "equal XOR checksums", "dump with task tensor, or with md5 as the summary mode"
        return f"{what} cannot prove agreement of {count_of(undecided, 'tensor')}; {advice}"
    if bare:
        return f"{bare}, {count_of(counts[Verdict.MATCH], 'tensor')} of the others agree"
    return "no tensor could be compared: partners are missing, have incompatible types, or are empty"


def _absent_ranks(report: Report) -> str:
    """Describe the ranks that a step lacks: those without a partner, or those that the target's layout needs."""
    alone = [run.rank for run in report.left_out if run.rank is not None]
    missing = report.layout.missing if report.layout is not None else ()
    if not alone and not missing:
        return ""
    from npucmp.model.relation import ranks_in_words

    if alone:
        few = len({*alone}) == 1
        which = f"{'rank' if few else 'ranks'} {ranks_in_words(alone)} of the target"
        return f"{which} {'has' if few else 'have'} no partner (--rank selects ranks)"
    few = len(missing) == 1
    return f"{'rank' if few else 'ranks'} {ranks_in_words(missing)} of the layout {'is' if few else 'are'} missing"


def found_words(tally: VerdictTally, unpaired: int = 0, shares: int = 0) -> str:
    """Describe the tensors that differ, or that statistics suggest. `shares`: tensors of which each rank of a layout
    has its own."""
    if tally.is_suspected:
        why = "the alignment is uncertain" if tally.uncertain else "statistics only"
        return f"{why}, not proven: {', '.join(_suspected_words(tally))}"
    return ", ".join(_diverged_words(tally, unpaired, shares))


def _suspected_words(tally: VerdictTally) -> Iterator[str]:
    """Describe the operators that are suspects by statistics alone, or because their partners are uncertain."""
    causes = tally.causes
    where = "differs from an uncertain partner" if tally.uncertain else "above the upstream noise"
    yield f"{count_of(causes[Cause.SUSPECT], 'operator')} {where}"
    if causes[Cause.PROPAGATED]:
        yield f"{causes[Cause.PROPAGATED]} downstream proven to differ"


def _diverged_words(tally: VerdictTally, unpaired: int, shares: int) -> Iterator[str]:
    causes, counts = tally.causes, tally.verdicts
    differing = sum(counts[verdict] for verdict in DIFFERS)
    if causes[Cause.BORN] + causes[Cause.GAP]:
        yield f"error originates in {count_of(causes[Cause.BORN] + causes[Cause.GAP], 'place')}"
    if causes[Cause.WORSENED]:
        yield f"worsened in {causes[Cause.WORSENED]}"
    if causes[Cause.UNKNOWN]:
        yield f"{count_of(causes[Cause.UNKNOWN], 'operator')} of unknown cause"
    if causes[Cause.PROPAGATED]:
        yield f"propagated by {causes[Cause.PROPAGATED]}"
    if not causes and differing:
        yield f"{count_of(differing, 'tensor')} differ"
    elif not causes:
        alone = count_of(counts[Verdict.MISSING], "tensor"), count_of(unpaired, "run")
        yield f"--strict: {' and '.join(alone)} without a partner"
    if shares:
        yield f"{count_of(shares, 'share')} of ranks"
    counts = counts - Counter({Verdict.MISSING: shares})
    left_out = [Verdict.UNREADABLE, *([Verdict.MISSING] if causes or differing else [])]
    yield from (f"{count_of(counts[one], 'tensor')} {LEFT_OUT[one]}" for one in left_out if counts[one])
