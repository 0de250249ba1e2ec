"""Errors in the words of Python: "choose one by step= and rank=" for "choose one by --step and --rank"."""

from __future__ import annotations

import re
from functools import cache, wraps
from typing import Any, Callable

from npucmp.errors import NpucmpError
from npucmp.workflows.option_fields import all_fields, flag, spell_options

_COMMAND = r"\bnpucmp [a-z][a-z-]*(?: (?:--[a-z][a-z-]*|[A-Z]+\b))+"  # a command line to type, which keeps its options
_OPTION = re.compile(_COMMAND + r"|(?<![\w-])(--[a-z][a-z-]*[a-z])(?![\w-])(?:=| (?=[A-Z]+\b|['\"]))?")


def in_python(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function of the library whose errors name its arguments and no options of the command line."""

    @wraps(function)
    def called(*args: Any, **passed: Any) -> Any:
        try:
            return function(*args, **passed)
        except NpucmpError as error:
            error.args = tuple(reworded(one) if isinstance(one, str) else one for one in error.args)
            if isinstance(vars(error).get("because"), str):
                vars(error)["because"] = reworded(vars(error)["because"])
            raise

    called.__module__, called.__qualname__ = "npucmp", name  # by which it is pickled
    return called


def reworded(text: str) -> str:
    """Return a message with the arguments of Python in place of options."""
    return _OPTION.sub(lambda found: _arguments().get(found[1] or "", found[0]), text)


@cache
def _arguments() -> dict[str, str]:
    """Return the argument of each option that has one, as "step=" for --step."""
    found: dict[str, str] = {}
    for kind in all_fields():
        for one, spelling in spell_options(kind):
            known = {word: f"{one.name}={value!r}" for word, (value, _) in spelling.values.items()}
            if "(" not in spelling.python and spelling.python != "–":
                known.update(dict.fromkeys(spelling.flags or (flag(one.name),), f"{one.name}="))
            found.update((word, words) for word, words in known.items() if word.startswith("--"))
    return found
