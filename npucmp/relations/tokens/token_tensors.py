"""Tensors of two runs that hold the same tokens in other layouts.

Operators are aligned as ever (align/__init__.py), on runs in which all tensors with axes of tokens have the same number
of tokens. No value is read for this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.align import DifferentNetworks, align, pairs
from npucmp.align.msprobe_mapping import Names
from npucmp.dump.limits import ReadContext
from npucmp.model import Operator, Run, TensorRef
from npucmp.model.roles import is_activation, is_read_parameter
from npucmp.relations.held_values import Values
from npucmp.relations.tokens.token_axes import TokenShape, token_axes, token_shape
from npucmp.relations.tokens.token_rows import StepTensor, step_tensor

Key = tuple[str, int, str]  # name of an operator, its number among those of the name, and a slot


@dataclass(frozen=True)
class TokenSide:
    """One side of a comparison: its steps, and the shape of the tokens of each."""

    runs: tuple[Run, ...]
    shapes: tuple[TokenShape, ...]
    values: Values

    @classmethod
    def of(cls, runs: Sequence[Run], context: ReadContext, ranks: int = 1) -> Optional[TokenSide]:
        """The side with these steps, of one of some ranks; None if a step has no activations."""
        shapes = [token_shape(run, ranks) for run in runs]
        known = tuple(one for one in shapes if one is not None)
        return cls(tuple(runs), known, Values(context)) if len(known) == len(shapes) else None

    @property
    def size(self) -> int:
        """The number of tokens of all steps, padding included."""
        return sum(shape.size for shape in self.shapes)

    def turned(self) -> TokenSide:
        """The side with sequences before batches."""
        return replace(self, shapes=tuple(shape._replace(is_turned=shape.has_batch) for shape in self.shapes))

    def tensors(self) -> list[dict[Key, TensorRef]]:
        """The tensors of each step by operator and slot."""
        return [{key: tensor for _, key, tensor in tensors_of(run)} for run in self.runs]

    def steps_of(self, tensors: Sequence[Mapping[Key, TensorRef]], key: Key) -> Optional[dict[int, StepTensor]]:
        """A tensor in all steps; None if a step does not have it by token."""
        found = {}
        for step, (known, shape) in enumerate(zip(tensors, self.shapes)):
            one = step_tensor(known[key], shape, self.values) if key in known else None
            if one is None:
                return None
            found[step] = one
        return found

    def has_shapes_of(self, other: TokenSide) -> bool:
        """Return whether both sides have tokens of the same sizes and order in all steps."""
        return [shape[:2] for shape in self.shapes] == [shape[:2] for shape in other.shapes]

    @property
    def words(self) -> str:
        """The layout in words: "packed", "padded (3, 7)"."""
        first = self.shapes[0]
        if len(self.runs) > 1:
            return f"{len(self.runs)} steps"
        if not first.has_batch:
            return "packed" if first.size > 1 else "one token"
        return f"{'sequence x batch' if first.is_turned else 'batch x sequence'} {list(first.sizes)}"


class TensorPair(NamedTuple):
    """A tensor of both sides. `width` is the number of values of a token of the golden; `is_part`: the target has
    another number, as a rank does that holds a part."""

    target: Key
    golden: Key
    is_float: bool
    is_output: bool
    width: int
    is_part: bool = False


def tensors_of(run: Run) -> list[tuple[Operator, Key, TensorRef]]:
    """All tensors of a run with their keys."""
    seen: dict[str, int] = {}
    found = []
    for operator in run.operators:
        number = seen[operator.name] = seen.get(operator.name, -1) + 1
        found += [(operator, (operator.name, number, one.slot), one) for one in operator.tensors]
    return found


def tensor_pairs(
    target: TokenSide, golden: TokenSide, names: Optional[Names], context: ReadContext
) -> Optional[list[TensorPair]]:
    """The tensors of tokens that both sides have, in the order of the golden; None for different networks."""
    count = max(2, golden.size)
    runs = [_uniform(side.runs[0], side.shapes[0], count) for side in (target, golden)]
    try:
        alignment = align(runs[0], runs[1], names, context, "names")
    except DifferentNetworks:
        return None
    keys = [{(op.order, one.slot): (key, one) for op, key, one in tensors_of(run)} for run in runs]
    found = []
    for pair in pairs(runs[0], runs[1], alignment):
        if pair.target is None or pair.golden is None or pair.target_op is None or pair.golden_op is None:
            continue
        left = keys[0].get((pair.target_op.order, pair.target.own_slot or pair.target.slot))
        right = keys[1].get((pair.golden_op.order, pair.golden.own_slot or pair.golden.slot))
        if left is None or right is None or left[1].label != _TOKENS or right[1].label != _TOKENS:
            continue
        widths = [one.shape[1] if len(one.shape) > 1 else 1 for _, one in (left, right)]
        is_float = left[1].dtype.startswith(("float", "bfloat", "hifloat"))
        is_part = widths[0] != widths[1]
        if is_part and not (is_float and min(widths) and not max(widths) % min(widths)):
            continue
        tensors = TensorPair(left[0], right[0], is_float, right[1].is_output, widths[1], is_part)
        found.append((pair.golden_op.order, tensors))
    whole = {key for _, one in found if not one.is_part for key in (one.target, one.golden)}
    kept = [both for both in found if not both[1].is_part or whole.isdisjoint(both[1][:2])]
    return [one for _, one in sorted(kept, key=lambda both: both[0])]


_TOKENS = "tokens"


def _uniform(run: Run, tokens: TokenShape, count: int) -> Run:
    """The run in which each tensor of tokens has `count` of them, without values."""
    operators = []
    for operator in run.operators:
        tensors = []
        for one in operator.tensors:
            is_weight = is_read_parameter(operator, one)
            axes = token_axes(one.shape, (), tokens) if is_activation(one) and not is_weight else None
            bare = one._replace(file="", payload=None, statistics=None, checksum="", label="")
            if axes is not None:
                shape = (count, axes.width) if axes.rest else (count,)
                bare = bare._replace(shape=shape, label=_TOKENS, layout="")
            tensors.append(bare)
        operators.append(operator._replace(tensors=tuple(tensors)))
    return replace(run, operators=tuple(operators))
