"""The same operator on several ranks; apart from networks.py, so that a call stack shows the network's line."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from tests.corpus.device import rounded
from tests.corpus.parallel.collectives import Vars
from tests.corpus.parallel.faults import Fault
from tests.corpus.tape import Session, Tape


class Lockstep:
    """Tapes of ranks that compute the same operators."""

    session: Session
    fault: Fault
    tapes: dict[int, Tape]

    def _each(self, ranks: Sequence[int], kind: str, *items: Any, **keywords: Any) -> Vars:
        """The same operator on every rank; a dictionary among the items has one for each."""
        found = {}
        for rank in ranks:
            own = [item[rank] if isinstance(item, dict) else item for item in items]
            named = {k: v[rank] if isinstance(v, dict) else v for k, v in keywords.items()}
            if kind == "linear" and len(own) == 2:
                own.append(None)
            found[rank] = self.tapes[rank](kind, *own, **named)
            if self.fault.strikes("wrong part", f"{self.tapes[rank].scope}.{kind}", rank, self.session.step):
                tensor = found[rank].tensor
                values = tensor.values * (
                    1 + self.fault.size * np.cos(np.arange(tensor.values.size)).reshape(tensor.values.shape)
                )
                np.copyto(tensor.values, rounded(values.astype(np.float64), tensor.dtype).astype(tensor.values.dtype))
        return found
