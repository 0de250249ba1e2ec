"""Run a command line of npucmp while one call of the system fails, or while it is killed, and judge what it leaves.

A fault may cost the report, or rows of it with their reasons. It never changes a verdict without one: `faults_of`
compares a report with that of an undisturbed run. failing.c makes calls fail; without a C compiler nothing here works.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_dumps"
KINDS = ("read", "write", "name", "map", "fork", "allocate")
COMPILER = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
HAS_GLIBC = sys.platform == "linux" and "musl" not in (sysconfig.get_config_var("SOABI") or "")
IS_POSSIBLE = HAS_GLIBC and COMPILER is not None
JUDGED = ("order", "cause", "rule", "explained_by", "explained_limit")  # may change where a neighbour is unreadable
MATCHED = ("matched_by", "match_confidence", "match_reason")  # may change if a tensor that proves it was not read
LIMITED = ("because", "limit")  # may change if a tensor before is unreadable: its error and precision are unknown
REASON = 2000  # characters: a shorter page says why there is none
REASONS = re.compile(r"Input/output error|No space left|Cannot allocate|out of memory|cannot be (?:read|opened)")
NOTED = re.compile(f"cannot|could not|unreadable|ignored|ended|not read|memory|{REASONS.pattern}")  # not a count
ALLOCATING, UNCHECKED = ("malloc", "calloc", "realloc", "mmap"), "SystemError: "
WAIT = 5.0  # seconds for processes of a killed run to end


@dataclass(frozen=True)
class Scenario:
    """A small command line: its words, with {out} for the folder of the report; another report lies there before."""

    name: str
    words: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    divided: bool = False


class Trial(NamedTuple):
    """One disturbed run. `site`: the call that failed, and the innermost frames of Python."""

    status: int
    name: str
    site: str
    errors: str
    seconds: float
    problems: tuple[str, ...]


def compiled(folder: Path) -> Path:
    """Return the library of failing calls."""
    made = folder / "failing.so"
    words = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "failing.c"), "-ldl"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return made


def content(folder: Path) -> dict[str, object]:
    """Return the files of a report; without seconds and words of the command line."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")) if folder.exists() else ():
        name = str(file.relative_to(folder))
        if file.is_dir() or ".npucmp-" in name:
            continue
        if file.name == "summary.json":
            summary = json.loads(file.read_text())
            for side in ("target", "golden"):  # the bytes of tensors that no row has, as in a fused operator
                if isinstance(summary.get(side), dict):
                    summary[side].pop("bytes", None)
            found[name] = {key: value for key, value in summary.items() if key not in ("seconds", "argv", "bytes_read")}
        elif file.name == "matrix.csv":
            found[name] = "\n".join(str({**row, "seconds": ""}) for row in rows(file.read_bytes())).encode()
        elif file.suffix == ".html":
            page = file.read_text(encoding="utf-8").rstrip()
            found[name] = page if len(page) < REASON else page.endswith("</html>")
        else:
            found[name] = file.read_bytes()
    return found


