"""Detect that two runs are laid out otherwise over ranks, batches or tokens, so that compare asks the relations."""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.errors import UsageError
from npucmp.model import RankGroup, Run
from npucmp.model.optypes import op_type_of
from npucmp.workflows.options import Options
from npucmp.workflows.select_runs import Sides, most_ranks

OTHER = 0.1  # share of operators: chosen, a fault leaves fewer with shapes that are multiples of the other's
COMMON = 0.3  # share of names: chosen: frameworks share names of a few functions, not measured
MORE = 1.2  # chosen: a run with so many times the operators of each rank is a network of which ranks have stages


def may_be_weights(sides: Sides, options: Options, in_doubt: bool) -> bool:
    """Return whether both paths may be checkpoints, and no option belongs to dumps of operators."""
    own = options.format is None and not (options.mapping or options.graph or options.also or options.pair)
    if not own or options.step is not None or options.rank is not None or options.ranks_apart:
        return False
    from npucmp.dump.formats import may_hold_weights

    return may_hold_weights(sides.target_path) and may_hold_weights(sides.golden_path)


def may_have_other_names(sides: Sides, options: Options, in_doubt: bool) -> bool:
    """Return whether one side alone has several ranks, and few of their operators have the names of the other side's:
    the runs are of two frameworks."""
    targets, goldens = sides.readable
    if options.ranks_apart or options.pair or not targets or not goldens:
        return False
    counts = sorted((most_ranks(targets), most_ranks(goldens)))
    if counts[0] > 1 or counts[1] == 1:
        return False
    names = [{operator.name for operator in runs[0].operators} for runs in (targets, goldens)]
    return len(names[0] & names[1]) < COMMON * min(map(len, names))


def may_have_other_ranks(sides: Sides, options: Options, in_doubt: bool) -> bool:
    """Return whether ranks have to be put together before a comparison: they communicate and the other side's do not,
    or their tensors have other shapes, or a rank is a part of the network. Ranks of equal layouts, of which some are
    missing, are compared rank by rank. Raises UsageError for equal numbers of ranks in unequal layouts."""
    targets, goldens = sides.readable
    if options.ranks_apart or options.pair or not targets or not goldens:
        return False
    counts = most_ranks(targets), most_ranks(goldens)
    if options.layout is not None or options.golden_layout is not None:
        differ = max(counts) > 1 or is_part(targets[0])
    else:
        differ = _layouts_differ(targets, goldens, counts)
    if not differ:
        check_equal_layouts(targets, goldens)
    return differ


def _layouts_differ(targets: Sequence[Run], goldens: Sequence[Run], counts: tuple[int, int]) -> bool:
    few, many = (goldens, targets) if counts[0] >= counts[1] else (targets, goldens)
    one, lone = next((run for run in many if run.rank == few[0].rank), many[0]), few[0]
    if counts == (1, 1):
        return _has_other_batches(one, lone) or (is_part(one) and not is_part(lone) and _has_other_shapes(one, lone))
    if min(counts) > 1 or is_part(lone):
        return counts[0] != counts[1] and max(counts) % min(counts) == 0 and _has_other_shapes(one, lone)
    parts = len(lone.operators) > MORE * max(len(run.operators) for run in many)
    return parts or is_part(one) or _has_other_shapes(one, lone)


def may_hold_other_tokens(sides: Sides, options: Options, in_doubt: bool) -> bool:
    """Return whether runs have unequal numbers of steps, or tensors of other shapes that no rank shares; in doubt,
    equal ones may hold their tokens in another order."""
    targets, goldens = sides.readable
    if options.ranks_apart or options.pair or not targets or not goldens:
        return False
    several = max(most_ranks(targets), most_ranks(goldens)) > 1
    if several:
        return _ranks_may_hold_other_tokens(targets, goldens, in_doubt)
    if options.layout is not None or options.golden_layout is not None:
        return False
    if in_doubt or len(targets) != len(goldens):
        return True
    if any(map(is_part, (targets[0], goldens[0]))) or _has_other_batches(targets[0], goldens[0]):
        return False
    shapes = [{tensor.shape for op in run.operators for tensor in op.tensors} for run in (targets[0], goldens[0])]
    return shapes[0] != shapes[1] and not _begins_alike(targets[0], goldens[0])


def _ranks_may_hold_other_tokens(targets: Sequence[Run], goldens: Sequence[Run], in_doubt: bool) -> bool:
    """Return whether the tokens of a rank are no part of the golden's batch, or of its sequences: packed against
    padded, or in other steps."""
    from npucmp.relations.tokens.token_axes import token_shape

    steps = [len({run.step for run in runs}) for runs in (targets, goldens)]
    if steps[0] != steps[1]:
        return not any(op.phase == "backward" for op in goldens[0].operators)
    first = [run for run in targets if run.step == targets[0].step]
    tokens, golden = [*map(token_shape, first)], token_shape(goldens[0])
    if golden is None or None in tokens:
        return False
    for target in filter(None, tokens):
        sizes = sorted((target.size, golden.size))
        if target.has_batch != golden.has_batch or not sizes[0] or sizes[1] % sizes[0]:
            return True
    return in_doubt


