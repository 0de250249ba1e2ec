"""A hash of the values of a tensor that does not depend on their order: views, transposes and reshapes keep it."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = (1 << 64) - 1  # mask of bits: definition: a hash is a number of 64 bits
BLOCK = 1 << 16  # elements: work


def hash_values(values: Any) -> int:
    """Return the sum of the mixed bits of the elements of a flat array as float64, below 2**64; -0 counts as 0. The
    hash of an array is the sum of the hashes of its parts, modulo 2**64."""

    total = 0
    for at in range(0, values.size, BLOCK):
        bits = (values[at : at + BLOCK].astype(np.float64) + 0.0).view(np.uint64)
        mixed = bits + np.uint64(0x9E3779B97F4A7C15)  # the finalizer of splitmix64: each bit changes half of all
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum(dtype=np.uint64))
    return total & WIDTH
