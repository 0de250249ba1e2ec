"""Cut the operators of a rank into micro batches."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import Hashable, Sequence

from npucmp.relations.held_values import RankOperator


def micro_batches_of(
    operators: Sequence[RankOperator],
) -> tuple[list[list[RankOperator]], list[list[RankOperator]], list[RankOperator]]:
    """Forward operators by micro batch; those that run within its backward pass; and those behind the last backward
    pass. A micro batch begins behind a backward pass, with a receive from an earlier stage (behind another, or
    operators with weights), or where the table of the first operator is looked up again."""
    batches: list[list[RankOperator]] = [[]]
    within: dict[int, list[RankOperator]] = defaultdict(list)
    batch_of: dict[str, int] = {}
    own = 0  # the micro batch of the backward pass: a stage may be a micro batch ahead
    last = max((at for at, one in enumerate(operators) if one.is_backward), default=len(operators))
    seen = received = has_received = False
    for at, one in enumerate(operators[: last + 1]):
        if one.is_backward:
            seen, received = seen or bool(batches[-1]), False
            own = batch_of.get(one.op.call, own)
        elif one.is_collective:
            received = received or (one.type.has("point to point") and one.type.has("receives"))
        elif seen and not _begins(one, batches[0]):
            within[own].append(one)
        else:
            has_weights = any(each.weights for each in batches[-1])  # else it is what runs before the batch
            is_again = has_weights and not (seen or received)
            again = _repeated(one, batches, operators[at + 1 : last + 1]) if is_again else -1
            if again >= 0:  # with what is computed of the ids before
                known = {*map(_line, batches[0][:again])}
                cut = len(batches[-1])
                while cut > len(batches[-1]) - again and _line(batches[-1][cut - 1]) in known:
                    cut -= 1
                batches[-1:] = [*filter(None, [batches[-1][:cut]]), batches[-1][cut:]]
            elif batches[-1] and _begins(one, batches[0]) and (seen or (received and (has_received or has_weights))):
                batches.append([])
            has_received = received or (has_received and not seen)
            seen = received = False
            batches[-1].append(one)
            batch_of[one.op.call] = len(batches) - 1
    update = [one for one in operators[last + 1 :] if not one.is_collective]
    calls = {(one.key, one.op.stack) for some in within.values() for one in some if one.op.stack}
    while update and (update[0].key, update[0].op.stack) in calls:  # behind the backward operator of the last gradient
        within[own].append(update.pop(0))
    if batches == [[]]:  # a backward pass of nothing
        return [update], [[]], []
    return batches, [within[at] for at in range(len(batches))], update


def _line(one: RankOperator) -> tuple[str, tuple[str, ...]]:
    return one.key, one.op.stack[:1]


def _begins(one: RankOperator, batch: Sequence[RankOperator]) -> bool:
    """Whether an operator behind a backward pass or a receive begins a forward pass, as far as call stacks show it:
    those of a user's function in the backward pass, of a recomputed layer or of a ring do not."""
    first = next((at for at, other in enumerate(batch) if other.weights), len(batch))
    known = [(other.key, _functions(other.op.stack)) for other in batch[: first + 1] if other.op.stack]
    return not one.op.stack or not known or (one.key, _functions(one.op.stack)) in known


@lru_cache(maxsize=1 << 12)  # calls of a layer share stacks
def _functions(stack: tuple[str, ...]) -> tuple[str, ...]:
    """A call stack without the lines at which its functions call one another: prefill and decoding, or warm-up and
    steady state, call one network at two lines."""
    return stack[:1] + tuple(re.sub(r", line \d+(, in [^,\n]+)[\s\S]*", r"\1", frame) for frame in stack[1:])


def _repeated(one: RankOperator, batches: Sequence[Sequence[RankOperator]], following: Sequence[RankOperator]) -> int:
    """How many operators stood before the first one that looked up a table, if an operator looks it up again and the
    same weights follow; -1 if it does not: an encoder and a decoder may share a table. Behind that one, a rank of
    virtual stages has other chunks of layers."""
    if not one.type.has("looks up"):
        return -1
    first = ((at, batch) for batch in batches for at, other in enumerate(batch) if other.type.has("looks up"))
    place, batch = next(first, (-1, []))
    table = _tables(one)
    if place < 0 or one.key != batch[place].key or len(one.inputs) != len(batch[place].inputs):
        return -1
    if not table or None in table or table != _tables(batch[place]):
        return -1
    before, behind = (_next_weights(some, table) for some in (batch[place + 1 :], following))
    return place if before == behind or not before or not behind else -1


def _tables(one: RankOperator) -> list[Hashable]:
    """The contents of what an operator looks up, or of its weights."""
    return [each.content for each in (one.inputs if one.type.has("looks up") else one.weights) if each.is_float]


def _next_weights(operators: Sequence[RankOperator], table: list[Hashable]) -> list[Hashable]:
    """The contents of the first weights that are read behind a table."""
    return next((own for one in operators for own in [_tables(one)] if own and own != table), [])
