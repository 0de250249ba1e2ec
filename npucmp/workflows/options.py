"""The options of a comparison with checks of their values, the options that decide a verdict as summary.json stores
them, and the keyword arguments of a workflow.

Two reports are compared by the options that decide a verdict. Options that name data (golden, graph, also), control the
execution (jobs, resume) or add output (metrics, disk) decide nothing. An option at its default is omitted. A file is
compared by its content.

The fields of the options become keyword arguments of a workflow, so that editors complete them, type checkers find
wrong names, and `help` lists them. Each is declared once, in the options:

    @of_two(Options)
    def compare(target: StrPath, golden: StrPath, options: Options) -> Report: ...

    compare("npu", "gpu", include="*softmax*", jobs=4)
    compare("npu", "gpu", Options(jobs=4), include="*softmax*")
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, AbstractSet, Any, Mapping, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, UsageError
from npucmp.judge.tolerance import DEFAULT_RULES, Tolerances, load_noise, load_tolerances
from npucmp.model import Tolerance
from npucmp.workflows.option_fields import CompareFields
from npucmp.workflows.select_runs import RunSelection, StrPath
from npucmp.workflows.selectors import parse_numbers

if TYPE_CHECKING:
    from npucmp.model.saved_report import SavedReport
import difflib
import inspect
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Callable

from npucmp.model.result import Result
from npucmp.workflows.option_fields import meaning

if TYPE_CHECKING:
    from typing import ParamSpec, Protocol, TypeVar, overload

    P = ParamSpec("P")
    A = TypeVar("A", contravariant=True)
    B = TypeVar("B", contravariant=True)
    C = TypeVar("C", contravariant=True)
    O = TypeVar("O", contravariant=True)  # noqa: E741
    R = TypeVar("R", covariant=True)

    class OfOne(Protocol[A, O, P, R]):
        @overload
        def __call__(self, dump: A, options: Optional[O], **more: Any) -> R: ...
        @overload
        def __call__(self, dump: A, *args: P.args, **more: P.kwargs) -> R: ...

    class OfTwo(Protocol[A, B, O, P, R]):
        @overload
        def __call__(self, target: A, golden: B, options: Optional[O], **more: Any) -> R: ...
        @overload
        def __call__(self, target: A, golden: B, *args: P.args, **more: P.kwargs) -> R: ...

    class OfThree(Protocol[A, B, C, O, P, R]):
        @overload
        def __call__(self, dump: A, what: B, folder: C, options: Optional[O], **more: Any) -> R: ...
        @overload
        def __call__(self, dump: A, what: B, folder: C, *args: P.args, **more: P.kwargs) -> R: ...


@dataclass(frozen=True)
class Options(CompareFields, RunSelection):
    """The options of a comparison."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.coverage <= 1.0:
            raise UsageError(f"coverage is {self.coverage!r}, it must be a share from 0 to 1")
        for name in ("rtol", "atol"):
            bound = getattr(self, name)
            if bound is not None and not bound >= 0.0:  # also refuses NaN
                raise UsageError(f"{name} is {bound!r}, it must be a number from 0")

    def exclusion_words(self) -> str:
        """Return the options by which the user excluded steps and ranks, "" if there are none."""
        selection = ((name, getattr(self, name)) for name in ("step", "rank"))
        return " and ".join(f"--{name} {value}" for name, value in selection if value is not None)

    def context(self, *dumps: StrPath) -> ReadContext:
        if not self.also:
            return super().context(*dumps)
        from npucmp.workflows.extra_dumps import ExtraDump

        return super().context(*dumps, *(ExtraDump.of(further).path for further in self.also))

    def decides(self) -> Tolerances:
        """Return the tolerances that the options set."""
        table = self.tolerances
        if isinstance(table, (str, PathLike)):
            table = load_tolerances(Path(table))
        noise = load_noise(Path(self.noise)) if self.noise is not None else {}
        return Tolerances(
            tuple(table or ()), self.rtol is not None or self.atol is not None, self.trust_statistics, noise
        )

    def bytes_on_disk(self) -> Optional[int]:
        """Return the bytes that the next dump may take."""
        if self.disk is None:
            return None
        from npucmp.workflows.selectors import in_bytes

        return in_bytes("disk", self.disk)


