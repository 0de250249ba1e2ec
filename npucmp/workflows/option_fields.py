"""Declare every option once: its name, type, default, spelling on the command line and meaning. A feature declares its
options in its folder (health/option_fields.py).

A dataclass holds the options of a command, and inherits options that commands share. The options of the command line
(commands/options.py), the keyword arguments of the Python function (options.py) and the manual page
are made from its fields. A declaration itself is not made (init=False): the options that inherit it are. Importing this
module loads neither numpy nor pandas.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import Limits
from npucmp.workflows.selectors import Numbers

if TYPE_CHECKING:
    from npucmp.align.msprobe_mapping import Names
    from npucmp.follow.step_findings import StepFindings
    from npucmp.measure.executor import Executor
    from npucmp.model import Tolerance

StrPath = Union[str, "PathLike[str]"]
Progress = Callable[[int, int], None]  # (bytes done, bytes in all)
_KEY = "option"


class Spelling(NamedTuple):
    """The spelling of an option on the command line.

    help      the effect, with an example if that helps
    flags     the flags; () for the name of the field
    metavar   the placeholder of its value in the help
    choices   the allowed words
    values    flags that each set a certain value, with their help
    least, most, is_whole, is_open   the allowed numbers; `is_open`: greater than `least`
    repeats   the option may be given several times
    words     number of words in its value
    check     the name of a function of commands/options.py that parses or refuses the text
    shows_default   the help shows the default
    required  the option must be given
    python    the spelling in Python if it is not a keyword of the function; "" for the keyword of the same name, "–"
              for an option that exists on the terminal only
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    choices: tuple[str, ...] = ()
    values: Mapping[str, tuple[Any, str]] = {}
    least: Optional[float] = None
    most: Optional[float] = None
    is_whole: bool = False
    is_open: bool = False
    repeats: bool = False
    words: int = 1
    check: str = ""
    shows_default: bool = False
    required: bool = False
    python: str = ""


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """Return a field of a dataclass that is also an option of the command line; `more` are fields of Spelling."""
    return field(default=default, metadata={_KEY: Spelling(help, flags, **more)})


def keyword(default: Any, help: str) -> Any:
    """Return a field that exists in Python only; `help` describes it."""
    return field(default=default, metadata={"help": help})


def spell_options(kind: Any) -> Iterator[tuple[Field[Any], Spelling]]:
    """Return the options of the command line that a dataclass declares."""
    return ((one, one.metadata[_KEY]) for one in fields(kind) if _KEY in one.metadata)


def spelling_of(one: Field[Any]) -> Optional[Spelling]:
    """Return the spelling of a field on the command line; None if it exists in Python only."""
    found: Optional[Spelling] = one.metadata.get(_KEY)
    return found


def flag(name: str) -> str:
    """Return the flag of a field that declares no flags."""
    return f"--{name.replace('_', '-')}"


def meaning(one: Field[Any]) -> str:
    """Return the description of a field, a sentence."""
    spelling = spelling_of(one)
    return spelling.help if spelling is not None else str(one.metadata["help"])


