"""Methods that show a result in Python. `import npucmp` sets the presenter that produces the words."""

from __future__ import annotations

from typing import Any

from npucmp.presenter import present


class Shown:
    """A result as the output of the terminal, a line of less than 1 KB, a cell of a notebook, or a table."""

    @property
    def verdict(self) -> str:
        """The verdict on the last line of the terminal output: "DIVERGED", "AGREES", "UNDECIDED" …"""
        return str(present(self, "word"))

    def __str__(self) -> str:
        return str(present(self, "screen"))

    def __repr__(self) -> str:
        return str(present(self, "brief"))

    def _repr_html_(self) -> str:
        return str(present(self, "html"))

    def to_pandas(self, table: str = "") -> Any:
        """The rows of a CSV file of the report ("roots", "worst"; without a name those of its first, with `cause` and
        `limit`) as a pandas DataFrame. docs/metrics.md lists the columns."""
        return present(self, "frame", table)

    def to_dict(self) -> dict[str, Any]:
        """The content of summary.json, as `--json` prints it: NaN and infinities are words. docs/metrics.md lists the
        keys.

        json.dumps(report.to_dict())
        """
        found: dict[str, Any] = present(self, "summary")
        return found

    def files(self) -> dict[str, Any]:
        """The tables and the summary.json by file name: bytes, or pieces of them."""
        found: dict[str, Any] = present(self, "files")
        return found
