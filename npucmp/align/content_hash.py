"""A hash of the values of a tensor that does not depend on their order: views, transposes and reshapes keep it."""

from __future__ import annotations

from typing import Any

WIDTH = (1 << 64) - 1  # definition: a hash is a number of 64 bits


def hash_values(values: Any) -> int:
    """Return the sum of the mixed bits of float64 numbers, below 2**64; -0 counts as 0. The hash of an array is the sum
    of the hashes of its blocks, modulo 2**64."""
    import numpy as np

    bits = (values + 0.0).view(np.uint64)
    with np.errstate(over="ignore"):  # the finalizer of splitmix64: each bit, that of the sign too, changes half of all
        mixed = bits + np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        return int(mixed.sum(dtype=np.uint64))
