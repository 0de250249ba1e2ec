"""How hypothesis runs here: on a busy machine a test may take long without being wrong."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("busy")
