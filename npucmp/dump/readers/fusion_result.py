"""Read fusion_result.json: how often each fusion pass of a compilation matched and took effect.

    one object           {"graph_fusion": {pass: {"effect_times": "1", "match_times": "2"}}, "ub_fusion": {…},
                          "session_and_graph_id": "0_0"}
    several objects      in sequence, which is not valid JSON, or as a list
    keyed                {"session_and_graph_id_0_0": {"graph_fusion": {…}, "ub_fusion": {…}}, …}
Counts are strings; a file gathers the compilations of all runs in its folder.
Source: files of three generations of CANN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError

FILE = "fusion_result.json"
DIGITS = 18  # of a count; converting more takes quadratic time
KINDS = {"graph_fusion": "GraphFusion", "ub_fusion": "UBFusion"}  # section → its name in fusion_switch.cfg


class Effect(NamedTuple):
    """The number of times that a pass took effect in all graphs of a file; kind is the word of fusion_switch.cfg."""

    name: str
    kind: str
    times: int


def read_effects(path: Path, context: ReadContext = ANYWHERE) -> list[Effect]:
    """Return all passes of a file by name, including those without effect; DumpError if it is not such a file."""
    times: dict[tuple[str, str], int] = {}
    found = False
    for top in _objects(path, read_text(path, "table_bytes", context)):
        for graph in _graphs(top):
            for section, kind in KINDS.items():
                passes = graph.get(section)
                if not isinstance(passes, dict):
                    continue
                found = True
                for word, counts in passes.items():
                    name = word.encode("utf-8", "backslashreplace").decode("utf-8")  # JSON can spell lone surrogates
                    times[name, kind] = times.get((name, kind), 0) + _effect(counts)
    if not found:
        raise DumpError(path, "no graph_fusion and no ub_fusion in it")
    return [Effect(name, kind, count) for (name, kind), count in sorted(times.items())]


def _objects(path: Path, text: str) -> Iterator[Any]:
    """Yield the JSON values of a text with several values in sequence."""
    decoder, at = json.JSONDecoder(parse_int=_number), 0
    text = text.strip()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise DumpError(path, f"not JSON: {error}") from None
        yield from value if isinstance(value, list) else (value,)
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1


def _graphs(top: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(top, dict):
        return
    yield top
    for below in top.values():
        if isinstance(below, dict) and KINDS.keys() & below.keys():
            yield below


def _effect(counts: Any) -> int:
    number = counts.get("effect_times") if isinstance(counts, dict) else None
    if isinstance(number, str) and number.isdecimal() and len(number) <= DIGITS:
        return int(number)
    return max(0, number) if isinstance(number, int) else 0


def _number(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
