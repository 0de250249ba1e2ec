"""The reference kernel keeps the contract."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from npucmp.measure.kernel import native, numpy_kernel
from tests.contracts import KernelContract


class TestNumpyKernel(KernelContract):
    def measure(self, x, y, rtol=0.0, atol=0.0, start=0):
        bars = numpy_kernel.bars_for(x.dtype.name, y.dtype.name, rtol, atol)
        return numpy_kernel.measure_block(x, y, bars, start)

    def side(self, x):
        return numpy_kernel.measure_side(x)


BUILT = [one for end in EXTENSION_SUFFIXES for one in Path(native.__file__).parent.glob(f"_native*{end}")]


@pytest.mark.skipif(not BUILT, reason="the C kernel was not built")
def test_the_compiled_kernel_is_used():
    """The tests of the compiled kernel would be skipped without it."""
    assert native.library.__wrapped__() is not None
