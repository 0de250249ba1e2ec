"""Root causes: the operator that bears the error, and the evidence."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.model.finding import Pair


class Cause(str, Enum):
    """The part of an operator in the error of its tensors. The best suspects come first."""

    BORN = "BORN"  # inputs match, an output differs
    GAP = "GAP"  # an input differs although all tensors dumped upstream match
    WORSENED = "WORSENED"  # inputs differ, and outputs differ far more than this explains
    SUSPECT = "SUSPECT"  # statistics only: it exceeds the upstream noise, which is not proof
    UNKNOWN = "UNKNOWN"  # inputs were not dumped or cannot be compared
    PROPAGATED = "PROPAGATED"  # passes on the error of its inputs


class Fact(NamedTuple):
    """A number or name in a sentence. `op` and `slot` identify the tensor on which a number was measured, else they are
    "". Text from a dump occurs only here."""

    value: Union[str, int, float, None]
    op: str = ""
    slot: str = ""


UNKNOWN_INPUTS = "unseen"  # the kind of evidence for unknown inputs of an operator


class Evidence(NamedTuple):
    """One reason, as data.

    kind   the type of the reason ("inputs agree", "argument"); programs must check it, not the sentence
    words  the sentence, with {name} for each fact
    facts  by name; floats are errors, shown with two digits unless the sentence has a format of its own
           ({size:.4g})
    """

    kind: str
    words: str
    facts: Mapping[str, Fact] = {}

    def sentence(self, show: Callable[[str], str] = str) -> str:
        """The reason in words; `show` makes text of a dump safe for its destination."""
        values = {name: fact.value for name, fact in self.facts.items()}
        if show is str and {*map(type, values.values())} <= _TEXT and not _FORMAT.search(self.words):
            return self.words.format(**values)  # which is much faster
        return self.words.format(**{name: _Shown(value, show) for name, value in values.items()})


_TEXT = {str}
_FORMAT = re.compile(r"\{\w+[:!]")  # a fact with a format of its own


def brief(error: Optional[float]) -> str:
    """An error, formatted for a sentence."""
    return "unknown" if error is None else "inf" if math.isinf(error) else f"{error:.1e}"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first names, with "…" if there are more."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def first_of_names(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class _Shown(NamedTuple):
    """The value of a fact with the formatting of sentences."""

    value: Union[str, int, float, None]
    show: Callable[[str], str]

    def __format__(self, form: str) -> str:
        if isinstance(self.value, str):
            return self.show(self.value)
        if form and self.value is not None:
            return format(self.value, form)
        return brief(self.value) if isinstance(self.value, float) or self.value is None else f"{self.value:,}"


class Statement:
    """A statement with evidence, as data and in words."""

    evidence: tuple[Evidence, ...]

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The reasons in words."""
        return tuple(reason.sentence() for reason in self.evidence)

    @property
    def because(self) -> str:
        """The evidence in one line."""
        return "; ".join(self.sentences)


@dataclass(frozen=True)
class Root(Statement):
    """An operator that diverged and its part in the error; one row of roots.csv. `rule` is the rule that decided this.

    `input_error` and `output_error` are the largest errors of its inputs and outputs (None: unknown). If ranks were put
    together, `ranks` hold the tensor by a `relation`, `rank` stands out, and `collective` stands before it. If tokens
    were compared, `request` and `position` are those of the first token that differs, from 0, as the golden counts; if
    batches of unequal sizes were, `request` is the sample.
    """

    place: int
    pair: Pair
    cause: Cause
    slot: str
    metric: str
    value: Optional[float]
    limit: float
    input_error: Optional[float]
    output_error: Optional[float]
    evidence: tuple[Evidence, ...]
    rule: str = ""
    ranks: tuple[int, ...] = ()
    rank: Optional[int] = None
    relation: str = ""
    collective: str = ""
    request: Optional[int] = None
    position: Optional[int] = None

    def __repr__(self) -> str:
        value = "unknown" if self.value is None else f"{self.value:.2e}"
        where = ascii(f"{self.pair.operator.name[:80]} {self.slot[:20]}")[1:-1]
        return f"<Root {self.place}: {self.cause.value} {where[:100]}: {self.metric} {value}, limit {self.limit:.2e}>"

    @property
    def is_alignment_uncertain(self) -> bool:
        """Whether it is a suspect because its pair of tensors is not certain."""
        return self.cause is Cause.SUSPECT and any(one.kind == "alignment" for one in self.evidence)

    @property
    def growth(self) -> Optional[float]:
        """output_error / input_error; None if one is unknown or there is no input error."""
        if self.input_error is None or self.output_error is None or not self.input_error:
            return None
        return self.output_error / self.input_error
