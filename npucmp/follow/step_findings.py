"""Findings of one step of a run that is followed."""

from __future__ import annotations

from typing import NamedTuple, Optional

from npucmp.model import Report
from npucmp.model.check_finding import Symptom


class StepFindings(NamedTuple):
    """The findings of a step, handed to the caller when the step was read. `step` is None for a dump without numbers.

    again     the step was read before, and its files have changed since
    symptoms  of check: those that no earlier step showed; `also` has the new places of a known one
    report    of compare: this step alone, None for a check
    met       the word of --until that ends the run, "" if none does
    """

    step: Optional[int]
    again: bool = False
    symptoms: tuple[Symptom, ...] = ()
    report: Optional[Report] = None
    met: str = ""
