"""The options of the command line, made from the declarations in workflows/option_fields.py."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Optional, TypeVar

import click

from npucmp.workflows.option_fields import Spelling, flag, spell_options

SHARED = (  # of the commands that compare two dumps
    "output excel xlsx include exclude mapping graph step rank pair format rtol atol tolerances trust_statistics "
    "strict coverage skip_rules metrics jobs top show_progress verbose json report_format junit "
    "baseline color quiet limits"
)
Command = TypeVar("Command", bound=Callable[..., Any])


def _limits(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Any:
    from npucmp.dump.limits import Limits

    return Limits().changed(texts)


def _numbers(_: click.Context, option: click.Parameter, text: Optional[str]) -> Optional[str]:
    if text is not None:
        from npucmp.workflows import selectors

        selectors.parse_numbers(option.name or "", text)
    return text


def _pairs(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    if texts:
        from npucmp.workflows import selectors

        selectors.partners(texts)
    return texts


_CHECKS: dict[str, Callable[..., Any]] = {"limits": _limits, "numbers": _numbers, "pairs": _pairs}


def declare_options(*kinds: Any, only: str = "", without: str = "") -> Callable[[Command], Command]:
    """Return a decorator that adds to a command the options that dataclasses declare: all, `only` these names, or all
    `without` these names."""

    def decorated(command: Command) -> Command:
        found = [(one.name, one.default, spelling) for kind in kinds for one, spelling in spell_options(kind)]
        wanted, left = only.split(), without.split()
        if wanted:
            found = sorted((one for one in found if one[0] in wanted), key=lambda one: wanted.index(one[0]))
        for name, default, spelling in reversed([one for one in found if one[0] not in left]):
            for option in reversed([*_options(name, default, spelling)]):
                command = option(command)
        return command

    return decorated


def drop_options(kind: Any, parameters: dict[str, Any], switch: str) -> None:
    """Remove the options of a dataclass from the parameters of a command. Raises UsageError if one was given, because
    it needs `switch`."""
    for one, spelling in spell_options(kind):
        if parameters.pop(one.name) != one.default:
            from npucmp.errors import UsageError

            raise UsageError(f"{(spelling.flags or (flag(one.name),))[0]} needs {switch}")


def _options(name: str, default: Any, one: Spelling) -> Iterator[Callable[[Any], Any]]:
    """Yield the click options of a field: one, or one for each of its values."""
    for word, (value, help_) in one.values.items():
        yield click.option(word, name, flag_value=value, help=help_)
    if one.values:
        return
    flags = one.flags or (flag(name),)
    more: dict[str, Any] = {"help": one.help, "metavar": one.metavar or None, "required": one.required}
    if isinstance(default, bool) and len(flags) == 1 and flags[0].startswith("--no-"):
        more.update(flag_value=False, default=True)
    elif "/" in flags[0]:
        more.update(default=default)
    elif isinstance(default, bool):
        more.update(is_flag=True)
    else:
        more.update(type=_type(one), multiple=one.repeats, nargs=one.words, show_default=one.shows_default)
        if default not in (None, ()) and one.check != "limits":
            more.update(default=default)
    if one.check:
        more.update(callback=_CHECKS[one.check])
    yield click.option(*flags, name, cls=EnvironmentOption, **more)


class EnvironmentOption(click.Option):
    """An option whose environment variable is named by its flag: NPUCMP_COMPARE_SKIP_RULE for --skip-rule of
    compare."""

    def resolve_envvar_value(self, ctx: click.Context) -> Optional[str]:
        from npucmp.commands.settings import variable_names

        name = next((one for one in variable_names(ctx.auto_envvar_prefix, self) if os.environ.get(one)), None)
        if name is None:
            return super().resolve_envvar_value(ctx)
        value = os.environ[name]
        return str(not click.BOOL.convert(value, self, ctx)) if self.flag_value is False else value


def _type(one: Spelling) -> Any:  # of click.option
    if one.choices:
        return click.Choice(one.choices)
    if one.least is None:
        return None
    if one.is_whole:
        return click.IntRange(int(one.least))
    return click.FloatRange(one.least, one.most, min_open=one.is_open)
