"""Where a partial sum may stand: operators by what they compute, and the placements of what they read."""

from types import SimpleNamespace

import pytest

from npucmp.model import Operator
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import MAX, MEAN, SUM, WHOLE, Placement
from npucmp.relations.ranks.partial_sums import sums_of_input

SHARD = Placement("shard", 0)


def operator(kind, phase="forward", path="", inputs=("input:0", "input:1"), **arguments):
    op = Operator(f"{kind}.0", kind, kind, phase, 0, (), arguments=arguments, path=path)
    tensors = [SimpleNamespace(slot=slot) for slot in inputs]
    return SimpleNamespace(op=op, type=op_type_of(op), is_backward=phase == "backward", inputs=tensors)


@pytest.mark.parametrize(
    "golden, slot, linked, others, axes",
    [
        (operator("add"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("add"), "input:0", [WHOLE, MEAN], [[WHOLE, MAX]], {1}),
        (operator("add"), "input:0", [SUM, SUM], [[SUM, WHOLE]], set()),
        (operator("add"), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),  # a whole addend would count twice
        (operator("add"), "input:0", [MEAN, WHOLE], [[WHOLE, WHOLE]], {0}),  # counts once in a mean
        (operator("add"), "input:0", [MEAN, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("add"), "input:0", [MEAN, SUM], [[WHOLE, WHOLE]], set()),
        (operator("add"), "input:0", [MEAN, WHOLE], [[SHARD, WHOLE]], set()),
        (operator("add"), "input:0", [MEAN, WHOLE], [None], set()),
        (operator("add"), "input:0", [SUM, WHOLE], [], {0}),
        (operator("add", alpha=2), "input:0", [SUM, WHOLE], [], set()),
        (operator("add", out=0), "input:0", [SUM, WHOLE], [], {0}),
        (operator("add", name="x"), "input:0", [SUM, WHOLE], [], {0}),  # words are no addends
        (operator("add"), "input:0", [SHARD, WHOLE], [], set()),
        (operator("add"), "input:0", None, [], set()),
        (operator("add", "backward"), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], {0}),
        (operator("masked_fill", value=0.0), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], {0}),
        (operator("masked_fill", value=-1.0), "input:0", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),
        (operator("div"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], {0}),
        (operator("div"), "input:1", [SUM, WHOLE], [[WHOLE, WHOLE]], set()),
        (operator("mul"), "input:0", [SUM, WHOLE], [[WHOLE, SUM]], {0}),
        (operator("mul"), "input:0", [SUM, WHOLE], [[SUM, WHOLE]], set()),
        (operator("relu"), "input:0", [SUM, WHOLE], [], set()),
        (operator("layer_norm"), "input:0", [SUM, WHOLE], [], set()),
        (operator("transpose"), "input:0", [SUM, WHOLE], [], {0}),
    ],
)
def test_an_input_may_be_a_partial_sum(golden, slot, linked, others, axes):
    known = {f"input:{number}": one for number, one in enumerate(others, 5)}
    assert sums_of_input(golden, SimpleNamespace(slot=slot), linked, known, False) == axes
