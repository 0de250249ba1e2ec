"""Select operators of an earlier dump name by name, count the size of their dump, and return its configuration."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, NamedTuple, Optional

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.questions import VALUES
from npucmp.dump_plan.recorded_ops import OfMindspore, OfMsprobe, Recorded, level
from npucmp.dump_plan.tool_configs import Row, ranges_of
from npucmp.model import Run

FOLDER = "next_dump"  # folder of the dump, written to the configuration
Sizes = tuple[tuple[int, int], ...]  # (order, bytes on a disk) of operators


class Few(NamedTuple):
    """The selection of a configuration: names, steps and ranks (empty: all), and the known facts of one run."""

    names: list[str]
    steps: list[int]
    ranks: list[int]
    run: RunFacts


def _of_msprobe(asked: Few) -> Row:
    steps, ranks = ranges_of(asked.steps), ranges_of(asked.ranks)
    return tool_configs.msprobe(f"./{FOLDER}", VALUES, steps, ranks, asked.run.level, asked.names)


def _of_cann(asked: Few) -> Row:
    models = [name for name in asked.run.detail.split(" · ") if name]
    return tool_configs.acl(models, FOLDER, VALUES, ranges_of(asked.steps), asked.names)


def _of_mindspore(asked: Few) -> Row:
    ranks = asked.ranks if asked.ranks and max(asked.ranks) < tool_configs.DEVICES else []
    return tool_configs.mindspore(FOLDER, VALUES, ranges_of(asked.steps), ranges_of(ranks), asked.names)


class Format(NamedTuple):
    """How to name the operators of a format, and how to configure its dump."""

    recorded: Callable[[Run], Recorded]
    config: Callable[[Few], Row]


FORMATS = {
    "msprobe": Format(OfMsprobe, _of_msprobe),
    "cann": Format(Recorded, _of_cann),
    "mindspore": Format(OfMindspore, _of_mindspore),
}


def recorded(run: Run) -> Optional[Recorded]:
    """Return a run by the names that its tool takes; None if the configuration of its tool is unknown."""
    return FORMATS[run.format].recorded(run) if run.format in FORMATS else None


class Names(dict[str, Sizes]):
    """Operators that a name selects, computed on first use."""

    def __init__(self, run: Recorded) -> None:
        self._run = run

    def __missing__(self, name: str) -> Sizes:
        self[name] = found = tuple((order, self._run.bytes([order])) for order in self._run.given(name))
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


class More(NamedTuple):
    """The effect of one more name: operators and their sizes, by run, and the total size."""

    name: str
    taken: dict[int, dict[int, int]]
    size: int


class Growing:
    """The dump of one side, selected step by step: names × steps and ranks, and its size. `runs` are numbered."""

    def __init__(self, runs: Mapping[int, RunFacts]) -> None:
        self.runs = runs
        self.names: dict[str, None] = {}
        self.steps: set[Optional[int]] = set()
        self.ranks: set[Optional[int]] = set()
        self.taken: dict[int, dict[int, int]] = {}  # by run: order of each operator → bytes
        self.size = 0

    def more(self, number: int, name: str) -> More:
        """Return what a name from the run of that number adds, in all steps and ranks selected then."""
        found: dict[int, dict[int, int]] = {}
        if name in self.names and number in self.taken:
            return More(name, found, 0)
        steps, ranks = self.steps | {self.runs[number].step}, self.ranks | {self.runs[number].rank}
        for place, run in self.runs.items():
            if run.step in steps and run.rank in ranks:
                known = self.taken.get(place)
                names = [*self.names, name] if known is None else [name]
                found[place] = {
                    order: size for asked in names for order, size in run.names[asked] if order not in (known or ())
                }
        return More(name, found, sum(sum(new.values()) for new in found.values()))

    def take(self, more: More) -> None:
        """Add the selection."""
        self.names[more.name] = None
        for place, new in more.taken.items():
            self.taken.setdefault(place, {}).update(new)
            self.steps.add(self.runs[place].step)
            self.ranks.add(self.runs[place].rank)
        self.size += more.size

    def config(self) -> Row:
        """Return the configuration of the tool that made the dump."""
        steps, ranks = (sorted(one for one in some if one is not None) for some in (self.steps, self.ranks))
        run = self.runs[min(self.taken)]
        return FORMATS[run.format].config(Few([*self.names], steps, ranks, run))