def processes(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", one, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(one))
    return found


class Server:
    """The interpreter whose forks run the trials, in a `with`."""

    def __init__(self, folder: Path) -> None:
        environ = {**os.environ, "LD_PRELOAD": str(compiled(folder)), "OPENBLAS_NUM_THREADS": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environ.pop("NPUCMP_RAISE", None)
        words = [sys.executable, str(HERE / "server.py")]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=WAIT * 2)

    def run(self, trial: Mapping[str, object]) -> dict[str, Any]:
        """Run a trial; its result."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(trial) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@dataclass
class Injector:
    """Runs a scenario again and again in forks of one interpreter."""

    scenario: Scenario
    folder: Path
    server: Server
    expected: dict[str, object] = field(default_factory=dict)
    earlier: dict[str, object] = field(default_factory=dict)
    status: int = 0
    calls: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = self.scenario.earlier
        if words:
            assert self._run(words).status in (0, 1)
            self.earlier = content(self.out)
            self.out.rename(self.folder / "earlier")
        undisturbed = self._run(self.scenario.words, kinds=KINDS)
        assert undisturbed.status in (0, 1, 2), undisturbed
        self.counts = self._counts
        self.status, self.seconds, self.expected = undisturbed.status, undisturbed.seconds, content(self.out)
        assert self.expected != self.earlier

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def count(self, kinds: Sequence[str], action: str = "fail") -> int:
        """Return the number of calls of these kinds that the action concerns."""
        if action != "short":
            return sum(self.counts[kind] for kind in kinds)
        self._reset(False)
        self._run(self.scenario.words, kinds, 0, action)
        return self.calls

    def fail(self, nth: int, kinds: Sequence[str] = KINDS, action: str = "fail", earlier: bool = True) -> Trial:
        """Run once; the nth call fails, ends the process, or reads and writes less than asked."""
        self._reset(earlier)
        trial = self._run(self.scenario.words, kinds, nth, action)
        problems = [*self._problems(trial, action, earlier and bool(self.earlier))]
        return trial._replace(problems=tuple(problems))

    def kill(self, after: float, earlier: bool = True) -> Trial:
        """Kill the process after so many seconds."""
        self._reset(earlier)
        trial = self._run(self.scenario.words, after=after)
        return trial._replace(problems=(*self._problems(trial, "kill", earlier and bool(self.earlier)),))

    def _reset(self, earlier: bool) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        if earlier and self.earlier:
            shutil.copytree(self.folder / "earlier", self.out)

    def _run(
        self,
        words: Sequence[str],
        kinds: Sequence[str] = (),
        nth: int = 0,
        action: str = "fail",
        after: Optional[float] = None,
    ) -> Trial:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        trial = {
            "words": [word.format(out=self.out) for word in words],
            "warm": " ".join(words),
            "warm_words": [word.format(out=self.folder / "warm") for word in words],
            "environ": {"TMPDIR": str(temporary)},
            "divided": self.scenario.divided,
            **{name: str(self.folder / f"{name}.txt") for name in ("out", "err", "stack")},
            **{"kinds": [*kinds], "nth": nth, "action": action, "after": after},
        }
        found = self.server.run(trial)
        self.calls, self._session = found["count"], found["process"]
        self._counts = dict(zip(KINDS, found["counts"]))
        stack = (self.folder / "stack.txt").read_text() if (self.folder / "stack.txt").exists() else ""
        errors = (self.folder / "err.txt").read_text(errors="replace")
        return Trial(found["status"], found["name"], _site(stack), errors, found["seconds"], ())

    def _problems(self, trial: Trial, action: str, earlier: bool) -> Iterator[str]:
        """Yield what a run must not leave."""
        left = content(self.out)
        is_unchecked = trial.name in ALLOCATING and (trial.status == -signal.SIGSEGV or UNCHECKED in trial.errors)
        yield from self._remains(trial, "kill" if is_unchecked else action)
        if trial.status < 0 and action == "kill":
            yield from self._after_kill(left, earlier)
            return
        if is_unchecked:
            yield from self._after_kill(
                left, earlier
            )  # numpy and the interpreter do not check each of their allocations
            return
        if trial.status == -signal.SIGALRM:
            yield "the run hangs"
            return
        if trial.status not in (self.status, 2):
            yield f"status {trial.status} instead of {self.status}"
        ignored = trial.errors.startswith("Exception ignored")  # in the end of an object of Python's own library
        if ("Traceback" in trial.errors and not ignored) or (trial.errors.count("\n") > 2 and not ignored):
            yield f"stderr: {trial.errors[-600:]}"
        if action != "fail" and (trial.status, left) != (self.status, self.expected):
            yield f"the report differs: {_difference(left, self.expected)}"
        is_old = earlier and left == self.earlier
        if trial.status == 2 and self.status != 2 and not trial.errors and (is_old or "summary.json" not in left):
            yield "status 2 without a reason"
        if trial.status != 2 and (is_old or "summary.json" not in left):
            yield f"status {trial.status} without a report"
        is_whole = trial.status == 2 and bool(trial.errors) and left == self.expected  # failed after the report
        if "summary.json" in left and not is_old and not is_whole:
            yield from changes(left, self.expected, trial.status)
        elif "summary.json" not in left and earlier and trial.name not in ("rename", "unlink"):
            yield "the earlier report is lost"

    def _remains(self, trial: Trial, action: str) -> Iterator[str]:
        """Yield processes and temporary files that a run left."""
        end = time.monotonic() + WAIT
        while (living := processes(self._session)) and time.monotonic() < end:
            time.sleep(0.05)
        if living:
            yield f"processes are left: {living}"
            for one in living:
                os.kill(one, 9)
        if action == "kill" or trial.name in ("unlink", "rmdir", "opendir", "stat", "lstat", "fstat", "close", "open"):
            kept = []  # the next run removes them; `_after_kill` looks
        else:
            kept = [one.name for one in self.out.glob(".npucmp-*")] if self.out.exists() else []
            if trial.status == 2:  # what was measured is kept for --resume
                kept = [name for name in kept if not name.startswith(".npucmp-checkpoint")]
        beside = [one.name for one in (self.folder / "tmp").iterdir()]
        if kept or beside:
            yield f"temporary files are left: {kept + beside}"
            shutil.rmtree(self.folder / "tmp")

    def _after_kill(self, left: dict[str, object], earlier: bool) -> Iterator[str]:
        """Yield what a killed run must not leave, after the next run into the same folder too."""
        whole = [self.expected, *([self.earlier] if earlier else [])]
        if "summary.json" in left and left not in whole:
            yield f"a report is not whole: {_difference(left, self.expected)}"
        if wrong := [name for name in left if all(left[name] != one.get(name) for one in whole)]:
            yield f"files are not whole: {wrong}"
        for file in self.out.glob(".npucmp-*.tmp") if self.out.exists() else ():
            os.utime(file, (time.time() - 7200,) * 2)
        again = self._run(self.scenario.words)
        if (again.status, content(self.out)) != (self.status, self.expected):
            yield f"the next run differs: status {again.status}, {_difference(content(self.out), self.expected)}"
        if kept := [one.name for one in self.out.glob(".npucmp-*")]:
            yield f"the next run left {kept}"


def changes(left: dict[str, object], expected: dict[str, object], status: int) -> Iterator[str]:
    """Yield differences of a report from that of an undisturbed run for which it has no reason."""
    summary, wanted = left["summary.json"], expected["summary.json"]
    assert isinstance(summary, dict) and isinstance(wanted, dict)
    if "error" in summary:  # the run ended with an error, and no table was written
        tables = [name for name in left if name.endswith(".csv") and not name.startswith("earlier/")]
        yield from ([] if status == 2 and not tables else [f"status {status} and tables {tables} beside an error"])
        return
    if missing := [name for name in summary.get("files", ()) if name not in left]:
        yield f"files are missing: {missing}"
    if summary.get("exit_status", status) != status:
        yield f"status {status}, but summary.json says {summary['exit_status']}"
    if left == expected:
        return
    added = (note for name in ("notes", "broken") for note in summary.get(name, ()) if note not in wanted.get(name, ()))
    notes = [note for note in map(str, added) if NOTED.search(note)]
    pages = [text for name, text in left.items() if name.endswith(".html") and isinstance(text, str)]
    said = [word for word in REASONS.findall(_text(left)) if word not in _text(expected)]
    reasons, wrong = [*notes, *pages, *said, *(["partial"] if summary.get("partial") else [])], []
    for name in expected:
        if not name.endswith(".csv"):
            continue
        if name not in left:
            wrong.append(f"{name} is missing")
            continue
        before, after = rows(expected[name]), rows(left[name])
        reasons += [str(row) for row in after if row not in before and "unreadable" in row.values()]
        if name.startswith("tensors") and summary.get("command") == "compare":
            lost = any(row.get("verdict") == "unreadable" for row in after)
            changed = {*JUDGED, *(MATCHED if reasons else ()), *(LIMITED if lost else ())}
            wrong += [*_unlike(before, after, ("unreadable", "missing") if lost else ("unreadable",), changed)]
    is_same = all(left.get(name) == one for name, one in expected.items() if name.endswith(".csv"))
    if status == 0 and is_same and reasons and summary.get("roots") == wanted.get("roots"):
        return  # a note: an operator was not recomputed, which --recompute none does not do either
    if status == 0:
        yield f"status 0, but the report differs: {_difference(left, expected)}"
    elif not reasons and (summary.get("roots") != wanted.get("roots") or status != wanted.get("exit_status")):
        yield f"another verdict without a reason: {_difference(left, expected)}"
    elif not reasons and summary.get("command") == "compare":
        yield f"another report without a reason: {_difference(left, expected)}"
    yield from wrong[:3]


def _text(files: Mapping[str, object]) -> str:
    return " ".join(one.decode("utf-8", "replace") if isinstance(one, bytes) else repr(one) for one in files.values())


def rows(data: object) -> list[dict[str, str]]:
    assert isinstance(data, bytes)
    return [*csv.DictReader(data.decode("utf-8").splitlines())]


def _unlike(
    before: Sequence[dict[str, str]], after: Sequence[dict[str, str]], lost: tuple[str, ...], changed: set[str]
) -> Iterator[str]:
    """Yield rows of tensors whose measurement changed though they were read; `lost`: the verdicts of the others,
    `changed`: columns that may change. A tensor whose partner is unreadable may be missing. A row of a tensor in an
    unreadable file may have another recording of this tensor, which the row names, with the same verdict, or no
    partner."""
    known, unread = {_key(one): one for one in before}, _unreadable_labels(after)
    for other in after:
        one = known.get(_key(other))
        if one is None or other.get("verdict") in lost:
            continue  # a tensor in another place has its note, or the row of the file that was not read
        if other.get("verdict") in (one.get("verdict"), "unknown") and any(
            one.get(side) != other.get(side) and {label := one.get(side) or "", label.rpartition(":")[0]} & unread[side]
            for side in ("target_tensor", "golden_tensor")
        ):
            continue
        apart = [name for name in one if name not in changed and one[name] != other.get(name)]
        if apart:
            yield f"{other.get('op')} {other.get('slot')}: {[(name, one[name], other.get(name)) for name in apart][:4]}"


def _unreadable_labels(rows: Sequence[dict[str, str]]) -> dict[str, set[str]]:
    """The names of the unreadable files of each side; tensors in them are called FILE:SLOT."""
    found: dict[str, set[str]] = {"target_tensor": set(), "golden_tensor": set()}
    for row in rows:
        side = f"{(row.get('because') or '').partition(':')[0]}_tensor"
        if row.get("verdict") == "unreadable" and row.get(side):
            found[side].add(str(row[side]))
    return found


def _key(row: Mapping[str, str]) -> tuple[Optional[str], ...]:
    return tuple(row.get(name) for name in ("step", "rank", "op", "golden_op", "slot", "golden_slot"))


def _difference(left: dict[str, object], expected: dict[str, object]) -> str:
    found = []
    for name in sorted({*left, *expected}):
        one, other = left.get(name), expected.get(name)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            apart = [key for key in {**other, **one} if one.get(key) != other.get(key)]
            found += [f"{name}[{key}]: {other.get(key)!r:.150} → {one.get(key)!r:.300}" for key in apart]
        elif isinstance(one, bytes) and isinstance(other, bytes):
            lines = [(b, a) for b, a in zip(other.splitlines(), one.splitlines()) if a != b]
            found.append(f"{name}: {lines[:1]!r:.700}")
        else:
            found.append(f"{name}: {type(other).__name__} → {type(one).__name__}")
    return "; ".join(found)


def _site(stack: str) -> str:
    """Return the innermost frames of npucmp in a stack that faulthandler wrote."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    own = [line for line in lines if "/npucmp/" in line]
    named = [line.replace("File ", "").replace('"', "").rpartition("/npucmp/")[2] for line in own[:8]]
    return " < ".join(named) or "; ".join(lines[:2])
