"""Report names given by the user that no dump contains: mistyped globs, mapping entries, rows of tolerances. If no
--include matches, the run fails; any other name without a match becomes a note with the nearest names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Iterable, Sequence

from npucmp.errors import UsageError, nearest
from npucmp.judge.tolerance import Tolerances, applies
from npucmp.model import Operator, Pair, Run
from npucmp.workflows.select_runs import RunSelection
from npucmp.workflows.selectors import NumberedRecord, parse_numbers

if TYPE_CHECKING:
    from npucmp.align.msprobe_mapping import Names

NOTED = 5  # notes of one kind


def unfit_globs(choice: RunSelection, runs: Iterable[Run], include: str = "--include ") -> list[str]:
    """Return a note on each --include and --exclude that matches no operator of any run. Raises UsageError if no
    --include matches. `include` is the name of the option for the user."""
    operators = [operator for run in runs for operator in run.operators]
    names = dict.fromkeys(operator.name for operator in operators)
    option_globs = [(option, glob) for option, globs in (("--include", choice.include), ("--exclude", choice.exclude))
             for glob in globs]  # fmt: skip
    unfit = [one for one in option_globs if not any(fnmatchcase(name, one[1]) for name in names)]
    if names and choice.include and {("--include", glob) for glob in choice.include} <= {*unfit}:
        globs = " ".join(map(repr, choice.include))
        raise UsageError(f"no operator fits {include}{globs}", _near(choice.include[0], operators))
    return _notes([_sentence(f"no operator fits {option} {glob!r}", _near(glob, operators)) for option, glob in unfit])


def unfit_numbers(choice: RunSelection, runs: Sequence[NumberedRecord]) -> list[str]:
    """Return notes on steps and ranks that the user named and no run of either dump has."""
    known = {"step": {run.step or 0 for run in runs}, "rank": {run.rank or 0 for run in runs}}
    unfit = {name: [*parse_numbers(name, getattr(choice, name)).unmatched(numbers)] for name, numbers in known.items()}
    return [f"no run has {name} {','.join(words)}, which --{name} names" for name, words in unfit.items() if words]


def unfit_names(names: Names, targets: Sequence[Run], goldens: Sequence[Run]) -> list[str]:
    """Return notes on mapping entries whose names no run of their side has; for a table for many networks, a note if
    none of its entries matches."""
    if not names:
        return []
    from npucmp.align.mapping import OperatorNames
    from npucmp.align.msprobe_mapping import MsprobeMapping
    from npucmp.model.finding import FOUND_BY_CONTENT

    sides = [OperatorNames(operator.name for run in runs for operator in run.operators) for runs in (targets, goldens)]
    if isinstance(names, MsprobeMapping):
        return [] if any(map(names.fits, sides[0].names | sides[1].names)) else ["mapping: no entry fits an operator"]
    missing = [(side, name, known) for entry in names.items() if entry[0] not in FOUND_BY_CONTENT
               for side, name, known in zip(("target", "golden"), entry, sides) if not known.has(name)]  # fmt: skip
    return _notes(
        _sentence(f"mapping: no operator {name!r:.100} in the {side}", nearest(name, known.names))
        for side, name, known in missing[: NOTED + 1]
    ) + _more(missing)


def unfit_tolerances(tolerances: Tolerances, pairs: Iterable[Pair]) -> list[str]:
    """Return notes on rows of a user's table that match no tensor pair."""
    left, types = [*tolerances.table], set()
    for pair in pairs if left else ():
        if pair.target is not None and pair.golden is not None:
            left = [row for row in left if not applies(row, pair)] if left else left
            types.add(pair.operator.op_type)
    words = []
    for row in left:
        what = " ".join(f"{key} {value}" for key, value in (("dtype", row.dtype), ("op_type", row.op_type)) if value)
        near = nearest(row.op_type, types) if row.op_type not in types else []
        words.append(_sentence(f"tolerances: the row of {what or row.metric} fits no tensor", near))
    return _notes(words)


def unfit_noise(tolerances: Tolerances, pairs: Iterable[Pair]) -> list[str]:
    """Return a note if no row of the noise table matches a tensor, so that the noise is of other runs."""
    sides = ((op.name, pair.slot) for pair in pairs for op in (pair.target_op, pair.golden_op) if op is not None)
    if not tolerances.noise or any(side in tolerances.noise for side in sides):
        return []
    return ["noise: no row of the table fits a tensor"]


def _near(glob: str, operators: Sequence[Operator]) -> list[str]:
    """Return the nearest globs: the same word inside a name, else words with a similar spelling."""
    core = glob.strip("*")
    inside = sum(core.lower() in operator.name.lower() for operator in operators) if core else 0
    if inside and any(core in operator.name for operator in operators):
        return [f"*{core}*"]
    words = {word for operator in operators for word in (operator.name, operator.op_type, *operator.name.split("."))}
    spelled = {word.lower(): word for word in sorted(words)}
    return [f"*{spelled[word]}*" for word in nearest(core.lower(), spelled)]


def _sentence(words: str, near: Sequence[str]) -> str:
    return f"{words} (did you mean {' or '.join(near)}?)" if near else words


def _notes(words: Iterable[str]) -> list[str]:
    return [*words][:NOTED]


def _more(every: Sequence[object]) -> list[str]:
    return [f"mapping: {len(every) - NOTED} more entries fit nothing"] if len(every) > NOTED else []
