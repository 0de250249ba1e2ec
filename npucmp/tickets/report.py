"""Write ticket.md: one suspect, in the order in which a vendor's engineer reads. Text from a dump is in code spans and
blocks; only the last name of a path is kept."""

from __future__ import annotations

import re
import shlex
from typing import Any, Iterable, Iterator, Mapping, Sequence

from npucmp.model.ticket import Cells, Ticket
from npucmp.presenter import is_chinese
from npucmp.report.sanitise import block, code, strip_folders, visible

CAUSES = {
    "BORN": "its inputs agree, its output differs: the error originates in this operator",
    "GAP": "an input differs although all tensors dumped upstream agree: the error comes from code not compared",
    "WORSENED": "its output differs far more than its inputs explain",
    "SUSPECT": "statistics only: its output exceeds the upstream noise; this is not proven",
    "UNKNOWN": "its output differs; the errors of its inputs are not known",
    "GUILTY": "its output does not match float64 of its dumped inputs",
    "BROKEN": "its incoming gradient differs from the sum that its consumers return",
}
OF_ARGUMENT = "the call has another argument than in the golden: the operator computes what it is asked to"
INNOCENT = "the call differs, not the kernel"  # words of the evidence
OF_WEIGHTS = "this parameter of a checkpoint is not the golden's"
FIGURES = (  # column of tensors.csv, title
    ("rel_l2", "rel_l2"), ("limit", "limit"), ("cosine", "1 − cosine"), ("max_abs_err", "max abs err"),
    ("max_abs_at", "at"), ("max_ulp", "max ulp"), ("mismatch_ratio", "outside allclose"),
    ("nonfinite_mismatch", "NaN/Inf on one side"),
)  # fmt: skip
SIDE = ("min", "max", "mean", "l2", "nan", "inf")
PLAIN = (  # columns of other tables, in one list
    "severity rule parameter value limit unit count remedy event origin ratio first_at device_status golden_event "
    "rms_ratio max_ratio bias rel_l2 rel_l2_u mere mare rmse max_abs_err max_abs_index vendor_mixed vendor_mere_mare "
    "same_dtype_ratio vendor_level differing_elements max_ulp runs explanation where target golden first"
).split(" ")
BAR = "\\|"  # a bar would end a cell, even in a code span
TO_FILL = ("device and driver", "CANN", "framework and torch_npu / MindSpore", "golden: device and release",
           "reproducible in a rerun?")  # fmt: skip
MEANING = (
    "- **rel_l2** is ‖target − golden‖ / ‖golden‖. The limit is the error that rounding can cause here; beyond it, "
    "the tensor is `diverged`.",
    "- **Mixed tolerance** passes if at least 99 % of the elements lie within atol + rtol·|golden|, and the largest "
    "error is at most the limit of the type, or 32 ulp. **MERE/MARE**, the older rule, passes if the mean of "
    "|x − y| / (|y| + 1e-7) is below t, and its maximum below 10 t.",
    "- **Small values** are elements of the golden below s, so near 0 that a relative error is meaningless; they are "
    "wrong if their error exceeds e.",
)
LIMITS = (("rtol", "rtol"), ("atol", "atol"), ("most", "limit"), ("mean", "t"), ("small", "s"), ("small_error", "e"))


def page(ticket: Ticket) -> str:
    """Return the whole text."""
    parts = (_what, _where, _figures, _dumps_section, _versions, _again, _others)
    made = "\n\n".join(text for part in parts if (text := "\n".join(part(ticket)).strip("\n"))) + "\n"
    if is_chinese():
        from npucmp.report import chinese

        return chinese.ticket(made)
    return made


def _what(ticket: Ticket) -> Iterator[str]:
    row = ticket.row
    name = row.get("op") or row.get("parameter") or row.get("row") or row.get("rule") or "?"
    cause = row.get("cause", "")
    yield f"# {_code(name)}: {visible(cause)}"
    yield ""
    slot = f"{_code(row['slot'])} " if row.get("slot") else ""
    said = OF_WEIGHTS if "weights" in ticket.summary else CAUSES.get(cause, "it is a suspect")
    said = OF_ARGUMENT if INNOCENT in _because(row) else said
    yield f"{_code(name)} {slot}— {said}. Found by `npucmp {ticket.command}`."
    yield ""
    known = [one for one in _list(ticket.accused.get("evidence")) if isinstance(one, str)]
    yield from (f"- {_code(words)}" for words in known or [_because(row)] if words)


