"""The common sequence of two lists of operators with the largest similarity."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

# score: chosen: less than what anything else adds; of equal sequences that one is taken whose pairs follow each other
NEXT = 0.01


def common_sequence(rows: int, columns: int, gains_of: Callable[[int], Any]) -> list[tuple[int, int]]:
    """Return the pairs of row and column, in order. `gains_of` gives the similarity of a row with all columns, float32
    [columns]; 0 where two are no pair."""
    best = np.zeros((rows + 1, columns + 1), np.float32)
    ends = np.zeros(best.shape, bool)  # whether a pair ends the best sequence
    for i in range(rows):
        gains = gains_of(i)
        diagonal = np.where(gains > 0, best[i, :-1] + gains + NEXT * ends[i, :-1], 0.0)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], diagonal))
        ends[i + 1, 1:] = (diagonal > 0) & (diagonal == best[i + 1, 1:])
    found, i, j, follows = [], rows, columns, False
    while i and j:
        is_pair = follows and ends[i, j]
        if not is_pair and best[i, j] == best[i, j - 1]:
            j, follows = j - 1, False
        elif not is_pair and best[i, j] == best[i - 1, j]:
            i, follows = i - 1, False
        else:
            i, j, follows = i - 1, j - 1, True
            found.append((i, j))
    return found[::-1]
