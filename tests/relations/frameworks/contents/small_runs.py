"""Small runs whose values are in memory, and their graphs and pairs of contents."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Operator, Run, Statistics, TensorRef
from npucmp.relations.frameworks.contents.content import ContentReader
from npucmp.relations.frameworks.contents.content_graph import ContentGraph
from npucmp.relations.frameworks.contents.content_pairs import ContentPair, ContentPairs

RNG = np.random.default_rng(11)


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def seeded(seed: int, *shape: int) -> Any:
    """Numbers for a whole module of tests, which do not depend on other modules."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Step(NamedTuple):
    """One operator. Values are arrays, statistics, or a shape without values; `sources` of its inputs, by place."""

    kind: str
    inputs: tuple = ()
    outputs: tuple = ()
    phase: str = "forward"
    path: str = ""
    call: str = ""
    name: str = ""
    sources: tuple = ()


class MemoryValues:
    """Values of tensors that are in memory, in place of the files of a dump."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.context = ANYWHERE

    def array(self, tensor: TensorRef) -> Optional[Any]:
        return self.arrays.get(tensor.label)

    def payload(self, tensor: TensorRef) -> None:
        return None

    def tensor(self, slot: str, values: Any, source: str = "") -> TensorRef:
        if isinstance(values, Statistics):
            return TensorRef(slot, "float32", (4, 4), statistics=values, source=source)
        if isinstance(values, tuple):
            return TensorRef(slot, "float32", values, source=source)
        label = str(len(self.arrays))
        self.arrays[label] = values = np.asarray(values, np.float32)
        return TensorRef(slot, "float32", values.shape, "in memory", label=label, source=source)

    def run(self, *steps: Step) -> Run:
        operators = []
        for order, one in enumerate(steps):
            sources = dict(enumerate(one.sources))
            tensors = [self.tensor(f"input:{at}", each, sources.get(at, "")) for at, each in enumerate(one.inputs)]
            tensors += [self.tensor(f"output:{at}", each) for at, each in enumerate(one.outputs)]
            name = one.name or f"{one.kind}.{order}"
            operators.append(
                Operator(name, one.kind, one.kind, one.phase, order, tuple(tensors), path=one.path, call=one.call)
            )
        return Run("memory", "synthetic", tuple(operators))


def graph_of(*steps: Step) -> ContentGraph:
    values = MemoryValues()
    return ContentGraph(values.run(*steps), ContentReader(values))  # type: ignore[arg-type]


def pairs_of(target: tuple[Step, ...], golden: tuple[Step, ...], noise: float = 1e-3) -> ContentPairs:
    """The contents of two runs, without any pair."""
    values = MemoryValues()
    reader = ContentReader(values)  # type: ignore[arg-type]
    return ContentPairs(*(ContentGraph(values.run(*one), reader) for one in (target, golden)), reader, noise)


def connect(pairs: ContentPairs, *numbers: tuple[int, int], via: str = "content", **more: Any) -> None:
    """Add pairs of these contents, of the target and the golden run."""
    for target, golden in numbers:
        assert pairs.add(ContentPair(target, golden, via, 0.99, "", **more))


def number_of(graph: ContentGraph, place: int, slot: str = "output:0") -> int:
    return graph.content_of[place, slot]
