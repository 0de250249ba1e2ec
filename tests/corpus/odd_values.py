"""Plant odd values, or disturb the structure, in the pairs of answers.py: python -m tests.corpus.odd_values [options].

    python -m tests.corpus.odd_values --seed 7 --runs 2000
    python -m tests.corpus.odd_values --seed 7 --case 31          one of them again, with its traceback

A run draws a pair, odd values for some of its files or a change of odd_structure.py or both, and a command. The command
must end with an answer, which is written as a report, or with an error that npucmp raises on purpose; a warning counts
as an error. A comparison must not agree if one tensor of one side alone has a NaN or Inf that was finite. The exit
status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

import npucmp
from npucmp.errors import NpucmpError
from tests.corpus.answers.pairs import written
from tests.corpus.answers.sheets import kept as kept_answers
from tests.corpus.odd_structure import disturb

ODD = (np.nan, np.inf, -np.inf, 1e300, -3e38, 6e4, 0.0, 1e-310)
ODD_STATISTICS = ("NaN", "Infinity", "-Infinity", "null", "0.0", "1e300", "1e-200", '"N/A"')
ODD_BYTES = (b"\xff\xff", b"\x80\x7f", b"\x00\x7c", b"\x00\x00")  # the last ones of a NaN, an Inf, a float16 Inf
STATISTIC = re.compile(r'("(?:Max|Min|Mean|Norm)": )(-?\d[\d.e+-]*)')
STORAGES = {b"FloatStorage": np.float32, b"HalfStorage": np.float16, b"DoubleStorage": np.float64}
MOST_FILES = (1, 1, 2, 5, 20)
KINDS = ("values",), ("structure",), ("values", "structure")
PAIRS = [
    name
    for name in kept_answers()
    if name.endswith((":compare", ":content")) and not name.startswith(("shared/", "reports/", "layouts/"))
]
METHODS = ("auto", "auto", "content", "names")
Array = npt.NDArray[np.generic]
Command = Callable[[Path, Path, random.Random], object]


def _compare(target: Path, golden: Path, chance: random.Random) -> npucmp.Report:
    return npucmp.compare(target, golden, jobs=1, align=chance.choice(METHODS))


COMMANDS: dict[str, Command] = {
    "compare": _compare,
    "rerun-diff": lambda target, golden, _: npucmp.rerun_diff([target, golden], jobs=1),
    "overflow": lambda target, *_: npucmp.overflow(target, jobs=1),
    "check": lambda target, *_: npucmp.check(target, jobs=1),
    "fusion-diff": lambda target, golden, _: npucmp.fusion_diff(target, golden, jobs=1),
    "replay": lambda target, golden, _: npucmp.replay(target, golden=golden, jobs=1),
    "precheck": lambda target, golden, _: npucmp.precheck(target, golden),
    "parity": lambda target, golden, _: npucmp.parity(target, golden),
}


class Tried(NamedTuple):
    """A run: its pair, its command, and what went wrong, "" for nothing."""

    pair: str
    command: str
    wrong: str


def tried(seed: int, number: int, folder: Path) -> Tried:
    """Return what a command does with a pair that has odd values, both drawn by the seed and the number of the run;
    pairs are written into the folder once."""
    chance = random.Random(f"{seed}/{number}")
    pair = chance.choice(PAIRS)
    command = chance.choice([*COMMANDS, *["compare"] * len(COMMANDS)])
    with tempfile.TemporaryDirectory(dir=folder) as place:
        sides = _copied(pair, folder / "pairs" / pair, Path(place))
        kinds = chance.choice(KINDS)
        changed = _planted(sides, chance) if "values" in kinds else set()
        if "structure" in kinds:
            disturb(sides, chance)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                result = COMMANDS[command](*sides, chance)
                npucmp.write_reports(result, Path(place, "report"))  # type: ignore[arg-type]
            except NpucmpError:
                return Tried(pair, command, "")
            except Exception:
                return Tried(pair, command, traceback.format_exc())
    if command == "compare" and kinds == ("values",) and len(changed) == 1 and result.exit_status == 0:  # type: ignore[attr-defined]
        return Tried(pair, command, f"agrees over {changed.pop()}, where one side alone is not finite")
    return Tried(pair, command, "")


def _copied(pair: str, kept: Path, place: Path) -> tuple[Path, Path]:
    """Return the two sides of a pair below a new folder, whose files are links to those that are kept."""
    if not kept.exists():
        kept.mkdir(parents=True)
        made = Path(os.path.commonpath(sides := written(pair, kept)))
        (kept / "sides.json").write_text(json.dumps([str(made), *(str(side.relative_to(made)) for side in sides)]))
    made, *names = json.loads((kept / "sides.json").read_text())
    shutil.copytree(made, place / "made", copy_function=os.link if kept in Path(made).parents else shutil.copy)
    return place / "made" / names[0], place / "made" / names[1]


def _planted(sides: tuple[Path, Path], chance: random.Random) -> set[str]:
    """Plant odd values; return the files of values in which finite elements of one side became NaN or Inf."""
    files = [file for side in sides for file in _files(side)]
    some = chance.sample(files, min(len(files), chance.choice(MOST_FILES)))
    changed = {str(file): _plant(file, chance) for file in some}
    if some and chance.random() < 0.3:  # the same on both sides
        file = chance.choice(some)
        for one, other in (sides, sides[::-1]):
            if one in file.parents and (twin := other / file.relative_to(one)).exists():
                twin.unlink()
                shutil.copy(file, twin)
                changed = {}
    return {file for file, became in changed.items() if became}


def _files(side: Path) -> Iterator[Path]:
    for file in [side] if side.is_file() else sorted(side.rglob("*")):
        if file.suffix in (".npy", ".pt", ".safetensors") or file.name == "dump.json":
            yield file


def _plant(file: Path, chance: random.Random) -> bool:
    """Plant odd values in a file, replaced as a link may share it; True if a finite element became NaN or Inf."""
    data = file.read_bytes()
    file.unlink()
    plant = {".npy": _plant_npy, ".pt": _plant_pt, ".safetensors": _plant_bytes, ".json": _plant_statistics}
    return plant[file.suffix](file, data, chance)


def _plant_npy(file: Path, data: bytes, chance: random.Random) -> bool:
    file.write_bytes(data)
    values = np.load(file)
    became = _plant_values(values, chance)
    np.save(file, values)
    return became


def _plant_pt(file: Path, data: bytes, chance: random.Random) -> bool:
    file.write_bytes(data)
    with zipfile.ZipFile(file) as archive:
        parts = {one.filename: archive.read(one) for one in archive.infolist()}
    became = False
    types = [kind for name, kind in STORAGES.items() if any(name in part for part in parts.values())]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            if "/data/" in name and len(types) == 1:
                values = np.frombuffer(bytearray(part), types[0])
                became |= _plant_values(values, chance)
                part = values.tobytes()
            archive.writestr(name, part)
    return became


def _plant_values(values: Array, chance: random.Random) -> bool:
    if not values.size or values.dtype.kind not in "fc":
        return False
    finite = np.isfinite(values)
    with np.errstate(all="ignore"):
        odd = np.array(chance.choice(ODD)).astype(values.dtype)
    way = chance.randrange(4)
    if way == 0:
        values[...] = odd
    elif way == 1 and values.ndim > 1:
        values[chance.randrange(len(values))] = odd
    else:
        for _ in range(chance.randint(1, 4)):
            values.reshape(-1)[chance.randrange(values.size)] = odd
    return bool((finite & ~np.isfinite(values)).any())


def _plant_bytes(file: Path, data: bytes, chance: random.Random) -> bool:
    """Plant in the values of safetensors, which follow its header."""
    spoilt = bytearray(data)
    begin = 8 + int.from_bytes(data[:8], "little")
    for _ in range(chance.randint(1, 6) if begin < len(data) - 1 else 0):
        at = begin + chance.randrange((len(data) - begin) // 2) * 2
        spoilt[at : at + 2] = chance.choice(ODD_BYTES)
    file.write_bytes(spoilt)
    return False  # whether it differs depends on the type


def _plant_statistics(file: Path, data: bytes, chance: random.Random) -> bool:
    text = data.decode()
    places = list(STATISTIC.finditer(text))
    some = {one.start() for one in chance.sample(places, min(len(places), chance.randint(1, 6)))}

    def cell(found: re.Match[str]) -> str:
        return found[1] + chance.choice(ODD_STATISTICS) if found.start() in some else found[0]

    file.write_text(STATISTIC.sub(cell, text))
    return False  # some tensors of a dump are compared by other statistics


def main(words: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--case", type=int, help="the number of one run")
    given = parser.parse_args(words)
    wrong = 0
    numbers = range(given.runs) if given.case is None else [given.case]
    with tempfile.TemporaryDirectory() as folder:
        for number, one in zip(numbers, map(partial(tried, given.seed, folder=Path(folder)), numbers)):
            if one.wrong:
                reason = one.wrong.strip().splitlines()[-1]
                print(
                    f"{number}: {one.command} {one.pair}: {one.wrong if given.case is not None else reason}", flush=True
                )
                wrong += 1
    print(f"{len(numbers)} runs, seed {given.seed}: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
