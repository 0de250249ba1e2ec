"""How tests run: an unexpected error is raised; on a busy machine a test may take long without being wrong."""

import os

import pytest
from hypothesis import HealthCheck, settings

from npucmp.errors import RAISE

settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("busy")
os.environ[RAISE] = "1"


@pytest.fixture
def as_installed(monkeypatch):
    """An unexpected error costs its row, rule or operator, as it does for users."""
    monkeypatch.delenv(RAISE)
