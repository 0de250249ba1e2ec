"""Add the fields of a workflow's options to its keyword arguments, so that editors complete them, type checkers find
wrong names, and `help` lists them. Each is declared once, in the options.

    @of_two(Options)
    def compare(target: StrPath, golden: StrPath, options: Options) -> Report: ...

    compare("npu", "gpu", include="*softmax*", jobs=4)
    compare("npu", "gpu", Options(jobs=4), include="*softmax*")
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable, Optional

from npucmp.errors import UsageError
from npucmp.model.result import Result
from npucmp.workflows.option_fields import meaning
from npucmp.workflows.settings import settings_of

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
    def called(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in declared and name not in plain.parameters:
                near = difflib.get_close_matches(name, declared, 1)
                words = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{function.__name__}() has no argument {name}{words}")
        bound = plain.bind(*args, **{name: value for name, value in given.items() if name not in declared})
        known = bound.arguments.get(options.name)
        if not isinstance(known, (kind, type(None))):
            wrong = (
                hint
                or f"{function.__name__}(): {str(known)[:80]!r} are no {kind.__name__}; name options, as in jobs=2"
            )
            raise UsageError(wrong)
        more = {name: value for name, value in given.items() if name in declared}
        bound.arguments[options.name] = replace(known or kind(), **more)
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
    called.__doc__ = "\n\n    ".join(filter(None, [function.__doc__, _words(kind)]))
    return called


def _words(kind: Any) -> str:
    """Return a line on each option."""
    return "\n    ".join(f"{one.name}  {meaning(one)}" for one in fields(kind))
