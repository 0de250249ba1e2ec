"""Whole numbers that do not come from rounding to a narrow type, by their bits, counted here from the values."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.judge.precision import is_counted
from npucmp.model import Measurement, Moments, Side

FLOAT16, BFLOAT16 = 2.0**-11, 2.0**-8  # unit round-off


def side(values) -> Side:
    """The facts on whole or half numbers that need at most 11 bits each."""
    doubled = [int(2 * abs(one)) for one in values if one]
    last = [one & -one for one in doubled]
    bits = max((one // low).bit_length() for one, low in zip(doubled, last))
    return Side(minimum=min(values), maximum=max(values), bits=bits, last_bit=min(last) / 2)


COUNTED = {
    "bfloat16 cannot hold them": (np.arange(513.0, 1024.0), BFLOAT16),
    "float16 can, but its steps are finer": (np.arange(1.0, 512.0), FLOAT16),
}
ROUNDED = {
    "a mask of whole numbers needs few bits": (np.array([0.0, 1.0, 200.0]), FLOAT16),
    "steps as coarse as 1 come from rounding": (np.array([1040.0, 2000.0]), FLOAT16),
    "halves are no whole numbers": (np.arange(0.5, 400.0), FLOAT16),
}


@pytest.mark.parametrize("values, round_off", [*COUNTED.values(), *ROUNDED.values()], ids=[*COUNTED, *ROUNDED])
def test_whole_numbers_that_were_counted(values, round_off):
    moments = Moments(len(values), target=side(values), golden=side(values))
    expected = any(values is one for one, _ in COUNTED.values())
    assert is_counted(Measurement(None, moments), round_off) == expected  # type: ignore[arg-type]


def test_one_side_of_few_bits_decides():
    """Both sides must be counts: the other may be a mask."""
    moments = Moments(2, target=side(np.arange(1.0, 512.0)), golden=side(np.array([1.0, 200.0])))
    assert not is_counted(Measurement(None, moments), FLOAT16)  # type: ignore[arg-type]
    assert not is_counted(Measurement(None), FLOAT16) and not is_counted(Measurement(None, moments), 0.0)  # type: ignore[arg-type]
