"""Which operator diverged first, and did it cause it? load → align → measure → judge → roots → Report."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Callable, Mapping, Optional, Sequence, Union

from npucmp.align import align, mapping, pairs
from npucmp.dtypes import lookup
from npucmp.errors import DumpError, UsageError
from npucmp.formats import open_runs
from npucmp.judge import DEFAULT_RULES, Rules, judge, load_tolerances
from npucmp.measure import Closeness, measure_pairs
from npucmp.model import Comparison, Measurement, Pair, Report, Run, TensorRef, Tolerance
from npucmp.ranks import settle
from npucmp.recipes.graphs import loaded, with_graphs
from npucmp.roots import find_roots
from npucmp.runner import default_jobs

StrPath = Union[str, "PathLike[str]"]
Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True)
class Options:
    """What a comparison can be told; the command line offers the same under the same names."""

    format: Optional[str] = None
    step: Optional[int] = None
    rank: Optional[int] = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    mapping: Union[StrPath, Mapping[str, str], None] = None
    graph: Sequence[StrPath] = ()
    rtol: Optional[float] = None
    atol: Optional[float] = None
    tolerances: Union[StrPath, Sequence[Tolerance], None] = None
    trust_statistics: bool = False
    strict: bool = False
    jobs: Optional[int] = None
    progress: Optional[Progress] = None

    def rules(self) -> Rules:
        """The rules that these options amount to."""
        table = self.tolerances
        if isinstance(table, (str, PathLike)):
            table = load_tolerances(Path(table))
        return Rules(tuple(table or ()), self.rtol is not None or self.atol is not None, self.trust_statistics)

    def names(self) -> Mapping[str, str]:
        """The mapping, read if it is a file."""
        if isinstance(self.mapping, (str, PathLike)):
            return mapping.load(Path(self.mapping))
        return self.mapping or {}


def compare(target: StrPath, golden: StrPath, options: Optional[Options] = None, **more: object) -> Report:
    """Compares two dumps and returns the Report; keyword arguments are the fields of Options.

    Raises NpucmpError when there is nothing to compare. Trouble with single tensors is in the report.
    """
    options = replace(options or Options(), **more)  # type: ignore[arg-type]
    started = time.monotonic()
    rules, names = options.rules(), options.names()
    lefts, rights = _runs(target, options), _runs(golden, options)
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    graphs = loaded(options.graph, [*lefts, *rights])
    lefts, rights = with_graphs(target, lefts, golden, graphs), with_graphs(golden, rights, target, graphs)
    together, unpaired = pair_runs(lefts, rights)
    if not together:
        raise UsageError(f"no step and rank is in both: {target} has {_keys(lefts)}, {golden} has {_keys(rights)}")
    comparisons, partial = _compare(together, options, rules, names)
    return Report(
        command="compare",
        target_path=str(target),
        golden_path=str(golden),
        comparisons=settle(comparisons),
        unpaired=unpaired,
        broken=broken,
        rules=_rules_used(rules, options, comparisons),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=partial,
        strict=options.strict,
    )


def _runs(path: StrPath, options: Options) -> list[Run]:
    runs = open_runs(path, options.format)
    chosen = [
        run
        for run in runs
        if (options.step is None or run.step in (None, options.step))
        and (options.rank is None or run.rank in (None, options.rank))
    ]
    if not chosen:
        raise DumpError(path, f"has no step {options.step} rank {options.rank}; it holds {_keys(runs)}")
    return chosen


def _keys(runs: Sequence[Run]) -> str:
    words = [
        f"step {'-' if run.step is None else run.step} rank {'-' if run.rank is None else run.rank}" for run in runs
    ]
    return ", ".join(words[:8]) + (" …" if len(words) > 8 else "")


def pair_runs(
    targets: Sequence[Run], goldens: Sequence[Run]
) -> tuple[list[tuple[Run, Run]], tuple[tuple[str, Run], ...]]:
    """Runs of the same step and rank; one on each side always pairs, and an absent step or rank matches any."""
    if len(targets) == len(goldens) == 1:
        return [(targets[0], goldens[0])], ()
    left = list(goldens)
    together, alone = [], []
    for target in targets:
        found = min((g for g in left if _meets(target, g)), key=lambda g: _distance(target, g), default=None)
        if found is None:
            alone.append(("target", target))
        else:
            left.remove(found)
            together.append((target, found))
    return together, tuple(alone + [("golden", run) for run in left])


def _meets(a: Run, b: Run) -> bool:
    return all(None in (x, y) or x == y for x, y in ((a.step, b.step), (a.rank, b.rank)))


def _distance(a: Run, b: Run) -> int:
    return (a.step != b.step) + (a.rank != b.rank)


def _compare(
    together: Sequence[tuple[Run, Run]], options: Options, rules: Rules, names: Mapping[str, str]
) -> tuple[tuple[Comparison, ...], bool]:
    """The comparisons, and whether Ctrl-C ended them early; what was measured by then is kept."""
    aligned = [(target, golden, align(target, golden, names)) for target, golden in together]
    todo = [[pair for pair in pairs(*one) if _wanted(pair, options)] for one in aligned]
    total = sum(payload_bytes(pair) for some in todo for pair in some)
    done = 0
    comparisons = []
    partial = False
    for (target, golden, alignment), some in zip(aligned, todo):
        measurements: list[Measurement] = []
        try:
            measured = measure_pairs(some, Closeness(options.rtol, options.atol), options.jobs or default_jobs())
            for measurement in measured:
                measurements.append(measurement)
                done += payload_bytes(measurement.pair)
                if options.progress:
                    options.progress(done, total)
        except KeyboardInterrupt:
            partial = True
        final, roots = find_roots(list(judge(measurements, rules)), rules.by_round_off)
        alone = len(alignment.only_target), len(alignment.only_golden)
        comparisons.append(Comparison(target, golden, tuple(final), tuple(roots), alignment.matched, alone))
        if partial:
            break
    if not partial and not any(one.findings for one in comparisons):
        raise UsageError("nothing to compare: no operator passes --include and --exclude")
    return tuple(comparisons), partial


def _wanted(pair: Pair, options: Options) -> bool:
    operators = [operator.name for operator in (pair.target_op, pair.golden_op) if operator is not None]
    if options.include and not any(fnmatchcase(name, glob) for name in operators for glob in options.include):
        return False
    return not any(fnmatchcase(name, glob) for name in operators for glob in options.exclude)


def payload_bytes(pair: Pair) -> int:
    """Bytes of values that measuring a pair will read, as far as the dumps tell."""
    return sum(_bytes(tensor) for tensor in (pair.target, pair.golden) if tensor is not None and tensor.file)


def _bytes(tensor: TensorRef) -> int:
    row = lookup(tensor.dtype)
    return row.stored(math.prod(tensor.shape)) if row else 0


def _rules_used(rules: Rules, options: Options, comparisons: Sequence[Comparison]) -> tuple[Tolerance, ...]:
    if rules.closeness:
        limit = f"|x-y| ≤ {options.atol or 0.0:g} + {options.rtol or 0.0:g}·|y| everywhere"
        return (Tolerance("mismatch_ratio", 0.0, why=f"{limit}: --rtol and --atol were given"),)
    dtypes = {
        tensor.dtype for one in comparisons for f in one.findings for tensor in (f.pair.target, f.pair.golden) if tensor
    }
    return tuple(row for row in (*rules.table, *DEFAULT_RULES) if row.dtype in ("", *dtypes))
