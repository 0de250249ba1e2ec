"""What each constant decides: kept pairs are judged again with it at half and at twice its value.

    python -m tests.corpus.judged_again FOLDER          makes sheets/sensitivity.json

keeps in FOLDER the dumps and measurements of PAIRS, and which constants were read while each pair was measured and
judged. With another value of a constant, a pair is judged again only if something read it, and measured again only if
that was while it was measured. Operators are not recomputed, so that nothing hides what a constant does. FOLDER also
keeps results: what is there is not made again. All of it takes half an hour on one core.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from shutil import rmtree
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence
from unittest.mock import patch

from tests.corpus.constants import NOTHING, ROOT, SENSITIVITY, UNREAD, Constant, constants, modules
from tests.corpus.sensitivity import Setting, install

PAIRS = {"open": 12, "open2": 36}  # domain → one family of so many
FAMILIES = 750
NEAR = 2.0, 60.0  # times noise: faults of which all are kept
CLEAN, OTHERS = 4, 4  # one of so many clean pairs is kept, and of faults that are not NEAR
LARGE = 16 << 20  # bytes of a golden dump: families with larger ones are left out
LONG = 1_000_000  # bytes of the measurements of a pair: those with more are left out
TIMES = 0.5, 2.0
JUDGING = "_put_judged", "votes_of", "are_reduced_alike"  # what npucmp does behind the measurement of a step and rank


class Read(NamedTuple):
    """The names in capitals that functions read, as (module, name): of those that ran while a pair was measured, and
    while it was judged."""

    measuring: set[tuple[str, str]]
    judging: set[tuple[str, str]]


class Kept(NamedTuple):
    """A pair as it was measured. `judged`: for each step and rank the result of its measurement, and the comparison
    before the search, None where there is none."""

    truth: Any
    names: dict[tuple[int, int, str], frozenset[str]]
    source: Any
    options: Any
    judged: list[tuple[Any, Any]]


class _Stop(Exception):
    pass


def keep(folder: Path) -> None:
    """Makes the pairs."""
    from tests.corpus.planter import family
    from tests.corpus.score import accepted_names, write

    counts: Counter[str] = Counter()
    for domain, every in PAIRS.items():
        for number in range(0, FAMILIES, every):
            some, place = family(domain, number), folder / "dumps" / f"{domain}-{number:03d}"
            write(place / "golden", some.golden, some.style)
            if sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) > LARGE:
                rmtree(place)
                continue
            for at, case in enumerate(some.cases):
                if not _is_chosen(case.truth, counts):
                    continue
                write(place / str(at), case.target, some.style)
                names = accepted_names(case, some.golden, some.style)
                _keep_one(folder, place / str(at), case.truth, names)
    (folder / "done").touch()


def _is_chosen(truth: Any, counts: Counter[str]) -> bool:
    kind = "clean" if truth.is_clean else "near" if NEAR[0] <= truth.beyond < NEAR[1] else "others"
    counts[kind] += 1
    return counts[kind] % {"clean": CLEAN, "near": 1, "others": OTHERS}[kind] == 0


def _keep_one(folder: Path, target: Path, truth: Any, names: Any) -> None:
    from npucmp.workflows import rank_tasks
    from npucmp.workflows.pipeline import Serial

    name = f"{target.parent.name}-{target.name}"
    source, options = _source(target)
    read = Read(set(), set())
    into = [read.judging]
    judged: list[tuple[Any, Any]] = []

    class Keeping(Serial):
        def map(self, function: Any, items: Any, lost: Any, weight: Any = None) -> Iterator[Any]:
            for task in items:
                is_measure = task.function is rank_tasks.measure
                into[0] = read.measuring if is_measure else read.judging
                answer = function(task)
                if is_measure:
                    known = task.work.store._results.get((task.arguments[0].number, "judged"))
                    judged.append((answer[0], known))
                yield answer

    def counted(function: Any) -> Any:
        def judging(*given: Any) -> Any:
            into[0] = read.judging
            answer = function(*given)
            into[0] = read.measuring
            return answer

        return judging

    for one in gc.get_objects():
        if isinstance(one, _lru_cache_wrapper) and str(one.__module__).startswith("npucmp"):
            one.cache_clear()
    with patch.multiple(rank_tasks, **{name: counted(getattr(rank_tasks, name)) for name in JUDGING}):
        sys.setprofile(_profile(into))
        try:
            report = _compared(source, options, Keeping())
        finally:
            sys.setprofile(None)
    kept = Kept(truth, names, source, options, judged)
    measurements = pickle.dumps(kept)
    if len(measurements) > LONG:
        return
    (folder / f"{name}.pkl").write_bytes(measurements)
    said = {"grade": _grade(kept, report), "clean": truth.is_clean, "beyond": truth.beyond}
    data = {**said, "measuring": sorted(read.measuring), "judging": sorted(read.judging)}
    (folder / f"{name}.json").write_text(json.dumps(data))


def _profile(into: list[set[tuple[str, str]]]) -> Callable[[Any, str, Any], None]:
    """What sys.setprofile takes: notes the names that functions read."""
    seen: dict[Any, list[tuple[str, str]]] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in seen:
                module = frame.f_globals.get("__name__", "")
                own = [name for name in code.co_names if name.isupper()] if module.startswith("npucmp") else []
                seen[code] = [(module, name) for name in own]
            if seen[code]:
                into[0].update(seen[code])

    return note


def _source(target: Path) -> tuple[Any, Any]:
    """What npucmp opens of two dumps."""
    import npucmp
    from npucmp.workflows import compare, task_choice

    found: list[Any] = []

    def stop(source: Any, options: Any, *_: Any) -> None:
        found.extend((source, options))
        raise _Stop

    with patch.object(compare, "compare_steps", stop), patch.object(task_choice, "SMALL", float("inf")):
        try:
            npucmp.compare(target, target.parent / "golden", jobs=1, recompute="none")
        except _Stop:
            pass
    return found[0], found[1]


def _compared(source: Any, options: Any, executor: Any) -> Any:
    from npucmp.workflows import pipeline

    return pipeline._compare_all(source, options, executor, pipeline.Memory())


def _grade(kept: Kept, report: Any) -> str:
    from tests.corpus.score import grade
    from tests.corpus.subject import _answer

    return grade(_answer(report), kept.truth, kept.names)


def judged_again(kept: Kept) -> str:
    """The grade of a pair as it is judged now."""
    from npucmp.workflows import rank_tasks
    from npucmp.workflows.pipeline import Serial

    context = kept.options.context(kept.source.target, kept.source.golden)

    class Replaying(Serial):
        def map(self, function: Any, items: Any, lost: Any, weight: Any = None) -> Iterator[Any]:
            for task in items:
                if task.function is not rank_tasks.measure:
                    yield function(task)
                    continue
                place = task.arguments[0]
                measured, known = kept.judged[place.number]
                if known is not None:
                    rows = [one.measurement for one in known.findings]
                    rank_tasks._put_judged(task.work, place, known, rows)
                    alike = rank_tasks.are_reduced_alike(rows, context)
                    measured = measured._replace(products=rank_tasks.votes_of(rows), alike=alike)
                yield measured, task.work.store.made

    return _grade(kept, _compared(kept.source, kept.options, Replaying()))


def _measured_again(folder: Path, kept: Kept, name: str) -> str:
    from npucmp.workflows.pipeline import Serial

    place, _, at = name.rpartition("-")
    return _grade(kept, _compared(*_source(folder / "dumps" / place / at), Serial()))


def one_setting(folder: Path, setting: Optional[Setting], again: Sequence[str], anew: Sequence[str]) -> dict[str, str]:
    """The grades of pairs with a constant at another value: of those to judge `again`, and to measure `anew`."""
    if setting is not None:
        install(setting)
    warnings.simplefilter("ignore")
    found = {}
    for name in (*again, *anew):
        try:
            kept = pickle.loads((folder / f"{name}.pkl").read_bytes())
            found[name] = _measured_again(folder, kept, name) if name in anew else judged_again(kept)
        except Exception as error:
            found[name] = f"error: {error!r}"
    return found


def names_of(one: Constant) -> set[tuple[str, str]]:
    """The modules and names under which a constant is read."""
    found: set[tuple[str, str]] = set()
    more = {(f"npucmp.{one.module}", one.name)}
    while more:
        found |= more
        more = {new for origin, new in _imported() if origin in found} - found
    return found


@cache
def _imported() -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Module and name of what modules import, with the importing module and its name for it."""
    return [((source, name), (module.name, own)) for module in modules() for source, name, own in module.imports]


