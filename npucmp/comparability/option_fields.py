"""Declare the options of precheck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from npucmp.workflows.option_fields import DumpFields, StrPath, option


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PrecheckFields(DumpFields):
    """The options of precheck. T G are a file of the target and a file of the golden."""

    env: Optional[tuple[str, str]] = option(
        None,
        "Versions and environment of both: zips or folders of msprobe's config_check, or text of `pip freeze` or "
        "`env`.",
        metavar="T G",
        words=2,
    )
    config: Optional[tuple[str, str]] = option(
        None,
        "Hyper-parameters of both: YAML, JSON, TOML, text with --name value, or logs in which the training printed its "
        "configuration (verl, Megatron-LM, MindSpeed, transformers, DeepSpeed, Hydra).",
        metavar="T G",
        words=2,
    )
    data: Optional[tuple[str, str]] = option(
        None,
        "Recorded batches of both, for example of a training and a test: arrays or folders of arrays.",
        metavar="T G",
        words=2,
    )
    curve: Optional[tuple[str, str]] = option(
        None,
        "Logs of both trainings, to find where they diverge: CSV, JSON lines, trainer_state.json, text, TensorBoard "
        "events.",
        metavar="T G",
        words=2,
    )
    repeat_curve: Optional[str] = option(
        None, "Log of a second golden run. Differences within this noise are not faults.", metavar="FILE"
    )
    column: str = option("", "The column of the logs to compare (default: the training loss).", metavar="NAME")
    repeat: Optional[StrPath] = option(
        None, "A second dump of the TARGET run, to test whether it is bit-identical.", metavar="DUMP"
    )
    rules: Optional[StrPath] = option(
        None, "Settings in TOML: rows to skip, severities and ignored names of rows.", metavar="FILE"
    )
    mixed: bool = option(False, "Mixed precision is intentionally compared with full precision.")
    only: Sequence[str] = option((), "Only rows whose name matches; repeatable.", metavar="GLOB", repeats=True)
    skip: Sequence[str] = option((), "No rows whose name matches; repeatable.", metavar="GLOB", repeats=True)
    strict: bool = option(False, "Exit 1 also for rows that need an explanation.")
