"""Each test draws the same numbers, whichever tests ran before it in its process."""

import numpy as np
import pytest

from tests.relations.frameworks.contents import small_runs


@pytest.fixture(autouse=True)
def same_numbers(request, monkeypatch):
    """Generators of a module begin anew."""
    for place in (request.module, small_runs):
        for name in ("RNG", "CHANCE"):
            if hasattr(place, name):
                monkeypatch.setattr(place, name, np.random.default_rng(0))
