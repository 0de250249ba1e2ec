"""Runs in memory: a call is (operator type, inputs, outputs), or has fields of its Operator as a fourth part. Tensors
are arrays, or TensorRefs without values."""

from __future__ import annotations

from typing import Any

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.dump.readers.strides import c_strides
from npucmp.model import Operator, Payload, Run, TensorRef
from npucmp.model.dump import Statistics
from npucmp.relations.frameworks.contents.content import ContentReader
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs
from npucmp.relations.held_values import Values

NOISE = 1e-3


class MemoryValues(Values):
    """Values of arrays that no file holds. Views are made as the readers of files make them."""

    def __init__(self) -> None:
        super().__init__(ANYWHERE)
        self.arrays: dict[str, Any] = {}

    def payload_of(self, array: Any) -> Payload:
        name = f"memory {len(self.arrays)}"
        self.arrays[name] = np.ascontiguousarray(array).reshape(-1)
        return Payload(name, array.dtype.name, array.shape, 0)

    def array(self, tensor: TensorRef) -> Any:
        view = None if tensor.payload is None else self._view(tensor.payload)
        return None if view is None else view.reshape(tensor.shape)

    def _view(self, payload: Payload) -> Any:
        if payload.parts:
            return self._view(payload.parts[0]).reshape(payload.shape)
        flat = self.arrays.get(payload.path)
        if flat is None:
            return None
        strides = [one * flat.itemsize for one in payload.strides or c_strides(payload.shape)]
        return np.lib.stride_tricks.as_strided(flat[payload.offset // flat.itemsize :], payload.shape, strides)


def run_in_memory(values: MemoryValues, calls, ordered=True) -> Run:
    """A run with these calls in order. An operator is named after its type and its place: "relu.0"."""
    operators = []
    for place, (kind, inputs, outputs, *more) in enumerate(calls):
        refs = [_ref(values, f"{side}:{at}", one) for side, each in (("input", inputs), ("output", outputs))
                for at, one in enumerate(each)]  # fmt: skip
        fields = {"name": f"{kind}.{place}", "phase": "forward", **(more[0] if more else {})}
        operators.append(Operator(op_type=kind, kind=kind, order=place, tensors=tuple(refs), **fields))
    return Run("run", "synthetic", tuple(operators), ordered=ordered)


def _ref(values: MemoryValues, slot: str, one: Any) -> TensorRef:
    if isinstance(one, TensorRef):
        return one._replace(slot=slot)
    one = np.asarray(one)
    return TensorRef(slot, one.dtype.name, one.shape, payload=values.payload_of(one))


def recorded(array: Any) -> TensorRef:
    """A tensor of which the dump has only statistics."""
    found = Statistics(*(float(one) for one in (array.max(), array.min(), array.mean(), np.linalg.norm(array))))
    return TensorRef("", "float32", array.shape, statistics=found)


def pairs_in_memory(target, golden, known=(), noise=NOISE, ordered=True, values=None) -> ContentPairs:
    """The pairs of two runs, none but the `known` ones: numbers of contents, which are equal if only one is given."""
    values = values or MemoryValues()
    reader = ContentReader(values)
    graphs = [ContentGraph(run_in_memory(values, calls, ordered), reader) for calls in (target, golden)]
    pairs = ContentPairs(*graphs, reader, noise)
    for one in known:
        assert pairs.add(by_value(*(one if isinstance(one, tuple) else (one, one))))
    return pairs


def by_value(target: int, golden: int, **more) -> ContentPair:
    """A pair of equal values."""
    return ContentPair(target, golden, **{"via": "content", "confidence": 0.99, "reason": "", "error": 0.0, **more})


def drawn(seed: int, *shape: int) -> Any:
    """Random values; those of two seeds are unlike."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
