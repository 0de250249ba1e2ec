"""The relation of runs with unequal token layouts: padded, packed, in steps, of another batch. Both sides become
runs of the rows of the same tokens, which the pipeline compares as any two runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.align.msprobe_mapping import Names
from npucmp.dump.limits import ReadContext
from npucmp.model import Comparison, Report, Run
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.model.relation import TokenBits, TokenFacts
from npucmp.relations.tokens.report import token_line
from npucmp.relations.tokens.token_axes import token_shape
from npucmp.relations.tokens.token_evidence import gather_evidence
from npucmp.relations.tokens.token_index import TokenIndex, find_index, is_refuted, joined_index
from npucmp.relations.tokens.token_lengths import recorded_ids
from npucmp.relations.tokens.token_origin import TokenErrors, TokenPlaces, with_tokens
from npucmp.relations.tokens.token_runs import TokenRuns
from npucmp.relations.tokens.token_tensors import TensorPair, TokenSide, tensor_pairs
from npucmp.report.phrases import count_of
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, pair_runs

NO_VALUES = ("statistics of tensors with other tokens prove nothing: record values on both sides "
             "(npucmp plan diverged, task tensor)")  # fmt: skip

NO_RECOMPUTATION = "--recompute all has no effect: runs that are compared token by token are not recomputed"


class _Indexed(NamedTuple):
    """The runs of all ranks that hold the same tokens, with their index. `problem`: the reason why there is none.
    `places`: the step and row of the target of each token of the golden; `by`: what shows which tokens are the same."""

    targets: Sequence[Run]
    goldens: Sequence[Run]
    tokens: Optional[TokenIndex]
    problem: str = ""
    places: Sequence[tuple[int, str]] = ()
    by: str = ""

    def holds(self, one: Comparison) -> bool:
        """Whether a comparison is one of these runs, which may be put together."""
        golden = one.golden
        return any(run.step == golden.step and golden.rank in (None, run.rank) for run in self.goldens)


class TokenLayout:
    """The rows of both sides that hold the same tokens, by step."""

    def __init__(
        self, found: Sequence[_Indexed], alone: Sequence[tuple[str, Run]], options: Options, context: ReadContext
    ) -> None:
        self._found, self._alone, self._options, self._context = found, alone, options, context

    def plan(self) -> Sequence[str]:
        """Return the layouts of the tokens, by what they were found, and the number of tensors by token."""
        words = token_line(_facts(self._found))
        by = dict.fromkeys(one.by for one in self._found if one.by)
        tensors = sum(
            tensor.relation is not None for run in self._runs() for op in run.operators for tensor in op.tensors
        )
        return [f"{words}; {', '.join([*by, count_of(tensors, 'tensor')])} by token"]

    def _runs(self) -> Iterator[Run]:
        return (run for one in self._found for run in one.targets)

    def apply(self, sides: Sides) -> Sides:
        """Return the sides with the rows of these tokens, in the order of the golden's requests."""
        targets, goldens = ([run for side, run in self._alone if side == name] for name in ("target", "golden"))
        targets = [*(run for one in self._found for run in one.targets), *targets]
        goldens = [*(run for one in self._found for run in one.goldens), *goldens]
        return sides.with_runs(targets, goldens)._replace(changes={"recompute": "none"})

    def explain(self, report: Report) -> Report:
        """Return the report with the tokens of its roots."""
        found = [next(indexed for indexed in self._found if indexed.holds(one)) for one in report.comparisons]
        errors = [TokenErrors(self._context) for _ in found]
        comparisons = tuple(map(_with_index, report.comparisons, found, errors))
        notes = [one.problem for one in self._found if one.problem]
        notes += [NO_RECOMPUTATION] * (self._options.recompute == "all")
        bits = tuple(_bits(comparisons, found, errors)) if self._options.batch_invariance else ()
        if self._options.batch_invariance:
            unread = dict.fromkeys(problem for search in errors for problem in search.problems.values())
            notes += [f"operators are missing in the table of equal bits: {problem}" for problem in unread]
        facts = _facts(self._found)
        return replace(report, comparisons=comparisons, notes=(*report.notes, *notes), tokens=facts, token_bits=bits)


