"""The operator in which the error of a run begins, and the way to other ranks, in one sentence."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from npucmp.localise.rank_digest import Coordinates, ReplicaMismatch
from npucmp.model import Cause
from npucmp.report.phrases import count_of, numbers
from npucmp.report.rank_cell import ARRIVED, HERE, Cell

WAYS = 2  # operators named as ways to other ranks, before "and n more"
HEADS = {
    "GAP": "begins at {where}, before operator {op}, whose inputs already differ",
    "SUSPECT": "seems to begin at {where}, operator {op} (statistics only; not proven)",
    "UNKNOWN": "is first seen at {where}, operator {op}; its origin is not known",
    "PROPAGATED": "is first seen at {where}, operator {op}, which propagates it",
}
DECIDED_VERDICTS = "AGREES", "DIVERGED", "SUSPECTED"  # verdicts of cells in which at least one tensor was decided
HEAD = "begins at {where}, operator {op}"


class Route(NamedTuple):
    """An operator by which the error arrives, and the ranks that it reaches."""

    through: str
    ranks: tuple[int, ...]


class ErrorOrigin(NamedTuple):
    """The origin of an error.

    ranks   all ranks of the step in which the error begins in the same operator; `cell` is the first of them
    others  number of the remaining ranks of the step; `own` are those with an error of their own
    ways    how the error reaches other ranks
    too     ranks that differ although no way is known
    agree   all other ranks are known to agree
    unseen  cells of earlier steps in which no tensor was decided
    """

    cell: Cell
    ranks: tuple[int, ...]
    others: int
    own: tuple[int, ...]
    ways: tuple[Route, ...]
    too: tuple[int, ...] = ()
    agree: bool = True
    coordinates: Coordinates = Coordinates()
    unseen: tuple[Cell, ...] = ()

    @property
    def sentence(self) -> str:
        """The sentence; it contains names from the dump."""
        assert self.cell.first is not None
        head = HEADS.get(self.cell.first.cause, HEAD).format(where=self._where(), op=self.cell.first.op)
        return "; ".join([head, *self._reach(), *self._earlier_words()])

    def _earlier_words(self) -> list[str]:
        """Return a clause on earlier steps in which the error may have begun."""
        if not self.unseen:
            return []
        more = f" and {len(self.unseen) - 1} more of earlier steps" if len(self.unseen) > 1 else ""
        return [f"{self.unseen[0].where}{more} could not be evaluated"]

    def _where(self) -> str:
        known = self.coordinates.words
        beside = f" ({known})" if known else ""
        if len(self.ranks) < 2:
            return ", ".join(filter(None, (self._step(), f"rank {self.cell.rank}{beside}"))) if self._has_ranks() else (
                self._step() or "the only step")  # fmt: skip
        every = "both ranks" if len(self.ranks) == 2 else f"all {len(self.ranks)} ranks"
        which = numbers("rank", self.ranks) if self.others else every
        return f"{self._step()} on {which}{beside}".strip()

    def _step(self) -> str:
        return "" if self.cell.step is None else f"step {self.cell.step}"

    def _has_ranks(self) -> bool:
        return self.cell.rank is not None

    def _reach(self) -> list[str]:
        reached = sum(len(way.ranks) for way in self.ways)
        own = "have errors of their" if len(self.own) > 1 else "has an error of its"
        words = [f"{numbers('rank', self.own)} {own} own"] if self.own else []
        if self.too:
            words.append(f"{numbers('rank', self.too)} {'differ' if len(self.too) > 1 else 'differs'} too")
        if not self.others or (not reached and words):
            return words
        if not reached:
            differs = "differs" if self.agree else "is known to differ"
            return [f"no other rank of the step {differs}"] if self._has_ranks() else []
        ways = [f"{self._whom(way, reached)} through {way.through}" for way in self.ways[:WAYS]]
        more = len(self.ways) - WAYS
        ways += [f"others through {count_of(more, 'more operator')}"] if more > 0 else []
        return [f"reaches {', '.join(ways)}", *words]

    def _whom(self, way: Route, reached: int) -> str:
        if len(self.ways) == 1 and reached == self.others:
            return "the other ranks" if reached > 1 else "the other rank"
        return numbers("rank", way.ranks)

    def facts(self) -> dict[str, Any]:
        """Return the values for summary.json."""
        first = self.cell.first
        assert first is not None
        return {
            "step": self.cell.step,
            "rank": self.cell.rank,
            "ranks": list(self.ranks),
            "pipeline_stage": self.coordinates.stage,
            "tensor_rank": self.coordinates.tensor_rank,
            "op": first.op,
            "slot": first.slot,
            "cause": first.cause,
            "reaches": [{"through": way.through, "ranks": list(way.ranks)} for way in self.ways],
            "sentence": self.sentence,
        }


def begin_of(cells: Sequence[Cell]) -> Optional[ErrorOrigin]:
    """Return the origin of the error, or None if no cell has an operator to blame."""
    rooted = [(one.first.cause == Cause.PROPAGATED.value, one.first.place, one) for one in cells if one.first]
    cell = min(rooted, key=lambda one: one[:2])[2] if rooted else None
    if cell is None or cell.first is None:
        return None
    name, cause = cell.first.op, cell.first.cause
    step = [one for one in cells if one.key[0] == cell.key[0]]
    alike = [one for one in step if one.first is not None and (one.first.op, one.first.cause) == (name, cause)]
    rest = [one for one in step if one not in alike]
    ways: dict[str, list[int]] = {}
    for one in sorted(rest, key=lambda one: (one.first.place if one.first else 0, one.key)):
        if one.origin == ARRIVED:
            ways.setdefault(one.through, []).append(one.key[1])
    differ = [one for one in rest if one.verdict in ("DIVERGED", "SUSPECTED")]
    return ErrorOrigin(
        cell,
        tuple(sorted(one.key[1] for one in alike)),
        len(rest),
        tuple(sorted(one.key[1] for one in rest if one.origin == HERE)),
        tuple(Route(through, tuple(sorted(ranks))) for through, ranks in ways.items()),
        tuple(sorted(one.key[1] for one in differ if one.origin not in (HERE, ARRIVED))),
        all(one.verdict == "AGREES" for one in rest),
        _common(alike),
        tuple(one for one in cells if one.key[0] < cell.key[0] and one.verdict not in DECIDED_VERDICTS),
    )


def _common(cells: Sequence[Cell]) -> Coordinates:
    """Return the coordinates that all cells share."""
    stages, parts = {one.stage for one in cells}, {one.tensor_rank for one in cells}
    return Coordinates(stages.pop() if len(stages) == 1 else None, parts.pop() if len(parts) == 1 else None)


def odd_words(one: ReplicaMismatch) -> str:
    """Describe a rank that holds other values than its replicas; the words contain names from the dump."""
    more = f" and {count_of(one.tensors - 1, 'more tensor')}" if one.tensors > 1 else ""
    since = "" if one.step is None else f" since step {one.step}"
    which, others = numbers("rank", one.ranks), numbers("rank", one.others)
    what = f"{'have' if len(one.ranks) > 1 else 'has'} a different {one.what}"
    words = f"{which} {what} than {others}" if others != which else f"{which} each have a different {one.what}"
    weak = "" if one.wrong else "; this may be rounding: no rank is proven to differ from its golden"
    return f"{words}{since}: {' '.join(one.first)}{more}; in the golden, these ranks are identical{weak}"


def odd_facts(one: ReplicaMismatch) -> dict[str, Any]:
    """Return the values for summary.json."""
    op, slot = one.first
    return {
        "since_step": one.step,
        "ranks": list(one.ranks),
        "others": list(one.others),
        "what": one.what,
        "op": op,
        "slot": slot,
        "tensors": one.tensors,
        "proven": one.wrong,
    }
