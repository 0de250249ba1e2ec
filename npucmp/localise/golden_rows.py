"""The golden tensors of a comparison in columns, a row for each finding, and conclusions from the figures of one."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any, Hashable, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.readers.names import file_name_of
from npucmp.localise.alignment_confidence import OUTPUT
from npucmp.model import DECIDED, Finding, Pair, Side, Verdict
from npucmp.model.dtypes import SUM_ROUNDING, lookup
from npucmp.model.finding import BY_CONTENT, MEANINGLESS
from npucmp.model.moments import repeated_hash
from npucmp.model.network import by_network
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_argument, is_meaningless, is_output
from npucmp.model.table import rows_of_rule, rows_of_verdicts

# value: chosen: the largest number that replaces minus infinity in masks (OWN of measure/kernel/mask_values.py), not
# measured
MASKS = -1e4

RowNumbers = npt.NDArray[np.int64]


def grouped(rows: RowNumbers, keys: npt.NDArray[Any]) -> tuple[list[list[int]], RowNumbers]:
    """Some rows by equal key, each group in the order of the rows, the least key first; and the number of the group of
    each row. `keys` has all rows."""
    order: RowNumbers = rows[np.argsort(keys[rows], kind="stable")]
    begins = np.diff(keys[order], prepend=~keys[order[:1]]) != 0
    numbers = np.zeros(len(keys), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    starts, ordered = np.flatnonzero(begins).tolist(), order.tolist()
    return [ordered[begin:end] for begin, end in zip(starts, [*starts[1:], len(ordered)])], numbers


class GoldenColumns:
    """The columns of a comparison that its pairs decide.

    operators  the golden's operator of each row, the target's if the golden has none; `orders` its place in its run
    gradients  whether the operator of a row belongs to a backward pass
    casts      whether the operator of a row writes what it reads, at most in another type
    outputs    whether a row is an output; `lost`: one of a matched operator of which the target recorded no outputs
    sequence   the rows in the order of the golden, inputs of an operator before its outputs
    numbers    the number of the operator of a row; `members` the rows of each, in `sequence`; `firsts` its first pair
    matched    the places of the operators that both sides have, ascending
    bare       the golden operators whose record holds no tensors although that of the target does
    astray     the gaps between matched operators in which the target alone has backward operators
    shapes     the shape of each row; `elements` their number, None if no header records it (`unsized`)
    alone      whether the target has no operator of a row; `missing`: no tensor; `lone`: the rows that the golden lacks
    golden     whether a row has a golden tensor with elements; `certain`: and a partner, if any, that is certain
    exempt     whether the content of a row is undefined, or the network has no such tensor
    sources    the output that a golden tensor is, as in names of files; "" if no name refers to it
    readable   whether a file holds values of the golden
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.operators = [pair.golden_op or pair.operator for pair in pairs]
        self.orders = np.array([operator.order for operator in self.operators], np.int64)
        kinds = {id(one): (is_gradient(one), op_type_of(one).has("hands on")) for one in self.operators}
        self.gradients = [kinds[id(operator)][0] for operator in self.operators]
        self.casts = np.array([kinds[id(operator)][1] for operator in self.operators], bool)
        self.outputs = [*map(is_output, pairs)]
        targets = {id(pair.target_op): pair.target_op for pair in pairs if pair.target_op is not None}
        bare = {key for key, operator in targets.items() if not any(one.is_output for one in operator.tensors)}
        self.lost = [writes and id(pair.target_op) in bare for writes, pair in zip(self.outputs, pairs)]
        self.sequence = np.lexsort((np.array(self.outputs, bool), self.orders))
        self.members, numbers = grouped(self.sequence, np.array([pair.order for pair in pairs], np.int64))
        self.numbers: list[int] = numbers.tolist()
        self.firsts = [pairs[min(rows)] for rows in self.members]
        self.matched = [pair.order for pair in self.firsts if pair.target_op and pair.golden_op]
        both = ((pair.target_op, pair.golden_op) for pair in self.firsts)
        self.bare = [own.name for target, own in both if target and own and target.tensors and not own.tensors]
        added = (pair for pair in self.firsts if pair.golden_op is None and is_gradient(pair.operator))
        self.astray = {bisect_right(self.matched, pair.order) for pair in added}
        tensors = [pair.golden or pair.target for pair in pairs]
        self.shapes = [tensor.shape if tensor else () for tensor in tensors]
        headers = (tensor is not None and (tensor.slot or tensor.shape) for tensor in tensors)
        self.elements = [math.prod(shape) if header else None for shape, header in zip(self.shapes, headers)]
        self.unsized = {at for at, size in enumerate(self.elements) if size is None}
        self.alone = np.array([pair.target_op is None for pair in pairs], bool)
        self.missing = np.array([pair.target is None for pair in pairs], bool)
        self.lone = [at for at, pair in enumerate(pairs) if pair.golden is None]
        goldens = [pair.golden for pair in pairs]
        self.golden = np.array([golden is not None and size != 0 for golden, size in zip(goldens, self.elements)], bool)
        uncertain = [pair.via in BY_CONTENT and pair.confidence < OUTPUT for pair in pairs]
        self.certain = self.golden & ~np.array(uncertain, bool)
        self.exempt = np.array([*map(_is_exempt, pairs)], bool)
        self.sources = [file_name_of(golden.source) if golden and golden.source else "" for golden in goldens]
        self.readable = any(golden.file or golden.payload for golden in goldens if golden)