def _because(row: Cells) -> str:
    return row.get("evidence") or row.get("because") or row.get("explanation") or ""


def _where(ticket: Ticket) -> Iterator[str]:
    row = ticket.row
    yield "## Where"
    yield ""
    fields = (
        ("operator", row.get("op")), ("kind", row.get("op_type")), ("phase", row.get("phase")),
        ("slot", row.get("slot")), ("step", row.get("step")), ("rank", row.get("rank")),
        ("place in the order of execution", row.get("order")),
        ("name in the golden", row.get("golden_op") if row.get("golden_op") != row.get("op") else ""),
        ("source line", row.get("stack")),
    )  # fmt: skip
    yield from (f"- {name}: {_code(value)}" for name, value in fields if value)
    arguments = [one for one in _list(ticket.accused.get("arguments")) if isinstance(one, dict)]
    if arguments:
        yield from _table(("argument", "target", "golden", ""), (
            (_code(one.get("name")), _code(one.get("target"), "missing"), _code(one.get("golden"), "missing"),
             "" if one.get("target") == one.get("golden") else "**differs**")
            for one in arguments
        ))  # fmt: skip
    if ticket.table == "tensors.csv":
        yield from _table(("tensor", "target", "golden"), (
            (_code(one.get("slot")), *(_code(_kind(one, side)) for side in ("target", "golden"))) for one in ticket.rows
        ))  # fmt: skip
    frames = [one for one in _list(ticket.accused.get("stack")) if isinstance(one, str)]
    if frames:
        yield from ("", "Call stack, innermost frame first:", "")
        yield block(strip_folders(" ".join(frame.split())) for frame in frames)


def _kind(row: Cells, side: str) -> str:
    """ "float32 [2, 8, 16] NC1HWC0"."""
    return " ".join(filter(None, (row.get(f"{side}_{what}", "") for what in ("dtype", "shape", "layout")))) or "none"


def _figures(ticket: Ticket) -> Iterator[str]:
    yield "## Figures"
    if ticket.table != "tensors.csv":
        for row in ticket.rows or (ticket.row,):
            figures = [f"{name} {_code(_figure(row[name]))}" for name in PLAIN if row.get(name)]
            title = row.get("slot") or row.get("op") or row.get("rule") or row.get("row")
            yield f"\n{_code(title)}: {', '.join(figures) or 'none'}"
        return
    yield from _table(("tensor", "verdict", *(title for _, title in FIGURES)), (
        (_code(row.get("slot")), _code(row.get("verdict")), *(_code(_cell(row, name), "") for name, _ in FIGURES))
        for row in ticket.rows
    ))  # fmt: skip
    yield from _table(("tensor", "side", *SIDE), (
        (_code(row.get("slot")), side, *(_code(_figure(row.get(f"{side}_{name}", "")), "") for name in SIDE))
        for row in ticket.rows for side in ("target", "golden")
    ))  # fmt: skip
    vendor = [one for one in _list(ticket.accused.get("vendor")) if isinstance(one, dict)]
    if vendor:
        yield "\nResults of the vendor's rules for single operators, target compared with golden:"
        yield from _table(
            (
                "tensor",
                "type",
                "mixed tolerance",
                "MERE/MARE",
                "MERE",
                "MARE",
                "within atol + rtol·golden",
                "small values wrong",
            ),
            (_vendor(one) for one in vendor),
        )
    yield ""
    yield from MEANING if vendor else MEANING[:1]
    types = {str(one.get("dtype")): one["limits"] for one in vendor if isinstance(one.get("limits"), dict)}
    for dtype, limits in types.items():
        words = ", ".join(f"{symbol} {_figure(limits.get(key))}" for key, symbol in LIMITS)
        yield f"- The vendor's limits of {_code(dtype)}: {_code(words)}"


def _vendor(one: Mapping[str, Any]) -> Sequence[str]:
    passed = {True: "passes", False: "**fails**"}
    verdicts = [passed.get(one.get(name) is True, "") for name in ("mixed", "mere_mare")]
    inside = _number(one.get("inside"))
    share = "" if inside is None else f"{100 * inside:.4g} %"
    return (_code(one.get("slot")), _code(one.get("dtype")), *verdicts,
            *(_code(_figure(one.get(name))) for name in ("mere", "mare")), _code(share),
            _code(f"{one.get('small_wrong')} of {one.get('small')}"))  # fmt: skip


