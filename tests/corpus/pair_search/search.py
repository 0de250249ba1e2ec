"""Draws golden runs, applies laws, compares the pairs, and counts."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Generator, Iterator, NamedTuple, Optional, Sequence

from tests.corpus.faults import Random
from tests.corpus.pair_search.groups import GROUPS, WEIGHTS, Layout
from tests.corpus.pair_search.laws import LAWS, Case, Given, LeftOut
from tests.corpus.pair_search.networks import Drawn, draw
from tests.corpus.subject import examined

LAWS_OF_A_RUN = 6  # laws that are applied to one golden run
CASES_OF_A_LAW = 4  # at most, of those that it yields of one golden run
CHUNK = 4  # golden runs that a worker does at a time


class Violation(NamedTuple):
    """A case that broke its law."""

    law: str
    case: str
    expected: str
    came: str
    layout: str


@dataclass
class Tried:
    """What became of the golden runs of one chunk, or of all."""

    pairs: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    layouts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    distinct: set[bytes] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Tried) -> None:
        for name in ("pairs", "cases", "left_out", "layouts", "statuses"):
            getattr(self, name).update(getattr(other, name))
        self.distinct |= other.distinct
        self.violations += other.violations
        self.seconds += other.seconds


def cases_of(seed: int, group: str, number: int, laws: Sequence[str] = ()) -> Iterator[tuple[str, str, Given, Any]]:
    """(law, name, what it was given, case) of the golden run of that number."""
    layout, drawn = drawn_of(seed, group, number)
    r = Random([seed % 2**32, number, zlib.crc32(group.encode()), 2])
    chosen = [str(name) for name in r.permutation(sorted(LAWS))][:LAWS_OF_A_RUN]
    for law in laws or chosen:
        given = Given(drawn, layout, partners(group, layout), Random([seed % 2**32, number, zlib.crc32(law.encode())]))
        named = [(f"{group}/{number}/{law}/{place}", case) for place, case in enumerate(LAWS[law](given))]
        kept = range(len(named)) if laws else sorted(r.permutation(len(named))[:CASES_OF_A_LAW])
        for place in kept:
            yield law, named[place][0], given, named[place][1]


def drawn_of(seed: int, group: str, number: int) -> tuple[Layout, Drawn]:
    """The golden run of that number, and the layout that it is written in."""
    r = Random([seed % 2**32, number, zlib.crc32(group.encode()), 1])
    layout = GROUPS[group][int(r.randint(len(GROUPS[group])))]
    return layout, draw(r, number, layout.parts, layout.types, only_outputs=layout.only_outputs, **layout.recipe)


def partners(group: str, layout: Layout) -> list[Layout]:
    """Layouts that tell as much of a run, in other formats."""
    if layout.parts == WEIGHTS:
        some = [one for every in GROUPS.values() for one in every if one.parts == WEIGHTS]
    elif layout.only_outputs:
        some = [one for every in GROUPS.values() for one in every if one.only_outputs and one.parts != WEIGHTS]
        some = [one for one in some if one.counts == layout.counts]
    elif layout.recipe:
        some = []
    else:
        some = [one for one in GROUPS["msprobe"] if not one.recipe]
    return [one for one in some if one.name != layout.name and one.holds == "values"]


def tried(seed: int, group: str, numbers: Sequence[int], laws: Sequence[str] = ()) -> Tried:
    """Golden runs of these numbers, all their cases."""
    warnings.simplefilter("ignore")
    started, found = time.monotonic(), Tried()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="pairs-", dir=base) as folder:
        for number in numbers:
            try:
                _try(found, seed, group, number, laws, Path(folder))
            except Exception as error:
                raise RuntimeError(f"seed {seed}, {group}/{number}: {error!r}") from error
    found.seconds = time.monotonic() - started
    return found


def _try(found: Tried, seed: int, group: str, number: int, laws: Sequence[str], folder: Path) -> None:
    for law, name, given, case in cases_of(seed, group, number, laws):
        if isinstance(case, LeftOut):
            found.left_out[law] += 1
            continue
        answers = []
        for pair in case.pairs:
            target, golden = folder / "target", folder / "golden"
            layout = pair.layout or given.layout
            layout.write(target, pair.target)
            layout.write(golden, pair.golden)
            found.distinct.add(digest(target) + digest(golden))
            answers.append(examined(*map(given_path, (target, golden))))
            found.statuses[str(answers[-1].status)] += 1
            shutil.rmtree(target, ignore_errors=True)
            shutil.rmtree(golden, ignore_errors=True)
        found.pairs[law] += len(answers)
        found.cases[law] += 1
        found.layouts[given.layout.name] += len(answers)
        came = case.judge(answers)
        broken = next((one.answer.because for one in answers if one.status < 0), "")
        if came or broken:
            text = f"{came}; {broken or answers[0].answer.because[:200]}".rstrip("; ")
            found.violations.append(
                Violation(law, name, f"{case.name}: {case.expected}", text, f"{given.layout.name}, {given.drawn.part}")
            )


def given_path(folder: Path) -> Path:
    """What a user gives of a dump: the file, where it is one."""
    some = list(folder.iterdir()) if folder.is_dir() else []
    return some[0] if len(some) == 1 and some[0].is_file() else folder


def digest(folder: Path) -> bytes:
    """What stands in a folder, names and contents."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")) if folder.exists() else ():
        if path.is_file():
            content = path.read_bytes()
            total.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
            total.update(content)
    return total.digest()


def search(
    seed: int, group: str, pairs: int, jobs: int = 1, laws: Sequence[str] = (), until: Optional[float] = None,
    progress: Callable[[int], Any] = lambda _: None,
) -> Tried:  # fmt: skip
    """So many distinct pairs of a group, by golden runs in order; until: the time.monotonic() at which it ends."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    found = Tried()
    chunks = _chunks(seed, group, jobs, laws)
    for one in chunks:
        before = len(found.distinct)
        found.add(one)
        progress(len(found.distinct) - before)
        if len(found.distinct) >= pairs or (until is not None and time.monotonic() > until):
            break
    chunks.close()
    return found


def _chunks(seed: int, group: str, jobs: int, laws: Sequence[str]) -> Generator[Tried, None, None]:
    numbers = (range(start, start + CHUNK) for start in range(0, 1 << 40, CHUNK))
    if jobs == 1:
        for some in (range(k, k + 1) for k in range(1 << 40)):
            yield tried(seed, group, some, laws)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(tried, seed, group, next(numbers), laws) for _ in range(2 * jobs)]
        try:
            while True:
                waiting.append(pool.submit(tried, seed, group, next(numbers), laws))
                yield waiting.pop(0).result()
        finally:
            for one in waiting:
                one.cancel()


def keep(seed: int, name: str, folder: Path) -> tuple[Case, list[tuple[Path, Path]]]:
    """Writes the pairs of one case below a folder."""
    group, number, law, _ = name.split("/")
    for _, found, given, case in cases_of(seed, group, int(number), (law,)):
        if found == name and isinstance(case, Case):
            places = []
            for k, pair in enumerate(case.pairs):
                layout = pair.layout or given.layout
                at = folder / str(k)
                layout.write(at / "target", pair.target)
                layout.write(at / "golden", pair.golden)
                places.append((given_path(at / "target"), given_path(at / "golden")))
            return case, places
    raise KeyError(name)
