"""Lines that fit a terminal."""

from __future__ import annotations

import pytest

from npucmp.report.terminal import wrap_text


@pytest.mark.parametrize("columns", [0, 39, 10_000])
def test_lines_are_left_alone(columns):
    """Where there is no terminal, it is too narrow, or all fits."""
    text = "a b " * 40 + "\n\n" + "c"
    assert wrap_text(text, columns) == text
