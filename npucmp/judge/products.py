"""Decide whether float32 matrix products kept 11 bits of their operands, as HF32 and TF32 units do. All products of a
run vote, each by the error that it adds to the errors of its operands.

Matrix units that round float32 operands to 11 bits are on by default for convolutions on Ascend and on CUDA. For a
product of K terms, with s² = K·ms(a)·ms(b) / ms(product) and ms the mean square of the golden, this rounding adds
2·(2.08e-4)²·s² to the square of rel_l2. A product that adds 0.5 to 2 times that votes for 11 bits, one that adds less
than a quarter of it votes for float32. A larger error is another fault and no vote. Operands of 11 bits or fewer, fewer
than 16 elements, input errors whose square exceeds twice the expected square, and results that one side rounded to 16
bits give no vote. The larger the input errors, the less a vote counts.

The run keeps 11 bits if the votes for it, without the surest vote, are twice the votes against it: a single product may
be the fault. If a dump has inputs only, an operator at most 3 places behind a product reads its output. If a dump has
outputs only, the product is assumed to have read the largest error so far. All steps and ranks decide together, and a
note reports the result. If both runs keep 11 bits, the limits stay those of float32 (rule `reduced_alike`).
"""

from __future__ import annotations

import math
from itertools import chain, islice
from typing import Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.judge.precision import SINGLE, is_rounded_to_16_bits
from npucmp.judge.tolerance import FACTOR
from npucmp.measure import metrics
from npucmp.model import Finding, Measurement, Verdict
from npucmp.model.dtypes import AVERAGED_ELEMENTS
from npucmp.model.moments import SHORT_BITS
from npucmp.model.optypes import OpType
from npucmp.model.roles import is_output, is_parameter

# rel_l2: definition: numbers rounded to 11 bits, 2^-11 · √(1/3 · 3/8 / ln 2), with usual significands
ROUNDED = 2.08e-4
# share of the expected square: chosen: a reduced product adds this, float32 less, not measured
REDUCED_ERROR = 0.25, 2.0
OPERAND_ERROR = 2.0  # times the expected square: chosen: upper limit of the square of the operands' error, not measured
READER_DISTANCE = 3  # operators: chosen: how far behind a product its unrecorded outputs may be read, not measured
VOTE_MAJORITY = 2.0  # times the votes of float32 products: chosen: the other votes except the surest, not measured
RECOMPUTED_PRODUCTS = 8  # products of a step and rank: work: number of products that are recomputed


