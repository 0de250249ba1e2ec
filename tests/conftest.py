"""How tests run: an unexpected error is raised; on a busy machine a test may take long without being wrong."""

import gc
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


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """The collector of garbage does not look through the thousands of collected tests again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.fixture
def as_installed(monkeypatch):
    """An unexpected error costs its row, rule or operator, as it does for users."""
    monkeypatch.delenv(RAISE)