def limits_option() -> Any:
    """Return the field of --limit."""
    return option(
        Limits(),
        "Raise a size limit: --limit tensor_bytes=32T. The message for a refused file names the limit; repeatable.",
        "--limit",
        metavar="NAME=VALUE",
        repeats=True,
        check="limits",
        python='limits=npucmp.Limits().changed(["tensor_bytes=32T"])',
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DumpFields:
    """The options of every command that reads a dump. In Python, options that take several values also accept one."""

    format: Optional[str] = option(
        None,
        "Format of the dumps (default: recognised): msprobe, cann, npy, …; npucmp formats lists them.",
        metavar="NAME",
    )
    step: Numbers = option(None, "Only these steps: --step 3, --step 0-9.", metavar="N", check="numbers")
    rank: Numbers = option(None, "Only these ranks: --rank 0, --rank 0,8-15.", metavar="N", check="numbers")
    pair: Sequence[str] = option(
        (),
        "Compare a step or rank of the target with another step or rank of the golden: --pair step1=step0, --pair "
        "rank8=rank0; repeatable.",
        metavar="A=B",
        repeats=True,
        check="pairs",
    )
    include: Sequence[str] = option((), "Only operators whose name matches; repeatable.", metavar="GLOB", repeats=True)
    exclude: Sequence[str] = option((), "No operators whose name matches; repeatable.", metavar="GLOB", repeats=True)
    mapping: Union[StrPath, Names, None] = option(
        None,
        "Names of the target and their golden names: YAML, TOML or CSV, or msprobe's layer, cell, api or data mapping: "
        "--mapping layer_mapping.yaml.",
        metavar="FILE",
    )
    graph: Sequence[StrPath] = option(
        (),
        "GE graph (text or JSON) or TensorFlow GraphDef (text or binary) of a run, or a tfdbg dump that contains its "
        "graph. It replaces the graphs in the dumps' folders; repeatable.",
        metavar="FILE",
        repeats=True,
    )
    jobs: Optional[int] = option(
        None, "Number of worker processes (default: the cores of this process).", least=1, is_whole=True
    )
    progress: Optional[Progress] = keyword(None, "A function that is called with (bytes done, bytes in all).")
    limits: Limits = limits_option()


@dataclass(frozen=True)
class ScreenFields:
    """The options of the screen and of the files that are written."""

    output: Optional[str] = option(
        None,
        "Write the report into DIR: CSV files, summary.json and report.html.",
        "-o",
        "--output",
        metavar="DIR",
        python="npucmp.write_reports(result, DIR)",
    )
    excel: bool = option(
        False,
        "Write CSV files with a byte-order mark, so that Excel reads them as UTF-8.",
        python="npucmp.write_reports(result, DIR, excel=True)",
    )
    xlsx: bool = option(
        False,
        "Also write report.xlsx, with coloured sheets; needs XlsxWriter.",
        python="npucmp.write_reports(result, DIR, xlsx=True)",
    )
    metrics: Optional[str] = option(
        None,
        "Further columns of tensors.csv, comma-separated: --metrics euclidean,snr,gain (npucmp columns tensors.csv).",
        metavar="NAMES",
        python='npucmp.write_reports(result, DIR, metrics="snr,gain")',
    )
    parts: bool = option(
        False,
        "Write one file per step and rank instead of tensors.csv: -o report --parts writes report/tensors-0-3.csv …",
        python="npucmp.write_reports(result, DIR, parts=True)",
    )
    parquet: bool = option(
        False,
        "Write tensors.parquet instead of tensors.csv; needs pyarrow: pip install -e '.[parquet]'.",
        python="npucmp.write_reports(result, DIR, parquet=True)",
    )
    top: int = option(10, "Suspects to show on the terminal.", least=1, is_whole=True, shows_default=True, python="–")
    show_progress: Optional[bool] = option(
        None, "Show a progress bar (default: on a terminal).", "--progress/--no-progress", python="progress=FUNCTION"
    )
    verbose: bool = option(
        False, "Also list operators that propagate errors, and all notes.", "-v", "--verbose", python="–"
    )
    quiet: bool = option(False, "Print nothing; only set the exit status.", "-q", "--quiet", python="–")
    json: bool = option(
        False, "Print only summary.json, on stdout; an error is one JSON object too.", python="result.to_dict()"
    )
    report_format: Sequence[str] = option(
        (),
        "Print the result as text (default), json, jsonl, sarif, github, junit or markdown, or write it into FILE: "
        "--report-format github --report-format sarif=npucmp.sarif; repeatable.",
        metavar="FORMAT[=FILE]",
        repeats=True,
        python='npucmp.write_format(result, "sarif", FILE)',
    )
    junit: Optional[str] = option(
        None,
        "Write JUnit XML for continuous integration: one test case per suspect and rule (--report-format junit=FILE).",
        metavar="FILE",
        python="npucmp.write_junit(result, FILE)",
    )
    baseline: Optional[str] = option(
        None,
        "Earlier report folder. Suspects that it already lists do not cause exit status 1.",
        metavar="REPORT",
        python="npucmp.diff(REPORT, result)",
    )
    color: Optional[str] = option(
        None,
        "Colours. auto (default): on a terminal, subject to NO_COLOR and FORCE_COLOR; always: for `| less -R`.",
        choices=("auto", "always", "never"),
        python="–",
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CompareFields(DumpFields):
    """The options of compare, and of the commands that are built on it."""

    announce: Optional[Callable[[Sequence[str]], None]] = keyword(
        None, "A function that is called with the lines of the plan before tensors are measured."
    )

    rtol: Optional[float] = option(
        None,
        "Relative tolerance: an element agrees if |x-y| ≤ atol + rtol·|y|. It replaces the default limits.",
        least=0,
    )
    atol: Optional[float] = option(
        None,
        "Absolute tolerance in the formula of --rtol. If only one of the two is given, the other is 0.",
        least=0,
    )
    tolerances: Union[StrPath, Sequence[Tolerance], None] = option(
        None, "Own limits: CSV or TOML with metric, limit, dtype, op_type, why.", metavar="FILE"
    )
    trust_statistics: bool = option(False, "Accept equal statistics (max, min, mean, norm) as agreement.")
    noise: Optional[StrPath] = option(
        None, "Run-to-run noise: noise.csv of rerun-diff. Differences within it are not faults.", metavar="FILE"
    )
    strict: bool = option(False, "Exit 1 also if an operator has no partner.")
    align: str = option(
        "auto",
        "Align operators by their names, or by the values that they compute. auto (default): by values if names leave "
        "most operators without a partner; content: always by values; names: never.",
        metavar="[auto|content|names]",
        choices=("auto", "content", "names"),
    )
    explain: Sequence[str] = option(
        (),
        "If values align the runs, list the candidates for the partner of these operators, of either run: "
        "--explain '*conv1*'; repeatable.",
        metavar="OP",
        repeats=True,
    )
    layout: Optional[str] = option(
        None,
        "Sizes of the target's parallel layout, fastest first (tp-cp-ep-dp-pp): --layout tp=2,pp=2, or with another "
        "order --layout order=tp-pp-dp,tp=2,dp=2. Default: found from groups, sends and shapes. For checkpoints also "
        "the order of rotary embedding under any names: --layout target=meta, golden=meta.",
        metavar="SIZES",
    )
    golden_layout: Optional[str] = option(
        None, "Sizes of the golden's parallel layout, if it has several ranks: --golden-layout tp=2.", metavar="SIZES"
    )
    kv_heads: Optional[int] = option(
        None,
        "For checkpoints: number of key and value heads, which are the query groups of fused q, k and v: --kv-heads 8. "
        "Default: config.json, else the number under which most layers agree.",
        metavar="N",
        least=1,
        is_whole=True,
    )
    lora_scale: Optional[float] = option(
        None,
        "For checkpoints: factor of a LoRA update that one side has merged: --lora-scale 2. Default: "
        "adapter_config.json, else the factor under which most layers agree.",
        metavar="X",
    )
    fc1: Optional[str] = option(
        None,
        "For checkpoints: order of gate and up in the fused matrices of the target. Default: gate,up.",
        metavar="[gate,up|up,gate]",
        choices=("gate,up", "up,gate"),
    )
    ranks_apart: bool = option(False, "Compare rank by rank, although the parallel layouts of the runs are unequal.")
    batch_invariance: bool = option(
        False,
        "Print which operators give a token other bits in another batch or token layout (batch_invariance.csv).",
    )
    coverage: float = option(
        1.0,
        "Smallest share of the golden's elements that the target must cover: --coverage 0.8. Default: 1, all elements.",
        metavar="SHARE",
        least=0,
        most=1,
    )
    skip_rules: Sequence[str] = option(
        (), "Do not apply this rule (see --list-rules); repeatable.", "--skip-rule", metavar="NAME", repeats=True
    )
    disk: Union[int, str, None] = option(
        None,
        "Disk space for the next dump of each side: --disk 20GB. With -o, next_dump.json lists the operators to dump "
        "next; with --disk only as many as fit, those nearest to the first suspect first.",
        metavar="SIZE",
    )
    also: Sequence[StrPath] = option(
        (),
        "An additional dump of one side, for example values of a few operators and statistics of all: "
        "--also target=DUMP, --also golden=DUMP, or --also DUMP for the side that it matches; repeatable.",
        metavar="[SIDE=]DUMP",
        repeats=True,
    )
    recompute: str = option(
        "auto",
        "Recompute operators of both runs in float64 from their recorded inputs. auto (default): by numpy, suspected "
        "operators, those whose error only their inputs explain, and a sample of the others; all: every operator, by "
        "torch (pip install -e '.[replay]'); none: no operator.",
        metavar="[none|auto|all]",
        choices=("none", "auto", "all"),
    )
    replay: Optional[str] = option(
        None,
        "Alias: --replay suspects (or without a value) is --recompute auto; --replay all is --recompute all.",
        metavar="[suspects|all]",
        choices=("suspects", "all"),
    )
    truth: Union[StrPath, Mapping[str, Any], None] = option(
        None,
        "A third run of the same network in float32 or float64: --truth fp32_dump. Compares the errors of both runs "
        "against it: is the target worse than the golden, and where first? --truth recompute: float64 of the inputs "
        "that each run recorded.",
        metavar="DUMP|recompute",
    )
    precheck: bool = option(
        True, "Skip the comparability check and its one-line warning (see npucmp precheck).", "--no-precheck",
        python="precheck=False",
    )  # fmt: skip
    journal: Optional[StrPath] = keyword(
        None, "A folder for the checkpoint and the results of steps and ranks; -o DIR on the command line."
    )
    resume: bool = option(
        False,
        "Continue an interrupted comparison: repeat the same command with the same -o DIR. Measured tensors are not "
        "read again.",
        python='journal="report", resume=True',
    )
    reuse: bool = keyword(
        False, "Keep all measurements of steps and ranks in the journal, for further calls with other steps."
    )
    executor: Optional[Executor] = keyword(
        None, "Runs the tasks, for example npucmp.Cluster; None: processes on this machine."
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterFields:
    """The option that runs compare on a cluster."""

    scheduler: Optional[str] = option(
        None,
        "Compare steps and ranks on the workers of a Dask cluster: --scheduler tcp://127.0.0.1:8786, --scheduler "
        "tls://HOST:PORT, or the scheduler's file. All workers must have access to the dumps and -o DIR. Needs pip "
        "install -e '.[dask]'.",
        metavar="ADDRESS",
        python="executor=npucmp.Cluster(ADDRESS, reads, writes)",
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FollowFields:
    """The options of check and compare for a run that is still going: with --follow, npucmp.follow_check,
    npucmp.follow_compare."""

    until: Sequence[str] = option(
        (),
        "With --follow: end as soon as this is found. For check a glob of rule names or a severity: --until 'loss.*', "
        "--until error; for compare a verdict: --until DIVERGED; repeatable.",
        metavar="RULE|VERDICT",
        repeats=True,
    )
    settle: float = option(
        2.0,
        "With --follow: a step is complete if a later step exists on all of its ranks and its files did not change for "
        "so long (default: 2).",
        metavar="SECONDS",
        least=0,
    )
    idle: float = option(
        30.0,
        "With --follow: the last step is complete if the whole dump did not change for so long (default: 30).",
        metavar="SECONDS",
        least=0,
    )
    timeout: float = option(
        600.0,
        "With --follow: end if the dump did not change for so long, or does not exist yet (default: 600).",
        metavar="SECONDS",
        least=0,
    )
    found: Optional[Callable[[StepFindings], None]] = keyword(
        None, "A function that is called with the findings of each complete step."
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ShowFields(DumpFields):
    """The options of show."""

    pattern: Optional[str] = keyword(None, "A glob on operator names; all tensors of matching operators are measured.")
    values: bool = option(False, "Show the values: histogram, extremes, corners.")
    slot: Sequence[str] = option((), "Only these tensors: --slot output:0; repeatable.", metavar="GLOB", repeats=True)
    at: Sequence[str | int] = option(
        (),
        "Show the element at an index: --at 0,3,12, or one number in C order; repeatable.",
        metavar="INDEX",
        repeats=True,
    )


def all_fields() -> Iterator[Any]:
    """Yield the declarations of the options of all commands; those of a feature are in its folder."""
    places = (
        ("workflows", "CompareFields"),
        ("fusion", "FusionFields"),
        ("overflows", "OverflowFields"),
        ("health", "CheckFields"),
        ("comparability", "PrecheckFields"),
        ("recompute", "ReplayFields"),
        ("recompute", "ExtractFields"),
        ("workflows", "ShowFields"),
        ("token_parity", "ParityFields"),
        ("plans", "PlanFields"),
        ("workflows", "DumpFields"),
        ("workflows", "ScreenFields"),
        ("workflows", "ClusterFields"),
        ("workflows", "FollowFields"),
    )
    for room, name in places:
        yield getattr(import_module(f"npucmp.{room}.option_fields"), name)
