"""next_dump.json: the configuration of a dump that holds the values which a comparison leaves open.

It is written in the words of the tool that made the dump, with the names that this tool takes; where the tool dumps
more than it is asked for, the size counts that too. Sources: msprobe 26.2, its configuration and scope.py; CANN's
acl.json; MindSpore's dump JSON.
"""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

from npucmp.localise.next_dump import Linked, Wish, wishes
from npucmp.localise.nodes import containers
from npucmp.model import Comparison, Operator, Report, Run
from npucmp.model.dtypes import size_of
from npucmp.report.answer import Row
from npucmp.report.words import count_of, in_bytes

SIDES = ("target", "golden")
FILES = ("next_dump.json", "next_dump_golden.json")  # the second where two differ
FOLDER = "next_dump"  # where the configuration makes the tool write
_LEVELS = ("L0", "L1", "mix")
_DEVICES = 8  # of a server, at most
_UNSURE = re.compile("[^0-9A-Za-z-]")  # what a file name may have instead of another character


@dataclass
class Recorded:
    """The operators of one run of a dump, by the names under which its tool is asked for them."""

    run: Run

    def asked(self, operator: Operator) -> str:
        """The name that asks for an operator, "" if there is none."""
        return operator.name

    def given(self, name: str) -> "Sequence[int]":
        """The operators, by their order, that are dumped where a name is asked for."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> "dict[str, list[int]]":
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if name := self.asked(operator):
                found[name].append(operator.order)
        return found

    def bytes(self, orders: "Iterable[int]") -> int:
        """What operators take on a disk; npy has no bfloat16, MindSpore writes float32 for it."""
        widened = {"bfloat16": "float32"} if "mindspore" in (self.run.format, self.run.detail.split(" ")[0]) else {}
        tensors = (tensor for order in orders for tensor in self._by_order[order].tensors)
        return sum(size_of(widened.get(tensor.dtype, tensor.dtype), tensor.stored_shape) for tensor in tensors)

    @cached_property
    def _by_order(self) -> "dict[int, Operator]":
        return {operator.order: operator for operator in self.run.operators}


class OfMsprobe(Recorded):
    """msprobe dumps every record whose name holds a name of the list; with level mix also all that runs inside such a
    module. Gradients of parameters come with the backward of their module."""

    def asked(self, operator: Operator) -> str:
        owner, found, _ = operator.name.partition(".parameters_grad")
        if found:
            return f"{owner}.backward"
        return operator.name if operator.phase else ""  # else save() wrote it

    def given(self, name: str) -> "Sequence[int]":
        found, operators = set(), self.run.operators
        at = self._text.find(name)
        while at >= 0:
            line = bisect_right(self._starts, at) - 1
            operator = operators[line]
            found.add(operator.order)
            for key in (operator.name, f"{operator.phase} {operator.path}"):
                found.update(self._inside.get(key, ()))
            if operator.phase == "backward":
                found.update(self._gradients.get(operator.call.rpartition(".")[0], ()))
            at = self._text.find(name, self._starts[line + 1])
        return sorted(found)

    @cached_property
    def _text(self) -> str:
        """All names, a line each."""
        return "".join(f"{_in_one_line(operator.name)}\n" for operator in self.run.operators)

    @cached_property
    def _starts(self) -> "list[int]":
        """Where each line begins, and where the last one ends."""
        return [*accumulate((len(operator.name) + 1 for operator in self.run.operators), initial=0)]

    @cached_property
    def _inside(self) -> "dict[str, list[int]]":
        """What runs inside of each module, where the level makes that go with it."""
        found: dict[str, list[int]] = defaultdict(list)
        if level(self.run) == "mix":
            scopes = {operator.name: operator.scope for operator in self.run.operators if operator.scope}
            for operator in self.run.operators:
                for key in containers(operator, scopes):
                    found[key].append(operator.order)
        return found

    @cached_property
    def _gradients(self) -> "dict[str, list[int]]":
        """Gradients of parameters by their module."""
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if ".parameters_grad" in operator.name:
                found[operator.call].append(operator.order)
        return found


class OfMindspore(Recorded):
    """Kernels by a regular expression: files bear their names with "_" for "/", or the last part of them alone.
    Parameters are no kernels."""

    def asked(self, operator: Operator) -> str:
        return "" if operator.op_type == "Parameter" else f"name-regex(^(.*/)?{_UNSURE.sub('.', operator.name)}$)"


def _in_one_line(name: str) -> str:
    return name.replace("\n", " ")


def level(run: Run) -> str:
    """msprobe's word for what was recorded: modules, APIs, or both."""
    word = run.detail.rpartition(" · ")[2].partition(" ")[0]
    if word in _LEVELS:
        return word
    kinds = {bool(operator.path) for operator in run.operators if operator.phase}
    return "mix" if len(kinds) > 1 else "L0" if True in kinds else "L1"


