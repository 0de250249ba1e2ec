"""Checksums of values in the notation of dumps that recorded checksums instead of values.

    8 hexadecimal digits     CRC-32 of the elements in C order                     msprobe, summary_mode md5
    0x and 16 digits         XOR of their 64-bit words, little endian, the last
                             word padded with zeros                                msprobe, summary_mode xor
    32 digits                MD5                                                   MindSpore's statistic.csv

The bytes of a bfloat16 depend on the release: newer msprobe uses its 16 bits, older msprobe and MindSpore first widen
it to float32. Both are tried.

Source: dumps of mindstudio-probe 26.2 with and without values; every CRC-32 and every XOR was reproduced. MD5 is
UNVERIFIED, so it proves equality but not a difference. An XOR proves a difference but not equality (recorded_stats.py).
mindstudio-probe 26.2 records the value of a 0-d tensor and no XOR; an XOR of it is UNVERIFIED and proves nothing.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from npucmp.dump.readers.decode import NATIVE
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES, numpy_dtype

Array = npt.NDArray[Any]


class _Crc32:
    def __init__(self) -> None:
        self.value = 0

    def update(self, data: Array) -> None:
        self.value = zlib.crc32(data.data, self.value)

    def hexdigest(self) -> str:
        return f"{self.value:08x}"


class _Xor:
    def __init__(self) -> None:
        self.value, self.rest = 0, b""

    def update(self, data: Array) -> None:
        pending = self.rest + data.tobytes() if self.rest else data
        words, self.rest = len(pending) // 8, bytes(pending[len(pending) & ~7 :])
        self.value ^= int(np.bitwise_xor.reduce(np.frombuffer(pending, "<u8", words))) if words else 0

    def hexdigest(self) -> str:
        return f"0x{self.value ^ int.from_bytes(self.rest, 'little'):016x}"


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


_KINDS = (
    (re.compile("[0-9a-f]{8}"), _Crc32),
    (re.compile("0x[0-9a-f]{16}"), _Xor),
    (re.compile("[0-9a-f]{32}"), _md5),
)


class Checksum:
    """The checksum of values that arrive block by block, of the kind of `recorded`, a checksum of a tensor of `dtype`.

    For unknown kinds, and for values whose memory layout differs from the file, the checksum is unknown.
    """

    def __init__(self, recorded: str, dtype: str, payload: Payload) -> None:
        self._recorded = recorded
        kind = next((make for pattern, make in _KINDS if pattern.fullmatch(recorded.lower())), None)
        row = DTYPES.get(payload.dtype)
        forms = _forms(payload.dtype, dtype) if row is not None and not row.memory else []
        self._made = [(form, kind()) for form in forms] if kind else []
        self._proves_difference = kind is _Crc32 or (kind is _Xor and bool(payload.shape))

    def add(self, block: Array) -> None:
        for form, made in self._made:
            made.update((block if form == block.dtype else block.astype(form)).view("u1"))

    @property
    def text(self) -> str:
        """`recorded` if it matches the values, else their own checksum; "" if unknown."""
        texts = [made.hexdigest() for _, made in self._made]
        if self._recorded.lower() in texts:
            return self._recorded
        return texts[0] if texts and self._proves_difference else ""


def _forms(stored: str, recorded: str) -> list[Any]:
    """The numpy types of the bytes that a checksum may cover, for values stored in one type and recorded as another."""
    names = {stored, "bfloat16", "float32"} if recorded == "bfloat16" else {stored}
    return [numpy_dtype(name, NATIVE) for name in sorted(names, key=lambda name: name != stored)]
