"""What replaying the suspects of a comparison tells of them: Report → Report, with changed roots.

    UNKNOWN, WORSENED, SUSPECT, PROPAGATED and guilty   BORN: its own float64 result is elsewhere
    UNKNOWN, WORSENED, SUSPECT and clean                PROPAGATED: it is what float64 makes of what it read
    BORN and clean                                      it computes what it was told: BORN where arguments differ, else
                                                        UNKNOWN; the golden's operator is replayed then, too
    no root, and guilty                                 BORN: below what a comparison can tell
    GAP                                                 GAP, with the function that each run has there (replay_gaps.py)

What is neither guilty nor clean keeps its cause. A backward that is guilty after its forward is no second birth.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.dump.formats import calls_of
from npucmp.errors import MissingExtra, NpucmpError
from npucmp.flow.edges import links
from npucmp.localise.evidence import reason
from npucmp.localise.ranks import placed
from npucmp.measure.executor import default_jobs
from npucmp.model import REPLAYED, Cause, Comparison, Evidence, Finding, Judged, Replayed, Report, Root, Run
from npucmp.model.arguments import differing_arguments
from npucmp.model.roles import is_output
from npucmp.recompute.budget import RMS, RMS_16
from npucmp.recompute.peers import doubted, excused, explained
from npucmp.recompute.run import replayed
from npucmp.recompute.task import Engine, Settings, tasks_of
from npucmp.workflows.replay import ENGINES, JOBS, supported
from npucmp.workflows.replay_gaps import gap_reasons

SUSPECTS, ALL = "suspects", "all"
PEERS = 8  # further operators of the kind of one that is guilty: they tell a setting of the device from a fault
RULE = "replay"
OPEN = (Cause.UNKNOWN, Cause.WORSENED, Cause.SUSPECT)


def with_replays(report: Report, how: str, context: ReadContext, jobs: Optional[int] = None) -> Report:
    """The report after a replay of its suspects (and of who wrote what they read), or of all operators of the target.
    Where nothing can be replayed it is as it was, but for a note that says why."""
    try:
        supported()
        engines = tuple(one for one in ENGINES.values() if not one.missing())
        if not engines:
            package = next(one.missing() for one in ENGINES.values())
            raise MissingExtra(package, "--replay: replaying operators")
        work = _Replayer(engines, context, jobs or min(default_jobs(), JOBS))
        missing = [package for one in ENGINES.values() if (package := one.missing())]
        notes = [str(MissingExtra(package, "--replay: replaying more operators")) for package in missing]
        comparisons = [_replayed(one, how, work, notes) for one in report.comparisons]
    except NpucmpError as error:
        return replace(report, unreplayed=(str(error),))
    except KeyboardInterrupt:
        return replace(report, unreplayed=("interrupted: the suspects were not replayed",), partial=True)
    return replace(report, comparisons=tuple(placed(comparisons)), unreplayed=tuple(notes))


class _Replayer(NamedTuple):
    """Replays operators of a run."""

    engines: tuple[Engine, ...]
    context: ReadContext
    jobs: int

    def rows(self, run: Run, orders: set[int]) -> list[Replayed]:
        """Of these operators, and of some of the kind of each that is guilty; those that their peers excuse are not."""
        tasks = [task for task in tasks_of(run, calls_of(run, self.context)) if task.outputs]
        rows: list[Replayed] = []
        done: set[int] = set()
        kinds = {operator.order: operator.kind for operator in run.operators}
        wanted = orders
        while wanted:
            some = [task for task in tasks if task.operator.order in wanted]
            for found in replayed(some, self.engines, self.context, Settings(), self.jobs):
                rows += found
            done |= wanted
            guilty = {kinds[row.order] for row in rows if row.verdict is Judged.GUILTY}
            others: dict[str, list[int]] = defaultdict(list)
            for order, kind in kinds.items():
                others[kind].append(order)
            wanted = {order for kind in guilty for order in others[kind][:PEERS]} - done
        operators = {operator.order: operator for operator in run.operators}
        rows = doubted(sorted(rows, key=lambda row: row.order), operators)
        return excused(rows, explained(rows, operators))


def _replayed(one: Comparison, how: str, work: _Replayer, notes: list[str]) -> Comparison:
    wanted = _wanted(one) if how == SUSPECTS else {operator.order for operator in one.target.operators}
    if not wanted:
        return one
    rows: dict[int, list[Replayed]] = defaultdict(list)
    for row in work.rows(one.target, wanted):
        rows[row.order].append(row)
    guilty = {order for order, some in rows.items() if any(row.verdict is Judged.GUILTY for row in some)}
    operators = {operator.order: operator for operator in one.target.operators}
    forwards = {operators[order].call for order in guilty if operators[order].phase == "forward"}
    followers = {order for order in guilty
                 if operators[order].phase == "backward" and operators[order].call in forwards}  # fmt: skip
    told = _golden(one, rows, work)
    between = gap_reasons(one, work.engines, work.context, work.jobs)
    roots = []
    for at, root in enumerate(one.roots):
        root = replace(root, evidence=(*between.get(at, ()), *root.evidence))
        order = root.pair.target_op.order if root.pair.target_op is not None else -1
        roots.append(_changed(root, rows.get(order, []), order in followers, told.get(root.pair.order, [])))
    known = {root.pair.target_op.order for root in one.roots if root.pair.target_op is not None}
    new = [_born(finding, row) for finding, row in _unseen(one.findings, rows, guilty - known - followers)]
    notes += _undone([row for some in rows.values() for row in some])
    return replace(one, roots=(*roots, *new))


def _wanted(one: Comparison) -> set[int]:
    """The target's operators that are suspected, and those that wrote what they read."""
    suspects = {root.pair.order for root in one.roots if root.cause is not Cause.PROPAGATED}
    ordered = sorted(one.findings, key=lambda finding: finding.pair.order)
    writers = {link.order for finding, link in zip(ordered, links(ordered))
               if link is not None and finding.pair.order in suspects}  # fmt: skip
    wanted = suspects | writers
    return {op.order for finding in ordered if finding.pair.order in wanted
            if (op := finding.pair.target_op) is not None}  # fmt: skip