def _dumps_section(ticket: Ticket) -> Iterator[str]:
    """Yield the section on the dumps that were compared and the rules."""
    summary = ticket.summary
    yield "## Compared runs and rules"
    yield ""
    for side in ("target", "golden"):
        found = summary.get(side)
        if isinstance(found, dict):
            parts = [
                strip_folders(str(found.get("path", ""))),
                *(str(found[name]) for name in ("format", "detail") if found.get(name)),
            ]
            parts += [f"{found[name]} {name}" for name in ("operators", "tensors") if isinstance(found.get(name), int)]
            yield f"- {side}: {_code(' · '.join(parts))}"
    for name in ("aligned", "verdicts", "causes", "statuses", "findings"):
        found = summary.get(name)
        if isinstance(found, dict) and found:
            yield f"- {name}: {_code(', '.join(f'{key} {_figure(value)}' for key, value in found.items())[:600])}"
    rules = [one for one in _list(summary.get("rules")) if isinstance(one, dict)]
    if rules:
        yield from _table(("metric", "limit", "type", "operator", "why"), (
            tuple(_code(_figure(one.get(name)), "") for name in ("metric", "limit", "dtype", "op_type", "why"))
            for one in rules[:40]
        ))  # fmt: skip
        yield ""
    notes = [one for one in _list(summary.get("notes")) if isinstance(one, str)]
    yield from (f"- note: {_code(one[:600])}" for one in notes[:20])


def _versions(ticket: Ticket) -> Iterator[str]:
    yield "## Versions and environment"
    yield ""
    yield f"- npucmp {_code(ticket.summary.get('npucmp'))}, `{ticket.command}`"
    yield "- The dumps do not record the following; please fill in:"
    yield from (f"  - {name}: " for name in TO_FILL)


def _again(ticket: Ticket) -> Iterator[str]:
    """Yield the section on how to reproduce the finding."""
    yield "## How to reproduce"
    yield ""
    argv = [strip_folders(one) for one in _list(ticket.summary.get("argv"))[1:] if isinstance(one, str)]
    lines = [shlex.join(["npucmp", *argv])] if argv else []
    name = ticket.row.get("target_op") or ticket.row.get("op")
    if ticket.case:
        yield "The folder `case` has the inputs, the dumped results and the float64 results of this call:"
        lines.append("python case/run.py")
    elif name:
        found = ticket.summary.get("target")
        dump = strip_folders(str(found.get("path", "DUMP"))) if isinstance(found, dict) else "DUMP"
        yield "If the dump has values and arguments of this call, extract it into a folder that runs without npucmp:"
        at = [word for key, number in _at(ticket.row) for word in (f"--{key}", number)]
        lines += [shlex.join(["npucmp", "extract", dump, name, *at, "-o", "case"]), "python case/run.py"]
    yield ""
    yield block(lines)


def _at(row: Cells) -> list[tuple[str, str]]:
    """The step and the rank of a row, as far as it has them."""
    return [(key, row[key]) for key in ("step", "rank") if row.get(key, "").isdigit()]


def _others(ticket: Ticket) -> Iterator[str]:
    if ticket.others:
        yield "## Further suspects"
        yield ""
    for row in ticket.others:
        name = " ".join(
            filter(None, (row.get("rule") if not row.get("evidence") else "", row.get("op"), row.get("slot")))
        )
        words = _because(row)[:300]
        at = _at(row) if _at(row) != _at(ticket.row) else []
        place = f" ({' '.join(map(' '.join, at))})" if at else ""
        yield (
            f"- {visible(row.get('cause', ''))} {_code(name or row.get('row'))}{place}"
            f"{': ' + _code(words) if words else ''}"
        )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    found = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
    if found:
        yield from ("", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *found)


def _code(value: Any, nothing: str = "?") -> str:
    text = "" if value is None else str(value)
    return code(strip_folders(text)) if text.strip() else nothing


def _cell(row: Cells, name: str) -> str:
    if name == "max_abs_at":
        return row.get(name) or row.get("max_abs_index", "")  # reports of earlier versions have only the index
    if name != "cosine":
        return _figure(row.get(name, ""))
    cosine = _number(row.get(name))
    return "" if cosine is None else f"{1 - cosine:.3g}"


def _figure(value: Any) -> str:
    """Format a number for reading; other text is unchanged."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return "" if value is None else str(value)
    number = _number(value)
    if number is None or re.fullmatch(r"-?\d{1,18}", str(value)):
        return str(value)
    return f"{number:.4g}"


def _number(value: Any) -> float | None:
    try:
        return float(value) if value not in (None, "") else None
    except (TypeError, ValueError):
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
