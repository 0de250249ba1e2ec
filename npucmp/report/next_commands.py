"""The commands that go on from an outcome, with the reason for each, as data: `next` in summary.json.

A command is one line for a POSIX shell. An outcome without open questions has no next command.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Iterator, Sequence

from npucmp.report.answer import Answer, NextCommand, Suspect

if TYPE_CHECKING:
    from npucmp.model.check_finding import Symptom

FORMAT = "--report-format"
OPEN_CAUSES = ("SUSPECT", "UNKNOWN", "GAP")  # more tensors of the dump would decide these


def next_commands(answer: Answer) -> list[NextCommand]:
    """Return the commands, the most useful first; none after an interruption."""
    return [] if answer.result.partial else [*answer.commands(answer)]


def _first(answer: Answer) -> Suspect | None:
    """Return the first suspect that is a fault and not known."""
    return next((one for one in answer.suspects.first if not one.known and not one.excused), None)


def _line(*words: str) -> str:
    return " ".join(["npucmp", *(quote(word) for word in words if word)])


def of_report(answer: Answer) -> Iterator[NextCommand]:
    """Yield the ticket of the first suspect, or the command that writes the report for it."""
    if _first(answer) is None:
        return
    if answer.folder:
        yield NextCommand(_line("ticket", answer.folder, "-o", "ticket.md"), "write the first suspect as one page")
    else:
        again = _line(*_again(answer), "-o", "report")
        yield NextCommand(again, "write the tables and the page, which ticket, diff and merge read")


def of_comparison(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a comparison of two runs."""
    target, *others = answer.result.paths
    first = _first(answer)
    if answer.result.exit_status == 0:
        return
    unlike = str(getattr(answer.result, "unlike", ""))
    if unlike:
        yield NextCommand(_line("precheck", target, *others[:1]), f"the runs are not comparable: {unlike}")
    if getattr(answer.result, "weights", None) is not None:  # a checkpoint has no operators that could run
        yield from of_report(answer)
        return
    if first is not None:
        name = _pattern(first.op)
        if first.cause in OPEN_CAUSES:
            yield NextCommand(
                _line("show", target, "--fit", "compare"), f"{first.cause} is open: list the data that the dump lacks"
            )
        else:
            run = _run(first)
            yield NextCommand(
                _line("replay", target, "--include", name, *run),
                "recompute the operator in float64 from its own inputs",
            )
            yield NextCommand(
                _line("extract", target, first.op, "-o", "case", *run), "write the operator as a case that runs alone"
            )
        yield from of_report(answer)
    else:
        for path in (target, *others[:1]):
            yield _missing_data(path, "compare")


def of_check(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a check."""
    first, dump = _first(answer), answer.result.paths[0]
    if first is not None:
        if first.rule.endswith(".nonfinite") or first.rule.startswith("overflow."):
            yield NextCommand(_line("overflow", dump), "find the operator that produces NaN or Inf")
        operator = next((one.operator for one in _symptoms(answer) if one.place == first.place), None)
        if operator is not None:  # a parameter has the operator that reads it
            show = _line("show", dump, _pattern(operator.name), *_run(first))
            yield NextCommand(show, f"show the tensors of {first.rule}")
        yield from of_report(answer)
    elif answer.result.exit_status == 2:
        yield _missing_data(dump, "check")


def _symptoms(answer: Answer) -> Sequence[Symptom]:
    found: Sequence[Symptom] = getattr(answer.result, "symptoms", ())
    return found


def of_overflow(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a search for overflows."""
    first, dump = _first(answer), answer.result.paths[0]
    if first is not None:
        yield NextCommand(
            _line("show", dump, _pattern(first.op), "--values", *_run(first)), "show where the values leave the type"
        )
        again = _line("replay", dump, "--include", _pattern(first.op), *_run(first))
        yield NextCommand(again, "recompute the operator in float64")
        yield from of_report(answer)
    elif answer.result.exit_status == 2:
        yield _missing_data(dump, "overflow")


def of_replay(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a replay."""
    first, dump = _first(answer), answer.result.paths[0]
    if first is not None:
        case = _line("extract", dump, first.op, "-o", "case", *_run(first))
        yield NextCommand(case, "write the operator as a case that runs alone")
        yield from of_report(answer)
    elif answer.result.exit_status == 2:
        yield _missing_data(dump, "replay")


def of_reruns(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a comparison of reruns."""
    first, dump = _first(answer), answer.result.paths[0]
    if first is not None and answer.folder:
        yield NextCommand(
            f"npucmp compare TARGET GOLDEN --noise {quote(answer.folder + '/noise.csv')}",
            "compare with a reference; differences between reruns are no faults",
        )
    if first is not None:
        yield NextCommand(_line("show", dump, _pattern(first.op)), "show the tensors of the operator")
        yield from of_report(answer)


def of_precheck(answer: Answer) -> Iterator[NextCommand]:
    """Yield what goes on after a precheck."""
    if answer.result.exit_status == 0:
        yield NextCommand(_line("compare", *answer.result.paths, "-o", "report"), "the runs are comparable")
    elif answer.result.exit_status == 1:
        again = _line("precheck", *answer.result.paths)
        yield NextCommand(again, "make both runs again after the repair of the rows that differ, and repeat this")


def _missing_data(dump: str, question: str) -> NextCommand:
    """Return the command that lists what a dump lacks for a question."""
    return NextCommand(_line("show", dump, "--fit", question), "list the data that the dump lacks")


def _again(answer: Answer) -> list[str]:
    """Return the words of the same call, without those that shape what is printed."""
    result = answer.result
    if not result.argv:
        return [result.command, *result.paths]
    words = [*result.argv[1:]]
    shaped = {
        at for at, word in enumerate(words) if word in ("--json", "-q", "--quiet") or word.startswith(FORMAT + "=")
    }
    shaped.update(at + more for at, word in enumerate(words) if word == FORMAT for more in (0, 1))
    return [word for at, word in enumerate(words) if at not in shaped]


def _run(one: Suspect) -> list[str]:
    """Return the options that select the step and rank of a suspect."""
    return [word for name in ("step", "rank") if name in one.at for word in (f"--{name}", str(one.at[name]))]


def _pattern(name: str) -> str:
    """Return the glob that matches this name only."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)
