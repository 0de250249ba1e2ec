"""Further dumps of a side, --also: to which side they belong, and to which of its runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Sequence

from npucmp.errors import UsageError
from npucmp.model import Run
from npucmp.workflows.runs import StrPath, distance, keys, meets

SIDES = ("target", "golden")
_CLEAR = 0.25  # by how much a share must be larger to tell


class Also(NamedTuple):
    """One further dump; `side` is "" where the user leaves it to be found."""

    side: str
    path: StrPath

    @classmethod
    def of(cls, given: StrPath) -> Also:
        """ "DUMP", "target=DUMP" or "golden=DUMP"."""
        side, found, path = os.fspath(given).partition("=")
        also = cls(side, path) if found and side in SIDES else cls("", given)
        if not os.fspath(also.path):
            raise UsageError(f"--also {os.fspath(given)}: a dump is wanted, as in --also target=DUMP")
        return also


@dataclass(frozen=True)
class Place:
    """One side of a comparison: the path that was given for it, and its runs."""

    path: StrPath
    runs: list[Run]


def joined(path: StrPath, runs: Sequence[Run], side: str, known: Sequence[Run]) -> list[Run]:
    """The runs of a side with those of a further dump. One that meets one of the side joins it; others, and those that
    cannot be read, are runs of their own."""
    from npucmp.dump.join import join

    result = list(known)
    for run in runs:
        near = [] if run.problem else [at for at, other in enumerate(result) if not other.problem and meets(run, other)]
        least = min((distance(run, result[at]) for at in near), default=0)
        nearest = [at for at in near if distance(run, result[at]) == least]
        if len(nearest) > 1:
            raise UsageError(
                f"--also {os.fspath(path)}: its {keys([run])} may belong to any of the {side}'s "
                f"{keys([result[at] for at in nearest])}; choose one with --step and --rank"
            )
        if nearest:
            result[nearest[0]] = join(result[nearest[0]], run)
        else:
            result.append(run)
    return sorted(result, key=lambda run: (run.step or 0, run.rank or 0))


def side_of(path: StrPath, runs: Sequence[Run], sides: dict[str, Place]) -> str:
    """The side that a dump belongs to: by its format and framework, else by its operators, by what was recorded of
    their tensors, by the folder that it lies in. UsageError where none of these tells."""
    for shares in _evidence(path, runs, sides):
        target, golden = shares
        if abs(target - golden) > _CLEAR:
            return SIDES[target < golden]
    name = os.fspath(path)
    raise UsageError(f"--also {name}: it fits both sides; say --also target={name} or --also golden={name}")


def _evidence(path: StrPath, runs: Sequence[Run], sides: dict[str, Place]) -> Iterator[tuple[float, float]]:
    """How well it fits the target and the golden run, by one kind of evidence after the other."""
    pairs = [[*_meeting(runs, sides[side].runs)] for side in SIDES]
    yield _both(any(run.format == other.format for run, other in some) for some in pairs)
    yield _both(any(_framework(run) == _framework(other) for run, other in some) for some in pairs)
    yield _both(max((_of_names(run, other) for run, other in some), default=0.0) for some in pairs)
    yield _both(max((_of_figures(run, other) for run, other in some), default=0.0) for some in pairs)
    yield _both(_nearness(path, sides[side].path) for side in SIDES)


def _both(found: Iterator[float]) -> tuple[float, float]:
    target, golden = found
    return target, golden


def _meeting(runs: Sequence[Run], others: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    for run in runs:
        other = next((other for other in others if meets(run, other) and not other.problem), None)
        if other is not None and not run.problem:
            yield run, other


def _framework(run: Run) -> str:
    return run.detail.partition(" · ")[0]


def _of_names(run: Run, other: Run) -> float:
    """The share of a run's operators that another has."""
    names = {operator.name for operator in other.operators}
    return sum(operator.name in names for operator in run.operators) / max(len(run.operators), 1)


def _of_figures(run: Run, other: Run) -> float:
    """The share of a run's tensors of which another recorded the same."""
    known = dict(_figures(other))
    own = [figures == known[key] for key, figures in _figures(run) if key in known]
    return sum(own) / max(len(own), 1)


def _figures(run: Run) -> Iterator[tuple[tuple[str, str], str]]:
    for operator in run.operators:
        for tensor in operator.tensors:
            if tensor.statistics is not None or tensor.checksum:
                yield (operator.name, tensor.slot), repr((tensor.dtype, tensor.statistics or tensor.checksum))


def _nearness(path: StrPath, other: StrPath) -> int:
    """How many folders two dumps have in common."""
    parts = (os.path.abspath(one).split(os.sep) for one in (path, other))
    count = 0
    for mine, theirs in zip(*parts):
        if mine != theirs:
            break
        count += 1
    return count
