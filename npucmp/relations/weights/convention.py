"""A convention: suffixes of names behind the number of the layer, and the kind of weight of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

GLOBAL = frozenset("embed pos types n0 nf head pooler".split())  # kinds outside of layers


@dataclass(frozen=True)
class Convention:
    """Names of parameters. `rows` are (suffix, kind): a regular expression that matches from the beginning of a part of
    the name to its end; "@" is the parameter, weight or bias.

    pairs_rope   rotary embedding turns neighbouring rows of q and k, not the two halves of a head
    turned       matrices are stored as (in, out) if the shapes of those that are not square say so
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    pairs_rope: bool = False
    turned: bool = False

    @cached_property
    def compiled(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        """The rows as compiled expressions."""
        param = r"(?P<p>weight|bias|gamma|beta)"
        return tuple((re.compile(rf"(?:^|\.){row.replace('@', param)}$"), kind) for row, kind in self.rows)

    @staticmethod
    def is_global(kind: str) -> bool:
        """Return whether a kind of weight lies outside of layers."""
        return kind in GLOBAL
