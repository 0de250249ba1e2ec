"""Make the answer of a check of two runs: same, close, differs, unknown, not applicable."""

from __future__ import annotations

from typing import Any, Optional, Sized

from npucmp.model.precheck_result import Status, Told

NEARLY_ALL = 0.9  # share of differing random parameters from which on seed or checkpoint differ


def many(some: Sized | int, word: str) -> str:
    """A count with its noun: "1 operator", "1,200 operators"."""
    count = some if isinstance(some, int) else len(some)
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def same(because: str = "", **more: Any) -> Told:
    return Told("", Status.SAME, "", because, **more)


def close(because: str, **more: Any) -> Told:
    return Told("", Status.CLOSE, "", because, **more)


def differs(because: str, severity: str = "", **more: Any) -> Told:
    return Told("", Status.DIFFERS, severity, because, **more)


def unknown(because: str, **more: Any) -> Told:
    """Return an unknown answer; `because` names the missing data."""
    return Told("", Status.UNKNOWN, "", because, **more)


def not_applicable(because: str, **more: Any) -> Told:
    return Told("", Status.NOT_APPLICABLE, "", because, **more)


def either(target: Optional[str], golden: Optional[str], what: str) -> Told:
    """Compare two words; the answer is unknown if either is None."""
    if target is None or golden is None:
        return unknown(f"the dumps do not record {what} of both sides", target=target or "", golden=golden or "")
    if target == golden:
        return same(target, target=target, golden=golden)
    return differs(f"{what}: {target} against {golden}", target=target, golden=golden)
