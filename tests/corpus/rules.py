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
    "growth": [("npucmp.explain", "GROWTH", 1.0)],
    "condition": [("npucmp.explain", "amplification", lambda node: 1.0)],
    "non_smooth": [("npucmp.explain", "is_kinked", _never)],
    "choice": [("npucmp.explain", "is_choice", _never)],
    "cancellation": [("npucmp.explain", "cancelled", _never)],
    "scaled": [("npucmp.roots", "scaled", _never)],
    "scaled_gap": [("npucmp.roots", "common_factor", _never)],
    "arguments": [("npucmp.roots", "by_arguments", _never)],
    "equal_bits": [("npucmp.roots", "from_equal_bits", _never)],
    "copy": [("npucmp.roots", "unlike_copy", _never)],
    "lost_tile": [("npucmp.roots", "torn", _never)],
    "parameter": [("npucmp.roots", "wrong_parameter", _never)],
    "gradual": [("npucmp.roots", "HOPELESS", math.inf)],
    "background": [("npucmp.roots", "BACKGROUND", 0.0)],
    "meaningless": [("npucmp.roots", "is_meaningless", _never)],
    "long_sums": [("npucmp.judge", "accumulation", lambda pair, round_off: 1.0)],
    "subnormal": [("npucmp.judge", "subnormal", lambda pair, moments: 1.0)],
    "hf32": [("npucmp.precision", "reduced_products", lambda measurements: None)],
    "quantised": [("npucmp.precision", "quantised", _never)],
    "collectives": [("npucmp.ranks", "_sends", _never)],
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