def find(sides: Sides, options: Options, context: ReadContext, in_doubt: bool) -> Optional[TokenLayout]:
    """Return the rows that hold the same tokens; None if the token layouts are equal. Unless in doubt, shapes must show
    that they are not; equal shapes may hold the tokens in another order."""
    ranks, unpaired = _ranks(sides, context)
    groups = [group for one in ranks for group in one.groups]
    differ = _have_other_shapes(groups)
    if differ is None or not (differ or (in_doubt and all(len(a) == len(b) for a, b in groups))):
        return None
    found = [_of_ranks(one, options, context, differ) for one in ranks]
    if all(one.tokens is None and not one.problem for one in found):
        return None
    return TokenLayout(found, unpaired, options, context)


def _bits(
    comparisons: Sequence[Comparison], found: Sequence[_Indexed], errors: Sequence[TokenErrors]
) -> Iterator[TokenBits]:
    """Yield the tokens with equal bits of each operator."""
    from npucmp.relations.tokens.batch_invariance import token_bits

    for one, indexed, search in zip(comparisons, found, errors):
        if indexed.tokens is not None:
            yield from token_bits(one, indexed.tokens.requests, search)


Group = tuple[Sequence[Run], Sequence[Run]]


class _Ranks(NamedTuple):
    """The runs of a side that may hold the same tokens: the steps of each rank."""

    targets: Sequence[Sequence[Run]]
    goldens: Sequence[Sequence[Run]]

    @property
    def groups(self) -> list[Group]:
        """The steps of each rank of the target, with those of the golden's first rank."""
        return [(steps, self.goldens[0]) for steps in self.targets]


def _ranks(sides: Sides, context: ReadContext) -> tuple[list[_Ranks], Sequence[tuple[str, Run]]]:
    """Return the runs that hold the same tokens, and those without a partner: all steps of a side if the other has one,
    else steps of one number. Equal ranks of both sides hold the same tokens; of unequal numbers of ranks, all."""
    targets, goldens = map(_by_rank, sides.readable)
    if not targets or not goldens:
        return [], ()
    if targets.keys() == goldens.keys() or len(targets) == len(goldens) == 1:
        pairs = zip(targets.values(), (goldens[rank] for rank in targets) if len(targets) > 1 else goldens.values())
        every = [_groups(*both, context) for both in pairs]
        alone = [run for _, runs in every for run in runs]
        return [_Ranks([a], [b]) for groups, _ in every for a, b in groups], alone
    first = next(iter(goldens.values()))
    every = [_groups(steps, first, context) for steps in targets.values()]
    if len({len(groups) for groups, _ in every}) > 1:  # ranks see different ids; together they hold other ones
        every = [([(steps, first)], ()) for steps in targets.values()]
    found = []
    for same in zip(*(groups for groups, _ in every)):
        numbers = {run.step for run in same[0][1]}
        others = [[run for run in runs if run.step in numbers] for runs in goldens.values()]
        found.append(_Ranks([steps for steps, _ in same], others))
    return found, [run for _, runs in every for run in runs]


def _by_rank(runs: Sequence[Run]) -> dict[Optional[int], Sequence[Run]]:
    found: dict[Optional[int], list[Run]] = {}
    for run in runs:
        found.setdefault(run.rank, []).append(run)
    return {**found}


def _groups(
    targets: Sequence[Run], goldens: Sequence[Run], context: ReadContext
) -> tuple[list[Group], Sequence[tuple[str, Run]]]:
    """Return the steps of one rank that hold the same tokens, and those without a partner."""
    if 1 in (len(targets), len(goldens)):
        return [(targets, goldens)], ()
    together, unpaired = pair_runs(targets, goldens)
    if any(_hold_other_ids(*both, context) for both in together):
        return [(targets, goldens)], ()
    return [([a], [b]) for a, b in together], unpaired


def _hold_other_ids(target: Run, golden: Run, context: ReadContext) -> bool:
    """Whether steps of one number have unequal numbers of tokens, and other ones than padding: both sides cut their
    requests into other steps."""
    shapes = token_shape(target), token_shape(golden)
    sizes = [shape[:2] for shape in shapes if shape is not None]
    if len(sizes) < len(shapes) or sizes[0] == sizes[1] or any(op.phase == "backward" for op in golden.operators):
        return False
    left, right = (Counter(recorded_ids(run, context)) for run in (target, golden))
    may_pad = any(shape is not None and shape.has_batch for shape in shapes)  # by one id
    return bool(left and right) and len((left - right) + (right - left)) > may_pad


