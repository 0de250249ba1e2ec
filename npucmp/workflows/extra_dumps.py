"""Assign further dumps (--also) to a side and to its runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Sequence

from npucmp.errors import UsageError
from npucmp.model import Run
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.select_runs import distance, keys, meets

SIDES = ("target", "golden")
_CLEAR = 0.25  # how much larger a share must be to decide


class ExtraDump(NamedTuple):
    """A further dump; `side` is "" if npucmp has to find it."""

    side: str
    path: StrPath

    @classmethod
    def of(cls, text: StrPath) -> ExtraDump:
        """Parse "DUMP", "target=DUMP" or "golden=DUMP"."""
        side, found, path = os.fspath(text).partition("=")
        also = cls(side, path) if found and side in SIDES else cls("", text)
        if not os.fspath(also.path):
            raise UsageError(f"--also {os.fspath(text)}: needs a dump, as in --also target=DUMP")
        return also


@dataclass(frozen=True)
class DumpSide:
    """A side of a comparison: its path as given, and its runs."""

    path: StrPath
    runs: list[Run]


def join_runs(path: StrPath, runs: Sequence[Run], side: str, known: Sequence[Run]) -> list[Run]:
    """Return the runs of a side joined with the runs of a further dump. A run that matches a run of the side joins it;
    other runs, and unreadable ones, are added."""
    from npucmp.dump.overlay import join

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


def side_of(path: StrPath, runs: Sequence[Run], sides: dict[str, DumpSide]) -> str:
    """Return the side of a dump: by format and framework, else by its operators, by the recorded figures of their
    tensors, or by its folder. Raises UsageError if none of these decides."""
    for shares in _evidence(path, runs, sides):
        target, golden = shares
        if abs(target - golden) > _CLEAR:
            return SIDES[target < golden]
    name = os.fspath(path)
    raise UsageError(f"--also {name}: it matches both sides; use --also target={name} or --also golden={name}")


def _evidence(path: StrPath, runs: Sequence[Run], sides: dict[str, DumpSide]) -> Iterator[tuple[float, float]]:
    """Yield the similarity to the target and to the golden run, one kind of evidence after the other."""
    pairs = [[*_meeting(runs, sides[side].runs)] for side in SIDES]
    yield _both(any(run.format == other.format for run, other in side_pairs) for side_pairs in pairs)
    yield _both(any(_framework(run) == _framework(other) for run, other in side_pairs) for side_pairs in pairs)
    yield _both(max((_of_names(run, other) for run, other in side_pairs), default=0.0) for side_pairs in pairs)
    yield _both(max((_of_figures(run, other) for run, other in side_pairs), default=0.0) for side_pairs in pairs)
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
    """Return the share of a run's operators that another run has."""
    names = {operator.name for operator in other.operators}
    return sum(operator.name in names for operator in run.operators) / max(len(run.operators), 1)


def _of_figures(run: Run, other: Run) -> float:
    """Return the share of a run's tensors with the same recorded figures in another run."""
    known = dict(_figures(other))
    own = [figures == known[key] for key, figures in _figures(run) if key in known]
    return sum(own) / max(len(own), 1)


def _figures(run: Run) -> Iterator[tuple[tuple[str, str], str]]:
    for operator in run.operators:
        for tensor in operator.tensors:
            if tensor.statistics is not None or tensor.checksum:
                yield (operator.name, tensor.slot), repr((tensor.dtype, tensor.statistics or tensor.checksum))


def _nearness(path: StrPath, other: StrPath) -> int:
    """Return the number of folders that two paths share."""
    parts = (os.path.abspath(one).split(os.sep) for one in (path, other))
    count = 0
    for mine, theirs in zip(*parts):
        if mine != theirs:
            break
        count += 1
    return count
