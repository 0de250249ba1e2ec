"""The stages and ranks of a checkpoint, and the numbers of its layers and experts, by counting."""

import pytest

from npucmp.errors import UsageError
from npucmp.relations.weights.structure import structure_of
from tests.relations.weights.craft import checkpoint

EMBED, HEAD = {"model.embed_tokens.weight": (8, 4)}, {"lm_head.weight": (8, 4)}


def layer(number, prefix="model.layers", **more):
    return {f"{prefix}.{number}.mlp.down_proj.weight": (4, 6), **more}


def structure(*ranks, config=None):
    return structure_of(checkpoint(*ranks, config=config), "target")


@pytest.mark.parametrize(
    "ranks, words",
    [
        ([((0,), EMBED), ((1,), EMBED), ((2,), layer(0))], "has 3 ranks, of which 2 hold an embedding"),
        ([((0,), EMBED), ((2,), EMBED)], "holds ranks 0, 2: ranks between them are missing"),
        ([((1,), EMBED), ((2,), EMBED)], "holds ranks 1, 2: ranks between them are missing"),
    ],
)
def test_missing_ranks_are_refused(ranks, words):
    with pytest.raises(UsageError, match=f"the target {words}"):
        structure(*ranks)
