"""The share of a dump that was compared, and the words for the remaining tensors."""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.localise.seen_errors import unlike_rows
from npucmp.model import DECIDED, Comparison, Pair, Report, Run, TensorRef
from npucmp.model.comparison import Coverage
from npucmp.model.roles import is_meaningless
from npucmp.model.table import Columns as TableColumns
from npucmp.model.table import (
    Flags,
    bare_pairs,
    network_fact,
    orders_of,
    with_verdict,
)
from npucmp.report.phrases import count_of, percent, where_words

NAMED_BY = ("name", "mapping", "fused", "parts")  # matchers beside those of contents
SHOWN_AS = {"fused": "original operators"}
NAMED = 3  # operators that the sentence names in --exclude options


class AlignedShare(NamedTuple):
    """The size of a comparison, and the share that was compared; shares of several comparisons are added.

    matched    numbers of operators by matcher; `alone` counts the operators that only the target and only the golden
               has
    decided    operators with at least one decided tensor
    compared   elements that were compared; `everything` counts all elements that could be compared
    contents   the line on an alignment by contents; "" if names aligned the runs
    """

    matched: Mapping[str, int]
    alone: tuple[int, int]
    decided: int
    compared: int
    everything: int
    contents: str = ""

    @classmethod
    def of(cls, one: Comparison) -> AlignedShare:
        """Return the shares of one comparison."""
        columns = one.columns
        is_decided, sizes = with_verdict(columns, DECIDED), network_fact(columns, _Sizes.of)
        decided, _ = np.unique(sizes.operators[columns.rows["operator"][is_decided]], return_counts=True)  # no numpy.ma
        compared = sum(compress(sizes.elements, is_decided.tolist()))
        left_out = sum(_elements(pair) for pair in one.left_out if not _is_inserted_alone(pair))
        return cls(one.matched, one.alone, len(decided), compared, sizes.everything + left_out, one.aligned_by_content)

    @classmethod
    def sum(cls, shares: Sequence[AlignedShare]) -> AlignedShare:
        """Return the sum of the shares."""
        matched: Counter[str] = Counter()
        for one in shares:
            matched.update(one.matched)
        sides = [sum(one.alone[side] for one in shares) for side in (0, 1)]
        decided, compared = sum(one.decided for one in shares), sum(one.compared for one in shares)
        line = next((one.contents for one in shares if one.contents), "")
        return cls(matched, (sides[0], sides[1]), decided, compared, sum(one.everything for one in shares), line)

    @property
    def operators(self) -> int:
        return sum(self.matched.values())

    @property
    def share(self) -> float:
        """The share of elements that were compared."""
        return self.compared / self.everything if self.everything else 0.0

    def facts(self) -> dict[str, Any]:
        """Return operators by matcher, operators without a partner, and the shares of operators and elements that were
        compared."""
        only_target, only_golden = self.alone
        return {
            **self.matched,
            "operators": self.operators,
            "only_target": only_target,
            "only_golden": only_golden,
            "operators_compared": self.decided / max(1, only_target + only_golden + self.operators),
            "elements_compared": self.share,
            **({"contents": self.contents} if self.contents else {}),
        }

    def words(self) -> str:
        """Describe the shares in one line."""
        matched = Counter[str]()
        for via, count in self.matched.items():  # the line above has the breakdown of the tensors
            matched[("tensors" if self.contents and via not in NAMED_BY else SHOWN_AS.get(via, via))] += count
        by = ", ".join(f"{count} by {via}" for via, count in matched.items())
        words = (
            f"aligned {count_of(self.operators, 'operator')}: {by or 'none'} · {self.alone[0]} only in target, "
            f"{self.alone[1]} only in golden · {percent(self.share)} of elements compared"
        )
        return f"{self.contents}\n{words}" if self.contents else words


def _counted(pair: Pair) -> Optional[TensorRef]:
    """Return the tensor whose elements are counted: the golden's if the shape of an unreadable target is not known."""
    if pair.target is not None and pair.golden is not None and pair.target.problem and not pair.target.shape:
        return pair.golden
    return pair.target or pair.golden


def _elements(pair: Pair) -> int:
    tensor = _counted(pair)
    return math.prod(tensor.shape) if tensor is not None else 0


class _Sizes(NamedTuple):
    """The number of elements of each row, the sum of those that could be compared, and a number for each entry of the
    column `operators`, the same for the same operator."""

    elements: list[int]
    everything: int
    operators: npt.NDArray[np.int64]

    @classmethod
    def of(cls, columns: TableColumns) -> _Sizes:
        pairs = network_fact(columns, bare_pairs)
        elements = [*map(_elements, pairs)]
        operators = [id(shared.target or shared.golden) for shared in columns.operators]
        everything = sum(size for size, pair in zip(elements, pairs) if not _is_inserted_alone(pair))
        return cls(elements, everything, np.array(operators, np.int64))


def _is_inserted_alone(pair: Pair) -> bool:
    """Return whether one compiler inserted the tensor and the other did not; such a tensor is not missing."""
    return (pair.target is None or pair.golden is None) and pair.is_inside


def _is_local(pair: Pair) -> bool:
    """Return whether the tensor belongs to the layout of its own run, and is covered by what is made of it."""
    return pair.golden is not None and pair.golden.relation is not None and pair.golden.relation.is_local


