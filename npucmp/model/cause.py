"""Which operator bears the error, and why it is said to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Callable, Iterable, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.model.pair import Pair


class Cause(str, Enum):
    """What an operator has to do with the error that it shows. Best suspects first."""

    BORN = "BORN"  # inputs agree, an output does not
    GAP = "GAP"  # an input differs although everything dumped upstream agrees
    WORSENED = "WORSENED"  # inputs differ, outputs far more than that explains
    SUSPECT = "SUSPECT"  # statistics alone: it stands out of the noise before it, which proves nothing
    UNKNOWN = "UNKNOWN"  # inputs were not dumped or cannot be compared
    PROPAGATED = "PROPAGATED"  # passes on what it got


class Fact(NamedTuple):
    """What a sentence states: a figure or a name. `op` and `slot` say on which tensor a figure was measured, "" if on
    none; text that comes from a dump stands here and nowhere else."""

    value: Union[str, int, float, None]
    op: str = ""
    slot: str = ""


UNSEEN = "unseen"  # the kind of reason that nobody knows what an operator read


class Evidence(NamedTuple):
    """One reason, as data.

    kind   what sort of reason it is ("inputs agree", "argument"): what a program asks for, never the sentence
    words  the sentence, with {name} where a fact stands
    facts  by name; floats are errors, shown with two digits where the sentence has no format of its own ({size:.4g})
    """

    kind: str
    words: str
    facts: Mapping[str, Fact] = {}

    def sentence(self, show: Callable[[str], str] = str) -> str:
        """The reason in words; `show` makes text of a dump harmless for where it is to stand."""
        return self.words.format(**{name: _Shown(fact.value, show) for name, fact in self.facts.items()})


def sentences(evidence: Iterable[Evidence], show: Callable[[str], str] = str) -> str:
    """All reasons in one cell."""
    return "; ".join(one.sentence(show) for one in evidence)


def brief(error: Optional[float]) -> str:
    """An error in a sentence."""
    return "unknown" if error is None else "inf" if math.isinf(error) else f"{error:.1e}"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first names, and whether there are more."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


class _Shown(NamedTuple):
    """The value of a fact, as a sentence shows it."""

    value: Union[str, int, float, None]
    show: Callable[[str], str]

    def __format__(self, form: str) -> str:
        if isinstance(self.value, str):
            return self.show(self.value)
        if form and self.value is not None:
            return format(self.value, form)
        return brief(self.value) if isinstance(self.value, float) or self.value is None else f"{self.value:,}"


class Reasoned:
    """What is said with evidence: as data, and in words."""

    evidence: tuple[Evidence, ...]

    @property
    def because(self) -> str:
        """The evidence in one line."""
        return sentences(self.evidence)


@dataclass(frozen=True)
class Root(Reasoned):
    """An operator that diverged and what it has to do with it; one row of roots.csv. `rule` decided that it is one.

    input_error and output_error are the largest errors over its inputs and outputs (None: unknown).
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

    def __repr__(self) -> str:
        value = "unknown" if self.value is None else f"{self.value:.2e}"
        where = ascii(f"{self.pair.operator.name[:80]} {self.slot[:20]}")[1:-1]
        return f"<Root {self.place}: {self.cause.value} {where[:100]}: {self.metric} {value}, limit {self.limit:.2e}>"

    @property
    def growth(self) -> Optional[float]:
        """output_error / input_error; None when one is unknown or there is no input error."""
        if self.input_error is None or self.output_error is None or not self.input_error:
            return None
        return self.output_error / self.input_error
