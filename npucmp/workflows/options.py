"""The options of a comparison with checks of their values, and the keyword arguments of a workflow.

The fields of the options become keyword arguments of a workflow, so that editors complete them, type checkers find
wrong names, and `help` lists them. Each is declared once, in the options:

    @of_two(Options)
    def compare(target: StrPath, golden: StrPath, options: Options) -> Report: ...

    compare("npu", "gpu", include="*softmax*", jobs=4)
    compare("npu", "gpu", Options(jobs=4), include="*softmax*")
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, AbstractSet, Any, Callable, Mapping, Optional

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import UsageError, nearest
from npucmp.judge.tolerance import DEFAULT_RULES, Tolerances, load_noise, load_tolerances
from npucmp.model import Tolerance
from npucmp.model.result import Result
from npucmp.workflows.decisive_options import settings_of
from npucmp.workflows.option_fields import CompareFields, StrPath, meaning
from npucmp.workflows.select_runs import RunSelection

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


RECOMPUTE = "recompute"  # the truth that is computed, not recorded


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
        if isinstance(self.truth, (str, PathLike)) and self.truth != RECOMPUTE:
            dumps = (*dumps, self.truth)
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
        for name in passed:
            if name not in declared and name not in plain.parameters:
                near = nearest(name, declared, 1)
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
    called.__doc__ = "\n\n    ".join(
        filter(None, [function.__doc__, "\n    ".join(f"{one.name}  {meaning(one)}" for one in fields(kind))])
    )
    return called
