"""The decision whether the steps and ranks of two dumps are compared one by one (shards.py) or all at once."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple, Optional, Sequence

from npucmp.dump.formats import graph_source
from npucmp.model import Head
from npucmp.workflows.options import Options
from npucmp.workflows.runs import StrPath, pair_runs

SMALL = 4 << 20  # bytes of records up to which all runs are held at once: some 50 MB, and no worker has to be told


class Pairing(NamedTuple):
    """Which runs are held against each other, by their heads, and which have no partner."""

    together: Sequence[tuple[Head, Head]]
    unpaired: Sequence[tuple[str, Head]]


def fits(options: Options, formats: set[str]) -> bool:
    """Whether shards can do it: graphs and further dumps are of all runs together."""
    alone = not (options.graph or options.also or options.replay)
    return alone and all(graph_source(name) is None for name in formats)


def paying(target: StrPath, golden: StrPath, options: Options) -> Optional[Pairing]:
    """The runs, where they are to be compared in shards though nobody else is to do it: there are several, folders tell
    which, and their records are large."""
    if not fits(options, set()):
        return None
    context = options.context(target, golden)
    lefts = options.early_heads(target, context)
    rights = options.early_heads(golden, context, golden=True) if lefts else None
    if not lefts or not rights or not fits(options, {head.format for head in (*lefts, *rights)}):
        return None
    pairing = Pairing(*pair_runs(lefts, rights, options.partners()))
    large = sum(_size(head) for both in pairing.together for head in both) > SMALL
    return pairing if large and len(pairing.together) > 1 else None


def _size(head: Head) -> int:
    """Of its records, where they are one file."""
    with suppress(OSError):
        return os.stat(head.path).st_size if os.path.isfile(head.path) else 0
    return 0
