"""What the names of operators and files say, of all formats alike."""

from __future__ import annotations

import re


def natural(text: str) -> "list[object]":
    """A key that sorts numbers in names as numbers: "conv2" before "conv10". Digits are taken eighteen at a time,
    because Python turns no text of thousands of them into a number."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]{1,18})", text))]


def type_of_name(name: str) -> str:
    """The last part of a node's name that is no index: "MatMul" of "layer1/MatMul_3" and "layer1_MatMul_3"."""
    parts = [part for part in re.split(r"[/_.]", name) if not re.fullmatch(r"[0-9]*", part)]
    return parts[-1] if parts else name
