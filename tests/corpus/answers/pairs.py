"""The pairs of the golden answers, by corpus, and how each is written and asked. A name is CORPUS/WORDS[/…]:COMMAND."""

from __future__ import annotations

import tarfile
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable

import numpy as np

import npucmp
from tests.corpus import planter, score
from tests.corpus.bench.dumps import write_case
from tests.corpus.bench.pairs import case
from tests.corpus.pair_search.search import cases_of, drawn_of, given_path
from tests.corpus.parallel import cases as parallel
from tests.corpus.parity import cases as parity
from tests.corpus.parity import files as parity_files
from tests.corpus.parity import second as second_parity
from tests.corpus.tokens import cases as tokens
from tests.corpus.weights import score as weights

ROOT = Path(__file__).parents[3]
SAMPLES, SHARED = ROOT / "sample_dumps", ROOT.parent / "shared" / "data"
PACKED = Path(__file__).parent / "packed"  # pairs that other frameworks wrote, or tests; each a target and a golden
SEED = 4
SIDES = ("target", "golden"), ("run1", "run2"), ("rollout", "trainer")
COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": npucmp.compare,
    "mapped": lambda target, golden: npucmp.compare(target, golden, mapping=golden.parent / "mapping.yaml"),
    "content": partial(npucmp.compare, align="content"),
    "check": lambda target, golden: npucmp.check(target),
    "overflow": lambda target, golden: npucmp.overflow(target),
    "precheck": npucmp.precheck,
    "fusion-diff": npucmp.fusion_diff,
    "rerun-diff": lambda target, golden: npucmp.rerun_diff([target, golden]),
    "parity": npucmp.parity,
    "replay": lambda target, golden: npucmp.replay(target),
}
Pair = tuple[Path, Path]


def sample(folder: Path, name: str) -> Pair:
    place = SAMPLES / name
    first, second = next(pair for pair in SIDES if any(place.glob(f"{pair[0]}*")))
    return next(place.glob(f"{first}*")), next(place.glob(f"{second}*"))


def bench(folder: Path, number: str) -> Pair:
    write_case(case(SEED, int(number)), folder)
    return folder / "target", folder / "golden"


def planted(folder: Path, domain: str, number: str, place: str) -> Pair:
    family = _family(domain, int(number), int(place))  # no case behind this place
    score.write(folder / "target", family.cases[int(place)].target, family.style)
    score.write(folder / "golden", family.golden, family.style)
    return folder / "target", folder / "golden"


def formats(folder: Path, group: str, number: str, law: str, place: str) -> Pair:
    """The pair of a law between a run and what npucmp says of it, in one of the layouts of a group of formats."""
    case = [one for _, _, _, one in cases_of(SEED, group, int(number), [law])][int(place)]
    pair = case.pairs[0]
    written = pair.layout or drawn_of(SEED, group, int(number))[0]
    for side, runs in (("target", pair.target), ("golden", pair.golden)):
        written.write(folder / side, runs)
    return given_path(folder / "target"), given_path(folder / "golden")


def layout(folder: Path, name: str, style: str, number: str) -> Pair:
    made = parallel.make([*parallel.draw_cases(SEED, name, style=style)][int(number)], folder)
    return made.target, made.golden


def token_rows(folder: Path, what: str, number: str) -> Pair:
    made = tokens.case(SEED, int(number), what, folder)
    return made.target, made.golden


def checkpoint(folder: Path, number: str) -> Pair:
    return weights.write(_weight_cases()[int(number)], folder)


def log_probs(folder: Path, part: str, kind: str, number: str) -> Pair:
    if part == "second":
        made = second_parity.make(int(number), kind)
        return second_parity.write(folder, made, np.random.default_rng([int(number), 5]))
    drawn = parity.make(int(number), kind, part)
    return parity_files.write(folder, drawn, *parity_files.conventions(drawn, np.random.default_rng([int(number), 7])))


def given(folder: Path, target: str, golden: str) -> Pair:
    """A pair of the recordings that lie beside the project, if they do."""
    return SHARED / target.replace(".", "/"), SHARED / golden.replace(".", "/")


def packed(folder: Path, name: str) -> Pair:
    with tarfile.open(PACKED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "target", folder / "golden"


_family = cache(planter.family)


@cache
def _weight_cases() -> list[weights.Case]:
    return [*weights.cases(SEED)]


WRITERS: dict[str, Callable[..., Pair]] = {
    "sample": sample, "bench": bench, "planted": planted, "formats": formats, "layouts": layout, "tokens": token_rows,
    "weights": checkpoint, "parity": log_probs, "shared": given, "packed": packed,
}  # fmt: skip


def written(name: str, folder: Path) -> Pair:
    """Write a pair below a folder and return its target and golden."""
    corpus, *rest = name.partition(":")[0].split("/")
    return WRITERS[corpus](folder, *rest)


def ask(name: str, folder: Path) -> Any:
    """Write a pair below a folder and return the answer of its command."""
    return COMMANDS[name.partition(":")[2]](*written(name, folder))
