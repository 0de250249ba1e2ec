"""Declare the options of check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from npucmp.workflows.option_fields import DumpFields, StrPath, option


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CheckFields(DumpFields):
    """The options of check. Globs match names of rules. If an option is None, the file of --rules sets it."""

    only: Sequence[str] = option((), "Only rules whose name matches; repeatable.", metavar="GLOB", repeats=True)
    skip: Sequence[str] = option((), "No rules whose name matches; repeatable.", metavar="GLOB", repeats=True)
    phase: Optional[str] = option(
        None,
        "Kind of the run; auto (default): training if it has a backward pass.",
        choices=("auto", "train", "eval"),
    )
    start: Optional[str] = option(
        None,
        "Initial weights; auto (default): fresh if the weights of all normalisations are constant.",
        choices=("auto", "fresh", "trained"),
    )
    fail_on: Optional[str] = option(
        None,
        "Lowest severity that causes exit status 1 (default: warning).",
        choices=("error", "warning", "hint"),
    )
    loss: Optional[StrPath] = option(
        None,
        "Training log: CSV, JSON lines, trainer_state.json, a text log, event files.",
        metavar="FILE",
    )
    column: str = option("", "The column of --loss that holds the loss.", metavar="NAME")
    rules: Optional[StrPath] = option(None, "Settings in TOML: limits, severities, expectations.", metavar="FILE")
    plugin: Sequence[StrPath] = option(
        (), "A Python file with additional rules; npucmp executes it; repeatable.", metavar="FILE", repeats=True
    )
    plugins: bool = option(True, "Also apply rules of installed packages (default: yes).", "--plugins/--no-plugins")