def _golden(one: Comparison, rows: dict[int, list[Replayed]], work: _Replayer) -> dict[int, list[Replayed]]:
    """Rows of the golden's operators, by the order of the pair, where the target's computes what it was told although
    error is born there."""
    asked = {
        root.pair.golden_op.order: root.pair.order
        for root in one.roots
        if root.cause is Cause.BORN and root.pair.golden_op is not None and root.pair.target_op is not None
        and _is_clean(root, rows.get(root.pair.target_op.order, [])) and not _tells_arguments(root)
    }  # fmt: skip
    found: dict[int, list[Replayed]] = defaultdict(list)
    for row in work.rows(one.golden, {*asked}) if asked else ():
        if row.order in asked:
            found[asked[row.order]].append(row)
    return found


def _changed(root: Root, rows: Sequence[Replayed], follows: bool, golden: Sequence[Replayed]) -> Root:
    """A root after the replay of its operator."""
    guilty = [row for row in rows if row.verdict is Judged.GUILTY]
    if guilty:
        reasons = guilty_reasons(guilty)
        if root.cause in (Cause.BORN, Cause.GAP) or follows:
            return replace(root, evidence=(*root.evidence, *reasons))
        return replace(root, cause=Cause.BORN, evidence=(*reasons, *root.evidence), rule=RULE)
    if root.cause is Cause.PROPAGATED:
        return root
    if not _is_clean(root, rows):
        return replace(root, evidence=(*root.evidence, *_open_reasons(rows)))
    share = _largest(rows)
    if root.cause in OPEN:
        words = "it is what float64 makes of its inputs ({ratio:.2g} of the rounding that is due)"
        found = reason("replay clean", words, ratio=share)
        return replace(root, cause=Cause.PROPAGATED, evidence=(found, *root.evidence), rule=RULE)
    told = "it computes what it was told ({ratio:.2g} of the rounding that is due)"
    found = reason("replay clean", told, ratio=share)
    if root.cause is Cause.GAP or _tells_arguments(root):
        return replace(root, evidence=(*root.evidence, found))
    wrong = [row for row in golden if row.verdict is Judged.GUILTY]
    words = "the golden differs from what float64 makes of the same call: {ratio:,.2g} times the rounding that is due"
    if wrong:
        more = [reason("replay golden", words, ratio=_largest(wrong))]
    else:
        more = [reason("replay golden", "arguments or inputs that no dump holds may differ; the golden is not guilty")]
    return replace(root, cause=Cause.UNKNOWN, evidence=(found, *more, *root.evidence), rule=RULE)


