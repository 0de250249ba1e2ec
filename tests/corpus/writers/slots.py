"""Slots of a record and names of tensors, for formats that know tensors by name alone."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, NamedTuple

import numpy as np

from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.writers.naming import MODULE

PARAMETER = "parameter"  # the kind of a record that is one tensor of a checkpoint


class Slot(NamedTuple):
    """role: "input", "input_kwargs" or "output"; path: "0", "0.1" of a list, or the argument's name."""

    role: str
    path: str
    tensor: Tensor


def slots(record: Record) -> Iterator[Slot]:
    """The recorded tensors of a record, inputs first."""
    if record.given:
        for place, item in enumerate(record.inputs):
            if isinstance(item, Tensor):
                yield Slot("input", str(place), item)
            elif isinstance(item, (list, tuple)):
                for k, one in enumerate(item):
                    if isinstance(one, Tensor):
                        yield Slot("input", f"{place}.{k}", one)
        for key, item in record.keywords.items():
            if isinstance(item, Tensor):
                yield Slot("input_kwargs", key, item)
    if record.told:
        for place, output in enumerate(record.outputs):
            if output is not None:
                yield Slot("output", str(place), output)


def module_names(run: Run) -> dict[Record, str]:
    """Names like those of modules: "layers.0.attn.linear_1"; a tensor of a checkpoint has its own name."""
    seen: Counter[str] = Counter()
    found = {}
    for record in run.records:
        if record.kind == MODULE:
            continue
        if record.kind == PARAMETER:
            found[record] = record.scope
            continue
        kind = f"{record.kind}_backward" if record.phase == "backward" else record.kind
        stem = ".".join(filter(None, (record.scope, kind)))
        found[record] = f"{stem}_{seen[stem]}"
        seen[stem] += 1
    return found


def keyed(run: Run, names: dict[Record, str], whole: bool) -> dict[str, Tensor]:
    """Tensors by name: `{name}.{role}.{path}`; without `whole` the outputs alone, `{name}` where there is one."""
    found: dict[str, Tensor] = {}
    for record, name in names.items():
        for slot in slots(record):
            if whole and record.kind != PARAMETER:
                found[f"{name}.{slot.role}.{slot.path}"] = slot.tensor
            elif slot.role == "output":
                alone = sum(one is not None for one in record.outputs) == 1
                found[name if alone else f"{name}.output.{slot.path}"] = slot.tensor
    return found


def array(tensor: Tensor) -> np.ndarray:
    """The array that numpy keeps of a tensor: float32 for bfloat16."""
    return tensor.values.astype(np.float16) if tensor.dtype == "float16" else tensor.values
