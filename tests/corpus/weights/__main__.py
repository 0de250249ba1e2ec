"""Print the score of seeds: python -m tests.corpus.weights SEED [SEED…] [--only PART] [--all]."""

from __future__ import annotations

import sys

from tests.corpus.weights.score import Outcome, score


def main(words: list[str]) -> None:
    """Print a line for each wrong outcome, and the figures of all seeds."""
    only = words[words.index("--only") + 1] if "--only" in words else None
    seeds = [int(word) for word in words if word.isdigit()]
    found: list[Outcome] = [one for seed in seeds for one in _shown(seed, only, "--all" in words)]
    clean = [one for one in found if not one.case.fault]
    faults = [one for one in found if one.case.fault]
    agrees = sum(one.status == 0 for one in faults)
    share = min((one.share for one in clean), default=1.0)
    print(f"clean silent {sum(one.is_right for one in clean)} of {len(clean)}, least share of elements {share:.4f}")
    print(f"faults at the right tensor {sum(one.is_right for one in faults)} of {len(faults)}, false AGREES {agrees}")


def _shown(seed: int, only: str | None, everything: bool) -> list[Outcome]:
    found = score(seed, only)
    for one in found:
        if everything or not one.is_right:
            mark = "" if one.is_right else "wrong  "
            where = f"{mark}seed {seed} {one.case.name}: status {one.status}"
            print(f"{where}, {one.first or '-'}: {one.evidence[:160]}")
    return found


main(sys.argv[1:])
