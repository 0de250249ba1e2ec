"""The command line: a click group, and the only code that prints an error or exits.

The exit status of a result is `Result.exit_status` (model/result.py); an error of npucmp exits with 2.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn, Optional

import click

from npucmp.errors import UsageError, nearest
from npucmp.presenter import LANGUAGE, is_chinese
from npucmp.version import __version__

LANGUAGES = ("en", "zh")

COMMANDS = {  # name → module, imported only for a call of the command or its help
    "compare": ("commands.compare", "Find the operator that diverged first, and test whether it is the cause."),
    "check": ("health.command", "Check the health of one run: weights, gradients, activations, modes, loss, data."),
    "overflow": ("overflows.command", "Find the operators that produce NaN, Inf or saturation, and trace the spread."),
    "fusion-diff": ("fusion.command", "Compare fused operators with their unfused chains."),
    "rerun-diff": ("reruns.command", "Find operators that produce different bits from the same input bits."),
    "replay": ("recompute.command", "Recompute operators in float64 from their own inputs; needs no golden run."),
    "precheck": ("comparability.command", "Check whether two runs are comparable: network, data, weights, settings."),
    "parity": (
        "token_parity.command",
        "Compare log-probabilities of two engines: first bad token, class of the cause.",
    ),
    "merge": ("commands.reports", "Merge reports that compare wrote on several machines."),
    "plan": ("plans.command", "Write the files, script lines and commands for a dump that answers a question."),
    "extract": ("recompute.extract_command", "Write one operator of a dump as a case that runs without npucmp."),
    "ticket": ("tickets.command", "Write a report as one page or an archive for a vendor's engineers."),
    "diff": ("commands.reports", "Compare two reports: new, gone and unchanged findings."),
    "show": ("commands.show", "Show the contents of a dump: runs, operators, tensors, statistics."),
    "rule": (
        "commands.explain",
        "Explain the rules: when each applies, its limits, and its constants with their sources.",
    ),
    "columns": ("commands.explain", "Explain the columns of the tables of a report."),
    "formats": ("commands.show", "List the dump formats by producer, and the path to pass to npucmp."),
}


class _ReaderGone(Exception):
    """The reader of our output is gone. Not a BrokenPipeError: click would return 1, the exit status for dumps that
    differ."""


class _SignalReceived(SystemExit):
    """The process was ended by a signal. Not an Exception, so that no code takes it for an error of a dump. Its
    arguments are messages."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.code = self.status = 128 + number  # as a shell reports it


class LazyGroup(click.Group):
    """A group that loads a command when it is needed, so that --help imports no command."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise _ReaderGone from None

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS, 1)
            context.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        name, command, rest = super().resolve_command(context, args)
        if command is not None and not context.resilient_parsing and not {"-h", "--help", "--no-config"} & {*rest}:
            self._read_settings(context, str(name), command, rest)
        return name, command, rest

    def _read_settings(self, context: click.Context, name: str, command: click.Command, words: list[str]) -> None:
        """Set the defaults of a command from the settings file, unless --no-config was given before the command."""
        if context.params.get("no_config"):
            return
        from npucmp.commands.settings import default_map, find_settings

        settings = find_settings(words)
        if settings.note:
            click.echo(f"npucmp: note: {settings.note}", err=True)
        context.default_map = {name: default_map(settings, name, command.params)}
        context.obj = settings.path

    def get_command(self, context: click.Context, name: str) -> Optional[click.Command]:
        if name not in COMMANDS:
            return None
        found: Any = getattr(importlib.import_module(f"npucmp.{COMMANDS[name][0]}"), name.replace("-", "_"))
        assert isinstance(found, click.Command)
        if all(one.name != "no_config" for one in found.params):
            found.params.append(
                click.Option(
                    ["--no-config"], is_flag=True, expose_value=False, help="Do not read npucmp.toml or pyproject.toml."
                )
            )
        if context.resilient_parsing:  # a shell completes the command line
            for one in found.params:
                one.type = click.Path() if _is_path(one) else one.type
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


_LANGUAGE_HELP = (
    "Language of the screen, page and ticket; may stand anywhere (default: NPUCMP_LANG, else the locale, else en)."
)
_VERSION_HELP = "Show the version and the kernel in use, and exit."


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from npucmp.measure.kernel import library

    click.echo(f"npucmp {__version__} ({library.name()} kernel)")
    context.exit()


def _is_path(one: click.Parameter) -> bool:
    """Return whether a parameter is a path, which a shell can complete."""
    if isinstance(one, click.Argument):
        return one.type is click.STRING and one.name not in ("op", "pattern")
    return (
        one.type is click.STRING and one.nargs == 1 and (one.metavar or "").endswith(("DUMP", "DIR", "FILE", "REPORT"))
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "NPUCMP"},
    help="""Compare tensor dumps of an Ascend NPU run (target) with those of a reference run (golden).

\b
  npucmp compare npu_dump gpu_dump -o report
