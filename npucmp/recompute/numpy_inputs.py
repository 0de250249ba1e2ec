"""Inputs of a graph's operator: arrays, attributes, and the recorded shapes of its results.

The graph is untrusted: an attribute of an unexpected form is refused, and this operator is then not recomputed. A
missing attribute takes its usual value and is listed in `doubts`: an operator with doubts is never GUILTY.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import MissingTensor, RefusedRecord

MOST = 1 << 31
IMAGES = ("NCHW", "NHWC")


@dataclass(frozen=True)
class OperatorInputs:
    """inputs    by place; floats are float64
    attributes  by their names in the graph
    shapes      of the recorded results, in order
    orders      of axes, by slot ("input:0": "NHWC")
    source      the format of the dump, which gives the defaults of its framework
    doubts      attributes that were guessed
    """

    inputs: Mapping[int, Array]
    attributes: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...] = ()
    orders: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    doubts: list[str] = field(default_factory=list)

    def x(self, place: int, what: str = "") -> Array:
        """An input. Raises MissingTensor."""
        if place not in self.inputs:
            raise MissingTensor(f"the dump holds no input {place}" + (f", {what}" if what else ""))
        return self.inputs[place]

    def optional(self, place: int, *names: str) -> Optional[Array]:
        """An optional input, by its name if the graph names its inputs."""
        known = self.attributes.get("inputs", ())
        if names and isinstance(known, tuple) and any(known):
            place = next((at for at, name in enumerate(known) if name in names), -1)
        return self.inputs.get(place)

    @property
    def first(self) -> Optional[Array]:
        """The input that an operator may write into."""
        return self.inputs.get(0)

    @property
    def all(self) -> list[Array]:
        return [self.inputs[place] for place in sorted(self.inputs)]

    def map_floats(self, change: Callable[[Array], Array]) -> OperatorInputs:
        """A copy with `change` applied to each float input."""
        found = {at: change(one) if one.dtype.kind == "f" else one for at, one in self.inputs.items()}
        return replace(self, inputs=found, doubts=[])

    def attribute(self, *names: str) -> Any:
        """The first of these attributes that exists, None if none does."""
        return next((self.attributes[name] for name in names if name in self.attributes), None)

    def number(self, *names: str, usual: float | None = None) -> float:
        """A number. If it is missing, `usual` is guessed; with None, MissingTensor is raised."""
        value = self.attribute(*names)
        if value is None:
            return self._guess(names[0], usual)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if isinstance(value, (str, tuple)) or not abs(value) < MOST:
            raise RefusedRecord(f"the attribute {names[0]} is {value!r:.40}")
        return float(value)

    def integers(self, *names: str) -> Optional[tuple[int, ...]]:
        """Integers, None if no attribute has them."""
        value = self.attribute(*names)
        if value is None:
            return None
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(one, str) or not abs(one) < MOST or one != int(one) for one in values):
            raise RefusedRecord(f"the attribute {names[0]} is {value!r:.40}")
        return tuple(int(one) for one in values)

    def constants(self, place: int, *names: str) -> Optional[tuple[int, ...]]:
        """Integers from an attribute or from an input."""
        found = self.integers(*names) if names else None
        if found is not None or place not in self.inputs:
            return found
        value = self.inputs[place]
        if value.size > 64 or not np.all(value == np.trunc(value)) or not np.all(np.abs(value) < MOST):
            raise RefusedRecord(f"input {place} is no list of sizes")
        return tuple(int(one) for one in value.reshape(-1))

    def flag(self, *names: str) -> bool:
        """A boolean, False if no attribute has it: TensorFlow and MindSpore omit a false flag, GE never does."""
        self.expect(*names)
        return bool(self.attribute(*names) or False)

    def expect(self, *names: str) -> None:
        """Add a doubt if GE's graph lacks the attribute: GE writes all attributes, even defaults."""
        if self.source == "cann" and self.attribute(*names) is None:
            self.doubt(f"the graph has no {names[0]} for it")

    def word(self, *names: str) -> str:
        value = self.attribute(*names)
        return value if isinstance(value, str) else ""

    def _guess(self, name: str, usual: float | None) -> float:
        if usual is None:
            raise MissingTensor(f"the graph has no {name} for it")
        self.doubt(f"the graph has no {name} for it, {usual:g} was assumed")
        return usual

    def doubt(self, words: str) -> None:
        if words not in self.doubts:
            self.doubts.append(words)

    def order(self, rank: int, slot: str = "input:0") -> str:
        """The order of the axes of an image, for example "NCHW" or "NHWC". GE's descriptors take precedence over its
        attribute, which is NHWC in every Caffe model."""
        declared, known = self.word("data_format", "format"), self.orders.get(slot, "")
        declared = known or declared if self.source == "cann" else declared or known
        if len(declared) == rank and set(declared) <= set("NCDHW"):
            return declared
        if rank == 4 and self.source in ("mindspore", "tfdbg", "npy"):
            return "NCHW" if self.source == "mindspore" else "NHWC"
        if rank == 2:
            return "NC"
        raise MissingTensor("the order of its axes is unknown")

    def require(self, shape: Sequence[int], place: int = 0) -> None:
        """Raise RefusedRecord before a result is computed if its size differs from the recorded size."""
        if place < len(self.shapes) and math.prod(shape) != math.prod(self.shapes[place]):
            raise RefusedRecord(f"a result of {list(shape)}, recorded is {list(self.shapes[place])}"[:160])
