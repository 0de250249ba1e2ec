"""Both runs, as rows see them: what was given, lined up once, each pair of tensors measured once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.align import Alignment, align, pairs
from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.errors import UsageError
from npucmp.measure.pairs import measure_pairs
from npucmp.model import Match, Measurement, Pair, Run

SIDES = ("target", "golden")


class Together(NamedTuple):
    """A step and rank of both runs; without an alignment where they are no two runs of one network, which `problem`
    says."""

    target: Run
    golden: Run
    alignment: Optional[Alignment]
    pairs: "tuple[Pair, ...]"
    problem: str = ""

    @property
    def matches(self) -> "tuple[Match, ...]":
        return self.alignment.matches if self.alignment is not None else ()


@dataclass(frozen=True)
class Given:
    """What the user says of the comparison, and files beside the dumps: (target's, golden's) or None.

    mixed  a run in mixed precision against one in full precision is meant
    """

    mixed: bool = False
    env: "Optional[tuple[str, str]]" = None
    config: "Optional[tuple[str, str]]" = None
    ignore: Sequence[str] = ()


@dataclass
class Both:
    """Two runs and what is known of them; what is costly is made when a row asks for it."""

    targets: "Sequence[Run]"
    goldens: "Sequence[Run]"
    coupled: "Sequence[tuple[Run, Run]]" = ()
    names: "Mapping[str, str]" = field(default_factory=dict)
    context: ReadContext = ANYWHERE
    jobs: int = 1
    given: Given = Given()
    bytes_read: int = 0
    _measured: "dict[int, Measurement]" = field(default_factory=dict)

    @cached_property
    def together(self) -> "list[Together]":
        """Each step and rank that both have, in order."""
        return [self._lined_up(target, golden) for target, golden in self.coupled]

    @property
    def first(self) -> Together:
        """The first step and rank. Raises UsageError if there is none."""
        if not self.together:
            raise UsageError("no step and rank is in both")
        return self.together[0]

    def _lined_up(self, target: Run, golden: Run) -> Together:
        try:
            alignment = align(target, golden, self.names, self.context)
        except UsageError as error:
            return Together(target, golden, None, (), error.because)
        return Together(target, golden, alignment, tuple(pairs(target, golden, alignment)))

    def measured(self, some: "Iterable[Pair]") -> "list[Measurement]":
        """What comes of measuring pairs; of those that a row asked for before it is known."""
        wanted = list(some)
        fresh = [pair for pair in wanted if id(pair) not in self._measured]
        for pair, found in zip(fresh, measure_pairs(fresh, jobs=self.jobs, context=self.context)):
            self._measured[id(pair)] = found  # pairs live as long as this: `together` holds them
            self.bytes_read += found.bytes_read
        return [self._measured[id(pair)] for pair in wanted]
