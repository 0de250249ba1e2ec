"""The rules in force."""

from __future__ import annotations

import pytest

from npucmp.localise.rules import Rulebook


@pytest.fixture
def rulebook():
    return Rulebook()
