"""The generated ranks compute the network of one rank."""

from __future__ import annotations

import numpy as np
import pytest

from tests.corpus.networks import Weights
from tests.corpus.parallel.cases import LAYOUTS, design_for
from tests.corpus.parallel.layout import Layout
from tests.corpus.parallel.networks import Design, Network
from tests.corpus.tape import Precision, Session


def updated(design: Design, layout: Layout) -> dict[tuple[int, str], np.ndarray]:
    """The weights of each rank after a step in float64."""
    session = Session(None, Precision("float64"), {}, 0, layout.ranks)
    Network(session, layout, design, Weights(3), 3).step()
    return {
        (rank, one.scope if "flat" not in one.scope else f"{one.scope}.{one.call}"): one.outputs[0].values
        for rank, one in session.records
        if one.scope.startswith("optimizer") and one.kind == "sub" and one.outputs[0] is not None
    }


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if not layout.zero])
def test_a_step_on_ranks_is_the_step_on_one(name):
    design = design_for(np.random.RandomState(4), LAYOUTS[name])
    whole, parts = updated(design, Layout()), updated(design, LAYOUTS[name])
    same = [(found, whole[0, scope]) for (_, scope), found in parts.items() if found.shape == whole[0, scope].shape]
    assert same and max(float(np.abs(found - exact).max()) for found, exact in same) < 1e-13


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.zero])
@pytest.mark.parametrize("clip", [False, True])
def test_split_updates_have_the_values_of_whole_ones(name, clip):
    layout = LAYOUTS[name]
    design = design_for(np.random.RandomState(4), layout)._replace(clip=clip and layout.ranks == layout.dp)
    whole, parts = (values_of(updated(design, one)) for one in (Layout(), layout))
    assert farthest(whole, parts) < 1e-12 and farthest(parts, whole) < 1e-12


def values_of(tensors: dict[tuple[int, str], np.ndarray]) -> np.ndarray:
    """All values in their order, without those that fill up a buffer."""
    found = np.sort(np.concatenate([one.reshape(-1) for one in tensors.values()]))
    return found[found != 0]


def farthest(some: np.ndarray, others: np.ndarray) -> float:
    """The largest distance of a value from the nearest of others."""
    at = np.searchsorted(others, some).clip(1, len(others) - 1)
    return float(np.minimum(np.abs(others[at] - some), np.abs(others[at - 1] - some)).max())
