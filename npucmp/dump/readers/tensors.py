"""Files of one tensor each → TensorRefs."""

from __future__ import annotations

import os

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.mindspore_names import computed_in
from npucmp.errors import DumpError
from npucmp.model import TensorRef


def tensor_of(slot: str, file: str, encoding: str, word: str = "", context: ReadContext = ANYWHERE) -> TensorRef:
    """The tensor of a file by its header alone; one that cannot be read has a problem and no slot.

    `word` is the type that the dump says it computed in, where that is not the one that the file holds.
    """
    label = os.path.basename(file)
    try:
        found = header(encoding, file, context)
    except DumpError as error:
        return TensorRef("", "", (), file=file, encoding=encoding, problem=error.because, label=label)
    return TensorRef(slot, computed_in(word, found.dtype), found.shape, file=file, encoding=encoding, label=label)