""",
)
@click.option("--lang", type=click.Choice(LANGUAGES), expose_value=False, help=_LANGUAGE_HELP)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help=_VERSION_HELP)
@click.option("--no-config", is_flag=True, help="Do not read npucmp.toml or pyproject.toml.")
def npucmp(no_config: bool) -> None:
    pass


def main() -> None:
    """Run the command line and exit: 0 agrees, 1 differs, 2 could not, 130 interrupted, 143 ended by SIGTERM."""
    _end_in_order()
    sys.excepthook = _exit_on_bug
    gc.disable()  # a run has hundreds of thousands of records, and hardly any cycles
    atexit.register(gc.freeze)  # Python ends with a search for cycles among all of them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of numpy would compete with the workers
    from npucmp.errors import NpucmpError

    try:
        if _choose_language():
            from npucmp.commands import help_formatter

            help_formatter.use()
        status = npucmp.main(prog_name="npucmp", standalone_mode=False)
    except click.exceptions.Abort:
        status = _print_error(KeyboardInterrupt())
    except _SignalReceived as end:
        status = _print_error(end)
    except click.ClickException as error:
        named = _with_source(error)
        vars(named)["message"] = _localised(named.message)
        with suppress(OSError):
            named.show()
        status = _print_object(named)
    except (NpucmpError, MemoryError, ImportError) as error:
        status = _print_error(error)
    except _ReaderGone:
        _discard_output()
        status = 141
    except OSError as error:
        _discard_output()
        status = _print_error(error)
    _discard_errors()
    sys.exit(status if isinstance(status, int) else 0)


def _with_source(error: click.ClickException) -> click.ClickException:
    """Return the error of a wrong value with the settings file or the variable that it comes from, if it has one."""
    context = error.ctx if isinstance(error, click.BadParameter) else None
    if not isinstance(error, click.BadParameter) or context is None or not isinstance(error.param, click.Option):
        return error
    from npucmp.commands.settings import sources_of

    source = sources_of(context, context.obj or "").get(max(error.param.opts, key=len).lstrip("-"))
    return click.BadParameter(f"{error.message} It comes from {source}.", context, error.param) if source else error


def _choose_language() -> bool:
    """Return whether to speak Chinese: by --lang, which may stand anywhere and is taken from the arguments, by
    NPUCMP_LANG, or by the locale; and only if stdout can show it. Sets NPUCMP_LANG for worker processes.

    Raises UsageError for another language."""
    chosen = _take_language()
    if not chosen:
        names = (LANGUAGE, "LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
        chosen = next((word for name in names if (word := os.environ.get(name, ""))), "")
        chosen = "zh" if chosen.lower().startswith("zh") and _shows_chinese() else "en"
    os.environ[LANGUAGE] = chosen
    return chosen == "zh"


def _take_language() -> str:
    """Return the language that --lang names, and remove the option from the arguments; "" without it."""
    for at, word in enumerate(sys.argv):
        if word == "--":
            break
        if word == "--lang" or word.startswith("--lang="):
            end = at + (1 if "=" in word else 2)
            chosen = "".join(sys.argv[at + 1 : end]) if word == "--lang" else word.partition("=")[2]
            if chosen not in LANGUAGES:
                raise UsageError(f"--lang {chosen}: the languages are {' and '.join(LANGUAGES)}")
            del sys.argv[at:end]
            return chosen if chosen != "zh" or _shows_chinese() else "en"
    return ""


def _shows_chinese() -> bool:
    """Return whether the encoding of stdout has Chinese characters; a stdout that is closed shows nothing."""
    try:
        "中文".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _localised(text: str) -> str:
    """Return a message in the language of the user."""
    if not is_chinese():
        return text
    from npucmp.report import chinese

    return chinese.screen(text)


def _exit_on_bug(*error: Any) -> NoReturn:
    """End after an internal error with its traceback, and with 2 instead of Python's 1, which means that dumps
    differ."""
    sys.__excepthook__(*error)
    raise SystemExit(_print_object(error[1]))


def _end_in_order() -> None:
    """End on SIGTERM (kill, timeout, scancel) and SIGHUP (a closed terminal) as after an error, so that temporary files
    are removed. A second signal is ignored, since senders may repeat it. Signals that the parent process ignores, as
    nohup does, stay ignored."""
    ending = [one for one in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if one is not None]

    def end(number: int, _: Any) -> NoReturn:
        for one in ending:
            signal.signal(one, signal.SIG_IGN)
        raise _SignalReceived(number)

    with suppress(ValueError):  # not the main thread
        for one in ending:
            if signal.getsignal(one) is signal.SIG_DFL:
                signal.signal(one, end)


def _discard_output() -> None:
    """Discard output that can no longer be written to stdout, so that Python does not report it at exit. stdout is None
    if it was closed before the start."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _discard_errors() -> None:
    """Discard what stderr does not take, because Python would try again at exit and end with 120."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _print_error(error: BaseException) -> int:
    """Return the status, and print one line on stderr if possible, and on stdout what its reader expects."""
    from npucmp.report.error_object import error_words
    from npucmp.report.sanitise import visible

    message, _ = error_words(error)
    with suppress(OSError):
        click.echo(f"npucmp: {_localised(visible(message))}", err=True)
    return _print_object(error)


def _print_object(error: BaseException) -> int:
    """Return the status. If stdout is read as JSON or in a format of --report-format, print the error in it."""
    from npucmp.report.error_object import error_text, error_words

    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    command = next((word for word in words if word in COMMANDS), "")
    format = _printed_format(words, command)
    if format:
        with suppress(OSError):
            click.echo(error_text(format, error, command), nl=False)
    return error_words(error)[1]


def _printed_format(words: list[str], command: str) -> str:
    """Return the format of stdout, by the words of a command line that may be wrong; "" for a screen."""
    from npucmp.report.text_formats import FORMATS

    prefix = f"NPUCMP_{command.replace('-', '_').upper()}"
    given = [os.environ.get(f"{prefix}_REPORT_FORMAT", "")] if command else []
    given += [word.partition("=")[2] for word in words if word.startswith("--report-format=")]
    given += [after for word, after in zip(words, words[1:]) if word == "--report-format"]
    if "--json" in words or (command and os.environ.get(f"{prefix}_JSON", "") in ("1", "true")):
        given.append("json")
    formats = {name for several in given for name in several.split(",") if name in FORMATS}
    return "json" if "json" in formats else formats.pop() if len(formats) == 1 else ""