class UndecidedTensors(NamedTuple):
    """Tensors before a place in the graph that were not decided. `alike` counts those whose statistics or XOR checksums
    show no difference; `uncompared` counts those that were not compared at all. `operator` is the latest operator with
    such tensors, if there is one an operator of one run alone."""

    uncompared: int = 0
    alike: int = 0
    operator: str = ""

    def __bool__(self) -> bool:
        return bool(self.uncompared or self.alike)

    def and_earlier(self, earlier: UndecidedTensors) -> UndecidedTensors:
        """Add the tensors of earlier steps."""
        name = self.operator or earlier.operator
        return UndecidedTensors(self.uncompared + earlier.uncompared, self.alike + earlier.alike, name)

    def words(self) -> str:
        """Describe the tensors in one clause; "" if there are none."""
        were = "was" if self.uncompared == 1 else "were"
        words = [f"{count_of(self.uncompared, 'earlier tensor')} {were} not compared"] if self.uncompared else []
        words += [f"for example of {self.operator}"] if words and self.operator else []
        if self.alike:
            of = f"{self.alike:,}" if words else f"{count_of(self.alike, 'earlier tensor')}"
            words.append(f"{'' if words else 'only '}the recorded figures of {of} agree")
        return ", ".join(words)


def undecided_tensors(comparison: Comparison, order: float = math.inf) -> UndecidedTensors:
    """Count the undecided tensors, or those before a place in the graph. A report says "first" only if there are
    none."""
    columns = comparison.columns
    is_counted = ~with_verdict(columns, DECIDED) & (network_fact(columns, orders_of) < order)
    is_counted &= network_fact(columns, _are_counted)
    pairs = network_fact(columns, bare_pairs)
    uncompared = [pairs[row] for row in unlike_rows(columns, np.flatnonzero(is_counted))]
    alike = int(np.count_nonzero(is_counted)) - len(uncompared)
    uncompared += [pair for pair in comparison.left_out if pair.order < order and _is_counted(pair)]
    latest = max(uncompared, key=lambda pair: (not (pair.target_op and pair.golden_op), pair.order), default=None)
    name = latest.operator.name if latest is not None else ""
    return UndecidedTensors(len(uncompared), alike, name)


def _are_counted(columns: TableColumns) -> Flags:
    return np.array([*map(_is_counted, network_fact(columns, bare_pairs))], bool)


def _is_counted(pair: Pair) -> bool:
    """Return whether a tensor that was not decided is worth a word."""
    return not (is_meaningless(pair) or _is_inserted_alone(pair) or _is_local(pair))


def open_words(coverage: Coverage, agreeing: int, unpaired: Sequence[Run] = (), is_of_layout: bool = False) -> str:
    """Explain why a comparison without differences is undecided, and which option accepts it. Tensors that a layout
    leaves open have one cause, so one option is named."""
    said = ["1 tensor agrees" if agreeing == 1 else f"{count_of(agreeing, 'tensor')} agree"]
    options = []
    if coverage.tensors:
        share = "" if coverage.unsized else f" ({percent(1.0 - coverage.share)} of elements)"
        were = "was" if coverage.tensors == 1 else "were"
        said.append(
            f"{count_of(coverage.tensors, 'golden tensor')}{share} {were} not compared, the first: {_first(coverage)}"
        )
        if coverage.unaligned:  # a fault may lie in them: without partners they must not be accepted
            may = f"{coverage.unaligned:,} of them may be" if coverage.tensors > 1 else "it may be"
            said.append(f"{may} among the target's tensors without a partner, which have the same sizes")
        elif not coverage.unsized and not unpaired:
            options.append(f"accept with --coverage {_rounded_down(coverage.share)}")
        names = [*dict.fromkeys(one.op for one in coverage.first)]
        are_named = all(one.slot or not one.elements for one in coverage.first)  # not steps, tokens or samples
        if are_named and len(names) <= NAMED and coverage.tensors <= len(coverage.first) and not coverage.unaligned:
            options.append("exclude with " + " ".join(f"--exclude '{_glob(name)}'" for name in names))
        options.append("set partners with --mapping")
    if unpaired:
        where = " ".join(where_words(unpaired[0])) or unpaired[0].path
        few = len(unpaired) == 1
        runs = "1 golden step or rank has" if few else f"{len(unpaired):,} golden steps or ranks have"
        said.append(f"{runs} no partner, {'' if few else 'the first: '}{where}")
        options.append("select other runs with --step and --rank")
    return "; ".join([*said, " or ".join(options[:1] if is_of_layout else options)])


def _first(coverage: Coverage) -> str:
    one = coverage.first[0]
    return f"{one.op} {one.slot}".rstrip()


def _rounded_down(share: float) -> str:
    """Format a share below 1 with the fewest decimals that keep it below 1, rounded down."""
    for decimals in (2, 4, 8):
        found = math.floor(share * 10**decimals) / 10**decimals
        if found < 1.0:
            return f"{found:.{decimals}f}"
    return "0.99"


def _glob(name: str) -> str:
    """Return a glob that matches this name only."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def covered_words(report: Report, coverage: Coverage) -> Iterator[str]:
    """Yield clauses on the golden tensors without a comparison of their own."""
    if coverage.accounted:
        yield f"{coverage.accounted:,} covered by tensors that agree"
    if coverage.excluded:
        yield f"{coverage.excluded:,} excluded by --include or --exclude"
    if report.excluded:
        yield f"other steps and ranks excluded by {report.excluded}"
    if coverage.tensors:
        yield f"{percent(coverage.share)} of the golden's elements covered, as --coverage {report.least:g} accepts"


def coverage_facts(report: Report, coverage: Coverage) -> dict[str, Any]:
    """Return the values of the coverage for summary.json."""
    return {
        "share": None if coverage.unsized else coverage.share,
        "least": report.least,
        "open_tensors": coverage.tensors,
        "open_runs": sum(side == "golden" for side, _ in report.unpaired),
        "open_elements": None if coverage.unsized else coverage.missed,
        "accounted_tensors": coverage.accounted,
        "excluded_tensors": coverage.excluded,
        "excluded_runs": report.excluded,
        "open": [one._asdict() for one in coverage.first],
    }
