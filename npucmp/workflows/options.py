"""The options of a comparison, with checks of their values."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import AbstractSet, Optional

from npucmp.dump.context import ReadContext
from npucmp.errors import UsageError
from npucmp.judge.tolerance import DEFAULT_RULES
from npucmp.judge.tolerances import Tolerances, load_noise, load_tolerances
from npucmp.model import Tolerance
from npucmp.workflows.option_fields import CompareFields
from npucmp.workflows.select_runs import RunSelection, StrPath


@dataclass(frozen=True)
class Options(CompareFields, RunSelection):
    """The options of a comparison."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.coverage <= 1.0:
            raise UsageError(f"coverage is {self.coverage!r}, it must be a share from 0 to 1")
        for name in ("rtol", "atol"):
            bound = getattr(self, name)
            if bound is not None and not bound >= 0.0:  # also refuses NaN
                raise UsageError(f"{name} is {bound!r}, it must be a number from 0")

    def excluded(self) -> str:
        """Return the options by which the user excluded steps and ranks, "" if there are none."""
        given = ((name, getattr(self, name)) for name in ("step", "rank"))
        return " and ".join(f"--{name} {value}" for name, value in given if value is not None)

    def context(self, *dumps: StrPath) -> ReadContext:
        if not self.also:
            return super().context(*dumps)
        from npucmp.workflows.extra_dumps import Also

        return super().context(*dumps, *(Also.of(further).path for further in self.also))

    def decides(self) -> Tolerances:
        """Return the tolerances that the options set."""
        table = self.tolerances
        if isinstance(table, (str, PathLike)):
            table = load_tolerances(Path(table))
        noise = load_noise(Path(self.noise)) if self.noise is not None else {}
        return Tolerances(
            tuple(table or ()), self.rtol is not None or self.atol is not None, self.trust_statistics, noise
        )

    def bytes_on_disk(self) -> Optional[int]:
        """Return the bytes that the next dump may take."""
        if self.disk is None:
            return None
        from npucmp.workflows.byte_size import in_bytes

        return in_bytes("disk", self.disk)


def rules_of(tolerances: Tolerances, options: Options, dtypes: AbstractSet[str]) -> tuple[Tolerance, ...]:
    """Return the rules that apply to tensors of these types."""
    if tolerances.closeness:
        limit = f"|x-y| ≤ {options.atol or 0.0:g} + {options.rtol or 0.0:g}·|y| everywhere"
        return (Tolerance("mismatch_ratio", 0.0, why=f"{limit}: --rtol and --atol were given"),)
    return tuple(row for row in (*tolerances.table, *DEFAULT_RULES) if row.dtype in ("", *dtypes))
