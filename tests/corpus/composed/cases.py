"""The cases of seeds: of each combination and network a clean pair, and a pair for each kind of fault."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence

from tests.corpus.composed import checkpoints, decoders, images
from tests.corpus.composed.written import Written

OPEN = tuple(range(5))  # for development
KEPT = tuple(range(100, 105))  # for reporting: cases that no rule was developed on
IMAGES, CHECKPOINTS = "nhwc_batch", "weights_ranks"
COMBINATIONS = (*decoders.COMBINATIONS, IMAGES, CHECKPOINTS)


class Case(NamedTuple):
    """A pair by its draw; `kind` of the fault, "" of a clean pair."""

    combination: str
    network: str
    seed: int
    kind: str = ""

    @property
    def name(self) -> str:
        return f"{self.combination}/{self.network}/{self.kind.replace(' ', '_') or 'clean'}/{self.seed}"

    def make(self, folder: str) -> Written:
        """Write both sides."""
        if self.combination == IMAGES:
            return images.make(self.network, self.seed, self.kind, folder)
        if self.combination == CHECKPOINTS:
            return checkpoints.make(self.network, self.seed, self.kind, folder)
        return decoders.make(self.combination, self.network, self.seed, self.kind, folder)


def fault_kinds(combination: str, network: str, seed: int) -> list[str]:
    if combination == IMAGES:
        return images.fault_kinds(network, seed)
    if combination == CHECKPOINTS:
        return checkpoints.fault_kinds(network, seed)
    return decoders.fault_kinds(combination, network, seed)


def networks(combination: str) -> tuple[str, ...]:
    if combination == IMAGES:
        return images.NETWORKS
    return checkpoints.NETWORKS if combination == CHECKPOINTS else decoders.NETWORKS


def cases(seeds: Sequence[int], clean: bool = True, faults: bool = True) -> Iterator[Case]:
    """All cases of seeds, combination by combination."""
    for combination in COMBINATIONS:
        for network in networks(combination):
            for seed in seeds:
                if clean:
                    yield Case(combination, network, seed)
                if faults:
                    for kind in fault_kinds(combination, network, seed):
                        yield Case(combination, network, seed, kind)
