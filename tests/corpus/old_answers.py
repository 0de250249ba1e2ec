"""The whole answers of npucmp to a few pairs, kept as text in sheets/answers.txt: python -m tests.corpus.answers

A change of the alignment, of a judgement or of a sentence shows as a difference of that file. Read it, then keep it if
it is what you mean. An answer has the exit status, the notes, how many tensors have each verdict for each reason, the
rows without their numbers as a checksum, and the evidence of the operators that diverged. The pairs are those of
sample_dumps, and generated ones that together run most lines of the judging packages in little time.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Iterator, Union

import npucmp
from npucmp.errors import NpucmpError
from npucmp.model import Cause, Comparison, Finding, Root
from tests.corpus.bench.dumps import write_case
from tests.corpus.bench.pairs import case
from tests.corpus.parallel import cases as parallel
from tests.corpus.tokens import cases as tokens
from tests.corpus.weights import score as weights

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
SHEET = Path(__file__).parent / "sheets" / "answers.txt"
SEED = 4
SHOWN = 8  # operators whose evidence is kept
WEIGHTS = "0 1 3 18 24 27 36 38 45 47 50 55 68 72 75 77 79 82 84 91 93 94 97 98 99 100 103 106 107".split()
SAMPLE_PAIRS = ("target", "golden"), ("run1", "run2")
PAIRS = (
    *(
        f"sample/{one.name}"
        for one in sorted(SAMPLES.iterdir())
        if any((one / pair[0]).is_dir() for pair in SAMPLE_PAIRS)
    ),
    *(f"bench/{number}" for number in (0, 1, 2, 3, 5, 17, 19, 29, 34, 43, 44, 48, 54, 61)),
    *(f"content/{number}" for number in (3, 4, 14, 24, 34, 44, 54, 60)),
    "layout/cp2_zigzag/statistics/1",
    "layout/dp2/statistics/3",
    "layout/dp2_fsdp/statistics/1",
    "layout/dp2_zero1/statistics/0",
    "layout/dp2_zero1/statistics/1",
    "layout/ep2/statistics/0",
    "layout/pp2_vpp2_micro2/statistics/1",
    "layout/tp2/statistics/1",
    "layout/tp2/values/1",
    "layout/tp2/values/6",
    "layout/tp2_sp/values/2",
    "tokens/clean/0",
    "tokens/clean/6",
    "tokens/clean/12",
    "tokens/fault/0",
    "tokens/fault/2",
    "tokens/fault/4",
    "tokens/trap/6",
    *(f"weights/{number}" for number in WEIGHTS),
)


def answer(name: str, folder: Path) -> str:
    """Return what npucmp answers to a pair, which is written into a folder."""
    return answer_of(compared(name, folder), folder)


def compared(name: str, folder: Path) -> Union[Any, NpucmpError]:
    """Return the report of a pair, which is written into a folder, or the reason of a refusal."""
    target, golden = written(name, folder)
    try:
        method = "content" if name.startswith("content/") else "auto"
        return npucmp.compare(target, golden, jobs=1, align=method)
    except NpucmpError as error:
        return error


def answer_of(report: Union[Any, NpucmpError], folder: Path) -> str:
    """Return an answer as text."""
    if isinstance(report, NpucmpError):
        return _portable(f"refused: {report}", folder)
    lines = [f"exit status {report.exit_status}", *(f"note: {note}" for note in report.notes)]
    for one in report.comparisons:
        lines += _lines(one)
    return _portable("\n".join(lines), folder)


def written(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the target and the golden of a pair: sample/NAME, bench/NUMBER, content/NUMBER (that of bench, aligned by
    contents), layout/NAME/STYLE/NUMBER, tokens/KIND/NUMBER or weights/NUMBER."""
    group, *words = name.split("/")
    if group == "sample":
        place = SAMPLES / words[0]
        target, golden = next(pair for pair in SAMPLE_PAIRS if (place / pair[0]).is_dir())
        return place / target, place / golden
    if group in ("bench", "content"):
        write_case(case(SEED, int(words[0])), folder)
        return folder / "target", folder / "golden"
    if group == "tokens":
        made = tokens.case(SEED, int(words[1]), words[0], folder)
        return made.target, made.golden
    if group == "weights":
        return weights.write(_weight_cases()[int(words[0])], folder)
    several = [*parallel.draw_cases(SEED, words[0], style=words[1])]
    pair = parallel.make(several[int(words[2])], folder)
    return pair.target, pair.golden


@cache
def _weight_cases() -> list[weights.Case]:
    return [*weights.cases(SEED)]


def _lines(one: Comparison) -> Iterator[str]:
    known = one.coverage
    yield f"step {one.step}, rank {one.rank}: {dict(one.matched)}, alone {one.alone}"
    yield f"elements: {known.covered} covered, {known.missed} missed, {known.accounted} tensors accounted for"
    yield from (f"note: {note}" for note in (*one.notes, *one.incomplete, one.aligned_by_content) if note)
    counts = Counter(map(_kind, one.findings))
    yield from sorted(f"{count} × {kind}" for kind, count in counts.items())
    rows = "\n".join(map(_row, one.findings))
    roots = [root for root in one.roots if root.cause is not Cause.PROPAGATED]
    yield f"rows {zlib.crc32(rows.encode()):08x}, {len(one.roots)} diverged, {len(roots)} not by propagation"
    yield from map(_root, roots[:SHOWN])


def _kind(one: Finding) -> str:
    words = [one.verdict.value, one.measurement.pair.via, one.rule, one.explained_by]
    return " · ".join(filter(None, words))


def _row(one: Finding) -> str:
    pair = one.measurement.pair
    names = [operator.name if operator else "" for operator in (pair.target_op, pair.golden_op)]
    tensors = [ref.label if ref else "" for ref in (pair.target, pair.golden)]
    limits = [f"{limit:.1e}" for limit in (one.limit, one.explained_limit) if limit is not None]
    words = [*names, pair.slot, *tensors, one.verdict.value, one.rule, one.explained_by, pair.note, *limits]
    return "\t".join(words)


def _root(one: Root) -> str:
    operator = one.pair.target_op or one.pair.golden_op
    return f"{one.place}. {operator.name if operator else ''} {one.slot} {one.cause.value}: {one.because}"


def _portable(text: str, folder: Path) -> str:
    for path, word in ((folder, "FOLDER"), (SAMPLES, "SAMPLES")):
        text = text.replace(str(path), word)
    return text.strip()


def kept() -> dict[str, str]:
    """Return the kept answers by the names of the pairs."""
    parts = SHEET.read_text("utf-8").split("\n== ")[1:]
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


def main() -> None:
    print("The answers to some pairs, as `python -m tests.corpus.answers` writes them (see the docstring there).")
    for name in sys.argv[1:] or PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n== {name}\n{answer(name, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