def guilty_reasons(rows: Iterable[Replayed]) -> list[Evidence]:
    """Of the worst output of an operator that is guilty."""
    worst = max(rows, key=lambda row: row.rms_ratio or 0.0)
    words = "its own float64 result is {ratio:,.2g} times the budget away"
    if worst.rms_ratio is None or worst.budget == "exact":
        words = "it differs from its own float64 result"
    found = [reason("replay", f"{words} ({{slot}})", ratio=worst.rms_ratio, slot=worst.slot)]
    return found + ([reason("replay", "{why}", why=worst.explanation)] if worst.explanation else [])


def _open_reasons(rows: Sequence[Replayed]) -> list[Evidence]:
    """Of a suspect that was replayed, and is neither guilty nor clean."""
    row = next((row for row in rows if row.status == REPLAYED and row.verdict is not Judged.CLEAN), None)
    if row is not None and row.verdict is Judged.AMPLIFIER:
        words = "its own float64 result is {ratio:,.2g} times the budget away, but {why}"
        return [reason("replay coarse", words, ratio=row.rms_ratio, why=row.explanation)]
    if row is not None:
        return [reason("replay open", "replayed, and nobody can say: {why}", why=row.explanation)]
    sampled = next((row.sampled for row in rows if row.sampled), "")
    words = "{share} of its elements is what float64 makes of its inputs"
    return [reason("replay sampled", words, share=sampled)] if sampled else []


def _is_clean(root: Root, rows: Sequence[Replayed]) -> bool:
    """Whether all outputs were judged in full, and the one that differs is among them."""
    full = all(row.verdict is Judged.CLEAN and not row.sampled and not row.explanation for row in rows)
    return bool(rows) and full and (root.cause is Cause.GAP or any(row.slot == root.slot for row in rows))


def _tells_arguments(root: Root) -> bool:
    target, golden = root.pair.target_op, root.pair.golden_op
    return target is not None and golden is not None and any(differing_arguments(target, golden))


def _largest(rows: Sequence[Replayed]) -> float:
    return max((row.rms_ratio for row in rows if row.rms_ratio is not None), default=0.0)


def _unseen(
    findings: Sequence[Finding], rows: dict[int, list[Replayed]], orders: set[int]
) -> list[tuple[Finding, Replayed]]:
    """Of operators that are guilty and no root: the worst output, and what was compared of it."""
    outputs = {(one.pair.target_op.order, one.pair.target.slot): one for one in findings
               if one.pair.target_op is not None and one.pair.target is not None and is_output(one.pair)}  # fmt: skip
    found = []
    for order in sorted(orders):
        wrong = [row for row in rows[order] if row.verdict is Judged.GUILTY and (order, row.slot) in outputs]
        if wrong:
            worst = max(wrong, key=lambda row: row.rms_ratio or 0.0)
            found.append((outputs[order, worst.slot], worst))
    return found


def _born(finding: Finding, row: Replayed) -> Root:
    """A root that the comparison did not see."""
    tensor = finding.pair.target
    limit = RMS_16 if tensor is not None and tensor.dtype in ("float16", "bfloat16") else RMS
    words = "below what the comparison can tell" if finding.error is not None else "not compared"
    evidence = (*guilty_reasons([row]), reason("replay alone", words))
    return Root(0, finding.pair, Cause.BORN, row.slot, "rms_ratio", row.rms_ratio, limit, None, finding.error,
                evidence, RULE)  # fmt: skip


def _undone(rows: Sequence[Replayed]) -> list[str]:
    """What was not replayed of what was asked for, in one line."""
    left = Counter((row.status, row.explanation) for row in rows if row.status != REPLAYED)
    if not left:
        return []
    (status, because), _ = left.most_common(1)[0]
    return [
        f"--replay: {sum(left.values()):,} of {len(rows):,} outputs were not replayed, most for {status}: {because}"
    ]
