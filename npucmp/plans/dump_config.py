"""Select operators of an earlier dump name by name, count the size of their dump, and return its configuration.

Each operator has the names that select it in the tool of the dump, and its size on a disk. If a tool dumps more than
the selected operators, the additional ones are counted too. Sources: msprobe 26.2, its configuration and scope.py;
CANN's acl.json; MindSpore's dump JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.model import Operator, Run
from npucmp.model.dtypes import size_of
from npucmp.model.roles import containers
from npucmp.plans import tool_configs
from npucmp.plans.request import VALUES
from npucmp.plans.tool_configs import Row, ranges_of

LEVELS = ("L0", "L1", "mix")
REPLACEABLE = re.compile("[^0-9A-Za-z-]")  # characters that a file name may replace


@dataclass
class RecordedOperators:
    """The operators of one run of a dump, by the names that select them in its tool."""

    run: Run

    def selecting_name(self, operator: Operator) -> str:
        """Return the name that selects an operator, "" if there is none."""
        return operator.name

    def selected(self, name: str) -> Sequence[int]:
        """Return the operators, by their order, that a name selects."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if name := self.selecting_name(operator):
                found[name].append(operator.order)
        return found

    def bytes(self, orders: Iterable[int]) -> int:
        """Return the bytes of operators on a disk; npy has no bfloat16, so MindSpore writes float32."""
        widened = {"bfloat16": "float32"} if "mindspore" in (self.run.format, self.run.detail.split(" ")[0]) else {}
        tensors = (tensor for order in orders for tensor in self._by_order[order].tensors)
        return sum(size_of(widened.get(tensor.dtype, tensor.dtype), tensor.stored_shape) for tensor in tensors)

    @cached_property
    def _by_order(self) -> dict[int, Operator]:
        return {operator.order: operator for operator in self.run.operators}


class MsprobeOperators(RecordedOperators):
    """The selection of msprobe: every record whose name contains a name of the list.

    With level mix, all operators inside a selected module are dumped too. Gradients of parameters are dumped with the
    backward of their module.
    """

    def selecting_name(self, operator: Operator) -> str:
        owner, found, _ = operator.name.partition(".parameters_grad")
        if found:
            return f"{owner}.backward"
        return operator.name if operator.phase else ""  # other records are written by save()

    def selected(self, name: str) -> Sequence[int]:
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
        """All names, one per line."""
        return "".join(f"{_in_one_line(operator.name)}\n" for operator in self.run.operators)

    @cached_property
    def _starts(self) -> list[int]:
        """The start of each line, and the end of the last one."""
        return [*accumulate((len(operator.name) + 1 for operator in self.run.operators), initial=0)]

    @cached_property
    def _inside(self) -> dict[str, list[int]]:
        """The operators inside each module, if the level includes them."""
        found: dict[str, list[int]] = defaultdict(list)
        if level(self.run) == "mix":
            scopes = {operator.name: operator.scope for operator in self.run.operators if operator.scope}
            for operator in self.run.operators:
                for key in containers(operator, scopes):
                    found[key].append(operator.order)
        return found

    @cached_property
    def _gradients(self) -> dict[str, list[int]]:
        """Gradients of parameters by their module."""
        found: dict[str, list[int]] = defaultdict(list)
        for operator in self.run.operators:
            if ".parameters_grad" in operator.name:
                found[operator.call].append(operator.order)
        return found


class MindsporeOperators(RecordedOperators):
    """The selection of MindSpore: kernels by a regular expression; parameters are not kernels.

    File names contain kernel names with "_" for "/", or only their last part.
    """

    def selecting_name(self, operator: Operator) -> str:
        return "" if operator.op_type == "Parameter" else f"name-regex(^(.*/)?{REPLACEABLE.sub('.', operator.name)}$)"


def network(run: Run) -> str:
    """Return the key of a network: in runs with equal keys, the same names select the same tensors of the same size."""
    known = blake2b(repr((run.format, run.detail)).encode("utf-8", "backslashreplace"), digest_size=16)
    for operator in run.operators:
        about = operator.name, operator.op_type, operator.phase, operator.order, operator.scope, operator.path
        tensors = [(one.dtype, *one.stored_shape) for one in operator.tensors]
        known.update(repr((about, operator.call, tensors)).encode("utf-8", "backslashreplace"))
    return known.hexdigest()


def _in_one_line(name: str) -> str:
    return name.replace("\n", " ")


def level(run: Run) -> str:
    """Return msprobe's word for what was recorded: modules (L0), APIs (L1), or both (mix)."""
    word = run.detail.rpartition(" · ")[2].partition(" ")[0]
    if word in LEVELS:
        return word
    kinds = {bool(operator.path) for operator in run.operators if operator.phase}
    return "mix" if len(kinds) > 1 else "L0" if True in kinds else "L1"


