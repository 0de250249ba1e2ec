"""next_dump.json: the configuration of a dump that holds the values which a comparison leaves open.

It is written in the words of the tool that made the dump, with the names that this tool takes; where the tool dumps
more than it is asked for, the size counts that too. Sources: msprobe 26.2, its configuration and scope.py; CANN's
acl.json; MindSpore's dump JSON.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.next_dump import Open, Wishes, in_order
from npucmp.model import Comparison, Operator, Pair, Report, Run, each
from npucmp.report.answer import Row
from npucmp.report.recorded import OfMindspore, OfMsprobe, Recorded, level
from npucmp.report.words import count_of, in_bytes

SIDES = ("target", "golden")
FILES = ("next_dump.json", "next_dump_golden.json")  # the second where two differ
FOLDER = "next_dump"  # where the configuration makes the tool write
_DEVICES = 8  # of a server, at most


class Asked(NamedTuple):
    """What a configuration asks for: names, steps and ranks (empty: all), and what is known of one of the runs."""

    names: "list[str]"
    steps: "list[int]"
    ranks: "list[int]"
    run: "Given"


def _of_msprobe(asked: Asked) -> Row:
    task = {"scope": [], "list": asked.names, "data_mode": ["all"]}
    where = {"rank": asked.ranks, "step": asked.steps}
    return {"task": "tensor", "dump_path": f"./{FOLDER}", **where, "level": asked.run.level, "tensor": task}


def _of_cann(asked: Asked) -> Row:
    models = [{"model_name": name} for name in asked.run.detail.split(" · ") if name] or [{"model_name": ""}]
    steps = {"dump_step": "|".join(map(str, asked.steps))} if asked.steps else {}
    what = {"dump_mode": "all", "dump_op_switch": "off", "dump_data": "tensor", **steps}
    return {"dump": {"dump_list": [{**model, "layer": asked.names} for model in models], "dump_path": FOLDER, **what}}


def _of_mindspore(asked: Asked) -> Row:
    devices = asked.ranks if asked.ranks and max(asked.ranks) < _DEVICES else [*range(_DEVICES)]
    common = {
        "op_debug_mode": 0,
        "dump_mode": 1,
        "path": "",
        "net_name": FOLDER,
        "iteration": "|".join(map(str, asked.steps)) or "all",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": asked.names,
        "support_device": devices,
        "file_format": "npy",
    }
    return {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}


class Format(NamedTuple):
    """How the operators of a format are asked for, and how its dump is configured."""

    recorded: "Callable[[Run], Recorded]"
    config: "Callable[[Asked], Row]"


FORMATS = {
    "msprobe": Format(OfMsprobe, _of_msprobe),
    "cann": Format(Recorded, _of_cann),
    "mindspore": Format(OfMindspore, _of_mindspore),
}


class Wanted(NamedTuple):
    """The operators of one comparison whose values would tell more; of both sides, target first.

    roots  that they would decide; `runs`: format, step and rank
    names  by the order of an operator: what asks for it, "" for nothing, and whether it lacks values; None on a side
           that has no such operator
    """

    roots: "tuple[Open, ...]"
    runs: "tuple[tuple[str, Optional[int], Optional[int]], ...]"
    names: "Mapping[int, tuple[Optional[tuple[str, bool]], ...]]"

    @classmethod
    def of(cls, one: Comparison, wishes: Wishes) -> "Wanted":
        runs = one.target, one.golden
        recorded = [FORMATS[run.format].recorded(run) if run.format in FORMATS else None for run in runs]
        names = {order: tuple(map(_asked, recorded, _sides(pair))) for order, pair in wishes.pairs.items()}
        return cls(wishes.roots, tuple((run.format, run.step, run.rank) for run in runs), names)


def _sides(pair: Pair) -> "tuple[Optional[Operator], Optional[Operator]]":
    return pair.target_op, pair.golden_op


def _asked(recorded: Optional[Recorded], operator: Optional[Operator]) -> "Optional[tuple[str, bool]]":
    if operator is None:
        return None
    lacks = not operator.reads_recorded or any(one.problem or not one.file for one in operator.tensors)
    return recorded.asked(operator) if recorded is not None else "", lacks


class Given(NamedTuple):
    """Of one run what a configuration has to know, and what is dumped where names are asked for: by name, operators by
    their order and what each takes on a disk."""

    format: str
    detail: str
    level: str
    step: Optional[int]
    rank: Optional[int]
    names: "Mapping[str, tuple[tuple[int, int], ...]]"

    @classmethod
    def of(cls, run: Run, names: "Iterable[str]") -> "Given":
        recorded = FORMATS[run.format].recorded(run)
        found = {name: tuple((order, recorded.bytes([order])) for order in recorded.given(name)) for name in names}
        known = run.format, run.detail, level(run) if run.format == "msprobe" else "", run.step, run.rank
        return cls(*known, found)


def given_of(names: "Mapping[int, frozenset[str]]", number: int, one: Comparison) -> "dict[int, Given]":
    """What both sides of a comparison give for the names that are asked of them; a plain function."""
    return {side: Given.of((one.target, one.golden)[side], some) for side, some in names.items()}


@dataclass
class _Plan:
    """The dump of one side as it grows: names × steps and ranks, and what that takes on a disk."""

    runs: "Mapping[int, Given]"  # by comparison
    names: "dict[str, None]" = field(default_factory=dict)
    steps: "frozenset[Optional[int]]" = frozenset()
    ranks: "frozenset[Optional[int]]" = frozenset()
    taken: "dict[int, dict[int, int]]" = field(default_factory=dict)  # by comparison: operators and what they take
    size: int = 0

    def grown(self, number: int, name: str) -> "_Plan":
        """The plan that has one more name, in the run of that comparison too."""
        if name in self.names and number in self.taken:
            return self
        steps, ranks = self.steps | {self.runs[number].step}, self.ranks | {self.runs[number].rank}
        taken, size = dict(self.taken), self.size
        for place, run in self.runs.items():
            if run.step in steps and run.rank in ranks:
                known = taken.setdefault(place, {})
                names = [name] if place in self.taken else [*self.names, name]
                more = {order: bytes_ for asked in names for order, bytes_ in run.names[asked] if order not in known}
                if more:
                    taken[place] = {**known, **more}
                    size += sum(more.values())
        return _Plan(self.runs, {**self.names, name: None}, steps, ranks, taken, size)

    def config(self) -> Row:
        """What the tool that made the dump has to be told."""
        steps, ranks = (sorted(one for one in some if one is not None) for some in (self.steps, self.ranks))
        run = self.runs[min(self.taken)]
        return FORMATS[run.format].config(Asked([*self.names], steps, ranks, run))


class NextDump(NamedTuple):
    """What is to be dumped next.

    files      configurations by the name of their file; none where not even one operator fits on the disk
    operators  how many are asked for; `wanted`: how many would be on a disk without end
    complete   whether they are asked for in all steps and ranks in which they are wanted
    bytes      of the larger side; where nothing fits, of the smallest operator
    sides      whose values are wanted
    """

    files: "dict[str, str]"
    operators: int
    wanted: int
    complete: bool
    bytes: int
    sides: "tuple[str, ...]"


def next_dump(report: Report, wanted: "Sequence[Wanted]") -> Optional[NextDump]:
    """The dump that would tell more than a comparison does; None if there is none, or nobody knows how it is made.
    `wanted` is what each comparison wants."""
    found = in_order([one.roots for one in wanted])
    asks = [(number, wanted[number].names[order]) for number, order in found]
    lacking = [at for at in range(len(SIDES)) if any(asked[1] for _, one in asks if (asked := one[at]) is not None)]
    plans = {side: _Plan(runs) for side, runs in _given(report, wanted, asks, lacking).items()}
    whole: set[str] = set()
    sizes: list[int] = []  # of what did not fit
    too_large: set[object] = set()  # names and runs that did not, nor will when more is asked for
    for number, one in asks:
        names = {side: asked[0] for side in plans if (asked := one[side]) is not None and asked[0]}
        key = tuple(names.values())
        whole.update(key[:1])
        if not names or key in too_large or number in too_large:
            continue
        grown = {side: plans[side].grown(number, name) for side, name in names.items()}
        size = max(plan.size for plan in grown.values())
        if report.disk is None or size <= report.disk:
            plans.update(grown)
        else:
            sizes.append(size)
            is_asked_for = all(name in plans[side].names for side, name in names.items())
            too_large.add(number if is_asked_for else key)
    if not whole:
        return None
    configs = [json.dumps(plan.config(), indent=4, ensure_ascii=True) + "\n" for plan in plans.values() if plan.names]
    files = dict(zip(FILES, dict.fromkeys(configs)))  # one does for both sides if it is the same
    most = max(len(plan.names) for plan in plans.values())
    size = max(plan.size for plan in plans.values()) if files else min(sizes)
    return NextDump(files, most, len(whole), not sizes, size, tuple(SIDES[at] for at in lacking))


def _given(
    report: Report,
    wanted: "Sequence[Wanted]",
    asks: "Sequence[tuple[int, tuple[Optional[tuple[str, bool]], ...]]]",
    lacking: "Sequence[int]",
) -> "dict[int, dict[int, Given]]":
    """By side: what the runs of all comparisons give that such a dump would hold; no side of which it is not known how
    its dumps are configured."""
    sides = [at for at in lacking if {one.runs[at][0] for one in wanted} <= {*FORMATS}]
    names = {at: frozenset(asked[0] for _, one in asks if (asked := one[at]) and asked[0]) for at in sides}
    meant: set[int] = set()
    for at in sides:
        steps, ranks = ({wanted[number].runs[at][part] for number, _ in asks} for part in (1, 2))
        meant.update(
            number for number, one in enumerate(wanted) if one.runs[at][1] in steps and one.runs[at][2] in ranks
        )
    numbers = sorted(meant)
    found: "dict[int, dict[int, Given]]" = {at: {} for at in sides}
    known: "dict[tuple[tuple[str, tuple[tuple[int, int], ...]], ...], Mapping[str, tuple[tuple[int, int], ...]]]" = {}
    for number, both in zip(numbers, each(report.comparisons, partial(given_of, names), numbers=numbers)):
        for at, one in both.items():  # most runs are those of one network: what they give is kept once
            same = known.setdefault(tuple(sorted(one.names.items())), one.names)
            found[at][number] = one._replace(names=same)
    return found


def facts(found: Optional[NextDump]) -> Optional[Row]:
    """What summary.json says of it."""
    return None if found is None else {**found._asdict(), "files": [*found.files]}


def files(found: Optional[NextDump]) -> "dict[str, str]":
    """The configurations, by the name of their file."""
    return found.files if found is not None else {}


def remarks(report: Report, found: "Optional[NextDump]", folder: str) -> "list[str]":
    """What to run next, in one line."""
    if found is None:
        return []
    if not found.files:
        return [
            f"next: the values of none of {count_of(found.wanted, 'operator')} fit on a disk of "
            f"{in_bytes(report.disk or 0)}; the smallest take {in_bytes(found.bytes)}"
        ]
    where = " and ".join(f"{folder}/{name}" for name in found.files)
    more = "" if found.operators < found.wanted else " in more steps or ranks"
    few = "" if found.complete else f", what fits of {found.wanted:,}{more}"
    whose = "both runs" if len(found.sides) > 1 else f"the {found.sides[0]} run"
    also = *report.also, *(f"{side}=DUMP" for side in found.sides)
    command = shlex.join(["npucmp", "compare", *report.paths, *(word for one in also for word in ("--also", one))])
    what = f"{count_of(found.operators, 'operator')} ({in_bytes(found.bytes)}{few})"
    return [f"next: dump the values of {what} of {whose} with {where}, then {command}"]
