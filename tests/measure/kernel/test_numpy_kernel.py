"""The reference kernel keeps the contract."""

from __future__ import annotations

from npucmp.measure.kernel import numpy_kernel
from tests.contracts import KernelContract


class TestNumpyKernel(KernelContract):
    def measure(self, x, y, rtol=0.0, atol=0.0, start=0):
        bars = numpy_kernel.bars_for(x.dtype.name, y.dtype.name, rtol, atol)
        return numpy_kernel.measure_block(x, y, bars, start)

    def side(self, x):
        return numpy_kernel.measure_side(x)
