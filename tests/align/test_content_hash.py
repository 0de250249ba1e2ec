"""The hash of values in any order: 64 bits of the finalizer of splitmix64, summed."""

from __future__ import annotations

import struct

import numpy as np

from npucmp.align.content_hash import WIDTH, hash_values


def mixed(number: float) -> int:
    """The next number of splitmix64 from the bits of a float64 number."""
    bits = struct.unpack("<Q", struct.pack("<d", number))[0] + 0x9E3779B97F4A7C15 & WIDTH
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & WIDTH
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & WIDTH
    return bits ^ bits >> 31


def test_the_hash_of_zero_is_the_first_number_of_splitmix64():
    assert hash_values(np.zeros(1)) == 0xE220A8397B1DCDAF  # as published
    assert hash_values(-np.zeros(1)) == hash_values(np.zeros(1))


def test_the_hash_is_the_sum_of_the_mixed_bits_of_all_values_modulo_64_bits():
    values = np.random.default_rng(1).standard_normal(50)
    assert WIDTH == 2**64 - 1
    assert hash_values(values) == sum(map(mixed, values)) % 2**64
    assert (hash_values(values[:20]) + hash_values(values[20:])) & WIDTH == hash_values(values)
