"""Lines that fit a terminal."""

from __future__ import annotations

import pytest

from npucmp.report.terminal import wrap_text

RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("short", ["short"]),
        ("", [""]),
        (
            "                 one two three four five six seven eight",
            ["                 one two three four five", "                 six seven eight"],
        ),
        (
            "  1  BORN        Functional.softmax.1.forward  output:0",
            ["  1  BORN        Functional.softmax.1.forward", "                 output:0"],
        ),
        (
            f"  1  {RED}BORN      {PLAIN}  Functional.softmax.1.forward  output:0",
            [f"  1  {RED}BORN      {PLAIN}  Functional.softmax.1.forward", "                 output:0"],
        ),
        ("target  a/b/c  msprobe · pytorch · L1 tensor · 54 operators", [
            "target  a/b/c  msprobe · pytorch · L1", "        tensor · 54 operators",
        ]),
        ("page: '/a folder of mine/where it is/report.html'", ["page: '/a folder of mine/where it is/report.html'"]),
        ("word: '/my folder/report.html', and what is more", ["word: '/my folder/report.html', and what", "  is more"]),
        ("note:" + " word" * 9, ["note: word word word word word word word", "  word word"]),
        (f"{RED}DIVERGED{PLAIN}: " + "x" * 50 + " y", [f"{RED}DIVERGED{PLAIN}: " + "x" * 50, "  y"]),
        ("网络" * 9 + " 一 二", ["网络" * 9 + " 一", "  二"]),  # two columns each: 36 + 1 + 2
    ],
)  # fmt: skip
def test_lines_are_broken_between_words(text, broken):
    assert wrap_text(text, 40).split("\n") == broken


@pytest.mark.parametrize("columns", [0, 39, 10_000])
def test_lines_are_left_alone(columns):
    """Where there is no terminal, it is too narrow, or all fits."""
    text = "a b " * 40 + "\n\n" + "c"
    assert wrap_text(text, columns) == text
