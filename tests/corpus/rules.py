"""The rules of npucmp's judging half by name, and how to switch one off, so that the sheet can tell what each is for.

Until npucmp has --skip-rule, a rule is switched off by putting a function or a number in its place that never fires.
"""

from __future__ import annotations

import importlib
import math
from contextlib import contextmanager
from typing import Any, Iterator
from unittest import mock


def _never(*anything: Any, **more: Any) -> bool:
    return False


# name → (module, attribute, what stands in its place)
RULES: "dict[str, list[tuple[str, str, Any]]]" = {
    "growth": [("npucmp.localise.explain", "GROWTH", 1.0)],
    "condition": [("npucmp.localise.explain", "amplification", lambda node: 1.0)],
    "non_smooth": [("npucmp.localise.explain", "is_kinked", _never)],
    "choice": [("npucmp.localise.explain", "is_choice", _never)],
    "cancellation": [("npucmp.localise.explain", "cancelled", _never)],
    "scaled": [("npucmp.localise.walk", "scaled", _never)],
    "scaled_gap": [("npucmp.localise.walk", "common_factor", _never)],
    "arguments": [("npucmp.localise.walk", "by_arguments", _never)],
    "equal_bits": [("npucmp.localise.walk", "from_equal_bits", _never)],
    "copy": [("npucmp.localise.walk", "unlike_copy", _never)],
    "lost_tile": [("npucmp.localise.walk", "torn", _never)],
    "parameter": [("npucmp.localise.walk", "wrong_parameter", _never)],
    "gradual": [("npucmp.localise.walk", "HOPELESS", math.inf)],
    "background": [("npucmp.localise.walk", "BACKGROUND", 0.0)],
    "meaningless": [("npucmp.localise.walk", "is_meaningless", _never)],
    "long_sums": [("npucmp.judge.verdicts", "accumulation", lambda pair, round_off: 1.0)],
    "subnormal": [("npucmp.judge.verdicts", "subnormal", lambda pair, moments: 1.0)],
    "hf32": [("npucmp.judge.precision", "reduced_products", lambda measurements: None)],
    "quantised": [("npucmp.judge.precision", "quantised", _never)],
    "collectives": [("npucmp.localise.ranks", "_sends", _never)],
}


@contextmanager
def without(name: str) -> "Iterator[None]":
    """npucmp without one rule. KeyError for a name that is none."""
    changes = RULES[name]
    patches = [mock.patch.object(importlib.import_module(module), attribute, new) for module, attribute, new in changes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
