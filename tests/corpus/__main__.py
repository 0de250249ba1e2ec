"""The score sheet: how often npucmp names the right operator, and how often it cries over a clean pair.

python -m tests.corpus --seeds open                         some 3,000 pairs, for work
python -m tests.corpus --seeds held --json held.json        for reporting: single cases are not shown
python -m tests.corpus --seeds open2 --families 60          the second generation; held2 and unseen to report by
python -m tests.corpus --seeds open --cases                 what went wrong, case by case
python -m tests.corpus --seeds open --case open/17/3 --keep /tmp/case     one case on disk, to look into
python -m tests.corpus --seeds open --without scaled        what a rule wins and loses
python -m tests.corpus --sensitivity SCALED                 the totals with a constant at half and twice its value
python -m tests.corpus --sample                             the fixed sample, held to tests/corpus/sheets/sample.json
python -m tests.corpus --markdown held.json unseen.json     sheets side by side, as docs/benchmark.md has them
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional, Sequence

import click

from tests.corpus import score, sensitivity, sheet
from tests.corpus.planter import family
from tests.corpus.score import Result
from tests.corpus.subject import RULE_NAMES

FAMILIES = 750
FEWER = 60  # families of --sensitivity
SAMPLE = 50  # families of the sample
DOMAINS = ("open", "held", "open2", "held2", "unseen")
HELD_DOMAINS = ("held", "held2", "unseen")
HELD = "held cases are not looked at one by one: what has been seen can be tuned to"
KEPT = Path(__file__).parent / "sheets" / "sample.json"


@click.command(help=__doc__)
@click.option("--seeds", type=click.Choice(DOMAINS), default="open")
@click.option(
    "--families", type=int, help=f"Families of a golden and about five targets: {FAMILIES}, {FEWER} of --sensitivity."
)
@click.option("--jobs", default=2, show_default=True)
@click.option("--without", "rules", multiple=True, type=click.Choice(sorted(RULE_NAMES)), help="Rule to switch off.")
@click.option("--sensitivity", "constant", metavar="NAME", help="Constant to halve and to double.")
@click.option("--cases", is_flag=True, help="List what is not right. Not for held seeds and unseen.")
@click.option("--case", default="", help="One case by its name.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the dumps of --case.")
@click.option("--json", "data", type=click.Path(path_type=Path), help="Write the sheet here too.")
@click.option("--sample", is_flag=True, help="The fixed sample; exit 1 if it fell behind the sheet that is kept.")
@click.option("--update", is_flag=True, help="With --sample: keep the new sheet if it is no worse.")
@click.option(
    "--real", type=click.Path(exists=True, path_type=Path), help="Real dumps, of tests/corpus/real/make_dumps.py."
)
@click.option("--markdown", is_flag=True, help="Print the sheets FILES side by side.")
@click.option("--full", is_flag=True, help="With --markdown: all tables, not those of docs/benchmark.md alone.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(
    seeds: str,
    families: Optional[int],
    jobs: int,
    rules: tuple[str, ...],
    constant: Optional[str],
    cases: bool,
    case: str,
    keep: Optional[Path],
    data: Optional[Path],
    sample: bool,
    update: bool,
    real: Optional[Path],
    markdown: bool,
    full: bool,
    files: tuple[Path, ...],
) -> None:
    if markdown:
        sheets = {file.stem: json.loads(file.read_text()) for file in files}
        print(sheet.markdown(sheets, () if full else sheet.SHOWN))
        return
    if seeds in HELD_DOMAINS and cases:
        raise click.UsageError(HELD)
    if case:
        _one(case, keep)
        return
    if constant:
        _sensitivity(constant, seeds, families or FEWER, jobs)
        return
    families = families or FAMILIES
    started = time.monotonic()
    if real:
        from tests.corpus import real_pairs

        _show(list(real_pairs.run(real, jobs)), f"{real}", cases, data)
        return
    domain, numbers = ("sample", range(SAMPLE)) if sample else (seeds, range(families))
    results = _results(domain, numbers, jobs, ())
    if rules:
        _ablation(results, _results(domain, numbers, jobs, rules), rules)
        return
    found = _show(results, f"seeds {domain}: {len(numbers)} families", cases, data)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if sample:
        totals = [table for table in found if table.title in ("All pairs with a fault", "All clean pairs")]
        _held_to(sheet.as_data(totals), update)


def _show(results: Sequence[Result], heading: str, cases: bool, data: Optional[Path]) -> list[sheet.Table]:
    """Prints the sheet, on request what is not right, and keeps the sheet as JSON."""
    found = sheet.tables(results)
    print(f"{heading}, {len(results)} pairs\n")
    print(sheet.text(found))
    if cases:
        _listed(results)
    if data:
        data.write_text(json.dumps(sheet.as_data(found), indent=1) + "\n")
    return found


def _results(domain: str, numbers: Sequence[int], jobs: int, rules: tuple[str, ...]) -> list[Result]:
    from tqdm import tqdm

    with tqdm(total=len(numbers), unit=" families", disable=None) as bar:
        return list(score.run(domain, numbers, jobs, rules=rules, progress=bar.update))


def _listed(results: Sequence[Result]) -> None:
    for one in results:
        if one.grade not in ("right", "silent", "same"):
            facts = " · ".join(value for key, value in one.facts.items() if not key.startswith("held"))
            print(f"{one.name}  {one.kind}: {one.grade}; {one.beyond:.3g} times noise; {facts}")
            print(
                f"    said     {one.answer.status} {one.answer.operator} {one.answer.cause} {one.answer.because[:300]}"
            )
            print(f"    accepted {', '.join(one.accepted[:4])}")


def _one(name: str, keep: Optional[Path]) -> None:
    domain, number, _ = name.split("/")
    if domain in HELD_DOMAINS:
        raise click.UsageError(HELD)
    some = family(domain, int(number))
    chosen = next((one for one in some.cases if one.name == name), None)
    if chosen is None:
        raise click.UsageError(f"no {name}; there are {', '.join(one.name for one in some.cases)}")
    if keep is None:
        raise click.UsageError("--case needs --keep FOLDER")
    score.write(keep / "golden", some.golden, some.style)
    score.write(keep / "target", chosen.target, some.style)
    print(f"{chosen.kind}: {dict(chosen.facts)}")
    print(f"accepted: {score.accepted_names(chosen, some.golden, some.style)}")
    print(f"{chosen.truth.beyond:.3g} times noise\nnpucmp compare {keep}/target {keep}/golden")


def _ablation(before: Sequence[Result], after: Sequence[Result], rules: Sequence[str]) -> None:
    """What is right only with the rules, and what only without them."""
    good = ("right", "silent", "same")
    won: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for one, other in zip(before, after):
        kind = f"{'clean: ' if one.clean else ''}{one.kind}"
        if one.grade in good and other.grade not in good:
            won[kind] += 1
        elif other.grade in good and one.grade not in good:
            lost[kind] += 1
    print(f"{', '.join(rules)}: wins {sum(won.values())} pairs, loses {sum(lost.values())}, of {len(before)}")
    for word, table in (("wins", won), ("loses", lost)):
        for kind, count in table.most_common():
            print(f"  {word} {count:4}  {kind}")


def _sensitivity(name: str, seeds: str, families: int, jobs: int) -> None:
    """The totals with each constant of a name at other values."""
    found = sensitivity.chosen(name)
    if len(found) != 1:
        names = ", ".join(f"{one.module}.{one.name}" for one in found or sensitivity.constants())
        raise click.UsageError(f"{'several' if found else 'no'} constants {name}; there are {names}")
    print(sensitivity.table(found[0], sensitivity.run(found[0], seeds, families, jobs)))


def _held_to(now: list[dict[str, Any]], update: bool) -> None:
    """Ends with 1 if the sample fell behind the kept sheet, which is replaced only by one that is no worse."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    behind = sheet.worse(now, kept)
    for line in behind:
        print(line, file=sys.stderr)
    if behind:
        print(f"the sample fell behind {KEPT}; if the corpus itself changed, delete that first", file=sys.stderr)
        sys.exit(1)
    if update:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    main()
