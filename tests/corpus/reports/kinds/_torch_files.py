"""Files of torch.save with nested values, and dumps of several steps, for cases about checkpoints and steps."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_D as dumps
from tests.corpus.weights import files
from tests.corpus.weights.files import Stored


def torch_save(path: Path, value: Any) -> None:
    """Write dicts, lists, numbers, text and arrays as torch.save does."""
    stored: list[Stored] = []

    def pickled(item: Any) -> bytes:
        if isinstance(item, np.ndarray):
            stored.append(Stored(item, "float32"))
            return files._tensor(stored[-1], len(stored) - 1)
        if isinstance(item, dict):
            return b"}(" + b"".join(pickled(key) + pickled(own) for key, own in item.items()) + b"u"
        if isinstance(item, (list, tuple)):
            return b"](" + b"".join(map(pickled, item)) + b"e"
        if isinstance(item, bool):
            return b"\x88" if item else b"\x89"
        if isinstance(item, float):
            return b"G" + struct.pack(">d", item)
        return b"N" if item is None else files._integer(item) if isinstance(item, int) else files.pickled_text(item)

    state = pickled(value)
    members = [(f"archive/data/{at}".encode(), one.raw) for at, one in enumerate(stored)]
    path.write_bytes(files._archive(state, members))


def write_step(folder: Path, step: int, records: dict[str, dict[str, Any]], form: str, level: str = "L1") -> None:
    """Write the records of one step; see _dumps_D.write."""
    place = folder / "making"
    dumps.write(place, records, form, level, "rank0")
    shutil.move(str(place / "step0"), str(folder / f"step{step}"))
    place.rmdir()
