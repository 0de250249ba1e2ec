"""Read files that hold several tensors by name, and files of one tensor each, for formats without further structure.

A tensor is an operator of its own, or a slot of an operator if its name says so (readers/names.py). Files of several
tensors record no order, but for one that npucmp wrote: operators are sorted by name, and a module follows everything it
contains.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Union

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.folders import RunFiles, files_of
from npucmp.dump.readers.mindspore_files import compute_dtype
from npucmp.dump.readers.names import by_module, natural, operator_of, parse_tensor_names, skipped_files_note
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.safetensors import InOrder
from npucmp.errors import DumpError
from npucmp.model import Operator, Payload, Run, TensorRef
from npucmp.model.optypes import holds_weights_alone

Entries = Callable[[RegularFile], "dict[str, Union[Payload, str]]"]
_GUESSED = "order: guessed, the file does not record it; operators are sorted by name"


def runs_of(path: Path, endings: tuple[str, ...], format: str, entries: Entries, context: ReadContext) -> list[Run]:
    """Return one Run per step and rank of the files below a path. `entries` returns the tensors of one file by name."""
    return [_run(found, format, entries, context) for found in files_of(path, endings)]


def _run(found: RunFiles, format: str, entries: Entries, context: ReadContext) -> Run:
    read: list[tuple[str, str, TensorRef]] = []  # file, name, tensor
    ordered = False
    for folder, name, file in found.paths:
        stem = "/".join(filter(None, (folder, name[: name.rindex(".")])))
        try:
            with open_regular(file, context) as opened:
                here = entries(opened)
        except DumpError as error:
            read.append(
                (stem, stem, TensorRef("", "", (), file=file, encoding=format, problem=error.because, label=name))
            )
            continue
        read.extend((stem, key, _tensor(key, one, file, format)) for key, one in here.items())
        ordered = isinstance(here, InOrder) and len(found.paths) == 1
    operators = _operators(read, ordered)
    outputs = all(tensor.is_output for one in operators for tensor in one.tensors)
    notes = (*(() if ordered else (_GUESSED,)), *filter(None, [skipped_files_note(found.path, found.others)]))
    run = Run(found.path, format, operators, found.step, found.rank, notes=notes, ordered=ordered)
    return replace(run, detail="weights only" if holds_weights_alone(run) else "outputs only" if outputs else "")


def _tensor(key: str, found: Union[Payload, str], file: str, format: str) -> TensorRef:
    if isinstance(found, str):
        return TensorRef("", "", (), file=file, encoding=format, problem=found, label=key)
    return TensorRef("output:0", found.dtype, found.shape, file, format, label=key, payload=found)


def _operators(read: list[tuple[str, str, TensorRef]], ordered: bool) -> tuple[Operator, ...]:
    """Return the operators, sorted by name unless they are `ordered`; if several files hold the same name, the file
    name becomes part of the operator name."""
    repeated = max(Counter(key for _, key, _ in read).values(), default=0) > 1
    tensors: dict[str, dict[str, TensorRef]] = {}
    parsed = parse_tensor_names(key for _, key, tensor in read if tensor.slot)
    for stem, key, tensor in read:
        name, slot = parsed[key][:2] if tensor.slot else (key, "")
        tensor = tensor._replace(slot=slot)
        at = f"{stem}/{name}" if repeated else name
        if tensor.slot in tensors.get(at, ()):  # two names of the same slot, such as "a.output" and "a.output.0"
            at, tensor = f"{at}/{key}", tensor._replace(slot="output:0")
        tensors.setdefault(at, {})[tensor.slot] = tensor
    names = tensors if ordered else sorted(tensors, key=lambda name: [by_module(part) for part in name.split("/")])
    return tuple(
        operator_of(name, order, tuple(tensors[name][slot] for slot in sorted(tensors[name], key=natural)))
        for order, name in enumerate(names)
    )


def tensor_of(slot: str, file: str, encoding: str, word: str = "", context: ReadContext = ANYWHERE) -> TensorRef:
    """Return the tensor of a file, from its header only; an unreadable tensor has a problem and no slot.

    `word` is the type used in the computation according to the dump, if it differs from the type in the file.
    """
    label = os.path.basename(file)
    try:
        found = header(encoding, file, context)
    except DumpError as error:
        return TensorRef("", "", (), file=file, encoding=encoding, problem=error.because, label=label)
    return TensorRef(slot, compute_dtype(word, found.dtype), found.shape, file=file, encoding=encoding, label=label)