def _have_other_shapes(groups: Sequence[Group]) -> Optional[bool]:
    """Whether both sides have by their shapes other tokens; None without activations."""
    differ = False
    for targets, goldens in groups:
        shapes = [token_shape(run) for run in (*targets, *goldens)]
        sizes = {shape.sizes if shape is not None else None for shape in shapes}
        if None in sizes:
            return None
        differ |= len(sizes) > 1
    return differ if groups else None


class _RankIndex(NamedTuple):
    """The tokens of one rank of the target. `without_values`: its run and the golden's, if there is no index."""

    runs: Optional[TokenRuns]
    tokens: Optional[TokenIndex]
    problem: str = ""
    is_ambiguous: bool = False
    without_values: Sequence[Run] = ()
    by: str = ""


def _of_ranks(ranks: _Ranks, options: Options, context: ReadContext, by_shape: bool) -> _Indexed:
    """The runs by token. The runs of the first step without an index and a problem, if they are compared as a whole."""
    whole = _Indexed([steps[0] for steps in ranks.targets], [steps[0] for steps in ranks.goldens], None)
    sides, goldens = ([TokenSide.of(steps, context, len(side)) for steps in side] for side in ranks)
    found = [_indexed(side, goldens[0], options.names(), context) for side in sides]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return whole
    unknown = [one for one in known if one.tokens is None]
    if unknown:
        is_told = by_shape or any(one.is_ambiguous for one in unknown)
        if not is_told or len(known) > 1 or len(goldens) > 1:
            return whole
        target, golden = unknown[0].without_values
        return _Indexed([target], [golden], None, unknown[0].problem)
    every = [one.tokens for one in known if one.tokens is not None]
    is_alike = all(index.is_identity for index in every) or (len(every) > 1 and all(index.is_part for index in every))
    if is_alike and not options.batch_invariance:
        return whole
    index, places = joined_index(every)
    runs = [one.runs for one in known if one.runs is not None]
    for one in runs:
        one.of_ranks = len(runs) > 1 or len(goldens) > 1
    own = {key for one in runs for key in one.own}
    for one in runs:
        one.own = own  # what depends on the layout of one rank is compared on none
    if len(runs) == 1:
        is_single = len(goldens) == 1
        targets = [replace(runs[0].target_run(), rank=whole.goldens[0].rank if is_single else whole.targets[0].rank)]
    else:
        targets = [one.rank_run() for one in runs]
    of_golden = [runs[0].golden_run(side, index.places) for side in goldens if side is not None]
    return _Indexed(targets, of_golden, index, _open_words(index), places, known[0].by)


def _indexed(
    target: Optional[TokenSide], golden: Optional[TokenSide], names: Names, context: ReadContext
) -> Optional[_RankIndex]:
    if target is None or golden is None:
        return None
    pairs = tensor_pairs(target, golden, names, context)
    if not pairs or all(one.is_part for one in pairs):
        return None
    evidence = gather_evidence(target, golden, pairs, context)
    if evidence is None and target.size == golden.size:
        return None  # all tokens of both sides may be compared as a whole
    if evidence is None:
        return _RankIndex(None, None, NO_VALUES, without_values=_without_values(target, golden, pairs))
    index = find_index(target, golden, evidence)
    if index is None or (_trains(golden) and _is_other_batch(index)) or is_refuted(index, evidence):
        return None
    if index.problem and target.size == golden.size and _have_other_names(pairs):
        return None  # names of two frameworks: tensors with all tokens are compared as a whole
    if index.problem:
        words = (
            f"no index of tokens: {index.problem}; record the ids and the attention mask or the lengths of both runs"
        )
        words = next((f"no index of tokens: {index.problem}; {one}" for one in _unread(target, golden)), words)
        return _RankIndex(None, None, words, index.is_ambiguous, _without_values(target, golden, pairs))
    kind = "ids" if evidence.is_ids else "values"
    by = f"proven by the {kind} of {evidence.first.golden[0]} and {count_of(evidence.tensors, 'tensor')} that agree"
    return _RankIndex(TokenRuns(index, pairs, evidence, context), index, by=by)


