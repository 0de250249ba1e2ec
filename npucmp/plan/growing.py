"""The dump of a few operators of an earlier one, as it grows name by name, and the configuration that makes it."""

from __future__ import annotations

from typing import Callable, Iterable, NamedTuple, Optional, Sequence

from npucmp.model import Run
from npucmp.plan import configs
from npucmp.plan.configs import Row, ranges_of
from npucmp.plan.questions import VALUES
from npucmp.plan.recorded import OfMindspore, OfMsprobe, Recorded, level

FOLDER = "next_dump"  # where the configuration makes the tool write


class Few(NamedTuple):
    """What a configuration asks for: names, steps and ranks (empty: all), and one of the runs."""

    names: "list[str]"
    steps: "list[int]"
    ranks: "list[int]"
    run: Run


def _of_msprobe(asked: Few) -> Row:
    steps, ranks = ranges_of(asked.steps), ranges_of(asked.ranks)
    return configs.msprobe(f"./{FOLDER}", VALUES, steps, ranks, level(asked.run), asked.names)


def _of_cann(asked: Few) -> Row:
    models = [name for name in asked.run.detail.split(" · ") if name]
    return configs.acl(models, FOLDER, VALUES, ranges_of(asked.steps), asked.names)


def _of_mindspore(asked: Few) -> Row:
    ranks = asked.ranks if asked.ranks and max(asked.ranks) < configs.DEVICES else []
    return configs.mindspore(FOLDER, VALUES, ranges_of(asked.steps), ranges_of(ranks), asked.names)


class Format(NamedTuple):
    """How the operators of a format are asked for, and how its dump is configured."""

    recorded: "Callable[[Run], Recorded]"
    config: "Callable[[Few], Row]"


FORMATS = {
    "msprobe": Format(OfMsprobe, _of_msprobe),
    "cann": Format(Recorded, _of_cann),
    "mindspore": Format(OfMindspore, _of_mindspore),
}


def recorded(runs: "Sequence[Run]") -> "list[Recorded]":
    """The runs of a side; none if it is not known how their dumps are configured."""
    return [FORMATS[run.format].recorded(run) for run in runs] if {run.format for run in runs} <= {*FORMATS} else []


class More(NamedTuple):
    """What one more name brings: operators by their order, by run, and their size."""

    name: str
    taken: "dict[int, set[int]]"
    size: int


class Growing:
    """The dump of one side as it grows: names × steps and ranks, and what that takes on a disk."""

    def __init__(self, runs: "Sequence[Recorded]") -> None:
        self.runs = runs
        self.names: dict[str, None] = {}
        self.steps: set[Optional[int]] = set()
        self.ranks: set[Optional[int]] = set()
        self.taken: dict[int, set[int]] = {}  # by run: operators by their order
        self.size = 0

    def more(self, number: int, name: str) -> More:
        """What a name adds that is wanted in the run of that number: in all steps and ranks then asked for."""
        found, size = More(name, {}, 0), 0
        if name in self.names and number in self.taken:
            return found
        steps, ranks = self.steps | {self.runs[number].run.step}, self.ranks | {self.runs[number].run.rank}
        for place, one in enumerate(self.runs):
            if one.run.step in steps and one.run.rank in ranks:
                names: Iterable[str] = [name] if place in self.taken else [*self.names, name]
                new = {order for asked in names for order in one.given(asked)} - self.taken.get(place, set())
                found.taken[place] = new
                size += one.bytes(new)
        return found._replace(size=size)

    def take(self, more: More) -> None:
        """Asks for that too."""
        self.names[more.name] = None
        for place, orders in more.taken.items():
            self.taken.setdefault(place, set()).update(orders)
            self.steps.add(self.runs[place].run.step)
            self.ranks.add(self.runs[place].run.rank)
        self.size += more.size

    def config(self) -> Row:
        """What the tool that made the dump has to be told."""
        steps, ranks = (sorted(one for one in some if one is not None) for some in (self.steps, self.ranks))
        run = self.runs[min(self.taken)].run
        return FORMATS[run.format].config(Few([*self.names], steps, ranks, run))