def merge_votes(votes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge the votes of several steps and ranks whose products have the same names. Each product keeps its surest
    vote; if votes are equally sure, the negative one (float32) is kept."""
    found: dict[str, float] = {}
    for name, weight in chain.from_iterable(one.items() for one in votes):
        found[name] = max(found.get(name, 0.0), weight, key=lambda one: (abs(one), -one))
    return found


def are_reduced(votes: Mapping[str, float]) -> bool:
    """Whether the runs use reduced products, by the votes of all products. Nearly all votes must agree, and one vote
    does not suffice, because that product may be faulty itself."""
    for_it = sorted(one for one in votes.values() if one > 0.0)[:-1]
    return bool(for_it) and sum(for_it) >= VOTE_MAJORITY * -sum(one for one in votes.values() if one < 0.0)


class OperandFigures(NamedTuple):
    """The root mean square of a golden tensor, rel_l2, its number of elements, and whether it needs more than 11
    bits."""

    rms: float
    error: float
    elements: int
    is_long: bool = True


class MatrixProduct(NamedTuple):
    """A float32 matrix product: two operands, the result, and the number of terms that each element sums (0 if
    unknown).

    An element of a product sums K terms a·b. Independent relative errors e of the operands make the relative error
    s·√(Σ e²) of the product, with s² = K·ms(a)·ms(b) / ms(product), where ms is the mean square. This exceeds e if
    terms cancel, and is less than e if terms have one sign. Rounding to 11 bits, as HF32 and TF32 units do, is one such
    error of each operand. So a product shows by itself whether it adds that much to the errors of its operands: a
    product that adds less is float32, a product that adds as much is reduced. A product whose operands have larger
    errors, or which adds a larger error, decides nothing. Source: Higham, Accuracy and Stability of Numerical
    Algorithms, §3.1; NVIDIA, TF32; CANN, allow_hf32. Evidence: forward products of clean HF32 runs of the corpus add
    0.95 of that square, those of float32 runs 1e-7 of it (medians). In 4,200 chains of 1 to 6 products with one product
    in HF32, none was taken for an HF32 run; 949 of 960 chains of 2 to 6 products that are HF32 runs were recognised.
    """

    operands: tuple[OperandFigures, OperandFigures]
    wrote: OperandFigures
    terms: float

    @property
    def vote(self) -> float:
        """The vote from 1 (the product adds the error of 11 bits) to -1 (it adds almost nothing); 0 if it decides
        nothing.

        Errors that are not independent propagate unchanged, for example if an operand is scaled. If operands are
        unknown, the operator may have read a smaller error. So the incoming error lies between two bounds. A product
        whose incoming error equals the error of 11 bits has half a vote.
        """
        a, b = self.operands
        size = math.sqrt(self.terms) * a.rms * b.rms / self.wrote.rms if self.wrote.rms else 0.0
        share = size * size if self.terms else 1.0
        adds = share * ROUNDED * ROUNDED * (a.is_long + b.is_long)
        read, wrote = math.hypot(a.error, b.error), self.wrote.error
        if not 0.0 < adds < math.inf or self.wrote.elements < AVERAGED_ELEMENTS or not max(read, wrote) < 1.0:
            return 0.0
        came = max(1.0, share) * read * read / adds
        least = min(1.0, share) * read * read / adds if self.terms else 0.0
        added = wrote * wrote / adds
        sure = 1.0 / (1.0 + came * came) if came < OPERAND_ERROR else 0.0
        return (
            -sure
            if added - least < REDUCED_ERROR[0]
            else sure
            if REDUCED_ERROR[0] < added - came < REDUCED_ERROR[1]
            else 0.0
        )


def votes_of(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the votes of the products of one step and rank by name, in graph order; empty if no values were
    compared."""
    if not _have_values(measurements):
        return {}
    findings = [Finding(one, Verdict.UNKNOWN, "", row=row) for row, one in enumerate(measurements)]
    found, seen = [], set()  # a module and the function that it calls record the same product
    for name, product in _products(findings):
        if product.wrote not in seen and (vote := product.vote):
            found.append({name: vote})
            seen.add(product.wrote)
    return merge_votes(found)


def are_reduced_alike(measurements: Sequence[Measurement], context: ReadContext) -> bool:
    """Whether the products of one step and rank keep 11 bits on both sides. It suffices that one product shows it: on
    each side its output is as far from the exact product of the operands recorded on that side. A fault does not change
    both sides.

    Values are read again only if a product wrote an error that this would cause and that has no other explanation.
    """
    if not _have_values(measurements):
        return False
    findings = [Finding(one, Verdict.UNKNOWN, "", row=row) for row, one in enumerate(measurements)]
    nodes = [*filter(_is_product, nodes_of(findings))]
    if not any(map(_may_cross, nodes)):
        return False
    known = chain.from_iterable(map(_multiplications, nodes))
    votes = (_own_votes(one, context) for one in islice(known, RECOMPUTED_PRODUCTS))
    return any(one is not None and min(one) > 0.0 for one in votes)


def _have_values(measurements: Sequence[Measurement]) -> bool:
    return any(one.moments is not None for one in measurements)


def _may_cross(node: OperatorFindings) -> bool:
    """Whether the error of an output exceeds what float32 and growth explain, but not what 11 bits explain."""
    read = [one.error for one in map(_figures, (*node.inputs, *node.extra_inputs)) if one is not None]
    wrote = [one.error for one in map(_result, node.outputs) if one is not None]
    return any(FACTOR * max(SINGLE, *read, 0.0) < error <= FACTOR * ROUNDED for error in wrote)


def _own_votes(one: Multiplication, context: ReadContext) -> Optional[tuple[float, float]]:
    """The votes of a product of the target and of the golden, each from its own values; None if one side is not
    known."""
    from npucmp.measure.own_products import own_product  # few runs need it

    figures = [*map(_figures, one.operands), _result(one.wrote)]
    if None in figures:
        return None
    long = [each is not None and each.is_long for each in figures]
    votes = []
    for side in range(2):
        tensors = [(each.pair.target, each.pair.golden)[side] for each in (*one.operands, one.wrote, *one.addends)]
        a, b, y, *addends = [each for each in tensors if each is not None]
        found = own_product((a, b), addends, y, context)
        if found is None:
            return None
        left, right = (OperandFigures(rms, 0.0, found.elements, each) for rms, each in zip(found.operands, long))
        wrote = OperandFigures(found.output, found.error, found.elements)
        votes.append(MatrixProduct((left, right), wrote, found.terms).vote)
    return votes[0], votes[1]


def _products(findings: Sequence[Finding]) -> Iterator[tuple[str, MatrixProduct]]:
    """The float32 products of a run with the names of their operators."""
    nodes = nodes_of(findings)
    unwritten = _UnrecordedProducts(findings) if any(_is_product(one) and not one.outputs for one in nodes) else None
    before = 0.0  # the largest error so far, the assumed error of operands that were not recorded
    for node in nodes:
        if unwritten is not None:
            yield from unwritten.visit(node)
        if _is_product(node) and node.outputs:
            gradients = filter(None, map(_product, _multiplications(node))) if node.is_gradient else ()
            found = gradients if node.is_gradient else _of_forward(node, before)
            yield from ((node.operator.name, one) for one in found)
        before = max([before, *(one.error for one in map(_figures, node.outputs) if one is not None)])


def _is_product(node: OperatorFindings) -> bool:
    """Whether an operator is one product: attention is two products with a softmax between them."""
    return node.op.has("contracts") and not node.op.has("fades")


def _of_forward(node: OperatorFindings, before: float) -> Iterator[MatrixProduct]:
    """Yield the product of a forward. If an operand was not recorded, as in dumps of outputs alone, its terms are
    unknown."""
    if len(node.outputs) != 1 or (wrote := _result(node.outputs[0])) is None:
        return
    if _operands(node) is not None:
        yield from filter(None, map(_product, _multiplications(node)))
        return
    read = [_figures(one) for one in node.inputs if len(one.pair.golden_shape) > 1]
    if len(read) <= 1 and None not in read:
        error = max((one.error for one in read if one is not None), default=before)
        unknown = OperandFigures(1.0, 0.0, 0)
        yield MatrixProduct((unknown._replace(error=error), unknown), wrote, 0.0)


class Multiplication(NamedTuple):
    """The tensors of a product; `addends` are vectors that its operator adds to the result."""

    operands: tuple[Finding, Finding]
    wrote: Finding
    terms: float
    addends: Sequence[Finding] = ()


def _product(one: Multiplication) -> Optional[MatrixProduct]:
    (a, b), wrote = map(_figures, one.operands), _result(one.wrote)
    return None if a is None or b is None or wrote is None else MatrixProduct((a, b), wrote, one.terms)


def _multiplications(node: OperatorFindings) -> Iterator[Multiplication]:
    """The products of an operator whose operands are identified. The gradient of an operand is the product of the
    gradient of the output and the other operand: it takes as many multiplications as the forward."""
    operands = _operands(node)
    results = [one for one in node.extra_inputs if is_output(one.pair)] if node.is_gradient else node.outputs
    if operands is None or len(results) != 1 or not results[0].pair.elements:
        return
    multiplied = _multiplication_count(node.op, *(one.pair.golden_shape for one in (*operands, results[0])))
    if not node.is_gradient:
        addends = [one for one in node.inputs if len(one.pair.golden_shape) == 1]
        yield Multiplication(operands, results[0], multiplied / results[0].pair.elements, addends)
        return
    came = next((one for one in node.inputs if one.pair.golden_shape == results[0].pair.golden_shape), None)
    left = [*operands]
    for finding in node.outputs:
        operand = next((one for one in left if one.pair.golden_shape == finding.pair.golden_shape), None)
        if operand is not None and came is not None:
            left.remove(operand)
            other = operands[1] if operand is operands[0] else operands[0]
            yield Multiplication((came, other), finding, multiplied / finding.pair.elements)


def _may_be_output(node: OperatorFindings, finding: Finding) -> bool:
    """Whether a tensor may be the output of a product that recorded no outputs, by its shape."""
    if (operands := _operands(node)) is None:
        return False
    a, b, y = (one.pair.golden_shape for one in (*operands, finding))
    if node.op.name.startswith(("conv", "depthwise")):
        return len(y) == len(a) and y[0] == a[0] and (y[1] == b[0] or y[-1] == b[-1])
    terms = _multiplication_count(node.op, a, b, y) / math.prod(y)
    return terms in a and terms in b


def _operands(node: OperatorFindings) -> Optional[tuple[Finding, Finding]]:
    """The two tensors that a forward multiplies, or that the forward of a gradient multiplied; None if they are
    ambiguous."""
    read = node.extra_inputs if node.is_gradient else node.inputs
    operands = [one for one in read if not one.pair.slot.startswith("output") and len(one.pair.golden_shape) > 1]
    if len(operands) > 2:
        operands = operands[-2:] if "add" in node.op.name else operands[:2]
    return (operands[0], operands[1]) if len(operands) == 2 else None


def _multiplication_count(op: OpType, a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...]) -> float:
    """The number of multiplications in a product of shapes `a` and `b` with the result shape `y`; 0 if an axis has
    length 0."""
    sizes = one, other, wrote = math.prod(a), math.prod(b), math.prod(y)
    if not all(sizes):
        return 0.0
    if "transpose" in op.name:
        return float(one * other // b[0])
    if op.name.startswith(("conv", "depthwise")):
        return float(wrote * other // (b[0] if len(y) > 1 and b[0] == y[1] else b[-1]))
    return math.sqrt(one * other * wrote / (math.prod(y[:-2]) if min(len(a), len(b)) > 2 else 1))


def _figures(finding: Finding) -> Optional[OperandFigures]:
    """The OperandFigures of a Finding; None if float32 values were not compared."""
    moments, tensors = finding.measurement.moments, (finding.pair.target, finding.pair.golden)
    if moments is None or not moments.compared or any(one is None or one.dtype != "float32" for one in tensors):
        return None
    bits = max(moments.target.bits, moments.golden.bits)
    rms = math.sqrt(moments.yy / moments.compared)
    return OperandFigures(rms, metrics.rel_l2(moments), moments.elements, bits > SHORT_BITS[-1])


def _result(finding: Finding) -> Optional[OperandFigures]:
    """The OperandFigures of a result; None if one side was rounded to 16 bits behind the product: HF32 and TF32 units
    add in float32."""
    return None if is_rounded_to_16_bits(finding.measurement) else _figures(finding)


class _UnrecordedProducts:
    """Products whose outputs were not recorded: an operator soon behind them reads a tensor that has no other
    producer."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._sources = Edges(findings).sources
        self._open: list[tuple[int, OperatorFindings]] = []

    def visit(self, node: OperatorFindings) -> Iterator[tuple[str, MatrixProduct]]:
        self._open = [(age + 1, one) for age, one in self._open if age < READER_DISTANCE]
        for finding in node.inputs if self._open else ():
            if self._sources[finding.row] >= 0 or is_parameter(finding.pair) or _figures(finding) is None:
                continue
            for at, (_, writer) in enumerate(self._open):
                if _may_be_output(writer, finding):
                    del self._open[at]
                    writer.outputs = [finding]
                    yield from ((writer.operator.name, one) for one in _of_forward(writer, 0.0))
                    break
        if _is_product(node) and not node.outputs and not node.is_gradient:
            self._open.append((0, node))
