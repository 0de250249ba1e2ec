"""Which operator diverged first, and did it cause it? load → align → measure → judge → roots → Report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.align import align, mapping, pairs
from npucmp.dtypes import size_of
from npucmp.errors import UsageError
from npucmp.judge import DEFAULT_RULES, Rules, judge, load_noise, load_tolerances
from npucmp.measure import Closeness, measure_pairs
from npucmp.model import Comparison, Measurement, Pair, Report, Run, Tolerance
from npucmp.ranks import settle
from npucmp.recipes.graphs import loaded, with_graphs
from npucmp.recipes.runs import Choice, StrPath, keys, pair_runs
from npucmp.roots import find_roots
from npucmp.runner import default_jobs


@dataclass(frozen=True)
class Options(Choice):
    """What a comparison can be told; the command line offers the same under the same names."""

    mapping: Union[StrPath, Mapping[str, str], None] = None
    rtol: Optional[float] = None
    atol: Optional[float] = None
    tolerances: Union[StrPath, Sequence[Tolerance], None] = None
    trust_statistics: bool = False
    noise: Optional[StrPath] = None
    strict: bool = False

    def rules(self) -> Rules:
        """The rules that these options amount to."""
        table = self.tolerances
        if isinstance(table, (str, PathLike)):
            table = load_tolerances(Path(table))
        noise = load_noise(Path(self.noise)) if self.noise is not None else {}
        return Rules(tuple(table or ()), self.rtol is not None or self.atol is not None, self.trust_statistics, noise)

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
    lefts, rights = options.runs(target), options.runs(golden)
    graphs = loaded(options.graph, [*lefts, *rights])
    lefts, rights = with_graphs(target, lefts, golden, graphs), with_graphs(golden, rights, target, graphs)
    return compared("compare", Sides(target, lefts, golden, rights), options, started)


class Sides(NamedTuple):
    """Two dumps and their runs, which know what their graphs tell."""

    target_path: StrPath
    targets: "list[Run]"
    golden_path: StrPath
    goldens: "list[Run]"


def compared(command: str, sides: Sides, options: Options, started: float) -> Report:
    """Pairs the runs of two dumps, compares them, and finds the roots."""
    rules, names = options.rules(), options.names()
    lefts, rights = sides.targets, sides.goldens
    broken = tuple((side, run) for side, runs in (("target", lefts), ("golden", rights)) for run in runs if run.problem)
    lefts, rights = ([run for run in runs if not run.problem] for runs in (lefts, rights))
    together, unpaired = pair_runs(lefts, rights)
    if not together:
        raise UsageError(
            f"no step and rank is in both: {sides.target_path} has {keys(lefts)}, "
            f"{sides.golden_path} has {keys(rights)}"
        )
    comparisons, partial = _compare(together, options, rules, names)
    return Report(
        command=command,
        target_path=str(sides.target_path),
        golden_path=str(sides.golden_path),
        comparisons=settle(comparisons),
        unpaired=unpaired,
        broken=broken,
        rules=_rules_used(rules, options, comparisons),
        seconds=time.monotonic() - started,
        bytes_read=sum(finding.measurement.bytes_read for one in comparisons for finding in one.findings),
        partial=partial,
        strict=options.strict,
    )


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
    return options.wants(*(operator.name for operator in (pair.target_op, pair.golden_op) if operator is not None))


def payload_bytes(pair: Pair) -> int:
    """Bytes of values that measuring a pair will read, as far as the dumps tell."""
    return sum(size_of(t.dtype, t.shape) for t in (pair.target, pair.golden) if t is not None and t.file)


def _rules_used(rules: Rules, options: Options, comparisons: Sequence[Comparison]) -> tuple[Tolerance, ...]:
    if rules.closeness:
        limit = f"|x-y| ≤ {options.atol or 0.0:g} + {options.rtol or 0.0:g}·|y| everywhere"
        return (Tolerance("mismatch_ratio", 0.0, why=f"{limit}: --rtol and --atol were given"),)
    dtypes = {
        tensor.dtype for one in comparisons for f in one.findings for tensor in (f.pair.target, f.pair.golden) if tensor
    }
    return tuple(row for row in (*rules.table, *DEFAULT_RULES) if row.dtype in ("", *dtypes))
