"""Declare every option once: its name, type, default, spelling on the command line and meaning.

A dataclass holds the options of a command, and inherits options that commands share. The options of the command line
(commands/options.py), the keyword arguments of the Python function (api_signature.py) and the reference page
(docs/options.md) are made from its fields. Importing this module loads neither numpy nor pandas.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import Limits

if TYPE_CHECKING:
    from os import PathLike

    from npucmp.align.cross_framework.msprobe_mapping import Names
    from npucmp.measure.executor import Executor
    from npucmp.model import Tolerance
    from npucmp.workflows.selectors import Numbers

    StrPath = Union[str, PathLike[str]]
    Progress = Callable[[int, int], None]

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


def spelled(kind: Any) -> Iterator[tuple[Field[Any], Spelling]]:
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


@dataclass(frozen=True)
class DumpFields:
    """The options of every command that reads a dump. In Python a single name will do where several are taken."""

    format: Optional[str] = option(
        None,
        "The dumps' format, instead of recognising it: msprobe, cann, npy, …; npucmp formats lists them.",
        metavar="NAME",
    )
    step: Numbers = option(None, "Only these steps: --step 3, --step 0-9.", metavar="N", check="numbers")
    rank: Numbers = option(None, "Only these ranks: --rank 0, --rank 0,8-15.", metavar="N", check="numbers")
    pair: Sequence[str] = option(
        (),
        "Hold a step or rank of the target against another one of the golden: --pair step1=step0, --pair rank8=rank0; "
        "repeatable.",
        metavar="A=B",
        repeats=True,
        check="pairs",
    )
    include: Sequence[str] = option((), "Only operators whose name fits; repeatable.", metavar="GLOB", repeats=True)
    exclude: Sequence[str] = option((), "No operators whose name fits; repeatable.", metavar="GLOB", repeats=True)
    mapping: Union[StrPath, Names, None] = option(
        None,
        "Target name → golden name, as YAML, TOML or CSV, or msprobe's layer, cell, api or data mapping: "
        "--mapping layer_mapping.yaml.",
        metavar="FILE",
    )
    graph: Sequence[StrPath] = option(
        (),
        "GE graph (text or JSON) or TensorFlow GraphDef (text or binary) of a run, or a tfdbg dump that holds its own, "
        "instead of those beside the dumps; repeatable.",
        metavar="FILE",
        repeats=True,
    )
    jobs: Optional[int] = option(
        None, "Processes to measure with (default: the cores of this process).", least=1, is_whole=True
    )
    progress: Optional[Progress] = keyword(None, "A function that is called with (bytes done, bytes in all).")
    limits: Limits = option(
        Limits(),
        "Read what is refused for its size: --limit tensor_bytes=32T. The refusal names the limit; repeatable.",
        "--limit",
        metavar="NAME=VALUE",
        repeats=True,
        check="limits",
        python='limits=npucmp.Limits().changed(["tensor_bytes=32T"])',
    )


@dataclass(frozen=True)
class ScreenFields:
    """How the command line shows a result and writes its files."""

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
        "Write CSV files with a byte-order mark, by which Excel knows UTF-8.",
        python="npucmp.write_reports(result, DIR, excel=True)",
    )
    xlsx: bool = option(
        False,
        "Write report.xlsx too, with coloured sheets; needs XlsxWriter.",
        python="npucmp.write_reports(result, DIR, xlsx=True)",
    )
    metrics: Optional[str] = option(
        None,
        "Further columns for tensors.csv, comma-separated, as in euclidean,snr,gain; docs/metrics.md lists them.",
        metavar="NAMES",
        python='npucmp.write_reports(result, DIR, metrics="snr,gain")',
    )
    parts: bool = option(
        False,
        "One file for each step and rank instead of tensors.csv: -o report --parts writes report/tensors-0-3.csv …",
        python="npucmp.write_reports(result, DIR, parts=True)",
    )
    parquet: bool = option(
        False,
        "tensors.parquet instead of tensors.csv; needs pyarrow: pip install -e '.[parquet]'.",
        python="npucmp.write_reports(result, DIR, parquet=True)",
    )
    top: int = option(10, "Suspects shown on the terminal.", least=1, is_whole=True, shows_default=True, python="–")
    show_progress: Optional[bool] = option(
        None, "Show progress (default: on a terminal).", "--progress/--no-progress", python="progress=FUNCTION"
    )
    verbose: bool = option(False, "Show also what passes the error on, and every note.", "-v", "--verbose", python="–")
    quiet: bool = option(False, "Print nothing; the exit status tells.", "-q", "--quiet", python="–")
    json: bool = option(False, "Print summary.json on stdout, and nothing else.", python="result.to_dict()")
    junit: Optional[str] = option(
        None,
        "Write JUnit XML for continuous integration: a case per suspect and rule.",
        metavar="FILE",
        python="npucmp.write_junit(result, FILE)",
    )
    baseline: Optional[str] = option(
        None,
        "A folder that -o wrote before: what it accuses already does not make the exit status 1.",
        metavar="REPORT",
        python="npucmp.diff(REPORT, result)",
    )
    color: Optional[str] = option(
        None,
        "Colours: auto (default) on a terminal, by NO_COLOR and FORCE_COLOR; always for `| less -R`.",
        choices=("auto", "always", "never"),
        python="–",
    )


@dataclass(frozen=True)
class CompareFields(DumpFields):
    """The options of compare, and of the commands that are built on it."""

    rtol: Optional[float] = option(None, "Decide by |x-y| ≤ atol + rtol·|y| instead of the default rule.", least=0)
    atol: Optional[float] = option(None, "See --rtol.", least=0)
    tolerances: Union[StrPath, Sequence[Tolerance], None] = option(
        None, "Rules of your own: CSV or TOML of metric, limit, dtype, op_type, why.", metavar="FILE"
    )
    trust_statistics: bool = option(False, "Let equal statistics (max, min, mean, norm) pass for agreement.")
    noise: Optional[StrPath] = option(
        None, "noise.csv of rerun-diff: what differs no more than reruns do is no fault.", metavar="FILE"
    )
    strict: bool = option(False, "Exit 1 also when an operator has no partner.")
    layout: Optional[str] = option(
        None,
        "Sizes of the target's parallel layout: --layout tp=2,pp=2, --layout order=tp-pp-dp,tp=2,dp=2. Default: found "
        "by groups, sends and shapes. The default order is tp-cp-ep-dp-pp, fastest first.",
        metavar="SIZES",
    )
    golden_layout: Optional[str] = option(
        None, "Sizes of the golden's parallel layout, if it has several ranks too: --golden-layout tp=2.",
        metavar="SIZES",
    )  # fmt: skip
    ranks_apart: bool = option(
        False, "Compare rank by rank also when the parallel layouts of the two runs are unequal."
    )
    coverage: float = option(
        1.0,
        "Accept a target that covers at least this share of the golden's elements: --coverage 0.8. Default: 1, all of "
        "them.",
        metavar="SHARE",
        least=0,
        most=1,
    )
    skip_rules: Sequence[str] = option(
        (), "Judge without this rule (--list-rules); repeatable.", "--skip-rule", metavar="NAME", repeats=True
    )
    disk: Union[int, str, None] = option(
        None,
        "How much the next dump may take on a side: --disk 20GB. next_dump.json asks for what fits, nearest to the "
        "first root first.",
        metavar="SIZE",
    )
    also: Sequence[StrPath] = option(
        (),
        "A further dump of a side, such as values of a few operators beside statistics of all: --also target=DUMP, "
        "--also golden=DUMP, or --also DUMP for the side that it fits; repeatable.",
        metavar="[SIDE=]DUMP",
        repeats=True,
    )
    recompute: str = option(
        "auto",
        "Recompute operators of both runs in float64 from their own inputs: auto, those that are suspected or excused, "
        "by numpy; all, every operator, by torch (pip install -e '.[replay]'); none, no operator. Default: auto.",
        metavar="[none|auto|all]",
        choices=("none", "auto", "all"),
    )
    replay: Optional[str] = option(
        None,
        "Another name: --replay suspects (or no value) is --recompute auto, --replay all is --recompute all.",
        metavar="[suspects|all]",
        choices=("suspects", "all"),
    )
    precheck: bool = option(
        True, "Do not say in one line that the runs are not comparable (npucmp precheck).", "--no-precheck",
        python="precheck=False",
    )  # fmt: skip
    journal: Optional[StrPath] = keyword(
        None, "A folder for the checkpoint and for results of steps and ranks; -o DIR on the command line."
    )
    resume: bool = option(
        False,
        "Go on with an interrupted comparison: the same command, the same -o DIR. What it measured is not read again.",
        python='journal="report", resume=True',
    )
    executor: Optional[Executor] = keyword(None, "Who does the tasks, as npucmp.Cluster; None: processes here.")


@dataclass(frozen=True)
class ClusterFields:
    """Where the command line compares."""

    scheduler: Optional[str] = option(
        None,
        "Let the workers of a Dask cluster compare steps and ranks: --scheduler tcp://127.0.0.1:8786, --scheduler "
        "tls://HOST:PORT, or the scheduler's file. All of them see the dumps and -o DIR. Needs pip install -e "
        "'.[dask]'.",
        metavar="ADDRESS",
        python="executor=npucmp.Cluster(ADDRESS, reads, writes)",
    )


@dataclass(frozen=True)
class FusionFields(CompareFields):
    """The options of fusion-diff."""

    on_graph: Sequence[StrPath] = option((), "Graph of the run with fusion; repeatable.", metavar="FILE", repeats=True)
    off_graph: Sequence[StrPath] = option(
        (), "Graph of the run without fusion; repeatable.", metavar="FILE", repeats=True
    )


@dataclass(frozen=True)
class OverflowFields(DumpFields):
    """The options of overflow."""

    golden: Optional[StrPath] = option(None, "A run that is right, to hold every event against.", metavar="DUMP")
    headroom: Optional[float] = option(None, "List tensors closer to their type's limit.", metavar="BITS", least=0)


@dataclass(frozen=True)
class CheckFields(DumpFields):
    """The options of check. Globs are over rules; None leaves a choice to the file of --rules."""

    only: Sequence[str] = option((), "Only rules whose name fits; repeatable.", metavar="GLOB", repeats=True)
    skip: Sequence[str] = option((), "No rules whose name fits; repeatable.", metavar="GLOB", repeats=True)
    phase: Optional[str] = option(
        None,
        "What the run is; auto (default): training if it has a backward pass.",
        choices=("auto", "train", "eval"),
    )
    start: Optional[str] = option(
        None,
        "How its weights started; auto (default): fresh if those of all norms are constant.",
        choices=("auto", "fresh", "trained"),
    )
    fail_on: Optional[str] = option(
        None,
        "The least severity that makes the exit status 1 (default: warning).",
        choices=("error", "warning", "hint"),
    )
    loss: Optional[StrPath] = option(
        None,
        "What the training logged: CSV, JSON lines, trainer_state.json, a text log, event files.",
        metavar="FILE",
    )
    column: str = option("", "Which column of --loss the loss is.", metavar="NAME")
    rules: Optional[StrPath] = option(None, "Settings: limits, severities, what is expected; TOML.", metavar="FILE")
    plugin: Sequence[StrPath] = option(
        (), "A Python file with rules of your own, which is run; repeatable.", metavar="FILE", repeats=True
    )
    plugins: bool = option(True, "Ask the rules of installed packages too (default: yes).", "--plugins/--no-plugins")


@dataclass(frozen=True)
class PrecheckFields(DumpFields):
    """The options of precheck. Files beside the dumps are given for target and golden."""

    env: Optional[tuple[str, str]] = option(
        None,
        "Versions and environment of both: zips of msprobe's config_check, or text of `pip freeze` or `env`.",
        metavar="T G",
        words=2,
    )
    config: Optional[tuple[str, str]] = option(
        None, "Hyper-parameters of both: YAML, JSON, TOML, or text with --name value.", metavar="T G", words=2
    )
    curve: Optional[tuple[str, str]] = option(
        None,
        "Logs of both trainings: CSV, JSON lines, trainer_state.json, text, TensorBoard events: where do they part?",
        metavar="T G",
        words=2,
    )
    repeat_curve: Optional[str] = option(
        None, "Log of a second golden run: what differs no more is no fault.", metavar="FILE"
    )
    column: str = option("", "The figure of the logs (default: the training loss).", metavar="NAME")
    repeat: Optional[StrPath] = option(None, "A dump of TARGET run again: does it give the same bits?", metavar="DUMP")
    rules: Optional[StrPath] = option(
        None, "Settings: TOML with skip, and severities and ignored names of rows.", metavar="FILE"
    )
    mixed: bool = option(False, "Mixed precision against full precision is meant.")
    only: Sequence[str] = option((), "Only rows whose name fits; repeatable.", metavar="GLOB", repeats=True)
    skip: Sequence[str] = option((), "No rows whose name fits; repeatable.", metavar="GLOB", repeats=True)
    strict: bool = option(False, "Exit 1 also for what wants an explanation.")


_MEMORY = "Memory that {} may take (default 8192)."


@dataclass(frozen=True)
class ReplayFields(DumpFields):
    """The options of replay."""

    engine: Optional[str] = option(None, "Replay with this engine alone: torch or numpy.", metavar="NAME")
    golden: Optional[StrPath] = option(
        None, "Another run of the network, replayed too: which of the two is wrong?", metavar="DUMP"
    )
    budget: float = option(1.0, "Multiply every limit by X.", metavar="X", least=0, is_open=True)
    budget_from: Optional[StrPath] = option(
        None, "A clean run: its ratios of each kind of operator are what is due.", metavar="DUMP"
    )
    limit_memory: Optional[int] = option(
        None, _MEMORY.format("one operator"), metavar="MB", least=1, is_whole=True, python="limit_memory=BYTES"
    )
    strict: bool = option(False, "Exit 2 also when an output could not be replayed.")


@dataclass(frozen=True)
class ExtractFields(DumpFields):
    """The options of extract."""

    smallest: bool = option(
        False, "Only the fewest rows that still show the fault, where rows do not depend on each other."
    )
    limit_memory: Optional[int] = option(
        None, _MEMORY.format("it"), metavar="MB", least=1, is_whole=True, python="limit_memory=BYTES"
    )


@dataclass(frozen=True)
class ShowFields(DumpFields):
    """The options of show."""

    pattern: Optional[str] = keyword(None, "A glob on operators' names: all tensors of those that fit are measured.")
    values: bool = option(False, "Look at the values: histogram, extremes, corners.")
    slot: Sequence[str] = option((), "Only these tensors: --slot output:0; repeatable.", metavar="GLOB", repeats=True)
    at: Sequence[str | int] = option(
        (),
        "The element at an index: --at 0,3,12, or one number in C order; repeatable.",
        metavar="INDEX",
        repeats=True,
    )


@dataclass(frozen=True)
class PlanFields:
    """The options of plan."""

    side: str = option("target", "target or golden.", metavar="SIDE", shows_default=True)
    steps: Numbers = option(None, "Which steps, from 0: --steps 3, --steps 0-2.", metavar="N")
    ranks: Numbers = option(None, "Which ranks: --ranks 0,8-15 (default: all).", metavar="N")
    ops: Sequence[str] = option((), "Only operators whose name fits; repeatable.", metavar="GLOB", repeats=True)
    kind: Optional[str] = option(
        None,
        "What is recorded of tensors: values, statistics or md5.",
        values={
            "--values": ("values", "Record values of tensors."),
            "--statistics": ("statistics", "Record largest, smallest, mean, norm."),
            "--md5": ("md5", "Record checksums."),
        },
        python='kind="values"',
    )
    before: Optional[StrPath] = option(
        None,
        "An earlier dump of the same network, statistics will do: tells the size, and which operators --ops are.",
        "--from",
        metavar="DUMP",
        python="before=DUMP",
    )
    disk: int | str | None = option(None, "With --from: ask for what fits, --disk 20GB.", metavar="SIZE")
    model: str = option("model", "Of acl: the offline model's file, without .om.", metavar="NAME")
    format: Optional[str] = option(
        None,
        "The dumps' format, instead of recognising it: msprobe, cann, npy, …; npucmp formats lists them.",
        metavar="NAME",
    )
    limits: Limits = option(
        Limits(),
        "Read what is refused for its size: --limit tensor_bytes=32T. The refusal names the limit; repeatable.",
        "--limit",
        metavar="NAME=VALUE",
        repeats=True,
        check="limits",
        python='limits=npucmp.Limits().changed(["tensor_bytes=32T"])',
    )


KINDS = (
    CompareFields,
    FusionFields,
    OverflowFields,
    CheckFields,
    PrecheckFields,
    ReplayFields,
    ExtractFields,
    ShowFields,
    PlanFields,
    DumpFields,
    ScreenFields,
    ClusterFields,
)
