"""Facts about a run that are not findings: the dtypes of its operators, and the loss scale."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Sequence

from npucmp.health.facts import Health
from npucmp.health.rules.locations import is_float
from npucmp.model import first_of

FEW = 4  # operator types that are named


def notes_of(healths: Sequence[Health]) -> Iterator[str]:
    """Yield the notes of the first rank's first step."""
    for step in [step for one in healths for step in one.steps][:1]:
        types: dict[str, Counter[str]] = {}
        for op in step.forward:
            for tensor in op.outputs[:1]:
                if is_float(tensor):
                    types.setdefault(tensor.dtype, Counter())[op.operator.op_type] += 1
        counts = {dtype: sum(kinds.values()) for dtype, kinds in types.items()}
        dtypes = sorted(counts, key=lambda dtype: -counts[dtype])
        if dtypes[1:]:
            words = [f"{counts[dtype]:,} in {dtype}" for dtype in dtypes]
            kinds = first_of([kind for kind, _ in types[dtypes[1]].most_common()], FEW)
            yield f"operators that write floats: {', '.join(words)} ({dtypes[1]}: {kinds})"
        if step.loss_scale is not None and step.loss_scale not in (0, 1):
            yield f"the gradient that enters the loss is {step.loss_scale:g}: the loss scale"
