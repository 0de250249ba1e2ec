"""Compare runs with unequal token layouts: padded, packed, in steps, of another batch. Both sides become runs of the
rows of the same tokens, which the pipeline compares as any two runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, NamedTuple, Optional, Sequence

from npucmp.align.cross_framework.msprobe_mapping import Names
from npucmp.align.token_axes import token_shape
from npucmp.align.token_evidence import gather_evidence
from npucmp.align.token_index import TokenIndex, find_index
from npucmp.align.token_runs import TokenRuns, token_runs
from npucmp.align.token_tensors import TensorPair, TokenSide, tensor_pairs
from npucmp.dump.limits import ReadContext
from npucmp.localise.token_origin import TokenPlaces, with_tokens
from npucmp.model import Comparison, Report, Run
from npucmp.model.comparison import Coverage, OpenTensor
from npucmp.model.relation import TokenBits, TokenFacts
from npucmp.workflows.options import Options
from npucmp.workflows.pipeline import ComparisonSource, compare_steps
from npucmp.workflows.select_runs import Sides

NO_VALUES = ("statistics of tensors with other tokens prove nothing: record values on both sides "
             "(npucmp plan diverged, task tensor)")  # fmt: skip


SEVERAL_STEPS = "several steps of the golden against one of the target: compare with the run of one step as GOLDEN"


class _Indexed(NamedTuple):
    """Both sides with their index. `problem`: the reason why there is none."""

    runs: TokenRuns
    tokens: Optional[TokenIndex]
    problem: str = ""
    is_ambiguous: bool = False


def compared_tokens(sides: Sides, options: Options, context: ReadContext, by_shape: bool = True) -> Optional[Report]:
    """Compare the runs token by token; None if their token layouts are equal. `by_shape`: shapes must show that they
    are not; otherwise equal shapes may hold the tokens in another order."""
    targets, goldens = ([run for run in runs if not run.problem] for runs in (sides.targets, sides.goldens))
    if not _may_differ(targets, goldens, by_shape):
        return None
    groups = (
        [(targets, goldens)] if 1 in (len(targets), len(goldens)) else [([a], [b]) for a, b in zip(targets, goldens)]
    )
    found = []
    for own, other in groups:
        one = _indexed(own, other, options.names(), context)
        if one is None or (one.tokens is not None and one.tokens.is_identity and not options.batch_invariance):
            return None
        if one.tokens is None and not (by_shape or one.is_ambiguous):
            return None
        found.append(one)
    together = [one.runs for one in found]
    source = ComparisonSource(sides.target_path, sides.golden_path, together, (), (), sides.also)
    report = compare_steps(source, replace(options, recompute="none"))
    comparisons = tuple(_with_index(one, indexed, context) for one, indexed in zip(report.comparisons, found))
    notes = tuple(one.problem for one in found if one.problem)
    bits = tuple(_bits(comparisons, found, context)) if options.batch_invariance else ()
    facts = _facts(found[0])
    return replace(report, comparisons=comparisons, notes=(*report.notes, *notes), tokens=facts, token_bits=bits)


def _bits(comparisons: Sequence[Comparison], found: Sequence[_Indexed], context: ReadContext) -> Iterator[TokenBits]:
    """Yield the tokens with equal bits of each operator."""
    from npucmp.localise.batch_invariance import token_bits

    for one, indexed in zip(comparisons, found):
        if indexed.tokens is not None:
            yield from token_bits(one, indexed.tokens.requests, context)


def _may_differ(targets: Sequence[Run], goldens: Sequence[Run], by_shape: bool) -> bool:
    """Whether both sides have one rank, steps that belong together, and by their shapes other tokens."""
    if not targets or not goldens or any(len({run.rank for run in runs}) > 1 for runs in (targets, goldens)):
        return False
    if 1 not in (len(targets), len(goldens)) and len(targets) != len(goldens):
        return False
    if len(targets) != len(goldens):
        steps = max(targets, goldens, key=len)
        shapes = [token_shape(run) for run in steps]
        one = token_shape(min(targets, goldens, key=len)[0])
        return one is not None and None not in shapes and any(shape.sizes != one.sizes for shape in shapes if shape)
    pairs = [(token_shape(a), token_shape(b)) for a, b in zip(targets, goldens)]
    if any(None in pair for pair in pairs):
        return False
    differ = any(a is not None and b is not None and a.sizes != b.sizes for a, b in pairs)
    return differ if by_shape else not differ


def _indexed(targets: Sequence[Run], goldens: Sequence[Run], names: Names, context: ReadContext) -> Optional[_Indexed]:
    target, golden = TokenSide.of(targets, context), TokenSide.of(goldens, context)
    if target is None or golden is None:
        return None
    pairs = tensor_pairs(target, golden, names, context)
    if not pairs:
        return None
    if len(golden.runs) > 1:
        return _Indexed(_without_values(target, golden, pairs), None, SEVERAL_STEPS)
    evidence = gather_evidence(target, golden, pairs, context)
    if evidence is None and target.size == golden.size:
        return None  # all tokens of both sides may be compared as a whole
    if evidence is None:
        return _Indexed(_without_values(target, golden, pairs), None, NO_VALUES)
    index = find_index(target, golden, evidence)
    if index is None or (_trains(golden) and _is_other_batch(index)):
        return None
    if index.problem and target.size == golden.size and _have_other_names(pairs):
        return None  # names of two frameworks: tensors with all tokens are compared as a whole
    if index.problem:
        words = (
            f"no index of tokens: {index.problem}; record the ids and the attention mask or the lengths of both runs"
        )
        return _Indexed(_without_values(target, golden, pairs), None, words, index.is_ambiguous)
    return _Indexed(token_runs(index, pairs, evidence, context), index, _open_words(index))


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


def _without_values(target: TokenSide, golden: TokenSide, pairs: Sequence[TensorPair]) -> TokenRuns:
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
    return TokenRuns(*found)


def _with_index(one: Comparison, indexed: _Indexed, context: ReadContext) -> Comparison:
    """The comparison with the tokens of its roots, and with those of the golden that have no row."""
    index = indexed.tokens
    if index is None:
        return one
    target = [index.where(at) for at in range(len(index.rows))]
    found = with_tokens(one, TokenPlaces(index.requests, index.positions, target, len(index.target.runs)), context)
    if not index.open:
        return found
    request, first, _ = index.open[0]
    name = f"request {request}, position {first}" if first >= 0 else f"request {request}, before position 0"
    missed = sum(count for *_, count in index.open) * max(1, one.coverage.covered // max(1, len(index.rows)))
    more = Coverage(missed=missed, tensors=len(index.open),
                    first=(OpenTensor(name, "", missed, "", "the token has no row in the target"),))  # fmt: skip
    return replace(found, coverage=Coverage.sum([found.coverage, more]))


def _facts(one: _Indexed) -> TokenFacts:
    index = one.tokens
    if index is None:
        return TokenFacts(0, 0, (), "", "", problem=one.problem)
    requests = len({*map(int, index.requests)})
    return TokenFacts(len(index.rows), requests, index.lengths, index.target.words, index.golden.words, index.padding,
                      len(index.target.runs), one.problem)  # fmt: skip
