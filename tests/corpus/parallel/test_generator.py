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
        (rank, one.scope): one.outputs[0].values
        for rank, one in session.records
        if one.scope.startswith("optimizer") and one.kind == "sub" and one.outputs[0] is not None
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_on_ranks_is_the_step_on_one(name):
    design = design_for(np.random.RandomState(4), LAYOUTS[name])
    whole, parts = updated(design, Layout()), updated(design, LAYOUTS[name])
    same = [(found, whole[0, scope]) for (_, scope), found in parts.items() if found.shape == whole[0, scope].shape]
    assert same and max(float(np.abs(found - exact).max()) for found, exact in same) < 1e-13