@cache
def _made_on_import() -> frozenset[tuple[str, str]]:
    """Modules, and the names that they read while they are imported."""
    return frozenset((module.name, name) for module in modules() for name in _read_on_import(module.tree))


def _read_on_import(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for field, value in ast.iter_fields(node):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and field in ("body", "returns"):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and field != "annotation":
                yield from _read_on_import(one)


def measure(folder: Path, one: Constant, times: float, pairs: dict[str, Any]) -> dict[str, list[str]]:
    """The pairs with another grade, as [before, after]; and under "" those that read the constant."""
    names = names_of(one)
    everywhere = not names.isdisjoint(_made_on_import())
    listed = [[*each] for each in names]
    anew = [name for name, pair in pairs.items() if any(each in pair["measuring"] for each in listed)]
    some = [name for name, pair in pairs.items() if everywhere or any(each in pair["judging"] for each in listed)]
    again = [name for name in some if name not in anew]
    if not (again or anew):
        return {"": ["0"]}
    task = [f"npucmp.{one.module}", one.name, times]
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus.judged_again", str(folder), "-"],
        input=json.dumps([task, again, anew]),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    grades = json.loads(done.stdout)
    changes = {name: [pairs[name]["grade"], grade] for name, grade in grades.items() if grade != pairs[name]["grade"]}
    return {"": [str(len(grades))], **changes}


def words(changes: dict[str, list[str]], pairs: dict[str, Any]) -> str:
    """What changes, as in the table."""
    asked = int(changes[""][0])
    if not asked:
        return UNREAD
    counts: Counter[str] = Counter()
    for name, (before, after) in ((name, both) for name, both in changes.items() if name):
        if after.startswith("error"):
            counts["error"] += 1
        elif pairs[name]["clean"]:
            counts["-alarm" if after == "silent" else "+alarm" if before == "silent" else "other"] += 1
        else:
            counts["+right" if after == "right" else "-right" if before == "right" else "other"] += 1
    right = " ".join(f"{sign}{counts[sign + 'right']}" for sign in "-+" if counts[f"{sign}right"])
    alarms = " ".join(f"{sign}{counts[sign + 'alarm']}" for sign in "-+" if counts[f"{sign}alarm"])
    found = [f"{right} right"] * bool(right) + [f"{alarms} alarms"] * bool(alarms)
    found += [f"{counts[word]} {word}s" for word in ("other", "error") if counts[word]]
    return ", ".join(found) or NOTHING


def main(folder: Path) -> None:
    """Makes all that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if not (folder / "done").exists():
        keep(folder)
    pairs = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("open*.json"))}
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for one in sorted(constants(), key=lambda one: one.kind not in ("chosen", "evidence")):
        if one.kind == "work":
            continue
        for times in TIMES:
            key = f"{one.module}.{one.name} = {one.value} x {times:g}"
            if key not in results:
                results[key] = measure(folder, one, times, pairs)
                path.write_text(json.dumps(results))
                print(key, words(results[key], pairs), results[key][""], flush=True)
    write_sheet(pairs, results)


def write_sheet(pairs: dict[str, Any], results: dict[str, Any]) -> None:
    """Writes sheets/sensitivity.json: of each constant its value, and what half and twice that change."""
    found = {}
    for one in constants():
        keys = [f"{one.module}.{one.name} = {one.value} x {times:g}" for times in TIMES]
        if all(key in results for key in keys):
            half, twice = (words(results[key], pairs) for key in keys)
            found[f"{one.module}.{one.name}"] = {"value": one.value, "half": half, "twice": twice}
    clean = sum(pair["clean"] for pair in pairs.values())
    data = {"faults": len(pairs) - clean, "clean": clean, "constants": found}
    SENSITIVITY.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    from tests.corpus import judged_again as own  # pickles name its classes

    place = Path(sys.argv[1]).resolve()
    if sys.argv[2:] == ["-"]:
        task, *rest = json.load(sys.stdin)
        print(json.dumps(own.one_setting(place, Setting(*task) if task else None, *rest)))
    else:
        own.main(place)
