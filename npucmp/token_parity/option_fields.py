"""Declare the options of parity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from npucmp.dump.limits import Limits
from npucmp.workflows.option_fields import Progress, StrPath, keyword, limits_option, option
from npucmp.workflows.selectors import Numbers


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ParityFields:
    """The options of parity."""

    floor: Union[float, StrPath, None] = option(
        None,
        "Error of a logit that is noise: --floor 0.02; or the report of a clean pair of the same setup: "
        "--floor clean_report. Default: 0.06, two bfloat16 runs.",
        metavar="LOGIT|REPORT",
    )
    step: Numbers = option(None, "Only these steps: --step 3, --step 0-9.", metavar="N", check="numbers")
    progress: Optional[Progress] = keyword(None, "Is accepted and not called: a recording is read in one piece.")
    limits: Limits = limits_option()
