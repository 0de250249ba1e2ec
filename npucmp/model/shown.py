"""What a result is to its holder in Python: how it is shown is known further right, and imported when asked for."""

from __future__ import annotations

from typing import Any


class Shown:
    """The words of the terminal, a line of less than 1 KB, a cell of a notebook, a table."""

    @property
    def verdict(self) -> str:
        """The word of the last line of the screen: "DIVERGED", "AGREES", "UNDECIDED" …"""
        return str(self._answer().word)

    def __str__(self) -> str:
        return str(self._shown("screen"))

    def __repr__(self) -> str:
        return str(self._shown("brief"))

    def _repr_html_(self) -> str:
        return str(self._shown("html"))

    def to_pandas(self, table: str = "") -> Any:
        """The rows of a CSV file of the report ("roots", "worst"; without a name those of its first, with `cause` and
        `limit`) as a pandas DataFrame. docs/metrics.md lists the columns."""
        return self._shown("frame", table)

    def to_dict(self) -> "dict[str, Any]":
        """What summary.json holds, as `--json` prints it: NaN and infinities are words. docs/metrics.md lists the keys.

        json.dumps(report.to_dict())
        """
        found: "dict[str, Any]" = self._shown("summary")
        return found

    def files(self) -> "dict[str, Any]":
        """Its tables and its summary.json by name, as they would stand in files: bytes, or pieces of them."""
        found: "dict[str, Any]" = self._shown("files")
        return found

    def _answer(self) -> Any:
        from npucmp.report import answer_of

        return answer_of(self)  # type: ignore[arg-type]  # a Result, which alone is shown

    def _shown(self, how: str, *more: str) -> Any:
        from npucmp.report import notebook

        return getattr(notebook, how)(self._answer(), *more)
