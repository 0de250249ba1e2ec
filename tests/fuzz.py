"""A longer search for input that npucmp cannot take: python -m tests.fuzz SECONDS [SEED].

It spoils one file of a valid dump (of every format) and compares it; every other round it spoils a file and reads just
that. Whatever is raised but NpucmpError, takes longer than SLOW seconds, or calls a file that was cut short `match`, is
printed with what reproduces it. tests/dump/test_damaged_files.py runs a little of it.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Callable, Iterator

from npucmp import compare, open_runs, overflow, precheck
from npucmp.dump.graphs import load_graphs as load_graph
from npucmp.dump.readers import (
    cann_raw,
    fusion_result,
    hdf5,
    header,
    overflow_records,
    safetensors,
    statistics_csv,
    stored_zip,
    torch_pt,
)
from npucmp.dump.readers.atb import read_atb
from npucmp.dump.readers.inert_pickle import unpickle as load_pickle
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError
from npucmp.model import Payload, Verdict
from npucmp.report import answer_of, render

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
SLOW = 20.0
BYTES = [0, 1, 0x7F, 0x80, 0xFE, 0xFF, 0x2F, 0x22, 0x0A]
NUMBERS = [b"0", b"-1", b"1e400", b"99999999999999999999", b"9223372036854775807", b"NaN", b"null", b'"x"', b"[", b"{}"]
WORDS = [b"../../../etc/passwd", b"/dev/zero", b"\x1b[31m", b"=1+1", b"</script>", b"\xff\xfe", b"\\ud800", b"{" * 3000]


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """One to four changes: cut, flipped, overwritten, doubled, moved, a number or word that lies."""
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        data = chance.choice(CHANGES)(data, chance) if data else b"\0"
    return data


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _flip(data: bytes, chance: random.Random) -> bytes:
    return _at(data, chance, lambda byte: byte ^ 1 << chance.randrange(8))


def _byte(data: bytes, chance: random.Random) -> bytes:
    return _at(data, chance, lambda _: chance.choice(BYTES))


def _at(data: bytes, chance: random.Random, new: Callable[[int], int]) -> bytes:
    """Headers are at the start, zip directories at the end: half of all changes are there."""
    place = chance.choice(
        [chance.randrange(min(len(data), 400)), chance.randrange(len(data)), -1 - chance.randrange(min(len(data), 200))]
    )
    changed = bytearray(data)
    changed[place] = new(changed[place])
    return bytes(changed)


def _fill(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + bytes([chance.choice(BYTES)]) * chance.choice([2, 4, 8]) + data[start + 8 :]


def _drop(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.choice([1, 2, 8, 100]) :]


def _double(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    piece = data[start : start + chance.choice([1, 8, 64, 1000])]
    return data[:start] + piece * chance.choice([2, 3, 50]) + data[start:]


def _number(data: bytes, chance: random.Random) -> bytes:
    found = list(re.finditer(rb"-?[0-9.]+", data[:100_000]))
    return _swapped(data, found, NUMBERS, chance)


def _word(data: bytes, chance: random.Random) -> bytes:
    found = list(re.finditer(rb"[A-Za-z_][\w./-]*", data[:100_000]))
    return _swapped(data, found, WORDS, chance)


def _swapped(data: bytes, found: list[re.Match[bytes]], words: list[bytes], chance: random.Random) -> bytes:
    if not found:
        return _flip(data, chance)
    one = chance.choice(found)
    return data[: one.start()] + chance.choice(words) + data[one.end() :]


CHANGES = [_cut, _flip, _flip, _byte, _byte, _fill, _drop, _double, _number, _word]


def _raw(path: str) -> None:
    with open_regular(path) as file:
        (cann_raw.read_nano if cann_raw.is_nano(file) else cann_raw.read_raw)(file)


def _atb(path: str) -> None:
    with open_regular(path) as file:
        found = read_atb(file)
    for _ in blocks(found.payload) if found.payload else ():
        pass


def _values(read: Callable[[str], object]) -> Callable[[str], None]:
    def call(path: str) -> None:
        for _ in blocks(read(path)):
            pass

    return call


def _entries(read: Callable[[RegularFile], dict[str, Payload | str]]) -> Callable[[str], None]:
    def call(path: str) -> None:
        with open_regular(path) as file:
            found = read(file)
        for payload in found.values():
            if not isinstance(payload, str):
                for _ in blocks(payload):
                    pass

    return call


def _pickle(path: str) -> None:
    load_pickle(Path(path).read_bytes())


READERS: dict[str, list[Callable[[str], object]]] = {
    ".npy": [_values(partial(header, "npy"))],
    ".pt": [_values(partial(header, "torch_pt")), _entries(torch_pt.entries)],
    ".npz": [_entries(stored_zip.entries)],
    ".safetensors": [_entries(safetensors.entries)],
    ".h5": [lambda path: list(map(hdf5.payload_at, hdf5.entries_of(path).entries.values()))],
    ".txt": [load_graph],
    ".json": [load_graph, fusion_result.read_effects, overflow_records.read_records, lambda path: open_runs(path)],
    ".csv": [statistics_csv.read_statistics],
    ".bin": [_atb],
    "": [_raw, overflow_records.read_records],
}


def dumps(folder: Path) -> list[tuple[Path, Path]]:
    """(target, golden) of every format, copied so that they may be spoilt."""
    made = []
    for place in sorted(SAMPLES.iterdir()):
        if (place / "golden").is_dir():
            shutil.copytree(place, folder / place.name)
            made.append((folder / place.name / "target", folder / place.name / "golden"))
    from tests.dump.formats.test_atb import write_atb
    from tests.dump.formats.test_fx import write_fx
    from tests.dump.formats.test_mindspore import write_raw
    from tests.dump.formats.test_monitor import write_monitor
    from tests.dump.formats.test_npz import write_npz
    from tests.dump.formats.test_places import in_parts
    from tests.dump.formats.test_pt import micro as write_pt
    from tests.dump.formats.test_safetensors import write_safetensors
    from tests.dump.formats.test_saved import write_saved

    parts = {"parts": in_parts("msprobe"), "npy_parts": in_parts("npy")}
    writers = {
        **parts,
        "monitor": write_monitor,
        "fx": write_fx,
        "atb": write_atb,
        "saved": write_saved,
        "raw": write_raw,
    }
    for name, write in {**writers, "pt": write_pt, "npz": write_npz, "safetensors": write_safetensors}.items():
        for side in ("target", "golden"):
            write(folder / name / side)
        made.append((folder / name / "target", folder / name / "golden"))
    try:
        from tests.dump.formats.test_hdf5 import damaged_base
    except Exception:  # without h5py
        return made
    for side in ("target", "golden"):
        (folder / "hdf5").mkdir(exist_ok=True)
        damaged_base(folder / "hdf5" / f"{side}.h5")
    return [*made, (folder / "hdf5" / "target.h5", folder / "hdf5" / "golden.h5")]


class Search:
    """Counts what was tried, and what it came to."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.dumps = dumps(folder)
        self.files = {one[0]: [f for f in one[0].rglob("*") if f.is_file()] or [one[0]] for one in self.dumps}
        self.tried: Counter[str] = Counter()
        self.failed: list[str] = []

    def round(self) -> None:
        """Many readings of one file, spoilt each time, and one comparison of a dump with it."""
        target, golden = self.chance.choice(self.dumps)
        file = self.chance.choice(self.files[target])
        data = file.read_bytes()
        readers = READERS.get(file.suffix, READERS[""])
        try:
            for _ in range(2 if file.suffix == ".h5" else 60):  # each of which starts a process
                changed = spoilt(data, self.chance)
                file.write_bytes(changed)
                for read in readers:
                    kind = file.suffix if file.suffix in READERS else "raw"
                    self.tell(f"read {kind}", lambda read=read: read(str(file)), changed)
            if target.suffix != ".h5":
                self.whole(target, golden, file, len(changed) < len(data))
        finally:
            file.write_bytes(data)

    def whole(self, target: Path, golden: Path, file: Path, shorter: bool) -> None:
        def work() -> None:
            report = compare(target, golden, jobs=1)
            render(answer_of(report))
            for finding in report.findings:
                one = finding.pair.target
                if shorter and one and one.file == str(file) and file.suffix in (".npy", ".pt", ".npz", ".safetensors"):
                    assert finding.verdict is not Verdict.MATCH, "a file that was cut short is called match"

        def other() -> None:
            report = overflow(target, jobs=1)
            render(answer_of(report))

        def both() -> None:
            report = precheck(target, golden, jobs=1)
            render(answer_of(report))
            failed = [row.because for row in report.rows if row.because.startswith("row failed")]
            assert not failed, failed

        data = file.read_bytes()
        self.tell(f"precheck {target.parent.name}", both, data, file)
        self.tell(f"compare {target.parent.name}", work, data, file)
        self.tell(f"overflow {target.parent.name}", other, data, file)

    def tell(self, kind: str, work: Callable[[], object], data: bytes, file: object = "") -> None:
        self.tried[kind] += 1
        started = time.monotonic()
        try:
            work()
        except NpucmpError as error:
            if "\n" in str(error) and "\n" not in str(file):
                self.failed.append(f"{kind} {file}: an error of several lines: {str(error)!r:.300}")
        except Exception:
            where = tempfile.mktemp(prefix="fuzz-", dir=tempfile.gettempdir())
            Path(where).write_bytes(data)
            self.failed.append(f"{kind} {file} {where}\n{traceback.format_exc(limit=-4)}")
        if time.monotonic() - started > SLOW:
            self.failed.append(f"{kind} {file}: {time.monotonic() - started:.0f} seconds")


def search(seconds: float, seed: int, folder: Path) -> Search:
    found = Search(seed, folder)
    end = time.process_time() + seconds  # a busy machine tries as much
    while time.process_time() < end:
        found.round()
    return found


def _lines(found: Search) -> Iterator[str]:
    yield f"{sum(found.tried.values())} inputs: " + ", ".join(f"{n} {kind}" for kind, n in sorted(found.tried.items()))
    yield f"{len(found.failed)} failures"
    yield from dict.fromkeys(re.sub(r"/tmp/\S+", "FILE", one) for one in found.failed)


def main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    warnings.simplefilter("error")
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        found = search(float(sys.argv[1]), seed, Path(folder))
    sys.stdout.write("\n".join(_lines(found)) + "\n")


if __name__ == "__main__":
    main()
