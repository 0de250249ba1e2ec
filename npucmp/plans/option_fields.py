"""Declare the options of plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from npucmp.dump.limits import Limits
from npucmp.workflows.option_fields import StrPath, limits_option, option
from npucmp.workflows.selectors import Numbers


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PlanFields:
    """The options of plan."""

    side: str = option("target", "Side to dump: target or golden.", metavar="SIDE", shows_default=True)
    step: Numbers = option(None, "Steps to dump, from 0: --steps 3, --steps 0-2.", "--steps", "--step", metavar="N")
    rank: Numbers = option(None, "Ranks to dump: --ranks 0,8-15 (default: all).", "--ranks", "--rank", metavar="N")
    layout: Optional[str] = option(
        None,
        "For compare, with msprobe: sizes of the target's parallel layout, as of compare: --layout tp=2,pp=2. Records "
        "the ranks of one data-parallel replica at level mix, with the optimizer step.",
        metavar="SIZES",
    )
    level: Optional[str] = option(
        None,
        "With msprobe: L0 records modules, L1 operators, mix both (default: L1; for check and precheck mix).",
        metavar="LEVEL",
    )
    ops: Sequence[str] = option((), "Only operators whose name matches; repeatable.", metavar="GLOB", repeats=True)
    kind: Optional[str] = option(
        None,
        "Recorded per tensor: values, statistics or md5. Default: values; for overflow statistics, or the detection of "
        "the device; for rerun-diff md5.",
        values={
            "--values": ("values", "Record values of tensors (default, except for overflow and rerun-diff)."),
            "--statistics": (
                "statistics",
                "Record maximum, minimum, mean, norm (default for overflow).",
            ),
            "--md5": ("md5", "Record checksums (default for rerun-diff)."),
        },
        python='kind="values"',
    )
    before: Optional[StrPath] = option(
        None,
        "An earlier dump of the same network (statistics suffice): the size of the new dump is estimated from it, and "
        "--ops is matched with its operator names.",
        "--from",
        metavar="DUMP",
        python="before=DUMP",
    )
    disk: int | str | None = option(None, "With --from: request only operators that fit: --disk 20GB.", metavar="SIZE")
    model: str = option("model", "For acl: file name of the offline model, without .om.", metavar="NAME")
    format: Optional[str] = option(
        None,
        "Format of the dumps (default: recognised): msprobe, cann, npy, …; npucmp formats lists them.",
        metavar="NAME",
    )
    limits: Limits = limits_option()
