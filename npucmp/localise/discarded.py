"""Infinities that a choice throws away at once: told, and no alarm.

A network may take the logarithm of all its positions, 0 among them, and choose another value where that is infinite.
Nothing else reads the infinity, so that nothing can come of it. Whoever computes with it first, or bounds it, which
makes a number of it, or has its gradient disturbed by it, makes it an alarm again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from npucmp.model import Event, Evidence
from npucmp.model.optypes import op_type_of

THROWN_AWAY = Evidence("thrown away", "no alarm: a choice throws it away, and nothing else reads it")


def without_discarded(events: "Sequence[Event]") -> "list[Event]":
    """The events, those of such infinities without an alarm."""
    heirs: dict[int, list[Event]] = {}
    own: dict[int, list[Event]] = {}
    for event in events:
        own.setdefault(event.order, []).append(event)
        for parent in event.parents:
            heirs.setdefault(parent, []).append(event)
    gone: set[int] = set()
    for order, some in own.items():
        after = heirs.get(order, ())
        if after and all(map(_is_birth, some)) and all(map(_is_choice, after)):
            gone.update(id(event) for event in some)
    born = {event.order for event in events if id(event) in gone}
    gone.update(id(event) for event in events if event.parents and born.issuperset(event.parents))
    return [
        replace(event, alarm=False, evidence=(*event.evidence, THROWN_AWAY)) if id(event) in gone else event
        for event in events
    ]


def _is_birth(event: Event) -> bool:
    return event.origin == "born" and event.kind == "inf"


def _is_choice(event: Event) -> bool:
    """Whether it is gone after an operator that takes one value or another, as they are."""
    return event.origin == "killed" and event.operator is not None and op_type_of(event.operator).has("masks")
