"""Read files of one tensor each as TensorRefs."""

from __future__ import annotations

import os

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.mindspore_names import computed_in
from npucmp.errors import DumpError
from npucmp.model import TensorRef


def tensor_of(slot: str, file: str, encoding: str, word: str = "", context: ReadContext = ANYWHERE) -> TensorRef:
    """Return the tensor of a file, from its header only; an unreadable tensor has a problem and no slot.

    `word` is the type used in the computation according to the dump, if it differs from the type in the file.
    """
    label = os.path.basename(file)
    try:
        found = header(encoding, file, context)
    except DumpError as error:
        return TensorRef("", "", (), file=file, encoding=encoding, problem=error.because, label=label)
    return TensorRef(slot, computed_in(word, found.dtype), found.shape, file=file, encoding=encoding, label=label)
