"""What a run of a small network leaves behind: the nouns that the planter fills and the writers put on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

import numpy as np


@dataclass(frozen=True, eq=False)
class Tensor:
    """One value of a run.

    values: float32 holding only numbers of `dtype` (float64 for float64), int64 or bool, in C order.
    dtype: "float32", "bfloat16", "float16", "float64", "int64" or "bool".
    key: which value this is; what an operator wrote and what others read of it have one key.
    """

    values: np.ndarray
    dtype: str
    key: int
    needs_grad: bool = False
    parameter: str = ""  # its name, if it is a parameter: "layers.0.attn.query.weight"


Item = Union[Tensor, None, bool, int, float, str, "list[Any]"]


@dataclass(frozen=True, eq=False)
class Record:
    """One executed operator.

    kind: the planter's own name of it, a row of spelling.SPELLINGS ("linear", "softmax", "Module" for a module).
    call: number of this call among all of its kind in the step, from 0; a backward has that of its forward.
    scope: path of the module that it ran in: "layers.0.attn" ("" at the top); of a module its own path.
    inputs: in the order of the framework's signature, numbers included; of a backward the gradients of the outputs.
    keywords: arguments that were given by name.
    outputs: of a backward the gradients of the tensors among the forward's inputs, None where there is none.
    parameters: of a module: its own parameters; of its "parameters_grad" record their gradients.
    """

    kind: str
    phase: str  # "forward", "backward" or, of a module, "parameters_grad"
    call: int
    scope: str
    inputs: tuple[Item, ...]
    outputs: tuple[Optional[Tensor], ...]
    keywords: Mapping[str, Item] = field(default_factory=dict)
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    line: str = ""  # of a call stack: "File /src/model.py, line 41, in layer, \n y = self.act(x)"
    class_name: str = ""  # of a module
    given: bool = True  # whether its inputs are recorded
    told: bool = True  # whether its outputs are recorded

    @property
    def tensors_in(self) -> list[tuple[int, Tensor]]:
        """The tensors among its inputs, each with its place."""
        return [(place, item) for place, item in enumerate(self.inputs) if isinstance(item, Tensor)]


@dataclass(frozen=True, eq=False)
class Run:
    """One step of one rank: what was recorded, in order of execution."""

    records: tuple[Record, ...]
    step: int = 0
    rank: Optional[int] = None  # None where there is only one
