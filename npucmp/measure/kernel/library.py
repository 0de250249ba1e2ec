"""The compiled kernel (native.c) and whether it is in use. `--version` imports this module, so it needs no numpy.

`pip install` builds it if a compiler exists and skips it if not. NPUCMP_KERNEL=numpy disables it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Iterable, Optional

from npucmp.model.moments import FIELDS, HISTOGRAM_BINS, SIDE_FIELDS, Field

SWITCH = "NPUCMP_KERNEL"
_POINTER = ctypes.c_void_p


def _words(fields: Iterable[Field]) -> str:
    return "".join(f"{field.c_type} {field.name} {field.merge.name};" for field in fields)


C_FIELDS = f"{HISTOGRAM_BINS} decades;{_words(SIDE_FIELDS)}{_words(FIELDS)}"  # the fields that C must be built for


@cache
def library() -> Optional[ctypes.CDLL]:
    """The compiled kernel; None if it was not built, was built for other FIELDS, or is disabled."""
    if os.environ.get(SWITCH) == "numpy":
        return None
    for file in sorted(Path(__file__).parent.glob("_native*")):
        if file.suffix not in (".so", ".pyd", ".dylib"):
            continue
        try:
            found = ctypes.CDLL(str(file))
            if ctypes.c_char_p.in_dll(found, "npucmp_record").value != C_FIELDS.encode():
                continue
            found.npucmp_avx512.restype = ctypes.c_int32
            found.npucmp_measure.restype = found.npucmp_side.restype = None
            found.npucmp_measure.argtypes = *(_POINTER, ctypes.c_int64) * 2, *(ctypes.c_int64,) * 2, *(_POINTER,) * 2
            found.npucmp_side.argtypes = _POINTER, ctypes.c_int64, ctypes.c_int32, _POINTER, _POINTER
        except (OSError, AttributeError, ValueError):  # built for another machine, or an unrelated file of that name
            continue
        return found
    return None


def name() -> str:
    """The kernel in use: "native" or "numpy"."""
    return "numpy" if library() is None else "native"


@cache
def has_avx512() -> int:
    """1 if the compiled kernel has loops for AVX-512 and this processor can run them, else 0. The results are the
    same."""
    native = library()
    return int(native.npucmp_avx512()) if native is not None else 0
