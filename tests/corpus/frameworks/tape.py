"""A tape executes the operators of a network one by one and records them; a strike makes one compute wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

Arrays = list[np.ndarray]
Compute = Callable[[Arrays, dict[str, Any]], Arrays]


@dataclass
class Call:
    """One executed operator: its name in the dump, its type in the framework, and its tensors in order."""

    name: str
    type: str
    inputs: Arrays
    outputs: Arrays
    arguments: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[str] = ()  # of the inputs in the framework's signature: "0", "1.0" of a list, "dim" of a keyword


class Strike(NamedTuple):
    """A fault at one call; `kind` is a row of faults.FAULTS."""

    call: int
    kind: str
    seed: int = 0


class Tape:
    """Recorded calls. The fault of a strike changes inputs, arguments or outputs of one computation."""

    def __init__(self, strike: Optional[Strike] = None) -> None:
        self.calls: list[Call] = []
        self.strike = strike
        self._behind = False

    def run(
        self,
        name: str,
        type: str,
        compute: Compute,
        inputs: Sequence[np.ndarray],
        arguments: Optional[dict[str, Any]] = None,
        places: Sequence[str] = (),
    ) -> Arrays:
        """Compute one operator, record it and return its outputs.

        The recorded inputs and arguments are those before the strike: the fault is inside the operator.
        """
        from tests.corpus.frameworks.faults import FAULTS

        given = [np.array(one) for one in inputs]
        arguments = dict(arguments or {})
        strike = self.strike
        if strike is not None and strike.call == len(self.calls):
            fault = FAULTS[strike.kind]
            random = np.random.default_rng(strike.seed)
            values, changed = [np.array(one) for one in given], dict(arguments)
            fault.before(type, values, changed, random)
            outputs = [np.array(one) for one in compute(values, changed)]
            outputs = fault.after(type, given, outputs, random)
        else:
            outputs = [np.array(one) for one in compute([np.array(one) for one in given], dict(arguments))]
        shown = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
        self.calls.append(Call(name, type, given, outputs, shown, places))
        return outputs
