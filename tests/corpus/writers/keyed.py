"""Writes files of several tensors by name: .npz, .safetensors and .pt of a dictionary; one for each step and rank.

step{N}/rank{M}/tensors.{ending}      without a rank step{N}/tensors.{ending}

.npz          members stored, bfloat16 as float32
.safetensors  8 bytes: length of the header; JSON {name: {dtype, shape, data_offsets}}; the values
.pt           a zip: archive/data.pkl, a dictionary of tensors; archive/data/{n}, the values of each
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Mapping, Sequence

from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers import msprobe
from tests.corpus.writers.slots import keyed, module_names

SAFE = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
    "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


FILE = "tensors"


def write(folder: Path, runs: Sequence[Run], ending: str, whole: bool) -> None:
    """One file for each run; whole: inputs too, by the names of msprobe."""
    alone = len(runs) == 1 and runs[0].step == 0 and runs[0].rank is None
    for run in runs:
        rank = "" if run.rank is None else f"rank{run.rank}"
        place = folder if alone else folder / f"step{run.step}" / rank
        place.mkdir(parents=True, exist_ok=True)
        tensors = keyed(run, _keys(run, whole), whole)
        if tensors:
            place.joinpath(f"{FILE}.{ending}").write_bytes(content(tensors, ending))


def names(run: Run, ending: str, whole: bool) -> dict[Record, str]:
    """What a dump of this run calls each of its operators; a .pt of a dictionary is one operator of its file's name."""
    if ending == "pt":
        return dict.fromkeys(module_names(run), FILE)
    return _keys(run, whole)


def _keys(run: Run, whole: bool) -> dict[Record, str]:
    if not whole:
        return module_names(run)
    return {record: name for record, name in msprobe.names(run).items() if record.kind != "Module"}


def content(tensors: Mapping[str, Tensor], ending: str) -> bytes:
    """The bytes of a file."""
    return {"npz": _npz, "safetensors": _safetensors, "pt": _pt}[ending](tensors)


def _npz(tensors: Mapping[str, Tensor]) -> bytes:
    return msprobe.stored_zip([(f"{name}.npy".encode(), msprobe.npy(one)) for name, one in tensors.items()], 1)


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    header, values, at = {}, [], 0
    for name, one in tensors.items():
        data = msprobe.raw(one)
        header[name] = {
            "dtype": SAFE[one.dtype],
            "shape": list(one.values.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
        values.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(values)


def _pt(tensors: Mapping[str, Tensor]) -> bytes:
    parts, members = [b"\x80\x02}("], []
    for k, (name, one) in enumerate(tensors.items()):
        key = name.encode()
        parts.append(b"X" + struct.pack("<I", len(key)) + key + msprobe.rebuilt(one.dtype, one.values.shape, k))
        members.append((f"archive/data/{k}".encode(), msprobe.raw(one)))
    parts.append(b"u.")
    start = [(b"archive/data.pkl", b"".join(parts)), (b"archive/byteorder", b"little")]
    return msprobe.stored_zip([*start, *members, (b"archive/version", b"3\n")])
