"""Both runs as rows read them: aligned once, each pair of tensors measured once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import align, pairs
from npucmp.align.msprobe_mapping import Names
from npucmp.comparability.answers import AlignedStep
from npucmp.comparability.config_check_zip import RunSetup, read_setup
from npucmp.comparability.config_file import read_config
from npucmp.comparability.operators import agreement
from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import UsageError
from npucmp.health.curves.curve import Curve
from npucmp.health.curves.curve_pair import CurveComparison
from npucmp.health.evaluate import RunExamination, examine
from npucmp.health.facts import Health, Parameter, Step, Tensor
from npucmp.health.gather import build
from npucmp.health.rules import RULES
from npucmp.health.settings import CheckSettings
from npucmp.measure.pairs import measure_pairs
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.measure.tensor_stats import TensorStats
from npucmp.model import Measurement, Pair, Run, TensorRef
from npucmp.model.item_result import ItemResult, Status
from npucmp.model.precheck_result import InputRow

SIDES = ("target", "golden")


class Curves(NamedTuple):
    """A figure that both runs logged, and the comparison of its two curves."""

    name: str
    target: Curve
    golden: Curve
    found: CurveComparison


@dataclass(frozen=True)
class UserInput:
    """Options of the comparison, and files beside the dumps: (target's, golden's) or None.

    mixed     the user intends to compare a mixed-precision run with a full-precision run
    data      recorded batches of both, as the runs of their files
    column    name of the curve in the files of `curve`; repeat_curve is the log of a second golden run
    repeated  compares the target with a repeated run of it; returns whether they are equal, and a description
    settings  settings of the --rules file
    """

    mixed: bool = False
    env: Optional[tuple[str, str]] = None
    config: Optional[tuple[str, str]] = None
    curve: Optional[tuple[str, str]] = None
    data: Optional[tuple[Sequence[Run], Sequence[Run]]] = None
    repeat_curve: Optional[str] = None
    column: str = ""
    repeated: Optional[Callable[[], tuple[bool, str]]] = None
    settings: CheckSettings = CheckSettings()

    def ignored(self, row: str) -> tuple[str, ...]:
        """Globs that a row ignores, from the --rules file."""
        own = self.settings.rows.get(row)
        return tuple(own.more.get("ignore", ())) if own is not None else ()


@dataclass
class RunPair:
    """Two runs and the facts about them; expensive facts are computed when a row first needs them."""

    targets: Sequence[Run]
    goldens: Sequence[Run]
    coupled: Sequence[tuple[Run, Run]] = ()
    names: Names = field(default_factory=dict)
    context: ReadContext = ANYWHERE
    jobs: int = 1
    user_input: UserInput = UserInput()
    bytes_read: int = 0
    done: Callable[[int], None] = lambda size: None
    rows: Mapping[str, Callable[[RunPair], ItemResult]] = field(
        default_factory=dict
    )  # rows that other rows may evaluate
    found: dict[str, ItemResult] = field(default_factory=dict)  # answers of rows
    inputs: list[InputRow] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sources of facts that the reader of the report must know
    _measured: dict[int, Measurement] = field(default_factory=dict)

    @cached_property
    def aligned_steps(self) -> list[AlignedStep]:
        """Each common step and rank, in order."""
        return [self._align_step(target, golden) for target, golden in self.coupled]

    @property
    def first(self) -> AlignedStep:
        """The first common step and rank. Raises UsageError if there is none."""
        if not self.aligned_steps:
            raise UsageError("no step and rank is in both")
        return self.aligned_steps[0]

    def _align_step(self, target: Run, golden: Run) -> AlignedStep:
        try:
            alignment = align(target, golden, self.names, self.context)
        except UsageError as error:
            return AlignedStep(target, golden, None, (), error.because)
        return AlignedStep(target, golden, alignment, tuple(pairs(target, golden, alignment)))

    def measure(self, requested: Iterable[Pair]) -> list[Measurement]:
        """Measure pairs; return the cached measurement of a pair that an earlier row requested."""
        wanted = list(requested)
        fresh = [pair for pair in wanted if id(pair) not in self._measured]
        for pair, found in zip(fresh, measure_pairs(fresh, jobs=self.jobs, context=self.context)):
            self._measured[id(pair)] = found  # `together` keeps the pairs alive, so identities stay unique
            self.bytes_read += found.bytes_read
        return [self._measured[id(pair)] for pair in wanted]

    def answer(self, name: str) -> Optional[ItemResult]:
        """Return the answer of a row, and evaluate the row if necessary; None for an unknown row."""
        if name not in self.found and name in self.rows:
            self.rows[name](self)
        return self.found.get(name)

    def first_trouble(self, *names: str) -> str:
        """The first of these rows that forbids a comparison; "" if none does."""
        return next((name for name in names if (answer := self.answer(name)) is not None and answer.forbids), "")

    def is_same(self, *names: str) -> bool:
        """Whether all of these rows are the same or close."""
        answers = map(self.answer, names)
        return all(answer is not None and answer.status in (Status.SAME, Status.CLOSE) for answer in answers)

    @cached_property
    def healths(self) -> tuple[tuple[Health, ...], tuple[Health, ...]]:
        """The facts of both runs, rank by rank; each run is read in one pass."""
        return self._built(self.targets), self._built(self.goldens)

    def _built(self, runs: Sequence[Run]) -> tuple[Health, ...]:
        def done(size: int) -> None:
            self.bytes_read += size
            self.done(size)

        if not runs:
            return ()
        expect = self.user_input.settings.expect
        return build(runs[0].path, runs, jobs=self.jobs, context=self.context, done=done, expect=expect)

    @cached_property
    def ranks(self) -> list[tuple[Health, Health]]:
        """Pairs of corresponding ranks, with all their steps."""
        by_run = [{_key(step.run): one for one in healths for step in one.steps} for healths in self.healths]
        found: dict[tuple[int, int], tuple[Health, Health]] = {}
        for target, golden in self.coupled:
            pair = by_run[0][_key(target)], by_run[1][_key(golden)]
            found.setdefault((id(pair[0]), id(pair[1])), pair)
        return [*found.values()]

    @cached_property
    def steps(self) -> list[tuple[AlignedStep, Step, Step]]:
        """Each common step and rank, with the facts of both runs."""
        by_run = [{_key(step.run): step for one in healths for step in one.steps} for healths in self.healths]
        return [(one, by_run[0][_key(one.target)], by_run[1][_key(one.golden)]) for one in self.aligned_steps]

    @cached_property
    def run_findings(self) -> tuple[RunExamination, RunExamination]:
        """The findings of `check` in both runs."""
        here, there = (examine(healths, RULES, self.user_input.settings) for healths in self.healths)
        return here, there

    @cached_property
    def setups(self) -> Optional[tuple[RunSetup, RunSetup]]:
        """The files of --env; None without --env."""
        if self.user_input.env is None:
            return None
        target, golden = self.user_input.env
        return read_setup(target, self.context), read_setup(golden, self.context)

    @cached_property
    def configs(self) -> Optional[tuple[dict[str, Any], dict[str, Any]]]:
        """The hyper-parameters of the files of --config; None without --config. A log adds a note."""
        if self.user_input.config is None:
            return None
        found = [read_config(path, self.context) for path in self.user_input.config]
        self.notes += [f"configuration of {side}: {one.note}" for side, one in zip(SIDES, found) if one.note]
        return found[0].values, found[1].values

    @cached_property
    def weights(self) -> list[MatchedParameter]:
        """The parameters of corresponding ranks."""
        partners = {
            id(pair.target): pair.golden
            for one in self.aligned_steps
            for pair in one.pairs
            if pair.target is not None and pair.golden is not None
        }
        return [twins for here, there in self.ranks for twins in match_parameters(here, there, partners)]

    def are_equal(self, pair: Pair) -> Optional[bool]:
        """Whether two tensors are equal: by their bits, else by recorded checksums and figures. None if unknown."""
        x, y = self.facts.get(id(pair.target)), self.facts.get(id(pair.golden))
        if x is None or y is None:
            return None
        if x.figures.bits and y.figures.bits and x.figures.counted == y.figures.counted:
            return x.figures.bits == y.figures.bits
        if not (x.figures.bits or y.figures.bits) and x.shape == y.shape and equal_by_record(x.ref, y.ref) is False:
            return False
        if x.figures.rms is None or y.figures.rms is None:
            return None
        return x.figures[:3] == y.figures[:3]

    def agree(self, pair: Pair) -> Optional[bool]:
        """Whether two float tensors agree within rounding, by their figures. None if unknown."""
        facts = [self.facts.get(id(one)) for one in (pair.target, pair.golden)]
        if facts[0] is None or facts[1] is None:  # unreadable
            return None
        x, y = facts[0].figures, facts[1].figures
        if x.bits and x.bits == y.bits:
            return True
        known = [(a, b) for a, b in zip(_figures(x), _figures(y)) if a is not None and b is not None]
        if not known:
            return None
        scale = max(abs(value) for values in known for value in values)
        return max(abs(a - b) for a, b in known) <= agreement(pair) * scale

    @cached_property
    def facts(self) -> dict[int, Tensor]:
        """The facts of the tensors of both runs, by identity."""
        return {id(one.ref): one for healths in self.healths for health in healths for one in health.tensors()}


def _figures(found: TensorStats) -> tuple[Optional[float], ...]:
    return found.maximum, found.minimum, found.mean, found.rms


def _key(run: Run) -> tuple[str, Optional[int], Optional[int]]:
    return run.path, run.step, run.rank


class MatchedParameter(NamedTuple):
    """A parameter of both sides, one of which may be missing; `at` are the indices of the first common step."""

    name: str
    target: Optional[Parameter]
    golden: Optional[Parameter]
    at: tuple[int, int]

    @property
    def first(self) -> tuple[Optional[Tensor], Optional[Tensor]]:
        return _at(self.target, self.at[0]), _at(self.golden, self.at[1])


def _at(parameter: Optional[Parameter], index: int) -> Optional[Tensor]:
    return parameter.weights[index] if parameter is not None else None


def match_parameters(here: Health, there: Health, partners: Mapping[int, TensorRef]) -> list[MatchedParameter]:
    """Pair parameters by name if both sides have names; the rest by the partners of their tensors; then, if a side has
    no names, by shape in order."""
    at = next(
        ((a.index, b.index) for a in here.steps for b in there.steps if None in (a.number, b.number)
         or a.number == b.number),
        (0, 0),
    )  # fmt: skip
    left = {one.name: one for one in here.parameters}
    right = {one.name: one for one in there.parameters}
    found = []
    if here.has_names == there.has_names:
        found = [(name, left.pop(name), right.pop(name)) for name in [*left] if name in right and here.has_names]
    by_tensor = {id(weight.ref): one for one in right.values() for weight in one.weights if weight is not None}
    for name, one in [*left.items()]:
        other = next(
            (by_tensor.get(id(partners.get(id(weight.ref)))) for weight in one.weights if weight is not None), None
        )
        if other is not None and other.name in right:
            found.append((name, left.pop(name), right.pop(other.name)))
    for name, one in [*left.items()] if not here.has_names or not there.has_names else []:
        other = next((candidate for candidate in right.values() if candidate.shape == one.shape), None)
        if other is not None:
            found.append((name, left.pop(name), right.pop(other.name)))
    found.sort(key=lambda candidate: candidate[1].order)
    alone = [MatchedParameter(name, one, None, at) for name, one in left.items()]
    alone += [MatchedParameter(name, None, one, at) for name, one in right.items()]
    return [*(MatchedParameter(name, a, b, at) for name, a, b in found), *alone]
