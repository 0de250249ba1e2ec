"""The list of FRAMEWORKS, one module each, with the interface `Framework` of npucmp/plans/plan_template.py."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from npucmp.errors import UsageError, nearest
from npucmp.plans.plan_template import Framework

FRAMEWORKS = (
    "pytorch", "mindspore", "mindspore_graph", "tensorflow", "tensorflow2", "acl", "vllm", "sglang", "mindie",
)  # fmt: skip


def names() -> list[str]:
    """Return the names in the user's spelling."""
    return [name.replace("_", "-") for name in FRAMEWORKS]


def framework(name: str) -> Framework:
    """Return the framework of a name; UsageError with the nearest names."""
    module = name.replace("-", "_")
    if module not in FRAMEWORKS:
        raise UsageError(f"no framework {name!r:.60}", nearest(name, names()) or names())
    found: Any = import_module(f"{__name__}.{module}")
    return cast(Framework, found)