class Asked(NamedTuple):
    """What a configuration asks for: names, steps and ranks (empty: all), and one of the runs."""

    names: "list[str]"
    steps: "list[int]"
    ranks: "list[int]"
    run: Run


def _of_msprobe(asked: Asked) -> Row:
    task = {"scope": [], "list": asked.names, "data_mode": ["all"]}
    where = {"rank": asked.ranks, "step": asked.steps}
    return {"task": "tensor", "dump_path": f"./{FOLDER}", **where, "level": level(asked.run), "tensor": task}


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


@dataclass
class _Plan:
    """The dump of one side as it grows: names × steps and ranks, and what that takes on a disk."""

    runs: "list[Recorded]"  # one for each comparison
    names: "dict[str, None]" = field(default_factory=dict)
    steps: "frozenset[Optional[int]]" = frozenset()
    ranks: "frozenset[Optional[int]]" = frozenset()
    taken: "dict[int, set[int]]" = field(default_factory=dict)  # by comparison: operators by their order
    size: int = 0

    def grown(self, number: int, name: str) -> "_Plan":
        """The plan that has one more name, in the run of that comparison too."""
        if name in self.names and number in self.taken:
            return self
        steps, ranks = self.steps | {self.runs[number].run.step}, self.ranks | {self.runs[number].run.rank}
        taken, size = dict(self.taken), self.size
        for place, one in enumerate(self.runs):
            if one.run.step in steps and one.run.rank in ranks:
                known = taken.setdefault(place, set())
                names = [name] if place in self.taken else [*self.names, name]
                more = {order for asked in names for order in one.given(asked)} - known
                if more:
                    taken[place] = known | more
                    size += one.bytes(more)
        return _Plan(self.runs, {**self.names, name: None}, steps, ranks, taken, size)

    def config(self) -> Row:
        """What the tool that made the dump has to be told."""
        steps, ranks = (sorted(one for one in some if one is not None) for some in (self.steps, self.ranks))
        run = self.runs[min(self.taken)].run
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


def next_dump(report: Report, linked: Linked) -> Optional[NextDump]:
    """The dump that would tell more than a comparison does; None if there is none, or nobody knows how it is made."""
    found = wishes(report.comparisons, linked)
    sides = tuple(side for side in SIDES if any(_lacks(side, report.comparisons, wish) for wish in found))
    plans = {side: _Plan(runs) for side in sides if (runs := _recorded(side, report.comparisons))}
    wanted: set[str] = set()
    sizes: list[int] = []  # of what did not fit
    too_large: set[object] = set()  # names and runs that did not, nor will when more is asked for
    for wish in found:
        operators = {side: operator for side in plans if (operator := _of(side, wish)) is not None}
        asked = {side: plans[side].runs[wish.comparison].asked(operator) for side, operator in operators.items()}
        names = {side: name for side, name in asked.items() if name}
        key = tuple(names.values())
        wanted.update(key[:1])
        if not names or key in too_large or wish.comparison in too_large:
            continue
        grown = {side: plans[side].grown(wish.comparison, name) for side, name in names.items()}
        size = max(plan.size for plan in grown.values())
        if report.disk is None or size <= report.disk:
            plans.update(grown)
        else:
            sizes.append(size)
            is_asked_for = all(name in plans[side].names for side, name in names.items())
            too_large.add(wish.comparison if is_asked_for else key)
    if not wanted:
        return None
    configs = [json.dumps(plan.config(), indent=4, ensure_ascii=True) + "\n" for plan in plans.values() if plan.names]
    files = dict(zip(FILES, dict.fromkeys(configs)))  # one does for both sides if it is the same
    most = max(len(plan.names) for plan in plans.values())
    size = max(plan.size for plan in plans.values()) if files else min(sizes)
    return NextDump(files, most, len(wanted), not sizes, size, sides)


def facts(found: Optional[NextDump]) -> Optional[Row]:
    """What summary.json says of it."""
    return None if found is None else {**found._asdict(), "files": [*found.files]}


def _recorded(side: str, comparisons: "Sequence[Comparison]") -> "list[Recorded]":
    """The runs of a side; none if it is not known how their dumps are configured."""
    runs = [getattr(one, side) for one in comparisons]
    return [FORMATS[run.format].recorded(run) for run in runs] if {run.format for run in runs} <= {*FORMATS} else []


def _of(side: str, wish: Wish) -> Optional[Operator]:
    return wish.pair.target_op if side == "target" else wish.pair.golden_op


def _lacks(side: str, comparisons: "Sequence[Comparison]", wish: Wish) -> bool:
    """Whether a dump has an operator without values, or without what it reads."""
    operator = _of(side, wish)
    if operator is None:
        return False
    return not operator.reads_recorded or any(one.problem or not one.file for one in operator.tensors)


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