@by_network
def _columns_of(pairs: Sequence[Pair]) -> GoldenColumns:
    return GoldenColumns(pairs)


def _is_exempt(pair: Pair) -> bool:
    """Whether the content of a tensor is undefined, or the network has no such tensor."""
    golden, alone = pair.golden, pair.target is None or pair.golden is None
    if golden is not None and golden.relation is not None and golden.relation.is_local:
        return True  # relations/ranks/assembled_run.py: what reads it was compared
    if alone and golden is not None:
        from npucmp.relations.token_records import records_layout

        if records_layout(pair.golden_op, golden):
            return True  # what is made of it is compared
    return is_meaningless(pair) or (alone and pair.is_inside) or is_argument(pair)


class GoldenRows:
    """The golden tensors of one step and rank: which of them a comparison has to account for.

    decided  whether the two sides of a row were compared; `unreadable` the rows of which a side is unreadable
    exempt   whether no row has to account for a tensor
    golden   whether a comparison has to account for a row; `undecided` the rows of these without a certain comparison
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings, self.columns = findings, _columns_of(findings)
        self.decided = np.zeros(len(findings), bool)
        self.decided[rows_of_verdicts(findings, DECIDED)] = True
        self.unreadable = rows_of_verdicts(findings, {Verdict.UNREADABLE})
        self.golden, self.exempt = self.columns.certain & self.decided, self.columns.exempt.copy()
        self.exempt[[row for rule in MEANINGLESS for row in rows_of_rule(findings, rule)]] = True
        self.exempt[self.unreadable] = False
        self.undecided = np.flatnonzero(self.columns.golden & ~self.golden & ~self.exempt)
        self.golden[self.undecided] = True


def golden_side(finding: Finding) -> Optional[Side]:
    """The golden's moments of a row; None if its values are unknown."""
    moments = finding.measurement.moments
    return None if moments is None else moments.golden


def golden_round_off(pair: Pair) -> float:
    """The unit round-off of the golden's type; 0 if it is not a float type."""
    dtype = lookup(pair.golden.dtype) if pair.golden is not None else None
    return dtype.round_off if dtype is not None else 0.0


def constant_of(finding: Finding) -> Optional[Hashable]:
    """A key that identifies a golden tensor of equal elements; None for any other tensor."""
    side, tensor = golden_side(finding), finding.measurement.pair.golden
    if side is None or tensor is None or side.minimum != side.maximum:
        return None
    return tensor.shape, tensor.dtype, side.minimum, side.nan, side.posinf, side.neginf


def is_mask(finding: Finding) -> bool:
    """Whether a golden tensor is a mask: true and false, or 0 and one value so low that its exponential is 0."""
    side, tensor = golden_side(finding), finding.measurement.pair.golden
    if tensor is not None and tensor.dtype == "bool":
        return True
    if side is None or side.maximum != 0.0 or side.nan or side.posinf:
        return False
    if side.neginf:
        return side.minimum == 0.0
    return side.minimum <= MASKS and math.isclose(side.squares, side.minimum * side.total, rel_tol=SUM_ROUNDING)


def is_expansion(written: Finding, read: Finding) -> bool:
    """Whether a tensor holds each element of another several times, in any order: heads of keys that queries share, a
    mask along the batch. The hashes prove it."""
    one, more = golden_side(written), golden_side(read)
    few, many = (math.prod(row.pair.golden.shape) if row.pair.golden else 0 for row in (written, read))
    if one is None or more is None or not few or not many or many % few or many == few:
        return False
    return one.minimum < one.maximum and repeated_hash(one.hash, many // few) == more.hash


def rounds_to(wide: Side, narrow: Side, unit: float) -> bool:
    """Whether the statistics of one tensor are those of another, rounded element by element with this round-off."""
    if (wide.nan, wide.posinf, wide.neginf) != (narrow.nan, narrow.posinf, narrow.neginf):
        return False
    unit = unit + SUM_ROUNDING
    extremes = ((wide.minimum, narrow.minimum), (wide.maximum, narrow.maximum))
    near = all(abs(a - b) <= unit * max(abs(a), abs(b)) for a, b in extremes)
    return near and abs(wide.squares - narrow.squares) <= 2 * unit * wide.squares