def rules_of(tolerances: Tolerances, options: Options, dtypes: AbstractSet[str]) -> tuple[Tolerance, ...]:
    """Return the rules that apply to tensors of these types."""
    if tolerances.closeness:
        limit = f"|x-y| ≤ {options.atol or 0.0:g} + {options.rtol or 0.0:g}·|y| everywhere"
        return (Tolerance("mismatch_ratio", 0.0, why=f"{limit}: --rtol and --atol were given"),)
    return tuple(row for row in (*tolerances.table, *DEFAULT_RULES) if row.dtype in ("", *dtypes))


def with_sources(result: Result, sources: Mapping[str, str]) -> Result:
    """Return a result whose own rules name the source of an option that sets a tolerance: {"rtol": "npucmp.toml"}."""
    found = [f"--{name} of {sources[name]}" for name in ("rtol", "atol", "tolerances", "noise") if name in sources]
    rules = getattr(result, "rules", ())
    if not found or not rules:
        return result
    words = f" ({', '.join(found)})"
    more: Any = {"rules": tuple(row if row in DEFAULT_RULES else replace(row, why=row.why + words) for row in rules)}
    return replace(result, **more)


KEY = "settings"  # of summary.json
SCOPE = frozenset(("step", "rank", "pair"))  # options in which merged reports may differ
_NOT_DECISIVE = frozenset(
    (
        "format graph jobs progress limits disk also replay precheck journal resume executor strict golden on_graph "
        "off_graph explain loss column env config curve repeat_curve repeat limit_memory until settle idle timeout "
        "found reuse"
    ).split()
)
_SPELLED = {"skip_rules": "skip-rule"}
_SWITCHES = frozenset(("--trust-statistics", "--noise"))  # in `argv`; reports of earlier versions have nothing else
_SHOWN = 60  # characters of a value in a message


def settings_of(options: Any) -> dict[str, Any]:
    """Return the options that decide a verdict and are not at their default, by their names on the command line."""
    found = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name in _NOT_DECISIVE or value is None or value == one.default or value == ():
            continue
        found[_SPELLED.get(one.name, one.name.replace("_", "-"))] = _plain(one.name, value)
    return found


