"""Write next_dump.json: the configuration of a dump with the values that a comparison needs to decide open root causes.

The format and the names are those of the tool that made the dump (npucmp/dump_plan/).
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.next_dump import OpenRoot, OpenRoots, in_order
from npucmp.model import Comparison, Operator, Report, map_comparisons
from npucmp.model.table import run_fact
from npucmp.report.answer import Row
from npucmp.report.phrases import count_of, in_bytes

if TYPE_CHECKING:
    from npucmp.plans.dump_config import RecordedOperators, RunFacts, Sizes

SIDES = ("target", "golden")
FILES = ("next_dump.json", "next_dump_golden.json")  # the second if the configurations of the sides differ


class RequestedOperators(NamedTuple):
    """The operators of one comparison whose values would decide more; sides are in the order target, golden.

    roots  the open root causes that they would decide; `runs`: format, step and rank
    names  by the order of an operator: the name that selects it in a dump, "" if there is none, and whether it lacks
           values; None for a side without the operator
    networks  of both sides: equal networks have the same tensors for the same names; "" if nothing is requested
    """

    roots: tuple[OpenRoot, ...]
    runs: tuple[tuple[str, Optional[int], Optional[int]], ...]
    names: Mapping[int, tuple[Optional[tuple[str, bool]], ...]]
    networks: tuple[str, ...] = ("", "")

    @classmethod
    def of(cls, one: Comparison, wishes: OpenRoots) -> RequestedOperators:
        runs = one.target, one.golden
        where = tuple((run.format, run.step, run.rank) for run in runs)
        if not wishes.roots:
            return cls((), where, {})
        from npucmp.plans.dump_config import network, recorded_operators

        both = [*map(recorded_operators, runs)]
        names = {order: tuple(map(_request, both, sides)) for order, sides in wishes.operators.items()}
        return cls(wishes.roots, where, names, tuple(run_fact(run, network, "payload") for run in runs))


def _request(run: Optional[RecordedOperators], operator: Optional[Operator]) -> Optional[tuple[str, bool]]:
    if operator is None:
        return None
    lacks = not operator.reads_recorded or any(one.problem or not one.file for one in operator.tensors)
    return run.selecting_name(operator) if run is not None else "", lacks


def requested_tensors(names: Mapping[int, frozenset[str]], number: int, one: Comparison) -> dict[int, RunFacts]:
    """Return the tensors that both sides of a comparison contain for the requested names; a plain function, for
    workers."""
    from npucmp.plans.dump_config import RunFacts

    return {side: RunFacts.of((one.target, one.golden)[side], requested) for side, requested in names.items()}


class NextDump(NamedTuple):
    """The next dump.

    files      configurations by file name; empty if not even one operator fits on the disk
    operators  number of requested operators; `wanted`: the number without a limit of the disk
    complete   every wanted operator is requested in all its steps and ranks
    bytes      size of the larger side; if nothing fits, of the smallest operator
    sides      sides whose values are requested
    """

    files: dict[str, str]
    operators: int
    wanted: int
    complete: bool
    bytes: int
    sides: tuple[str, ...]

    def facts(self) -> Row:
        """Return its values for summary.json."""
        return {**self._asdict(), "files": [*self.files]}

    def remark(self, report: Report, folder: str) -> str:
        """Return the command to run next, in one line."""
        if not self.files:
            return (
                f"next: none of {count_of(self.wanted, 'requested operator')} fits into {in_bytes(report.disk or 0)}; "
                f"the smallest needs {in_bytes(self.bytes)}"
            )
        where = " and ".join(f"{folder}/{name}" for name in self.files)
        more = "" if self.operators < self.wanted else " in more steps or ranks"
        few = "" if self.complete else f"; {self.wanted:,} were requested{more}, the rest does not fit"
        whose = "both runs" if len(self.sides) > 1 else f"the {self.sides[0]} run"
        also = *report.also, *(f"{side}=DUMP" for side in self.sides)
        command = shlex.join(["npucmp", "compare", *report.paths, *(word for one in also for word in ("--also", one))])
        what = f"{count_of(self.operators, 'operator')} ({in_bytes(self.bytes)}{few})"
        return f"next: dump the values of {what} of {whose} with {where}, then {command}"


def next_dump(report: Report, wanted: Sequence[RequestedOperators]) -> Optional[NextDump]:
    """Return the dump that would decide more than a comparison does; None if there is none, or if its tool has no known
    configuration. `wanted` has the request of each comparison."""
    found = in_order([one.roots for one in wanted])
    if not found:
        return None
    from npucmp.plans.dump_config import SideSelection
    from npucmp.plans.tool_configs import text_of

    asks = [(number, wanted[number].names[order]) for number, order in found]
    lacking = [at for at in range(len(SIDES)) if any(request[1] for _, one in asks if (request := one[at]) is not None)]
    plans = {side: SideSelection(runs) for side, runs in _tensors_by_side(report, wanted, asks, lacking).items()}
    whole: set[str] = set()
    sizes: list[int] = []  # sizes of requests that did not fit
    too_large: set[object] = set()  # names and runs that do not fit, nor will later
    for number, one in asks:
        names = {side: request[0] for side in plans if (request := one[side]) is not None and request[0]}
        key = tuple(names.values())
        whole.update(key[:1])
        if not names or key in too_large or number in too_large:
            continue
        more = {side: plans[side].cost_of(number, name) for side, name in names.items()}
        size = max(plans[side].size + one.size for side, one in more.items())
        if report.disk is None or size <= report.disk:
            for side, one_more in more.items():
                plans[side].take(one_more)
        else:
            sizes.append(size)
            is_asked_for = all(name in plans[side].names for side, name in names.items())
            too_large.add(number if is_asked_for else key)
    if not whole:
        return None
    configs = [text_of(plan.config()) for plan in plans.values() if plan.names]
    files = dict(zip(FILES, dict.fromkeys(configs)))  # one file for both sides if the configurations are equal
    most = max(len(plan.names) for plan in plans.values())
    size = max(plan.size for plan in plans.values()) if files else min(sizes)
    return NextDump(files, most, len(whole), not sizes, size, tuple(SIDES[at] for at in lacking))


def _tensors_by_side(
    report: Report,
    wanted: Sequence[RequestedOperators],
    asks: Sequence[tuple[int, tuple[Optional[tuple[str, bool]], ...]]],
    lacking: Sequence[int],
) -> dict[int, dict[int, RunFacts]]:
    """Return, by side, the tensors that such a dump would contain in the runs of all comparisons. Sides without a known
    dump configuration are skipped."""
    from npucmp.plans.dump_config import FORMATS

    sides = [at for at in lacking if {one.runs[at][0] for one in wanted if one.runs} <= {*FORMATS}]
    names = {at: frozenset(request[0] for _, one in asks if (request := one[at]) and request[0]) for at in sides}
    meant: set[int] = set()
    for at in sides:
        steps, ranks = ({wanted[number].runs[at][part] for number, _ in asks} for part in (1, 2))
        meant.update(
            number
            for number, one in enumerate(wanted)
            if one.runs and one.runs[at][1] in steps and one.runs[at][2] in ranks
        )
    found: dict[int, dict[int, RunFacts]] = {at: {} for at in sides}
    alike: dict[object, list[int]] = {}  # comparisons of equal networks, usually all; only the first is examined
    for number in sorted(meant):
        key = wanted[number].networks
        alike.setdefault(key if all(key) else number, []).append(number)
    known: dict[object, Mapping[str, Sizes]] = {}  # shares the mapping that most runs have in common
    numbers = [numbers_alike[0] for numbers_alike in alike.values()]
    facts = map_comparisons(report.comparisons, partial(requested_tensors, names), numbers=numbers)
    for numbers_alike, both in zip(alike.values(), facts):
        for at, one in both.items():
            one = one._replace(names=known.setdefault(tuple(sorted(one.names.items())), one.names))
            runs = [(number, wanted[number].runs[at]) for number in numbers_alike]
            found[at].update((number, one._replace(step=step, rank=rank)) for number, (_, step, rank) in runs)
    return found
