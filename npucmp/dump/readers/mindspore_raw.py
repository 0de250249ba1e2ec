"""Read tensors that were written as bytes only: because NPY lacks their type or format, or all of a dump.

    {type}.{name}.{task}.{stream}.{microseconds}.{input|output}.{n}.{format}.{DTYPE}[.bin]
    the whole file is the values, size = elements · width; the file holds neither type nor shape

The type comes from the name, else from the row in statistic.csv; the shape comes from the row if the bytes fit it.
Without a row the tensor is 1-D, and its partner in the other run determines the shape (align/infer_shape.py).
Source: public sources of msprobe (AclDumpDataProcessor, AclTensor).
"""

from __future__ import annotations

import os
import re
from typing import Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.layouts import DEVICE_LAYOUTS
from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.mindspore_names import MindsporeName
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import DumpError
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import canonical, lookup, size_of

_LAYOUTS = {"NZ": "FRACTAL_NZ"}
_DEVICE = re.compile(r"FRACTAL_\w+|\w*C1\w*C0\w*|C1HWNCoC0")


def raw_type(name: MindsporeName) -> str:
    """Return the type in a name, "" if it cannot be read."""
    found = canonical(from_name(name.dtype))
    return found if lookup(found) else ""


def device_layout(word: str) -> str:
    """Return the layout in a name if it is a device layout, "" if it is in plain order."""
    layout = _LAYOUTS.get(word, word)
    return layout if layout in DEVICE_LAYOUTS or _DEVICE.fullmatch(layout) else ""


def raw_tensor(name: MindsporeName, file: str, row: Optional[TensorRef], context: ReadContext = ANYWHERE) -> TensorRef:
    """Return the tensor of such a file; with a problem if its bytes are not whole elements of a known type."""
    label = os.path.basename(file)
    dtype = raw_type(name) or (row.dtype if row and lookup(row.dtype) else "")
    made = TensorRef(name.slot, dtype, (), file, label=label)
    try:
        with open_regular(file, context) as opened:
            size = opened.size
            tensor_size(file, (size,), 1, opened.limits)
    except DumpError as error:
        return made._replace(slot="", problem=error.because)
    kind = lookup(dtype)
    if kind is None and row:
        return row
    if kind is None:
        words = f"no file records their type ({name.dtype!r:.40})" if name.dtype else "no file records their type"
        return made._replace(problem=f"raw bytes without a header: {words}", dtype=canonical(from_name(name.dtype)))
    if size % kind.itemsize and not kind.bits:
        return made._replace(problem=f"cut short: {size} bytes are not a multiple of {dtype}")
    layout = device_layout(name.layout)
    made = made._replace(
        layout=layout, statistics=row.statistics if row else None, checksum=row.checksum if row else ""
    )
    if row and not row.problem and not layout:
        if size_of(dtype, row.shape) != size:
            words = f"{size} bytes, statistic.csv gives it shape {list(row.shape)}, {size_of(dtype, row.shape)} bytes"
            return made._replace(problem=words)
        return made._replace(shape=row.shape, payload=Payload(file, dtype, row.shape, 0))
    count = size * 8 // (kind.bits or kind.itemsize * 8)
    return made._replace(shape=(count,), payload=Payload(file, dtype, (count,), 0, unshaped=True))