def _plain(name: str, value: Any) -> Any:
    """Return a value for JSON, equal for all spellings of the same choice."""
    try:
        if name in ("step", "rank"):
            return [list(ends) for ends in sorted(parse_numbers(name, value).ranges)]
        if name == "tolerances":
            rows = load_tolerances(Path(value)) if isinstance(value, (str, PathLike)) else value
            return _digest([(row.metric, row.limit, row.dtype, row.op_type) for row in rows])
        if name == "noise":
            return _digest(sorted(load_noise(Path(value)).items()))
    except NpucmpError:  # the file no longer exists
        return str(value)
    if name == "mapping" and isinstance(value, Mapping):
        return _digest(sorted(value.items()))
    if isinstance(value, PathLike) or (isinstance(value, str) and name in ("mapping", "rules", "budget_from")):
        return _content(Path(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sorted(_content(Path(one)) if name == "plugin" else str(one) for one in value)
    return value if isinstance(value, (bool, int, float, str)) else _digest(repr(value))


def _content(path: Path) -> str:
    """Return the hash of a file, or the name of a folder."""
    try:
        return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError:
        return path.name


def _digest(value: Any) -> str:
    return f"sha256 {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]}"


def other_settings(before: SavedReport, after: SavedReport) -> str:
    """Describe the first deciding option in which two reports differ; "" if their options are equal."""
    here, there = _shared_settings(before, after), _shared_settings(after, before)
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            return f"{_words(name, here)} in {before.path}, {_words(name, there)} in {after.path}"
    return ""


def require_settings(baseline: SavedReport, kind: Any, parameters: Mapping[str, Any]) -> None:
    """Raise UsageError if a report was made with other deciding options than `parameters`, by name, of this kind."""
    from npucmp.model.saved_report import SavedReport

    options = kind(**{one.name: parameters[one.name] for one in fields(kind) if one.name in parameters})
    stored = baseline.summary.get(KEY)
    this = SavedReport("this run", baseline.command, {KEY: settings_of(options)}, {}, {})
    if isinstance(stored, dict) and (words := other_settings(baseline, this)):
        raise UsageError(refusal(words))


def refusal(words: str) -> str:
    """Return the sentence for two reports that differ in an option."""
    return f"the rules differ: {words}; make both reports with the same options"


def _shared_settings(one: SavedReport, other: SavedReport) -> dict[str, Any]:
    """Return the settings of a report; if one of the reports is of an earlier version, the settings that both versions
    recorded."""
    ours, theirs = one.summary.get(KEY), other.summary.get(KEY)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours
    return _from_rules(one.summary)


def _from_rules(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings derived from the rules, notes and command line of a report."""
    rules, notes, words = (summary.get(name) for name in ("rules", "notes", "argv"))
    own = [row for row in rules if _is_own(row)] if isinstance(rules, list) else []
    found: dict[str, Any] = {"rules": [str(row.get("why")) or str(row) for row in own]} if own else {}
    for note in notes if isinstance(notes, list) else ():
        if str(note).startswith("judged without"):
            found["skip-rule"] = str(note)
    switches = {str(word).partition("=")[0] for word in words} if isinstance(words, list) else set()
    return {**found, **{word[2:]: True for word in switches & _SWITCHES}}


def _is_own(row: Any) -> bool:
    """Return whether a row of rules is not a default rule of npucmp."""
    return isinstance(row, dict) and row.get("why") not in {rule.why for rule in DEFAULT_RULES}


def _words(name: str, settings: Mapping[str, Any]) -> str:
    value, option = settings.get(name), f"--{name[:_SHOWN]}"
    if name not in settings:
        return f"no {option}" if name != "rules" else "no rules of a user"
    if name == "rules":
        return f"rules: {'; '.join(map(str, value if isinstance(value, list) else [value]))[:_SHOWN]}"
    if value is True:
        return option
    if name in ("step", "rank") and isinstance(value, list):
        value = ",".join("-".join(map(str, dict.fromkeys(ends))) for ends in value if isinstance(ends, list))
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{option} {text[:_SHOWN]}"


def of_one(options: Callable[P, O], hint: str = "") -> Callable[[Callable[[A, O], R]], OfOne[A, O, P, R]]:
    """Decorate a workflow of one argument and options; `hint` is the message if two arguments are given."""
    return lambda function: _with_keywords(function, options, hint)


def of_two(options: Callable[P, O]) -> Callable[[Callable[[A, B, O], R]], OfTwo[A, B, O, P, R]]:
    """Decorate a workflow of two arguments and options."""
    return lambda function: _with_keywords(function, options)


def of_three(
    options: Callable[P, O],
) -> Callable[[Callable[[A, B, C, O], R]], OfThree[A, B, C, O, P, R]]:
    """Decorate a workflow of three arguments and options."""
    return lambda function: _with_keywords(function, options)


def _with_keywords(function: Callable[..., Any], kind: Any, hint: str = "") -> Any:
    """Return the function with the signature and the descriptions of its options."""
    declared = {one.name: one for one in fields(kind)}
    plain = inspect.signature(function)
    *paths, options = plain.parameters.values()
    plain = plain.replace(parameters=[*paths, options.replace(default=None)])

    @wraps(function)
    def called(*args: Any, **passed: Any) -> Any:
        import numpy as np

        for name in passed:
            if name not in declared and name not in plain.parameters:
                near = difflib.get_close_matches(name, declared, 1)
                words = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{function.__name__}() has no argument {name}{words}")
        bound = plain.bind(*args, **{name: value for name, value in passed.items() if name not in declared})
        known = bound.arguments.get(options.name)
        if not isinstance(known, (kind, type(None))):
            wrong = (
                hint or f"{function.__name__}(): {str(known)[:80]!r} are no {kind.__name__}; name options, as in jobs=2"
            )
            raise UsageError(wrong)
        more = {name: value for name, value in passed.items() if name in declared}
        bound.arguments[options.name] = replace(known or kind(), **more)
        with np.errstate(all="ignore"):  # dumps may contain any values
            result = function(*bound.args, **bound.kwargs)
        if not isinstance(result, Result):
            return result
        return replace(result, settings=settings_of(bound.arguments[options.name]))

    keywords = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for one in declared.values()
    ]
    last = options.replace(default=None, annotation=f"Optional[{kind.__name__}]")
    vars(called)["__signature__"] = plain.replace(parameters=[*paths, last, *keywords])
    vars(called)["options"] = kind
    called.__doc__ = "\n\n    ".join(filter(None, [function.__doc__, _api_signature_words(kind)]))
    return called


def _api_signature_words(kind: Any) -> str:
    """Return a line on each option."""
    return "\n    ".join(f"{one.name}  {meaning(one)}" for one in fields(kind))