def may_have_other_batches(sides: Sides, options: Options, in_doubt: bool) -> bool:
    """Return whether the first operators of one name that have tensors of unequal shapes differ in their first axis,
    and in the others by their order alone."""
    targets, goldens = sides.readable
    stated = options.layout is not None or options.golden_layout is not None
    if stated or options.batch_invariance or options.pair or not targets or not goldens:
        return False
    if most_ranks(targets) != 1 or most_ranks(goldens) != 1:
        return False
    by_name = {op.name: {tensor.slot: tensor.shape for tensor in op.tensors} for op in goldens[0].operators}
    both = (
        (tensor.shape, by_name[op.name].get(tensor.slot, tensor.shape))
        for op in targets[0].operators
        if op.name in by_name
        for tensor in op.tensors
    )
    target, golden = next((shapes for shapes in both if shapes[0] != shapes[1]), ((), ()))
    return len(target) == len(golden) > 1 and target[0] != golden[0] and sorted(target[1:]) == sorted(golden[1:])


def _begins_alike(target: Run, golden: Run) -> bool:
    """Return whether the first operators of one name with outputs by token have outputs of one shape: other shapes
    behind them show a fault, and no other layout of tokens. If no output is by token, the first operators decide."""
    from npucmp.relations.tokens.token_axes import token_axes, token_shape

    tokens = token_shape(golden)
    by_name = {op.name: op for op in golden.operators} if tokens is not None else {}
    alike: Optional[bool] = None
    for op in target.operators:
        theirs = {one.slot: one.shape for one in (by_name[op.name].tensors if op.name in by_name else ())}
        own = {one.slot: one.shape for one in op.tensors if one.is_output and one.slot in theirs}
        if alike is None and any(len(shape) > 1 for shape in own.values()):
            alike = all(shape == theirs[slot] for slot, shape in own.items())
        axes = {slot: token_axes(theirs[slot], (), tokens) for slot in own if tokens is not None}
        first = [slot for slot, one in axes.items() if one is not None and one.rest]
        if first:
            return all(own[slot] == theirs[slot] for slot in first)
    return bool(alike)


def check_equal_layouts(targets: Sequence[Run], goldens: Sequence[Run]) -> None:
    """Raise UsageError if equal numbers of communicating ranks have unequal layouts: one side alone has pipeline
    stages, or many operators of one name have shapes that are multiples of one another."""
    count = most_ranks(targets)
    if count < 2 or count != most_ranks(goldens):
        return
    target = targets[0]
    golden = next((run for run in goldens if run.rank == target.rank), goldens[0])
    if not is_part(target) or not is_part(golden):
        return
    stages = [any(op_type_of(op).has("point to point") for op in run.operators) for run in (target, golden)]
    split, common = _multiples(target, golden)
    if stages[0] == stages[1] and split <= OTHER * common:
        return
    why = f"{split} of {common} operators of rank {target.rank or 0} have tensors of other shapes"
    if stages[0] != stages[1]:
        why = f"the {'target' if stages[0] else 'golden'} alone sends from stage to stage"
    raise UsageError(f"both runs have {count} ranks, in unequal layouts or with unequal batches: {why}. Compare each "
                     "with a run of one rank; --ranks-apart compares rank by rank")  # fmt: skip


def _multiples(target: Run, golden: Run) -> tuple[int, int]:
    """Return how many operators of one name have a tensor whose sizes are multiples of the other's, and how many
    operators both runs have."""
    by_name = {op.name: op for op in golden.operators if not op_type_of(op).has("collective")}
    pairs = [(op, by_name[op.name]) for op in target.operators if op.name in by_name]
    found = 0
    for op, other in pairs:
        shapes = {tensor.slot: tensor.shape for tensor in other.tensors}
        both = [(tensor.shape, shapes[tensor.slot]) for tensor in op.tensors if tensor.slot in shapes]
        found += any(len(a) == len(b) and a != b and all(x and y and max(x, y) % min(x, y) == 0 for x, y in zip(a, b))
                     for a, b in both)  # fmt: skip
    return found, len(pairs)


def is_part(run: Run) -> bool:
    """Return whether a run communicates with other ranks."""
    for op in run.operators:
        if op_type_of(op).has("collective"):
            groups = [one for one in op.arguments.values() if isinstance(one, RankGroup)]
            if max(map(len, groups), default=0) > 1 or op_type_of(op).has("point to point"):
                return True
    return False


def _has_other_batches(target: Run, golden: Run) -> bool:
    """Return whether two training runs compute a batch in unequal numbers of micro batches."""
    counts = [*map(_micro_batches, (target, golden))]
    names = {op.name for op in target.operators}
    shared = sum(op.name in names for op in golden.operators)  # few if the runs are of two frameworks
    is_one_network = 2 * shared >= len(golden.operators)
    return counts[0] != counts[1] and all(counts) and is_one_network and _has_other_shapes(target, golden)


def _has_other_shapes(target: Run, golden: Run) -> bool:
    """Return whether any parameter or tensor of an operator of one name has another shape."""
    shapes = {op.name: {tensor.slot: tensor.shape for tensor in op.tensors} for op in golden.operators}
    return any(shapes[op.name].get(tensor.slot, tensor.shape) != tensor.shape
               for op in target.operators if op.name in shapes for tensor in op.tensors)  # fmt: skip


def _micro_batches(run: Run) -> int:
    """Return how often a forward pass precedes a backward pass."""
    phases = [op.phase == "backward" for op in run.operators if op.phase]
    return sum(later and not before for before, later in zip([True, *phases], phases))
