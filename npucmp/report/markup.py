"""Markup of a page: whatever is put into it is escaped unless it is markup itself."""

from __future__ import annotations

from typing import Iterable

from npucmp.report.sanitise import visible

_ESCAPES = {ord(mark): f"&{name};" for mark, name in {"&": "amp", "<": "lt", ">": "gt", "'": "#39", '"': "#34"}.items()}


class Markup(str):
    """Text that stands in a page as it is."""

    __slots__ = ()


NOTHING = Markup()


def text(value: object) -> Markup:
    """A value as the text of an element, or of an attribute in quotes. Invisible characters of names from dumps are
    shown; markup is returned as it is."""
    if isinstance(value, Markup):
        return value
    shown = visible(value) if type(value) is str else str(value)
    return Markup(shown.translate(_ESCAPES))


def fill(form: str, *values: object, **named: object) -> Markup:
    """A form of str.format with values as text: fill("<b>{}</b>", name). The form itself is a constant of npucmp."""
    return Markup(form.format(*map(text, values), **{name: text(value) for name, value in named.items()}))


def fill_if(condition: object, form: str, *values: object) -> Markup:
    """The form with values, or nothing."""
    return fill(form, *values) if condition else NOTHING


def fill_each(form: str, rows: Iterable[Iterable[object]]) -> Markup:
    """The form once for each row of values."""
    return joined(fill(form, *row) for row in rows)


def items(values: Iterable[object], form: str = "<li>{}</li>") -> Markup:
    """The form once for each value."""
    return joined(fill(form, value) for value in values)


def joined(parts: Iterable[Markup]) -> Markup:
    """Several pieces of markup, one behind the other."""
    return Markup("".join(parts))