FOLDER = "next_dump"  # folder of the dump, written to the configuration
Sizes = tuple[tuple[int, int], ...]  # (order, bytes on a disk) of operators


class DumpSelection(NamedTuple):
    """The selection of a configuration: names, steps and ranks (empty: all), and the known facts of one run."""

    names: list[str]
    steps: list[int]
    ranks: list[int]
    run: RunFacts


def _of_msprobe(selection: DumpSelection) -> Row:
    steps, ranks = ranges_of(selection.steps), ranges_of(selection.ranks)
    return tool_configs.msprobe(f"./{FOLDER}", VALUES, steps, ranks, selection.run.level, selection.names)


def _of_cann(selection: DumpSelection) -> Row:
    models = [name for name in selection.run.detail.split(" · ") if name]
    return tool_configs.acl(models, FOLDER, VALUES, ranges_of(selection.steps), selection.names)


def _of_mindspore(selection: DumpSelection) -> Row:
    ranks = selection.ranks if selection.ranks and max(selection.ranks) < tool_configs.DEVICES else []
    return tool_configs.mindspore(FOLDER, VALUES, ranges_of(selection.steps), ranges_of(ranks), selection.names)


class Format(NamedTuple):
    """How to name the operators of a format, and how to configure its dump."""

    recorded: Callable[[Run], RecordedOperators]
    config: Callable[[DumpSelection], Row]


FORMATS = {
    "msprobe": Format(MsprobeOperators, _of_msprobe),
    "cann": Format(RecordedOperators, _of_cann),
    "mindspore": Format(MindsporeOperators, _of_mindspore),
}


def recorded_operators(run: Run) -> Optional[RecordedOperators]:
    """Return a run by the names that its tool takes; None if the configuration of its tool is unknown."""
    return FORMATS[run.format].recorded(run) if run.format in FORMATS else None


class Names(dict[str, Sizes]):
    """Operators that a name selects, computed on first use."""

    def __init__(self, run: RecordedOperators) -> None:
        self._run = run

    def __missing__(self, name: str) -> Sizes:
        self[name] = found = tuple((order, self._run.bytes([order])) for order in self._run.selected(name))
        return found


class RunFacts(NamedTuple):
    """The facts of one run that a configuration needs, and the operators that each name selects."""

    format: str
    detail: str
    level: str
    step: Optional[int]
    rank: Optional[int]
    names: Mapping[str, Sizes]

    @classmethod
    def of(cls, run: Run, names: Optional[Iterable[str]] = None) -> RunFacts:
        """Return the facts of a run, limited to `names`, so that they are small to pass on; else all on demand."""
        every = Names(FORMATS[run.format].recorded(run))
        known = run.format, run.detail, level(run) if run.format == "msprobe" else "", run.step, run.rank
        return cls(*known, every if names is None else {name: every[name] for name in names})


class NameCost(NamedTuple):
    """The effect of one more name: operators and their sizes, by run, and the total size."""

    name: str
    taken: dict[int, dict[int, int]]
    size: int


class SideSelection:
    """The dump of one side, selected step by step: names × steps and ranks, and its size. `runs` are numbered."""

    def __init__(self, runs: Mapping[int, RunFacts]) -> None:
        self.runs = runs
        self.names: dict[str, None] = {}
        self.steps: set[Optional[int]] = set()
        self.ranks: set[Optional[int]] = set()
        self.taken: dict[int, dict[int, int]] = {}  # by run: order of each operator → bytes
        self.size = 0

    def cost_of(self, number: int, name: str) -> NameCost:
        """Return what a name from the run of that number adds, in all steps and ranks selected then."""
        found: dict[int, dict[int, int]] = {}
        if name in self.names and number in self.taken:
            return NameCost(name, found, 0)
        steps, ranks = self.steps | {self.runs[number].step}, self.ranks | {self.runs[number].rank}
        for place, run in self.runs.items():
            if run.step in steps and run.rank in ranks:
                known = self.taken.get(place)
                names = [*self.names, name] if known is None else [name]
                found[place] = {
                    order: size
                    for operator_name in names
                    for order, size in run.names[operator_name]
                    if order not in (known or ())
                }
        return NameCost(name, found, sum(sum(new.values()) for new in found.values()))

    def take(self, more: NameCost) -> None:
        """Add the selection."""
        self.names[more.name] = None
        for place, new in more.taken.items():
            self.taken.setdefault(place, {}).update(new)
            self.steps.add(self.runs[place].step)
            self.ranks.add(self.runs[place].rank)
        self.size += more.size

    def config(self) -> Row:
        """Return the configuration of the tool that made the dump."""
        steps, ranks = (sorted(one for one in numbers if one is not None) for numbers in (self.steps, self.ranks))
        run = self.runs[min(self.taken)]
        return FORMATS[run.format].config(DumpSelection([*self.names], steps, ranks, run))
