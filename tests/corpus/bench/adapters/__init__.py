"""Adapters of tools: each module has DATA, the kinds of data that the tool compares, and `accuse(target, golden)`;
GROUPS, if it compares only these groups.

`accuse` returns the operators that the tool accuses, the most suspect first; none if it is silent.
"""

from __future__ import annotations

from typing import NamedTuple, Optional


class Accusation(NamedTuple):
    """operator: its name in the golden, or in the target if the tool pairs it with none; step: None if unknown."""

    operator: str
    step: Optional[int] = None
