"""Which runs work with products that keep 11 bits, and which have one such product, which is a fault."""

from __future__ import annotations

import numpy as np

from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block


def eleven_bits(x):
    """To the nearest of 11 significant bits, as units of HF32 and TF32 round a float32."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 2**11), exponent - 11)


def moments_of(x, y):
    return measure_block(x.reshape(-1), y.reshape(-1), bars_for("float32", "float32", 0.0, 0.0))