def _unread(target: TokenSide, golden: TokenSide) -> Iterator[str]:
    """Yield the files that cannot be read, with the reasons."""
    for side in (target, golden):
        yield from (f"{file}: {because}" for (file, _), because in side.values.problems.items())


def _trains(side: TokenSide) -> bool:
    return any(op.phase == "backward" for run in side.runs for op in run.operators)


def _is_other_batch(index: TokenIndex) -> bool:
    """Whether one side has requests that the other has not, or has them in another order: a loss, gradients and norms
    depend on all of a batch, and a training step reads its batch in one order."""
    sizes = [side.shapes[0].sizes for side in (index.target, index.golden)]
    if sizes[0] == sizes[1]:
        return True
    batches = [one[0] for one in sizes if len(one) > 1]
    return bool(index.open) or index.target.size < len(index.rows) or (len(batches) == 2 and len({*batches}) == 2)


def _have_other_names(pairs: Sequence[TensorPair]) -> bool:
    """Whether most operators have other names on both sides."""
    return 2 * sum(one.target[0] != one.golden[0] for one in pairs) > len(pairs)


def _open_words(index: TokenIndex) -> str:
    """The tokens without a row, in words; "" if there are none."""
    if not index.open:
        return ""
    count = sum(one[2] for one in index.open)
    request, first, length = index.open[0]
    last = f" to {first + length - 1}" if length > 1 else ""
    where = f"position {first}{last}" if first >= 0 else "before position 0"
    words = f"{count} of {sum(index.lengths)} tokens of the golden have no row in the target that can be only theirs"
    return f"{words}, the first: request {request}, {where}; ids, and a mask or lengths, decide on them"


def _without_values(target: TokenSide, golden: TokenSide, pairs: Sequence[TensorPair]) -> list[Run]:
    """Runs with the shapes of the golden and without values, of which every tensor is unknown."""
    width = {key: one.width for one in pairs for key in (one.target, one.golden)}
    found = []
    for side in (target, golden):
        run = side.runs[0]
        operators, seen = [], dict[str, int]()
        for operator in run.operators:
            number = seen[operator.name] = seen.get(operator.name, -1) + 1
            tensors = [
                one._replace(shape=(golden.size, width[operator.name, number, one.slot]), file="", payload=None,
                             statistics=None, checksum="", layout="")
                for one in operator.tensors if (operator.name, number, one.slot) in width
            ]  # fmt: skip
            operators.append(operator._replace(tensors=tuple(tensors)))
        found.append(replace(run, operators=tuple(operators), step=golden.runs[0].step, rank=golden.runs[0].rank))
    return found


def _with_index(one: Comparison, indexed: _Indexed, errors: TokenErrors) -> Comparison:
    """The comparison with the tokens of its roots, and with those of the golden that have no row."""
    index = indexed.tokens
    if index is None:
        return one
    places = TokenPlaces(index.requests, index.positions, indexed.places, len(index.target.runs))
    found = with_tokens(one, places, errors)
    if not index.open:
        return found
    request, first, _ = index.open[0]
    name = f"request {request}, position {first}" if first >= 0 else f"request {request}, before position 0"
    missed = sum(count for *_, count in index.open) * max(1, one.coverage.covered // max(1, len(index.rows)))
    more = Coverage(missed=missed, tensors=len(index.open),
                    first=(OpenTensor(name, "", missed, "", "the token has no row in the target"),))  # fmt: skip
    return replace(found, coverage=Coverage.sum([found.coverage, more]))


def _facts(found: Sequence[_Indexed]) -> TokenFacts:
    """The facts of all steps; layouts and padding are those of the first one with an index."""
    problem = next((one.problem for one in found if one.problem), "")
    every = [one.tokens for one in found if one.tokens is not None]
    if not every:
        return TokenFacts(0, 0, (), "", "", problem=problem)
    tokens, requests = sum(len(one.rows) for one in every), sum(len({*map(int, one.requests)}) for one in every)
    lengths = tuple(length for one in every for length in one.lengths)
    return TokenFacts(tokens, requests, lengths, every[0].target.words, every[0].golden.words, every[0].padding,
                      sum(len(one.target.runs) for one in every), problem)  # fmt: skip
