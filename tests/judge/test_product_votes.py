"""The votes of crafted products: what one product shows, and which tensors are its operands and its result."""

from __future__ import annotations

import math

import pytest

from npucmp.judge.products import ROUNDED, MatrixProduct, OperandFigures

TWO = 2 * ROUNDED**2  # the square of the error of 11 bits in both operands of 16 terms of either sign


def figures(error=0.0, rms=1.0, elements=256, is_long=True):
    return OperandFigures(rms, math.sqrt(error), elements, is_long)


def vote(read=(0.0, 0.0), wrote=TWO, terms=16, rms=4.0, elements=256, is_long=(True, True)):
    """The vote by squares of errors."""
    operands = tuple(figures(one, is_long=long) for one, long in zip(read, is_long))
    return MatrixProduct(operands, figures(wrote, rms, elements), terms).vote


@pytest.mark.parametrize("elements, given", [(15, 0.0), (16, 1.0), (17, 1.0)])
def test_a_result_of_at_least_16_elements_votes(elements, given):
    assert vote(elements=elements) == given
