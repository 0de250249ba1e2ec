"""Numbers that neither names nor shapes show are those that most parts agree under."""

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.model import Payload
from npucmp.relations.weights.free_numbers import LAYERS, query_groups, spread
from npucmp.relations.weights.part import Part
from npucmp.relations.weights.role import Role

CHANCE = np.random.default_rng(0)


def part(layer, kind="q", payload=None):
    return Part(Role(layer, kind, "weight"), payload, f"{layer}.{kind}", "", "float32")


@pytest.mark.parametrize("layers, most", [(3, 3), (3, 4), (9, 3), (10, 4), (100, LAYERS)])
def test_parts_of_some_layers_are_spread(layers, most):
    parts = [part(layer, kind) for layer in range(layers) for kind in "qk"]
    found = [one.role.layer for one in spread(parts, most)]
    chosen = sorted({*found})
    assert found == [layer for layer in chosen for _ in "qk"] and len(chosen) == min(layers, most) and chosen[0] == 0
    gaps = {after - before for before, after in zip(chosen, chosen[1:])}
    assert max(gaps) - min(gaps) <= 1 and layers - chosen[-1] <= max(gaps)
    assert spread([part(None)], most) == [part(None)]


@pytest.fixture
def stored(tmp_path):
    def write(values):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.bin"
        values.astype(np.float32).tofile(path)
        return Payload(str(path), "float32", values.shape, 0)

    return write


def test_parts_that_cannot_be_read_have_no_vote(stored, tmp_path):
    values = CHANCE.standard_normal((16, 6))
    good, bad = stored(values), Payload(str(tmp_path / "absent"), "float32", (16, 6), 0)
    fused = [(part(0, "qkv_groups", None), (8, 4, 4)), (part(1, "qkv_groups", bad), (8, 4, 4))]
    others = {Role(layer, "q", "weight"): part(layer, "q", good) for layer in range(2)}
    assert query_groups(fused, others, 1, ANYWHERE) == (None, "", None)
    others = {Role(0, "q", "weight"): part(0, "q", None)}
    assert query_groups([(part(0, "qkv_groups", good), (8, 4, 4))], others, 1, ANYWHERE).value is None
    assert query_groups([(part(0, "qkv_groups", good), (8, 4, 4))], {}, 1, ANYWHERE).value is None
