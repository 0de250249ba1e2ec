"""How tests run: an unexpected error is raised; on a busy machine a test may take long without being wrong."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from npucmp.errors import RAISE

settings.register_profile(
    "busy",
    deadline=None,
    max_examples=int(os.environ.get("NPUCMP_EXAMPLES", "30")),  # .ci/nightly asks more
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("busy")
os.environ[RAISE] = "1"
os.environ["NPUCMP_LANG"] = "en"  # whatever the locale of the machine says; tests/report/test_chinese.py sets it
if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") and "PYTHONPYCACHEPREFIX" not in os.environ:
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="npucmp-tests-")  # processes of tests compile once
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Exclude the thousands of collected tests from garbage collection."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many processes as processors: one more costs its collection, and wins nothing."""
    return os.cpu_count() or 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the parameters of a test with `few(n)` as large, except for n that are evenly spread."""
    found = {}
    for item in items:
        if item.get_closest_marker("few"):
            found.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for several in found.values():
        count = several[0].get_closest_marker("few").args[0]
        run = {round(at * (len(several) - 1) / max(1, count - 1)) for at in range(count)}
        for at, item in enumerate(several):
            if at not in run:
                item.add_marker("large")


@pytest.fixture
def as_installed(monkeypatch):
    """An unexpected error costs its row, rule or operator, as it does for users."""
    monkeypatch.delenv(RAISE)
