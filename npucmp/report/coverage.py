"""How much was really compared."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Mapping, NamedTuple, Sequence

from npucmp.localise.nodes import is_meaningless
from npucmp.model import DECIDED, Comparison, Pair
from npucmp.report.words import count_of, percent


class Coverage(NamedTuple):
    """How much of a comparison there is, and how much of that was really compared; those of several are added.

    matched    operators by matcher; `alone`: those that only the target, only the golden has
    decided    operators of which a tensor was held against another
    compared   elements that were, `everything`: those that might have been
    """

    matched: "Mapping[str, int]"
    alone: "tuple[int, int]"
    decided: int
    compared: int
    everything: int

    @classmethod
    def of(cls, one: Comparison) -> "Coverage":
        """That of one comparison."""
        decided: set[int] = set()
        everything = compared = 0
        for finding in one.findings:
            pair = finding.measurement.pair
            elements = _elements(pair)
            if finding.verdict in DECIDED:
                decided.add(id(pair.operator))
                compared += elements
            if not _is_inserted_alone(pair):
                everything += elements
        everything += sum(_elements(pair) for pair in one.left_out if not _is_inserted_alone(pair))
        return cls(one.matched, one.alone, len(decided), compared, everything)

    @classmethod
    def sum(cls, some: "Sequence[Coverage]") -> "Coverage":
        """Of all."""
        matched: Counter[str] = Counter()
        for one in some:
            matched.update(one.matched)
        sides = [sum(one.alone[side] for one in some) for side in (0, 1)]
        decided, compared = sum(one.decided for one in some), sum(one.compared for one in some)
        return cls(matched, (sides[0], sides[1]), decided, compared, sum(one.everything for one in some))

    @property
    def operators(self) -> int:
        return sum(self.matched.values())

    @property
    def share(self) -> float:
        """Of elements that were really compared."""
        return self.compared / self.everything if self.everything else 0.0

    def facts(self) -> "dict[str, Any]":
        """Operators by matcher, those without partner, and the shares of operators and elements really compared."""
        only_target, only_golden = self.alone
        return {
            **self.matched,
            "operators": self.operators,
            "only_target": only_target,
            "only_golden": only_golden,
            "operators_compared": self.decided / max(1, only_target + only_golden + self.operators),
            "elements_compared": self.share,
        }

    def words(self) -> str:
        """One line."""
        by = ", ".join(f"{count} by {via}" for via, count in self.matched.items())
        return (
            f"aligned {count_of(self.operators, 'operator')}: {by or 'none'} · {self.alone[0]} only in target, "
            f"{self.alone[1]} only in golden · {percent(self.share)} of elements compared"
        )


def _elements(pair: Pair) -> int:
    tensor = pair.target or pair.golden
    return math.prod(tensor.shape) if tensor is not None else 0


def _is_inserted_alone(pair: Pair) -> bool:
    """A tensor that one compiler has put in and the other has not: nothing is missing where it is."""
    return (pair.target is None or pair.golden is None) and pair.is_inside


def upstream_unseen(comparison: Comparison, order: int) -> int:
    """Tensors before a place in the graph that were not compared; "first" is only said when there is none."""
    unseen = [finding.pair for finding in comparison.findings if finding.verdict not in DECIDED]
    return sum(
        pair.order < order and not (is_meaningless(pair) or _is_inserted_alone(pair))
        for pair in (*unseen, *comparison.left_out)
    )
